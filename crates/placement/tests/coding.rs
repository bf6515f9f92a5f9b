//! Which streamed blocks travel coded, and what that makes of the ring and the prediction.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::DeviceId;
use placement::{
    AllocationText, BlockMode, BlockSpec, CodingPolicy, DeviceSpec, HostRoom, Outside, Plan, PlanRequest,
    plan, predict,
};

const BLOCKS: usize = 20;
const BYTES: u64 = 100_000_000;
const CODED: u64 = 71_000_000;

/// Twenty blocks, all in host memory, on a link of 1 GB/s: 0.1 s each.
fn request(policy: CodingPolicy, compute_seconds: f64, decode_bytes_per_s: Option<f64>) -> PlanRequest {
    let block =
        |index| BlockSpec { name: format!("blocks.{index}"), bytes: BYTES, compute_seconds, pinned: false };
    let device = |id| DeviceSpec {
        id,
        total_bytes: 8_000_000_000,
        available_bytes: 8_000_000_000,
        link_bytes_per_s: 1e9,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    let devices = vec![device(DeviceId::CPU), device(DeviceId::sim(0))];
    let mut request = PlanRequest::new((0..BLOCKS).map(block).collect(), devices, DeviceId::sim(0));
    request.allocation = AllocationText::parse("sim:0,0%;cpu,100%").unwrap();
    request.coding.policy = policy;
    request.coding.coded_bytes = vec![Some(CODED); BLOCKS];
    request.coding.decode_bytes_per_s = decode_bytes_per_s;
    request
}

fn coded(plan: &Plan) -> usize {
    plan.blocks.iter().filter(|block| block.coded_bytes.is_some()).count()
}

#[test]
fn a_step_that_the_link_limits_is_as_much_shorter_as_there_are_fewer_bytes() {
    let plain = plan(&request(CodingPolicy::Off, 0.01, Some(1e11))).unwrap();
    let auto = plan(&request(CodingPolicy::Auto, 0.01, Some(1e11))).unwrap();
    assert_eq!((coded(&plain), coded(&auto)), (0, BLOCKS));
    assert_eq!((plain.streamed_bytes(), auto.streamed_bytes()), (20 * BYTES, 20 * CODED));
    let ratio = auto.prediction.seconds_per_step / plain.prediction.seconds_per_step;
    assert!((ratio - 0.71).abs() < 0.001, "{ratio}\n{auto}");
    let (ring, before) = (auto.ring.unwrap(), plain.ring.unwrap());
    assert_eq!((ring.slot_bytes, ring.room_bytes), (CODED, BYTES));
    assert!(ring.bytes() <= before.bytes(), "the card holds no more than before");
    assert_eq!(auto.device(DeviceId::sim(0)).unwrap().ring_bytes, ring.bytes());
    assert!(auto.to_string().contains("20 blocks of"), "{auto}");
}

#[test]
fn nothing_is_coded_for_nothing() {
    let auto = |compute_s, decode| coded(&plan(&request(CodingPolicy::Auto, compute_s, decode)).unwrap());
    assert_eq!(auto(0.2, Some(1e11)), 0, "copies hide behind computing already");
    assert_eq!(auto(0.01, Some(2e9)), 0, "decoding takes longer than what it saves");
    assert_eq!(auto(0.01, None), 0, "nobody knows how long decoding takes");
    assert_eq!(coded(&plan(&request(CodingPolicy::Force, 0.2, None)).unwrap()), BLOCKS);
}

#[test]
fn copies_that_computing_slows_down_are_coded_where_others_would_hide() {
    // 0.1 s of copying behind 0.11 s of computing, beside which it takes 0.12.
    let slowed = |copy_slowdown, policy| {
        plan(&PlanRequest { copy_slowdown, ..request(policy, 0.11, Some(1e11)) }).unwrap()
    };
    let seconds = |plan: &Plan| plan.prediction.seconds_per_step;
    assert_eq!(coded(&slowed(1.0, CodingPolicy::Auto)), 0);
    assert!((seconds(&slowed(1.0, CodingPolicy::Off)) / 2.2 - 1.0).abs() < 1e-6);
    let (plain, auto) = (slowed(1.2, CodingPolicy::Off), slowed(1.2, CodingPolicy::Auto));
    // After 0.11 s of computing 0.11 / 1.2 s of the copying are done, and the rest of it is alone.
    let expected = 20.0 * (0.11 + 0.1 - 0.11 / 1.2);
    assert!((seconds(&plain) / expected - 1.0).abs() < 1e-6, "{plain}");
    assert_eq!(coded(&auto), BLOCKS);
    // Each block is decoded in a millisecond.
    assert!((seconds(&auto) / (20.0 * 0.111) - 1.0).abs() < 1e-6, "{auto}");
}

#[test]
fn resident_blocks_and_those_that_do_not_shrink_stay_as_they_are() {
    let mut request = request(CodingPolicy::Force, 0.01, Some(1e11));
    request.allocation = AllocationText::parse("sim:0,50%;cpu,50%").unwrap();
    request.coding.coded_bytes.truncate(BLOCKS - 5);
    let plan = plan(&request).unwrap();
    for (index, block) in plan.blocks.iter().enumerate() {
        let expected = (block.mode == BlockMode::Streamed && index < BLOCKS - 5).then_some(CODED);
        assert_eq!(block.coded_bytes, expected, "{}", block.name);
    }
    assert!(plan.ring.unwrap().slot_bytes == BYTES, "a plain block passes through the same slots");
}

#[test]
fn a_card_without_room_to_decode_in_streams_plainly() {
    let mut request = request(CodingPolicy::Force, 0.01, Some(1e11));
    request.devices[1].available_bytes = 150_000_000;
    let plan = plan(&request).unwrap();
    assert_eq!((coded(&plan), plan.ring.unwrap().room_bytes), (0, 0));
}

#[test]
fn blocks_that_shrink_little_are_coded_only_where_that_is_forced() {
    // As fp8 and f16 do: some nine tenths are left.
    for (policy, expected) in [(CodingPolicy::Auto, 0), (CodingPolicy::Force, BLOCKS)] {
        let mut little = request(policy, 0.01, Some(1e11));
        little.coding.coded_bytes = vec![Some(88_000_000); BLOCKS];
        assert_eq!(coded(&plan(&little).unwrap()), expected);
        let mut little = automatic(policy, 0.95, Some(1e11));
        little.coding.coded_bytes = vec![Some(88_000_000); BLOCKS];
        assert_eq!(kept(&plan(&little).unwrap()), expected);
    }
}

#[test]
fn a_host_that_is_short_of_memory_streams_plainly_and_says_so() {
    let with = |policy, bytes, plain_too| {
        let mut request = request(policy, 0.01, Some(1e11));
        request.coding.host = Some(HostRoom { bytes, plain_too });
        plan(&request).unwrap()
    };
    let all = BLOCKS as u64 * CODED;
    assert_eq!(coded(&with(CodingPolicy::Auto, all, false)), BLOCKS);
    let short = with(CodingPolicy::Auto, all - 1, false);
    assert_eq!(coded(&short), 0);
    assert!(short.notes.iter().any(|note| note.contains("of host memory")), "{short}");
    assert_eq!(short.ring, plan(&request(CodingPolicy::Off, 0.01, None)).unwrap().ring);
    assert_eq!(coded(&with(CodingPolicy::Auto, all, true)), 0, "what streams is pinned until then");
    assert_eq!(coded(&with(CodingPolicy::Auto, all + BLOCKS as u64 * BYTES, true)), BLOCKS);
    assert_eq!(coded(&with(CodingPolicy::Force, 0, true)), BLOCKS);
    // The same of blocks that stay on the device: they are on the host only as long as they are plain.
    for (plain_too, expected) in [(false, true), (true, false)] {
        let mut request = automatic(CodingPolicy::Auto, 0.85, Some(1e11));
        request.coding.host = Some(HostRoom { bytes: 0, plain_too });
        assert_eq!(kept(&plan(&request).unwrap()) > 0, expected);
    }
}

#[test]
fn until_blocks_are_coded_steps_are_those_of_a_plain_ring_in_the_same_memory() {
    let coded_request = request(CodingPolicy::Auto, 0.01, Some(1e11));
    let coded_plan = plan(&coded_request).unwrap();
    let before = coded_plan.before_coding().unwrap();
    assert_eq!((coded(&before), before.streamed_bytes()), (0, 20 * BYTES));
    let (ring, planned) = (before.ring.unwrap(), coded_plan.ring.unwrap());
    assert!(ring.slots > 0 && ring.bytes() <= planned.bytes() && ring.room_bytes == 0, "{ring:?}");
    let plain_s = predict(&coded_request, &before).unwrap().seconds_per_step;
    let plain = plan(&request(CodingPolicy::Off, 0.01, None)).unwrap();
    assert!((plain_s / plain.prediction.seconds_per_step - 1.0).abs() < 0.02, "{plain_s}\n{plain}");
    assert_eq!(plain.before_coding(), None);
    // What is to stay coded travels until then.
    let kept_request = automatic(CodingPolicy::Auto, 0.85, Some(1e11));
    let kept_plan = plan(&kept_request).unwrap();
    let before = kept_plan.before_coding().unwrap();
    assert_eq!(before.streamed_bytes(), kept(&kept_plan) as u64 * BYTES);
    let before_s = predict(&kept_request, &before).unwrap().seconds_per_step;
    assert!(before_s >= kept(&kept_plan) as f64 * 0.1, "{before_s}");
    assert_eq!(kept_plan.decoded_bytes(), kept(&kept_plan) as u64 * BYTES);
}

#[test]
fn what_a_step_does_outside_of_its_blocks_hides_where_the_link_is_the_limit() {
    let outside = Outside { resident_s: 0.3, streaming_s: 0.4 };
    let seconds = |compute_s: f64, policy| {
        let mut request = request(policy, compute_s, Some(1e11));
        request.outside = outside;
        let plan = plan(&request).unwrap();
        (plan.prediction.seconds_per_step, plan.streamed_bytes() as f64 / 1e9, plan.prediction)
    };
    for policy in [CodingPolicy::Off, CodingPolicy::Auto] {
        let (step_s, link_s, prediction) = seconds(0.01, policy);
        // A ring of a few slots runs ahead so far, and no further.
        assert!(step_s >= link_s * 0.999 && step_s < link_s * 1.1, "{policy:?}: {step_s} of {link_s}");
        assert_eq!(prediction.outside_s, 0.4);
        assert_eq!(prediction.decode_s > 0.0, policy == CodingPolicy::Auto);
    }
    let (step_s, ..) = seconds(0.2, CodingPolicy::Off);
    assert!((step_s - (20.0 * 0.2 + 0.4)).abs() < 0.01, "{step_s}");
    let mut resident = automatic(CodingPolicy::Off, 2.0, None);
    resident.outside = outside;
    let step_s = plan(&resident).unwrap().prediction.seconds_per_step;
    assert!((step_s - (20.0 * 0.001 + 0.3)).abs() < 1e-9, "{step_s}");
}

/// A request without amounts on a card with so much of the model's bytes.
fn automatic(policy: CodingPolicy, share: f64, decode_bytes_per_s: Option<f64>) -> PlanRequest {
    // So little computing that no copy hides behind it.
    let mut request = request(policy, 0.001, decode_bytes_per_s);
    request.allocation = AllocationText::automatic();
    request.devices[1].available_bytes = (share * (BLOCKS as u64 * BYTES) as f64) as u64;
    request
}

fn kept(plan: &Plan) -> usize {
    plan.blocks.iter().filter(|block| block.is_kept_coded()).count()
}

#[test]
fn a_card_that_is_a_little_too_small_keeps_blocks_coded_instead_of_streaming_them() {
    for (share, least) in [(0.77, 17), (0.85, 1), (0.95, 1)] {
        let streamed = plan(&automatic(CodingPolicy::Off, share, Some(1e11))).unwrap();
        let auto = plan(&automatic(CodingPolicy::Auto, share, Some(1e11))).unwrap();
        assert_eq!(auto.streamed_bytes(), 0, "{share}\n{auto}");
        assert!((least..=BLOCKS).contains(&kept(&auto)), "{share}\n{auto}");
        let (ring, usage) = (auto.ring.unwrap(), auto.device(DeviceId::sim(0)).unwrap());
        assert_eq!((ring.slots, ring.room_bytes, usage.ring_bytes), (0, BYTES, BYTES));
        let stays = |block: &placement::BlockPlan| block.coded_bytes.unwrap_or(block.bytes);
        assert_eq!(usage.weight_bytes, auto.blocks.iter().map(stays).sum::<u64>());
        assert!(usage.total_bytes() <= usage.available_bytes, "{auto}");
        // Computing, and a millisecond for each block that is decoded.
        let expected = BLOCKS as f64 * 0.001 + kept(&auto) as f64 * 0.001;
        assert!((auto.prediction.seconds_per_step / expected - 1.0).abs() < 1e-6, "{auto}");
        assert!(auto.prediction.seconds_per_step < streamed.prediction.seconds_per_step);
        let again = predict(&automatic(CodingPolicy::Auto, share, Some(1e11)), &auto).unwrap();
        assert_eq!(again.seconds_per_step, auto.prediction.seconds_per_step);
    }
}

#[test]
fn a_card_that_is_far_too_small_keeps_some_coded_and_streams_the_others() {
    let auto = plan(&automatic(CodingPolicy::Auto, 0.5, Some(1e11))).unwrap();
    let streamed = plan(&automatic(CodingPolicy::Off, 0.5, Some(1e11))).unwrap();
    assert!(kept(&auto) > 0 && auto.streamed_bytes() > 0, "{auto}");
    let usage = auto.device(DeviceId::sim(0)).unwrap();
    assert!(usage.total_bytes() <= usage.available_bytes, "{auto}");
    let ratio = auto.prediction.seconds_per_step / streamed.prediction.seconds_per_step;
    assert!(ratio < 0.7, "{ratio}\n{auto}");
}

#[test]
fn what_fits_or_is_slow_to_decode_is_not_kept_coded() {
    assert_eq!(kept(&plan(&automatic(CodingPolicy::Auto, 1.1, Some(1e11))).unwrap()), 0);
    assert_eq!(kept(&plan(&automatic(CodingPolicy::Auto, 0.95, Some(1e8))).unwrap()), 0, "a slow decoder");
    assert_eq!(kept(&plan(&automatic(CodingPolicy::Auto, 0.95, None)).unwrap()), 0, "an unknown decoder");
    assert_eq!(kept(&plan(&automatic(CodingPolicy::Off, 0.95, Some(1e11))).unwrap()), 0);
    assert_eq!(kept(&plan(&automatic(CodingPolicy::Force, 1.1, None)).unwrap()), BLOCKS);
}
