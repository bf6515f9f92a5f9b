//! What people download for HunyuanVideo 1.5.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "hunyuan-video-1.5",
    title: "HunyuanVideo 1.5 text to video",
    licence: "Tencent Hunyuan Community",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/HunyuanVideo_1.5_repackaged/split_files/diffusion_models/hunyuanvideo1.5_720p_t2v_fp16.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HunyuanVideo_1.5_repackaged/split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/HunyuanVideo_1.5_repackaged/split_files/text_encoders/byt5_small_glyphxl_fp16.safetensors",
        ),
        Download::new(
            "vae",
            "hf:Comfy-Org/HunyuanVideo_1.5_repackaged/split_files/vae/hunyuanvideo15_vae_fp16.safetensors",
        ),
    ],
}];
