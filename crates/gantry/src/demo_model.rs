//! The demo model, embedded: what it is and how it was trained is in assets/demo/MODEL_CARD.md.

/// The diffusion model, without guidance, in bf16.
pub(crate) const FLUX: &[u8] = include_bytes!("../../../assets/demo/demo-flux.safetensors");
/// The same in GGUF's Q8_0.
pub(crate) const FLUX_Q8_0: &[u8] = include_bytes!("../../../assets/demo/demo-flux-Q8_0.gguf");
/// Its CLIP text encoder.
pub(crate) const CLIP_L: &[u8] = include_bytes!("../../../assets/demo/demo-clip-l.safetensors");
/// Its T5 text encoder.
pub(crate) const T5: &[u8] = include_bytes!("../../../assets/demo/demo-t5.safetensors");
/// Its autoencoder.
pub(crate) const AUTOENCODER: &[u8] = include_bytes!("../../../assets/demo/demo-ae.safetensors");
/// A LoRA for it that draws outlines.
pub(crate) const OUTLINE_LORA: &[u8] = include_bytes!("../../../assets/demo/demo-outline-lora.safetensors");

/// The files as loaders list them: the kind of folder, the name, the bytes.
pub(crate) const FILES: [(&str, &str, &[u8]); 6] = [
    ("diffusion_models", "demo-flux.safetensors", FLUX),
    ("unet_gguf", "demo-flux-Q8_0.gguf", FLUX_Q8_0),
    ("text_encoders", "demo-clip-l.safetensors", CLIP_L),
    ("text_encoders", "demo-t5.safetensors", T5),
    ("vae", "demo-ae.safetensors", AUTOENCODER),
    ("loras", "demo-outline-lora.safetensors", OUTLINE_LORA),
];
