//! Patches of diffusion models: pictures that a model follows, whatever its conditioning says. The classes belong to
//! families; what they share is here.

mod pictures;

use std::sync::Arc;

use graph::{Call, Failure, Input, Outcome, Schema};
use runtime::{Model, ModelPatch, Patching, Pixels, Vae};

use crate::value::{Image, Mask};

pub(crate) use pictures::ready_picture;

/// Where ComfyUI has the classes.
pub(crate) const MODULE: &str = "comfy_extras.nodes_model_patch";

/// The inputs of nodes that put a patch on a model, up to the first picture.
pub(crate) fn patch_inputs(schema: Schema) -> Schema {
    let schema = schema
        .input(Input::socket("model", "MODEL"))
        .input(Input::socket("model_patch", "MODEL_PATCH"))
        .input(Input::socket("vae", "VAE"))
        .output("MODEL")
        .module(MODULE);
    Schema { is_experimental: true, ..schema }
}

/// How much a patch counts.
pub(crate) fn strength_input() -> Input {
    Input::float("strength", 1.0, -10.0, 10.0, 0.01)
}

/// A model with one more patch, for the inputs that such nodes share.
pub(crate) fn patched(call: &Call) -> Result<Outcome, Failure> {
    let model = call.object::<Model>("model")?;
    let picture = |input: &str| -> Result<Option<Pixels>, Failure> {
        let image = call.object_if_given::<Image>(input)?;
        Ok(image.map(|image| Pixels { shape: image.shape(), values: image.values.clone() }))
    };
    let kept = match call.object_if_given::<Mask>("mask")? {
        // The patch is told what stays, and the mask says what is made new.
        Some(mask) => {
            let kept = mask.map(|value| 1.0 - value)?;
            Some(Pixels { shape: [kept.batch, kept.height, kept.width, 1], values: kept.values.clone() })
        }
        None => None,
    };
    let patching = Patching {
        patch: call.object::<ModelPatch>("model_patch")?,
        vae: call.object::<Vae>("vae")?,
        picture: picture("image")?,
        rest: picture("inpaint_image")?,
        kept,
        strength: call.float("strength")? as f32,
    };
    if patching.picture.is_none() && patching.rest.is_none() {
        let text = "a model patch needs a picture: connect \"image\" or \"inpaint_image\"";
        return Err(Failure::value(text.to_owned()));
    }
    let mut patched = Model::clone(&model);
    patched.patches.push(Arc::new(patching));
    Ok(Outcome::object(patched))
}
