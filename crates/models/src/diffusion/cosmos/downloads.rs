//! What people download for Cosmos Predict 2.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "cosmos-2b",
    title: "Cosmos Predict 2, text to image, 2B",
    licence: "NVIDIA Open Model",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/Cosmos_Predict2_repackaged/cosmos_predict2_2B_t2i.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:comfyanonymous/cosmos_1.0_text_encoder_and_VAE_ComfyUI/text_encoders/oldt5_xxl_fp8_e4m3fn_scaled.safetensors",
        ),
        Download::new(
            "vae",
            "hf:Comfy-Org/Wan_2.1_ComfyUI_repackaged/split_files/vae/wan_2.1_vae.safetensors",
        ),
    ],
}];
