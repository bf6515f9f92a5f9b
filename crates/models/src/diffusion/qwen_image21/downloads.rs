//! What people download for Qwen-Image 2.1.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "qwen-image-2.1",
    title: "Qwen-Image 2.1, int8",
    licence: "see huggingface.co/Comfy-Org/Qwen-Image-2.1",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/Qwen-Image-2.1/diffusion_models/qwen_image_2.1_int8_convrot.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/Qwen-Image-2.1/text_encoders/qwen3vl_8b_int8_convrot.safetensors",
        ),
        Download::new("vae", "hf:Comfy-Org/Qwen-Image-2.1/vae/qwen_image_2.1_vae_bf16.safetensors"),
    ],
}];
