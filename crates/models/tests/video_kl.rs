//! The KL autoencoder of videos against the reference implementation: module by module, both ways, in parts and tiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use models::vae::video_kl::VideoKl;
use models::vae::{Autoencoder, FrameTiles, Pictures, Tiling};
use models::{Module, Probe, detect};
use residency::Session;
use support::*;
use tensor::Tensor;
use testkit::Report;

const NAME: &str = "hunyuan_video_vae";
const TOLERANCE: f64 = 1e-5;

fn opened() -> (VideoKl, Session) {
    let checkpoint = checkpoint(NAME);
    let detected = detect(&checkpoint);
    let model = VideoKl::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, open_on_cpu(manifest))
}

fn decoded(model: &VideoKl, session: &Session, latent: &Tensor, tiling: Option<Tiling>) -> Vec<f32> {
    let mut pictures = Vec::new();
    model
        .decode(session, latent, tiling, &mut |values| {
            pictures.extend_from_slice(values);
            Ok(())
        })
        .unwrap();
    pictures
}

#[test]
fn it_equals_the_reference() {
    let ((model, session), golden) = (opened(), golden(NAME));
    assert_eq!(
        (model.pixels_per_value(), model.frames_per_value(), model.latent_channels()),
        (8, Some(4), 16)
    );
    let lane = session.lane().unwrap();
    let input = golden.input("decode.input").unwrap();
    let latent = lane.tensor(input.shape, &input.values()).unwrap();
    let mut seen = 0;
    let mut see = |name: &str, value: &Tensor| {
        let stored = format!("out.{name}");
        if golden.names().any(|known| known == format!("{stored}.rms")) {
            golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
            seen += 1;
        }
    };
    model.decode_probed(&session, &latent, &mut Probe::new(&mut see), &mut |_| Ok(())).unwrap();
    // The enlargement, both ends and the last norm.
    assert_eq!(seen, 1 + 3);
    let (shape, _) = golden.tensor("decode.image").unwrap();
    let video = decoded(&model, &session, &latent, None);
    golden.assert_close("decode.image", &shape, &video, TOLERANCE);

    let (shape, pixels) = golden.tensor("encode.pixels").unwrap();
    let shape = <[usize; 4]>::try_from(shape.dims()).unwrap();
    let pictures = Pictures { shape, values: &pixels };
    let encoded = model.encode(&session, &pictures, None).unwrap();
    golden.assert_close("encode.latent", encoded.shape(), &encoded.to_vec().unwrap(), TOLERANCE);

    // One tile that covers all is the whole.
    let tiling = Tiling { tile: 8, overlap: 2, frames: Some(FrameTiles { tile: 4, overlap: 1 }) };
    Report::new("decode", &decoded(&model, &session, &latent, Some(tiling)), &video).assert(1e-6);
    let tiled = model.encode(&session, &pictures, Some(tiling)).unwrap();
    Report::new("encode", &tiled.to_vec().unwrap(), &encoded.to_vec().unwrap()).assert(1e-6);
}

#[test]
fn a_longer_video_comes_in_parts() {
    let (model, session) = opened();
    let latent = session.lane().unwrap().full([1, 16, 3, 2, 2], 0.5).unwrap();
    let mut parts = Vec::new();
    model
        .decode_probed(&session, &latent, &mut Probe::none(), &mut |part| {
            parts.push(part.dim(2));
            Ok(())
        })
        .unwrap();
    assert_eq!(parts, [5, 4]);
}
