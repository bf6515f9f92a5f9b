//! What people download for FLUX.1.

use crate::downloads::{Download, DownloadSet};

const CLIP_L: Download =
    Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/clip_l.safetensors");
const T5: Download =
    Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/t5xxl_fp16.safetensors");
const T5_SMALL: Download = Download::new(
    "text_encoders",
    "hf:comfyanonymous/flux_text_encoders/t5xxl_fp8_e4m3fn_scaled.safetensors",
);
const AUTOENCODER: Download =
    Download::new("vae", "hf:Comfy-Org/Lumina_Image_2.0_Repackaged/split_files/vae/ae.safetensors");
const NON_COMMERCIAL: &str = "FLUX.1 [dev] non-commercial";

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "flux-schnell",
        title: "FLUX.1 schnell, all in one file, fp8",
        licence: "Apache-2.0",
        files: &[Download::new("checkpoints", "hf:Comfy-Org/flux1-schnell/flux1-schnell-fp8.safetensors")],
    },
    DownloadSet {
        name: "flux-schnell-bf16",
        title: "FLUX.1 schnell",
        licence: "Apache-2.0",
        files: &[
            Download::new("diffusion_models", "hf:Comfy-Org/flux1-schnell/flux1-schnell.safetensors"),
            CLIP_L,
            T5,
            AUTOENCODER,
        ],
    },
    DownloadSet {
        name: "flux-dev",
        title: "FLUX.1 dev, fp8",
        licence: NON_COMMERCIAL,
        files: &[Download::new("checkpoints", "hf:Comfy-Org/flux1-dev/flux1-dev-fp8.safetensors")],
    },
    DownloadSet {
        name: "flux-dev-bf16",
        title: "FLUX.1 dev",
        licence: NON_COMMERCIAL,
        files: &[
            Download::new("diffusion_models", "hf:Comfy-Org/flux1-dev/flux1-dev.safetensors"),
            CLIP_L,
            T5,
            AUTOENCODER,
        ],
    },
    DownloadSet {
        name: "flux-kontext",
        title: "FLUX.1 Kontext dev, fp8",
        licence: NON_COMMERCIAL,
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/flux1-kontext-dev_ComfyUI/split_files/diffusion_models/flux1-dev-kontext_fp8_scaled.safetensors",
            ),
            CLIP_L,
            T5_SMALL,
            AUTOENCODER,
        ],
    },
    DownloadSet {
        name: "flux-uso",
        title: "USO for FLUX.1 dev: the style and the subject of pictures (LoRA, style projector, SigLIP)",
        licence: NON_COMMERCIAL,
        files: &[
            Download::new(
                "loras",
                "hf:Comfy-Org/USO_1.0_Repackaged/split_files/loras/uso-flux1-dit-lora-v1.safetensors",
            ),
            Download::new(
                "model_patches",
                "hf:Comfy-Org/USO_1.0_Repackaged/split_files/model_patches/uso-flux1-projector-v1.safetensors",
            ),
            Download::new(
                "clip_vision",
                "hf:Comfy-Org/sigclip_vision_384/sigclip_vision_patch14_384.safetensors",
            ),
        ],
    },
];
