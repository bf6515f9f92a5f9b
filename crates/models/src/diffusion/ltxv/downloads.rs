//! What people download for LTX-Video.

use crate::downloads::{Download, DownloadSet};

pub(super) const DOWNLOADS: &[DownloadSet] = &[
    DownloadSet {
        name: "ltxv-2b",
        title: "LTX-Video 2B 0.9.5",
        licence: "LTX-Video Open Weights License 0.X",
        files: &[
            Download::new("checkpoints", "hf:Lightricks/LTX-Video/ltx-video-2b-v0.9.5.safetensors"),
            Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/t5xxl_fp16.safetensors"),
        ],
    },
    DownloadSet {
        name: "ltxv-13b",
        title: "LTX-Video 13B 0.9.7",
        licence: "LTX-Video Open Weights License 0.X",
        files: &[
            Download::new("checkpoints", "hf:Lightricks/LTX-Video/ltxv-13b-0.9.7-dev.safetensors"),
            Download::new("text_encoders", "hf:comfyanonymous/flux_text_encoders/t5xxl_fp16.safetensors"),
        ],
    },
];
