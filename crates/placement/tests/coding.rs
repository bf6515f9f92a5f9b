//! Which streamed blocks travel coded, and what that makes of the ring and the prediction.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::DeviceId;
use placement::{AllocationText, BlockMode, BlockSpec, CodingPolicy, DeviceSpec, Plan, PlanRequest, plan};

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
        let again = placement::predict(&automatic(CodingPolicy::Auto, share, Some(1e11)), &auto).unwrap();
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
