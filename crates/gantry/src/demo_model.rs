//! The demo model, embedded: what it is and how it was trained is in assets/demo/MODEL_CARD.md.

/// The diffusion model, without guidance, in bf16.
pub(crate) const DIFFUSION: &[u8] = include_bytes!("../../../assets/demo/demo-flux.safetensors");
/// The same in GGUF's Q8_0.
const DIFFUSION_Q8_0: &[u8] = include_bytes!("../../../assets/demo/demo-flux-Q8_0.gguf");
/// Its CLIP text encoder.
const CLIP_L: &[u8] = include_bytes!("../../../assets/demo/demo-clip-l.safetensors");
/// Its T5 text encoder.
const T5: &[u8] = include_bytes!("../../../assets/demo/demo-t5.safetensors");
/// Its autoencoder.
const AUTOENCODER: &[u8] = include_bytes!("../../../assets/demo/demo-ae.safetensors");
/// A LoRA for it that draws outlines.
const OUTLINE_LORA: &[u8] = include_bytes!("../../../assets/demo/demo-outline-lora.safetensors");

/// Its family: the one whose names its files have.
pub(crate) const FAMILY: &models::diffusion::DiffusionFamily = models::diffusion::FAMILIES[0];

/// The names under which loaders list them, in the same order.
pub(crate) const DIFFUSION_NAME: &str = "demo-flux.safetensors";
pub(crate) const DIFFUSION_Q8_0_NAME: &str = "demo-flux-Q8_0.gguf";
pub(crate) const CLIP_L_NAME: &str = "demo-clip-l.safetensors";
pub(crate) const T5_NAME: &str = "demo-t5.safetensors";
pub(crate) const AUTOENCODER_NAME: &str = "demo-ae.safetensors";
pub(crate) const OUTLINE_LORA_NAME: &str = "demo-outline-lora.safetensors";

/// The files as loaders list them: the kind of folder, the name, the bytes.
pub(crate) const FILES: [(&str, &str, &[u8]); 6] = [
    ("diffusion_models", DIFFUSION_NAME, DIFFUSION),
    ("unet_gguf", DIFFUSION_Q8_0_NAME, DIFFUSION_Q8_0),
    ("text_encoders", CLIP_L_NAME, CLIP_L),
    ("text_encoders", T5_NAME, T5),
    ("vae", AUTOENCODER_NAME, AUTOENCODER),
    ("loras", OUTLINE_LORA_NAME, OUTLINE_LORA),
];
