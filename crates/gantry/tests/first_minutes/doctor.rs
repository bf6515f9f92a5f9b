//! `gantry doctor` on folders that are well, and on folders that are not.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::{demo, gantry};

/// The exit status if something does not work.
const BROKEN: i32 = 3;

/// Runs it and reads its JSON.
fn doctor(folder: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let output = gantry(folder, &[["doctor", "--cpu", "--json"].as_slice(), more].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let report = serde_json::from_str(&text)
        .unwrap_or_else(|error| panic!("{error}: {text}{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code(), report)
}

/// The one check of this name.
#[track_caller]
fn check<'a>(report: &'a Value, name: &str) -> &'a Value {
    let mut found = report["checks"].as_array().unwrap().iter().filter(|check| check["check"] == name);
    let first = found.next().unwrap_or_else(|| panic!("there is no {name}: {report:#}"));
    assert!(found.next().is_none(), "{name} is there twice");
    first
}

/// What somebody without models here is told to type: the demo, or an install that the machine has elsewhere.
fn is_for_newcomers(next: &Value) -> bool {
    let next = next.as_str().unwrap();
    next.starts_with("gantry demo ") || next.starts_with("gantry serve --comfy-dir ")
}

/// A port that nobody has.
fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}

fn put(folder: &Path, name: &str, bytes: &[u8]) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Copies the demo model to where its kinds go.
fn put_demo_model(folder: &Path) {
    for (kind, name) in [
        ("diffusion_models", "demo-flux.safetensors"),
        ("text_encoders", "demo-clip-l.safetensors"),
        ("text_encoders", "demo-t5.safetensors"),
        ("vae", "demo-ae.safetensors"),
    ] {
        put(folder, &format!("models/{kind}/{name}"), &fs::read(demo(name)).unwrap());
    }
}

#[test]
fn a_good_folder_works() {
    let dir = ScratchDir::new().unwrap();
    put_demo_model(dir.path());
    let before = listing(dir.path());
    let port = free_port();
    let (code, report) = doctor(dir.path(), &["--port", &port]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_ne!(report["status"], "does not work");
    for name in ["database", "models", "families", "port"] {
        assert_eq!(check(&report, name)["status"], "works", "{report:#}");
    }
    // How fast and how full the machine is that runs the tests is not known.
    for name in ["cpu", "memory", "output_folder", "user_folder", "temp_folder", "disk"] {
        assert_ne!(check(&report, name)["status"], "does not work", "{report:#}");
    }
    let models = check(&report, "models");
    assert_eq!(models["facts"]["count"], 4);
    let files = models["facts"]["files"].as_array().unwrap();
    let is = |name: &str| files.iter().find(|file| file["name"] == name).unwrap()["is"].as_str().unwrap();
    assert!(is("demo-flux.safetensors").contains("FLUX"), "{models:#}");
    assert!(is("demo-t5.safetensors").contains("T5"), "{models:#}");
    assert_eq!(check(&report, "families")["facts"][0]["complete"], true);
    let disk = check(&report, "disk");
    assert!(disk["facts"]["bytes_per_s"].as_f64().unwrap() > 0.0, "{disk:#}");
    assert_eq!(report["next"], "gantry serve");
    let counts = &report["counts"];
    let sum: u64 =
        ["works", "attention", "does_not_work"].iter().map(|key| counts[key].as_u64().unwrap()).sum();
    assert_eq!(sum, report["checks"].as_array().unwrap().len() as u64);
    assert_eq!(listing(dir.path()), before, "nothing is left behind");
}

/// All files and folders below a folder.
fn listing(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        found.push(path.display().to_string());
        if path.is_dir() {
            found.extend(listing(&path));
        }
    }
    found.sort();
    found
}

#[test]
fn an_empty_folder_is_told_which_files_go_where() {
    let dir = ScratchDir::new().unwrap();
    let (code, report) = doctor(dir.path(), &["--port", &free_port()]);
    assert_eq!(code, Some(0), "{report:#}");
    assert_eq!(check(&report, "models")["status"], "attention");
    let families = check(&report, "families");
    assert_eq!(families["facts"][0]["missing"].as_array().unwrap().len(), 4);
    // Where nothing is, the first family is shown, and what gets it.
    assert!(
        families["says"].as_str().unwrap().contains("4 of 4 files that a picture by FLUX.1"),
        "{families:#}"
    );
    assert!(families["what_to_do"].as_str().unwrap().contains("gantry pull flux"), "{families:#}");
    let lines = families["lines"].as_array().unwrap();
    let vae = dir.path().join("models").join("vae").display().to_string();
    assert!(
        lines.iter().any(|line| {
            let line = line.as_str().unwrap();
            line.contains("ae.safetensors") && line.ends_with(&vae)
        }),
        "{families:#}"
    );
    assert!(is_for_newcomers(&report["next"]), "{report:#}");
}

#[test]
fn files_that_are_no_models_are_named() {
    let dir = ScratchDir::new().unwrap();
    let model = fs::read(demo("demo-ae.safetensors")).unwrap();
    put(dir.path(), "models/vae/cut.safetensors", &model[..model.len() / 2]);
    put(dir.path(), "models/vae/page.safetensors", b"<!DOCTYPE html><html>log in</html>");
    put(dir.path(), "models/checkpoints/old.ckpt", b"\x80\x02}q\x00.");
    put(dir.path(), "models/diffusion_models/wrong.safetensors", &model);
    put(dir.path(), "models/stray.safetensors", &model);
    put(dir.path(), "models/loras", b"a file in the place of a folder");
    let (code, report) = doctor(dir.path(), &["--port", &free_port()]);
    assert_eq!(code, Some(BROKEN), "{report:#}");
    let why = |check: &Value, name: &str| {
        let files = check["facts"]["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["path"].as_str().unwrap().ends_with(name));
        file.unwrap_or_else(|| panic!("{name} is not named: {check:#}"))["why"].clone()
    };
    let damaged = check(&report, "damaged_files");
    assert_eq!(damaged["status"], "does not work");
    assert_eq!(why(damaged, "cut.safetensors"), "truncated");
    assert_eq!(why(damaged, "page.safetensors"), "no model");
    let pickles = check(&report, "pickles");
    assert_eq!((&pickles["status"], why(pickles, "old.ckpt")), (&json!("attention"), json!("pickle")));
    let misplaced = check(&report, "misplaced_files")["lines"].to_string();
    assert!(misplaced.contains("wrong.safetensors") && misplaced.contains("models/vae"), "{misplaced}");
    assert!(misplaced.contains("stray.safetensors"), "{misplaced}");
    let closed = check(&report, "model_folders");
    assert!(closed["lines"][0].as_str().unwrap().contains("loras"), "{closed:#}");
}

#[test]
fn an_install_of_comfyui_is_found_and_left_as_it_is() {
    let dir = ScratchDir::new().unwrap();
    let install = dir.path().join("home").join("ComfyUI");
    for file in ["main.py", "folder_paths.py", "comfy/sd.py"] {
        put(&install, file, b"");
    }
    put(&install, "comfyui_version.py", b"__version__ = \"0.7.0\"\n");
    put(&install, "requirements.txt", b"comfyui-frontend-package==1.35.9\n");
    let packages = "venv/lib/python3.12/site-packages";
    put(&install, &format!("{packages}/comfyui_frontend_package/static/index.html"), b"");
    fs::create_dir_all(install.join(packages).join("comfyui_frontend_package-1.58.1.dist-info")).unwrap();
    put_demo_model(&install);
    let before = listing(&install);
    let (code, report) = doctor(dir.path(), &["--port", &free_port()]);
    assert_eq!(code, Some(0), "{report:#}");
    let found = &check(&report, "comfyui")["facts"]["installs"];
    let found = found.as_array().unwrap().iter().find(|found| found["path"] == install.to_str().unwrap());
    let found = found.unwrap_or_else(|| panic!("it is not found: {report:#}"));
    assert_eq!(found["version"], "0.7.0");
    assert_eq!(found["front_end"], "1.58.1");
    assert_eq!(found["model_files"], 4);
    assert_eq!(report["next"], format!("gantry serve --comfy-dir {}", install.display()));
    assert_eq!(listing(&install), before);
    // The same install, asked about by name.
    let (_, report) = doctor(dir.path(), &["--comfy-dir", install.to_str().unwrap(), "--port", &free_port()]);
    assert_eq!(check(&report, "families")["facts"][0]["complete"], true);
}

#[test]
fn folders_that_cannot_be_written_to_do_not_work() {
    let dir = ScratchDir::new().unwrap();
    put(dir.path(), "taken", b"a file");
    let (code, report) = doctor(dir.path(), &["--output-directory", "taken", "--port", &free_port()]);
    assert_eq!(code, Some(BROKEN), "{report:#}");
    let output = check(&report, "output_folder");
    assert_eq!(output["facts"]["writable"], false);
    assert!(output["what_to_do"].as_str().unwrap().contains("--output-directory"), "{output:#}");
    // Whoever may do everything writes to read-only folders, too.
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let locked = dir.path().join("locked");
        fs::create_dir(&locked).unwrap();
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
        let may = fs::write(locked.join("x"), "").is_ok();
        let (_, report) = doctor(dir.path(), &["--output-directory", "locked", "--port", &free_port()]);
        assert_eq!(check(&report, "output_folder")["facts"]["writable"], may);
        fs::set_permissions(&locked, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

/// Answers one request after the other with this text, until the process ends.
fn answering(body: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let length = body.len();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
        }
    });
    port
}

#[test]
fn whoever_has_the_port_is_named() {
    let dir = ScratchDir::new().unwrap();
    let server = |port: &str| {
        let (code, report) = doctor(dir.path(), &["--port", port]);
        assert_eq!(code, Some(0));
        let port = check(&report, "port");
        (port["facts"]["server"].clone(), port["facts"]["version"].clone(), report["next"].clone())
    };
    let comfy = answering(r#"{"system": {"comfyui_version": "0.7.0", "python_version": "3.12.1"}}"#);
    let (who, version, next) = server(&comfy);
    assert_eq!((who, version), (json!("ComfyUI"), json!("0.7.0")));
    assert!(is_for_newcomers(&next), "{next}");
    let ours = r#"{"system": {"comfyui_version": "0.7.0", "python_version": "none (gantry 0.1.0)"}}"#;
    assert_eq!(server(&answering(ours)).0, "Gantry");
    assert_eq!(server(&answering("hello")).0, "unknown");
    // One that takes connections and never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    assert_eq!(server(&silent.local_addr().unwrap().port().to_string()).0, "unknown");
    put_demo_model(dir.path());
    let (_, _, next) = server(&comfy);
    assert!(next.as_str().unwrap().starts_with("gantry serve --port "), "{next}");
}

#[test]
fn people_get_plain_text_in_a_pipe() {
    let dir = ScratchDir::new().unwrap();
    let output = gantry(dir.path(), &["doctor", "--cpu", "--port", &free_port()]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains('\x1b'), "{text:?}");
    let last = text.lines().last().unwrap();
    assert!(last.starts_with("Next: gantry "), "{text}");
    assert!(text.contains("Nothing is broken"), "{text}");
}

#[test]
fn a_wrong_folder_is_told_and_not_made() {
    let dir = ScratchDir::new().unwrap();
    let (code, report) = doctor(dir.path(), &["--comfy-dir", "nowhere", "--port", &free_port()]);
    assert_eq!(code, Some(BROKEN));
    let settings = check(&report, "settings");
    assert!(settings["says"].as_str().unwrap().contains("nowhere"), "{settings:#}");
    assert!(!dir.path().join("nowhere").exists());
}
