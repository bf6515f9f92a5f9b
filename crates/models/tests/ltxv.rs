//! LTX-Video: its autoencoder against the reference implementation and in the layouts of all releases, its transformer on
//! every placement. Whole runs are among the reference cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DeviceId, Shape};
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::detect::{Part, Role};
use models::diffusion::ltxv::Ltxv;
use models::diffusion::{Diffusion, Evaluation};
use models::vae::ltxv::Ltxv as Autoencoder;
use models::vae::{Autoencoder as _, FrameTiles, Pictures, Tiling};
use models::{Module, detect};
use placement::RemotePolicy;
use residency::{Residency, Session};
use sampling::{Latent, LatentShape};
use support::*;
use tensor::Tensor;
use testkit::{Report, random_normal};

const NAME: &str = "ltxv_tiny";
const TOLERANCE: f64 = 1e-5;

fn part(checkpoint: &Checkpoint, role: Role) -> Part {
    detect(checkpoint).parts_for(role).next().unwrap().clone()
}

/// An autoencoder all of whose tensors are read.
fn autoencoder(file: &Checkpoint) -> (Autoencoder, Session) {
    let part = part(file, Role::Autoencoder);
    let autoencoder = Autoencoder::read(file, &part).unwrap();
    let manifest = autoencoder.manifest(file).unwrap();
    assert_eq!(part.unused(file, &manifest), [""; 0]);
    (autoencoder, open_on_cpu(manifest))
}

fn decoded(
    autoencoder: &Autoencoder,
    session: &Session,
    latent: &Tensor,
    tiling: Option<Tiling>,
) -> Vec<f32> {
    let mut pictures = Vec::new();
    let mut take = |values: &[f32]| {
        pictures.extend_from_slice(values);
        Ok(())
    };
    autoencoder.decode(session, latent, tiling, &mut take).unwrap();
    pictures
}

#[test]
fn the_autoencoder_equals_the_reference() {
    let (autoencoder, session) = autoencoder(&checkpoint(NAME));
    let sizes =
        (autoencoder.pixels_per_value(), autoencoder.frames_per_value(), autoencoder.latent_channels());
    assert_eq!(sizes, (32, Some(8), 128));
    let golden = golden("ltxv_vae");
    let input = golden.input("decode.input").unwrap();
    let latent = session.lane().unwrap().tensor(input.shape, &input.values()).unwrap();
    let (shape, _) = golden.tensor("decode.image").unwrap();
    let video = decoded(&autoencoder, &session, &latent, None);
    golden.assert_close("decode.image", &shape, &video, TOLERANCE);

    // One tile that covers all is the whole.
    let tiling = Tiling { tile: 8, overlap: 2, frames: Some(FrameTiles { tile: 4, overlap: 1 }) };
    Report::new("decode", &decoded(&autoencoder, &session, &latent, Some(tiling)), &video).assert(1e-6);
    // Of eleven frames nine are whole values of a latent.
    let values = testkit::random_f32(8, 11 * 64 * 64 * 3);
    let pictures = Pictures { shape: [11, 64, 64, 3], values: &values };
    let whole = autoencoder.encode(&session, &pictures, None).unwrap();
    assert_eq!(whole.dims(), [1, 128, 2, 2, 2]);
    let tiled = autoencoder.encode(&session, &pictures, Some(tiling)).unwrap();
    Report::new("encode", &tiled.to_vec().unwrap(), &whole.to_vec().unwrap()).assert(1e-6);
}

/// The tensors of a small autoencoder in the layout of a release.
#[derive(Default)]
struct File(Vec<String>);

impl File {
    fn add(&mut self, name: &str, shape: &[usize]) {
        let scale = if shape.len() > 1 { 0.1 } else { 0.5 };
        let (scale, offset) = if name.ends_with("multiplier") { (0.0, 1000.0) } else { (scale, 0.0) };
        self.0.push(format!(
            r#"{{"name":"{name}","shape":{shape:?},"dtype":"F32","scale":{scale},"offset":{offset}}}"#
        ));
    }

    fn layer(&mut self, name: &str, shape: &[usize]) {
        self.add(&format!("{name}.weight"), shape);
        self.add(&format!("{name}.bias"), &shape[..1]);
    }

    fn kernel(&mut self, name: &str, to: usize, from: usize) {
        self.layer(name, &[to, from, 3, 3, 3]);
    }

    fn time(&mut self, name: &str, width: usize) {
        self.layer(&format!("{name}.timestep_embedder.linear_1"), &[width, 256]);
        self.layer(&format!("{name}.timestep_embedder.linear_2"), &[width, width]);
    }

    fn residual(&mut self, name: &str, from: usize, to: usize) {
        self.kernel(&format!("{name}.conv1.conv"), to, from);
        self.kernel(&format!("{name}.conv2.conv"), to, to);
        if from != to {
            self.layer(&format!("{name}.norm3.norm"), &[from]);
            self.layer(&format!("{name}.conv_shortcut"), &[to, from, 1, 1, 1]);
        }
    }

    fn residuals(&mut self, name: &str, count: usize, width: usize) {
        (0..count).for_each(|i| self.residual(&format!("{name}.res_blocks.{i}"), width, width));
    }

    /// The encoder of the first releases.
    fn first_encoder(&mut self) {
        self.kernel("encoder.conv_in.conv", 4, 48);
        let name = |i: usize| format!("encoder.down_blocks.{i}");
        for (i, count, width) in [(0, 4, 4), (3, 3, 8), (6, 3, 16), (8, 3, 16), (9, 4, 16)] {
            self.residuals(&name(i), count, width);
        }
        for (i, width) in [(1, 4), (4, 8), (7, 16)] {
            self.kernel(&format!("{}.conv", name(i)), width, width);
        }
        self.residual(&name(2), 4, 8);
        self.residual(&name(5), 8, 16);
        self.kernel("encoder.conv_out.conv", 7, 16);
    }

    /// The decoder of releases that are told of noise, with so many residual blocks, from the last to the first.
    fn told_decoder(&mut self, counts: [usize; 4], noisy: &[usize]) {
        self.add("decoder.timestep_scale_multiplier", &[1]);
        self.kernel("decoder.conv_in.conv", 64, 6);
        for (i, count) in counts.into_iter().enumerate() {
            let (name, width) = (format!("decoder.up_blocks.{}", 2 * i), 64 >> i);
            self.residuals(&name, count, width);
            self.time(&format!("{name}.time_embedder"), 4 * width);
            for j in 0..count {
                self.add(&format!("{name}.res_blocks.{j}.scale_shift_table"), &[4, width]);
                for scale in ["per_channel_scale1", "per_channel_scale2"] {
                    if noisy.contains(&i) {
                        self.add(&format!("{name}.res_blocks.{j}.{scale}"), &[width, 1, 1]);
                    }
                }
            }
            if i < 3 {
                self.kernel(&format!("decoder.up_blocks.{}.conv.conv", 2 * i + 1), 4 * width, width);
            }
        }
        self.time("decoder.last_time_embedder", 16);
        self.add("decoder.last_scale_shift_table", &[2, 8]);
        self.kernel("decoder.conv_out.conv", 48, 8);
    }

    fn checkpoint(mut self) -> Checkpoint {
        for name in ["std-of-means", "mean-of-means"] {
            self.add(&format!("per_channel_statistics.{name}"), &[6]);
        }
        let json = format!(
            r#"{{"file":"vae/small.safetensors","config":null,"metadata":null,"tensors":[{}]}}"#,
            self.0.join(",")
        );
        let bytes = testkit::Manifest::parse(&json).unwrap().bytes().unwrap();
        Checkpoint::from_memory(("small.safetensors", bytes.into()), Vec::new()).unwrap()
    }
}

/// Files of releases that do not say their blocks: 0.9.0, 0.9.1 and 0.9.5.
fn releases() -> [(&'static str, Checkpoint); 3] {
    let mut first = File::default();
    first.first_encoder();
    first.kernel("decoder.conv_in.conv", 16, 6);
    for (i, count, width) in [(0, 4, 16), (1, 3, 16), (3, 3, 16), (6, 3, 8), (9, 4, 4)] {
        first.residuals(&format!("decoder.up_blocks.{i}"), count, width);
    }
    for (i, width) in [(2, 16), (5, 8), (8, 4)] {
        first.kernel(&format!("decoder.up_blocks.{i}.conv.conv"), 8 * width, width);
    }
    first.residual("decoder.up_blocks.4", 16, 8);
    first.residual("decoder.up_blocks.7", 8, 4);
    first.kernel("decoder.conv_out.conv", 48, 4);

    let mut second = File::default();
    second.first_encoder();
    // Noise is in all but those that come last in the file's list, which come first here.
    second.told_decoder([8, 7, 6, 5], &[1, 2, 3]);

    let mut third = File::default();
    third.told_decoder([5; 4], &[]);
    third.kernel("encoder.conv_in.conv", 4, 48);
    for (i, (count, width)) in [(4, 4), (6, 8), (6, 16), (2, 32), (2, 64)].into_iter().enumerate() {
        third.residuals(&format!("encoder.down_blocks.{}", 2 * i), count, width);
    }
    for (i, rows, width) in [(1, 2, 4), (3, 8, 8), (5, 4, 16), (7, 8, 32)] {
        third.kernel(&format!("encoder.down_blocks.{i}.conv.conv"), rows, width);
    }
    third.kernel("encoder.conv_out.conv", 7, 64);
    [("0.9.0", first), ("0.9.1", second), ("0.9.5", third)].map(|(name, file)| (name, file.checkpoint()))
}

#[test]
fn the_layouts_of_all_releases_are_read() {
    for (name, file) in releases() {
        let part = part(&file, Role::Autoencoder);
        let autoencoder = Autoencoder::read(&file, &part).unwrap();
        let manifest = autoencoder.manifest(&file).unwrap();
        assert_eq!(part.unused(&file, &manifest), [""; 0], "{name}");
        let session = open_on_cpu(manifest);
        assert_eq!(autoencoder.config().time_scale, (name != "0.9.0").then_some(1000.0), "{name}");
        let values = testkit::random_f32(3, 9 * 64 * 64 * 3);
        let pictures = Pictures { shape: [9, 64, 64, 3], values: &values };
        let latent = autoencoder.encode(&session, &pictures, None).unwrap();
        assert_eq!(latent.dims(), [1, 6, 2, 2, 2], "{name}");
        assert!(latent.to_vec().unwrap().iter().all(|value| value.is_finite()), "{name}");
        let video = decoded(&autoencoder, &session, &latent, None);
        assert_eq!(video.len(), 9 * 64 * 64 * 3, "{name}");
        // The noise that a decoder is told of is the same in every run.
        assert!(video == decoded(&autoencoder, &session, &latent, None), "{name}");
        assert!(video.iter().any(|value| (0.01..0.99).contains(value)), "{name}");
    }
}

/// Two evaluations of one step with texts of their own, one of them half hidden, as bits.
fn step(model: &Ltxv, session: &Session, keyframes: &[f32]) -> Vec<Vec<u32>> {
    let shape = LatentShape { batch: 1, channels: 128, frames: 3, height: 2, width: 3 };
    let conds = [1, 2].map(|seed| {
        let text = Array { shape: vec![1, 12, 4096], values: random_normal(seed, 12 * 4096) };
        let mut cond = Cond::text(text, None);
        cond.attention_mask = Some(Arc::new((0..12).map(|at| at < 4 + 4 * seed).collect()));
        cond.keyframes = keyframes.to_vec();
        cond.frame_rate = Some(24.0);
        cond
    });
    let conditioned = conds.each_ref().map(Conditioned::whole);
    let mask = (0..shape.values()).map(|at| if at / 6 % 3 == 0 { 0.0 } else { 1.0 }).collect();
    let mask = Latent::new(vec![1, 128, 3, 2, 3], mask).unwrap();
    let scene = Scene { mask: Some(&mask), ..Scene::empty(shape) };
    let run = model.start(session, &conditioned, &scene).unwrap();
    let latent = random_normal(5, shape.values());
    let latent = session.lane().unwrap().tensor([1, 128, 3, 2, 3], &latent).unwrap();
    let both = [0, 1].map(|cond| Evaluation::new(cond, &latent, 0.64));
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let together: Vec<Vec<u32>> = run.forward(&both).unwrap().iter().map(bits).collect();
    assert_ne!(together[0], together[1]);
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    together
}

#[test]
fn placement_and_company_change_no_bit() {
    let file = checkpoint(NAME);
    let model = Ltxv::read(&file, &part(&file, Role::Diffusion)).unwrap();
    let expected = step(&model, &open_on_cpu(model.manifest(&file).unwrap()), &[]);
    for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
        let remote = if text.contains("sim:1") { RemotePolicy::InPlace } else { RemotePolicy::Auto };
        let residency = Residency::new(machine(&["512mb@20gbps"; 2]));
        let manifest = model.manifest(&file).unwrap();
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
        let session = open(&residency, manifest, plan);
        assert!(step(&model, &session, &[]) == expected, "{text}");
    }
}

#[test]
fn frames_that_lead_stand_elsewhere_and_leave_some_of_the_video() {
    let file = checkpoint(NAME);
    let model = Ltxv::read(&file, &part(&file, Role::Diffusion)).unwrap();
    let manifest = model.manifest(&file).unwrap();
    let weights: Vec<(String, Shape)> =
        manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
    let map = model.patch_keys(&weights);
    let weight = "transformer_blocks.1.attn2.to_k.weight";
    for key in
        ["diffusion_model.transformer_blocks.1.attn2.to_k", "transformer.transformer_blocks.1.attn2.to_k"]
    {
        assert_eq!(map.find(key).unwrap().weight, weight, "{key}");
    }
    let session = open_on_cpu(manifest);
    // The last frame stands at the sixteenth frame of the video by itself.
    assert_eq!(step(&model, &session, &[16.0]), step(&model, &session, &[]));
    assert_ne!(step(&model, &session, &[3.0]), step(&model, &session, &[]));
    let text = Array { shape: vec![1, 4, 4096], values: vec![0.0; 4 * 4096] };
    let cond = Cond { keyframes: vec![0.0, 8.0], ..Cond::text(text, None) };
    let shape = LatentShape { batch: 1, channels: 128, frames: 2, height: 1, width: 1 };
    let run = model.start(&session, &[Conditioned::whole(&cond)], &Scene::empty(shape)).unwrap();
    let latent = session.lane().unwrap().full([1, 128, 2, 1, 1], 0.0).unwrap();
    let told = run.forward(&[Evaluation::new(0, &latent, 1.0)]).unwrap_err().to_string();
    assert!(told.contains("more frames than the 2 that lead it"), "{told}");
}
