//! What people download for Stable Diffusion 1.5.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "sd15",
        title: "Stable Diffusion 1.5, f16",
        licence: "CreativeML Open RAIL-M",
        files: &[Download::new(
            "checkpoints",
            "hf:Comfy-Org/stable-diffusion-v1-5-archive/v1-5-pruned-emaonly-fp16.safetensors",
        )],
    },
    DownloadSet {
        name: "dreamshaper",
        title: "DreamShaper 8, of Stable Diffusion 1.5",
        licence: "CreativeML Open RAIL-M",
        files: &[Download::new("checkpoints", "hf:Lykon/DreamShaper/DreamShaper_8_pruned.safetensors")],
    },
];
