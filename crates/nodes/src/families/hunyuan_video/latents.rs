//! Empty latents of videos, with sixteen channels and with the thirty-two of version 1.5.

use std::sync::Arc;

use graph::Catalogue;
use runtime::Runtime;

use crate::class::class;
use crate::image::pixels;
use crate::latent::{EmptyLatent, sized};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyHunyuanLatentVideo(Arc::clone(runtime)));
    catalogue.add(EmptyHunyuanVideo15Latent(Arc::clone(runtime)));
}

class! {
    EmptyHunyuanLatentVideo in "latent/video";
    |schema| sized(
        schema.title("Empty HunyuanVideo 1.0 Latent"),
        [848, 480],
        [16, 16],
        Some(pixels("length", 25, 1, 4)),
    )
    .about("Makes empty latent videos of sixteen channels.");
    |runtime, call| EmptyLatent { channels: 16, pixels: 8, frames: Some(4) }.empty(runtime, call)
}

class! {
    EmptyHunyuanVideo15Latent in "latent/video";
    |schema| sized(
        schema.title("Empty HunyuanVideo 1.5 Latent"),
        [848, 480],
        [16, 16],
        Some(pixels("length", 25, 1, 4)),
    )
    .about("Makes empty latent videos of thirty-two channels.");
    |runtime, call| EmptyLatent { channels: 32, pixels: 16, frames: Some(4) }.empty(runtime, call)
}
