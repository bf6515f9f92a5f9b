//! A runtime with regenerated model files, and prompts whose values are collected.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use device::{Backend, Device, Registry};
use device_cpu::CpuBackend;
use graph::{
    CacheMode, Call, Catalogue, Executor, Failure, Input, Literal, Map, NodeClass, Object, Observer, Outcome,
    Prompt, PromptNode, RunEnd, RunEvent, RunRequest, Schema, Value,
};
use meta::{DType, DeviceId, Shape};
use nodes::value::{Array, Conditioning, Entry};
use runtime::{Folders, Runtime};
use runtime::{PreviewMethod, Settings};
use sampling::Latent;
use tensor::{Lane, Weight};
use testkit::{Manifest, SafetensorsWriter, ScratchDir};

/// The model files that the workflows name.
const FILES: [&str; 11] = [
    "flux_dev_d1s1",
    "t5xxl_tiny",
    "flux_ae",
    "clip_l_tiny",
    "flux_dev_micro",
    "flux_dev_micro-Q8_0",
    "flux_dev_micro_fp8",
    "flux_dev_micro_fp8_scaled",
    "flux_schnell_micro",
    "flux_dev_micro_lora_kohya",
    "flux_dev_micro_lora_diffusers",
];

/// A file of the reference.
pub(crate) fn data(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/flux_runs").join(name)
}

/// All workflows of the reference.
pub(crate) fn workflows() -> Literal {
    serde_json::from_str(&std::fs::read_to_string(data("workflows.json")).unwrap()).unwrap()
}

/// Sets an input of a node of a workflow.
pub(crate) fn set(workflow: &mut Literal, node: &str, input: &str, value: impl Into<Literal>) {
    let Literal::Map(nodes) = workflow else { panic!("a workflow is an object") };
    let Some(Literal::Map(node)) = nodes.get_mut(node) else { panic!("there is no node {node}") };
    let Some(Literal::Map(inputs)) = node.get_mut("inputs") else { panic!("it has no inputs") };
    inputs.insert(input.to_owned(), value.into());
}

/// A machine with the host alone.
pub(crate) fn host() -> Registry {
    let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
    Registry::new([Device::new(backend, 16 << 30)])
}

/// A runtime with all files, and its classes.
pub(crate) struct Bench {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) catalogue: Arc<Catalogue>,
    collected: Arc<Mutex<HashMap<String, Value>>>,
    folder: ScratchDir,
}

/// What a run left.
pub(crate) struct Collected(HashMap<String, Value>);

impl Collected {
    pub(crate) fn object<T: Object>(&self, key: &str) -> Arc<T> {
        self.0[key].downcast().unwrap()
    }
}

/// A prompt that is ready to run, and a way to stop it.
pub(crate) struct Job {
    pub(crate) request: RunRequest,
    pub(crate) events: Arc<Mutex<Vec<RunEvent>>>,
    pub(crate) stop_after_steps: Arc<AtomicUsize>,
}

impl Bench {
    /// All files, on the host alone.
    pub(crate) fn new() -> Bench {
        Bench::with(&FILES, host(), DeviceId::CPU)
    }

    /// Some files, on a machine.
    pub(crate) fn with(files: &[&str], devices: Registry, compute: DeviceId) -> Bench {
        let folder = ScratchDir::new().unwrap();
        let models = folder.path().join("models");
        std::thread::scope(|scope| {
            for name in files {
                let models = &models;
                scope.spawn(move || Manifest::bundled(name).unwrap().write_to(models).unwrap());
            }
        });
        if models.join("diffusion_models/flux_dev_micro.safetensors").is_file() {
            write_filling(&models.join("diffusion_models"));
        }
        if models.join("diffusion_models/flux_dev_micro-Q8_0.gguf").is_file() {
            write_rounded(&models.join("diffusion_models"));
        }
        let input = folder.path().join("input");
        std::fs::create_dir_all(&input).unwrap();
        for picture in ["image.png", "mask.png"] {
            std::fs::copy(data(picture), input.join(picture)).unwrap();
        }
        let settings = Settings { preview: PreviewMethod::LatentToRgb, ..Settings::default() };
        let runtime = Arc::new(Runtime::new(Folders::at(folder.path()), devices, compute, settings));
        let collected = Arc::new(Mutex::new(HashMap::new()));
        let mut catalogue = nodes::catalogue(&runtime);
        catalogue.add(Collect(Arc::clone(&collected)));
        catalogue.add(Tell);
        Bench { runtime, catalogue: Arc::new(catalogue), collected, folder }
    }

    /// Where files are loaded from.
    pub(crate) fn input(&self, name: &str) -> PathBuf {
        self.folder.join("input").join(name)
    }

    /// Where model files are looked for.
    pub(crate) fn models(&self) -> PathBuf {
        self.folder.join("models")
    }

    /// Where files are saved.
    pub(crate) fn output(&self, name: &str) -> PathBuf {
        self.folder.join("output").join(name)
    }

    /// Runs output nodes of a workflow's own; `made` is a node that gives something.
    pub(crate) fn run_outputs(&self, workflow: &Literal, made: &str, outputs: &[&str]) {
        let mut request = self.job(workflow, &[("made", made)]).request;
        request.outputs = outputs.iter().map(|node| (*node).into()).collect();
        let report = self.executor().run(request);
        assert!(matches!(report.end, RunEnd::Succeeded), "{:?}", report.end);
    }

    /// Runs a workflow that is to fail; why it does.
    pub(crate) fn failure(&self, workflow: &Literal, node: &str) -> String {
        match self.executor().run(self.job(workflow, &[("made", node)]).request).end {
            RunEnd::Failed(failure) => failure.message,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn executor(&self) -> Executor {
        Executor::new(Arc::clone(&self.catalogue), CacheMode::Classic)
    }

    /// Runs a workflow to its end; what its nodes gave, by the names asked for.
    pub(crate) fn run(&self, workflow: &Literal, collect: &[(&str, &str)]) -> Collected {
        self.run_with(&mut self.executor(), workflow, collect)
    }

    pub(crate) fn run_with(
        &self,
        executor: &mut Executor,
        workflow: &Literal,
        collect: &[(&str, &str)],
    ) -> Collected {
        self.collected.lock().unwrap().clear();
        let report = executor.run(self.job(workflow, collect).request);
        assert!(matches!(report.end, RunEnd::Succeeded), "{:?}", report.end);
        Collected(std::mem::take(&mut *self.collected.lock().unwrap()))
    }

    /// Runs one node with constants; why it failed, if it did.
    pub(crate) fn call(&self, class: &str, inputs: &[(&str, Literal)]) -> Result<(), String> {
        let inputs = graph::map(inputs.iter().cloned());
        let node = graph::map([("class_type", class.into()), ("inputs", Literal::Map(inputs))]);
        let workflow = Literal::Map(graph::map([("1", Literal::Map(node))]));
        match self.executor().run(self.job(&workflow, &[("made", "1")]).request).end {
            RunEnd::Succeeded => Ok(()),
            RunEnd::Failed(failure) => Err(failure.message),
            other => panic!("{other:?}"),
        }
    }

    /// A workflow validated, with nodes that collect first outputs in the place of its own output nodes.
    pub(crate) fn job(&self, workflow: &Literal, collect: &[(&str, &str)]) -> Job {
        let mut prompt = Prompt::from_literal(workflow).unwrap();
        for (key, node) in collect {
            let link = Literal::List(vec![(*node).into(), 0.into()]);
            let inputs = graph::map([("value", link), ("key", (*key).into())]);
            prompt.nodes.insert(format!("collect {key}").into(), PromptNode::new("Collect", inputs));
        }
        let targets: Vec<String> = collect.iter().map(|(key, _)| format!("collect {key}")).collect();
        let accepted = graph::validate(&self.catalogue, &mut prompt, Some(&targets)).unwrap();
        assert!(accepted.node_errors.is_empty(), "{:?}", accepted.node_errors);
        let cancel = Arc::new(AtomicBool::new(false));
        let watcher = Arc::new(Watcher {
            events: Arc::default(),
            cancel: Arc::clone(&cancel),
            stop_after_steps: Arc::new(AtomicUsize::new(usize::MAX)),
        });
        let (events, stop_after_steps) = (Arc::clone(&watcher.events), Arc::clone(&watcher.stop_after_steps));
        let request = RunRequest {
            prompt_id: "golden".into(),
            prompt: Arc::new(prompt),
            outputs: accepted.outputs,
            extra: Map::new(),
            secrets: Map::new(),
            cancel,
            worker: None,
            observer: watcher,
        };
        Job { request, events, stop_after_steps }
    }
}

/// The small model as one that fills masks.
fn write_filling(folder: &Path) {
    let file = checkpoint::Checkpoint::open(folder.join("flux_dev_micro.safetensors")).unwrap();
    let mut writer = SafetensorsWriter::new();
    for key in file.metadata().keys() {
        writer = writer.metadata(key, file.metadata().str(key).unwrap());
    }
    // A picture and the pixels of a mask stand beside the latent: 16 + 16 + 64 channels in patches of four values.
    for entry in file.entries() {
        if entry.name() == "img_in.weight" {
            let rows = entry.shape().dims()[0];
            let values = testkit::random_f32(3, rows * 384).iter().map(|v| v * 0.1).collect::<Vec<_>>();
            writer = writer.values(entry.name(), DType::F32, Shape::from([rows, 384]), &values).unwrap();
        } else {
            writer =
                writer.tensor(entry.name(), entry.encoding(), *entry.shape(), file.bytes(entry).to_vec());
        }
    }
    writer.write(folder.join("flux_fill_micro.safetensors")).unwrap();
}

/// The quantised model unpacked, with every value rounded to 16 bits.
fn write_rounded(folder: &Path) {
    let file = checkpoint::Checkpoint::open(folder.join("flux_dev_micro-Q8_0.gguf")).unwrap();
    let machine = host();
    let lane = Lane::new(machine.get(DeviceId::CPU).unwrap(), DType::F32).unwrap();
    let sizes = "gantry_unet_config";
    let mut writer = SafetensorsWriter::new().metadata(sizes, file.metadata().str(sizes).unwrap());
    for entry in file.entries() {
        let weight =
            Weight::upload(lane.device(), entry.encoding(), *entry.shape(), file.bytes(entry)).unwrap();
        let values = lane.unpack(&weight).unwrap().to_vec().unwrap();
        let stored = if entry.encoding().quant().is_some() { DType::F16 } else { DType::F32 };
        writer = writer.values(entry.name(), stored, *entry.shape(), &values).unwrap();
    }
    writer.write(folder.join("flux_dev_micro-rounded.safetensors")).unwrap();
}

/// Keeps events, and ends the job after some steps.
struct Watcher {
    events: Arc<Mutex<Vec<RunEvent>>>,
    cancel: Arc<AtomicBool>,
    stop_after_steps: Arc<AtomicUsize>,
}

impl Observer for Watcher {
    fn event(&self, event: RunEvent) {
        if let RunEvent::Progress { value, .. } = &event
            && *value >= self.stop_after_steps.load(Ordering::Relaxed) as f64
        {
            self.cancel.store(true, Ordering::Relaxed);
        }
        self.events.lock().unwrap().push(event);
    }
}

/// A node that keeps what it is given.
struct Collect(Arc<Mutex<HashMap<String, Value>>>);

impl NodeClass for Collect {
    fn schema(&self) -> Schema {
        Schema::new("Collect", "testing")
            .input(Input::socket("value", "*"))
            .input(Input::text("key", ""))
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let value = call.value("value")?.clone();
        self.0.lock().unwrap().insert(call.text("key")?.to_owned(), value);
        Ok(Outcome::default())
    }
}

/// A node that gives a conditioning of random numbers, and what a model may look at besides.
struct Tell;

impl NodeClass for Tell {
    fn schema(&self) -> Schema {
        Schema::new("Tell", "testing")
            .input(Input::int("seed", 0, 0, 1000))
            .input(Input::boolean("beside", false))
            .input(Input::int("tokens", 6, 1, 1000).optional())
            .input(Input::int("width", 4096, 1, 10_000).optional())
            .input(Input::int("pooled", 768, 1, 10_000).optional())
            .output("CONDITIONING")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let seed = call.seed("seed")?;
        let random = |shape: &[usize], seed: u64| Array {
            shape: shape.to_vec(),
            values: testkit::random_normal(seed, shape.iter().product()),
        };
        let tokens = call.size("tokens").unwrap_or(6);
        let width = call.size("width").unwrap_or(4096);
        let pooled = call.size("pooled").unwrap_or(768);
        let mut entry = Entry::text(random(&[1, tokens, width], seed), Some(random(&[1, pooled], seed + 1)));
        if call.boolean("beside")? {
            let latent = random(&[1, 16, 8, 8], seed + 2);
            entry.cond.concat_latent = Some(Arc::new(Latent::new(latent.shape, latent.values).unwrap()));
            let values = testkit::random_f32(seed + 3, 64 * 64);
            entry.cond.concat_mask = Some(Arc::new(Latent::new(vec![1, 1, 64, 64], values).unwrap()));
        }
        Ok(Outcome::object(Conditioning { entries: vec![entry] }))
    }
}
