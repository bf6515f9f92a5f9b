//! What people download for Mochi.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "mochi",
    title: "Mochi 1 preview, fp8",
    licence: "Apache-2.0",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/mochi_preview_repackaged/split_files/diffusion_models/mochi_preview_fp8_scaled.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/mochi_preview_repackaged/split_files/text_encoders/t5xxl_fp16.safetensors",
        ),
        Download::new("vae", "hf:Comfy-Org/mochi_preview_repackaged/split_files/vae/mochi_vae.safetensors"),
    ],
}];
