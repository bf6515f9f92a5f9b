//! Runs single nodes: a runtime over a folder that goes away, and calls made by hand.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use device::Registry;
use graph::{
    Call, Catalogue, Failure, GraphNode, GraphView, Identity, Inputs, JobContext, Literal, Map, NodeId,
    Object, Observer, Outcome, Outputs, Prompt, PromptNode, RunEvent, Slot, Value,
};
use meta::DeviceId;
use nodes::value::{Image, LatentImage, Mask};
use runtime::host::{Host, Samples};
use runtime::{Folders, Runtime};
use runtime::{KeptPictures, Settings};
use sampling::Latent;
use testkit::ScratchDir;

/// A folder with everything, and the classes over it.
pub(crate) struct Workbench {
    pub(crate) folder: ScratchDir,
    pub(crate) catalogue: Catalogue,
    pub(crate) events: Arc<Events>,
    pub(crate) extra: Map,
}

/// What nodes told.
#[derive(Default)]
pub(crate) struct Events(pub(crate) Mutex<Vec<RunEvent>>);

impl Observer for Events {
    fn event(&self, event: RunEvent) {
        self.0.lock().unwrap().push(event);
    }
}

struct NoGraph;

impl GraphView for NoGraph {
    fn node(&self, _id: &str) -> Option<GraphNode> {
        None
    }

    fn ids(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn display_of(&self, id: &str) -> NodeId {
        id.into()
    }
}

impl Workbench {
    pub(crate) fn new() -> Workbench {
        Workbench::with(Settings::default())
    }

    pub(crate) fn with(settings: Settings) -> Workbench {
        Workbench::on(Registry::new([]), settings)
    }

    /// On these devices.
    pub(crate) fn on(devices: Registry, settings: Settings) -> Workbench {
        Workbench::over(devices, settings, |_| ()).0
    }

    /// One that keeps saved pictures in memory.
    pub(crate) fn keeping() -> (Workbench, KeptPictures) {
        Workbench::over(Registry::new([]), Settings::default(), Runtime::keep_pictures)
    }

    fn over<T>(
        devices: Registry,
        settings: Settings,
        prepare: impl FnOnce(&mut Runtime) -> T,
    ) -> (Workbench, T) {
        let folder = ScratchDir::new().unwrap();
        let folders = Folders::at(folder.path());
        std::fs::create_dir_all(&folders.input).unwrap();
        let mut runtime = Runtime::new(folders, devices, DeviceId::CPU, settings);
        let prepared = prepare(&mut runtime);
        let catalogue = nodes::catalogue(&Arc::new(runtime));
        (Workbench { folder, catalogue, events: Arc::default(), extra: Map::new() }, prepared)
    }

    /// A call of a class; inputs that are not given have their defaults, menus their first entry.
    pub(crate) fn call(&self, class: &str, mut inputs: Inputs) -> Call {
        for input in self.catalogue.get(class).unwrap().schema().inputs {
            let first = match &input.kind {
                graph::Kind::Choice(values) => values.first().cloned(),
                _ => None,
            };
            let default = input.options.get("default").cloned().or(first);
            if let (false, Some(default)) = (inputs.values.contains_key(&input.name), default) {
                inputs = inputs.with(&input.name, default);
            }
        }
        let mut prompt = Prompt::default();
        let sent = graph::map([("note", Literal::from("grün"))]);
        prompt.nodes.insert("1".into(), PromptNode::new(class, sent));
        let id: NodeId = "1".into();
        let identity = Identity {
            node: Arc::clone(&id),
            display: Arc::clone(&id),
            parent: None,
            real: id,
            class: class.to_owned(),
        };
        let observer: Arc<dyn Observer> = Arc::clone(&self.events) as _;
        let job = JobContext {
            prompt_id: "job".to_owned(),
            prompt: Arc::new(prompt),
            extra: self.extra.clone(),
            secrets: Map::new(),
            cancel: Arc::new(AtomicBool::new(false)),
            worker: None,
            ended: AtomicBool::new(false),
            observer,
            graph: Arc::new(NoGraph),
        };
        Call { identity: Arc::new(identity), index: 0, inputs, unknown: Vec::new(), job: Arc::new(job) }
    }

    pub(crate) fn run(&self, class: &str, inputs: Inputs) -> Result<Outcome, Failure> {
        self.catalogue.get(class).unwrap().run(&self.call(class, inputs))
    }

    /// The first output of a class as an object.
    pub(crate) fn object<T: Object>(&self, class: &str, inputs: Inputs) -> Arc<T> {
        object(&self.run(class, inputs).unwrap(), 0)
    }

    pub(crate) fn image(&self, class: &str, inputs: Inputs) -> Arc<Image> {
        self.object(class, inputs)
    }

    pub(crate) fn mask(&self, class: &str, inputs: Inputs) -> Arc<Mask> {
        self.object(class, inputs)
    }

    pub(crate) fn latent(&self, class: &str, inputs: Inputs) -> Arc<LatentImage> {
        self.object(class, inputs)
    }

    /// The first output of a class as a constant.
    pub(crate) fn literal(&self, class: &str, inputs: Inputs) -> Literal {
        literal(&self.run(class, inputs).unwrap(), 0)
    }
}

pub(crate) fn inputs() -> Inputs {
    Inputs::default()
}

/// The values of an output, of which a list has several.
pub(crate) fn outputs(outcome: &Outcome, slot: usize) -> Vec<Value> {
    let Outputs::Slots(slots) = &outcome.outputs else { panic!("the outputs are blocked") };
    match &slots[slot] {
        Slot::One(value) => vec![value.clone()],
        Slot::Many(values) => values.clone(),
        Slot::Link(link) => panic!("a link to {link:?}"),
    }
}

pub(crate) fn object<T: Object>(outcome: &Outcome, slot: usize) -> Arc<T> {
    outputs(outcome, slot)[0].downcast().expect("an object of another type")
}

pub(crate) fn literal(outcome: &Outcome, slot: usize) -> Literal {
    outputs(outcome, slot)[0].literal().expect("no constant").clone()
}

/// An object as an input.
pub(crate) fn value<T: Object + Clone>(object: &T) -> Value {
    Value::object(object.clone())
}

pub(crate) fn image(shape: [usize; 4], value: impl Fn(usize) -> f32) -> Image {
    Image::collect(&Host::with_budget(1 << 30), shape, (0..shape.iter().product()).map(value)).unwrap()
}

pub(crate) fn mask(shape: [usize; 3], value: impl Fn(usize) -> f32) -> Mask {
    Mask::collect(&Host::with_budget(1 << 30), shape, (0..shape.iter().product()).map(value)).unwrap()
}

pub(crate) fn latent(shape: &[usize], value: impl Fn(usize) -> f32) -> LatentImage {
    let values = (0..shape.iter().product()).map(value).collect();
    let latent = Latent::new(shape.to_vec(), values).unwrap();
    LatentImage::new(Samples::new(&Host::with_budget(1 << 30), latent).unwrap())
}

/// What went wrong, as text.
pub(crate) fn failure(result: Result<Outcome, Failure>) -> String {
    result.expect_err("it went well").to_string()
}
