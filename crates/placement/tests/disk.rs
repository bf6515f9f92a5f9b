//! What is read from the disk when host memory has no room for it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use meta::DeviceId;
use placement::{
    AllocationText, BlockSpec, CodingPolicy, DeviceSpec, Disk, Plan, PlanError, PlanRequest, plan, predict,
};

const BLOCKS: usize = 20;
const BYTES: u64 = 100_000_000;

/// Twenty blocks on a link of 10 GB/s, and a disk of 1 GB/s.
fn request(text: &str, host_bytes: u64) -> PlanRequest {
    let block = |index| BlockSpec {
        name: format!("blocks.{index}"),
        bytes: BYTES,
        compute_seconds: 0.001,
        pinned: false,
    };
    let device = |id, available_bytes| DeviceSpec {
        id,
        total_bytes: 8_000_000_000,
        available_bytes,
        link_bytes_per_s: 1e10,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    let devices = vec![device(DeviceId::CPU, 1_900_000_000), device(DeviceId::sim(0), 600_000_000)];
    let mut request = PlanRequest::new((0..BLOCKS).map(block).collect(), devices, DeviceId::sim(0));
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.disk = Some(Disk { host_bytes, bytes_per_s: 1e9, readable: vec![true; BLOCKS] });
    request
}

fn read(plan: &Plan) -> Vec<usize> {
    (0..BLOCKS).filter(|block| plan.blocks[*block].from_disk).collect()
}

#[test]
fn what_fits_is_planned_as_without_a_disk() {
    for text in ["", "sim:0,10%;cpu,90%"] {
        let with = request(text, 1_900_000_000);
        let without = PlanRequest { disk: None, ..with.clone() };
        assert_eq!(plan(&with).unwrap(), plan(&without).unwrap(), "{text}");
    }
}

#[test]
fn the_rest_is_read_spread_over_the_step() {
    let request = request("sim:0,0%;cpu,100%", 1_000_000_000);
    assert!(matches!(plan(&PlanRequest { disk: None, ..request.clone() }), Err(PlanError::NoRoom { .. })));
    let plan = plan(&request).unwrap();
    let blocks = read(&plan);
    // What is kept and the buffers are together no more than was allowed, and nearly as much.
    let (reading, host) = (plan.reading.unwrap(), *plan.device(DeviceId::CPU).unwrap());
    assert_eq!((host.ring_bytes, host.disk_bytes), (reading.bytes(), blocks.len() as u64 * BYTES));
    assert_eq!((host.weight_bytes, plan.disk_bytes()), (20 * BYTES, host.disk_bytes));
    assert!(host.total_bytes() <= 1_000_000_000 && host.total_bytes() > 1_000_000_000 - BYTES, "{plan}");
    assert!(reading.buffers >= 2 && reading.bytes() >= BYTES, "a block is read while one is copied: {plan}");
    let gaps: Vec<usize> = blocks.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.iter().all(|gap| *gap <= 2), "{blocks:?}");
    // The disk is what the step waits for, and the link works meanwhile.
    let seconds = plan.prediction.seconds_per_step;
    let disk_s = plan.disk_bytes() as f64 / 1e9;
    assert!((disk_s..disk_s * 1.1).contains(&seconds), "{seconds} against {disk_s}\n{plan}");
    assert_eq!(predict(&request, &plan).unwrap(), plan.prediction);
    let text = plan.to_string();
    assert!(text.contains("disk") && text.contains("from the disk through"), "{text}");
    assert!(plan.notes.iter().any(|note| note.contains("read from the disk at every step")), "{text}");
}

/// Amounts for the host may be more than it has, as long as there is a disk; those of other devices may not.
#[test]
fn the_host_may_be_given_more_than_it_has() {
    for text in ["sim:0,0%;cpu,100%", "sim:0,100mb;cpu,*", "cpu,2000000000b"] {
        let mut request = request(text, 800_000_000);
        request.devices[0].total_bytes = 1_000_000_000;
        request.devices[0].available_bytes = 1_000_000_000;
        let made = plan(&request).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert!(made.device(DeviceId::CPU).unwrap().total_bytes() <= 800_000_000, "{made}");
        request.disk = None;
        assert!(plan(&request).is_err(), "{text}");
    }
    let mut request = request("sim:0,100%", 800_000_000);
    request.devices[1].total_bytes = 600_000_000;
    assert!(matches!(plan(&request), Err(PlanError::Allocation(_))));
}

/// Automatic mode keeps on the device what has room there.
#[test]
fn the_device_is_filled_first() {
    let plan = plan(&request("", 700_000_000)).unwrap();
    let host = plan.device(DeviceId::CPU).unwrap();
    assert!(!read(&plan).is_empty() && host.total_bytes() <= 700_000_000, "{plan}");
    assert!(plan.device(DeviceId::sim(0)).unwrap().weight_bytes > 0, "{plan}");
    let all = plan.blocks.iter().filter(|block| block.from_disk);
    assert!(all.clone().all(|block| block.home == DeviceId::CPU && block.runs_on == DeviceId::sim(0)));
}

#[test]
fn what_cannot_be_read_must_have_room() {
    let mut request = request("sim:0,0%;cpu,100%", 1_000_000_000);
    request.disk.as_mut().unwrap().readable = (0..BLOCKS).map(|block| block % 4 == 0).collect();
    let error = plan(&request).unwrap_err();
    let PlanError::NoRoom { device, wanted, available, .. } = error else { panic!("{error}") };
    assert_eq!(device, DeviceId::CPU);
    assert!(wanted > available, "{wanted} {available}");
    // One that is said to have no speed is a mistake of who asks.
    request.disk.as_mut().unwrap().bytes_per_s = 0.0;
    assert!(matches!(plan(&request), Err(PlanError::BadDevice { what: "disk bandwidth", .. })));
}

/// Blocks that are read are never coded; those in memory are.
#[test]
fn coding_is_for_what_is_in_memory() {
    let mut request = request("sim:0,0%;cpu,100%", 1_000_000_000);
    request.coding.policy = CodingPolicy::Force;
    request.coding.coded_bytes = vec![Some(BYTES * 7 / 10); BLOCKS];
    let plan = plan(&request).unwrap();
    assert!(!read(&plan).is_empty());
    assert!(plan.blocks.iter().all(|block| block.from_disk != block.coded_bytes.is_some()), "{plan}");
}
