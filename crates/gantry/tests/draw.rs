//! `gantry draw` through the binary: the demo model's files in every combination that flags allow, pipes, and the
//! workflow that every picture carries.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the guides' test uses the rest")]
mod demo_files;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use demo_files::demo_file;
use meta::{Encoding, Shape};
use serde_json::Value;
use testkit::{SafetensorsWriter, ScratchDir};

const CAPTION: &str = "a red circle above a blue square";
/// Two simulated devices, and a split of the model over both and host memory.
const SPREAD: [&str; 6] =
    ["--sim-device", "256mb@20gbps", "--sim-device", "256mb@20gbps", "--alloc", "sim:0,2mb;sim:1,1mb;cpu,*"];

/// With so much host memory, a part of the model has to be read from the disk at every step.
const SHORT: [&str; 6] =
    ["--sim-device", "256mb@20gbps", "--alloc", "sim:0,0%;cpu,*", "--host-memory", "4500kb"];

/// Where host memory is short the picture is the same, with a LoRA and without, and the plan says what is read.
#[test]
fn a_model_larger_than_host_memory_is_read_from_the_disk() {
    let install = Install::new();
    let model = install.file("diffusion_models/flux.safetensors");
    let (clip, t5) = (
        install.file("text_encoders/clip/model.safetensors"),
        install.file("text_encoders/t5/model.safetensors"),
    );
    let (vae, lora) = (install.file("vae/ae.safetensors"), install.file("loras/outline.safetensors:1"));
    let parts = ["--model", &model, "--clip-l", &clip, "--t5", &t5, "--vae", &vae];
    for lora in [&[][..], &["--lora", &lora]] {
        let whole = install.draw(&[&parts[..], lora].concat());
        let read = install.draw(&[&parts[..], lora, &SHORT].concat());
        assert!(pixels(&whole) == pixels(&read), "{lora:?} gives other bits");
    }
    let plan = |flags: &[&str]| {
        let arguments = [&["plan", &model, "--size", "128x128"], flags].concat();
        let output = succeeded(&mut gantry(install.dir.path(), &arguments));
        String::from_utf8(output.stdout).unwrap()
    };
    let shown: Value = serde_json::from_str(&plan(&[&SHORT[..], &["--json"]].concat())).unwrap();
    let read: Vec<&Value> = shown["blocks"].as_array().unwrap().iter().collect();
    let read: u64 =
        read.iter().filter(|it| it["from_disk"] == true).map(|it| it["bytes"].as_u64().unwrap()).sum();
    let host = shown["devices"].as_array().unwrap().iter().find(|device| device["device"] == "cpu").unwrap();
    assert!(read > 0 && host["disk_bytes"] == read, "{shown:#}");
    let taken = host["weight_bytes"].as_u64().unwrap() - read + host["ring_bytes"].as_u64().unwrap();
    assert!(taken <= 4500 << 10, "{shown:#}");
    assert_eq!(
        shown["reading"]["buffers"].as_u64().unwrap() * shown["reading"]["buffer_bytes"].as_u64().unwrap(),
        host["ring_bytes"]
    );
    let text = plan(&SHORT);
    assert!(text.contains("read from the disk at every step") && text.contains(" disk "), "{text}");
    // What has room is not read.
    assert!(!plan(&SHORT[..4]).contains("from the disk"));
}

fn gantry(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.arg("--cpu").args(arguments).current_dir(folder);
    command
}

#[track_caller]
fn succeeded(command: &mut Command) -> Output {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn pixels(png: &[u8]) -> Vec<u8> {
    let mut reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels
}

/// The workflow in a picture.
fn workflow(png: &[u8]) -> Value {
    let reader = png::Decoder::new(std::io::Cursor::new(png)).read_info().unwrap();
    let texts = &reader.info().uncompressed_latin1_text;
    let keys: Vec<&str> = texts.iter().map(|text| text.keyword.as_str()).collect();
    assert_eq!(keys, ["prompt"]);
    serde_json::from_str(&texts[0].text).unwrap()
}

/// The classes of a workflow's loaders, in order.
fn loaders(workflow: &Value) -> Vec<&str> {
    let classes = workflow.as_object().unwrap().values().map(|node| node["class_type"].as_str().unwrap());
    classes.filter(|class| class.contains("Loader")).collect()
}

/// A folder as ComfyUI has it, with the demo model's files where loaders look for them.
struct Install {
    dir: ScratchDir,
}

impl Install {
    fn new() -> Install {
        let dir = ScratchDir::new().unwrap();
        let put = |name: &str, place: &str| {
            let to = dir.join("models").join(place);
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(demo_file(name), to).unwrap();
        };
        // Names of their own: what comes with the program must not stand in for them.
        put("demo-flux.safetensors", "diffusion_models/flux.safetensors");
        put("demo-flux-Q8_0.gguf", "diffusion_models/flux.gguf");
        put("demo-clip-l.safetensors", "text_encoders/clip/model.safetensors");
        put("demo-t5.safetensors", "text_encoders/t5/model.safetensors");
        put("demo-ae.safetensors", "vae/ae.safetensors");
        put("demo-outline-lora.safetensors", "loras/outline.safetensors");
        demo_files::write_checkpoint(&dir.join("models/checkpoints/all.safetensors"));
        Install { dir }
    }

    fn file(&self, place: &str) -> String {
        self.dir.join("models").join(place).display().to_string()
    }

    fn draw(&self, flags: &[&str]) -> Vec<u8> {
        let drawing = ["draw", CAPTION, "--size", "128x128", "--steps", "12"];
        succeeded(&mut gantry(self.dir.path(), &[&drawing[..], flags].concat())).stdout
    }

    /// What the workflow in a picture draws, in this install.
    fn run(&self, png: &[u8], flags: &[&str]) -> Vec<u8> {
        std::fs::write(self.dir.join("drawn.png"), png).unwrap();
        let running = ["run", "drawn.png", "-o", "again"];
        let output = succeeded(&mut gantry(self.dir.path(), &[&running[..], flags].concat()));
        let saved = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        std::fs::read(saved).unwrap()
    }
}

#[test]
fn every_combination_of_files_draws_what_the_demo_draws_and_draws_it_again() {
    let install = Install::new();
    let target = install.dir.join("demo.png");
    succeeded(gantry(install.dir.path(), &["demo", CAPTION, "-o"]).arg(&target));
    let expected = pixels(&std::fs::read(&target).unwrap());
    let model = install.file("diffusion_models/flux.safetensors");
    let whole = install.file("checkpoints/all.safetensors");
    let clip = install.file("text_encoders/clip/model.safetensors");
    let t5 = install.file("text_encoders/t5/model.safetensors");
    let vae = install.file("vae/ae.safetensors");
    let parts: [&str; 6] = ["--clip-l", &clip, "--t5", &t5, "--vae", &vae];
    let from_checkpoint = ["CheckpointLoaderSimple"];
    let alone = ["UNETLoader", "DualCLIPLoader", "VAELoader"];
    let spread = ["UNETLoaderDisTorch2MultiGPU", "DualCLIPLoaderMultiGPU", "VAELoaderMultiGPU"];
    type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 8] = [
        (&model, &parts, &[], &alone),
        (&model, &parts, &SPREAD, &spread),
        (&whole, &[], &[], &from_checkpoint),
        (&whole, &[], &SPREAD, &["CheckpointLoaderAdvancedDisTorch2MultiGPU"]),
        (&whole, &parts[4..], &[], &["CheckpointLoaderSimple", "VAELoader"]),
        (&whole, &parts, &[], &alone),
        (&whole, &parts[..2], &[], &alone),
        (&whole, &parts[2..4], &[], &alone),
    ];
    for (model, parts, devices, classes) in cases {
        let png = install.draw(&[&["--model", model][..], parts, devices].concat());
        assert!(pixels(&png) == expected, "{model} with {parts:?} on {devices:?} gives other bits");
        assert_eq!(loaders(&workflow(&png)), classes, "{model} with {parts:?} on {devices:?}");
    }
}

#[test]
fn a_picture_that_is_dropped_into_an_install_draws_itself_again() {
    let install = Install::new();
    let above = install.file("text_encoders/model.safetensors");
    std::fs::copy(install.file("text_encoders/clip/model.safetensors"), above).unwrap();
    let model = install.file("diffusion_models/flux.gguf");
    let (clip, t5) =
        (install.file("text_encoders/model.safetensors"), install.file("text_encoders/t5/model.safetensors"));
    let (vae, lora) = (install.file("vae/ae.safetensors"), install.file("loras/outline.safetensors:0.5"));
    let whole = install.file("checkpoints/all.safetensors");
    let parts: [&str; 10] =
        ["--model", &model, "--clip-l", &clip, "--t5", &t5, "--vae", &vae, "--lora", &lora];
    let from_checkpoint: [&str; 2] = ["--model", &whole];
    let cases: [(&[&str], &[&str]); 4] =
        [(&parts, &[]), (&parts, &SPREAD), (&from_checkpoint, &[]), (&from_checkpoint, &SPREAD)];
    for (files, devices) in cases {
        let png = install.draw(&[files, devices, &["--seed", "18446744073709551615"]].concat());
        let again = install.run(&png, &devices[..devices.len().min(4)]);
        assert!(pixels(&png) == pixels(&again), "{files:?} on {devices:?} gives other bits when it is run");
        assert_eq!(workflow(&png), workflow(&again));
    }
    let words = workflow(&install.draw(&parts)).to_string();
    for word in ["\"flux.gguf\"", "\"model.safetensors\"", "\"t5/model.safetensors\"", "outline", CAPTION] {
        assert!(words.contains(word), "{word} is not in {words}");
    }
}

#[test]
fn prompts_and_pictures_go_through_pipes() {
    let install = Install::new();
    let whole = install.file("checkpoints/all.safetensors");
    let given = install.draw(&["--model", &whole]);
    let drawing = ["draw", "--model", &whole, "--size", "128x128", "--steps", "12"];
    let mut command = gantry(install.dir.path(), &drawing);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(format!("{CAPTION}\n").as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == given, "a prompt from a pipe gives another file");
    let none = std::fs::read_dir(install.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(none.collect::<Vec<_>>(), ["models"], "a picture for a pipe leaves files");
    #[cfg(unix)]
    {
        let output = install.draw(&["--model", &whole, "-o", "/dev/stdout"]);
        assert!(output == given, "/dev/stdout gives another file");
    }
}

#[test]
fn a_prompt_in_any_script_is_in_the_picture() {
    let dir = ScratchDir::new().unwrap();
    let caption = "ein grüner Kreis, \"赤\" \\ 🦊";
    succeeded(&mut gantry(dir.path(), &["demo", caption, "--steps", "1"]));
    let workflow = workflow(&std::fs::read(dir.join("demo.png")).unwrap());
    assert!(
        workflow.as_object().unwrap().values().any(|node| node["inputs"]["text"] == caption),
        "{workflow}"
    );
}

#[test]
fn tensors_that_no_weight_takes_are_told() {
    let install = Install::new();
    let file = install.dir.join("other.safetensors");
    let names = ["lora_unet_other.lora_down.weight", "lora_unet_other.lora_up.weight"];
    let values: [f32; 8] = [0.5; 8];
    names
        .iter()
        .fold(SafetensorsWriter::new(), |file, name| {
            let shape: [usize; 2] = if name.contains("down") { [2, 4] } else { [4, 2] };
            file.values(*name, Encoding::F32, Shape::from(shape), &values).unwrap()
        })
        .write(&file)
        .unwrap();
    let whole = install.file("checkpoints/all.safetensors");
    let drawing = ["draw", CAPTION, "--size", "128x128", "--steps", "12", "--model", &whole, "--lora"];
    let output = succeeded(gantry(install.dir.path(), &drawing).arg(&file));
    let told = String::from_utf8(output.stderr).unwrap();
    for words in ["other.safetensors", "no weight of this model takes 2", names[0], "for another model"] {
        assert!(told.contains(words), "{words} is not in {told}");
    }
    assert!(pixels(&output.stdout) == pixels(&install.draw(&["--model", &whole])));
}
