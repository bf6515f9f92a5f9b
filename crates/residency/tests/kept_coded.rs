//! Blocks that stay on the device coded: a card that is smaller than the model holds all of it, and not a byte travels.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use meta::{DeviceId, Encoding, Shape};
use patch::PatchSet;
use placement::{BlockPlan, CodingPolicy, Plan, PlanRequest};
use residency::{Cancel, LoadOptions, Manifest, Residency, WeightSpec};
use support::*;
use testkit::{SafetensorsWriter, ScratchDir, random_normal};

/// Blocks of the larger model.
const MANY: usize = 48;
/// Inner width of its blocks.
const WIDE: usize = 1024;
/// Room to work in.
const WORKING: u64 = 256 << 10;

/// A model of many blocks, each a small part of it, as those of large models are.
fn many_blocks() -> (ScratchDir, Manifest) {
    let dir = ScratchDir::new().unwrap();
    let path = dir.path().join("many.safetensors");
    let shapes = [("up", Shape::from([WIDE, WIDTH])), ("down", Shape::from([WIDTH, WIDE]))];
    let mut writer = SafetensorsWriter::new();
    for block in 0..MANY {
        for (at, (layer, shape)) in shapes.iter().enumerate() {
            // Rows whose scales differ, as trained ones do.
            let scale = |index: usize| 0.02 * f32::exp2((index / shape.last() % 5) as f32 * 0.25);
            let values = random_normal((block * 2 + at) as u64, shape.count());
            let values: Vec<f32> = values.iter().enumerate().map(|(i, value)| value * scale(i)).collect();
            let name = format!("blocks.{block}.{layer}.weight");
            writer = writer.values(name, Encoding::BF16, *shape, &values).unwrap();
        }
    }
    writer.write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let spec = |name: String| {
        let entry = checkpoint.entry(&name).unwrap();
        WeightSpec {
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape: *entry.shape(),
            bytes: checkpoint.entry_bytes(entry),
            padded: None,
            companions: residency::Companions::of(&checkpoint, entry),
            rounds_patches: false,
            fp8_product: false,
            name,
        }
    };
    let mut builder = Manifest::builder("many", "test");
    for block in 0..MANY {
        let names = ["up", "down"].map(|layer| format!("blocks.{block}.{layer}.weight"));
        builder = builder.block(format!("blocks.{block}"), false, names.map(spec).into());
    }
    (dir, builder.finish().unwrap())
}

fn request(manifest: &Manifest, residency: &Residency, policy: CodingPolicy) -> PlanRequest {
    let mut request = Residency::plan_request(manifest, DeviceId::sim(0), device_specs(residency.devices()));
    request.working_bytes = WORKING;
    // Copies take so long that none hides behind computing.
    request.blocks.iter_mut().for_each(|block| block.compute_seconds = 1e-6);
    request.devices.iter_mut().for_each(|device| device.link_bytes_per_s = 1e9);
    request.coding.policy = policy;
    request.coding.coded_bytes = Residency::coded_bytes(manifest);
    request.coding.decode_bytes_per_s = Some(100e9);
    request
}

fn kept(plan: &Plan) -> usize {
    plan.blocks.iter().filter(|block| block.is_kept_coded()).count()
}

/// Three steps on a device of so many bytes; the plan, the bytes that travelled, and the most that the device held.
fn steps(manifest: &Manifest, bytes: u64, policy: CodingPolicy) -> (Plan, Vec<Vec<f32>>, u64, u64) {
    let residency = Residency::new(machine(&[&format!("{bytes}b@20gbps")]));
    let plan = placement::plan(&request(manifest, &residency, policy)).unwrap();
    let id = residency.load(manifest.clone(), plan.clone(), LoadOptions::default()).unwrap();
    let ledger = residency.devices().get(DeviceId::sim(0)).unwrap().ledger().clone();
    let session = residency.open(id, &Cancel::default()).unwrap();
    let held = ledger.report().used;
    let planned = plan.device(DeviceId::sim(0)).unwrap();
    let promised = planned.weight_bytes + planned.ring_bytes;
    assert!(held <= promised, "{held} of {promised} planned");
    assert!(held * 100 >= promised * 97, "{held} of {promised} planned");
    assert_eq!(ledger.report().reserved, 0, "what was promised and not needed is given back");
    let outputs = [(); 3].map(|()| forward(&session, &input()).unwrap());
    assert_eq!(ledger.report().used, held, "a step leaves nothing behind");
    let travelled = session.stats().bytes;
    drop(session);
    residency.unload(id).unwrap();
    let cpu = residency.devices().get(DeviceId::CPU).unwrap().ledger().report();
    assert_eq!((ledger.report().used, cpu.used, cpu.reserved), (0, 0, 0));
    (plan, outputs.into(), travelled, held)
}

/// A device with 0.74 of the weights' bytes, tables and the room to decode in counted, needs no link.
#[test]
fn three_quarters_of_the_bytes_hold_all_of_the_model() {
    let (_dir, manifest) = many_blocks();
    let weights = manifest.bytes();
    let (plain, expected, ..) = steps(&manifest, 2 * weights, CodingPolicy::Auto);
    assert!(plain.ring.is_none() && kept(&plain) == 0, "what fits is not coded:\n{plain}");
    let budget = weights * 74 / 100;
    let (plan, outputs, travelled, held) = steps(&manifest, budget + WORKING, CodingPolicy::Auto);
    println!("{plan}");
    assert_eq!(travelled, 0, "{plan}");
    assert!(kept(&plan) * 10 > MANY * 9, "no more stay plain than there is room for:\n{plan}");
    assert_eq!(plan.streamed_bytes(), 0);
    assert!(held <= budget, "{held} of {budget}");
    assert_eq!(outputs, expected);
    let told = plan.to_string();
    assert!(told.contains(" blocks of ") && told.contains("kept coded in"), "{told}");
}

/// Where there is more room, fewer blocks are coded; where there is less, others travel. The bits are the same.
#[test]
fn plain_coded_and_streamed_blocks_are_mixed() {
    let (_dir, manifest) = many_blocks();
    let weights = manifest.bytes();
    let (_, expected, ..) = steps(&manifest, 2 * weights, CodingPolicy::Off);
    let mut before = MANY + 1;
    for share in [78, 85, 95] {
        let (plan, outputs, travelled, _) =
            steps(&manifest, weights * share / 100 + WORKING, CodingPolicy::Auto);
        assert_eq!(travelled, 0, "{share} %: {plan}");
        assert!((1..before).contains(&kept(&plan)), "{share} %: {plan}");
        assert_eq!(outputs, expected);
        before = kept(&plan);
    }
    let (plan, outputs, travelled, _) = steps(&manifest, weights * 55 / 100 + WORKING, CodingPolicy::Auto);
    assert!(kept(&plan) > 0 && travelled > 0, "{plan}");
    assert_eq!(outputs, expected);
}

/// Patches are merged into what was decoded, and another set takes effect.
#[test]
fn patches_are_merged_into_what_is_decoded() {
    for encoding in [Encoding::BF16, meta::DType::F8E4M3.into()] {
        let file = write_model(7, encoding);
        let outputs = |policy| {
            let residency = Residency::new(machine(&["64mb@20gbps"]));
            let manifest = manifest(&file, "model");
            let sets = [0.8, -0.4].map(|strength| lora(&file, &manifest, strength));
            let plan = placement::plan(&request(&manifest, &residency, policy)).unwrap();
            let coded = plan.blocks.iter().filter(|block| BlockPlan::is_kept_coded(block)).count();
            assert_eq!(coded, if policy == CodingPolicy::Force { BLOCKS } else { 0 });
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
        assert_eq!(plain, outputs(CodingPolicy::Force), "{encoding}");
    }
}
