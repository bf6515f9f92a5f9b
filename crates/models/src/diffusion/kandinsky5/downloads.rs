//! What people download for Kandinsky 5.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "kandinsky5",
    title: "Kandinsky 5 Lite, text to video of 5 s",
    licence: "MIT",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:kandinskylab/Kandinsky-5.0-T2V-Lite-sft-5s/model/kandinsky5lite_t2v_sft_5s.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/Qwen-Image_ComfyUI/split_files/text_encoders/qwen_2.5_vl_7b_fp8_scaled.safetensors",
        ),
        Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/clip_l.safetensors"),
        Download::new(
            "vae",
            "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/vae/hunyuan_video_vae_bf16.safetensors",
        ),
    ],
}];
