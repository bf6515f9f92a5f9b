//! What the server says once it listens: where the dashboard is and, where there are no models yet, which files go
//! where and what works without them.

use std::path::Path;

use runtime::Folders;

use models::diffusion::FAMILIES;

use crate::demo_model;
use crate::drawing::goes_to;

/// Folders whose files make pictures.
const KINDS: [&str; 6] =
    ["diffusion_models", "unet_gguf", "checkpoints", "text_encoders", "clip_gguf", "vae"];

/// How a browser comes in where requests show a token, which is never printed.
pub(super) fn with_token(url: &str) -> String {
    format!("requests show the token; a browser takes it once, as {url}/?token=TOKEN")
}

/// The line about the dashboard.
pub(super) fn dashboard(url: &str) -> String {
    format!("the dashboard (memory, models, plans) is at {url}/gantry/")
}

/// What a newcomer needs to know; nothing if there are models.
pub(super) fn without_models(folders: &Folders, url: &str, has_front_end: bool) -> Option<String> {
    if KINDS.iter().any(|key| !folders.listing(key).is_empty()) {
        return None;
    }
    let places =
        folders.places("vae").first().and_then(|place| place.parent()).unwrap_or(Path::new("models"));
    let family = FAMILIES[0];
    let files: String =
        family.workflow.files.iter().map(|file| format!("\n  {}", goes_to(file, folders))).collect();
    let more: String = [("LoRA files", "loras"), ("all-in-one checkpoints", "checkpoints")]
        .into_iter()
        .filter_map(|(what, key)| Some(format!("\n  {what} -> {}", folders.places(key).first()?.display())))
        .collect();
    let front_end = if has_front_end { format!("{url}/ for the front end and ") } else { String::new() };
    Some(format!(
        "there are no models in {} yet: `gantry pull --list` names some to get. A picture by {} takes these files:{files}{more}\n\
         New files are found without a restart. If a ComfyUI install has models, start with --comfy-dir FOLDER.\n\
         The demo model works at once: the loaders offer {} (UNETLoader), {} (UnetLoaderGGUF), {} and {} \
         (DualCLIPLoader, type {}), {} (VAELoader) and {} (LoraLoader); it draws 128x128 pixels.\n\
         Open {front_end}{url}/gantry/ for the dashboard; `gantry doctor` looks at this machine.",
        places.display(),
        family.name,
        demo_model::DIFFUSION_NAME,
        demo_model::DIFFUSION_Q8_0_NAME,
        demo_model::CLIP_L_NAME,
        demo_model::T5_NAME,
        demo_model::FAMILY.workflow.text.name,
        demo_model::AUTOENCODER_NAME,
        demo_model::OUTLINE_LORA_NAME,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_folder_is_told_what_goes_where() {
        let dir = testkit::ScratchDir::new().unwrap();
        let text = without_models(&Folders::at(dir.path()), "http://127.0.0.1:8188", true).unwrap();
        let bare = without_models(&Folders::at(dir.path()), "http://127.0.0.1:8188", false).unwrap();
        assert!(text.contains("for the front end") && !bare.contains("for the front end"), "{bare}");
        assert!(text.contains("gantry pull"), "{text}");
        for (file, folder) in [
            ("flux1-dev.safetensors", "diffusion_models"),
            ("clip_l.safetensors", "text_encoders"),
            ("t5xxl_fp16.safetensors", "text_encoders"),
            ("ae.safetensors", "vae"),
        ] {
            let place = dir.path().join("models").join(folder).display().to_string();
            assert!(text.lines().any(|line| line.contains(file) && line.ends_with(&place)), "{file}: {text}");
        }
        for (_, name, _) in demo_model::FILES {
            assert!(text.contains(name), "{name}: {text}");
        }
        assert!(text.contains("http://127.0.0.1:8188/gantry/"), "{text}");
        let vae = dir.path().join("models/vae");
        std::fs::create_dir_all(&vae).unwrap();
        std::fs::write(vae.join("ae.safetensors"), "").unwrap();
        assert_eq!(without_models(&Folders::at(dir.path()), "", true), None);
    }
}
