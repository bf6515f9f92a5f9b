//! What normal and automatic mode promise about the compute device, ring and all.

use meta::{ByteSize, DeviceId};
use placement::{
    AllocationText, BetweenSteps, BlockMode, BlockSpec, DeviceSpec, Plan, PlanError, PlanRequest,
    RemotePolicy, StepBlock, plan, simulate,
};
use proptest::prelude::*;

const GB: u64 = 1 << 30;
const MB: u64 = 1 << 20;
const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);

fn device(id: DeviceId, available_bytes: u64, link_bytes_per_s: f64) -> DeviceSpec {
    DeviceSpec {
        id,
        total_bytes: available_bytes,
        available_bytes,
        link_bytes_per_s,
        compute_factor: 1.0,
        reaches: Vec::new(),
    }
}

/// FLUX in bf16 as it is, with a step of this many seconds.
fn flux(step_s: f64) -> Vec<BlockSpec> {
    let scale = step_s / (19.0 * 2.6 + 38.0 * 2.3);
    let block = |name: String, bytes: u64, seconds: f64, pinned: bool| BlockSpec {
        name,
        bytes,
        compute_seconds: seconds * scale,
        pinned,
    };
    let mut blocks = vec![block("ends".to_owned(), 70 * MB, 0.0, true)];
    blocks.extend((0..19).map(|i| block(format!("double_blocks.{i}"), 648 * MB, 2.6, false)));
    blocks.extend((0..38).map(|i| block(format!("single_blocks.{i}"), 270 * MB, 2.3, false)));
    blocks
}

fn normal(blocks: Vec<BlockSpec>, devices: Vec<DeviceSpec>, bytes: u64, donors: &str) -> PlanRequest {
    let text = format!("#cuda:0;{};{donors}", bytes as f64 / GB as f64);
    let allocation = AllocationText::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    PlanRequest { allocation, ..PlanRequest::new(blocks, devices, C0) }
}

/// What weights and ring take of the compute device.
fn held(plan: &Plan) -> u64 {
    plan.devices[0].weight_bytes + plan.devices[0].ring_bytes
}

fn saved(plan: &Plan) -> u64 {
    plan.model_bytes() - held(plan)
}

/// A step with another number of slots.
fn seconds_with(plan: &Plan, slots: usize) -> f64 {
    let step = |(block, time): (&placement::BlockPlan, &placement::BlockTime)| StepBlock {
        compute_s: time.compute_s,
        hop_s: time.hop_s,
        copy_s: (block.mode == BlockMode::Streamed).then_some(time.copy_s),
        copy_slowdown: 1.0,
        decode_s: None,
    };
    let steps: Vec<StepBlock> = plan.blocks.iter().zip(&plan.prediction.blocks).map(step).collect();
    let hops: f64 = steps.iter().map(|step| step.hop_s).sum();
    let between = BetweenSteps { return_hop_s: plan.prediction.hop_s - hops, outside_s: 0.0 };
    simulate(&steps, slots, between).seconds_per_step
}

#[test]
fn flux_holds_so_much_less_and_ever_less() {
    // The H200's step and link, a slow link, a slow card, and nothing known of the times.
    for (step_s, link) in [(0.123, 55e9), (0.123, 5e9), (2.0, 12e9), (0.0, 20e9)] {
        let mut before = 0;
        for gigabytes in [0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 12.0, 16.0, 20.0, 21.0] {
            let asked = (gigabytes * GB as f64) as u64;
            let devices = vec![device(CPU, 64 * GB, link), device(C0, 32 * GB, link)];
            let plan = plan(&normal(flux(step_s), devices, asked, "cpu")).unwrap();
            let saved = saved(&plan);
            assert!(saved >= asked && saved >= before, "{gigabytes} GB: {}\n{plan}", ByteSize(saved));
            assert!(
                saved < asked + 700 * MB,
                "{gigabytes} GB: {} is needlessly much\n{plan}",
                ByteSize(saved)
            );
            before = saved;
        }
    }
}

#[test]
fn flux_streams_small_blocks_through_few_slots() {
    // From 4 GB on the small blocks alone would come too close together.
    for (gigabytes, slots, slot) in [(0.5, 1, 270), (1.0, 1, 270), (2.0, 1, 270), (4.0, 2, 648)] {
        let devices = vec![device(CPU, 64 * GB, 55e9), device(C0, 32 * GB, 55e9)];
        let plan = plan(&normal(flux(0.123), devices, (gigabytes * GB as f64) as u64, "cpu")).unwrap();
        let ring = plan.ring.unwrap();
        assert_eq!((ring.slots, ring.slot_bytes), (slots, slot * MB), "{gigabytes} GB\n{plan}");
        assert!(plan.prediction.stall_s <= 0.005 * plan.prediction.seconds_per_step, "{plan}");
        let note = &plan.notes[0];
        assert!(
            note.contains("is moved, so that cuda:0 holds") && note.contains("less with the ring"),
            "{note}"
        );
    }
}

#[test]
fn what_cannot_be_saved_is_said_with_the_most_that_can() {
    let devices = vec![device(CPU, 64 * GB, 55e9), device(C0, 32 * GB, 55e9)];
    let plan = plan(&normal(flux(0.123), devices, 24 * GB, "cpu")).unwrap();
    // Everything streams through one slot of the largest blocks.
    let most = 19 * 648 * MB + 38 * 270 * MB - 648 * MB;
    assert_eq!(saved(&plan), most, "{plan}");
    assert_eq!(plan.ring.unwrap().slots, 1);
    assert_eq!(
        plan.notes.last().unwrap(),
        "24.00 GB was to be saved on cuda:0, and 21.41 GB is the most that can be of 22.11 GB (70.00 MB always stays, \
         the ring takes 648.00 MB)"
    );
    assert!(plan.notes[0].contains("fewer slots than it should"), "{:?}", plan.notes);
}

#[test]
fn donors_that_compute_need_no_ring() {
    let devices = vec![device(CPU, 64 * GB, 55e9), device(C0, 32 * GB, 55e9), device(C1, 32 * GB, 55e9)];
    for gigabytes in [0.5, 2.0, 8.0, 22.0] {
        let asked = (gigabytes * GB as f64) as u64;
        let mut request = normal(flux(0.123), devices.clone(), asked, "cuda:1");
        request.remote = RemotePolicy::InPlace;
        let plan = plan(&request).unwrap();
        assert_eq!(plan.ring, None);
        assert!(saved(&plan) >= asked && saved(&plan) < asked + 648 * MB, "{plan}");
    }
}

#[test]
fn a_model_of_one_block_saves_nothing_and_says_so() {
    let block = BlockSpec { name: "all".to_owned(), bytes: 5 * GB, compute_seconds: 0.1, pinned: false };
    let devices = vec![device(CPU, 64 * GB, 55e9), device(C0, 32 * GB, 55e9)];
    let plan = plan(&normal(vec![block], devices, 2 * GB, "cpu")).unwrap();
    assert_eq!((held(&plan), plan.ring), (5 * GB, None));
    assert_eq!(plan.notes, ["2.00 GB was to be saved on cuda:0, and 0 B is the most that can be of 5.00 GB"]);
}

#[test]
fn automatic_mode_streams_no_more_than_it_must() {
    // The shape of a FLUX of one double and one single block: 1083 MB resident, 813 streamed.
    let block = |name: &str, megabytes: u64, pinned: bool| BlockSpec {
        name: name.to_owned(),
        bytes: megabytes * MB,
        compute_seconds: 0.2,
        pinned,
    };
    let blocks = vec![block("ends", 122, true), block("double", 648, false), block("single", 270, false)];
    let with = |megabytes: u64| {
        let devices = vec![device(CPU, 64 * GB, 1e9), device(C0, megabytes * MB, 1e9)];
        let mut request = PlanRequest::new(blocks.clone(), devices, C0);
        request.working_bytes = 43 * MB;
        plan(&request)
    };
    assert_eq!(with(1083).unwrap().ring, None);
    // Both stream through one slot of the larger.
    let streamed = with(1082).unwrap();
    assert_eq!(held(&streamed), (122 + 648) * MB, "{streamed}");
    assert_eq!(held(&with(813).unwrap()), (122 + 648) * MB);
    let error = with(812).unwrap_err();
    let PlanError::NoRoom { device: C0, wanted, weights, ring, working, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((wanted, weights, ring, working), (813 * MB, 122 * MB, 648 * MB, 43 * MB));
}

fn any_blocks() -> impl Strategy<Value = Vec<BlockSpec>> {
    let bytes = prop_oneof![1u64..2000, Just(300), Just(1100)];
    let block = (bytes, prop_oneof![Just(0.0), 0.001..0.1f64], prop::bool::weighted(0.1));
    prop::collection::vec(block, 1..24).prop_map(|blocks| {
        let named = |(i, (bytes, compute_seconds, pinned))| BlockSpec {
            name: format!("blocks.{i}"),
            bytes,
            compute_seconds,
            pinned,
        };
        blocks.into_iter().enumerate().map(named).collect()
    })
}

/// The most that streaming can save: with slots of the size of some block, all blocks that are no larger, but one slot.
fn most_streamed(blocks: &[BlockSpec]) -> u64 {
    let model: u64 = blocks.iter().map(|block| block.bytes).sum();
    let free = |block: &&BlockSpec| !block.pinned && block.bytes * 10_000 >= model;
    let saved = |slot: u64| {
        let all: u64 = blocks.iter().filter(free).map(|b| b.bytes).filter(|bytes| *bytes <= slot).sum();
        all.saturating_sub(slot)
    };
    blocks.iter().filter(free).map(|block| saved(block.bytes)).max().unwrap_or(0)
}

fn machine(room: [u64; 3], link: f64, factor: f64) -> Vec<DeviceSpec> {
    let mut devices: Vec<DeviceSpec> =
        [CPU, C0, C1].into_iter().zip(room).map(|(id, room)| device(id, room, link)).collect();
    devices[2].compute_factor = factor;
    devices
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn the_promise_holds_or_the_note_says_the_most(blocks in any_blocks(), asked in 1u64..30_000, link in 1e3..1e6f64) {
        let devices = machine([1_000_000; 3], link, 1.0);
        let plan = plan(&normal(blocks.clone(), devices, asked, "cpu")).unwrap();
        let (saved, most) = (saved(&plan), most_streamed(&blocks));
        prop_assert!(saved >= asked.min(most), "{} of {}, at most {}\n{}", saved, asked, most, plan);
        let said = format!("{} is the most that can be", ByteSize(most));
        let says = plan.notes.iter().any(|note| note.contains(&said));
        prop_assert_eq!(says, asked > most, "{:?}", plan.notes);
        if asked > most {
            prop_assert_eq!(saved, most, "{}", plan);
        }
    }

    #[test]
    fn who_asks_for_more_never_saves_less(
        blocks in any_blocks(),
        asked in 0u64..25_000,
        more in 0u64..3000,
        link in 1e3..1e6f64,
        donors in prop_oneof![Just("cpu"), Just("cuda:1"), Just("cuda:1,cpu")],
        factor in 0.5..4.0f64,
    ) {
        let with = |bytes: u64| {
            let devices = machine([1_000_000, 1_000_000, 4000], link, factor);
            let mut request = normal(blocks.clone(), devices, bytes, donors);
            request.activation_bytes = 50;
            request.working_bytes = 100;
            plan(&request)
        };
        if let (Ok(less), Ok(more)) = (with(asked), with(asked + more)) {
            prop_assert!(saved(&more) >= saved(&less), "{}\n{}", less, more);
        }
    }

    #[test]
    fn no_ring_has_more_slots_than_keep_the_step_short(blocks in any_blocks(), asked in 1u64..20_000, link in 1e3..1e6f64) {
        let compute_s: f64 = blocks.iter().map(|block| block.compute_seconds).sum();
        let plan = plan(&normal(blocks, machine([1_000_000; 3], link, 1.0), asked, "cpu")).unwrap();
        let Some(ring) = plan.ring else { return Ok(()) };
        if ring.slots > 1 && plan.prediction.seconds_per_step < compute_s * 1.005 {
            let fewer = seconds_with(&plan, ring.slots - 1);
            prop_assert!(fewer >= compute_s * 1.0049, "{} with one slot less\n{}", fewer, plan);
        }
    }

    #[test]
    fn what_an_error_needs_is_enough_and_no_less_is(
        blocks in any_blocks(),
        room in [0u64..30_000, 0u64..12_000, 0u64..8000],
        working in 0u64..2000,
        link in 1e3..1e6f64,
        devices in 2usize..4,
    ) {
        let mut request = PlanRequest::new(blocks, machine(room, link, 1.0), C0);
        request.devices.truncate(devices);
        request.working_bytes = working;
        request.activation_bytes = 50;
        let Err(PlanError::NoRoom { device, wanted, available, .. }) = plan(&request) else { return Ok(()) };
        prop_assert!(wanted > available);
        let mut with = |bytes: u64| {
            let spec = request.devices.iter_mut().find(|spec| spec.id == device).unwrap();
            (spec.available_bytes, spec.total_bytes) = (bytes, bytes);
            plan(&request)
        };
        let enough = with(wanted);
        prop_assert!(enough.is_ok(), "{} with {}: {:?}", device, wanted, enough);
        let less = with(wanted - 1);
        prop_assert!(less.is_err(), "{} with {}: {}", device, wanted - 1, less.unwrap());
    }

    #[test]
    fn automatic_mode_refuses_only_what_cannot_run(blocks in any_blocks(), room in 0u64..20_000, working in 0u64..2000) {
        let model: u64 = blocks.iter().map(|block| block.bytes).sum();
        let least = model + working - most_streamed(&blocks);
        let mut request = PlanRequest::new(blocks, machine([1_000_000, room, 0], 1e5, 1.0), C0);
        request.devices.truncate(2);
        request.working_bytes = working;
        match plan(&request) {
            Ok(plan) => prop_assert!(room >= least, "{}", plan),
            Err(PlanError::NoRoom { device, wanted, .. }) => prop_assert_eq!((device, wanted), (C0, least)),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        }
    }
}
