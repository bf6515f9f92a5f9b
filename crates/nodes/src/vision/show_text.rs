//! `ShowText|pysssss`: shows text on the node, and passes it on.

use graph::{Call, Catalogue, Failure, Hidden, Input, Literal, NodeClass, Outcome, Schema, Slot, Value};

/// Adds the class of this file.
pub(super) fn add(catalogue: &mut Catalogue) {
    catalogue.add(ShowText);
}

struct ShowText;

impl NodeClass for ShowText {
    fn schema(&self) -> Schema {
        Schema::new("ShowText|pysssss", "utils")
            .title("Show Text")
            .about("Shows text, and passes it on.")
            .module("custom_nodes.comfyui-custom-scripts")
            .input(Input::new("text", graph::Kind::Text).with("forceInput", true))
            .hidden("unique_id", Hidden::UniqueId)
            .hidden("extra_pnginfo", Hidden::ExtraPngInfo)
            .list_output("STRING", "STRING")
            .takes_lists()
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let texts = call.inputs.list("text").to_vec();
        let shown =
            |value: &Value| value.literal().cloned().unwrap_or_else(|| Literal::from(value.describe()));
        let ui = graph::map([("text", Literal::List(texts.iter().map(shown).collect()))]);
        Ok(Outcome::slots([Slot::Many(texts)]).with_ui(ui))
    }
}
