//! What people download for Stable Diffusion 3.5.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "sd3.5-large",
    title: "Stable Diffusion 3.5 large, all in one file, fp8",
    licence: "Stability AI community",
    files: &[Download::new(
        "checkpoints",
        "hf:Comfy-Org/stable-diffusion-3.5-fp8/sd3.5_large_fp8_scaled.safetensors",
    )],
}];
