//! Nodes that belong to one family, one file per family.

mod asked;
mod chroma_radiance;
mod cosmos;
mod flux;
mod flux2;
mod hidream;
mod hunyuan_video;
mod kandinsky5;
mod ltxv;
mod lumina2;
mod mochi;
mod qwen_image;
mod qwen_image21;
mod sd2;
mod sd3;
mod sdxl;
mod svd;
mod wan;
mod z_image;

use std::sync::Arc;

use graph::Catalogue;
use runtime::Runtime;

/// What to do about a class of a pack that runs a family's models in its own way.
pub(crate) fn instead(class: &str) -> Option<&'static str> {
    wan::instead(class)
}

/// Adds the classes of all families.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    chroma_radiance::add(catalogue, runtime);
    cosmos::add(catalogue, runtime);
    flux::add(catalogue, runtime);
    flux2::add(catalogue, runtime);
    hidream::add(catalogue, runtime);
    hunyuan_video::add(catalogue, runtime);
    kandinsky5::add(catalogue, runtime);
    ltxv::add(catalogue, runtime);
    lumina2::add(catalogue, runtime);
    mochi::add(catalogue, runtime);
    qwen_image::add(catalogue, runtime);
    qwen_image21::add(catalogue, runtime);
    sd2::add(catalogue, runtime);
    sd3::add(catalogue, runtime);
    sdxl::add(catalogue, runtime);
    svd::add(catalogue, runtime);
    wan::add(catalogue, runtime);
    z_image::add(catalogue, runtime);
}
