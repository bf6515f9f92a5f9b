//! Blocks that travel losslessly coded: the same bits, fewer bytes, shorter steps where the link is the limit.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::time::Instant;

use device::Registry;
use meta::{DType, DeviceId, Encoding, QuantFormat};
use patch::PatchSet;
use placement::{AllocationText, BlockMode, CodingPolicy, Plan, PlanRequest};
use residency::{Cancel, LoadOptions, Manifest, Residency};
use support::*;

/// A request for the test model on the first simulated device.
fn request(manifest: &Manifest, devices: &Registry, text: &str, policy: CodingPolicy) -> PlanRequest {
    let mut request = Residency::plan_request(manifest, DeviceId::sim(0), device_specs(devices));
    request.allocation =
        if text.is_empty() { AllocationText::automatic() } else { AllocationText::parse(text).unwrap() };
    request.coding.policy = policy;
    request.coding.coded_bytes = Residency::coded_bytes(manifest);
    request.coding.decode_bytes_per_s = Some(1e9);
    request
}

fn coded_blocks(plan: &Plan) -> usize {
    plan.blocks.iter().filter(|block| block.coded_bytes.is_some()).count()
}

/// Three steps under a policy, and what was copied in them.
fn steps(
    file: &ModelFile,
    text: &str,
    policy: CodingPolicy,
    patches: impl Fn(&Manifest) -> Option<PatchSet>,
) -> (Plan, Vec<Vec<f32>>, u64) {
    let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
    let manifest = manifest(file, "model");
    let plan = placement::plan(&request(&manifest, residency.devices(), text, policy)).unwrap();
    let patches = patches(&manifest);
    let id = residency.load(manifest, plan.clone(), LoadOptions::default()).unwrap();
    if let Some(patches) = patches {
        residency.set_patches(id, patches).unwrap();
    }
    let session = residency.open(id, &Cancel::default()).unwrap();
    let outputs = [(); 3].map(|()| forward(&session, &input()).unwrap());
    let stats = session.stats();
    let streamed = plan.blocks.iter().filter(|block| block.mode == BlockMode::Streamed).count();
    assert!((3.0..3.5).contains(&(stats.copies as f64 / streamed as f64)), "{stats:?}: once per step");
    // Every device's ledger has what it had before once the model is gone.
    let used = |device| residency.devices().get(device).unwrap().ledger().report().used;
    assert!(used(DeviceId::sim(0)) > 0);
    drop(session);
    residency.unload(id).unwrap();
    assert_eq!(used(DeviceId::sim(0)) + used(DeviceId::CPU), 0);
    (plan, outputs.into(), stats.bytes / stats.copies)
}

fn identical(encoding: Encoding, strength: Option<f64>) {
    let file = write_model(1, encoding);
    let patches = |manifest: &Manifest| strength.map(|strength| lora(&file, manifest, strength));
    for (text, streamed) in
        [("sim:0,0%;cpu,100%", BLOCKS), ("sim:0,50%;cpu,50%", BLOCKS / 2), ("sim:0,30%;sim:1,30%;cpu,40%", 8)]
    {
        let (plain_plan, plain, plain_bytes) = steps(&file, text, CodingPolicy::Off, patches);
        let (plan, coded, bytes) = steps(&file, text, CodingPolicy::Force, patches);
        assert_eq!(coded_blocks(&plain_plan), 0);
        assert_eq!(coded_blocks(&plan), streamed, "{plan}");
        assert_eq!(plain, coded, "{encoding} {text}");
        assert!(
            bytes < plain_bytes * 93 / 100,
            "{encoding} {text}: {bytes} of {plain_bytes} bytes per block"
        );
        let ring = |plan: &Plan| plan.ring.unwrap().bytes();
        assert!(plan.to_string().contains("coded"), "{plan}");
        assert!(ring(&plan) <= ring(&plain_plan) + plan.ring.unwrap().slot_bytes, "{plan}");
    }
}

#[test]
fn the_bits_are_the_same() {
    for dtype in [DType::BF16, DType::F16, DType::F8E4M3] {
        identical(dtype.into(), None);
    }
}

/// A patch is merged into what was decoded, at every arrival.
#[test]
fn the_bits_are_the_same_with_a_lora() {
    identical(Encoding::BF16, Some(0.8));
    identical(DType::F8E4M3.into(), Some(0.8));
}

/// Another patch set takes effect although the blocks wait decoded or coded.
#[test]
fn patches_change_between_steps() {
    let file = write_model(2, Encoding::BF16);
    let outputs = |policy| {
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let manifest = manifest(&file, "model");
        let sets = [0.8, -0.4].map(|strength| lora(&file, &manifest, strength));
        let plan =
            placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", policy)).unwrap();
        let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
        let mut outputs = vec![run(&residency, id).unwrap()];
        for set in sets.into_iter().chain([PatchSet::new()]) {
            residency.set_patches(id, set).unwrap();
            outputs.push(run(&residency, id).unwrap());
        }
        outputs
    };
    let plain = outputs(CodingPolicy::Off);
    assert_ne!(plain[0], plain[1]);
    assert_eq!(plain, outputs(CodingPolicy::Force));
    assert_eq!(plain[0], plain[3]);
}

/// Two blocks are leased at once, and one again: each has a room of its own.
#[test]
fn several_leases_at_a_time() {
    let file = write_model(3, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let manifest = manifest(&file, "model");
    let request = request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", CodingPolicy::Force);
    let plan = placement::plan(&request).unwrap();
    let stored: Vec<Vec<u8>> = manifest.weights().iter().map(|spec| spec.bytes.as_ref().to_vec()).collect();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let session = residency.open(id, &Cancel::default()).unwrap();
    let (first, second, again) =
        (session.lease(0).unwrap(), session.lease(1).unwrap(), session.lease(0).unwrap());
    for (lease, block) in [(&first, 0), (&second, 1), (&again, 0)] {
        let weight = lease.weight(&format!("blocks.{block}.up.weight")).unwrap();
        let span = weight.operand().span();
        let mut bytes = vec![0; span.len];
        lease.lane().stream().read(&span, &mut bytes).unwrap();
        assert!(bytes == stored[3 * block], "block {block}");
    }
}

/// Types that do not shrink are not coded, whatever is asked.
#[test]
fn quantised_weights_stay_as_they_are() {
    for encoding in [Encoding::from(QuantFormat::Q8_0), Encoding::F32, DType::F8E5M2.into()] {
        let file = write_model(11, encoding);
        let manifest = manifest(&file, "model");
        let sizes = Residency::coded_bytes(&manifest);
        assert!(sizes.iter().all(Option::is_none), "{encoding}: {sizes:?}");
        let devices = machine(&["64mb@20gbps"]);
        let plan = placement::plan(&request(&manifest, &devices, "sim:0,0%;cpu,100%", CodingPolicy::Force));
        assert_eq!(coded_blocks(&plan.unwrap()), 0, "{encoding}");
    }
    // fp8 shrinks by a tenth, which is worth no memory of its own unless it is forced.
    let file = write_model(12, DType::F8E4M3.into());
    let manifest = manifest(&file, "model");
    let devices = machine(&["64mb@20gbps"]);
    let coded = |policy| {
        let mut request = request(&manifest, &devices, "sim:0,0%;cpu,100%", policy);
        request.devices.iter_mut().for_each(|spec| spec.link_bytes_per_s = 1e6);
        coded_blocks(&placement::plan(&request).unwrap())
    };
    assert_eq!((coded(CodingPolicy::Auto), coded(CodingPolicy::Force)), (0, BLOCKS));
}

/// What is planned is done only where it helps: a fast link, or a slow decoder, streams plainly.
#[test]
fn blocks_are_coded_where_that_is_predicted_to_help() {
    let file = write_model(4, Encoding::BF16);
    let manifest = manifest(&file, "model");
    let plan_with = |link: &str, decode: Option<f64>, policy| {
        let devices = machine(&[&format!("64mb@{link}")]);
        let mut request = request(&manifest, &devices, "sim:0,0%;cpu,100%", policy);
        for spec in &mut request.devices {
            spec.link_bytes_per_s = if link == "slow" { 1e6 } else { spec.link_bytes_per_s };
        }
        request.devices[1].link_bytes_per_s =
            link.strip_suffix("gbps").unwrap().parse::<f64>().unwrap() * 1e9;
        request.coding.decode_bytes_per_s = decode;
        placement::plan(&request).unwrap()
    };
    let slow = plan_with("0.05gbps", Some(1e9), CodingPolicy::Auto);
    assert_eq!(coded_blocks(&slow), BLOCKS, "{slow}");
    let plain = plan_with("0.05gbps", Some(1e9), CodingPolicy::Off);
    let ratio = slow.prediction.seconds_per_step / plain.prediction.seconds_per_step;
    assert!((0.70..0.78).contains(&ratio), "{ratio}\n{slow}");
    assert_eq!(coded_blocks(&plan_with("0.05gbps", Some(1e8), CodingPolicy::Auto)), 0, "a slow decoder");
    assert_eq!(coded_blocks(&plan_with("0.05gbps", None, CodingPolicy::Auto)), 0, "an unknown decoder");
    assert_eq!(coded_blocks(&plan_with("50gbps", Some(1e9), CodingPolicy::Auto)), 0, "a fast link");
    assert_eq!(coded_blocks(&plan_with("50gbps", None, CodingPolicy::Force)), BLOCKS);
}

/// On a metered link a step is as much shorter as there are fewer bytes.
#[test]
fn a_step_that_the_link_limits_is_shorter() {
    let file = write_model(5, Encoding::BF16);
    let measure = |policy| {
        let residency = Residency::new(machine(&["64mb@5mbps"]));
        let manifest = manifest(&file, "model");
        let plan =
            placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", policy)).unwrap();
        let id = residency.load(manifest, plan.clone(), LoadOptions::default()).unwrap();
        let session = residency.open(id, &Cancel::default()).unwrap();
        forward(&session, &input()).unwrap();
        // Several together: the ring runs ahead, so that one step may copy a block less and the next one more.
        const STEPS: u32 = 6;
        let start = Instant::now();
        (0..STEPS).for_each(|_| drop(forward(&session, &input()).unwrap()));
        (plan.streamed_bytes(), (start.elapsed() / STEPS).as_secs_f64())
    };
    let (plain_bytes, plain_s) = measure(CodingPolicy::Off);
    let (coded_bytes, coded_s) = measure(CodingPolicy::Force);
    let (bytes, seconds) = (coded_bytes as f64 / plain_bytes as f64, coded_s / plain_s);
    println!("{bytes:.3} of the bytes, {seconds:.3} of the step ({plain_s:.3} s, {coded_s:.3} s)");
    assert!((0.70..0.76).contains(&bytes), "{bytes}");
    assert!((bytes - 0.03..bytes + 0.10).contains(&seconds), "{seconds} for {bytes} of the bytes");
}
