//! What people download for Z-Image and Lumina Image 2.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "z-image-turbo",
        title: "Z-Image turbo",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/z_image_turbo/split_files/diffusion_models/z_image_turbo_bf16.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/z_image_turbo/split_files/text_encoders/qwen_3_4b.safetensors",
            ),
            Download::new("vae", "hf:Comfy-Org/z_image_turbo/split_files/vae/ae.safetensors"),
        ],
    },
    DownloadSet {
        name: "z-image",
        title: "Z-Image",
        licence: "Apache-2.0",
        files: &[
            Download::new(
                "diffusion_models",
                "hf:Comfy-Org/z_image/split_files/diffusion_models/z_image_bf16.safetensors",
            ),
            Download::new(
                "text_encoders",
                "hf:Comfy-Org/z_image_turbo/split_files/text_encoders/qwen_3_4b.safetensors",
            ),
            Download::new("vae", "hf:Comfy-Org/z_image_turbo/split_files/vae/ae.safetensors"),
        ],
    },
    DownloadSet {
        name: "lumina2",
        title: "Lumina Image 2, all in one file",
        licence: "Apache-2.0",
        files: &[Download::new(
            "checkpoints",
            "hf:Comfy-Org/Lumina_Image_2.0_Repackaged/all_in_one/lumina_2.safetensors",
        )],
    },
];
