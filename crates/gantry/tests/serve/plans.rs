//! The plan that is shown is the plan that runs, and its times are those that are measured.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::model_files::demo;
use crate::prompts::{AUTOENCODER, CLIP_L, FLUX, T5, set_loader, text_to_image};
use crate::server::{Server, cache_of};

const DEVICES: [&str; 4] =
    ["--sim-device", "96mb@2gbps@0.05tflops", "--sim-device", "96mb@1gbps@0.025tflops"];
const SIDE: u32 = 64;

/// The demo model as files, so that the command line can name them, too.
fn folder_with_models() -> ScratchDir {
    let folder = ScratchDir::new().unwrap();
    for (kind, name) in
        [("diffusion_models", FLUX), ("text_encoders", CLIP_L), ("text_encoders", T5), ("vae", AUTOENCODER)]
    {
        let place = folder.path().join("models").join(kind);
        std::fs::create_dir_all(&place).unwrap();
        std::fs::copy(demo(name), place.join(name)).unwrap();
    }
    folder
}

fn path_of(folder: &Path, name: &str) -> PathBuf {
    let kinds = ["diffusion_models", "text_encoders", "vae"].into_iter();
    kinds.map(|kind| folder.join("models").join(kind).join(name)).find(|path| path.exists()).unwrap()
}

/// What is asked of every loader: an allocation, or gigabytes to move.
#[derive(Clone, Copy, Debug)]
struct Asked {
    expert: &'static str,
    virtual_vram_gb: f64,
    donor: &'static str,
}

impl Asked {
    const fn expert(expert: &'static str) -> Self {
        Self { expert, virtual_vram_gb: 0.0, donor: "cpu" }
    }

    const fn moved(virtual_vram_gb: f64, donor: &'static str) -> Self {
        Self { expert: "", virtual_vram_gb, donor }
    }
}

/// Every mode of the language, and none.
const MODES: [Asked; 11] = [
    Asked::expert(""),
    Asked::moved(0.001, "cpu"),
    Asked::moved(0.5, "cpu"),
    Asked::moved(0.001, "sim:1"),
    Asked::expert("#sim:0;0.001;cpu"),
    Asked::expert("#sim:0;0.002;sim:1,cpu"),
    Asked::expert("sim:0,1mb;cpu,*"),
    Asked::expert("sim:0,600kb;sim:1,400kb;cpu,*"),
    Asked::expert("sim:0,40%;sim:1,40%;cpu,20%"),
    Asked::expert("sim:0,0.005;cpu,0.5"),
    Asked::expert("sim:0,50%;cpu,50%;order=contiguous"),
];

/// A picture whose loaders are all asked for this.
fn prompt(asked: Asked, seed: usize) -> Value {
    let mut prompt = text_to_image(SIDE, 2);
    prompt["6"]["inputs"]["seed"] = json!(seed);
    for (node, class, device) in [
        ("1", "UNETLoader", "compute_device"),
        ("2", "DualCLIPLoader", "device"),
        ("3", "VAELoader", "compute_device"),
    ] {
        let more = json!({
            device: "sim:0", "virtual_vram_gb": asked.virtual_vram_gb, "donor_device": asked.donor,
            "expert_mode_allocations": asked.expert, "keep_loaded": false,
        });
        set_loader(&mut prompt, node, &format!("{class}DisTorch2MultiGPU"), &more);
    }
    prompt
}

/// What the command line says to the same question.
fn planned_by_command(folder: &Path, name: &str, asked: Asked) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.env("GANTRY_CACHE_DIR", cache_of(folder)).args(["plan", "--cpu"]).args(DEVICES);
    command.arg(path_of(folder, name)).args([
        "--size",
        &format!("{SIDE}x{SIDE}"),
        "--compute",
        "sim:0",
        "--json",
    ]);
    if asked.virtual_vram_gb > 0.0 {
        command.args(["--virtual-vram-gb", &asked.virtual_vram_gb.to_string(), "--donor", asked.donor]);
    } else if !asked.expert.is_empty() {
        command.args(["--alloc", asked.expert]);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{name} {asked:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn planned_by_server(server: &Server, name: &str, asked: Asked) -> Value {
    let mut question = json!({ "file": name, "size": format!("{SIDE}x{SIDE}"), "compute": "sim:0" });
    if asked.virtual_vram_gb > 0.0 {
        question["virtual_vram_gb"] = json!(asked.virtual_vram_gb);
        question["donor"] = json!(asked.donor);
    } else if !asked.expert.is_empty() {
        question["alloc"] = json!(asked.expert);
    }
    let answer = server.post("/gantry/plan", &question);
    assert_eq!(answer.status, 200, "{name} {asked:?}: {}", answer.text());
    answer.json()
}

/// Where every block goes, the ring, and the bytes on every device.
fn places(plan: &Value) -> Value {
    let mut devices = plan["devices"].clone();
    // What is left beside it changes with every latent that the host holds.
    for device in devices.as_array_mut().unwrap() {
        device.as_object_mut().unwrap().remove("available_bytes");
    }
    json!({ "blocks": plan["blocks"], "ring": plan["ring"], "devices": devices })
}

/// How often a mode is tried. What the models before it take in a job teaches the links, and while other programs have the
/// processor that may be so far from what was known that a plan changes within the job.
const TRIES: usize = 4;

#[test]
fn the_plan_that_is_shown_is_the_plan_that_runs() {
    let folder = folder_with_models();
    let server = Server::start(folder.path(), &DEVICES);
    let mut seeds = 0..;
    for asked in MODES {
        let mut differences = Vec::new();
        while differences.len() < TRIES {
            match difference((&server, folder.path()), asked, seeds.next().unwrap()) {
                Some(difference) => differences.push(difference),
                None => break,
            }
        }
        assert!(differences.len() < TRIES, "{asked:?}: {}", differences.join("\n"));
    }
}

/// In what the plans of a job differ from those that were shown before it, if they do.
fn difference((server, folder): (&Server, &Path), asked: Asked, seed: usize) -> Option<String> {
    let names = [FLUX, CLIP_L, T5, AUTOENCODER];
    // Other models leave first, so that all plans see the same devices; and their times are told before the job's own
    // change them.
    server.free(&json!({ "force": true, "free_memory": true }));
    let shown: Vec<Value> = names.iter().map(|name| planned_by_server(server, name, asked)).collect();
    let printed: Vec<Value> = names.iter().map(|name| planned_by_command(folder, name, asked)).collect();
    server.run(&prompt(asked, seed));
    for ((name, shown), printed) in names.iter().zip(&shown).zip(&printed) {
        assert_eq!(places(shown), places(printed), "{name} {asked:?}: the page and the command line");
        let ran = places(&server.model(name)["plan"]);
        if ran != places(shown) {
            return Some(format!("{name} ran as {ran} and was shown as {}", places(shown)));
        }
    }
    None
}
