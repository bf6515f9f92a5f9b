//! `gantry bench cpu`: whole-model steps on the CPU, ours and PyTorch's in turns, with the same weights, the
//! same precision and the same number of threads. Each side runs in a process of its own, so that its memory
//! and its processor time are its own.

pub(super) mod ours;
pub(super) mod report;
mod side;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use meta::{DeviceId, Encoding, Shape};
use serde_json::{Value, json};
use testkit::{Manifest, SafetensorsWriter, ScratchDir, random_normal};

use crate::bench::{is_wanted, need_rows, show};
use crate::cli::BenchArgs;
use crate::machine::Machine;

use super::step;
use report::{Measured, Report, Row};
use side::Side;

/// One double and one single block at FLUX's full width.
const FLUX: &str = include_str!("../../../testkit/data/manifests/flux_dev_d1s1.json");
/// The autoencoder of FLUX at its full size.
const AUTOENCODER: &str = include_str!("../../../testkit/data/manifests/flux_ae.json");
/// Width and height of the picture.
pub(super) const PIXELS: usize = 512;
/// Text tokens of a prompt.
pub(super) const TEXT: usize = 512;
/// Steps of each side that count, in turns.
const ROUNDS: usize = 5;
/// The largest relative error between the sides.
const TOLERANCE: f64 = 1e-4;

/// Tokens of a prompt, width of a token and width of the latent of the UNet's step, which has two evaluations.
const UNET_TEXT: usize = 77;
const UNET_WIDTH: usize = 768;
const UNET_SIDE: usize = 256 / 8;

/// Tokens of a prompt of Z-Image, and the width of a token.
const Z_IMAGE_TEXT: usize = 128;
const Z_IMAGE_WIDTH: usize = 2560;
/// Z-Image at its full width, with two of each kind of block.
const Z_IMAGE: Weights = Weights::Released("z_image", 2);

/// One model, stored in one way.
struct Case {
    name: &'static str,
    network: &'static str,
    weights: Weights,
    stored: &'static str,
}

/// Where the tensors of a model are listed.
#[derive(Clone, Copy)]
enum Weights {
    /// In the text of a manifest.
    Manifest(&'static str),
    /// In the released size of the family of this short name, of each kind of block at most so many.
    Released(&'static str, usize),
}

const CASES: [Case; 6] = [
    Case {
        name: "FLUX, one block each, f32 weights",
        network: "flux",
        weights: Weights::Manifest(FLUX),
        stored: "F32",
    },
    Case {
        name: "FLUX, one block each, bf16 weights",
        network: "flux",
        weights: Weights::Manifest(FLUX),
        stored: "BF16",
    },
    Case {
        name: "autoencoder, decoding",
        network: "decoder",
        weights: Weights::Manifest(AUTOENCODER),
        stored: "F32",
    },
    Case {
        name: "SD1.5, whole UNet, 256 pixels, cfg, f32 weights",
        network: "unet",
        weights: Weights::Released("sd15", usize::MAX),
        stored: "F32",
    },
    Case {
        name: "Z-Image, two layers, 512 pixels, f32 weights",
        network: "z_image",
        weights: Z_IMAGE,
        stored: "F32",
    },
    Case {
        name: "Z-Image, two layers, 512 pixels, bf16 weights",
        network: "z_image",
        weights: Z_IMAGE,
        stored: "BF16",
    },
];

impl Weights {
    /// The manifest, as JSON.
    fn manifest(self) -> Result<Value> {
        let (key, most_blocks) = match self {
            Weights::Manifest(text) => return Ok(serde_json::from_str(text)?),
            Weights::Released(key, most_blocks) => (key, most_blocks),
        };
        let mut families = models::diffusion::FAMILIES.iter();
        let family = families.find(|family| family.key == key);
        let family = family.with_context(|| format!("there is no family {key}"))?;
        let tensor = |(name, shape): &(String, Shape)| {
            let (scale, offset) = step::amplitude(name, shape.dims());
            json!({"name": name, "dtype": "F32", "shape": shape.dims(), "scale": scale, "offset": offset})
        };
        let tensors: Vec<Value> = (family.released.tensors)(most_blocks).iter().map(tensor).collect();
        Ok(json!({"file": format!("{key}.safetensors"), "tensors": tensors}))
    }
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    if args.answer {
        return ours::answer(machine);
    }
    ensure!(args.device == DeviceId::CPU, "bench cpu measures the CPU: leave --device out");
    let threads = std::thread::available_parallelism().context("asking for the number of cores")?.get();
    let mut report = Report::new(machine, threads);
    let cases: Vec<&Case> = CASES.iter().filter(|case| is_wanted(&args.only, case.name)).collect();
    need_rows(args, !cases.is_empty())?;
    for case in cases {
        let dir = ScratchDir::new()?;
        let files = Files::write(dir.path(), case)?;
        let ours = Side::ours(threads)?;
        report.row(measure(case, &files, ours, peer(args, threads)?)?);
    }
    show(args, &report, Report::to_text)
}

/// PyTorch, if it is wanted and there; it must be there if it was asked for by name.
fn peer(args: &BenchArgs, threads: usize) -> Result<Result<Side, String>> {
    if args.python == "none" {
        return Ok(Err("left out".into()));
    }
    match Side::torch(&args.python, threads) {
        Err(error) if args.with_torch => {
            Err(error.context("--with-torch: name a Python that has PyTorch with --python"))
        }
        other => Ok(other.map_err(|error| format!("{error:#}"))),
    }
}

/// What both sides read.
struct Files {
    dir: PathBuf,
    model: PathBuf,
    inputs: PathBuf,
}

impl Files {
    fn write(dir: &Path, case: &Case) -> Result<Files> {
        let mut manifest = case.weights.manifest()?;
        for tensor in manifest["tensors"].as_array_mut().context("the manifest lists no tensors")? {
            tensor["dtype"] = json!(case.stored);
        }
        let model = Manifest::parse(&manifest.to_string())?.write_to(dir)?;
        let inputs = dir.join("inputs.safetensors");
        let side = PIXELS / 8;
        let mut writer = SafetensorsWriter::new();
        for (seed, (name, shape)) in inputs_of(case.network, side).into_iter().enumerate() {
            let values = random_normal(seed as u64 + 1, shape.count());
            writer = writer.values(name, Encoding::F32, shape, &values)?;
        }
        writer.write(&inputs)?;
        Ok(Files { dir: dir.to_owned(), model, inputs })
    }

    fn question(&self, case: &Case) -> Value {
        json!({"do": "load", "network": case.network, "model": self.model, "inputs": self.inputs})
    }
}

/// The inputs of a network for a latent of this width and height.
fn inputs_of(network: &str, side: usize) -> Vec<(&'static str, Shape)> {
    let latent = ("latent", Shape::from([1, 16, side, side]));
    match network {
        "flux" => {
            vec![latent, ("context", Shape::from([1, TEXT, 4096])), ("pooled", Shape::from([1, 768]))]
        }
        "unet" => vec![
            ("latent", Shape::from([1, 4, UNET_SIDE, UNET_SIDE])),
            ("context", Shape::from([2, UNET_TEXT, UNET_WIDTH])),
        ],
        "z_image" => vec![latent, ("context", Shape::from([1, Z_IMAGE_TEXT, Z_IMAGE_WIDTH]))],
        _ => vec![latent],
    }
}

/// Runs both sides in turns and compares what they computed.
fn measure(case: &Case, files: &Files, mut ours: Side, peer: Result<Side, String>) -> Result<Row> {
    let (mut peer, missing) = match peer {
        Ok(peer) => (Some(peer), None),
        Err(why) => (None, Some(why)),
    };
    let mut measured = Measured::default();
    let mut theirs = Measured::default();
    ours.ask(&files.question(case))?;
    measured.start(&ours.ask(&json!({"do": "warm"}))?);
    if let Some(peer) = &mut peer {
        peer.ask(&files.question(case))?;
        theirs.start(&peer.ask(&json!({"do": "warm"}))?);
    }
    for _ in 0..ROUNDS {
        measured.step(&ours.ask(&json!({"do": "step"}))?)?;
        if let Some(peer) = &mut peer {
            theirs.step(&peer.ask(&json!({"do": "step"}))?)?;
        }
    }
    let output = measured.finish(&mut ours, &files.dir.join("ours.f32"))?;
    let mut row = Row::new(case.name, measured, peer.as_ref().map(|peer| peer.version().to_owned()), missing);
    if let Some(mut peer) = peer {
        let wanted = theirs.finish(&mut peer, &files.dir.join("theirs.f32"))?;
        row.compare(theirs, testkit::Report::new(case.name, &output, &wanted).norm);
        if row.relative_error.is_none_or(|error| error >= TOLERANCE) {
            bail!(
                "{}: ours and PyTorch's results differ by {:?}, more than {TOLERANCE:.0e}",
                case.name,
                row.relative_error
            );
        }
    }
    Ok(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_lists_its_tensors_and_has_inputs() {
        for case in &CASES {
            let manifest = case.weights.manifest().unwrap();
            assert!(!manifest["tensors"].as_array().unwrap().is_empty(), "{}", case.name);
            assert!(!inputs_of(case.network, PIXELS / 8).is_empty(), "{}", case.name);
        }
    }

    #[test]
    fn a_released_model_is_cut_to_its_first_blocks() {
        let manifest = Z_IMAGE.manifest().unwrap();
        let names =
            manifest["tensors"].as_array().unwrap().iter().filter_map(|tensor| tensor["name"].as_str());
        let blocks: Vec<&str> = names.filter_map(|name| name.strip_suffix(".attention.qkv.weight")).collect();
        let wanted = ["context_refiner.0", "context_refiner.1", "noise_refiner.0", "noise_refiner.1"];
        assert_eq!(blocks, [&wanted[..], &["layers.0", "layers.1"]].concat());
    }
}
