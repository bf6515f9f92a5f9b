//! Nodes that say after the loader where a model computes, and on how many accelerators at the same time.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Given, Input, NodeClass, Outcome, Schema, Validates, Verdict};
use meta::DeviceId;

use crate::Runtime;
use crate::class::class;
use crate::named_devices::numbered_gpu;
use runtime::{Clip, Model, Source, Vae};

/// What the part of ComfyUI is called that they come from.
const MODULE: &str = "comfy_extras.nodes_multigpu";

pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(MultiGPUCfgSplit(Arc::clone(runtime)));
    for kind in [Kind::Model, Kind::Clip, Kind::Vae] {
        catalogue.add(SelectDevice { runtime: Arc::clone(runtime), kind });
    }
}

class! {
    /// The evaluations of a step on several accelerators at the same time.
    MultiGPUCfgSplit called "MultiGPU_WorkUnits" in "advanced/multigpu";
    |schema| schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::int("max_gpus", 2, 1, 2048))
        .title("MultiGPU CFG Split")
        .output("MODEL")
        .module(MODULE);
    |_runtime, call| {
        let model = call.object::<Model>("model")?;
        Ok(Outcome::object(Model { most_devices: call.size("max_gpus")?.max(1), ..Model::clone(&model) }))
    }
}

/// What is put on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Model,
    Clip,
    Vae,
}

/// Puts what a loader gave on a device.
struct SelectDevice {
    runtime: Arc<Runtime>,
    kind: Kind,
}

/// Where something goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// Where its loader put it.
    AsLoaded,
    /// There.
    On(DeviceId),
    /// Where it is: what was chosen is not here.
    AsItIs,
}

impl SelectDevice {
    fn choices(&self) -> Vec<String> {
        let accelerators = self.runtime.devices.iter().filter(|device| device.id() != DeviceId::CPU).count();
        let mut names = vec!["default".to_owned()];
        if self.kind != Kind::Vae {
            names.push("cpu".to_owned());
        }
        // One accelerator is where everything goes anyway.
        let numbered = if accelerators > 1 { accelerators } else { 0 };
        names.extend((0..numbered).map(|number| format!("gpu:{number}")));
        names
    }

    fn chosen(&self, name: &str) -> Choice {
        let known = || self.runtime.devices.iter().map(device::Device::id);
        let named = numbered_gpu(name, known())
            .or_else(|| name.parse().ok().filter(|id| known().any(|known| known == *id)));
        match (name, named) {
            ("default", _) => Choice::AsLoaded,
            (_, Some(DeviceId::CPU)) if self.kind == Kind::Vae => Choice::AsItIs,
            (_, Some(device)) => Choice::On(device),
            _ => Choice::AsItIs,
        }
    }

    /// The same network where it is to go, registered there.
    fn placed(&self, source: &Arc<Source>, choice: Choice) -> Result<Arc<Source>, Failure> {
        let placed = match choice {
            Choice::AsItIs => return Ok(Arc::clone(source)),
            Choice::AsLoaded => source.as_loaded(),
            Choice::On(device) => source.placed_on(device),
        };
        self.runtime.register(&placed)?;
        Ok(Arc::new(placed))
    }
}

impl NodeClass for SelectDevice {
    fn schema(&self) -> Schema {
        let (class, title, input, kind) = match self.kind {
            Kind::Model => ("SelectModelDevice", "Select Model Device", "model", "MODEL"),
            Kind::Clip => ("SelectCLIPDevice", "Select CLIP Device", "clip", "CLIP"),
            Kind::Vae => ("SelectVAEDevice", "Select VAE Device", "vae", "VAE"),
        };
        Schema::new(class, "advanced/multigpu")
            .title(title)
            .input(Input::socket(input, kind))
            .input(Input::choice("device", self.choices()))
            .output(kind)
            .module(MODULE)
    }

    /// A workflow of a machine with more devices runs here, too.
    fn validates(&self) -> Validates {
        Validates { inputs: vec!["device"], ..Validates::default() }
    }

    fn validate(&self, _: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Good)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let name = call.text("device")?;
        let choice = self.chosen(name);
        if choice == Choice::AsItIs {
            tracing::info!("there is no device {name} here for {:?}; it stays where it is", self.kind);
        }
        Ok(match self.kind {
            Kind::Model => {
                let model = call.object::<Model>("model")?;
                let source = self.placed(&model.source, choice)?;
                Outcome::object(Model { source, ..Model::clone(&model) })
            }
            Kind::Clip => {
                let clip = call.object::<Clip>("clip")?;
                let encoders = clip
                    .encoders
                    .iter()
                    .map(|source| self.placed(source, choice))
                    .collect::<Result<_, _>>()?;
                let tower = clip.tower.as_ref().map(|source| self.placed(source, choice)).transpose()?;
                Outcome::object(Clip { encoders, tower, ..Clip::clone(&clip) })
            }
            Kind::Vae => {
                let vae = call.object::<Vae>("vae")?;
                Outcome::object(Vae { source: self.placed(&vae.source, choice)? })
            }
        })
    }
}
