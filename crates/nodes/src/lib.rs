//! ComfyUI's node classes, one file per category.
//!
//! A class is one small struct that declares its inputs in order and runs. What the nodes share is the
//! [`Runtime`]: folders, devices and loaded models. Values that travel along links are in [`value`].
#![forbid(unsafe_code)]

pub mod picture;
pub mod value;

mod audio;
mod class;
mod clip_vision;
mod conditioning;
mod control;
mod families;
mod grounding;
mod guidance;
mod image;
mod latent;
mod loaders;
mod lora;
mod mask;
mod merging;
mod model_patches;
mod named_devices;
mod packs;
mod primitive;
mod sampling_nodes;
mod saving;
mod text;
mod upscale;
mod vae;
mod video;
mod vision;
mod wanted;

use std::sync::Arc;

use graph::Catalogue;

use runtime::Runtime;

pub use named_devices::named_devices;
pub(crate) use runtime::{Error, Result};

/// Every class that users see.
#[must_use]
pub fn catalogue(runtime: &Arc<Runtime>) -> Catalogue {
    let mut catalogue = Catalogue::default();
    catalogue.explain_absent(packs::instead);
    loaders::add(&mut catalogue, runtime);
    grounding::add(&mut catalogue, runtime);
    text::add(&mut catalogue, runtime);
    conditioning::add(&mut catalogue, runtime);
    control::add(&mut catalogue, runtime);
    latent::add(&mut catalogue, runtime);
    sampling_nodes::add(&mut catalogue, runtime);
    guidance::add(&mut catalogue, runtime);
    vae::add(&mut catalogue, runtime);
    upscale::add(&mut catalogue, runtime);
    lora::add(&mut catalogue, runtime);
    merging::add(&mut catalogue, runtime);
    image::add(&mut catalogue, runtime);
    saving::add(&mut catalogue, runtime);
    mask::add(&mut catalogue, runtime);
    primitive::add(&mut catalogue, runtime);
    vision::add(&mut catalogue, runtime);
    clip_vision::add(&mut catalogue, runtime);
    video::add(&mut catalogue, runtime);
    audio::add(&mut catalogue, runtime);
    families::add(&mut catalogue, runtime);
    catalogue
}
