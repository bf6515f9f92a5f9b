//! Control networks: pictures that a conditioning follows.

mod hint;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use runtime::{ControlNet, Runtime, Vae};

use crate::class::class;
use crate::conditioning::changed;
use crate::image::{Method, Target, scale_mask};
use crate::value::{Conditioning, Control, Image, Mask};
use crate::{Error, Result};

pub(crate) use hint::{Hint, encoded_picture, ready_hint};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(ControlNetApply(runtime()));
    catalogue.add(ControlNetApplyAdvanced(runtime()));
    catalogue.add(SetUnionControlNetType(runtime()));
    catalogue.add(ControlNetInpaintingAliMamaApply(runtime()));
}

/// Where ComfyUI has the classes that came later.
const MODULE: &str = "comfy_extras.nodes_controlnet";

/// What a network for several kinds of pictures calls them, by the numbers that it knows them by.
const PICTURE_KINDS: [&str; 8] = [
    "openpose",
    "depth",
    "hed/pidi/scribble/ted",
    "canny/lineart/anime_lineart/mlsd",
    "normal",
    "segment",
    "tile",
    "repaint",
];

fn strength_input() -> Input {
    Input::float("strength", 1.0, 0.0, 10.0, 0.01)
}

/// The inputs of nodes that control a positive and a negative conditioning, but for their last ones.
pub(crate) fn both_inputs(schema: Schema) -> Schema {
    schema
        .input(Input::socket("positive", "CONDITIONING"))
        .input(Input::socket("negative", "CONDITIONING"))
        .input(Input::socket("control_net", "CONTROL_NET"))
}

/// How much and when, and both conditionings as outputs.
pub(crate) fn strength_and_time(schema: Schema) -> Schema {
    schema
        .input(strength_input())
        .input(Input::float("start_percent", 0.0, 0.0, 1.0, 0.001))
        .input(Input::float("end_percent", 1.0, 0.0, 1.0, 0.001))
        .named_output("CONDITIONING", "positive")
        .named_output("CONDITIONING", "negative")
}

class! {
    /// A conditioning that follows a picture, from the first step to the last. What it is guided away from does, too.
    ControlNetApply in "conditioning/controlnet";
    |schema| Schema {
        is_deprecated: true,
        ..schema
            .input(Input::socket("conditioning", "CONDITIONING"))
            .input(Input::socket("control_net", "CONTROL_NET"))
            .input(Input::socket("image", "IMAGE"))
            .input(strength_input())
            .title("Apply ControlNet (OLD)")
            .output("CONDITIONING")
    };
    |runtime, call| {
        let strength = call.float("strength")?;
        if strength == 0.0 {
            return Ok(Outcome::object(Conditioning::clone(&*call.object::<Conditioning>("conditioning")?)));
        }
        let control = Arc::new(Control {
            network: call.object::<ControlNet>("control_net")?,
            picture: call.object::<Image>("image")?,
            strength: strength as f32,
            start_percent: 0.0,
            end_percent: 1.0,
            vae: None,
            mask: None,
        });
        let controlled = changed(call, "conditioning", |entry| {
            entry.controls.push(Arc::clone(&control));
            entry.controls_negative = true;
        })?;
        Ok(Outcome::object(controlled))
    }
}

class! {
    /// Conditionings that follow a picture for a part of the steps.
    ControlNetApplyAdvanced in "conditioning/controlnet";
    |schema| {
        let schema = both_inputs(schema).input(Input::socket("image", "IMAGE"));
        strength_and_time(schema).input(Input::socket("vae", "VAE").optional()).title("Apply ControlNet")
    };
    |runtime, call| apply(call, call.object::<Image>("image")?, None)
}

class! {
    /// What kind of picture a network that knows several sees.
    SetUnionControlNetType in "conditioning/controlnet";
    |schema| schema
        .input(Input::socket("control_net", "CONTROL_NET"))
        .input(Input::choice("type", std::iter::once("auto").chain(PICTURE_KINDS)))
        .output("CONTROL_NET")
        .module(MODULE);
    |runtime, call| {
        let network = call.object::<ControlNet>("control_net")?;
        let picture_kind = picture_kind(&network, call.text("type")?)?;
        Ok(Outcome::object(ControlNet { picture_kind, ..ControlNet::clone(&network) }))
    }
}

/// The number by which a network knows a kind of picture.
fn picture_kind(network: &ControlNet, kind: &str) -> Result<Option<usize>> {
    let Some(number) = PICTURE_KINDS.iter().position(|known| *known == kind) else { return Ok(None) };
    let (source, known) = (&network.source, network.source.control_network()?.picture_kinds());
    if known == 0 {
        tracing::warn!("{} knows one kind of picture only; the type {kind:?} is left out", source.name());
        return Ok(None);
    }
    if number < known {
        return Ok(Some(number));
    }
    let kinds = PICTURE_KINDS[..known.min(PICTURE_KINDS.len())].join(", ");
    Err(Error::Told(format!(
        "{} is {}, which knows {known} types of pictures and not {kind:?}; it has {kinds}, and \"auto\" says none",
        source.name(),
        source.part
    )))
}

class! {
    /// Conditionings that fill in what a mask has, by a network that sees the rest of the picture and the mask.
    ControlNetInpaintingAliMamaApply in "conditioning/controlnet";
    |schema| {
        let schema = both_inputs(schema)
            .input(Input::socket("vae", "VAE"))
            .input(Input::socket("image", "IMAGE"))
            .input(Input::socket("mask", "MASK"));
        strength_and_time(schema).module(MODULE)
    };
    |runtime, call| {
        let (network, picture) = (call.object::<ControlNet>("control_net")?, call.object::<Image>("image")?);
        if !network.source.control_network()?.hint().takes_mask {
            tracing::warn!("{} takes no mask; it is left out", network.source.name());
            return apply(call, picture, None);
        }
        let kept = call.object::<Mask>("mask")?.map(|value| 1.0 - value)?;
        let picture = only_kept(&picture, &kept)?;
        apply(call, Arc::new(picture), Some(Arc::new(kept)))
    }
}

/// A picture that is black where a mask, brought to its size and rounded, is not.
fn only_kept(picture: &Image, kept: &Mask) -> Result<Image> {
    let kept = scale_mask(kept, Target::cropped(picture.width, picture.height), Method::Bilinear)?;
    let pixels = picture.height * picture.width;
    let batch = if picture.batch == 1 { kept.batch } else { picture.batch };
    let value = |at: usize| {
        let (item, pixel) = (at / (pixels * picture.channels), at / picture.channels % pixels);
        let from = item % picture.batch * pixels * picture.channels + at % (pixels * picture.channels);
        picture.values[from] * kept.values[item % kept.batch * pixels + pixel].round_ties_even()
    };
    let shape = [batch, picture.height, picture.width, picture.channels];
    Image::collect(picture.host(), shape, (0..batch * pixels * picture.channels).map(value))
}

/// Both conditionings with one more control, for the inputs that such nodes share.
pub(crate) fn apply(call: &Call, picture: Arc<Image>, mask: Option<Arc<Mask>>) -> Result<Outcome, Failure> {
    let strength = call.float("strength")?;
    let control = Arc::new(Control {
        network: call.object::<ControlNet>("control_net")?,
        picture,
        strength: strength as f32,
        start_percent: call.float("start_percent")?,
        end_percent: call.float("end_percent")?,
        vae: call.object_if_given::<Vae>("vae")?,
        mask,
    });
    let with = |input: &str| {
        changed(call, input, |entry| {
            if strength != 0.0 {
                entry.controls.push(Arc::clone(&control));
                entry.controls_negative = false;
            }
        })
    };
    Ok(Outcome::values([Value::object(with("positive")?), Value::object(with("negative")?)]))
}

#[cfg(test)]
mod tests {
    use runtime::host::Host;

    use super::*;

    #[test]
    fn a_picture_is_kept_where_the_mask_is() {
        let host = Host::with_budget(1 << 20);
        let picture = Image::collect(&host, [1, 2, 2, 3], (1..=12).map(|value| value as f32)).unwrap();
        let kept = Mask::collect(&host, [2, 2, 2], [1.0, 0.6, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0]).unwrap();
        let shown = only_kept(&picture, &kept).unwrap();
        assert_eq!(shown.shape(), [2, 2, 2, 3]);
        // A half is rounded to the even number.
        let first = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let second = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 11.0, 12.0];
        assert_eq!(&shown.values[..], [first, second].concat());
    }
}
