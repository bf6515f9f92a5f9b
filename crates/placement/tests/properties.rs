//! What holds for every plan, whatever the model, the machine and the wish.

use std::collections::BTreeMap;

use meta::DeviceId;
use placement::{
    AllocationText, Amounts, BlockMode, BlockSpec, DeviceSpec, Entry, Order, Overfull, PeerLink, Plan,
    PlanError, PlanRequest, RemotePolicy, RingLimits, plan,
};
use proptest::prelude::*;

const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);
const C2: DeviceId = DeviceId::cuda(2);

fn any_block() -> impl Strategy<Value = (u64, f64, bool)> {
    (0u64..2000, prop_oneof![Just(0.0), 0.0..0.1f64], prop::bool::weighted(0.1))
}

/// Blocks of any sizes, or all of one size.
fn any_blocks() -> impl Strategy<Value = Vec<BlockSpec>> {
    let uneven = prop::collection::vec(any_block(), 0..30);
    let even = (1usize..30, 1u64..2000).prop_map(|(count, bytes)| vec![(bytes, 0.01, false); count]);
    prop_oneof![uneven, even].prop_map(|blocks| {
        let named = |(i, (bytes, compute_seconds, pinned)): (usize, (u64, f64, bool))| BlockSpec {
            name: format!("blocks.{i}"),
            bytes,
            compute_seconds,
            pinned,
        };
        blocks.into_iter().enumerate().map(named).collect()
    })
}

fn any_device(id: DeviceId) -> impl Strategy<Value = DeviceSpec> {
    let peer = prop::option::of((1e3..1e6f64).prop_map(|bytes_per_s| PeerLink { device: C0, bytes_per_s }));
    (0u64..60_000, 0u64..2000, 1e3..1e6f64, 0.5..4.0f64, peer).prop_map(
        move |(available_bytes, taken, link_bytes_per_s, compute_factor, peer)| DeviceSpec {
            id,
            total_bytes: available_bytes + taken,
            available_bytes,
            link_bytes_per_s,
            compute_factor,
            reaches: peer.filter(|_| id != C0 && id != CPU).into_iter().collect(),
        },
    )
}

fn any_text() -> impl Strategy<Value = String> {
    let amount = |unit: &'static str, most: u32| (0..most).prop_map(move |n| format!("{n}{unit}"));
    let of = |amount: BoxedStrategy<String>| {
        let amounts = prop::collection::vec(prop::option::of(amount), 4);
        (amounts, prop::option::of(0usize..4), any::<bool>()).prop_map(|(amounts, star, contiguous)| {
            let names = ["cuda:1", "cuda:0", "cpu", "cuda:2"];
            let entry = |(i, amount): (usize, Option<String>)| match (star == Some(i), amount) {
                (true, _) => Some(format!("{},*", names[i])),
                (false, amount) => amount.map(|amount| format!("{},{amount}", names[i])),
            };
            let mut items: Vec<String> = amounts.into_iter().enumerate().filter_map(entry).collect();
            items.extend(contiguous.then(|| "order=contiguous".to_owned()));
            items.join(";")
        })
    };
    let donors = prop_oneof![Just("cpu"), Just("cuda:1,cpu"), Just("cuda:2,cuda:1"), Just("cuda:1")];
    prop_oneof![
        of(amount("b", 20_000).boxed()),
        of(amount("%", 60).boxed()),
        of((0.0..1.0f64).prop_map(|n| n.to_string()).boxed()),
        (0u64..40_000, donors).prop_map(|(bytes, donors)| {
            format!("#cuda:0;{};{donors}", bytes as f64 / (1u64 << 30) as f64)
        }),
        Just(String::new()),
    ]
}

fn any_request() -> impl Strategy<Value = PlanRequest> {
    let devices = (any_device(CPU), any_device(C0), any_device(C1), any_device(C2))
        .prop_map(|(a, b, c, d)| vec![a, b, c, d]);
    let remote =
        prop_oneof![Just(RemotePolicy::Auto), Just(RemotePolicy::Stream), Just(RemotePolicy::InPlace)];
    let text = any_text().prop_filter_map("a text", |text| AllocationText::parse(&text).ok());
    let trims = any::<bool>().prop_map(|trim| if trim { Overfull::Trim } else { Overfull::Refuse });
    let compute = prop_oneof![4 => Just(C0), 1 => Just(CPU)];
    let sizes = (0u64..3000, 0u64..100);
    (any_blocks(), devices, text, remote, trims, compute, sizes).prop_map(
        |(blocks, devices, allocation, remote, overfull, compute, (working_bytes, activation_bytes))| {
            PlanRequest {
                blocks,
                working_bytes,
                activation_bytes,
                devices,
                compute: allocation.allocation().compute.unwrap_or(compute),
                allocation,
                order: Order::Interleaved,
                remote,
                ring: RingLimits::default(),
                overfull,
                arrival_s_per_byte: 0.0,
                copy_slowdown: 1.0,
                speeds_known: true,
                coding: placement::Coding::default(),
                disk: None,
                outside: placement::Outside::default(),
            }
        },
    )
}

fn largest_block(request: &PlanRequest) -> u64 {
    request.blocks.iter().map(|block| block.bytes).max().unwrap_or(0)
}

fn weights(plan: &Plan, device: DeviceId) -> u64 {
    plan.device(device).map_or(0, |usage| usage.weight_bytes)
}

fn check_blocks(request: &PlanRequest, plan: &Plan) -> Result<(), TestCaseError> {
    prop_assert_eq!(plan.blocks.len(), request.blocks.len());
    let mut sums: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for (spec, block) in request.blocks.iter().zip(&plan.blocks) {
        prop_assert_eq!((&spec.name, spec.bytes), (&block.name, block.bytes));
        *sums.entry(block.home).or_default() += block.bytes;
        if spec.pinned {
            prop_assert_eq!(block.home, request.compute);
        }
        let travels = block.home != block.runs_on;
        prop_assert_eq!(block.mode == BlockMode::Streamed, travels);
        if travels {
            prop_assert_eq!(block.runs_on, request.compute);
            prop_assert!(plan.ring.is_some_and(|ring| ring.slot_bytes >= block.bytes) || block.bytes == 0);
        }
        if block.runs_on != request.compute {
            prop_assert!(block.runs_on != CPU, "the host computes only as the compute device");
        }
    }
    for usage in &plan.devices {
        prop_assert_eq!(usage.weight_bytes, sums.remove(&usage.device).unwrap_or(0));
        prop_assert!(usage.total_bytes() <= usage.available_bytes, "{}", plan);
        let works = usage.device == request.compute || plan.blocks.iter().any(|b| b.runs_on == usage.device);
        prop_assert_eq!(usage.working_bytes, if works { request.working_bytes } else { 0 });
        let ring = plan.ring.map_or(0, |ring| ring.bytes());
        prop_assert_eq!(usage.ring_bytes, if usage.device == request.compute { ring } else { 0 });
    }
    prop_assert!(sums.is_empty(), "not counted: {:?}", sums);
    let model: u64 = request.blocks.iter().map(|block| block.bytes).sum();
    prop_assert_eq!(plan.devices.iter().map(|usage| usage.weight_bytes).sum::<u64>(), model);
    Ok(())
}

fn check_prediction(request: &PlanRequest, plan: &Plan) -> Result<(), TestCaseError> {
    let p = &plan.prediction;
    let parts = p.compute_s + p.hop_s + p.stall_s;
    prop_assert!((p.seconds_per_step - parts).abs() <= 1e-6 * parts.max(1e-9), "{:?}", p);
    prop_assert!(p.seconds_per_step >= p.bound_s() * (1.0 - 1e-6), "{:?}", p);
    match request.remote {
        RemotePolicy::Stream => prop_assert!(plan.blocks.iter().all(|b| b.runs_on == request.compute)),
        RemotePolicy::InPlace => {
            prop_assert!(plan.blocks.iter().all(|b| b.home == CPU || b.runs_on == b.home));
        }
        RemotePolicy::Auto => {}
    }
    Ok(())
}

/// The user's numbers, in bytes, where nothing but whole blocks stands between them and the plan.
fn check_honoured(request: &PlanRequest, plan: &Plan) -> Result<(), TestCaseError> {
    let Amounts::Bytes(entries) = &request.allocation.allocation().amounts else { return Ok(()) };
    let one_block = largest_block(request).max(1);
    let pinned: u64 = request.blocks.iter().filter(|b| b.pinned).map(|b| b.bytes).sum();
    let number = |entry: &Entry<u64>| entry.amount.number().unwrap_or(0);
    let others: u64 = entries.iter().filter(|e| e.device != request.compute).map(number).sum();
    let asked = match entries.iter().find(|entry| entry.device == request.compute) {
        Some(entry) if entry.amount.takes_remainder() => plan.model_bytes().saturating_sub(others),
        Some(entry) => number(entry),
        None => 0,
    };
    // What must stay on the compute device is taken from the others.
    if request.overfull == Overfull::Trim || pinned > asked {
        return Ok(());
    }
    let star = entries.iter().find(|entry| entry.amount.takes_remainder()).map(|entry| entry.device);
    for entry in entries {
        let (got, asked) = (weights(plan, entry.device), entry.amount.number().unwrap_or(0));
        let takes_rest = entry.device == star.unwrap_or(CPU);
        prop_assert!(got + one_block > asked, "{} has {} of {}\n{}", entry.device, got, asked, plan);
        prop_assert!(takes_rest || got < asked + one_block, "{} has {} of {}", entry.device, got, asked);
    }
    Ok(())
}

/// Percentages without a remainder are met to within one block on every device.
fn check_shares(request: &PlanRequest, plan: &Plan) -> Result<(), TestCaseError> {
    let Amounts::Percent(entries) = &request.allocation.allocation().amounts else { return Ok(()) };
    let has_pinned = request.blocks.iter().any(|block| block.pinned);
    if has_pinned || entries.iter().any(|entry| entry.amount.takes_remainder()) {
        return Ok(());
    }
    let sum: f64 = entries.iter().filter_map(|entry| entry.amount.number()).sum();
    let one_block = largest_block(request).max(1) as f64 + entries.len() as f64;
    let room =
        |device| request.devices.iter().find(|spec| spec.id == device).map_or(0, |spec| spec.available_bytes);
    let full = |device, asked: f64| (room(device) as f64) < asked + request.working_bytes as f64 + one_block;
    let share = |percent: Option<f64>| plan.model_bytes() as f64 * percent.unwrap_or(0.0) / sum;
    // A device that is full cannot take what another one missed, and then it goes to the taker.
    if entries.iter().any(|entry| full(entry.device, share(entry.amount.number()))) {
        return Ok(());
    }
    for entry in entries {
        let (got, asked) = (weights(plan, entry.device) as f64, share(entry.amount.number()));
        prop_assert!((got - asked).abs() <= one_block, "{} has {} of {}\n{}", entry.device, got, asked, plan);
    }
    Ok(())
}

fn check_error(request: &PlanRequest, error: &PlanError) -> Result<(), TestCaseError> {
    let PlanError::NoRoom { wanted, available, weights, ring, working, nearest, .. } = error else {
        prop_assert!(matches!(error, PlanError::Allocation(_)), "{}", error);
        return Ok(());
    };
    prop_assert!(wanted > available, "{}", error);
    prop_assert_eq!(*wanted, weights + ring + working);
    if let Some(nearest) = nearest {
        let allocation = AllocationText::parse(nearest).map_err(|e| TestCaseError::fail(e.to_string()))?;
        let again = plan(&PlanRequest { allocation, ..request.clone() });
        prop_assert!(again.is_ok(), "{} does not fit: {:?}", nearest, again);
    } else if request.remote == RemotePolicy::Auto && request.blocks.iter().all(|block| !block.pinned) {
        // If even automatic mode finds a plan, there was something to propose.
        let automatic = PlanRequest { allocation: AllocationText::automatic(), ..request.clone() };
        prop_assert!(plan(&automatic).is_err(), "automatic mode fits and nothing was proposed");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn plans_are_whole_and_fit_and_errors_propose_what_fits(request in any_request()) {
        match plan(&request) {
            Ok(plan) => {
                check_blocks(&request, &plan)?;
                check_prediction(&request, &plan)?;
                check_honoured(&request, &plan)?;
                check_shares(&request, &plan)?;
            }
            Err(error) => check_error(&request, &error)?,
        }
    }

    #[test]
    fn the_order_of_the_device_list_does_not_matter(request in any_request(), turn in 0usize..4, swap: bool) {
        let mut turned = request.clone();
        turned.devices.rotate_left(turn);
        if swap {
            turned.devices.swap(0, 1);
        }
        prop_assert_eq!(plan(&turned), plan(&request));
    }

    #[test]
    fn the_order_of_entries_does_not_matter_unless_asked(request in any_request()) {
        let allocation = request.allocation.allocation();
        if let (Amounts::Bytes(entries), None) = (&allocation.amounts, allocation.order) {
            let mut turned = allocation.clone();
            turned.amounts = Amounts::Bytes(entries.iter().rev().copied().collect());
            let turned = AllocationText::write(&turned).map_err(|e| TestCaseError::fail(e.to_string()))?;
            let turned = PlanRequest { allocation: turned, overfull: Overfull::Refuse, ..request.clone() };
            let request = PlanRequest { overfull: Overfull::Refuse, ..request };
            if let (Ok(a), Ok(b)) = (plan(&request), plan(&turned)) {
                prop_assert_eq!(a.blocks, b.blocks);
            }
        }
    }

    #[test]
    fn more_room_never_fits_less(request in any_request(), more in 0u64..5000, which in 0usize..4) {
        if plan(&request).is_ok() {
            let mut roomy = request.clone();
            roomy.devices[which].available_bytes += more;
            roomy.devices[which].total_bytes += more;
            // Shares of a device's memory mean more bytes on a larger device.
            if !matches!(request.allocation.allocation().amounts, Amounts::Fraction(_)) {
                prop_assert!(plan(&roomy).is_ok(), "{:?}", plan(&roomy));
            }
        }
    }

    #[test]
    fn more_offload_never_fits_less(request in any_request(), bytes in 0u64..30_000, more in 0u64..10_000) {
        let with = |bytes: u64| {
            let text = format!("#cuda:0;{};cpu", bytes as f64 / (1u64 << 30) as f64);
            let allocation = AllocationText::parse(&text).unwrap_or_else(|error| panic!("{error}"));
            let mut request = PlanRequest { allocation, compute: C0, ..request.clone() };
            request.devices[0].available_bytes = 1_000_000;
            plan(&request)
        };
        if let Ok(less) = with(bytes) {
            let more = with(bytes + more);
            prop_assert!(more.is_ok(), "{:?}", more);
            prop_assert!(weights(&less, CPU) >= bytes.min(less.model_bytes() - weights(&less, C0)));
        }
    }

    #[test]
    fn a_plan_says_itself(blocks in 1usize..30, bytes in 1u64..2000, text in any_text()) {
        // With equal blocks the allocation that a plan prints gives the same bytes everywhere.
        let spec = |i| BlockSpec { name: format!("blocks.{i}"), bytes, compute_seconds: 0.01, pinned: false };
        let device = |id| DeviceSpec {
            id,
            total_bytes: 1_000_000,
            available_bytes: 1_000_000,
            link_bytes_per_s: 1e5,
            compute_factor: 1.0,
            reaches: Vec::new(),
        };
        let mut request =
            PlanRequest::new((0..blocks).map(spec).collect(), [CPU, C0, C1, C2].map(device).to_vec(), C0);
        let Ok(allocation) = AllocationText::parse(&text) else { return Ok(()) };
        request.allocation = allocation;
        request.overfull = Overfull::Trim;
        let first = match plan(&request) {
            Ok(plan) => plan,
            Err(PlanError::Allocation(_)) => return Ok(()),
            Err(error) => return Err(TestCaseError::fail(error.to_string())),
        };
        let said = AllocationText::write(&first.to_allocation());
        request.allocation = said.map_err(|e| TestCaseError::fail(e.to_string()))?;
        let second = plan(&request).map_err(|e| TestCaseError::fail(e.to_string()))?;
        for device in [CPU, C0, C1, C2] {
            prop_assert_eq!(weights(&first, device), weights(&second, device), "{}", first);
        }
    }
}
