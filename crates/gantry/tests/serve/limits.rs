//! A full disk and too little memory: a job fails with its reason, nothing half is left, and the server goes on.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::http;
use crate::prompts::empty_latent;
use crate::server::Server;

/// Bytes that a file may have at most, in the blocks of `ulimit -f`: 1 MiB.
const MOST_BLOCKS: u32 = 2048;

/// The program, on a disk on which no file grows beyond some blocks of 512 bytes. A write beyond that fails, as it does
/// on a full disk.
fn on_a_full_disk(blocks: u32) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"")]);
    command.arg(env!("CARGO_BIN_EXE_gantry"));
    command
}

/// The names of the files below a folder.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names = Vec::new();
    for entry in entries.flatten() {
        match entry.path().is_dir() {
            true => names.extend(self::names(&entry.path())),
            false => names.push(entry.file_name().to_string_lossy().into_owned()),
        }
    }
    names.sort();
    names
}

/// Pictures that no compression makes smaller, and a node that saves them.
fn noise_saved_by(class: &str, more: &Value) -> Value {
    let mut inputs = json!({ "images": ["2", 0], "filename_prefix": "noise" });
    inputs.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "1": { "class_type": "EmptyImage",
            "inputs": { "width": 1024, "height": 768, "batch_size": 2, "color": 8_421_504 } },
        "2": { "class_type": "ImageAddNoise", "inputs": { "image": ["1", 0], "seed": 1, "strength": 1.0 } },
        "3": { "class_type": class, "inputs": inputs },
    })
}

#[test]
fn a_full_disk_leaves_nothing_under_a_name() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start_as(on_a_full_disk(MOST_BLOCKS), folder.path(), &[]);
    let savers = [
        ("SaveImage", json!({})),
        ("SaveAnimatedPNG", json!({ "fps": 6.0, "compress_level": 4 })),
        ("SaveAnimatedWEBP", json!({ "fps": 6.0, "lossless": true, "quality": 80, "method": "default" })),
    ];
    for (class, more) in savers {
        let text = server.run_badly(&noise_saved_by(class, &more));
        assert!(text.contains("noise_00001_."), "{class}: {text}");
        assert_eq!(names(&folder.join("output")), [""; 0], "{class}");
    }
    let mut latent = empty_latent("latent");
    latent["1"]["inputs"] = json!({ "width": 4096, "height": 4096, "batch_size": 4 });
    let text = server.run_badly(&latent);
    assert!(text.contains("latent_00001_.latent"), "{text}");
    let text = server.run_badly(&noise_saved_by("PreviewImage", &json!({})));
    assert!(text.contains("_temp_"), "{text}");
    let kind = "multipart/form-data; boundary=edge";
    let head = "--edge\r\nContent-Disposition: form-data; name=\"image\"; filename=\"up.png\"\r\n\r\n";
    let body = [head.as_bytes(), &vec![7; 3 << 20], b"\r\n--edge--\r\n"].concat();
    assert_eq!(http::ask(server.address(), "POST", "/upload/image", kind, &body).unwrap().status, 507);
    assert_eq!(server.ask("POST", "/userdata/a.json", &vec![b' '; 3 << 20]).status, 507);
    assert_eq!(
        server.ask("POST", "/settings/a", format!("\"{}\"", "x".repeat(3 << 20)).as_bytes()).status,
        507
    );
    for place in ["output", "input", "temp", "user/default"] {
        assert_eq!(names(&folder.join(place)), [""; 0], "{place}");
    }
    server.run(&empty_latent("small"));
    assert_eq!(names(&folder.join("output")), ["small_00001_.latent"]);
}

#[test]
fn a_full_disk_leaves_the_old_picture() {
    let folder = ScratchDir::new().unwrap();
    let path = folder.join("picture.png");
    let demo = |command: &mut Command| {
        command.args(["demo", "--cpu", "--steps", "1", "-o"]).arg(&path).output().unwrap()
    };
    let failed = demo(&mut on_a_full_disk(1));
    let text = String::from_utf8_lossy(&failed.stderr).into_owned();
    assert!(!failed.status.success() && text.contains("picture.png cannot be written"), "{text}");
    assert_eq!(names(folder.path()), [""; 0]);
    let drawn = demo(&mut Command::new(env!("CARGO_BIN_EXE_gantry")));
    assert!(drawn.status.success(), "{}", String::from_utf8_lossy(&drawn.stderr));
    let bytes = std::fs::read(&path).unwrap();
    assert!(!demo(&mut on_a_full_disk(1)).status.success());
    assert_eq!(names(folder.path()), ["picture.png"]);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);
}

/// A device as `/gantry/devices` shows it.
fn device(server: &Server, id: &str) -> Value {
    let devices = server.get("/gantry/devices");
    let found = devices["devices"].as_array().unwrap().iter().find(|device| device["id"] == id);
    found.unwrap_or_else(|| panic!("{id}: {devices}")).clone()
}

#[test]
fn pictures_are_in_the_ledger_until_the_cache_is_freed() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let used = || device(&server, "cpu")["used_bytes"].as_u64().unwrap();
    assert_eq!(used(), 0);
    let prompt = |side: u32, batch: u32| {
        json!({
            "1": { "class_type": "EmptyImage",
                "inputs": { "width": side, "height": side, "batch_size": batch, "color": 0 } },
            "2": { "class_type": "PreviewImage", "inputs": { "images": ["1", 0] } },
        })
    };
    server.run(&prompt(1024, 3));
    assert_eq!(used(), 3 * 1024 * 1024 * 3 * 4, "the cached output is counted");
    server.free(&json!({ "unload_models": true }));
    assert_eq!(used(), 3 * 1024 * 1024 * 3 * 4, "models are something else");
    server.free(&json!({ "free_memory": true }));
    assert_eq!(used(), 0);

    let total = device(&server, "cpu")["total_bytes"].as_u64().unwrap();
    assert_eq!(device(&server, "cpu")["budget_bytes"], total);
    let ended = server.wait(&server.queue(&prompt(16_384, 4096)));
    let error = ended.message("execution_error");
    assert_eq!((&error["node_id"], &error["node_type"]), (&json!("1"), &json!("EmptyImage")), "{error}");
    let text = error["exception_message"].as_str().unwrap();
    assert!(text.contains("[4096, 16384, 16384, 3]") && text.contains("12.00 TB"), "{text}");
    assert_eq!(device(&server, "cpu")["peak_bytes"].as_u64().unwrap() >> 30, 0, "nothing of it was made");
    server.run(&prompt(64, 1));
}
