//! What people download for HiDream-I1.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "hidream-dev",
    title: "HiDream-I1 dev, fp8",
    licence: "MIT",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/diffusion_models/hidream_i1_dev_fp8.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/text_encoders/clip_l_hidream.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/text_encoders/clip_g_hidream.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/text_encoders/t5xxl_fp8_e4m3fn_scaled.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/text_encoders/llama_3.1_8b_instruct_fp8_scaled.safetensors",
        ),
        Download::new("vae", "hf:Comfy-Org/HiDream-I1_ComfyUI/split_files/vae/ae.safetensors"),
    ],
}];
