//! What people download for Stable Video Diffusion.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "svd-xt",
    title: "Stable Video Diffusion XT, 25 frames",
    licence: "Stability AI community",
    files: &[Download::new(
        "checkpoints",
        "hf:stabilityai/stable-video-diffusion-img2vid-xt/svd_xt.safetensors",
    )],
}];
