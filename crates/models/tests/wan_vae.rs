//! The autoencoders of Wan against the reference implementation: both ways, in parts of time, in tiles, and on every
//! placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::DeviceId;
use models::vae::wan::Wan;
use models::vae::{Autoencoder, CodedSize, FrameTiles, Pictures, Tiling};
use models::{Module, Probe, detect};
use placement::RemotePolicy;
use residency::{Manifest, Residency, Session};
use support::*;
use tensor::Tensor;
use testkit::{Golden, Report, random_normal};

const TOLERANCE: f64 = 1e-5;
const NAMES: [&str; 2] = ["wan_2.1_vae_tiny", "wan2.2_vae_tiny"];

fn read(name: &str) -> (Wan, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let wan = Wan::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = wan.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (wan, manifest)
}

fn assert_tensor(golden: &Golden, name: &str, tensor: &Tensor) {
    golden.assert_close(name, tensor.shape(), &tensor.to_vec().unwrap(), TOLERANCE);
}

fn decoded(wan: &Wan, session: &Session, latent: &Tensor, tiling: Option<Tiling>) -> Vec<f32> {
    let mut pictures = Vec::new();
    wan.decode(session, latent, tiling, &mut |values| {
        pictures.extend_from_slice(values);
        Ok(())
    })
    .unwrap();
    pictures
}

#[test]
fn both_versions_equal_the_reference() {
    for (name, factor, channels) in [(NAMES[0], 8, 16), (NAMES[1], 16, 48)] {
        let (wan, manifest) = read(name);
        assert_eq!((wan.pixels_per_value(), wan.latent_channels()), (factor, channels));
        assert_eq!((wan.frames_per_value(), wan.picture_channels()), (Some(4), 3));
        let (session, golden) = (open_on_cpu(manifest), golden(name));
        let lane = session.lane().unwrap();
        let input = golden.input("decode.input").unwrap();
        let latent = lane.tensor(input.shape, &input.values()).unwrap();
        let mut parts = 0;
        let mut see = |module: &str, value: &Tensor| {
            if module == "conv1" && parts == 0 {
                assert_tensor(&golden, "out.conv1", value);
            }
            parts += 1;
        };
        wan.decode_probed(&session, &latent, &mut Probe::new(&mut see), &mut |_| Ok(())).unwrap();
        assert_eq!(parts, 3, "one part for each frame of the latent");
        let pictures = decoded(&wan, &session, &latent, None);
        let (shape, _) = golden.tensor("decode.image").unwrap();
        golden.assert_close("decode.image", &shape, &pictures, TOLERANCE);

        let (shape, pixels) = golden.tensor("encode.pixels").unwrap();
        let shape = <[usize; 4]>::try_from(shape.dims()).unwrap();
        let encoded = wan.encode(&session, &Pictures { shape, values: &pixels }, None).unwrap();
        assert_tensor(&golden, "encode.latent", &encoded);
    }
}

#[test]
fn one_tile_that_covers_all_is_the_whole() {
    for name in NAMES {
        let (wan, manifest) = read(name);
        let session = open_on_cpu(manifest);
        let lane = session.lane().unwrap();
        let side = 2 * wan.pixels_per_value();
        let shape = [7, side + 3, side, 3];
        let values = testkit::random_f32(8, shape.iter().product());
        let pictures = Pictures { shape, values: &values };
        let tiling = Tiling { tile: 8, overlap: 2, frames: Some(FrameTiles { tile: 4, overlap: 1 }) };
        let whole = wan.encode(&session, &pictures, None).unwrap();
        let tiled = wan.encode(&session, &pictures, Some(tiling)).unwrap();
        // Five of seven frames are whole values of a latent, and three rows are over.
        assert_eq!((whole.dims(), tiled.dims()), (&[1, wan.latent_channels(), 2, 2, 2][..], whole.dims()));
        Report::new("encode", &tiled.to_vec().unwrap(), &whole.to_vec().unwrap()).assert(1e-6);
        let whole = lane.tensor(*whole.shape(), &whole.to_vec().unwrap()).unwrap();
        let (got, want) =
            (decoded(&wan, &session, &whole, Some(tiling)), decoded(&wan, &session, &whole, None));
        Report::new("decode", &got, &want).assert(1e-6);
    }
}

#[test]
fn the_same_bits_on_every_placement() {
    let (wan, manifest) = read(NAMES[1]);
    let values = random_normal(6, 48 * 3 * 2 * 3);
    let mut first: Option<Vec<f32>> = None;
    for (allocation, remote) in [
        ("", RemotePolicy::Auto),
        ("sim:0,30%;cpu,70%", RemotePolicy::Auto),
        ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace),
    ] {
        let residency = Residency::new(machine(&["256mb@20gbps"; 2]));
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), allocation, remote);
        let session = open(&residency, manifest.clone(), plan);
        let latent = session.lane().unwrap().tensor([1, 48, 3, 2, 3], &values).unwrap();
        let video = decoded(&wan, &session, &latent, None);
        assert_eq!(video.len(), 9 * 32 * 48 * 3);
        let pictures = Pictures { shape: [9, 32, 48, 3], values: &video };
        let back = wan.encode(&session, &pictures, None).unwrap().to_vec().unwrap();
        let both = [video, back].concat();
        assert_eq!(&both, first.get_or_insert_with(|| both.clone()), "{allocation}");
    }
}

/// Bytes that a session's device has in use at most while `work` runs, beside what it had before.
fn peak_of(session: &Session, work: impl FnOnce()) -> u64 {
    let ledger = session.lane().unwrap().device().ledger();
    let before = ledger.report().used;
    ledger.take_peak();
    work();
    session.lane().unwrap().stream().synchronize().unwrap();
    ledger.report().peak - before
}

#[test]
fn a_longer_video_takes_no_more_memory() {
    let (wan, manifest) = read(NAMES[0]);
    let residency = Residency::new(machine(&["1gb@20gbps"]));
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), "", RemotePolicy::Auto);
    let session = open(&residency, manifest, plan);
    let lane = session.lane().unwrap();
    let mut peaks = Vec::new();
    for frames in [3, 6] {
        let latent = lane.full([1, 16, frames, 4, 4], 0.5).unwrap().contiguous().unwrap();
        peaks.push(peak_of(&session, || drop(decoded(&wan, &session, &latent, None))));
        // A rehearsal takes what the work does, and its latent.
        let rehearsed = peak_of(&session, || {
            wan.rehearse_decoding(&session, CodedSize::video(frames, 4, 4)).unwrap();
        });
        let own = (16 * frames * 16 * 4) as u64;
        assert!(rehearsed >= peaks[peaks.len() - 1] && rehearsed <= peaks[peaks.len() - 1] + 4 * own + 4096);
    }
    assert_eq!(peaks[0], peaks[1]);
}

#[test]
fn what_does_not_fit_is_told() {
    let (wan, manifest) = read(NAMES[0]);
    let session = open_on_cpu(manifest);
    let wrong = session.lane().unwrap().full([1, 4, 1, 4, 4], 0.0).unwrap();
    let error = wan.decode(&session, &wrong, None, &mut |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains("[batch, 16, frames, height, width]"), "{error}");
    let few = Pictures { shape: [1, 4, 16, 3], values: &[0.0; 192] };
    let error = wan.encode(&session, &few, None).unwrap_err();
    assert!(error.to_string().contains("at least 8 x 8 pixels"), "{error}");
}
