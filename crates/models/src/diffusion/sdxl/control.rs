//! Control networks for Stable Diffusion XL and T2I-Adapters.

use std::borrow::Cow;

use super::family::{FAMILY, KIND};
use crate::control::{ControlFamily, ReleasedControl};
use crate::detect::{Layout, Neighbours, Sign};
use crate::diffusion::unet::{self, Adapter, AdapterKind};

/// Values per token of the text that they see.
const TEXT_WIDTH: usize = 2048;

/// Control networks: whole ones, those for several kinds of pictures, and changes of the model's layers.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Stable Diffusion XL",
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
        "Control-LoRA for Stable Diffusion XL"
    } else if found.has("task_embedding") {
        "union ControlNet for Stable Diffusion XL"
    } else {
        "ControlNet for Stable Diffusion XL"
    }))
}

/// T2I-Adapters.
pub const ADAPTER: ControlFamily = ControlFamily {
    name: "T2I-Adapter for Stable Diffusion XL",
    signs: &[
        Sign::native("body.0.block1.weight", adapter),
        Sign { tensor: "body.0.resnets.0.block1.weight", layout: Layout::Diffusers, name: adapter },
    ],
    read: |checkpoint, part| Ok(Box::new(Adapter::read(checkpoint, part, &ADAPTER_KIND, &[FAMILY.name])?)),
    released: None,
};

const ADAPTER_KIND: AdapterKind = AdapterKind {
    pixels: 16,
    halves: [false, false, true, false],
    places: [Some(3), Some(5), Some(8), None],
};

fn adapter(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let is_ours = unet::is_adapter(found, ADAPTER_KIND.pixels);
    is_ours.then_some(Cow::Borrowed("T2I-Adapter for Stable Diffusion XL"))
}
