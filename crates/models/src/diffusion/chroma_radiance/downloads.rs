//! What people download for Chroma Radiance.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "chroma-radiance",
    title: "Chroma1 Radiance, which paints pixels",
    licence: "Apache-2.0",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/Chroma1-Radiance_Repackaged/split_files/diffusion_models/chroma-radiance-x0.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:comfyanonymous/flux_text_encoders/t5xxl_fp8_e4m3fn_scaled.safetensors",
        ),
    ],
}];
