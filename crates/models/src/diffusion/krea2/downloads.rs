//! What people download for Krea 2.

use crate::downloads::{Download, DownloadSet};

const TEXT: Download =
    Download::new("text_encoders", "hf:Comfy-Org/Krea-2/text_encoders/qwen3vl_4b_fp8_scaled.safetensors");
const VAE: Download = Download::new("vae", "hf:Comfy-Org/Krea-2/vae/qwen_image_vae.safetensors");

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "krea-2-turbo",
        title: "Krea 2 Turbo, fp8",
        licence: "Krea 2 Community",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Krea-2/diffusion_models/krea2_turbo_fp8_scaled.safetensors",
            ),
            TEXT,
            VAE,
        ],
    },
    DownloadSet {
        name: "krea-2-raw",
        title: "Krea 2 Raw, fp8",
        licence: "Krea 2 Community",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Krea-2/diffusion_models/krea2_raw_fp8_scaled.safetensors",
            ),
            TEXT,
            VAE,
        ],
    },
];
