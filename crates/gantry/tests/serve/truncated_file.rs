//! A model's file is cut short while a job reads it, and then put back: that job fails with a sentence, the next one is
//! right, and the process is the same one.

use std::fs::OpenOptions;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::model_files::demo;
use crate::prompts::{set_loader, text_to_image};
use crate::server::Server;

/// The file's name, which is not that of one that comes with the program.
const NAME: &str = "cut-short.safetensors";

/// A server whose diffusion model is a file of its own.
struct World {
    server: Server,
    file: PathBuf,
    bytes: Vec<u8>,
    _folder: ScratchDir,
}

impl World {
    fn new(flags: &[&str]) -> World {
        let folder = ScratchDir::new().unwrap();
        let models = folder.path().join("models/diffusion_models");
        std::fs::create_dir_all(&models).unwrap();
        let (file, bytes) = (models.join(NAME), std::fs::read(demo("demo-flux.safetensors")).unwrap());
        std::fs::write(&file, &bytes).unwrap();
        World { server: Server::start(folder.path(), flags), file, bytes, _folder: folder }
    }

    /// Cuts the file short, as a download in place does.
    fn truncate(&self) {
        let file = OpenOptions::new().write(true).open(&self.file).unwrap();
        file.set_len(self.bytes.len() as u64 / 4).unwrap();
    }

    fn restore(&self) {
        std::fs::write(&self.file, &self.bytes).unwrap();
    }

    /// Runs a job and cuts the file short meanwhile; then whatever a user would see.
    fn run_while_it_is_cut(&self, prompt: &Value) -> String {
        let process = self.server.process();
        let id = self.server.queue(prompt);
        self.server.until("sampling", |server| {
            server.get("/gantry/models")["models"]
                .as_array()
                .unwrap()
                .iter()
                .any(|model| model["name"] == NAME && model["staged"] == true)
        });
        std::thread::sleep(Duration::from_millis(300));
        let (running, _) = self.server.jobs();
        assert_eq!(running, [id.as_str()], "the file is cut while the job runs");
        self.truncate();
        let ended = self.server.wait(&id);
        assert_eq!(self.server.process(), process);
        assert_eq!(ended.entry["status"]["status_str"], "error", "{}", ended.entry["status"]);
        ended.message("execution_error")["exception_message"].as_str().unwrap().to_owned()
    }
}

fn with_seed(mut prompt: Value, seed: u32) -> Value {
    prompt["6"]["inputs"]["seed"] = json!(seed);
    prompt
}

/// The whole story, for a loader.
fn a_file_is_cut_and_put_back(world: &World, prompt: impl Fn(u32) -> Value, long_steps: u32) {
    let process = world.server.process();
    let right = world.server.run(&prompt(2)).latent("9");
    let told = world.run_while_it_is_cut(&with_seed(prompt(long_steps), 2));
    assert!(told.contains(NAME) && told.contains("while it was in use"), "{told}");
    assert!(told.contains("queue the job again"), "it says what to do: {told}");

    let told = world.server.run_badly(&with_seed(prompt(2), 3));
    assert!(told.contains(NAME), "the file is still short: {told}");

    world.restore();
    let again = world.server.run(&prompt(2)).latent("9");
    assert!(again == right, "the picture is another one");
    assert_eq!(world.server.process(), process);
    let models = world.server.get("/gantry/models");
    let loaded = models["models"].as_array().unwrap().iter().filter(|model| model["name"] == NAME).count();
    assert_eq!(loaded, 1, "{models}");
}

#[test]
fn a_kept_model_that_streams_survives_its_file() {
    let world = World::new(&["--sim-device", "1gb@0.01gbps"]);
    let prompt = |steps: u32| {
        let mut prompt = text_to_image(64, steps);
        prompt["1"]["inputs"]["unet_name"] = json!(NAME);
        let more = json!({
            "compute_device": "sim:0", "virtual_vram_gb": 0.0, "keep_loaded": true,
            "expert_mode_allocations": "sim:0,0.5mb;cpu,*",
        });
        set_loader(&mut prompt, "1", "UNETLoaderDisTorch2MultiGPU", &more);
        prompt
    };
    a_file_is_cut_and_put_back(&world, prompt, 40);
    assert_eq!(world.server.model(NAME)["retention"], "keep");
}

/// Where the CPU computes in the mapped file itself.
#[test]
fn a_model_that_computes_in_its_file_survives_it() {
    let world = World::new(&[]);
    let prompt = |steps: u32| {
        let mut prompt = text_to_image(128, steps);
        prompt["1"]["inputs"]["unet_name"] = json!(NAME);
        prompt
    };
    a_file_is_cut_and_put_back(&world, prompt, 150);
}
