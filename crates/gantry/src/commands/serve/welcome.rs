//! What the server says once it listens: where the dashboard is and, where there are no models yet, which files go
//! where and what works without them.

use std::path::Path;

use nodes::Folders;

use crate::flux_parts::FLUX_PARTS;

/// Folders whose files make pictures.
const KINDS: [&str; 6] =
    ["diffusion_models", "unet_gguf", "checkpoints", "text_encoders", "clip_gguf", "vae"];

/// The line about the dashboard.
pub(super) fn dashboard(url: &str) -> String {
    format!("the dashboard (memory, models, plans) is at {url}/gantry/")
}

/// What a newcomer needs to know; nothing if there are models.
pub(super) fn without_models(folders: &Folders, url: &str) -> Option<String> {
    if KINDS.iter().any(|key| !folders.listing(key).is_empty()) {
        return None;
    }
    let places =
        folders.places("vae").first().and_then(|place| place.parent()).unwrap_or(Path::new("models"));
    let flux: String = FLUX_PARTS.iter().map(|part| format!("\n  {}", part.goes_to(folders))).collect();
    let more: String = [("LoRA files", "loras"), ("all-in-one checkpoints", "checkpoints")]
        .into_iter()
        .filter_map(|(what, key)| Some(format!("\n  {what} -> {}", folders.places(key).first()?.display())))
        .collect();
    Some(format!(
        "there are no models in {} yet. A FLUX picture takes these files:{flux}{more}\n\
         New files are found without a restart. If a ComfyUI install has models, start with --comfy-dir FOLDER.\n\
         The demo model works at once: the loaders offer demo-flux.safetensors (UNETLoader), demo-flux-Q8_0.gguf \
         (UnetLoaderGGUF), demo-clip-l.safetensors and demo-t5.safetensors (DualCLIPLoader, type flux), \
         demo-ae.safetensors (VAELoader) and demo-outline-lora.safetensors (LoraLoader); it draws 128x128 pixels.\n\
         Open {url}/ for the front end and {url}/gantry/ for the dashboard; `gantry doctor` looks at this machine.",
        places.display(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_folder_is_told_what_goes_where() {
        let dir = testkit::ScratchDir::new().unwrap();
        let text = without_models(&Folders::at(dir.path()), "http://127.0.0.1:8188").unwrap();
        for (file, folder) in [
            ("flux1-dev.safetensors", "diffusion_models"),
            ("clip_l.safetensors", "text_encoders"),
            ("t5xxl_fp16.safetensors", "text_encoders"),
            ("ae.safetensors", "vae"),
        ] {
            let place = dir.path().join("models").join(folder).display().to_string();
            assert!(text.lines().any(|line| line.contains(file) && line.ends_with(&place)), "{file}: {text}");
        }
        for (_, name, _) in crate::demo_model::FILES {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("http://127.0.0.1:8188/gantry/"), "{text}");
        let vae = dir.path().join("models/vae");
        std::fs::create_dir_all(&vae).unwrap();
        std::fs::write(vae.join("ae.safetensors"), "").unwrap();
        assert_eq!(without_models(&Folders::at(dir.path()), ""), None);
    }
}
