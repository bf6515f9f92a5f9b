//! Mochi's own node.

use std::sync::Arc;

use graph::Catalogue;
use runtime::Runtime;

use crate::class::class;
use crate::image::pixels;
use crate::latent::{EmptyLatent, sized};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(EmptyMochiLatentVideo(Arc::clone(runtime)));
}

class! {
    EmptyMochiLatentVideo in "latent/video";
    |schema| sized(schema, [848, 480], [16, 16], Some(pixels("length", 25, 7, 6)))
        .about("Makes empty latent videos for Mochi.");
    |runtime, call| EmptyLatent { channels: 12, pixels: 8, frames: Some(6) }.empty(runtime, call)
}
