//! Control networks for Stable Diffusion 2.

use std::borrow::Cow;

use super::family::{FAMILY, KIND};
use crate::control::{ControlFamily, ReleasedControl};
use crate::detect::{Layout, Neighbours, Sign};
use crate::diffusion::unet::{self};

/// Values per token of the text that they see.
const TEXT_WIDTH: usize = 1024;

/// Control networks: whole ones, those for several kinds of pictures, and changes of the model's layers.
pub const CONTROL: ControlFamily = ControlFamily {
    name: "ControlNet for Stable Diffusion 2",
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
        "Control-LoRA for Stable Diffusion 2"
    } else if found.has("task_embedding") {
        "union ControlNet for Stable Diffusion 2"
    } else {
        "ControlNet for Stable Diffusion 2"
    }))
}
