//! Prompts for the model that comes with the program.

use serde_json::{Value, json};

/// The files that the prompts load.
pub(crate) const FLUX: &str = "demo-flux.safetensors";
pub(crate) const CLIP_L: &str = "demo-clip-l.safetensors";
pub(crate) const T5: &str = "demo-t5.safetensors";
pub(crate) const AUTOENCODER: &str = "demo-ae.safetensors";

/// A picture and its latent from text: loaders 1 to 3, text 4, latent 5, sampler 6, decoder 7, saved by 8 and 9.
pub(crate) fn text_to_image(side: u32, steps: u32) -> Value {
    json!({
        "1": { "class_type": "UNETLoader", "inputs": { "unet_name": FLUX, "weight_dtype": "default" } },
        "2": { "class_type": "DualCLIPLoader",
            "inputs": { "clip_name1": CLIP_L, "clip_name2": T5, "type": "flux" } },
        "3": { "class_type": "VAELoader", "inputs": { "vae_name": AUTOENCODER } },
        "4": { "class_type": "CLIPTextEncode",
            "inputs": { "text": "a red circle above a blue square", "clip": ["2", 0] } },
        "5": { "class_type": "EmptySD3LatentImage",
            "inputs": { "width": side, "height": side, "batch_size": 1 } },
        "6": { "class_type": "KSampler", "inputs": {
            "model": ["1", 0], "positive": ["4", 0], "negative": ["4", 0], "latent_image": ["5", 0],
            "seed": 1, "steps": steps, "cfg": 1.0, "sampler_name": "euler", "scheduler": "simple",
            "denoise": 1.0 } },
        "7": { "class_type": "VAEDecode", "inputs": { "samples": ["6", 0], "vae": ["3", 0] } },
        "8": { "class_type": "SaveImage", "inputs": { "images": ["7", 0], "filename_prefix": "picture" } },
        "9": { "class_type": "SaveLatent", "inputs": { "samples": ["6", 0], "filename_prefix": "latent" } },
    })
}

/// Puts another loader in the place of a prompt's, with more inputs than it had.
pub(crate) fn set_loader(prompt: &mut Value, node: &str, class: &str, more: &Value) {
    prompt[node]["class_type"] = json!(class);
    let inputs = prompt[node]["inputs"].as_object_mut().unwrap();
    inputs.extend(more.as_object().unwrap().clone());
}

/// Says of the diffusion model, the text encoders and the autoencoder, in this order, whether they stay: the
/// loaders that ask get `keep_loaded`, the others are the plain ones.
pub(crate) fn keep_loaded(mut prompt: Value, keep: [Option<bool>; 3]) -> Value {
    let loaders = [
        ("1", "UNETLoader", "compute_device"),
        ("2", "DualCLIPLoader", "device"),
        ("3", "VAELoader", "compute_device"),
    ];
    for ((node, class, device), keep) in loaders.into_iter().zip(keep) {
        if let Some(keep) = keep {
            let more = json!({ device: "sim:0", "virtual_vram_gb": 0.0, "keep_loaded": keep });
            set_loader(&mut prompt, node, &format!("{class}DisTorch2MultiGPU"), &more);
        }
    }
    prompt
}

/// One number that is saved: the smallest job that leaves a file.
pub(crate) fn empty_latent(prefix: &str) -> Value {
    json!({
        "1": { "class_type": "EmptyLatentImage", "inputs": { "width": 16, "height": 16, "batch_size": 1 } },
        "2": { "class_type": "SaveLatent", "inputs": { "samples": ["1", 0], "filename_prefix": prefix } },
    })
}
