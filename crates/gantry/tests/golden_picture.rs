//! The whole way from files to a picture, through the binary, against the picture that ComfyUI 0.7.0 wrote
//! for the same files, prompt and seed. The files are regenerated; they draw noise, but always the same.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::{Manifest, ScratchDir};

/// The prompt of the reference, with a weight in it.
const PROMPT: &str = "a photo of a cat sitting on a (red:1.2) chair, 4k";

struct Files {
    dir: ScratchDir,
}

impl Files {
    fn write(names: &[&str]) -> Files {
        let dir = ScratchDir::new().unwrap();
        for name in names {
            Manifest::bundled(name).unwrap().write_to(dir.path()).unwrap();
        }
        Files { dir }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.dir.path().join(file)
    }

    /// The LoRA for the model, at a strength.
    fn lora(&self, strength: &str) -> String {
        let file = self.path("loras/flux_dev_micro_lora_kohya.safetensors");
        format!("{}:{strength}", file.display())
    }

    /// Runs `gantry draw` with the reference's settings.
    fn draw(&self, model: &str, more: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        command.args(["draw", PROMPT, "--size", "64x64", "--steps", "4", "--seed", "42", "--cpu"]);
        command.arg("--model").arg(self.path(model));
        command.arg("--clip-l").arg(self.path("text_encoders/clip_l_tiny.safetensors"));
        command.arg("--t5").arg(self.path("text_encoders/t5xxl_tiny.safetensors"));
        command.arg("--vae").arg(self.path("vae/flux_ae.safetensors"));
        command.args(more).output().unwrap()
    }

    fn picture(&self, model: &str, more: &[&str]) -> Vec<u8> {
        let output = self.draw(model, more);
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        pixels(&output.stdout)
    }
}

fn pixels(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width, info.height, info.color_type), (64, 64, png::ColorType::Rgb));
    pixels
}

fn mean_difference(a: &[u8], b: &[u8]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a.abs_diff(*b))).sum::<f64>() / a.len() as f64
}

#[test]
fn the_same_picture_as_comfyui_wherever_the_weights_are() {
    let files = Files::write(&[
        "flux_dev_micro",
        "flux_dev_micro-Q8_0",
        "flux_dev_micro_lora_kohya",
        "clip_l_tiny",
        "t5xxl_tiny",
        "flux_ae",
    ]);
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/flux_dev_micro.png");
    let reference = pixels(&std::fs::read(reference).unwrap());
    let model = "diffusion_models/flux_dev_micro.safetensors";
    let resident = files.picture(model, &[]);
    let largest = resident.iter().zip(&reference).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(largest <= 1, "a value differs by {largest}");
    assert!(mean_difference(&resident, &reference) < 0.01);

    let sims = ["--sim-device", "2gb@20gbps", "--sim-device", "2gb@20gbps"];
    for alloc in ["", "sim:0,1.6mb;cpu,*", "sim:0,2mb;sim:1,1.2mb;cpu,*"] {
        let more = [&sims[..], &["--alloc", alloc]].concat();
        assert!(files.picture(model, &more) == resident, "'{alloc}' gives other bits");
    }
    let lora = files.lora("0.5");
    let patched = files.picture(model, &["--lora", &lora]);
    assert!(patched != resident, "the LoRA changes nothing");
    let more = [&sims[..], &["--alloc", "sim:0,1.6mb;cpu,*", "--lora", &lora]].concat();
    assert!(files.picture(model, &more) == patched, "streamed weights give other bits with the LoRA");
    let quantised = files.picture("diffusion_models/flux_dev_micro-Q8_0.gguf", &[]);
    let difference = mean_difference(&quantised, &resident);
    assert!(difference > 0.0 && difference < 2.0, "Q8_0 differs by {difference} of 255");
}

#[test]
fn wrong_files_are_named_with_what_they_seem_to_be() {
    let files = Files::write(&["clip_l_tiny", "flux_dev_micro"]);
    let clip = files.path("text_encoders/clip_l_tiny.safetensors");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["draw", "x", "--cpu", "-o", "x.png"]);
    for flag in ["--model", "--clip-l", "--t5", "--vae"] {
        command.arg(flag).arg(&clip);
    }
    let output = command.output().unwrap();
    assert!(!output.status.success());
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("not a diffusion model") && error.contains("CLIP-L"), "{error}");
    let output = Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["draw", "x", "--cpu", "-o", "x.png", "--model"])
        .arg(files.path("diffusion_models/flux_dev_micro.safetensors"))
        .output()
        .unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("no CLIP-L text encoder") && error.contains("--clip-l FILE"), "{error}");
}

#[test]
fn a_model_that_paints_pixels_asks_for_no_autoencoder() {
    let files = Files::write(&["t5xxl_tiny", "chroma_radiance_tiny"]);
    let output = Command::new(env!("CARGO_BIN_EXE_gantry"))
        .args(["draw", PROMPT, "--size", "64x64", "--steps", "1", "--seed", "42", "--cpu", "--model"])
        .arg(files.path("diffusion_models/chroma_radiance_tiny.safetensors"))
        .arg("--t5")
        .arg(files.path("text_encoders/t5xxl_tiny.safetensors"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let painted = pixels(&output.stdout);
    assert!(painted.iter().any(|value| *value != painted[0]), "all pixels are equal");
}
