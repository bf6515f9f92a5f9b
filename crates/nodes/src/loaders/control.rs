//! Control networks.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Value};

use super::variants::add_with_variants;
use super::{Found, Loader};
use crate::Runtime;
use runtime::{ControlNet, Model, Placing, Source};

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, ControlLoader { takes_model: false });
    add_with_variants(catalogue, runtime, ControlLoader { takes_model: true });
}

/// The key of the folder that has them.
const KEY: &str = "controlnet";
/// Ends of the names of files whose results are meant as means over the whole picture, which nothing inside of them says.
const AVERAGING: [&str; 2] = ["_shuffle", "_shuffle_fp16"];

/// `ControlNetLoader`, and `DiffControlNetLoader` for files that hold differences to a model's weights.
struct ControlLoader {
    takes_model: bool,
}

impl Loader for ControlLoader {
    fn class(&self) -> &'static str {
        if self.takes_model { "DiffControlNetLoader" } else { "ControlNetLoader" }
    }

    fn title(&self) -> &'static str {
        if self.takes_model { "Load ControlNet Model (diff)" } else { "Load ControlNet Model" }
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let name = Input::choice("control_net_name", runtime.names(KEY));
        if self.takes_model { vec![Input::socket("model", "MODEL"), name] } else { vec![name] }
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("control_net_name", &[KEY])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["CONTROL_NET"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "control_net_name", &[KEY])?;
        let mut source = Source::control(&found.file, &found.detected, placing.clone())?;
        if self.takes_model && source.control_network()?.needs_base() {
            source = source.on_base(&call.object::<Model>("model")?.source)?;
        }
        // One that has weights of a model is registered when that is known.
        if !source.control_network()?.needs_base() {
            runtime.register(&source)?;
        }
        let stem = found.file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned());
        let averages = stem.is_some_and(|stem| AVERAGING.iter().any(|end| stem.ends_with(end)));
        let network = ControlNet { source: Arc::new(source), picture_kind: None, averages };
        Ok(vec![Value::object(network)])
    }
}
