//! What people download for Stable Diffusion XL.

use crate::downloads::{Download, DownloadSet};

const BASE: Download =
    Download::new("checkpoints", "hf:stabilityai/stable-diffusion-xl-base-1.0/sd_xl_base_1.0.safetensors");

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "sdxl",
        title: "Stable Diffusion XL base",
        licence: "CreativeML Open RAIL++-M",
        files: &[BASE],
    },
    DownloadSet {
        name: "sdxl-refiner",
        title: "Stable Diffusion XL base and refiner",
        licence: "CreativeML Open RAIL++-M",
        files: &[
            BASE,
            Download::new(
                "checkpoints",
                "hf:stabilityai/stable-diffusion-xl-refiner-1.0/sd_xl_refiner_1.0.safetensors",
            ),
        ],
    },
    DownloadSet {
        name: "sdxl-turbo",
        title: "Stable Diffusion XL turbo, f16",
        licence: "Stability AI non-commercial",
        files: &[Download::new("checkpoints", "hf:stabilityai/sdxl-turbo/sd_xl_turbo_1.0_fp16.safetensors")],
    },
];
