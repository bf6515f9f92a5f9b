//! What people download for HunyuanVideo.

use crate::downloads::{Download, DownloadSet};

/// The licence of its weights.
const LICENCE: &str = "Tencent Hunyuan Community";

const LLAMA: Download = Download::new(
    "text_encoders",
    "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/text_encoders/llava_llama3_fp8_scaled.safetensors",
);
const CLIP: Download =
    Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/clip_l.safetensors");
const VAE: Download = Download::new(
    "vae",
    "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/vae/hunyuan_video_vae_bf16.safetensors",
);

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "hunyuan-video",
        title: "HunyuanVideo text to video",
        licence: LICENCE,
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/diffusion_models/hunyuan_video_t2v_720p_bf16.safetensors",
            ),
            CLIP,
            LLAMA,
            VAE,
        ],
    },
    DownloadSet {
        name: "hunyuan-video-i2v",
        title: "HunyuanVideo picture to video, in place of the first frame",
        licence: LICENCE,
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/diffusion_models/hunyuan_video_v2_replace_image_to_video_720p_bf16.safetensors",
            ),
            CLIP,
            LLAMA,
            Download::new(
                "clip_vision",
                "hf:Comfy-Org/HunyuanVideo_repackaged/split_files/clip_vision/llava_llama3_vision.safetensors",
            ),
            VAE,
        ],
    },
];
