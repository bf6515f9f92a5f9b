//! Habits that people have from other programs: settings outside of the command line, kinds of pictures, answers for
//! programs, a word when Ctrl-C comes.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use testkit::ScratchDir;

use crate::{demo, gantry, program};

fn with(folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
    let mut command: Command = program(folder, arguments);
    command.envs(variables.iter().copied());
    command.output().unwrap()
}

fn told(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
fn a_jpeg_is_written_by_its_name_and_another_kind_is_refused_before_anything_is_drawn() {
    let dir = ScratchDir::new().unwrap();
    let output = gantry(dir.path(), &["demo", "--cpu", "-o", "a.jpg"]);
    assert!(output.status.success(), "{}", told(&output));
    let bytes = std::fs::read(dir.join("a.jpg")).unwrap();
    assert!(bytes.starts_with(&[0xFF, 0xD8, 0xFF]) && bytes.ends_with(&[0xFF, 0xD9]));
    let output = gantry(dir.path(), &["demo", "--cpu", "-o", "a.gif"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(told(&output).contains("let the name end with .png or .jpg"), "{}", told(&output));
    assert!(!dir.join("a.gif").exists());
}

#[test]
fn every_command_that_tells_something_tells_programs() {
    let dir = ScratchDir::new().unwrap();
    let model = demo("demo-flux.safetensors").display().to_string();
    let commands: [&[&str]; 10] = [
        &["demo", "--cpu"],
        &["list"],
        &["config"],
        &["config", "--list"],
        &["version"],
        &["devices", "--cpu"],
        &["inspect", &model],
        &["plan", &model, "--cpu"],
        &["pull", "--list"],
        &["man", "pages"],
    ];
    for command in commands {
        let output = gantry(dir.path(), &[command, &["--json"]].concat());
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(serde_json::from_str::<Value>(&text).is_ok(), "{command:?}: {}", told(&output));
    }
}

#[test]
fn flags_are_taken_from_variables_and_the_file_and_told_by_config() {
    let dir = ScratchDir::new().unwrap();
    let file = dir.join("home/.config/gantry/config.toml");
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, "cpu = true\n[demo]\noutput = 'from-file.png'\n").unwrap();
    assert!(with(dir.path(), &[], &["demo"]).status.success());
    assert!(dir.join("from-file.png").is_file());
    assert!(with(dir.path(), &[("GANTRY_OUTPUT", "from-variable.png")], &["demo"]).status.success());
    assert!(dir.join("from-variable.png").is_file());
    let both = with(dir.path(), &[("GANTRY_OUTPUT", "b.png")], &["demo", "-o", "from-line.png"]);
    assert!(both.status.success() && dir.join("from-line.png").is_file());

    let secret = [("GANTRY_TOKEN", "s3cret"), ("GANTRY_PROT", "1")];
    for more in [&["config"][..], &["config", "--json"]] {
        let output = with(dir.path(), &secret, more);
        let text = told(&output);
        assert!(!text.contains("s3cret"), "{text}");
        for word in ["from-file.png", "token", "GANTRY_PROT", "config.toml"] {
            assert!(text.contains(word), "{word} in {text}");
        }
    }
    let none = with(dir.path(), &[("GANTRY_CONFIG", "")], &["config"]);
    assert!(told(&none).contains("nothing is set"), "{}", told(&none));

    std::fs::write(&file, "cpus = true\n").unwrap();
    let output = with(dir.path(), &[], &["demo"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(told(&output).contains("no command has a flag --cpus"), "{}", told(&output));
    assert!(with(dir.path(), &[], &["--help"]).status.success(), "help is shown whatever is set");
    let output = with(dir.path(), &[("GANTRY_CONFIG", "nowhere.toml")], &["demo"]);
    assert!(told(&output).contains("nowhere.toml cannot be read"), "{}", told(&output));
}

#[test]
fn quiet_commands_tell_only_what_they_made() {
    let dir = ScratchDir::new().unwrap();
    let loud = gantry(dir.path(), &["demo", "a dinosaur", "--cpu"]);
    assert!(told(&loud).contains("knows coloured shapes only"), "{}", told(&loud));
    let quiet = gantry(dir.path(), &["demo", "a dinosaur", "--cpu", "--quiet"]);
    assert!(quiet.status.success() && quiet.stderr.is_empty(), "{}", told(&quiet));
    let picture = gantry(dir.path(), &["run", "demo.png", "--cpu", "-q", "-o", "made"]);
    assert!(picture.status.success() && picture.stderr.is_empty(), "{}", told(&picture));
}

#[test]
fn a_pulled_model_is_drawn_with_by_its_short_name() {
    let dir = ScratchDir::new().unwrap();
    let place = |folder: &str, name: &str, file: &str| {
        let folder = dir.join("models").join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::copy(demo(file), folder.join(name)).unwrap();
    };
    let words =
        ["draw", "a red circle", "--model", "flux-schnell-bf16", "--cpu", "--size", "64x64", "--steps", "2"];
    let words = [&words[..], &["-o", "x.png"]].concat();
    let missing = gantry(dir.path(), &words);
    assert!(told(&missing).contains("`gantry pull flux-schnell-bf16` gets them"), "{}", told(&missing));
    place("diffusion_models", "flux1-schnell.safetensors", "demo-flux.safetensors");
    place("text_encoders", "clip_l.safetensors", "demo-clip-l.safetensors");
    place("text_encoders", "t5xxl_fp16.safetensors", "demo-t5.safetensors");
    place("vae", "ae.safetensors", "demo-ae.safetensors");
    let output = gantry(dir.path(), &words);
    assert!(output.status.success(), "{}", told(&output));
    assert!(std::fs::read(dir.join("x.png")).unwrap().starts_with(b"\x89PNG"));
}

/// A decode that takes minutes is interrupted: it ends at once, with a word and the status that shells expect.
#[cfg(unix)]
#[test]
fn ctrl_c_says_what_becomes_of_the_work() {
    let dir = ScratchDir::new().unwrap();
    let workflow = serde_json::json!({
        "1": { "class_type": "VAELoader", "inputs": { "vae_name": "demo-ae.safetensors" } },
        "2": { "class_type": "EmptySD3LatentImage",
            "inputs": { "width": 4096, "height": 4096, "batch_size": 1 } },
        "3": { "class_type": "VAEDecode", "inputs": { "samples": ["2", 0], "vae": ["1", 0] } },
        "4": { "class_type": "SaveImage", "inputs": { "images": ["3", 0], "filename_prefix": "x" } },
    });
    std::fs::write(dir.join("huge.json"), workflow.to_string()).unwrap();
    let mut command = program(dir.path(), &["run", "huge.json", "--cpu"]);
    command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(3));
    let since = std::time::Instant::now();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert!(since.elapsed() < std::time::Duration::from_secs(3), "{:?}", since.elapsed());
    assert_eq!(output.status.code(), Some(130), "{}", told(&output));
    assert!(told(&output).contains("interrupted: what nodes had saved stays"), "{}", told(&output));
}

#[test]
fn check_names_the_model_files_that_a_workflow_wants() {
    let dir = ScratchDir::new().unwrap();
    let example = demo("").join("../../examples/api/text-to-image.json");
    let text = std::fs::read_to_string(example).unwrap();
    std::fs::create_dir(dir.join("flows")).unwrap();
    std::fs::write(dir.join("flows/there.json"), &text).unwrap();
    let other = text.replace("demo-flux.safetensors", "flux1-dev.safetensors");
    std::fs::write(dir.join("flows/other.json"), other).unwrap();
    let output = gantry(dir.path(), &["check", "flows", "--cpu"]);
    assert!(output.status.success(), "{}", told(&output));
    assert!(told(&output).contains("other.json: flux1-dev.safetensors\n"), "{}", told(&output));
    assert!(!told(&output).contains("there.json: "), "{}", told(&output));
    let place = dir.join("comfy/models/diffusion_models");
    std::fs::create_dir_all(&place).unwrap();
    std::fs::copy(demo("demo-flux.safetensors"), place.join("flux1-dev.safetensors")).unwrap();
    let output = gantry(dir.path(), &["check", "flows", "--cpu", "--comfy-dir", "comfy", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let files = report["families"][0]["files"].as_array().unwrap();
    assert!(
        files.len() == 2 && files.iter().all(|file| file["missing_files"] == serde_json::json!([])),
        "{report}"
    );
}
