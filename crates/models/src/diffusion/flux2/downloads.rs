//! What people download for FLUX.2.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[DownloadSet {
    name: "flux2-dev",
    title: "FLUX.2 dev, fp8",
    licence: "FLUX.2 [dev] non-commercial",
    files: &[
        Download::new(
            "diffusion_models",
            "hf:Comfy-Org/flux2-dev/split_files/diffusion_models/flux2_dev_fp8mixed.safetensors",
        ),
        Download::new(
            "text_encoders",
            "hf:Comfy-Org/flux2-dev/split_files/text_encoders/mistral_3_small_flux2_bf16.safetensors",
        ),
        Download::new("vae", "hf:Comfy-Org/flux2-dev/split_files/vae/flux2-vae.safetensors"),
    ],
}];
