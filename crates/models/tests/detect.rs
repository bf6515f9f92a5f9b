//! What files are, from names and shapes; and what is said about those that are something else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs::File;
use std::io::Write;

use checkpoint::Checkpoint;
use meta::{Encoding, QuantFormat};
use models::Module;
use models::detect::{Layout, Role};
use models::diffusion::flux::Flux;
use models::vae::kl::Kl;
use models::{Error, detect};
use support::checkpoint;
use testkit::ScratchDir;

/// A tensor of a file: its name, its type as safetensors writes it, and its dimensions.
type Tensor = (String, &'static str, Vec<usize>);

/// A file with these tensors, all zero. It takes no room on the disk: its bytes are a hole.
fn file(tensors: &[Tensor]) -> Checkpoint {
    let dir = ScratchDir::new().unwrap();
    let path = dir.join("some_name.safetensors");
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, dtype, dims) in tensors {
        let bytes = match *dtype {
            "F32" => 4,
            "F16" | "BF16" => 2,
            "I64" => 8,
            _ => 1,
        };
        let start = end;
        end += dims.iter().product::<usize>() * bytes;
        let entry = serde_json::json!({ "dtype": dtype, "shape": dims, "data_offsets": [start, end] });
        header.insert(name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let mut out = File::create(&path).unwrap();
    out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    out.write_all(&header).unwrap();
    out.set_len((8 + header.len() + end) as u64).unwrap();
    Checkpoint::open(&path).unwrap()
}

/// The tensors of a bundled manifest.
fn tensors_of(manifest: &str) -> Vec<Tensor> {
    let manifest = testkit::Manifest::bundled(manifest).unwrap();
    let dtype = |encoding: Encoding| match encoding.name() {
        "f32" => "F32",
        "f16" => "F16",
        "bf16" => "BF16",
        "f8_e4m3" => "F8_E4M3",
        "i64" => "I64",
        _ => "U8",
    };
    let tensor = |t: &testkit::ManifestTensor| (t.name.clone(), dtype(t.encoding), t.shape.dims().to_vec());
    manifest.tensors.iter().map(tensor).collect()
}

/// The tensors of a manifest under a prefix.
fn prefixed(manifest: &str, prefix: &str) -> Vec<Tensor> {
    let rename = |(name, dtype, dims)| (format!("{prefix}{name}"), dtype, dims);
    tensors_of(manifest).into_iter().map(rename).collect()
}

fn change(tensors: &mut [Tensor], name: &str, dims: &[usize]) {
    tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap().2 = dims.to_vec();
}

#[test]
fn every_manifest_is_recognised() {
    for (name, seems) in [
        ("flux_dev_micro", "a diffusion model (FLUX.1 dev)"),
        ("flux_dev_d1s1", "a diffusion model (FLUX.1 dev)"),
        ("flux_schnell_micro", "a diffusion model (FLUX.1 schnell)"),
        ("clip_l_tiny", "a text encoder (CLIP-L)"),
        ("clip_g_tiny", "a text encoder (CLIP-G)"),
        ("t5xxl_tiny", "a text encoder (T5-XXL)"),
        ("umt5xxl_tiny", "a text encoder (UMT5-XXL)"),
        ("flux_ae", "an autoencoder (KL, 16 channels)"),
        ("kl_vae_sd15", "an autoencoder (KL, 4 channels)"),
        ("flux_dev_micro_lora_kohya", "a LoRA"),
        ("flux_dev_micro_lora_diffusers", "a LoRA"),
        ("sd15_tiny_lora_kohya", "a LoRA"),
        ("sd15_tiny", "an all-in-one checkpoint of SD1.5 with CLIP-L, KL, 4 channels"),
        ("sdxl_tiny", "an all-in-one checkpoint of SDXL with CLIP-L, CLIP-G, KL, 4 channels"),
        ("sd3_micro", "a diffusion model (Stable Diffusion 3)"),
        ("sd35_micro", "a diffusion model (Stable Diffusion 3.5 medium)"),
        ("wan2.1_t2v_tiny", "a diffusion model (Wan text to video)"),
        ("wan2.1_i2v_tiny", "a diffusion model (Wan 2.1 image to video)"),
        ("hunyuan_video_tiny", "a diffusion model (HunyuanVideo)"),
        ("hunyuan_video_15_tiny", "a diffusion model (HunyuanVideo 1.5)"),
        ("qwen_image_tiny", "a diffusion model (Qwen-Image)"),
        ("ltxv_tiny", "an all-in-one checkpoint of LTX-Video with LTX-Video"),
        ("mochi_micro", "a diffusion model (Mochi)"),
        ("kandinsky5_tiny", "a diffusion model (Kandinsky 5 video)"),
        ("chroma_radiance_tiny", "a diffusion model (Chroma Radiance)"),
        ("ltxv_spatial_tiny", "an upscaler of latents (LTX-Video, spatial)"),
        ("cosmos_predict2_t2i_tiny", "a diffusion model (Cosmos Predict 2 text to image)"),
        ("cosmos_predict2_video2world_tiny", "a diffusion model (Cosmos Predict 2 video)"),
        ("z_image_micro", "a diffusion model (Z-Image)"),
        ("lumina2_tiny", "a diffusion model (Lumina 2)"),
        ("llava_llama3_tiny", "a text encoder (Llama 3 of width 256)"),
        ("qwen25_7b_tiny", "a text encoder (Qwen2.5 of width 256)"),
        ("qwen3_4b_tiny", "a text encoder (Qwen3 of width 256)"),
        ("gemma_2_2b_tiny", "a text encoder (Gemma 2 of width 192)"),
        ("mistral3_24b_tiny", "a text encoder (Mistral 3 of width 128)"),
        ("byt5_glyph_tiny", "a text encoder (ByT5)"),
        ("oldt5_xxl_tiny", "a text encoder (T5 of width 1024)"),
        ("hunyuan_video_vae", "an autoencoder (HunyuanVideo)"),
        ("hunyuan_video_15_vae_tiny", "an autoencoder (HunyuanVideo 1.5)"),
        ("wan_2.1_vae_tiny", "an autoencoder (Wan 2.1)"),
        ("wan2.2_vae_tiny", "an autoencoder (Wan 2.2)"),
    ] {
        assert_eq!(detect(&file(&tensors_of(name))).seems(), seems, "{name}");
    }
}

#[test]
fn precision_is_that_of_most_values() {
    for (name, precision) in [
        ("flux_dev_micro", "bf16"),
        ("flux_dev_micro_fp8", "f8_e4m3"),
        ("flux_dev_micro_fp8_scaled", "f8_e4m3 scaled"),
        ("flux_dev_micro-Q8_0", "q8_0"),
        ("kl_vae_sd15", "f16"),
    ] {
        let detected = detect(&checkpoint(name));
        assert_eq!(detected.parts[0].precision.to_string().to_lowercase(), precision, "{name}");
    }
    let packed = detect(&checkpoint("flux_dev_micro-Q8_0"));
    assert_eq!(packed.name(), Some("FLUX.1 dev"));
    assert_eq!(packed.parts[0].precision.encoding.quant(), Some(QuantFormat::Q8_0));
}

#[test]
fn variants_follow_from_the_columns_of_the_first_layer() {
    for (columns, variant) in [(64, "FLUX.1 dev"), (128, "FLUX.1 Canny or Depth"), (384, "FLUX.1 Fill")] {
        let mut tensors = tensors_of("flux_dev_micro");
        change(&mut tensors, "img_in.weight", &[128, columns]);
        let checkpoint = file(&tensors);
        let detected = detect(&checkpoint);
        assert_eq!(detected.name(), Some(variant));
        let flux = Flux::read(&checkpoint, &detected).unwrap();
        assert_eq!((flux.config().in_channels, flux.config().out_channels), (columns / 4, 16));
    }
}

#[test]
fn an_all_in_one_checkpoint_has_parts_with_prefixes() {
    let mut tensors = prefixed("flux_schnell_micro", "model.diffusion_model.");
    tensors.extend(prefixed("clip_l_tiny", "text_encoders.clip_l.transformer."));
    tensors.extend(prefixed("t5xxl_tiny", "text_encoders.t5xxl.transformer."));
    tensors.extend(prefixed("flux_ae", "vae."));
    let checkpoint = file(&tensors);
    let detected = detect(&checkpoint);
    let found: Vec<(Role, &str, &str)> = detected
        .parts
        .iter()
        .map(|part| (part.role, part.prefix.as_str(), part.precision.encoding.name()))
        .collect();
    assert_eq!(
        found,
        [
            (Role::Diffusion, "model.diffusion_model.", "bf16"),
            (Role::Text, "text_encoders.clip_l.transformer.", "f16"),
            (Role::Text, "text_encoders.t5xxl.transformer.", "f16"),
            (Role::Autoencoder, "vae.", "f32"),
        ]
    );
    assert_eq!(
        detected.seems(),
        "an all-in-one checkpoint of FLUX.1 schnell with CLIP-L, T5-XXL, KL, 16 channels"
    );
    let flux = Flux::read(&checkpoint, &detected).unwrap();
    let manifest = flux.manifest(&checkpoint).unwrap();
    assert!(manifest.index_of("double_blocks.0.img_attn.qkv.weight").is_some());
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    Kl::read(&checkpoint, &detected).unwrap().manifest(&checkpoint).unwrap();
}

#[test]
fn other_layouts_are_named() {
    let names =
        ["transformer_blocks.0.attn.norm_added_k.weight", "single_transformer_blocks.0.attn.norm_k.weight"];
    let checkpoint = file(&names.map(|name| (name.to_owned(), "BF16", vec![128])));
    let detected = detect(&checkpoint);
    assert_eq!(detected.parts[0].layout, Layout::Diffusers);
    let error = Flux::read(&checkpoint, &detected).unwrap_err().to_string();
    assert_eq!(
        error,
        "some_name.safetensors is not a FLUX.1 diffusion model: it seems to be a diffusion model \
         (FLUX.1 schnell) with the tensor names of diffusers"
    );
    let ggml = file(&[("enc.blk.0.attn_q.weight".into(), "F16", vec![64, 4096])]);
    assert_eq!(detect(&ggml).parts[0].layout, Layout::LlamaCpp);
}

#[test]
fn wrong_files_say_what_they_are() {
    let error = |name: &str| {
        let checkpoint = file(&tensors_of(name));
        Flux::read(&checkpoint, &detect(&checkpoint)).unwrap_err().to_string()
    };
    assert_eq!(
        error("t5xxl_tiny"),
        "some_name.safetensors is not a FLUX.1 diffusion model: it seems to be a text encoder (T5-XXL)"
    );
    assert!(error("flux_dev_micro_lora_kohya").ends_with("it seems to be a LoRA"));
    assert!(error("sd15_tiny").contains("an all-in-one checkpoint of SD1.5"));
    let unknown = file(&[("a.b".into(), "F32", vec![2, 3]), ("c".into(), "F32", vec![])]);
    let text = detect(&unknown).wrong_kind("a model").to_string();
    assert!(
        text.ends_with("of a kind that is not known here: its first tensors are a.b [2, 3], c []"),
        "{text}"
    );
    let text = Kl::read(&unknown, &detect(&unknown)).unwrap_err().to_string();
    assert!(text.contains("is not a KL autoencoder"), "{text}");
}

/// A file whose tensors say nothing, with what it says itself.
fn strange_file(architecture: &str) -> Checkpoint {
    let dir = ScratchDir::new().unwrap();
    let path = dir.join("strange.bin");
    testkit::GgufWriter::new()
        .value("general.architecture", architecture)
        .tensor("a.b", Encoding::F32, meta::Shape::from([2, 3]), vec![0; 24])
        .write(&path)
        .unwrap();
    Checkpoint::open(&path).unwrap()
}

#[test]
fn a_file_that_only_says_what_it_is_is_told_by_the_fields_names() {
    for (said, told) in [("flux", "FLUX.1"), ("hyvid", "HunyuanVideo"), ("novel", "\"novel\"")] {
        let seems = detect(&strange_file(said)).seems();
        let expected = format!(
            "{told} by its own account, though its tensors have names that are not known here: the first are a.b [2, 3]"
        );
        assert_eq!(seems, expected);
    }
    assert_eq!(
        detect(&strange_file("")).seems(),
        "of a kind that is not known here: its first tensors are a.b [2, 3]"
    );
    // Names and shapes count more than what a file says.
    assert_eq!(detect(&checkpoint("flux_dev_micro-Q8_0")).seems(), "a diffusion model (FLUX.1 dev)");
}

#[test]
fn a_missing_tensor_and_a_wrong_width_are_named() {
    for missing in [
        "txt_in.weight",
        "double_blocks.1.txt_attn.norm.key_norm.scale",
        "single_blocks.0.linear2.weight",
        "final_layer.adaLN_modulation.1.weight",
    ] {
        let mut tensors = tensors_of("flux_dev_micro");
        tensors.retain(|tensor| tensor.0 != missing);
        match read_flux(&file(&tensors)) {
            Err(Error::MissingTensor { tensor, seems, .. }) => {
                assert_eq!((tensor.as_str(), seems.as_str()), (missing, "a diffusion model (FLUX.1 dev)"));
            }
            other => panic!("{missing}: {other:?}"),
        }
    }
    let mut tensors = tensors_of("flux_dev_micro");
    change(&mut tensors, "single_blocks.1.linear1.weight", &[896, 64]);
    let text = read_flux(&file(&tensors)).unwrap_err().to_string();
    assert_eq!(
        text,
        "some_name.safetensors: single_blocks.1.linear1.weight has shape [896, 64], FLUX.1 needs [896, 128]"
    );
    let mut tensors = tensors_of("flux_dev_micro");
    change(&mut tensors, "double_blocks.0.img_attn.norm.query_norm.scale", &[63]);
    let text = read_flux(&file(&tensors)).unwrap_err().to_string();
    assert!(text.ends_with("has shape [63], FLUX.1 needs an even divisor of 128"), "{text}");

    // A dimension of 0 takes no bytes, so a file can claim any size for the others.
    let mut tensors = tensors_of("flux_dev_micro");
    change(&mut tensors, "img_in.weight", &[1 << 62, 0]);
    let text = read_flux(&file(&tensors)).unwrap_err().to_string();
    assert!(text.contains("FLUX.1 needs dimensions from 1 to"), "{text}");

    let mut tensors = tensors_of("flux_ae");
    tensors.retain(|tensor| {
        tensor.0 != "decoder.up.2.block.1.conv2.bias" && tensor.0 != "decoder.norm_out.weight"
    });
    let checkpoint = file(&tensors);
    let kl = Kl::read(&checkpoint, &detect(&checkpoint)).unwrap();
    let text = kl.manifest(&checkpoint).unwrap_err().to_string();
    assert!(text.contains("has no tensor decoder.norm_out.weight"), "{text}");
}

fn read_flux(checkpoint: &Checkpoint) -> models::Result<usize> {
    let flux = Flux::read(checkpoint, &detect(checkpoint))?;
    Ok(flux.manifest(checkpoint)?.weights().len())
}
