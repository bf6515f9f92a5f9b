//! Wrong input: every answer says what is wrong, where, and what to do; nothing panics.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

use testkit::ScratchDir;

use crate::{demo, gantry};

/// Runs a command that is to fail and looks for words in what it says.
#[track_caller]
fn fails(folder: &ScratchDir, arguments: &[&str], words: &[&str]) {
    let output = gantry(folder.path(), arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    let code = output.status.code();
    assert!(matches!(code, Some(1 | 2)), "{arguments:?}: {code:?} {text}");
    for word in words {
        assert!(text.contains(word), "{arguments:?} does not say {word:?}: {text}");
    }
}

#[test]
fn inputs_that_a_node_does_not_have_are_not_set() {
    let dir = ScratchDir::new().unwrap();
    let workflow = demo("../../examples/api/text-to-image.json").display().to_string();
    let run = |set: &str, words: &[&str]| fails(&dir, &["run", &workflow, "--cpu", "--set", set], words);
    run("7.sead=1", &["--set 7.sead=1", "KSampler", "has no input \"sead\"", "seed, steps"]);
    run("77.seed=1", &["--set 77.seed=1", "77"]);
}

#[test]
fn wrong_files_and_folders_are_named_with_their_flags() {
    let dir = ScratchDir::new().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("file"), "text").unwrap();
    std::fs::write(dir.path().join("text.json"), "hello").unwrap();
    let model = demo("demo-flux.safetensors").display().to_string();
    let [clip, t5, vae] = ["demo-clip-l.safetensors", "demo-t5.safetensors", "demo-ae.safetensors"]
        .map(|name| demo(name).display().to_string());
    let drawing = |more: &[&str]| -> Vec<String> {
        let all = ["draw", "x", "--cpu", "--size", "64x64", "--steps", "1", "--model", &model, "--vae", &vae];
        all.iter().chain(more).map(|text| (*text).to_owned()).collect()
    };
    fails(
        &dir,
        &["demo", "--cpu", "-o", "no/such/x.png"],
        &["-o no/such/x.png", "no folder no/such", "make it"],
    );
    fails(&dir, &["demo", "--cpu", "-o", "folder"], &["-o folder", "name a file in it"]);
    fails(&dir, &["demo", "--cpu", "--compute", "cuda:7"], &["cuda:7", "available: cpu"]);
    fails(&dir, &["draw", "x", "--cpu", "--model", "none", "-o", "x.png"], &["--model", "none"]);
    fails(&dir, &["draw", "x", "--cpu", "--model", &model, "-o", "x.png"], &["--clip-l FILE"]);
    let swapped = drawing(&["--clip-l", &t5, "--t5", &clip, "-o", "x.png"]);
    let swapped: Vec<&str> = swapped.iter().map(String::as_str).collect();
    fails(&dir, &swapped, &["demo-t5.safetensors has no CLIP", "it is a text encoder (T5"]);
    let lora = drawing(&["--clip-l", &clip, "--t5", &t5, "-o", "x.png", "--lora", &vae]);
    let lora: Vec<&str> = lora.iter().map(String::as_str).collect();
    fails(&dir, &lora, &["--lora", "no LoRA but an autoencoder"]);
    let strength = drawing(&["--clip-l", &clip, "--t5", &t5, "-o", "x.png", "--lora", "x.safetensors:nan"]);
    let strength: Vec<&str> = strength.iter().map(String::as_str).collect();
    fails(&dir, &strength, &["--lora x.safetensors:nan", "a number from -100 to 100"]);
    fails(&dir, &["demo", "--cpu", "--alloc", "cpu,2xb"], &["cpu,2xb\n     ^^ 'xb' is not a unit"]);
    let other = ["demo", "--cpu", "--compute", "cpu", "--sim-device", "1gb@9gbps", "--alloc", "#sim:0;1;cpu"];
    fails(&dir, &other, &["#sim:0;1;cpu\n ^^^^^", "the model is to compute on cpu"]);
    assert!(!dir.path().join("x.png").exists() && !dir.path().join("demo.png").exists());
    fails(&dir, &["run", "--cpu", "none.json"], &["none.json cannot be read", "workflow"]);
    fails(&dir, &["run", "--cpu", "folder"], &["folder is a folder"]);
    fails(&dir, &["run", "--cpu", "text.json"], &["text.json is no JSON", "workflow"]);
    fails(&dir, &["check", "--cpu", "folder"], &["no workflow files", "folder"]);
    fails(&dir, &["inspect", "none"], &["none: cannot open the file"]);
    fails(&dir, &["selftest", "--cpu", "--only", "zzz"], &["--only zzz", "--all"]);
    fails(&dir, &["bench", "ops", "--cpu", "--python", "none", "--only", "zzz"], &["--only zzz"]);
}

#[test]
fn a_server_that_cannot_start_says_which_flag_to_change() {
    let dir = ScratchDir::new().unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    std::fs::write(dir.path().join("file"), "text").unwrap();
    let serve = |more: &[&'static str]| [["serve", "--cpu", "--port", "0"].as_slice(), more].concat();
    fails(&dir, &serve(&["--base-directory", "none"]), &["--base-directory none", "no such folder"]);
    assert!(!dir.path().join("none").exists(), "a slip makes no folders");
    fails(&dir, &serve(&["--comfy-dir", "file"]), &["--base-directory file", "no such folder"]);
    fails(&dir, &serve(&["--database", "folder"]), &["--database folder", "name a file"]);
    fails(&dir, &serve(&["--user-directory", "file"]), &["is a file", "--user-directory"]);
    fails(&dir, &serve(&["--tls-keyfile", "a", "--tls-certfile", "b"]), &["--tls-keyfile a", "no such file"]);
    fails(&dir, &serve(&["--compute", "cuda:3"]), &["cuda:3", "available: cpu"]);
    fails(&dir, &serve(&["--extra-model-paths-config", "x.yaml"]), &["x.yaml"]);
}

#[test]
fn a_port_that_is_taken_is_named_with_its_flag() {
    let dir = ScratchDir::new().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    fails(&dir, &["serve", "--cpu", "--port", &port], &[&format!("--port {port}"), "another port"]);
}

#[test]
fn a_server_that_is_none_is_told() {
    let dir = ScratchDir::new().unwrap();
    fails(&dir, &["free", "--force", "--server", "here"], &["--server here", "http://HOST:PORT"]);
    fails(&dir, &["free", "--force", "--server", "http://127.0.0.1:1"], &["no answer", "gantry serve"]);
    fails(&dir, &["free"], &["--unload-models"]);
}

/// Whoever reads the output, or the errors, may go away at any time.
#[test]
fn a_closed_pipe_is_no_panic() {
    let dir = ScratchDir::new().unwrap();
    let commands: [&[&str]; 4] = [
        &["doctor", "--cpu"],
        &["demo", "--cpu", "--steps", "1"],
        &["devices", "--cpu"],
        &["run", "none.json"],
    ];
    for arguments in commands {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        command.args(arguments).current_dir(dir.path()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let code = if arguments[0] == "run" {
            drop(child.stderr.take());
            child.wait().unwrap().code()
        } else {
            let mut text = String::new();
            child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
            assert!(!text.contains("panicked"), "{arguments:?}: {text}");
            child.wait().unwrap().code()
        };
        assert!(matches!(code, Some(0 | 1 | 3)), "{arguments:?}: {code:?}");
    }
}
