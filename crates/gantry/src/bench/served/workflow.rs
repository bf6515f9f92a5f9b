//! The workflows that are posted: what people run, with the loader that says where a model's bytes go.

use models::diffusion::{DiffusionFamily, ReleasedModel};
use serde_json::{Value, json};

use super::files::{LORA, MODEL, encoder_file};

/// The node whose steps are measured.
pub(super) const SAMPLER: &str = "7";
/// The node that loads the diffusion model.
pub(super) const LOADER: &str = "1";
/// The node that saves the result.
pub(super) const SAVER: &str = "8";

/// What differs from job to job.
#[derive(Clone, Debug)]
pub(super) struct Drawing<'a> {
    /// The device that computes.
    pub(super) compute: &'a str,
    /// In the allocation language; automatic if it is empty.
    pub(super) allocation: &'a str,
    /// Gigabytes that leave the compute device.
    pub(super) virtual_vram_gb: f64,
    pub(super) weight_dtype: &'a str,
    pub(super) lora: bool,
    pub(super) cfg: f64,
    pub(super) steps: usize,
    pub(super) seed: u64,
}

/// A picture's latent from text, saved.
pub(super) fn prompt(drawing: &Drawing<'_>, (family, released): (&DiffusionFamily, &ReleasedModel)) -> Value {
    let text =
        |text: &str| json!({ "class_type": "CLIPTextEncode", "inputs": { "text": text, "clip": ["3", 0] } });
    let model = if drawing.lora { "lora" } else { LOADER };
    let mut prompt = json!({
        LOADER: { "class_type": "UNETLoaderDisTorch2MultiGPU", "inputs": {
            "unet_name": MODEL, "weight_dtype": drawing.weight_dtype,
            "compute_device": drawing.compute, "virtual_vram_gb": drawing.virtual_vram_gb, "donor_device": "cpu",
            "expert_mode_allocations": drawing.allocation, "eject_models": false, "keep_loaded": true } },
        "2": encoders(family, released),
        "3": { "class_type": "T5TokenizerOptions", "inputs": {
            "clip": ["2", 0], "min_padding": 0, "min_length": released.tokens } },
        "4": text("a red fox in the snow"),
        "5": text("blurred, dark"),
        "6": { "class_type": family.workflow.latent, "inputs": {
            "width": released.pixels, "height": released.pixels, "batch_size": 1 } },
        SAMPLER: { "class_type": "KSampler", "inputs": {
            "model": [model, 0], "positive": ["4", 0], "negative": ["5", 0], "latent_image": ["6", 0],
            "seed": drawing.seed, "steps": drawing.steps, "cfg": drawing.cfg, "sampler_name": "euler",
            "scheduler": "simple", "denoise": 1.0 } },
        SAVER: { "class_type": "SaveLatent", "inputs": {
            "samples": [SAMPLER, 0], "filename_prefix": "served" } },
    });
    if drawing.lora {
        prompt["lora"] = json!({ "class_type": "LoraLoaderModelOnly", "inputs": {
            "model": [LOADER, 0], "lora_name": LORA, "strength_model": 0.5 } });
    }
    prompt
}

/// The loader of the family's text encoders.
fn encoders(family: &DiffusionFamily, released: &ReleasedModel) -> Value {
    let files: Vec<String> = released.encoders.iter().map(|(key, _)| encoder_file(key)).collect();
    match files.as_slice() {
        [first, second, third] => json!({ "class_type": "TripleCLIPLoader", "inputs": {
            "clip_name1": first, "clip_name2": second, "clip_name3": third } }),
        [first, second] => json!({ "class_type": "DualCLIPLoader", "inputs": {
            "clip_name1": first, "clip_name2": second, "type": family.workflow.text.name, "device": "cpu" } }),
        files => json!({ "class_type": "CLIPLoader", "inputs": {
            "clip_name": files.first(), "type": family.workflow.text.name, "device": "cpu" } }),
    }
}

#[cfg(test)]
mod tests {
    use models::diffusion::FAMILIES;

    use super::*;

    #[test]
    fn a_lora_stands_between_loader_and_sampler() {
        let mut drawing = Drawing {
            compute: "sim:0",
            allocation: "",
            virtual_vram_gb: 0.5,
            weight_dtype: "default",
            lora: false,
            cfg: 1.0,
            steps: 2,
            seed: 3,
        };
        let plain = prompt(&drawing, (FAMILIES[0], &FAMILIES[0].small));
        assert_eq!(plain[SAMPLER]["inputs"]["model"], json!([LOADER, 0]));
        assert!(plain.get("lora").is_none());
        drawing.lora = true;
        let patched = prompt(&drawing, (FAMILIES[0], &FAMILIES[0].small));
        assert_eq!(patched[SAMPLER]["inputs"]["model"], json!(["lora", 0]));
        assert_eq!(patched["lora"]["inputs"]["model"], json!([LOADER, 0]));
    }
}
