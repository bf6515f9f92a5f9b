//! The parts of a FLUX.1 model: what each is, the names under which people have it, and the folder it goes to.

use models::detect::{Detected, Family, Role};
use nodes::Folders;

/// One part.
pub(crate) struct FluxPart {
    /// What it is.
    pub(crate) what: &'static str,
    /// Whether a part of a file is it.
    pub(crate) is_it: fn(Role, &Family) -> bool,
    /// The flag of `draw` that names its file.
    pub(crate) flag: &'static str,
    /// The names that people know.
    files: &'static str,
    /// The kind of folder.
    pub(crate) key: &'static str,
}

/// All that a picture takes.
pub(crate) const FLUX_PARTS: [FluxPart; 4] = [
    FluxPart {
        what: "the diffusion model",
        is_it: |role, family| role == Role::Diffusion && matches!(family, Family::Flux(_)),
        flag: "--model",
        files: "flux1-dev.safetensors, flux1-schnell.safetensors or a .gguf of them",
        key: "diffusion_models",
    },
    FluxPart {
        what: "the CLIP-L text encoder",
        is_it: |role, family| role == Role::Text && matches!(family, Family::Clip { .. }),
        flag: "--clip-l",
        files: "clip_l.safetensors",
        key: "text_encoders",
    },
    FluxPart {
        what: "the T5 text encoder",
        is_it: |role, family| role == Role::Text && matches!(family, Family::T5 { .. }),
        flag: "--t5",
        files: "t5xxl_fp16.safetensors, t5xxl_fp8_e4m3fn.safetensors or a .gguf",
        key: "text_encoders",
    },
    FluxPart {
        what: "the autoencoder",
        is_it: |role, family| role == Role::Autoencoder && matches!(family, Family::Kl { channels: 16 }),
        flag: "--vae",
        files: "ae.safetensors",
        key: "vae",
    },
];

impl FluxPart {
    /// Whether a file has it.
    pub(crate) fn is_in(&self, found: &Detected) -> bool {
        found.parts.iter().any(|part| (self.is_it)(part.role, &part.family))
    }

    /// What it is and the files that people know, without an article.
    pub(crate) fn described(&self) -> String {
        format!("{} ({})", self.what.trim_start_matches("the "), self.files)
    }

    /// What it is, its files, and the folder that they go to.
    pub(crate) fn goes_to(&self, folders: &Folders) -> String {
        // Kinds have older names for their folders, too; the one with the name of the kind is today's.
        let places = folders.places(self.key);
        let place = places.iter().find(|place| place.ends_with(self.key)).or_else(|| places.first());
        let place = place.map_or(String::new(), |place| format!(" -> {}", place.display()));
        format!("{} ({}){place}", self.what, self.files)
    }
}
