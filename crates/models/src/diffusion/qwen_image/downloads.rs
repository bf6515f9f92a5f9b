//! What people download for Qwen-Image.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "qwen-image",
        title: "Qwen-Image, fp8",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/diffusion_models/qwen_image_fp8_e4m3fn.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
            ),
            Download::new(
                "vae",
                "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/vae/qwen_image_vae.safetensors",
            ),
        ],
    },
    DownloadSet {
        name: "qwen-image-edit",
        title: "Qwen-Image-Edit 2509, fp8",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Qwen-Image-Edit_ComfyUI/split_files/diffusion_models/qwen_image_edit_2509_fp8_e4m3fn.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
            ),
            Download::new(
                "vae",
                "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/vae/qwen_image_vae.safetensors",
            ),
        ],
    },
];
