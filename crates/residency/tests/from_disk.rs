//! Blocks that are read from the disk at every step: the same bits, no host memory but the buffers, and clean failures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::OpenOptions;

use device::Registry;
use meta::{DType, DeviceId, Encoding, QuantFormat};
use patch::PatchSet;
use placement::{AllocationText, CodingPolicy, Disk, Plan, PlanRequest};
use residency::{Cancel, Error, LoadOptions, Manifest, Residency};
use support::*;

/// Host memory for the weights of the test model, of which it has about 660 KB in bf16.
const SOME: u64 = 400_000;
const LITTLE: u64 = 200_000;

fn request(manifest: &Manifest, devices: &Registry, text: &str, host_bytes: Option<u64>) -> PlanRequest {
    let mut request = Residency::plan_request(manifest, DeviceId::sim(0), device_specs(devices));
    request.allocation = AllocationText::parse(text).unwrap();
    request.disk = host_bytes.map(|host_bytes| Disk {
        host_bytes,
        bytes_per_s: 1e9,
        readable: Residency::readable(manifest),
    });
    request
}

fn read(plan: &Plan) -> usize {
    plan.blocks.iter().filter(|block| block.from_disk).count()
}

/// The manifest of a model that is kept in another type, if it is.
fn kept_as(file: &ModelFile, dtype: Option<DType>) -> Manifest {
    let stored = manifest(file, "model");
    dtype.map_or(stored.clone(), |dtype| stored.kept_as(dtype).unwrap())
}

/// Two sessions of two steps each, so that reading ahead crosses steps and sessions.
fn steps(
    (file, dtype): (&ModelFile, Option<DType>),
    text: &str,
    host_bytes: Option<u64>,
    patches: impl Fn(&Manifest) -> Option<PatchSet>,
) -> (Plan, Vec<Vec<f32>>) {
    let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
    let manifest = kept_as(file, dtype);
    let plan = placement::plan(&request(&manifest, residency.devices(), text, host_bytes)).unwrap();
    let (patches, cast) = (patches(&manifest), Residency::host_bytes(&manifest, &plan));
    let id = residency.load(manifest, plan.clone(), LoadOptions::default()).unwrap();
    if let Some(patches) = patches {
        residency.set_patches(id, patches).unwrap();
    }
    let used = || residency.devices().get(DeviceId::CPU).unwrap().ledger().report().used;
    let mut outputs = Vec::new();
    for _ in 0..2 {
        let session = residency.open(id, &Cancel::default()).unwrap();
        outputs.extend([(); 2].map(|()| forward(&session, &input()).unwrap()));
        session.verify().unwrap();
        let buffers = plan.reading.map_or(0, |reading| reading.bytes());
        assert_eq!(
            used(),
            buffers + cast,
            "the buffers, and what is cast into memory; mapped pages are not ours"
        );
        let shown = residency.models()[0].bytes.clone();
        let on_host =
            shown.iter().find(|(device, _)| *device == DeviceId::CPU).map_or(0, |(_, bytes)| *bytes);
        let planned = plan.device(DeviceId::CPU).map_or(0, placement::DeviceUse::total_bytes);
        assert_eq!(on_host, planned, "{plan}");
    }
    residency.unload(id).unwrap();
    assert_eq!(used(), 0);
    (plan, outputs)
}

fn identical(encoding: Encoding, dtype: Option<DType>, strength: Option<f64>) {
    let file = write_model(1, encoding);
    let patches = |manifest: &Manifest| strength.map(|strength| lora(&file, manifest, strength));
    let whole = kept_as(&file, dtype).bytes();
    let (plan, expected) = steps((&file, dtype), "sim:0,100%;cpu,0%", None, patches);
    assert_eq!(read(&plan), 0);
    for (text, share) in [
        ("sim:0,0%;cpu,100%", 0.6),
        ("sim:0,0%;cpu,100%", 0.35),
        ("sim:0,40%;cpu,60%", 0.4),
        ("sim:0,30%;sim:1,20%;cpu,50%", 0.4),
    ] {
        // The buffers of so small a model are a good part of it.
        let host_bytes = ((whole as f64 * share) as u64).max(140_000);
        let (plan, outputs) = steps((&file, dtype), text, Some(host_bytes), patches);
        assert!(read(&plan) > 0 && plan.device(DeviceId::CPU).unwrap().total_bytes() <= host_bytes, "{plan}");
        assert_eq!(outputs, expected, "{encoding} {text} {share}");
    }
}

#[test]
fn the_bits_are_the_same() {
    for encoding in [Encoding::BF16, Encoding::F32, QuantFormat::Q8_0.into()] {
        identical(encoding, None, None);
    }
}

#[test]
fn the_bits_are_the_same_with_a_lora() {
    identical(Encoding::BF16, None, Some(0.8));
    identical(Encoding::F32, None, Some(-0.5));
}

/// Weights that are cast on their way are cast as they are read.
#[test]
fn the_bits_are_the_same_when_weights_are_cast() {
    identical(Encoding::BF16, Some(DType::F8E4M3), None);
    identical(Encoding::F32, Some(DType::F8E5M2), Some(0.8));
}

/// Codes with scales beside them lie in several places of the file.
#[test]
fn companions_are_read_with_their_weights() {
    identical(Encoding::Scaled(meta::Scheme::Int8 { rotation: None }), None, None);
}

/// What is in memory travels coded, the rest is read, with the same bits.
#[test]
fn beside_coded_blocks() {
    let file = write_model(2, Encoding::BF16);
    let (_, expected) = steps((&file, None), "sim:0,100%;cpu,0%", None, |_| None);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let manifest = manifest(&file, "model");
    let mut request = request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", Some(SOME));
    request.coding.policy = CodingPolicy::Force;
    request.coding.coded_bytes = Residency::coded_bytes(&manifest);
    request.coding.decode_bytes_per_s = Some(1e9);
    let plan = placement::plan(&request).unwrap();
    assert!(read(&plan) > 0 && plan.blocks.iter().any(|block| block.coded_bytes.is_some()), "{plan}");
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let session = residency.open(id, &Cancel::default()).unwrap();
    for _ in 0..6 {
        assert_eq!(forward(&session, &input()).unwrap(), expected[0]);
    }
}

/// Blocks in any order, some of them several times, and two at once: what is read ahead is then not what is wanted.
#[test]
fn in_any_order() {
    let file = write_model(3, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let manifest = manifest(&file, "model");
    let plan =
        placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", Some(LITTLE))).unwrap();
    assert!(read(&plan) > BLOCKS / 2, "{plan}");
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let session = residency.open(id, &Cancel::default()).unwrap();
    let checked = |index: usize| {
        let lease = session.lease(index).unwrap();
        for spec in session.manifest().weights().iter().skip(3 * index).take(3) {
            let weight = lease.weight(&spec.name).unwrap();
            let mut bytes = vec![0; spec.bytes.len()];
            lease.lane().stream().read(&weight.operand().span(), &mut bytes).unwrap();
            assert_eq!(bytes, spec.bytes.as_ref(), "{}", spec.name);
        }
    };
    for index in [0, 1, 17, 3, 3, 2, 19, 0, 19, 18, 7, 5, 11, 12, 13, 1] {
        checked(index);
    }
    let held = session.lease(4).unwrap();
    checked(9);
    checked(4);
    drop(held);
}

/// Two jobs that use the same copies at the same time.
#[test]
fn two_sessions_at_once() {
    let file = write_model(4, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let manifest = manifest(&file, "model");
    let plan =
        placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", Some(SOME))).unwrap();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let expected = run(&residency, id).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // Where all slots are leased by the other one, the lease says so.
            scope.spawn(|| {
                for _ in 0..4 {
                    match run(&residency, id) {
                        Ok(output) => assert_eq!(output, expected),
                        Err(error) => assert!(error.to_string().contains("slots are leased"), "{error}"),
                    }
                }
            });
        }
    });
    assert_eq!(run(&residency, id).unwrap(), expected);
}

/// A file that another program shortens while it is read: the job fails with the sentence that a mapped file has, and
/// nothing is left behind.
#[cfg(any(target_os = "linux", target_os = "macos"))]
#[test]
fn a_file_that_shrinks_is_told() {
    let file = write_model(5, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let manifest = manifest(&file, "model");
    let plan =
        placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", Some(LITTLE))).unwrap();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    run(&residency, id).unwrap();
    let session = residency.open(id, &Cancel::default()).unwrap();
    let whole = std::fs::metadata(&file.path).unwrap().len();
    OpenOptions::new().write(true).open(&file.path).unwrap().set_len(whole / 3).unwrap();
    // What was read ahead is still as it was; the second step finds the end of the file at the latest.
    let error = (0..2).find_map(|_| forward(&session, &input()).err()).unwrap();
    assert!(matches!(error, Error::File { .. }), "{error:?}");
    assert!(error.to_string().contains("another program changed or shortened the file"), "{error}");
    assert!(session.verify().is_err() && !residency.is_intact(id).unwrap());
    drop(session);
    residency.unload(id).unwrap();
    assert_eq!(residency.devices().get(DeviceId::CPU).unwrap().ledger().report().used, 0);
}

/// A job that is cancelled leaves the copies to the next one.
#[test]
fn a_cancelled_job_disturbs_nobody() {
    let file = write_model(6, Encoding::BF16);
    let residency = Residency::new(machine(&["64mb@1gbps"]));
    let manifest = manifest(&file, "model");
    let plan =
        placement::plan(&request(&manifest, residency.devices(), "sim:0,0%;cpu,100%", Some(SOME))).unwrap();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let expected = run(&residency, id).unwrap();
    for leased in [1, 5, 13] {
        let cancel = Cancel::default();
        let session = residency.open(id, &cancel).unwrap();
        (0..leased).for_each(|block| drop(session.lease(block).unwrap()));
        cancel.cancel();
        assert!(matches!(session.lease(leased), Err(Error::Cancelled)));
        drop(session);
        assert_eq!(run(&residency, id).unwrap(), expected);
    }
}

/// The speed of a disk is measured where there is one.
#[test]
fn a_disk_is_measured() {
    let file = write_model(7, Encoding::BF16);
    let manifest = manifest(&file, "model");
    assert!(Residency::disk_bytes_per_s(&manifest).is_some_and(|rate| rate > 1e3));
    assert!(Residency::disk_name(&manifest).is_some_and(|name| !name.is_empty()));
}
