//! The same bits, wherever the weights live and however they get to where they compute.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::{DType, DeviceId, Encoding, QuantFormat, Rotation, Scheme};
use patch::PatchSet;
use placement::{BlockMode, RemotePolicy};
use residency::{Cancel, LinearPart, LoadOptions, Manifest, Residency};
use support::*;
use tensor::Activation;

/// Every way of placing the model: the allocation, what happens to blocks on the other accelerator, and
/// how many blocks must be streamed.
const PLACEMENTS: [(&str, RemotePolicy, usize); 6] = [
    ("", RemotePolicy::Auto, 0),
    ("sim:0,0%;cpu,100%", RemotePolicy::Auto, BLOCKS),
    ("sim:0,50%;cpu,50%", RemotePolicy::Auto, BLOCKS / 2),
    ("sim:0,50%;sim:1,50%", RemotePolicy::Stream, BLOCKS / 2),
    ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace, 0),
    ("sim:0,30%;sim:1,30%;cpu,40%", RemotePolicy::InPlace, 8),
];

fn identical_in(encoding: Encoding, strength: Option<f64>) {
    let file = write_model(1, encoding);
    identical_with(&file, encoding, |manifest| strength.map(|strength| lora(&file, manifest, strength)));
}

fn identical_with(file: &ModelFile, encoding: Encoding, patches: impl Fn(&Manifest) -> Option<PatchSet>) {
    let mut first: Option<Vec<f32>> = None;
    for (text, remote, streamed) in PLACEMENTS {
        let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
        let manifest = manifest(file, "model");
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
        let found = plan.blocks.iter().filter(|block| block.mode == BlockMode::Streamed).count();
        assert_eq!(found, streamed, "{text} {remote:?}:\n{plan}");
        let patches = patches(&manifest);
        let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
        if let Some(patches) = patches {
            residency.set_patches(id, patches).unwrap();
        }
        let session = residency.open(id, &Cancel::default()).unwrap();
        // The second step comes from slots that were filled across the end of the first.
        let outputs = [(); 3].map(|()| forward(&session, &input()).unwrap());
        let expected = first.get_or_insert_with(|| outputs[0].clone());
        for output in &outputs {
            assert_eq!(output, expected, "{encoding} {text} {remote:?}");
        }
        if streamed > 0 {
            let stats = session.stats();
            let steps = stats.copies as f64 / streamed as f64;
            assert!((3.0..3.5).contains(&steps), "{stats:?}: every block is copied once per step");
        }
    }
}

#[test]
fn without_a_lora() {
    PLAIN.into_iter().for_each(|dtype| identical_in(dtype.into(), None));
}

#[test]
fn with_a_lora() {
    PLAIN.into_iter().for_each(|dtype| identical_in(dtype.into(), Some(0.8)));
}

#[test]
fn with_patches_of_every_form() {
    for encoding in [Encoding::F32, Encoding::BF16] {
        let file = write_model(6, encoding);
        for form in FORMS {
            identical_with(&file, encoding, |manifest| Some(patches_of(&file, manifest, form, 0.7)));
        }
        // Several at once, in order.
        identical_with(&file, encoding, |manifest| {
            let mut set = lora(&file, manifest, 0.8);
            for (form, strength) in [("LoHa", 0.5), ("LoRA", -0.4), ("DoRA", 0.9)] {
                add_file(&mut set, &file.dir.path().join(format!("{form}.safetensors")), manifest, strength);
            }
            Some(set)
        });
    }
}

#[test]
fn quantised_with_and_without_a_lora_beside() {
    identical_in(QuantFormat::Q8_0.into(), None);
    identical_in(QuantFormat::Q8_0.into(), Some(0.8));
}

#[test]
fn codes_with_scales_with_and_without_a_lora_beside() {
    for scheme in [
        Scheme::Int8 { rotation: None },
        Scheme::Int8 { rotation: Rotation::new(16) },
        Scheme::Mxfp8,
        Scheme::Nvfp4,
    ] {
        identical_in(scheme.into(), None);
        identical_in(scheme.into(), Some(0.8));
    }
}

/// What a LoRA adds to a weight does not depend on how the file stores it.
#[test]
fn patches_keep_the_precision_of_the_lane() {
    for name in ["up.weight", "up.bias"] {
        let exact = change_of(name, Encoding::F32);
        assert!(exact.iter().any(|change| change.abs() > 0.1), "{name}");
        for encoding in [Encoding::BF16, DType::F8E4M3.into(), QuantFormat::Q8_0.into(), Scheme::Nvfp4.into()]
        {
            for (got, want) in change_of(name, encoding).iter().zip(&exact) {
                assert!((got - want).abs() < 1e-6, "{name} in {encoding}: {got} instead of {want}");
            }
        }
    }
}

/// The patched minus the unpatched weight of the first block.
fn change_of(name: &str, encoding: Encoding) -> Vec<f32> {
    let file = write_model(4, encoding);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, &file, "model", "sim:0,40%;cpu,60%", residency::Retention::Default);
    let read = || weight(&residency.open(id, &Cancel::default()).unwrap(), 0, name);
    let plain = read();
    residency.set_patches(id, lora(&file, &manifest(&file, "model"), 1.0)).unwrap();
    read().iter().zip(plain).map(|(patched, plain)| patched - plain).collect()
}

#[test]
fn a_lora_changes_the_output_and_a_change_of_strength_touches_only_its_weights() {
    for text in ["", "sim:0,40%;cpu,60%"] {
        let file = write_model(2, Encoding::BF16);
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let id = load(&residency, &file, "model", text, residency::Retention::Default);
        let manifest = manifest(&file, "model");
        let plain = run(&residency, id).unwrap();
        let patched_weights = BLOCKS.div_ceil(3) * 3;
        assert_eq!(residency.set_patches(id, lora(&file, &manifest, 1.0)).unwrap(), patched_weights);
        let full = run(&residency, id).unwrap();
        assert_ne!(plain, full);
        assert_eq!(residency.set_patches(id, lora(&file, &manifest, 0.5)).unwrap(), patched_weights);
        let half = run(&residency, id).unwrap();
        assert!(half != full && half != plain);
        assert_eq!(residency.set_patches(id, lora(&file, &manifest, 0.5)).unwrap(), 0);
        assert_eq!(residency.set_patches(id, lora(&file, &manifest, 0.0)).unwrap(), patched_weights);
        assert_eq!(run(&residency, id).unwrap(), plain, "{text}: strength 0 is the file again");
    }
}

/// Outputs of a layer that are written to different places are those of the whole layer, with and without a LoRA.
#[test]
fn a_layer_in_parts_gives_what_the_layer_gives() {
    for encoding in [Encoding::F32, Encoding::BF16, QuantFormat::Q8_0.into()] {
        let file = write_model(5, encoding);
        let residency = Residency::new(machine(&["64mb@20gbps"]));
        let id = load(&residency, &file, "model", "", residency::Retention::Default);
        for strength in [0.0, 0.7] {
            residency.set_patches(id, lora(&file, &manifest(&file, "model"), strength)).unwrap();
            let session = residency.open(id, &Cancel::default()).unwrap();
            let lease = session.lease(0).unwrap();
            let x = lease.lane().tensor([3, WIDTH], &input()).unwrap();
            let whole = lease.linear("blocks.0.up", &x).unwrap();
            let (plain, room) = (lease.lane().empty([3, 96]).unwrap(), lease.lane().empty([3, 40]).unwrap());
            let activated = room.slice(1, 8, 32).unwrap();
            let parts = [
                LinearPart { rows: 0..96, activation: None, out: &plain },
                LinearPart { rows: 96..INNER, activation: Some(Activation::GeluTanh), out: &activated },
            ];
            lease.linear_in_parts("blocks.0.up", &x, &parts).unwrap();
            let want = [
                whole.slice(1, 0, 96).unwrap(),
                whole.slice(1, 96, 32).unwrap().activate(Activation::GeluTanh).unwrap(),
            ];
            for (got, want) in [&plain, &activated].into_iter().zip(&want) {
                let (got, want) = (got.to_vec().unwrap(), want.to_vec().unwrap());
                for (got, want) in got.iter().zip(&want) {
                    assert!((got - want).abs() < 1e-5, "{encoding}, {strength}: {got} instead of {want}");
                }
            }
        }
    }
}

#[test]
fn blocks_can_be_leased_out_of_order_and_a_cancelled_session_stops() {
    let file = write_model(3, Encoding::F32);
    let residency = Residency::new(machine(&["64mb@20gbps"]));
    let id = load(&residency, &file, "model", "sim:0,0%;cpu,100%", residency::Retention::Default);
    let cancel = Cancel::default();
    let session = residency.open(id, &cancel).unwrap();
    let expected: Vec<_> = (0..BLOCKS).map(|i| weight(&session, i, "up.weight")).collect();
    for i in [5, 3, 19, 0, 7, 7, 2] {
        assert_eq!(weight(&session, i, "up.weight"), expected[i], "block {i}");
    }
    assert!(session.lease(BLOCKS).is_err());
    cancel.cancel();
    assert!(matches!(session.lease(0), Err(residency::Error::Cancelled)));
}

fn weight(session: &residency::Session, block: usize, name: &str) -> Vec<f32> {
    let lease = session.lease(block).unwrap();
    let weight = lease.weight(&format!("blocks.{block}.{name}")).unwrap();
    assert!(lease.weight("no.such.weight").is_err());
    lease.lane().unpack(&weight).unwrap().to_vec().unwrap()
}

/// A step over a slow link waits for copies, and the profile says so; a resident one does not.
#[test]
fn a_profile_tells_where_a_step_s_time_went() {
    let file = write_model(5, Encoding::F32);
    let profile_of = |text: &str| {
        let residency = Residency::new(machine(&["64mb@0.05gbps"]));
        let id = load(&residency, &file, "model", text, residency::Retention::Default);
        let began = std::time::Instant::now();
        let _ = run(&residency, id).unwrap();
        let _ = run(&residency, id).unwrap();
        let report = residency.models().into_iter().find(|model| model.id == id).unwrap();
        (report.profile.unwrap(), began.elapsed().as_secs_f64())
    };
    let (resident, _) = profile_of("");
    assert_eq!(resident.blocks.len(), BLOCKS);
    assert!(resident.blocks.iter().all(|block| block.copy.is_none() && block.compute > 0.0));

    let (streamed, elapsed) = profile_of("sim:0,0%;cpu,100%");
    let bytes: u64 = streamed.blocks.iter().map(|block| block.copy.unwrap().bytes).sum();
    let copying: f64 = streamed.blocks.iter().map(|block| block.copy.unwrap().seconds).sum();
    let stalled: f64 = streamed.blocks.iter().map(|block| block.stall).sum();
    assert!(bytes > (BLOCKS * 2 * WIDTH * INNER * 4) as u64);
    // Every byte takes its time over the link, and most of that is waited for.
    assert!(copying > bytes as f64 / 0.05e9 * 0.9, "{copying} s for {bytes} bytes");
    assert!(stalled > 0.5 * streamed.seconds, "{stalled} of {} s", streamed.seconds);
    assert!(streamed.seconds < elapsed);
    for (block, next) in streamed.blocks.iter().zip(&streamed.blocks[1..]) {
        let copy = block.copy.unwrap();
        assert!(copy.begin + copy.seconds <= block.begin + block.stall + 1e-3, "{block:?}");
        assert!(block.begin + block.stall + block.compute <= next.begin + 1e-9, "{block:?} {next:?}");
    }
}
