//! Plans for known models and machines.

use meta::DeviceId;
use placement::{
    AllocationProblem, AllocationText, BlockMode, BlockSpec, DeviceSpec, Order, Overfull, PeerLink, Plan,
    PlanError, PlanRequest, RemotePolicy, RingLimits, is_tiny, plan,
};

const GB: u64 = 1 << 30;
const MB: u64 = 1 << 20;
const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);
const C2: DeviceId = DeviceId::cuda(2);
/// The host link of the test machine.
const LINK: f64 = 50e9;

fn device(id: DeviceId, available: u64) -> DeviceSpec {
    DeviceSpec {
        id,
        total_bytes: available + available / 8,
        available_bytes: available,
        link_bytes_per_s: LINK,
        compute_factor: 1.0,
        reaches: Vec::new(),
    }
}

fn block(name: String, bytes: u64, compute_seconds: f64) -> BlockSpec {
    BlockSpec { name, bytes, compute_seconds, pinned: false }
}

/// Equal blocks of 1 GB.
fn equal_blocks(count: usize, compute_seconds: f64) -> Vec<BlockSpec> {
    (0..count).map(|i| block(format!("blocks.{i}"), GB, compute_seconds)).collect()
}

/// The shape of FLUX in bf16: 19 double and 38 single blocks, with what always stays.
fn flux(compute_seconds: f64) -> Vec<BlockSpec> {
    let pinned = |name: &str, bytes| BlockSpec { pinned: true, ..block(name.to_owned(), bytes, 1e-4) };
    let per_byte = compute_seconds / (19.0 * 680e6 + 38.0 * 283e6);
    let mut blocks = vec![pinned("img_in", 400_000), pinned("time_in", 20_000_000)];
    blocks.extend((0..19).map(|i| block(format!("double_blocks.{i}"), 680_000_000, 680e6 * per_byte)));
    blocks.extend((0..38).map(|i| block(format!("single_blocks.{i}"), 283_000_000, 283e6 * per_byte)));
    blocks.push(pinned("final_layer", 38_000_000));
    blocks
}

fn request(blocks: Vec<BlockSpec>, devices: Vec<DeviceSpec>, text: &str) -> PlanRequest {
    let allocation = AllocationText::parse(text).unwrap_or_else(|error| panic!("{error}"));
    PlanRequest { allocation, ..PlanRequest::new(blocks, devices, C0) }
}

fn planned(request: &PlanRequest) -> Plan {
    plan(request).unwrap_or_else(|error| panic!("{error}"))
}

fn weights(plan: &Plan, device: DeviceId) -> u64 {
    plan.device(device).map_or(0, |usage| usage.weight_bytes)
}

/// The homes of the blocks as a text: `0` for cuda:0, `1` for cuda:1, `h` for the host.
fn homes(plan: &Plan) -> String {
    let letter = |home: DeviceId| match home {
        CPU => 'h',
        C0 => '0',
        C1 => '1',
        other => panic!("{other} has no letter"),
    };
    plan.blocks.iter().map(|block| letter(block.home)).collect()
}

fn big_machine() -> Vec<DeviceSpec> {
    vec![device(CPU, 64 * GB), device(C0, 24 * GB), device(C1, 24 * GB)]
}

#[test]
fn what_fits_is_resident() {
    let plan = planned(&request(equal_blocks(20, 0.01), big_machine(), ""));
    assert_eq!(homes(&plan), "0".repeat(20));
    assert_eq!(plan.ring, None);
    assert!((plan.prediction.seconds_per_step - 0.2).abs() < 1e-9);
    assert_eq!(plan.to_allocation().to_string(), "cuda:0,*");
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
}

#[test]
fn streamed_blocks_lie_between_resident_ones() {
    for (text, expected) in [
        ("cuda:0,15gb;cpu,*", "00h000h000h000h000h0"),
        ("cuda:0,10gb;cpu,*", "0h0h0h0h0h0h0h0h0h0h"),
        ("cuda:0,5gb;cpu,*", "h0hhh0hhh0hhh0hhh0hh"),
        ("cuda:0,25%;cpu,75%", "h0hhh0hhh0hhh0hhh0hh"),
        ("cpu,*", "hhhhhhhhhhhhhhhhhhhh"),
        ("cuda:0,15gb;cpu,*;order=contiguous", "000000000000000hhhhh"),
        ("cpu,*;cuda:0,15gb;order=contiguous", "hhhhh000000000000000"),
        ("cuda:1,2gb;cpu,*;cuda:0,15gb;order=contiguous", "11hhh000000000000000"),
        ("cuda:0,8%;cuda:1,8%;cpu,4%;order=contiguous", "0000000011111111hhhh"),
    ] {
        let mut request = request(equal_blocks(20, 0.01), big_machine(), text);
        request.remote = RemotePolicy::Stream;
        assert_eq!(homes(&planned(&request)), expected, "{text}");
    }
}

#[test]
fn slow_blocks_have_more_copies_behind_them() {
    // The second half computes four times as long, so it can hide four times as many copies.
    let mut blocks = equal_blocks(20, 0.01);
    blocks.iter_mut().skip(10).for_each(|block| block.compute_seconds = 0.04);
    let plan = planned(&request(blocks, big_machine(), "cuda:0,10gb;cpu,*"));
    let homes = homes(&plan);
    let streamed = |text: &str| text.matches('h').count();
    assert_eq!((streamed(&homes[..10]), streamed(&homes[10..])), (2, 8), "{homes}");
}

#[test]
fn interleaved_offloads_hide_behind_computing() {
    for offload in [0.25, 0.5, 0.75, 1.0] {
        for compute_over_copy in [0.25, 0.5, 0.8, 0.95, 1.0, 1.05, 1.25, 2.0, 4.0] {
            // Computing and copying of the offload in this ratio.
            let copy_s = offload * 20.0 * GB as f64 / LINK;
            let blocks = equal_blocks(20, compute_over_copy * copy_s / 20.0);
            let text = format!("cuda:0,{}gb;cpu,*", 20.0 * (1.0 - offload));
            let plan = planned(&request(blocks, big_machine(), &text));
            let p = &plan.prediction;
            let bound = (20.0 * plan.prediction.blocks[0].compute_s).max(copy_s);
            assert!((p.bound_s() - bound).abs() < 1e-9 * bound);
            let over = p.seconds_per_step / bound;
            assert!(over <= 1.05, "{offload} {compute_over_copy}: {over} with {:?}", plan.ring);
        }
    }
}

#[test]
fn flux_offloads_hide_behind_computing() {
    for resident_gb in [0.0, 3.0, 6.0, 12.0, 18.0] {
        for compute_s in [0.1, 0.17, 0.4, 1.0] {
            let text = format!("cuda:0,{resident_gb}gb;cpu,*");
            let plan = planned(&request(flux(compute_s), big_machine(), &text));
            let p = &plan.prediction;
            let over = p.seconds_per_step / p.bound_s();
            assert!(over <= 1.05, "{resident_gb} GB, {compute_s} s: {over} with {:?}", plan.ring);
        }
    }
}

#[test]
fn a_contiguous_tail_is_slower_than_interleaving() {
    let compute_s = GB as f64 / LINK / 2.0;
    let text = "cuda:0,10gb;cpu,*";
    let interleaved = planned(&request(equal_blocks(20, compute_s), big_machine(), text));
    let mut contiguous = request(equal_blocks(20, compute_s), big_machine(), text);
    contiguous.order = Order::Contiguous;
    let contiguous = planned(&contiguous);
    let ratio = contiguous.prediction.seconds_per_step / interleaved.prediction.seconds_per_step;
    assert!(ratio > 1.05, "{ratio}");
    assert_eq!(contiguous.to_allocation().to_string(), "cuda:0,10gb;cpu,*;order=contiguous");
}

#[test]
fn small_weights_stay_whatever_is_asked() {
    let plan = planned(&request(flux(0.1), big_machine(), "cpu,*"));
    assert_eq!(weights(&plan, C0), 58_400_000);
    for block in &plan.blocks {
        let pinned = !block.name.contains("blocks");
        assert_eq!(
            block.mode,
            if pinned { BlockMode::Resident } else { BlockMode::Streamed },
            "{}",
            block.name
        );
        assert_eq!(block.runs_on, C0);
    }
    assert!(plan.notes[0].contains("always stay on cuda:0"), "{:?}", plan.notes);
    assert!(is_tiny(99_999, 1_000_000_000) && !is_tiny(100_000, 1_000_000_000));
}

#[test]
fn the_ring_is_counted_on_the_compute_device() {
    let mut request = request(equal_blocks(20, 0.02), big_machine(), "cuda:0,10gb;cpu,*");
    request.working_bytes = GB;
    let plan = planned(&request);
    let ring = plan.ring.unwrap();
    let usage = plan.device(C0).unwrap();
    assert_eq!(ring.slot_bytes, GB);
    assert!((2..=4).contains(&ring.slots));
    assert_eq!(usage.ring_bytes, ring.bytes());
    assert_eq!(usage.total_bytes(), 11 * GB + ring.bytes());
    // With exactly two slots of room, it has two.
    request.devices = vec![device(CPU, 64 * GB), device(C0, 13 * GB)];
    assert_eq!(planned(&request).ring.unwrap().slots, 2);
    // With one, it has one and says so.
    request.devices = vec![device(CPU, 64 * GB), device(C0, 12 * GB)];
    let plan = planned(&request);
    assert_eq!(plan.ring.unwrap().slots, 1);
    assert!(plan.notes[0].contains("fewer slots"), "{:?}", plan.notes);
    // With none, it is an error with the numbers.
    request.devices = vec![device(CPU, 64 * GB), device(C0, 12 * GB - 1)];
    let error = plan_error(&request);
    let PlanError::NoRoom { device, wanted, available, nearest, .. } = &error else { panic!("{error}") };
    assert_eq!((*device, *wanted, *available), (C0, 12 * GB, 12 * GB - 1));
    assert_eq!(nearest.as_deref(), Some("cuda:0,9gb;cpu,*"));
    assert_eq!(
        error.to_string(),
        "cuda:0 needs 12.00 GB (10.00 GB of weights, 1.00 GB of ring, 1.00 GB to work in) and has 12.00 GB \
         available; this fits: cuda:0,9gb;cpu,*"
    );
}

fn plan_error(request: &PlanRequest) -> PlanError {
    plan(request).expect_err("this cannot be planned")
}

#[test]
fn automatic_mode_offloads_as_little_as_it_can() {
    let devices = |gb| vec![device(CPU, 64 * GB), device(C0, gb * GB)];
    let with = |gb| {
        let mut request = request(equal_blocks(20, 0.03), devices(gb), "");
        request.working_bytes = 2 * GB;
        planned(&request)
    };
    assert_eq!(weights(&with(22), CPU), 0);
    // 19 GB of room: 18 resident, 1 slot, 2 streamed, far enough from each other.
    assert_eq!(weights(&with(21), CPU), 2 * GB);
    // 10 GB of room: with one slot copies would wait, so 8 resident, 2 slots, 12 streamed.
    assert_eq!(weights(&with(12), CPU), 12 * GB);
    assert_eq!(weights(&with(4), CPU), 20 * GB);
    let mut request = request(equal_blocks(20, 0.03), devices(2), "");
    request.working_bytes = 2 * GB;
    let error = plan_error(&request);
    assert!(error.to_string().ends_with("no allocation of this model fits on this machine"), "{error}");
}

#[test]
fn automatic_mode_uses_another_accelerator_when_that_is_faster() {
    let devices = vec![device(CPU, 64 * GB), device(C0, 12 * GB), device(C1, 24 * GB)];
    let mut request = request(equal_blocks(20, 0.005), devices, "");
    request.activation_bytes = 28 * MB;
    request.working_bytes = GB;
    let plan = planned(&request);
    assert!(weights(&plan, C1) >= 9 * GB && weights(&plan, CPU) == 0, "{plan}");
    // Where copies hide behind computing, the other card is left alone.
    request.blocks = equal_blocks(20, 0.1);
    let plan = planned(&request);
    assert_eq!(weights(&plan, C1), 0, "{plan}");
}

#[test]
fn normal_mode_fills_donors_in_their_order() {
    let devices = vec![device(CPU, 64 * GB), device(C0, 24 * GB), device(C1, 3 * GB), device(C2, 24 * GB)];
    let case = |text: &str| {
        let mut request = request(equal_blocks(20, 0.01), devices.clone(), text);
        request.remote = RemotePolicy::Stream;
        let plan = planned(&request);
        [C0, C1, C2, CPU].map(|device| weights(&plan, device) / GB)
    };
    // The ring has two slots, because the link is the bound.
    assert_eq!(case("#cuda:0;8;cuda:1,cpu"), [10, 3, 0, 7]);
    assert_eq!(case("#cuda:0;8;cpu,cuda:1"), [10, 0, 0, 10]);
    assert_eq!(case("#cuda:0;8;cuda:1,cuda:2,cpu"), [10, 3, 7, 0]);
    assert_eq!(case("#cuda:0;2;cuda:1"), [17, 3, 0, 0]);
    assert_eq!(case("#cuda:0;0;cpu"), [20, 0, 0, 0]);
    // A donor that cannot hold it is an error with what would fit.
    let error = plan_error(&request(equal_blocks(20, 0.01), devices.clone(), "#cuda:0;8;cuda:1"));
    let PlanError::NoRoom { device: C1, wanted, available, nearest: Some(nearest), .. } = &error else {
        panic!("{error}")
    };
    assert_eq!((*wanted, *available), (8 * GB, 3 * GB));
    assert_eq!(nearest, "cuda:0,12gb;cuda:1,3gb;cpu,*");
}

#[test]
fn normal_mode_makes_room_for_the_ring() {
    // 20 - 4 GB and 1 GB to work in fit exactly; the ring does not.
    let devices = vec![device(CPU, 64 * GB), device(C0, 17 * GB)];
    let mut request = request(equal_blocks(20, 0.01), devices, "#cuda:0;4;cpu");
    request.working_bytes = GB;
    let plan = planned(&request);
    assert_eq!(weights(&plan, CPU), 5 * GB);
    assert_eq!(plan.notes, ["5.00 GB is moved, so that cuda:0 holds 4.00 GB less with the ring and all"]);
    // What does not fit even without a ring is an error.
    request.devices[1].available_bytes = 17 * GB - 1;
    let error = plan_error(&request);
    assert!(error.to_string().contains("this fits: cuda:0,14gb;cpu,*"), "{error}");
}

#[test]
fn fractions_are_shares_of_devices() {
    // Devices have 27 GB (cuda) and 72 GB (cpu) in all.
    let case = |text: &str| {
        let mut request = request(equal_blocks(20, 0.01), big_machine(), text);
        request.remote = RemotePolicy::Stream;
        planned(&request)
    };
    let plan = case("cuda:0,0.5;cpu,*");
    assert_eq!((weights(&plan, C0), weights(&plan, CPU)), (13 * GB, 7 * GB));
    // Less than the model: the compute device takes the rest.
    let plan = case("cuda:0,0.1;cpu,0.125");
    assert_eq!((weights(&plan, C0), weights(&plan, CPU)), (11 * GB, 9 * GB));
    // More than the model: each gives in proportion (27 : 27 : 36).
    let plan = case("cuda:0,1;cuda:1,1;cpu,0.5");
    assert_eq!([C0, C1, CPU].map(|d| weights(&plan, d) / GB), [6, 6, 8]);
}

#[test]
fn accelerators_compute_where_weights_live_when_that_is_faster() {
    let mut request = request(equal_blocks(20, 0.005), big_machine(), "cuda:0,10gb;cuda:1,*");
    request.activation_bytes = 28 * MB;
    let auto = planned(&request);
    assert_eq!(homes(&auto), "00000000001111111111");
    assert!(auto.blocks.iter().all(|block| block.home == block.runs_on && block.mode == BlockMode::Resident));
    assert_eq!(auto.ring, None);
    let hops = 2.0 * 28.0 * MB as f64 / (LINK / 2.0);
    assert!((auto.prediction.seconds_per_step - 0.1 - hops).abs() < 1e-9);

    request.remote = RemotePolicy::Stream;
    let streamed = planned(&request);
    assert_eq!(homes(&streamed), "01".repeat(10));
    assert!(streamed.blocks.iter().all(|block| block.runs_on == C0));
    assert!(streamed.prediction.seconds_per_step > auto.prediction.seconds_per_step);

    // A slow card with a fast link to the compute device lends its memory only.
    request.remote = RemotePolicy::Auto;
    request.devices[2].compute_factor = 8.0;
    request.devices[2].reaches = vec![PeerLink { device: C0, bytes_per_s: 300e9 }];
    let lent = planned(&request);
    assert!(lent.blocks.iter().all(|block| block.runs_on == C0));
    assert!((lent.prediction.seconds_per_step - 0.1).abs() < 0.005);

    request.remote = RemotePolicy::InPlace;
    let forced = planned(&request);
    assert!(forced.blocks.iter().all(|block| block.home == block.runs_on));
    assert_eq!(forced.device(C1).unwrap().working_bytes, request.working_bytes);
}

#[test]
fn three_devices_share_as_written() {
    let mut request = request(flux(0.1), big_machine(), "cuda:0,8gb;cuda:1,6gb;cpu,*");
    request.activation_bytes = 28 * MB;
    request.working_bytes = GB;
    let plan = planned(&request);
    for (device, asked) in [(C0, 8 * GB), (C1, 6 * GB)] {
        let got = weights(&plan, device);
        assert!(got.abs_diff(asked) <= 283_000_000 / 2, "{device} has {got}");
    }
    let on_c1 = plan.blocks.iter().filter(|block| block.home == C1);
    assert!(on_c1.clone().all(|block| block.runs_on == C1));
    assert!(plan.blocks.iter().filter(|block| block.home == CPU).all(|block| block.runs_on == C0));
    assert_eq!(plan.device(C1).unwrap().working_bytes, GB);
}

#[test]
fn on_the_cpu_everything_is_where_it_computes() {
    let mut request = request(equal_blocks(20, 1.0), big_machine(), "");
    request.compute = CPU;
    let plan = planned(&request);
    assert!(plan.blocks.iter().all(|b| (b.home, b.runs_on, b.mode) == (CPU, CPU, BlockMode::Resident)));
    assert_eq!(plan.ring, None);
    assert_eq!(plan.to_allocation().to_string(), "cpu,*");
    request.allocation = AllocationText::parse("cpu,12gb;cuda:1,*").unwrap();
    let plan = planned(&request);
    assert_eq!((weights(&plan, CPU), weights(&plan, C1)), (12 * GB, 8 * GB));
}

#[test]
fn allocations_that_do_not_suit_the_machine_point_at_the_entry() {
    let case = |text: &str| match plan_error(&request(equal_blocks(20, 0.01), big_machine(), text)) {
        PlanError::Allocation(error) => (text[error.span.start..error.span.end].to_owned(), error),
        other => panic!("{text}: {other}"),
    };
    for (text, marked) in [
        ("cuda:0,2gb;cuda:7,3gb;cpu,*", "cuda:7"),
        ("sim:0,2gb", "sim:0"),
        ("cuda:0,28gb;cpu,*", "28gb"),
        ("cuda:0,15gb;cuda:1,6gb", "6gb"),
        ("cuda:0,2gb;cpu,19gb*", "19gb*"),
        ("cuda:0,60%;cuda:1,60%;cpu,*", "60%"),
        ("#cuda:0;4;cuda:3", "cuda:3"),
        ("#cuda:0;4;cuda:0", "cuda:0"),
        ("#cuda:1;4;cpu", "cuda:1"),
        ("#cuda:9;4;cpu", "cuda:9"),
        ("cuda:0,1;cpu,*", "1"),
    ] {
        assert_eq!(case(text).0, marked, "{text}");
    }
    assert_eq!(
        case("cuda:0,15gb;cuda:1,6gb").1.to_string(),
        "cuda:0,15gb;cuda:1,6gb\n                   ^^^ the model has 20.00 GB, and 21.00 GB is given out up to here; \
         at most 5.00 GB is left for this one; * takes what is left"
    );
    assert_eq!(
        case("cuda:0,28gb;cpu,*").1.problem,
        AllocationProblem::DeviceOverfull { device: C0, wanted: 28 * GB, total: 27 * GB }
    );
    let no_cpu = request(equal_blocks(4, 0.01), vec![device(C0, 24 * GB)], "cuda:0,1gb");
    assert!(matches!(
        plan_error(&no_cpu),
        PlanError::Allocation(error) if error.problem == AllocationProblem::NowhereForRemainder
    ));
}

#[test]
fn stored_texts_for_larger_models_can_be_trimmed() {
    let mut request = request(equal_blocks(4, 0.01), big_machine(), "cuda:0,3gb;cuda:1,16gb");
    assert!(plan(&request).is_err());
    request.overfull = Overfull::Trim;
    request.remote = RemotePolicy::Stream;
    let plan = planned(&request);
    assert_eq!((weights(&plan, C0), weights(&plan, C1)), (3 * GB, GB));
    assert!(
        plan.notes[0].starts_with("19.00 GB was given out and the model has 4.00 GB"),
        "{:?}",
        plan.notes
    );
}

#[test]
fn requests_that_make_no_sense_are_refused() {
    let good = request(equal_blocks(4, 0.01), big_machine(), "");
    let with = |change: &dyn Fn(&mut PlanRequest)| {
        let mut request = good.clone();
        change(&mut request);
        plan_error(&request)
    };
    assert!(matches!(with(&|r| r.compute = C2), PlanError::NoComputeDevice { device: C2, .. }));
    assert!(matches!(with(&|r| r.devices.push(device(C1, GB))), PlanError::RepeatedDevice { device: C1 }));
    assert!(matches!(
        with(&|r| r.devices[1].link_bytes_per_s = 0.0),
        PlanError::BadDevice { device: C0, .. }
    ));
    assert!(matches!(with(&|r| r.devices[1].compute_factor = f64::NAN), PlanError::BadDevice { .. }));
    assert!(matches!(with(&|r| r.blocks[2].compute_seconds = -1.0), PlanError::BadBlockTime { .. }));
    assert!(matches!(with(&|r| r.blocks[2].bytes = u64::MAX), PlanError::TooManyBytes));
    assert!(matches!(with(&|r| r.working_bytes = u64::MAX), PlanError::TooManyBytes));
}

#[test]
fn an_empty_model_has_an_empty_plan() {
    for text in ["", "cuda:0,*", "#cuda:0;4;cpu", "cuda:0,50%;cpu,50%"] {
        let plan = planned(&request(Vec::new(), big_machine(), text));
        assert_eq!((plan.blocks.len(), plan.prediction.seconds_per_step), (0, 0.0), "{text}");
    }
}

#[test]
fn ring_limits_are_kept() {
    let slots = |min_slots, usual_slots, max_slots| {
        let mut request = request(equal_blocks(20, 0.021), big_machine(), "cpu,*");
        request.ring = RingLimits { min_slots, usual_slots, max_slots };
        planned(&request).ring.unwrap().slots
    };
    assert_eq!(slots(6, 6, 6), 6);
    assert_eq!(slots(2, 3, 2), 2);
    assert_eq!(slots(2, 3, 9), 3, "more slots than usual do not help equal blocks");
    assert_eq!(slots(2, 2, 9), 2);
}

#[test]
fn a_plan_prints_as_a_table() {
    let pinned = BlockSpec { pinned: true, ..block("img_in".to_owned(), 3 * MB, 0.001) };
    let blocks = std::iter::once(pinned)
        .chain((0..4).map(|i| block(format!("double_blocks.{i}"), 512 * MB, 0.02)))
        .chain((0..4).map(|i| block(format!("single_blocks.{i}"), 256 * MB, 0.01)));
    let devices = vec![device(CPU, 64 * GB), device(C0, 4 * GB)];
    let mut request = request(blocks.collect(), devices, "cuda:0,2gb;cpu,*");
    request.working_bytes = GB;
    let expected = "\
blocks                  bytes  mode      home      runs on
img_in                3.00 MB  resident  cuda:0    cuda:0
double_blocks.0-3     2.00 GB  resident  cuda:0    cuda:0
single_blocks.0-3     1.00 GB  streamed  cpu       cuda:0

device         asked     weights        ring     working      in all   available
cuda:0       2.00 GB     2.00 GB   768.00 MB     1.00 GB     3.75 GB     4.00 GB
cpu          1.00 GB     1.00 GB         0 B         0 B     1.00 GB    64.00 GB

predicted 121.0 ms per step: 121.0 ms computing, 0.0 ms waiting; 1.00 GB copied in 21.5 ms through 3 slots of 256.00 MB
allocation cuda:0,2051mb;cpu,*";
    assert_eq!(planned(&request).to_string(), expected);
}

#[test]
fn a_plan_from_speeds_that_nobody_measured_shows_no_times() {
    let mut request = request(equal_blocks(4, 0.5), big_machine(), "cuda:0,2gb;cpu,*");
    let text = planned(&request).to_string();
    assert!(text.contains("predicted 2.00 s per step"), "{text}");
    request.speeds_known = false;
    let plan = planned(&request);
    let text = plan.to_string();
    let told =
        "predicted time per step: not measured yet; 2.00 GB copied through 2 slots of 1.00 GB\nallocation";
    assert!(text.contains(told), "{text}");
    assert!(!text.contains(" ms") && !text.contains(" s "), "{text}");
    assert!(!plan.prediction.known);
}

/// FLUX in bf16, a third of it on another accelerator and a third on the host: copies hide as long as the link is kept
/// busy, and hops of the activations are few.
#[test]
fn thirds_over_two_accelerators_and_the_host_stay_near_the_bound() {
    let block = |name: String, megabytes: u64, milliseconds: f64| BlockSpec {
        name,
        bytes: megabytes << 20,
        compute_seconds: milliseconds / 1e3,
        pinned: false,
    };
    let doubles = (0..19).map(|i| block(format!("double.{i}"), 648, 2.6));
    let singles = (0..38).map(|i| block(format!("single.{i}"), 270, 2.3));
    let device = |id: DeviceId| DeviceSpec {
        id,
        total_bytes: 64 << 30,
        available_bytes: 64 << 30,
        link_bytes_per_s: 55e9,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    let blocks: Vec<BlockSpec> = doubles.chain(singles).collect();
    // Activations move over the link and back, or between neighbours.
    for (peer, most) in [(None, 1.06), (Some(66e9), 1.02), (Some(1e12), 1.02)] {
        let mut devices = [DeviceId::CPU, C0, C1].map(device);
        devices[2].reaches =
            peer.map(|bytes_per_s| PeerLink { device: C0, bytes_per_s }).into_iter().collect();
        let mut request = PlanRequest::new(blocks.clone(), devices.to_vec(), C0);
        request.allocation = AllocationText::parse("cuda:0,34%;cuda:1,33%;cpu,33%").unwrap();
        request.activation_bytes = 28 << 20;
        request.remote = RemotePolicy::InPlace;
        let plan = plan(&request).unwrap();
        let bound = (plan.streamed_bytes() as f64 / 55e9).max(plan.prediction.compute_s);
        let over = plan.prediction.seconds_per_step / bound;
        assert!(over < most, "{over} with {peer:?}\n{plan}");
    }
}

/// Large blocks first, whose copies are longer than their computing, then small ones: the ring runs ahead over the end of
/// the step, so that the link works while the small ones compute.
#[test]
fn a_deep_ring_evens_out_blocks_of_different_sizes() {
    let block = |name: String, megabytes: u64, milliseconds: f64| BlockSpec {
        name,
        bytes: megabytes * MB,
        compute_seconds: milliseconds / 1e3,
        pinned: false,
    };
    let large = (0..19).map(|i| block(format!("double.{i}"), 182, 2.75));
    let small = (0..38).map(|i| block(format!("single.{i}"), 76, 2.35));
    let blocks: Vec<BlockSpec> = large.chain(small).collect();
    let planned = |max_slots: usize| {
        let devices = vec![device(CPU, 64 * GB), device(C0, 24 * GB)];
        let mut request = PlanRequest::new(blocks.clone(), devices, C0);
        request.allocation = AllocationText::parse("cuda:0,0%;cpu,100%").unwrap();
        request.ring.max_slots = max_slots;
        plan(&request).unwrap()
    };
    let (shallow, deep) = (planned(4), planned(RingLimits::default().max_slots));
    assert!(deep.prediction.stall_s < 0.2 * shallow.prediction.stall_s, "{shallow}\n{deep}");
    // No more slots than are needed, and at most half of what is streamed.
    assert!((5..=10).contains(&deep.ring.unwrap().slots), "{deep}");
    assert!(planned(100).ring.unwrap().bytes() <= planned(100).streamed_bytes() / 2);
}
