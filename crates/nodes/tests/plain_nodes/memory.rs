//! Pictures, masks and latents in the host's ledger: refused before they are made, counted while somebody holds them,
//! given back when nobody does.

use std::sync::Arc;

use device::{Backend, Device, Registry};
use device_cpu::{CpuBackend, Groups};
use graph::{Failure, Inputs, Outcome, Value};
use nodes::value::{Array, Conditioning, Entry, Image, LatentImage, Mask};
use runtime::Settings;
use runtime::host::{Host, Samples};
use sampling::Latent;
use testkit::ScratchDir;

use crate::workbench::{Workbench, inputs, outputs};

/// A container of 1.2 GB, of which some is in use.
const LIMIT: u64 = 1_288_490_188;

/// The CPU of a process in a container, and nodes on it.
fn contained(used: u64) -> (ScratchDir, Device, Workbench) {
    let system = ScratchDir::new().unwrap();
    let files = [
        ("proc/self/cgroup", "0::/box".to_owned()),
        ("sys/fs/cgroup/box/memory.max", LIMIT.to_string()),
        ("sys/fs/cgroup/box/memory.current", used.to_string()),
    ];
    for (path, text) in files {
        let path = system.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let backend = CpuBackend::within(Groups::below(system.path()));
    let budget = backend.total_memory();
    let device = Device::new(Arc::new(backend) as Arc<dyn Backend>, budget);
    let bench = Workbench::on(Registry::new([device.clone()]), Settings::default());
    (system, device, bench)
}

fn sized(width: usize, height: usize, batch: usize) -> Inputs {
    inputs().with("width", width).with("height", height).with("batch_size", batch)
}

#[test]
fn the_limit_of_a_container_is_the_budget_and_what_is_over_it_is_refused() {
    let (_system, device, bench) = contained(50 << 20);
    assert_eq!(device.ledger().report().budget, LIMIT);
    assert_eq!(device.memory().unwrap().total, LIMIT);
    assert!(device.memory().unwrap().free <= LIMIT - (50 << 20));
    let Err(failure) = bench.run("EmptyImage", sized(10_000, 20_000, 1)) else { panic!("2.4 GB of 1.2") };
    let text = failure.to_string();
    let says = |part: &str| assert!(text.contains(part), "{part}: {text}");
    ["[1, 20000, 10000, 3]", "2.24 GB", "1.20 GB"].into_iter().for_each(says);
    assert!(!matches!(failure, Failure::OutOfMemory(_)), "no model must go for what never fits");
    for (class, width, batch) in
        [("EmptyLatentImage", 16_384, 64), ("EmptySD3LatentImage", 16_384, 64), ("EmptyImage", 16_384, 4096)]
    {
        let text = bench.run(class, sized(width, width, batch)).unwrap_err().to_string();
        assert!(text.contains("of host memory"), "{class}: {text}");
    }
    assert_eq!(device.ledger().report().peak, 0, "nothing of it was ever made");
}

#[test]
fn what_others_in_the_container_hold_is_not_given_away() {
    let (_system, device, bench) = contained(LIMIT - (100 << 20));
    let failure = bench.run("EmptyImage", sized(4096, 4096, 1)).unwrap_err();
    assert!(matches!(&failure, Failure::OutOfMemory(text) if text.contains("100.00 MB")), "{failure}");
    assert_eq!(device.ledger().report().used, 0);
    bench.run("EmptyImage", sized(1024, 1024, 1)).unwrap();
}

/// The bytes of pictures, masks and latents among the outputs.
fn bytes(outcome: &Outcome, slots: usize) -> u64 {
    let of = |value: &Value| {
        let image = value.downcast::<Image>().map_or(0, |image| image.values.len());
        let mask = value.downcast::<Mask>().map_or(0, |mask| mask.values.len());
        let latent = value.downcast::<LatentImage>().map_or(0, |latent| latent.samples.values().len());
        4 * (image + mask + latent) as u64
    };
    (0..slots).flat_map(|slot| outputs(outcome, slot)).map(|value| of(&value)).sum()
}

fn first(outcome: &Outcome) -> Value {
    outputs(outcome, 0).remove(0)
}

/// Classes with inputs, and how many outputs they have.
fn cases(picture: &Value, mask: &Value, latent: &Value) -> Vec<(&'static str, Inputs, usize)> {
    let image = |name: &str| inputs().with(name, picture.clone());
    let marked = || inputs().with("mask", mask.clone());
    let samples = |name: &str| inputs().with(name, latent.clone());
    vec![
        ("ImageInvert", image("image"), 1),
        ("ImageScale", image("image").with("width", 200).with("height", 100), 1),
        ("ImageScaleBy", image("image").with("scale_by", 3.0).with("upscale_method", "lanczos"), 1),
        ("ImageCrop", image("image").with("width", 10).with("height", 10), 1),
        ("ImagePadForOutpaint", image("image").with("left", 32).with("feathering", 4), 2),
        ("ImageRotate", image("image").with("rotation", "90 degrees"), 1),
        ("ImageFlip", image("image"), 1),
        ("RepeatImageBatch", image("image").with("amount", 5), 1),
        ("ImageBatch", image("image1").with("image2", picture.clone()), 1),
        ("ImageStitch", image("image1").with("image2", picture.clone()), 1),
        ("ImageBlend", image("image1").with("image2", picture.clone()), 1),
        ("ImageBlur", image("image"), 1),
        ("ImageSharpen", image("image"), 1),
        ("ImageAddNoise", image("image"), 1),
        ("Canny", image("image"), 1),
        ("ImageCompositeMasked", image("destination").with("source", picture.clone()), 1),
        ("JoinImageWithAlpha", image("image").with("alpha", mask.clone()), 1),
        ("GrowMask", marked().with("expand", 3), 1),
        ("FeatherMask", marked().with("left", 5), 1),
        ("MaskToImage", marked(), 1),
        ("ImageToMask", image("image"), 1),
        ("LatentUpscaleBy", samples("samples").with("scale_by", 2.0), 1),
        ("RepeatLatentBatch", samples("samples").with("amount", 7), 1),
        ("LatentBatch", samples("samples1").with("samples2", latent.clone()), 1),
        ("LatentMultiply", samples("samples").with("multiplier", 2.0), 1),
        ("LatentFlip", samples("samples"), 1),
        (
            "LatentComposite",
            samples("samples_to").with("samples_from", latent.clone()).with("feather", 16),
            1,
        ),
    ]
}

#[test]
fn outputs_are_counted_and_given_back() {
    let (_system, device, bench) = contained(0);
    let used = || device.ledger().report().used;
    let picture = first(&bench.run("EmptyImage", sized(96, 64, 2)).unwrap());
    assert_eq!(used(), 2 * 64 * 96 * 3 * 4);
    let solid = inputs().with("width", 96).with("height", 64);
    let mask = first(&bench.run("SolidMask", solid).unwrap());
    let latent = first(&bench.run("EmptyLatentImage", sized(512, 256, 1)).unwrap());
    let before = used();
    assert_eq!(before, (2 * 64 * 96 * 3 + 64 * 96 + 4 * 64 * 32) * 4);
    for (class, given, slots) in cases(&picture, &mask, &latent) {
        let outcome = bench.run(class, given).unwrap();
        assert!(bytes(&outcome, slots) > 0, "{class}");
        assert_eq!(used() - before, bytes(&outcome, slots), "{class}");
        drop(outcome);
        assert_eq!(used(), before, "{class}");
    }
    // What is the same value costs nothing.
    let none = inputs().with("image", picture.clone()).with("rotation", "none");
    let same = bench.run("ImageRotate", none).unwrap();
    assert_eq!(used(), before);
    drop((same, picture, mask, latent));
    assert_eq!(used(), 0);
    assert!(device.ledger().report().peak > before);
}

#[test]
fn shared_values_are_copied_when_one_is_changed() {
    let host = Host::with_budget(100);
    let mut values = host.room(&[5]).unwrap().filled(1.0).unwrap();
    values.to_mut().unwrap()[0] = 2.0;
    let mut other = values.clone();
    let full = host.room(&[16]).unwrap();
    assert!(other.to_mut().is_err(), "20 bytes are no more left");
    drop(full);
    other.to_mut().unwrap()[1] = 3.0;
    assert_eq!(values, [2.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(other, [2.0, 3.0, 1.0, 1.0, 1.0]);
    assert!(host.room(&[usize::MAX, 2]).unwrap_err().to_string().contains("does not fit"));
    drop(values);
    assert!(host.room(&[21]).is_err(), "one of them is still there");
    drop(other);
    assert!(host.room(&[25]).is_ok());
}

#[test]
fn latents_that_conditionings_hold_stay_counted() {
    let (_system, device, bench) = contained(0);
    let used = || device.ledger().report().used;
    let host = Host::new(&device);
    let samples = Samples::new(&host, Latent::zeros(&[1, 16, 8, 8])).unwrap();
    let entry = Entry::text(Array { shape: vec![1, 1, 1], values: vec![0.0] }, None);
    let given = inputs()
        .with("conditioning", Value::object(Conditioning { entries: vec![entry] }))
        .with("latent", Value::object(LatentImage::new(samples)));
    let seeing = bench.run("ReferenceLatent", given).unwrap();
    assert_eq!(used(), 16 * 64 * 4, "counted once, and still there");
    drop(seeing);
    assert_eq!(used(), 0);
}
