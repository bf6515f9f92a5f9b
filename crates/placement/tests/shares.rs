//! Amounts per device are met by the nearest assignment of whole blocks, and the plan shows both.

use meta::DeviceId;
use placement::{
    AllocationText, BlockSpec, DeviceSpec, DeviceUse, Order, Plan, PlanRequest, RemotePolicy, plan,
};
use proptest::prelude::*;

const GB: u64 = 1 << 30;
const MB: u64 = 1 << 20;
const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);
const DEVICES: [DeviceId; 3] = [C0, C1, CPU];

fn device(id: DeviceId) -> DeviceSpec {
    DeviceSpec {
        id,
        total_bytes: 64 * GB,
        available_bytes: 64 * GB,
        link_bytes_per_s: 55e9,
        compute_factor: 1.0,
        reaches: Vec::new(),
    }
}

fn block(name: String, bytes: u64, milliseconds: f64) -> BlockSpec {
    BlockSpec { name, bytes, compute_seconds: milliseconds / 1e3, pinned: false }
}

fn flux() -> Vec<BlockSpec> {
    let doubles = (0..19).map(|i| block(format!("double_blocks.{i}"), 648 * MB, 2.6));
    let singles = (0..38).map(|i| block(format!("single_blocks.{i}"), 270 * MB, 2.3));
    let ends = BlockSpec { pinned: true, ..block("ends".to_owned(), 70 * MB, 0.1) };
    std::iter::once(ends).chain(doubles).chain(singles).collect()
}

fn request(blocks: Vec<BlockSpec>, text: &str) -> PlanRequest {
    let allocation = AllocationText::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut request =
        PlanRequest { allocation, ..PlanRequest::new(blocks, DEVICES.map(device).to_vec(), C0) };
    request.activation_bytes = 28 * MB;
    request.working_bytes = GB;
    request
}

fn difference(plan: &Plan) -> u64 {
    let asked = |usage: &DeviceUse| usage.asked_bytes.unwrap_or(0);
    plan.devices.iter().map(|usage| asked(usage).abs_diff(usage.weight_bytes)).sum()
}

#[test]
fn flux_shares_are_met_closely_and_shown() {
    for text in [
        "cuda:0,40%;cuda:1,40%;cpu,20%",
        "cuda:0,34%;cuda:1,33%;cpu,33%",
        "cuda:0,50%;cpu,50%",
        "cuda:0,7%;cpu,93%",
        "cuda:0,8gb;cuda:1,6gb;cpu,*",
        "cuda:0,0.2;cpu,*",
        "cuda:0,10gb;cuda:1,*",
    ] {
        for remote in [RemotePolicy::Auto, RemotePolicy::Stream, RemotePolicy::InPlace] {
            for order in [Order::Interleaved, Order::Contiguous] {
                let mut request = request(flux(), text);
                (request.remote, request.order) = (remote, order);
                let plan = plan(&request).unwrap_or_else(|error| panic!("{text}: {error}"));
                for usage in &plan.devices {
                    let off = usage.asked_bytes.unwrap().abs_diff(usage.weight_bytes);
                    // No further than half of the smaller blocks, but where runs must be whole.
                    let most = if order == Order::Contiguous { 324 } else { 135 };
                    assert!(off <= most * MB, "{text} {remote:?} {order:?}: {off}\n{plan}");
                }
                let asked: u64 = plan.devices.iter().map(|usage| usage.asked_bytes.unwrap()).sum();
                assert_eq!(asked, plan.model_bytes());
            }
        }
    }
}

#[test]
fn nearest_shares_keep_copies_hidden() {
    for (text, most) in
        [("cuda:0,50%;cpu,50%", 1.03), ("cuda:0,70%;cpu,30%", 1.03), ("cuda:0,20%;cpu,80%", 1.03)]
    {
        let plan = plan(&request(flux(), text)).unwrap();
        let p = &plan.prediction;
        let over = p.seconds_per_step / p.bound_s();
        assert!(over <= most, "{text}: {over}\n{plan}");
    }
}

#[test]
fn a_device_that_was_asked_and_got_nothing_is_shown() {
    let blocks = (0..4).map(|i| block(format!("blocks.{i}"), GB, 1.0)).collect();
    let plan = plan(&request(blocks, "cuda:0,90%;cuda:1,10%")).unwrap();
    let usage = plan.device(C1).unwrap();
    assert_eq!((usage.weight_bytes, usage.asked_bytes), (0, Some(4 * GB / 10)));
    assert_eq!(usage.working_bytes, 0);
    assert_eq!(plan.devices[1].asked_bytes, Some(4 * GB / 10));
    let text = plan.to_string();
    assert!(text.contains("asked"), "{text}");
}

#[test]
fn automatic_and_normal_mode_ask_nothing_of_single_devices() {
    for text in ["", "#cuda:0;4;cpu"] {
        let plan = plan(&request(flux(), text)).unwrap();
        assert!(plan.devices.iter().all(|usage| usage.asked_bytes.is_none()), "{plan}");
        assert!(!plan.to_string().contains("asked"), "{plan}");
    }
}

#[test]
fn the_compute_device_gets_less_where_the_nearest_does_not_fit() {
    let blocks: Vec<BlockSpec> = (0..10).map(|i| block(format!("blocks.{i}"), GB, 1.0)).collect();
    // 4.6 GB is nearest to five blocks.
    let mut request = request(blocks, "cuda:0,46%;cpu,54%");
    let nearest = plan(&request).unwrap();
    assert_eq!(nearest.device(C0).unwrap().weight_bytes, 5 * GB);
    request.devices[0].available_bytes = 7 * GB + GB / 2;
    let smaller = plan(&request).unwrap();
    assert_eq!(smaller.device(C0).unwrap().weight_bytes, 4 * GB, "{smaller}");
}

/// The smallest sum of differences of all assignments.
fn nearest(sizes: &[u64], asked: &[u64; 3]) -> u64 {
    fn search(sizes: &[u64], left: [i64; 3]) -> u64 {
        let Some((first, rest)) = sizes.split_first() else {
            return left.iter().map(|left| left.unsigned_abs()).sum();
        };
        let with = |at: usize| {
            let mut left = left;
            left[at] -= *first as i64;
            search(rest, left)
        };
        (0..3).map(with).min().unwrap_or(0)
    }
    search(sizes, asked.map(|bytes| bytes as i64))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn small_models_get_the_nearest_assignment(
        sizes in prop::collection::vec(prop_oneof![100u64..2000, Just(700)], 2..9),
        shares in [1u32..100, 1u32..100, 1u32..100],
        stream: bool,
    ) {
        let blocks: Vec<BlockSpec> =
            sizes.iter().enumerate().map(|(i, bytes)| block(format!("blocks.{i}"), *bytes, 1.0)).collect();
        let text = format!("cuda:0,{}%;cuda:1,{}%;cpu,{}%", shares[0], shares[1], shares[2]);
        let mut request = request(blocks, &text);
        request.remote = if stream { RemotePolicy::Stream } else { RemotePolicy::Auto };
        let plan = plan(&request).unwrap();
        let model = plan.model_bytes();
        let asked = DEVICES.map(|id| plan.device(id).and_then(|usage| usage.asked_bytes).unwrap());
        let best = nearest(&sizes, &asked);
        let given = difference(&plan);
        // Where a device computes its own, moving activations more often is not worth the last bytes.
        let largest = sizes.iter().max().copied().unwrap_or(0);
        let slack = if stream { model / 1000 } else { largest };
        prop_assert!(given <= best + slack, "{} instead of {}\n{}", given, best, plan);
    }

    #[test]
    fn every_device_is_within_one_block(
        sizes in prop::collection::vec(prop_oneof![100u64..2000, Just(700)], 2..60),
        shares in [0u32..100, 0u32..100, 1u32..100],
        contiguous: bool,
        stream: bool,
    ) {
        let blocks: Vec<BlockSpec> =
            sizes.iter().enumerate().map(|(i, bytes)| block(format!("blocks.{i}"), *bytes, 1.0)).collect();
        let text = format!("cuda:0,{}%;cuda:1,{}%;cpu,{}%", shares[0], shares[1], shares[2]);
        let mut request = request(blocks, &text);
        request.remote = if stream { RemotePolicy::Stream } else { RemotePolicy::Auto };
        request.order = if contiguous { Order::Contiguous } else { Order::Interleaved };
        let plan = plan(&request).unwrap();
        let largest = sizes.iter().max().copied().unwrap_or(0);
        for usage in &plan.devices {
            let off = usage.asked_bytes.unwrap().abs_diff(usage.weight_bytes);
            prop_assert!(off <= largest, "{} is off by {}\n{}", usage.device, off, plan);
        }
        // With many blocks for every device there is always a choice that comes close.
        let many = plan.devices.iter().all(|usage| usage.asked_bytes.unwrap() > 6 * largest);
        if many && stream && !contiguous {
            prop_assert!(difference(&plan) <= plan.model_bytes() / 200, "{}", plan);
        }
    }
}
