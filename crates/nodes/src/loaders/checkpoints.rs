//! Diffusion models, autoencoders, and files with everything.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Literal, Value};
use meta::DType;
use models::detect::Role;
use models::vae::pixels;

use super::text_encoders::clip_of_checkpoint;
use super::variants::add_with_variants;
use super::{Found, Loader, WeightType, gguf_names};
use crate::Runtime;
use runtime::Placing;

/// Adds the loaders of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    add_with_variants(catalogue, runtime, CheckpointSimple);
    add_with_variants(catalogue, runtime, Unet);
    add_with_variants(catalogue, runtime, UnetGguf { advanced: false });
    add_with_variants(catalogue, runtime, UnetGguf { advanced: true });
    add_with_variants(catalogue, runtime, Autoencoder);
}

/// `CheckpointLoaderSimple`: diffusion model, text encoders and autoencoder of one file.
struct CheckpointSimple;

impl Loader for CheckpointSimple {
    fn class(&self) -> &'static str {
        "CheckpointLoaderSimple"
    }

    fn title(&self) -> &'static str {
        "Load Checkpoint"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        vec![Input::choice("ckpt_name", runtime.names("checkpoints"))]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("ckpt_name", &["checkpoints"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL", "CLIP", "VAE"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        load_whole(runtime, call, [placing, placing, placing])
    }
}

/// Loads a whole checkpoint, its diffusion model, text encoders and autoencoder each where it is told. A part
/// that the file lacks is nothing; the nodes that need it say so.
pub(super) fn load_whole(
    runtime: &Runtime,
    call: &Call,
    [model, clip, vae]: [&Placing; 3],
) -> Result<Vec<Value>, Failure> {
    let found = Found::named(runtime, call, "ckpt_name", &["checkpoints"])?;
    let has = |role: Role| found.detected.parts_for(role).next().is_some();
    let none = Value::Literal(Literal::Null);
    let model = found.model(runtime, WeightType::default(), model)?;
    let clip = if has(Role::Text) { clip_of_checkpoint(runtime, &found, clip)? } else { none.clone() };
    let vae = if has(Role::Autoencoder) { found.vae(runtime, vae)? } else { none };
    Ok(vec![model, clip, vae])
}

/// `UNETLoader`: a diffusion model alone.
struct Unet;

impl Loader for Unet {
    fn class(&self) -> &'static str {
        "UNETLoader"
    }

    fn title(&self) -> &'static str {
        "Load Diffusion Model"
    }

    fn category(&self) -> &'static str {
        "advanced/loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let dtypes = ["default", "fp8_e4m3fn", "fp8_e4m3fn_fast", "fp8_e5m2"];
        vec![
            Input::choice("unet_name", runtime.names("diffusion_models")),
            Input::choice("weight_dtype", dtypes),
        ]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("unet_name", &["diffusion_models"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "unet_name", &["diffusion_models"])?;
        let as_said = WeightType::of(call.text("weight_dtype")?);
        Ok(vec![found.model(runtime, as_said, placing)?])
    }
}

impl WeightType {
    /// What `weight_dtype` says.
    fn of(weight_dtype: &str) -> WeightType {
        let cast = match weight_dtype {
            "fp8_e4m3fn" | "fp8_e4m3fn_fast" => Some(DType::F8E4M3),
            "fp8_e5m2" => Some(DType::F8E5M2),
            _ => None,
        };
        WeightType { cast, fp8_products: weight_dtype == "fp8_e4m3fn_fast" }
    }
}

/// `UnetLoaderGGUF` and `UnetLoaderGGUFAdvanced`: a diffusion model in a GGUF file. Weights are unpacked on the
/// device as they are used, so the advanced one's inputs change nothing.
struct UnetGguf {
    advanced: bool,
}

/// Where GGUF files of diffusion models are.
const UNET_FOLDERS: [&str; 2] = ["unet_gguf", "diffusion_models"];

impl Loader for UnetGguf {
    fn class(&self) -> &'static str {
        if self.advanced { "UnetLoaderGGUFAdvanced" } else { "UnetLoaderGGUF" }
    }

    fn title(&self) -> &'static str {
        if self.advanced { "Load Diffusion Model (GGUF, Advanced)" } else { "Load Diffusion Model (GGUF)" }
    }

    fn category(&self) -> &'static str {
        "bootleg"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let mut inputs = vec![Input::choice("unet_name", gguf_names(runtime, &UNET_FOLDERS))];
        if self.advanced {
            let dtypes = ["default", "target", "float32", "float16", "bfloat16"];
            inputs.push(Input::choice("dequant_dtype", dtypes).with("default", "default"));
            inputs.push(Input::choice("patch_dtype", dtypes).with("default", "default"));
            inputs.push(Input::boolean("patch_on_device", false));
        }
        inputs
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("unet_name", &UNET_FOLDERS)]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["MODEL"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = Found::named(runtime, call, "unet_name", &UNET_FOLDERS)?;
        Ok(vec![found.model(runtime, WeightType::default(), placing)?])
    }
}

/// `VAELoader`: an autoencoder alone.
struct Autoencoder;

impl Loader for Autoencoder {
    fn class(&self) -> &'static str {
        "VAELoader"
    }

    fn title(&self) -> &'static str {
        "Load VAE"
    }

    fn category(&self) -> &'static str {
        "loaders"
    }

    fn inputs(&self, runtime: &Runtime) -> Vec<Input> {
        let names = runtime.names("vae").into_iter().chain([pixels::NAME.to_owned()]);
        vec![Input::choice("vae_name", names.collect::<Vec<_>>())]
    }

    fn file_inputs(&self) -> Vec<(&'static str, &'static [&'static str])> {
        vec![("vae_name", &["vae"])]
    }

    fn outputs(&self) -> &'static [&'static str] {
        &["VAE"]
    }

    fn load(&self, runtime: &Runtime, call: &Call, placing: &Placing) -> Result<Vec<Value>, Failure> {
        let found = if call.text("vae_name")? == pixels::NAME {
            Found::pixels()?
        } else {
            Found::named(runtime, call, "vae_name", &["vae"])?
        };
        Ok(vec![found.vae(runtime, placing)?])
    }
}
