//! What people download for Wan.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "wan2.2-5b",
        title: "Wan 2.2 TI2V 5B",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/wan2.2_ti2v_5B_fp16.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/Wan_2.1_ComfyUI_repackaged/split_files/text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            ),
            Download::new(
                "vae",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/vae/wan2.2_vae.safetensors",
            ),
        ],
    },
    DownloadSet {
        name: "wan2.2-t2v",
        title: "Wan 2.2 text to video 14B, both experts, fp8",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/wan2.2_t2v_high_noise_14B_fp8_scaled.safetensors",
            ),
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/wan2.2_t2v_low_noise_14B_fp8_scaled.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/Wan_2.1_ComfyUI_repackaged/split_files/text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            ),
            Download::new(
                "vae",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/vae/wan_2.1_vae.safetensors",
            ),
        ],
    },
    DownloadSet {
        name: "wan2.2-i2v",
        title: "Wan 2.2 picture to video 14B, both experts, fp8",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/wan2.2_i2v_high_noise_14B_fp8_scaled.safetensors",
            ),
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/diffusion_models/wan2.2_i2v_low_noise_14B_fp8_scaled.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/Wan_2.1_ComfyUI_repackaged/split_files/text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors",
            ),
            Download::new(
                "vae",
                "hf:Comfy-Org/Wan_2.2_ComfyUI_Repackaged/split_files/vae/wan_2.1_vae.safetensors",
            ),
        ],
    },
];
