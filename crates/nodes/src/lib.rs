//! ComfyUI's node classes, one file per category.
//!
//! A class is one small struct that declares its inputs in order and runs. What the nodes share is the
//! [`Studio`]: folders, devices and loaded models. Values that travel along links are in [`value`].
#![forbid(unsafe_code)]

pub mod folders;
pub mod host;
pub mod picture;
pub mod studio;
pub mod value;

mod conditioning;
mod error;
mod image;
mod latent;
mod loaders;
mod lora;
mod mask;
mod primitive;
mod sampling_nodes;
mod saving;
mod testing;
mod text;
mod vae;
mod vision;
mod wanted;

use std::sync::Arc;

use graph::Catalogue;

pub use error::{Error, Result};
pub use folders::Folders;
pub use studio::Studio;

/// Every class that users see.
#[must_use]
pub fn catalogue(studio: &Arc<Studio>) -> Catalogue {
    let mut catalogue = Catalogue::default();
    loaders::add(&mut catalogue, studio);
    text::add(&mut catalogue, studio);
    conditioning::add(&mut catalogue, studio);
    latent::add(&mut catalogue, studio);
    sampling_nodes::add(&mut catalogue, studio);
    vae::add(&mut catalogue, studio);
    lora::add(&mut catalogue, studio);
    image::add(&mut catalogue, studio);
    saving::add(&mut catalogue, studio);
    mask::add(&mut catalogue, studio);
    primitive::add(&mut catalogue, studio);
    vision::add(&mut catalogue, studio);
    catalogue
}

/// Adds the classes that ComfyUI's own tests use. They are off unless asked for.
pub fn add_testing_classes(catalogue: &mut Catalogue, studio: &Studio) {
    testing::add(catalogue, &studio.host);
}
