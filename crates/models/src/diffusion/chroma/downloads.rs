//! What people download for Chroma.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "chroma",
    title: "Chroma1 HD",
    licence: "Apache-2.0",
    files: &[
        Download::new("diffusion_models", "hf:lodestones/Chroma1-HD/Chroma1-HD.safetensors"),
        Download::new(
            "text_encoders",
            "hf:comfyanonymous/flux_text_encoders/t5xxl_fp8_e4m3fn_scaled.safetensors",
        ),
        Download::new("vae", "hf:Comfy-Org/Lumina_Image_2.0_Repackaged/split_files/vae/ae.safetensors"),
    ],
}];
