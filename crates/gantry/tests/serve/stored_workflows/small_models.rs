//! Small model files of each family, under names of their own. What they are made of is described by the manifests of
//! the reference: the same tensors as in published files, fewer and narrower.

use std::fs;
use std::path::{Path, PathBuf};

use meta::{DType, Encoding, QuantFormat, Shape};
use testkit::pickle::{PickleForm, PickledTensor, pickled};
use testkit::{GgufWriter, Manifest, ManifestTensor, SafetensorsWriter};

/// Where the parts of a Stable Diffusion checkpoint are.
const DIFFUSION: &str = "model.diffusion_model.";
const AUTOENCODER: &str = "first_stage_model.";
/// Values that a small LoRA has on its inner side.
const LORA_RANK: usize = 4;
/// Matrices that a small LoRA changes.
const LORA_MATRICES: usize = 4;

/// The manifests beside the checkout.
pub(super) struct Manifests(PathBuf);

impl Manifests {
    /// The folder, if it is there.
    pub(super) fn beside_checkout() -> Option<Manifests> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/manifests");
        folder.is_dir().then_some(Manifests(folder))
    }

    /// One of them, or one of testkit's own.
    fn read(&self, name: &str) -> Manifest {
        let path = self.0.join(format!("{name}.json"));
        if path.is_file() { Manifest::open(path).unwrap() } else { Manifest::bundled(name).unwrap() }
    }

    /// Writes files as they are described.
    fn write(&self, models: &Path, names: &[&str]) {
        for name in names {
            self.read(name).write_to(models).unwrap();
        }
    }
}

/// Chroma and Chroma Radiance.
pub(super) fn write_chroma(manifests: &Manifests, models: &Path) {
    manifests.write(models, &["chroma_tiny", "chroma_radiance_tiny", "t5xxl_tiny"]);
    write_as(narrow_autoencoder(manifests.read("flux_ae")), models, "vae/ae.safetensors");
}

/// FLUX.2 dev with Mistral 3, and klein with Qwen3.
pub(super) fn write_flux2(manifests: &Manifests, models: &Path) {
    manifests.write(models, &["flux2_tiny", "mistral3_24b_tiny", "qwen3_4b_tiny"]);
    let dev = manifests.read("flux2_tiny");
    write_lora(&dev, models, "flux2_lora.safetensors");
    // Klein is told three states of Qwen3 and no guidance.
    let text = manifests.read("qwen3_4b_tiny").tensor("model.embed_tokens.weight").unwrap().shape.dims()[1];
    let mut klein = dev;
    klein.tensors.retain(|tensor| !tensor.name.starts_with("guidance_in."));
    let from_text = klein.tensors.iter_mut().find(|tensor| tensor.name == "txt_in.weight").unwrap();
    from_text.shape = Shape::from([from_text.shape.dims()[0], 3 * text]);
    write_as(klein, models, "diffusion_models/klein.safetensors");
    write_as(narrow_autoencoder(manifests.read("flux2_vae")), models, "vae/flux2_vae.safetensors");
}

/// Qwen-Image, Qwen-Image-Edit, what controls them, and Qwen-Image 2.1.
pub(super) fn write_qwen_image(manifests: &Manifests, models: &Path) {
    manifests.write(
        models,
        &[
            "qwen_image_tiny",
            "qwen_image_edit_2511_tiny",
            "qwen25_vl_7b_tiny",
            "wan_2.1_vae_tiny",
            "qwen_image_instantx_tiny",
            "qwen_image_blockwise_tiny",
            "qwen_image_2.1_tiny",
            "qwen_image_2.1_vae_tiny",
            "qwen3vl_8b_tiny",
        ],
    );
    let image = manifests.read("qwen_image_tiny");
    write_lora(&image, models, "qwen_lora.safetensors");
    write_gguf(
        &image,
        "qwen_image",
        |name| Some(name.to_owned()),
        &models.join("diffusion_models/qwen.gguf"),
    );
    let text = manifests.read("qwen25_vl_7b_tiny");
    write_gguf(&text, "qwen2vl", converters_name, &models.join("text_encoders/qwen25_vl.gguf"));
    write_lotus(manifests, models);
}

/// Stable Diffusion 1.5, what controls it and what enlarges its pictures.
pub(super) fn write_sd15(manifests: &Manifests, models: &Path) {
    let names =
        ["sd15_micro_controlnet", "sd15_micro_t2i_adapter", "gligen_sd15_micro", "esrgan_x4_new_tiny"];
    manifests.write(models, &names);
    write_pickle(&manifests.read("sd15_micro_t2i_adapter"), None, &models.join("controlnet/adapter.pth"));
    let whole = manifests.read("sd15_tiny");
    let mut parts = under(DIFFUSION, manifests.read("sd15_micro"));
    parts.tensors.extend(without(DIFFUSION, narrow(whole, AUTOENCODER, 128, 32)).tensors);
    write_pickle(&parts, Some("state_dict"), &models.join("checkpoints/sd15.ckpt"));
    write_as(parts, models, "checkpoints/sd15.safetensors");
    let autoencoder = narrow_autoencoder(manifests.read("kl_vae_sd15"));
    write_pickle(&autoencoder, Some("state_dict"), &models.join("vae/kl.ckpt"));
    write_lotus(manifests, models);
}

/// Stable Diffusion 3 and 3.5, with and without encoders in the file.
pub(super) fn write_sd3(manifests: &Manifests, models: &Path) {
    manifests.write(models, &["clip_l_tiny", "clip_g_tiny", "t5xxl_tiny", "sd35_micro_stability"]);
    for name in ["sd3", "sd35"] {
        let mut parts = under(DIFFUSION, manifests.read(&format!("{name}_micro")));
        parts.tensors.extend(under(AUTOENCODER, narrow_autoencoder(manifests.read("flux_ae"))).tensors);
        write_as(parts.clone(), models, &format!("checkpoints/{name}.safetensors"));
        for (key, manifest) in [("clip_l", "clip_l_tiny"), ("clip_g", "clip_g_tiny")] {
            let prefix = format!("text_encoders.{key}.transformer.");
            parts.tensors.extend(under(&prefix, manifests.read(manifest)).tensors);
        }
        write_as(parts, models, &format!("checkpoints/{name}_with_encoders.safetensors"));
    }
    write_lotus(manifests, models);
}

/// SDXL, its refiner, and the model that edits pictures.
pub(super) fn write_sdxl(manifests: &Manifests, models: &Path) {
    let whole = narrow(manifests.read("sdxl_tiny"), AUTOENCODER, 128, 32);
    let base = narrow(whole, DIFFUSION, 320, 64);
    let mut edit = base.clone();
    let entrance = format!("{DIFFUSION}input_blocks.0.0.weight");
    let entrance = edit.tensors.iter_mut().find(|tensor| tensor.name == entrance).unwrap();
    // The latent of the picture stands beside the noise.
    let [outputs, inputs, height, width] = *entrance.shape.dims() else { panic!("it is no convolution") };
    entrance.shape = Shape::from([outputs, 2 * inputs, height, width]);
    write_as(edit, models, "checkpoints/edit.safetensors");
    let mut refiner = manifests.read("sdxl_refiner_micro");
    refiner
        .tensors
        .extend(base.tensors.iter().filter(|tensor| tensor.name.starts_with(AUTOENCODER)).cloned());
    write_as(refiner, models, "checkpoints/refiner.safetensors");
    write_as(base, models, "checkpoints/base.safetensors");
}

/// Z-Image.
pub(super) fn write_z_image(manifests: &Manifests, models: &Path) {
    manifests.write(models, &["z_image_tiny", "qwen3_4b_tiny"]);
    write_lora(&manifests.read("z_image_tiny"), models, "z_image_lora.safetensors");
    write_as(narrow_autoencoder(manifests.read("flux_ae")), models, "vae/ae.safetensors");
}

/// Lotus, which sees depth, its autoencoder, and the text encoder whose empty prompt it is told.
pub(super) fn write_lotus(manifests: &Manifests, models: &Path) {
    const ENCODER: &str = "cond_stage_model.model.";
    let whole = manifests.read("sd21_v_micro");
    let mut depth = whole.clone();
    depth.tensors.retain(|tensor| tensor.name.starts_with(DIFFUSION));
    write_as(renamed(depth, DIFFUSION, ""), models, "diffusion_models/lotus.safetensors");
    let mut encoder = whole;
    encoder.tensors.retain(|tensor| tensor.name.starts_with(ENCODER));
    write_as(renamed(encoder, ENCODER, ""), models, "text_encoders/open_clip_h.safetensors");
    write_as(narrow_autoencoder(manifests.read("kl_vae_sd15")), models, "vae/kl.safetensors");
}

fn write_as(mut manifest: Manifest, models: &Path, file: &str) {
    file.clone_into(&mut manifest.file);
    manifest.write_to(models).unwrap();
}

/// The same tensors with sizes below a prefix that are multiples of one width made multiples of a smaller one.
fn narrow(mut manifest: Manifest, prefix: &str, from: usize, to: usize) -> Manifest {
    for tensor in manifest.tensors.iter_mut().filter(|tensor| tensor.name.starts_with(prefix)) {
        let dims = tensor.shape.dims().iter();
        let dims: Vec<usize> =
            dims.map(|size| if size % from == 0 { size / from * to } else { *size }).collect();
        tensor.shape = Shape::new(&dims).unwrap();
    }
    manifest
}

/// A KL autoencoder of a quarter of its width.
fn narrow_autoencoder(manifest: Manifest) -> Manifest {
    narrow(narrow(manifest, "encoder.", 128, 32), "decoder.", 128, 32)
}

fn under(prefix: &str, manifest: Manifest) -> Manifest {
    renamed(manifest, "", prefix)
}

fn without(prefix: &str, mut manifest: Manifest) -> Manifest {
    manifest.tensors.retain(|tensor| !tensor.name.starts_with(prefix));
    manifest
}

/// The same tensors with another beginning of their names.
fn renamed(mut manifest: Manifest, from: &str, to: &str) -> Manifest {
    for tensor in &mut manifest.tensors {
        tensor.name = format!("{to}{}", tensor.name.strip_prefix(from).unwrap());
    }
    manifest
}

/// A LoRA for a few matrices of a model's blocks.
fn write_lora(model: &Manifest, models: &Path, name: &str) {
    let is_of_block = |tensor: &&ManifestTensor| {
        let name = &tensor.name;
        tensor.shape.rank() == 2
            && name.ends_with(".weight")
            && (name.contains("blocks.") || name.contains("layers."))
    };
    let mut writer = SafetensorsWriter::new();
    for tensor in model.tensors.iter().filter(is_of_block).take(LORA_MATRICES) {
        let (rows, columns) = (tensor.shape.dims()[0], tensor.shape.dims()[1]);
        let base = tensor.name.strip_suffix(".weight").unwrap();
        for (half, dims) in [("lora_A", [LORA_RANK, columns]), ("lora_B", [rows, LORA_RANK])] {
            let values: Vec<f32> =
                testkit::random_f32(7, dims[0] * dims[1]).iter().map(|value| value * 0.05).collect();
            let name = format!("diffusion_model.{base}.{half}.weight");
            writer = writer.values(name, DType::BF16, Shape::from(dims), &values).unwrap();
        }
    }
    write_file(&models.join("loras").join(name), &writer.finish().unwrap());
}

/// A model as a GGUF file: matrices in eight bits, the rest as it is.
fn write_gguf(model: &Manifest, architecture: &str, name: impl Fn(&str) -> Option<String>, path: &Path) {
    let mut writer = GgufWriter::new().value("general.architecture", architecture);
    for tensor in &model.tensors {
        let Some(name) = name(&tensor.name) else { continue };
        let shape = tensor.shape;
        let is_matrix = shape.rank() == 2 && shape.dims()[1].is_multiple_of(32);
        let encoding: Encoding = if is_matrix { QuantFormat::Q8_0.into() } else { DType::F32.into() };
        writer = writer.values(name, encoding, shape, &tensor.values().unwrap()).unwrap();
    }
    write_file(path, &writer.finish().unwrap());
}

/// The name that converters of language models give a tensor; the vision tower goes into another file.
fn converters_name(name: &str) -> Option<String> {
    if name.starts_with("visual.") {
        return None;
    }
    let words = [
        ("model.embed_tokens.", "token_embd."),
        ("model.norm.", "output_norm."),
        ("lm_head.", "output."),
        ("model.layers.", "blk."),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
    ];
    Some(words.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to)))
}

/// A model as PyTorch's older pickles.
fn write_pickle(model: &Manifest, wrapper: Option<&str>, path: &Path) {
    let stored: Vec<Vec<u8>> = model.tensors.iter().map(ManifestTensor::bytes).collect();
    let tensors = model.tensors.iter().zip(&stored).map(|(tensor, bytes)| PickledTensor {
        name: &tensor.name,
        dtype: tensor.encoding.dtype().unwrap(),
        shape: tensor.shape.dims(),
        bytes,
    });
    let tensors: Vec<PickledTensor<'_>> = tensors.collect();
    write_file(path, &pickled(PickleForm::Legacy, wrapper, &tensors));
}

fn write_file(path: &Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}
