//! Control networks for Stable Diffusion 1.5 and T2I-Adapters.

use std::borrow::Cow;

use super::family::{FAMILY, KIND};
use crate::control::{ControlFamily, ReleasedControl};
use crate::detect::{Layout, Neighbours, Sign};
use crate::diffusion::unet::{self, Adapter, AdapterKind};

/// Values per token of the text that they see.
const TEXT_WIDTH: usize = 768;

/// Control networks: whole ones, those for several kinds of pictures, and changes of the model's layers.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Stable Diffusion 1.5",
    signs: &[
        Sign::native(unet::CONTROL, named),
        Sign { tensor: unet::CONTROL_DIFFUSERS, layout: Layout::Diffusers, name: named },
    ],
    read: |checkpoint, part| unet::read_control(checkpoint, part, &KIND, &[FAMILY.name]),
    released: Some(ReleasedControl { controls: FAMILY.name, tensors: unet::control_tensors }),
};

fn named(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    if unet::controlled_text(found)? != TEXT_WIDTH {
        return None;
    }
    Some(Cow::Borrowed(if found.has("lora_controlnet") {
        "Control-LoRA for Stable Diffusion 1.5"
    } else if found.has("task_embedding") {
        "union ControlNet for Stable Diffusion 1.5"
    } else {
        "ControlNet for Stable Diffusion 1.5"
    }))
}

/// T2I-Adapters.
pub const ADAPTER: ControlFamily = ControlFamily {
    name: "T2I-Adapter for Stable Diffusion 1.5",
    signs: &[
        Sign::native("body.0.block1.weight", adapter),
        Sign::native("body.0.out_conv.weight", adapter),
        Sign { tensor: "body.0.resnets.0.block1.weight", layout: Layout::Diffusers, name: adapter },
    ],
    read: |checkpoint, part| Ok(Box::new(Adapter::read(checkpoint, part, &ADAPTER_KIND, &[FAMILY.name])?)),
    released: None,
};

const ADAPTER_KIND: AdapterKind = AdapterKind {
    pixels: 8,
    halves: [false, true, true, true],
    places: [Some(2), Some(5), Some(8), Some(11)],
};

fn adapter(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_ours = unet::is_adapter(found, ADAPTER_KIND.pixels);
    is_ours.then_some(Cow::Borrowed("T2I-Adapter for Stable Diffusion 1.5"))
}
