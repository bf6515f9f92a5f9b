//! Chroma Radiance against formulas that were written down elsewhere (`tools/reference`), and on every placement; latents
//! that are pictures.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use models::conditioning::{Cond, Conditioned, Scene};
use models::diffusion::chroma::Chroma;
use models::diffusion::{Alteration, Diffusion, Evaluation, ForwardProbed};
use models::vae::Pictures;
use models::{Module, Probe, detect};
use residency::Session;
use sampling::LatentShape;
use support::transformers::{array, check_placements, input, texts};
use support::{checkpoint, golden, open_on_cpu};
use testkit::{Report, SafetensorsWriter};

const NAME: &str = "chroma_radiance_tiny";
/// The reference computes in f64, but for the fast waves by which modulations know their numbers: a last bit of a frequency
/// shows there.
const TOLERANCE: f64 = 1e-4;

/// A model all of whose tensors are read, but for what says something by being there.
fn model(file: &Checkpoint) -> (Chroma, Session) {
    let detected = detect(file);
    assert_eq!(detected.seems(), "a diffusion model (Chroma Radiance)");
    let model = Chroma::read(file, &detected.parts[0]).unwrap();
    let manifest = model.manifest(file).unwrap();
    let unused = detected.parts[0].unused(file, &manifest);
    assert!(unused.iter().all(|name| *name == "__x0__"), "{unused:?}");
    (model, open_on_cpu(manifest))
}

/// The other kind of model: its last layer looks at one pixel, and it gives the picture itself.
fn clean_checkpoint() -> Checkpoint {
    let path = testkit::data_path(&format!("manifests/{NAME}.json"));
    let mut json: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let tensors = json["tensors"].as_array_mut().unwrap();
    tensors.retain(|tensor| !tensor["name"].as_str().unwrap().starts_with("nerf_final"));
    for (name, shape, scale, offset) in [
        ("nerf_final_layer.norm.scale", vec![8], 0.1, 1.0),
        ("nerf_final_layer.linear.weight", vec![3, 8], 0.6, 0.0),
        ("nerf_final_layer.linear.bias", vec![3], 0.05, 0.0),
        ("__x0__", vec![0], 1.0, 0.0),
    ] {
        let tensor = serde_json::json!({
            "name": name, "shape": shape, "dtype": "BF16", "scale": scale, "offset": offset
        });
        tensors.push(tensor);
    }
    let manifest = testkit::Manifest::parse(&json.to_string()).unwrap();
    Checkpoint::from_memory(("clean", manifest.bytes().unwrap().into()), Vec::new()).unwrap()
}

#[test]
fn pictures_are_painted_as_the_formulas_say() {
    let golden = golden(NAME);
    for (file, result) in [(checkpoint(NAME), "convolved"), (clean_checkpoint(), "clean")] {
        let (model, session) = model(&file);
        let sizes = model.config().pixels.unwrap();
        assert_eq!((sizes.side, sizes.width, sizes.mlp, sizes.waves, sizes.blocks), (16, 8, 32, 4, 2));
        assert_eq!((sizes.is_convolved, sizes.gives_picture), (result == "convolved", result == "clean"));
        assert_eq!((model.latent().channels, model.latent().pixels_per_value), (3, 1));
        let cond = Cond::text(array(&golden, "text"), None);
        let x = input(&golden, &session, "x");
        let output = model.forward_probed(&session, (&cond, &x, 0.64), &mut Probe::none()).unwrap();
        golden.assert_close(result, output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    }
}

#[test]
fn how_many_patches_are_painted_at_once_changes_nothing() {
    let (model, session) = model(&checkpoint(NAME));
    let golden = golden(NAME);
    let x = input(&golden, &session, "x");
    let cond = Cond::text(array(&golden, "text"), None);
    let shape = LatentShape::sized(x.dims()).unwrap();
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let with = |altered: &[Alteration]| {
        let evaluation = Evaluation { altered, ..Evaluation::new(0, &x, 0.64) };
        run.forward(&[evaluation]).unwrap()[0].to_vec().unwrap()
    };
    let usual = with(&[]);
    for count in [0, 1, 4] {
        let alteration = Alteration::PatchesAtOnce(count);
        assert!(model.knows(&alteration));
        Report::new("patches at once", &with(&[alteration]), &usual).assert(1e-5);
    }
}

#[test]
fn placement_and_company_change_no_bit() {
    let file = checkpoint(NAME);
    let (model, _) = model(&file);
    // Sides that are no multiple of a patch, and several items.
    let latents: [&[usize]; 2] = [&[1, 3, 50, 70], &[2, 3, 48, 32]];
    check_placements(&model, &file, &texts([1, 12, 4096]), &latents);
}

#[test]
fn latents_are_pictures() {
    let writer = SafetensorsWriter::new();
    let writer =
        writer.values(models::vae::pixels::TENSOR, meta::DType::F32, meta::Shape::from([1]), &[1.0]).unwrap();
    let file = Checkpoint::from_memory(("pixels", writer.finish().unwrap().into()), Vec::new()).unwrap();
    let detected = detect(&file);
    let autoencoder = (models::vae::pixels::FAMILY.read)(&file, &detected.parts[0]).unwrap();
    let session = open_on_cpu(autoencoder.manifest(&file).unwrap());
    let values: Vec<f32> = (0..2 * 2 * 3 * 3).map(|at| at as f32 / 40.0).collect();
    let pictures = Pictures { shape: [2, 2, 3, 3], values: &values };
    let latent = autoencoder.encode(&session, &pictures, None).unwrap();
    assert_eq!(latent.dims(), [2, 3, 2, 3]);
    assert_eq!(latent.to_vec().unwrap()[0], -1.0);
    let mut back = Vec::new();
    let mut take = |values: &[f32]| {
        back.extend_from_slice(values);
        Ok(())
    };
    autoencoder.decode(&session, &latent, None, &mut take).unwrap();
    Report::new("pictures", &back, &values).assert(1e-6);
    let wrong = session.lane().unwrap().full([1, 4, 2, 2], 0.0).unwrap();
    let told = autoencoder.decode(&session, &wrong, None, &mut |_| Ok(())).unwrap_err().to_string();
    assert!(told.contains("[batch, 3, height, width]"), "{told}");
}
