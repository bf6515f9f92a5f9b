//! What is to be where in a picture: texts with boxes, which a network tells a diffusion model beside its conditioning.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome};
use runtime::{ModelPatch, Runtime};

use crate::class::class;
use crate::conditioning::changed;
use crate::text::{Prompts, clip_of, encode, prompt_input};
use crate::value::{Grounded, PlacedText};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(GLIGENTextBoxApply(Arc::clone(runtime)));
}

/// Pixels along each side of a latent value.
const PIXELS: usize = 8;
/// The longest side of a picture.
const LONGEST: u64 = 16384;

class! {
    /// A conditioning that says what is to be in a box.
    GLIGENTextBoxApply in "conditioning/gligen";
    |schema| schema
        .input(Input::socket("conditioning_to", "CONDITIONING"))
        .input(Input::socket("clip", "CLIP"))
        .input(Input::socket("gligen_textbox_model", "GLIGEN"))
        .input(prompt_input("text"))
        .input(Input::int("width", 64, 8, LONGEST).with("step", 8))
        .input(Input::int("height", 64, 8, LONGEST).with("step", 8))
        .input(Input::int("x", 0, 0, LONGEST).with("step", 8))
        .input(Input::int("y", 0, 0, LONGEST).with("step", 8))
        .output("CONDITIONING");
    |runtime, call| {
        let network = call.object::<ModelPatch>("gligen_textbox_model")?;
        let text = placed(runtime, call, &network)?;
        let told = changed(call, "conditioning_to", |entry| {
            let before = entry.grounding.iter().flat_map(|grounded| &grounded.texts);
            let texts = before.chain([&text]).cloned().collect();
            entry.grounding = Some(Arc::new(Grounded { network: Arc::clone(&network), texts }));
        })?;
        Ok(Outcome::object(told))
    }
}

/// The text of a call with its place.
fn placed(runtime: &Runtime, call: &Call, network: &ModelPatch) -> Result<PlacedText, Failure> {
    let side = |input: &str| Ok::<usize, Failure>(call.size(input)? / PIXELS);
    let place = [side("height")?, side("width")?, side("y")?, side("x")?];
    let entry = encode(runtime, call, &*clip_of(call)?, Prompts::same(call.text("text")?))?;
    let wanted = network.source.patch_network()?.text_width().unwrap_or(0);
    match entry.cond.pooled {
        Some(text) if text.shape == [1, wanted] => Ok(PlacedText { text, place }),
        other => {
            let got = other.map_or("none".to_owned(), |text| format!("one of shape {:?}", text.shape));
            Err(Failure::value(format!(
                "{} takes the whole text as one vector of {wanted} values, and the text encoder gives {got}; link the text \
                 encoder of the model that the file was made for",
                network.source.name()
            )))
        }
    }
}
