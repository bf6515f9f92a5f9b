//! The classes that are derived from a loader: the plain one, and those for several devices.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Literal, NodeClass, Outcome, Schema};
use meta::DeviceId;

use super::placing::{
    Asked, automatic, device_input, device_of, expert_input, float_or, follows, placing, text_or,
    usual_device, virtual_vram_input,
};
use super::{Loader, LoaderKind, path_of};
use crate::Runtime;
use runtime::Placing;

/// The pack that the variants belong to.
pub(super) const MODULE: &str = "custom_nodes.ComfyUI-MultiGPU";
/// What leaves the compute device unless it is said, in gigabytes.
const USUAL_GIGABYTES: f64 = 4.0;

/// Adds a loader with all its variants.
pub(super) fn add_with_variants(catalogue: &mut Catalogue, runtime: &Arc<Runtime>, loader: impl Loader) {
    let loader: Arc<dyn Loader> = Arc::new(loader);
    for variant in [Variant::Plain, Variant::Device, Variant::Spread, Variant::Legacy] {
        if variant != Variant::Legacy || loader.has_legacy_variant() {
            let (runtime, loader) = (Arc::clone(runtime), Arc::clone(&loader));
            catalogue.add(LoaderClass { runtime, loader, variant });
        }
    }
}

/// How much of the placing a class lets its user say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    /// Nothing.
    Plain,
    /// Where it computes.
    Device,
    /// Where it computes, where its bytes go, and whether it stays.
    Spread,
    /// As older workflows say it.
    Legacy,
}

/// A loader in one of its variants.
struct LoaderClass {
    runtime: Arc<Runtime>,
    loader: Arc<dyn Loader>,
    variant: Variant,
}

impl Variant {
    fn ending(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::Device => "MultiGPU",
            Variant::Spread => "DisTorch2MultiGPU",
            Variant::Legacy => "DisTorchMultiGPU",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Variant::Plain => "",
            Variant::Device => " on a Device",
            Variant::Spread => " over Devices",
            Variant::Legacy => " over Devices (Legacy)",
        }
    }

    fn category(self) -> &'static str {
        match self {
            Variant::Plain | Variant::Device => "multigpu",
            Variant::Spread => "multigpu/distorch_2",
            Variant::Legacy => "multigpu/legacy",
        }
    }
}

impl LoaderClass {
    /// The name of the input that says where it computes.
    fn device_name(&self) -> &'static str {
        match (self.variant, self.loader.kind()) {
            (Variant::Spread, LoaderKind::Weights) => "compute_device",
            _ => "device",
        }
    }

    /// The inputs that this variant adds, in the order that stored workflows have.
    fn added_inputs(&self) -> Vec<Input> {
        let runtime = &self.runtime;
        let device = device_input(runtime, self.device_name(), &usual_device(runtime));
        match self.variant {
            Variant::Plain if self.loader.has_device_input() => {
                vec![Input::choice("device", ["default", "cpu"]).with("advanced", true)]
            }
            Variant::Plain => Vec::new(),
            Variant::Device if self.loader.has_offload_input() => {
                vec![device, device_input(runtime, "offload_device", "cpu")]
            }
            Variant::Device => vec![device],
            Variant::Spread => vec![
                device,
                virtual_vram_input("virtual_vram_gb", USUAL_GIGABYTES, 128.0),
                device_input(runtime, "donor_device", "cpu"),
                expert_input("expert_mode_allocations"),
                Input::boolean("eject_models", self.loader.kind() == LoaderKind::Weights),
                Input::boolean("keep_loaded", true),
            ],
            Variant::Legacy => vec![
                device,
                virtual_vram_input("virtual_vram_gb", USUAL_GIGABYTES, 24.0),
                Input::boolean("use_other_vram", false),
                expert_input("expert_mode_allocations"),
            ],
        }
    }

    fn placing(&self, call: &Call) -> Result<Placing, Failure> {
        let runtime = &self.runtime;
        if self.variant == Variant::Plain {
            let on_host = call.inputs.first("device").is_some() && call.text("device")? == "cpu";
            return Ok(match on_host {
                true => Placing::automatic(DeviceId::CPU),
                false => Placing::following(runtime.device_for(&call.job)),
            });
        }
        if self.variant == Variant::Device {
            return automatic(runtime, call, self.device_name());
        }
        let compute = device_of(runtime, call, self.device_name())?;
        let legacy = self.variant == Variant::Legacy;
        let others =
            legacy && call.inputs.first("use_other_vram").is_some() && call.boolean("use_other_vram")?;
        let mut donors = Vec::new();
        if others {
            let accelerators = runtime.devices.iter().map(device::Device::id);
            donors.extend(accelerators.filter(|id| *id != DeviceId::CPU && *id != compute));
            donors.sort();
        }
        donors.push(match call.inputs.first("donor_device") {
            Some(_) => device_of(runtime, call, "donor_device")?,
            None => DeviceId::CPU,
        });
        // Where the input is absent, the newer classes move their default and the older ones nothing.
        let absent = if legacy { 0.0 } else { USUAL_GIGABYTES };
        let asked = Asked {
            compute,
            follows: follows(call, self.device_name()),
            virtual_vram_gb: float_or(call, "virtual_vram_gb", absent)?,
            donors,
            expert: text_or(call, "expert_mode_allocations", "")?,
        };
        placing(runtime, call, &asked)
    }
}

impl NodeClass for LoaderClass {
    fn schema(&self) -> Schema {
        let (loader, variant) = (&self.loader, self.variant);
        let plain = variant == Variant::Plain;
        let category = if plain { loader.category() } else { variant.category() };
        let mut schema = Schema::new(format!("{}{}", loader.class(), variant.ending()), category)
            .title(format!("{}{}", loader.title(), variant.title()));
        if !plain {
            schema = schema.module(MODULE);
        } else if let Some(pack) = loader.pack() {
            schema = schema.module(pack);
        }
        schema.inputs = loader.inputs(&self.runtime);
        schema.inputs.extend(self.added_inputs().into_iter().map(Input::optional));
        let outputs = loader.outputs().iter().zip(loader.output_names());
        outputs.fold(schema, |schema, (kind, name)| schema.named_output(kind, name))
    }

    /// A file that was replaced under its name is another model.
    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        let mut texts = Vec::new();
        for (input, folders) in self.loader.file_inputs() {
            // A linked name is not known yet; what gives it says when it changes.
            let Ok(name) = call.text(input) else { continue };
            let Ok(path) = path_of(&self.runtime, name, folders) else { continue };
            let about = std::fs::metadata(&path);
            texts.push(about.map_or_else(
                |_| "none".to_owned(),
                |about| format!("{} {:?}", about.len(), about.modified().ok()),
            ));
        }
        Ok((!texts.is_empty()).then(|| Literal::Text(texts.join(", "))))
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let placing = self.placing(call)?;
        Ok(Outcome::values(self.loader.load(&self.runtime, call, &placing)?))
    }
}
