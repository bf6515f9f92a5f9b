//! The KL autoencoder against the reference implementation: module by module, both ways, and in tiles.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use meta::{DeviceId, Encoding, Shape};
use models::Module;
use models::vae::Tiling;
use models::vae::kl::Kl;
use models::{Probe, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use support::*;
use tensor::Tensor;
use testkit::{Golden, Procedural, Report, SafetensorsWriter, random_normal};

const TOLERANCE: f64 = 1e-4;

fn read(checkpoint: &Checkpoint) -> Kl {
    Kl::read(checkpoint, &detect(checkpoint)).unwrap()
}

fn open_kl(name: &str) -> (Kl, Session) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let kl = read(&checkpoint);
    let manifest = kl.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (kl, open_on_cpu(manifest))
}

fn assert_tensor(golden: &Golden, name: &str, tensor: &Tensor) {
    golden.assert_close(name, tensor.shape(), &tensor.to_vec().unwrap(), TOLERANCE);
}

/// Decodes and encodes what the golden file has, and counts the modules compared.
fn compare(kl: &Kl, session: &Session, golden: &Golden) -> usize {
    let lane = session.lane().unwrap();
    let latent = golden.input("decode.input").unwrap();
    let latent = lane.tensor(latent.shape, &latent.values()).unwrap();
    let mut seen = 0;
    let mut see = |name: &str, value: &Tensor| {
        let stored = format!("out.{name}");
        if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
            assert_tensor(golden, &stored, value);
            seen += 1;
        }
        if name == "conv_out" && golden.names().any(|n| n == "decode.raw") {
            assert_tensor(golden, "decode.raw", value);
        }
    };
    let image = kl.decode_whole(session, &latent, &mut Probe::new(&mut see)).unwrap();
    assert_tensor(golden, "decode.image", &image);
    assert_eq!(kl.decode(session, &latent).unwrap().to_vec().unwrap(), image.to_vec().unwrap());

    let (shape, pixels) = golden.tensor("encode.pixels").unwrap();
    let encoded = kl.encode(session, &lane.tensor(shape, &pixels).unwrap()).unwrap();
    assert_tensor(golden, "encode.latent", &encoded);
    seen
}

#[test]
fn the_flux_autoencoder_equals_the_reference_whole_and_in_tiles() {
    let (kl, session) = open_kl("flux_ae");
    assert_eq!((kl.config().latent_channels, kl.config().factor()), (16, 8));
    // Three residual blocks, the enlargement, both ends, the last norm, and one module inside a block.
    assert_eq!(compare(&kl, &session, &golden("flux_ae")), 3 + 1 + 3 + 1);

    let golden = golden("flux_ae_tiled");
    let values = Procedural::new("input.latent", 3.0, 0.0).values(16 * 12 * 12);
    let latent = session.lane().unwrap().tensor([1, 16, 12, 12], &values).unwrap();
    assert_tensor(&golden, "decode.image", &kl.decode(&session, &latent).unwrap());
    let tiled = kl.decode_tiled(&session, &latent, Tiling::square(8, 2)).unwrap();
    assert_tensor(&golden, "decode_tiled.image", &tiled);
}

#[test]
fn the_sd_autoencoder_equals_the_reference() {
    let (kl, session) = open_kl("kl_vae_sd15");
    assert_eq!((kl.config().latent_channels, kl.config().quantised), (4, true));
    assert_eq!(compare(&kl, &session, &golden("kl_vae_sd15")), 3 + 1 + 3 + 2);
}

#[test]
fn an_autoencoder_of_patches_equals_the_reference() {
    let (kl, session) = open_kl("flux2_vae");
    assert_eq!((kl.config().latent_channels, kl.config().factor()), (128, 16));
    assert_eq!(compare(&kl, &session, &golden("flux2_vae")), 3 + 1 + 3 + 4);
}

#[test]
fn a_decoder_with_layers_over_frames_equals_the_reference() {
    let mut manifest = testkit::Manifest::bundled("svd_micro").unwrap();
    manifest.tensors.retain(|tensor| tensor.name.starts_with("first_stage_model."));
    let file = Checkpoint::from_memory(("svd", manifest.bytes().unwrap().into()), Vec::new()).unwrap();
    let kl = read(&file);
    assert!(kl.config().has_frames);
    let manifest = kl.manifest(&file).unwrap();
    assert_eq!(detect(&file).parts[0].unused(&file, &manifest), [""; 0]);
    let (session, golden) = (open_on_cpu(manifest), golden("svd_ae"));
    let latent = golden.input("decode.input").unwrap();
    let latent = session.lane().unwrap().tensor(latent.shape, &latent.values()).unwrap();
    let mut seen = Vec::new();
    let mut see = |name: &str, value: &Tensor| {
        let stored = format!("out.{name}");
        if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
            assert_tensor(&golden, &stored, value);
            seen.push(name.to_owned());
        }
    };
    let image = kl.decode_whole(&session, &latent, &mut Probe::new(&mut see)).unwrap();
    assert_eq!(seen, ["conv_in", "norm_out", "conv_out"]);
    assert_tensor(&golden, "decode.image", &image);
    // All frames are decoded together, and one tile that has everything is the same.
    assert_eq!(kl.decode(&session, &latent).unwrap().to_vec().unwrap(), image.to_vec().unwrap());
    let tiled = kl.decode_tiled(&session, &latent, Tiling::square(16, 4)).unwrap();
    assert_tensor(&golden, "decode.image", &tiled);
}

/// A small autoencoder with two stages of one block and 32 and 64 channels.
fn small(prefix: &str) -> Checkpoint {
    let mut writer = SafetensorsWriter::new();
    let mut add = |name: &str, dims: &[usize]| {
        let shape = Shape::new(dims).unwrap();
        let fan_in: usize = dims[1..].iter().product();
        let (scale, offset) = if dims.len() == 1 { (0.1, 1.0) } else { (1.0 / (fan_in as f32).sqrt(), 0.0) };
        let offset = if name.ends_with("bias") { 0.0 } else { offset };
        let seed = name.bytes().fold(7u64, |seed, byte| seed.wrapping_mul(31).wrapping_add(byte.into()));
        let values: Vec<f32> =
            random_normal(seed, shape.count()).iter().map(|v| v * scale + offset).collect();
        let full = format!("{prefix}{name}");
        writer = std::mem::take(&mut writer).values(full, Encoding::F32, shape, &values).unwrap();
    };
    let mut layer = |name: &str, dims: &[usize]| {
        add(&format!("{name}.weight"), dims);
        add(&format!("{name}.bias"), &dims[..1]);
    };
    let residual = |layer: &mut dyn FnMut(&str, &[usize]), name: &str, from: usize, to: usize| {
        layer(&format!("{name}.norm1"), &[from]);
        layer(&format!("{name}.conv1"), &[to, from, 3, 3]);
        layer(&format!("{name}.norm2"), &[to]);
        layer(&format!("{name}.conv2"), &[to, to, 3, 3]);
        if from != to {
            layer(&format!("{name}.nin_shortcut"), &[to, from, 1, 1]);
        }
    };
    for (half, z) in [("decoder", 4), ("encoder", 8)] {
        residual(&mut layer, &format!("{half}.mid.block_1"), 64, 64);
        residual(&mut layer, &format!("{half}.mid.block_2"), 64, 64);
        layer(&format!("{half}.mid.attn_1.norm"), &[64]);
        for part in ["q", "k", "v", "proj_out"] {
            layer(&format!("{half}.mid.attn_1.{part}"), &[64, 64, 1, 1]);
        }
        let (inner, outer) = if half == "decoder" { ([64, z], [3, 32]) } else { ([32, 3], [z, 64]) };
        layer(&format!("{half}.conv_in"), &[inner[0], inner[1], 3, 3]);
        layer(&format!("{half}.norm_out"), &[outer[1]]);
        layer(&format!("{half}.conv_out"), &[outer[0], outer[1], 3, 3]);
    }
    residual(&mut layer, "decoder.up.1.block.0", 64, 64);
    layer("decoder.up.1.upsample.conv", &[64, 64, 3, 3]);
    residual(&mut layer, "decoder.up.0.block.0", 64, 32);
    residual(&mut layer, "encoder.down.0.block.0", 32, 32);
    layer("encoder.down.0.downsample.conv", &[32, 32, 3, 3]);
    residual(&mut layer, "encoder.down.1.block.0", 32, 64);
    let bytes = writer.finish().unwrap();
    Checkpoint::from_memory(("small", bytes.into()), Vec::new()).unwrap()
}

/// A session on a simulated device with this much memory.
fn open_on_sim(checkpoint: &Checkpoint, memory: &str, allocation: &str, remote: RemotePolicy) -> Session {
    let manifest = read(checkpoint).manifest(checkpoint).unwrap();
    let residency = Residency::new(machine(&[memory, memory]));
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), allocation, remote);
    open(&residency, manifest, plan)
}

/// Bytes that a session's device had in use at most while `work` ran, beside what it had before.
fn peak_of<T>(session: &Session, work: impl FnOnce() -> T) -> (u64, T) {
    let ledger = session.lane().unwrap().device().ledger();
    let before = ledger.report().used;
    ledger.take_peak();
    let result = work();
    session.lane().unwrap().stream().synchronize().unwrap();
    (ledger.report().peak - before, result)
}

#[test]
fn too_little_memory_for_the_whole_means_tiles() {
    let checkpoint = small("");
    let kl = read(&checkpoint);
    let session = open_on_sim(&checkpoint, "1gb@20gbps", "", RemotePolicy::Auto);
    let ledger = session.lane().unwrap().device().ledger();
    let lane = session.lane().unwrap();
    let latent = lane.tensor([1, 4, 8, 256], &random_normal(5, 4 * 8 * 256)).unwrap();
    let image = lane.tensor([1, 16, 512, 3], &testkit::random_f32(5, 16 * 512 * 3)).unwrap();
    let tiling = Tiling::square(64, 16);

    let (whole_peak, whole) = peak_of(&session, || kl.decode(&session, &latent).unwrap().to_vec().unwrap());
    let (tiled_peak, tiled) =
        peak_of(&session, || kl.decode_tiled(&session, &latent, tiling).unwrap().to_vec().unwrap());
    assert!(tiled_peak * 2 < whole_peak, "{tiled_peak} {whole_peak}");
    let encoded = kl.encode_tiled(&session, &image, tiling).unwrap();
    assert_eq!(encoded.dims(), [1, 4, 8, 256]);
    assert_ne!(whole, tiled);

    ledger.set_budget(ledger.report().used + (whole_peak + tiled_peak) / 2);
    let error = kl.decode_whole(&session, &latent, &mut Probe::none());
    assert!(error.is_err_and(|error| error.is_out_of_memory()), "the whole should not fit");
    assert_eq!(kl.decode(&session, &latent).unwrap().to_vec().unwrap(), tiled);
    assert_eq!(kl.encode(&session, &image).unwrap().to_vec().unwrap(), encoded.to_vec().unwrap());
    ledger.set_budget(ledger.report().used + tiled_peak / 64);
    assert!(kl.decode(&session, &latent).is_err_and(|error| error.is_out_of_memory()));
}

#[test]
fn one_tile_that_covers_all_is_the_whole() {
    let checkpoint = small("");
    let kl = read(&checkpoint);
    let session = open_on_cpu(kl.manifest(&checkpoint).unwrap());
    let lane = session.lane().unwrap();
    let tiling = Tiling::square(32, 4);
    let image = lane.tensor([2, 32, 20, 3], &testkit::random_f32(8, 2 * 32 * 20 * 3)).unwrap();
    let (got, want) =
        (kl.encode_tiled(&session, &image, tiling).unwrap(), kl.encode(&session, &image).unwrap());
    assert_eq!(got.dims(), want.dims());
    Report::new("encode", &got.to_vec().unwrap(), &want.to_vec().unwrap()).assert(1e-6);
    let (got, want) =
        (kl.decode_tiled(&session, &want, tiling).unwrap(), kl.decode(&session, &want).unwrap());
    Report::new("decode", &got.to_vec().unwrap(), &want.to_vec().unwrap()).assert(1e-6);
}

#[test]
fn the_same_bits_under_a_prefix_and_on_every_placement() {
    let values = random_normal(6, 2 * 4 * 6 * 9);
    let mut first: Option<Vec<f32>> = None;
    for prefix in ["", "vae.", "first_stage_model."] {
        let checkpoint = small(prefix);
        let kl = read(&checkpoint);
        for (allocation, remote) in [
            ("", RemotePolicy::Auto),
            ("sim:0,30%;cpu,70%", RemotePolicy::Auto),
            ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace),
        ] {
            let session = open_on_sim(&checkpoint, "256mb@20gbps", allocation, remote);
            let latent = session.lane().unwrap().tensor([2, 4, 6, 9], &values).unwrap();
            let image = kl.decode(&session, &latent).unwrap();
            let back = kl.encode(&session, &image).unwrap();
            let both = [image.to_vec().unwrap(), back.to_vec().unwrap()].concat();
            assert_eq!(&both, first.get_or_insert_with(|| both.clone()), "{prefix} {allocation}");
        }
    }
}

#[test]
fn sizes_that_are_no_multiple_are_cut_at_both_sides() {
    let checkpoint = small("");
    let kl = read(&checkpoint);
    let session = open_on_cpu(kl.manifest(&checkpoint).unwrap());
    let lane = session.lane().unwrap();
    let image = lane.tensor([1, 9, 13, 3], &testkit::random_f32(8, 9 * 13 * 3)).unwrap();
    let cut = image.slice(1, 0, 8).unwrap().slice(2, 0, 12).unwrap();
    let (got, want) = (kl.encode(&session, &image).unwrap(), kl.encode(&session, &cut).unwrap());
    assert_eq!(got.dims(), [1, 4, 4, 6]);
    Report::new("cut", &got.to_vec().unwrap(), &want.to_vec().unwrap()).assert(0.0);
    let wrong = lane.full([1, 1, 13, 3], 0.0).unwrap();
    assert!(kl.encode(&session, &wrong).is_err_and(|e| e.to_string().contains("at least 2 x 2 pixels")));
    let wrong = lane.full([1, 16, 4, 4], 0.0).unwrap();
    assert!(kl.decode(&session, &wrong).is_err_and(|e| e.to_string().contains("[batch, 4, height, width]")));
}
