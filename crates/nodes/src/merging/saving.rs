//! Models saved as they are patched: a checkpoint, or one part of it. Tensors go from their files to the new one, each by
//! itself, so that no model is in memory as a whole.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Entry, NewTensor, SafetensorsHead};
use graph::{Call, Catalogue, Failure, Hidden, Input, Outcome, Schema};
use meta::{DType, DeviceId, Encoding, Shape};
use patch::{Patch, PatchSet, merge_stored};
use residency::{Manifest, WeightSpec};
use runtime::folders::Place;
use runtime::{Clip, Model, Source, Vae, WeightPatch, patch_set};
use sampling::Parameterization;
use tensor::{Lane, Weight};

use super::MODULE;
use crate::class::class;
use crate::saving::provenance;
use crate::{Error, Result, Runtime};

/// What stands before the names of a checkpoint's parts.
const DIFFUSION: &str = "model.diffusion_model.";
const AUTOENCODER: &str = "first_stage_model.";
/// Says that a model predicts velocities, where its weights do not.
const VELOCITY_MARK: &str = "v_pred";

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CheckpointSave(Arc::clone(runtime)));
    catalogue.add(ModelSave(Arc::clone(runtime)));
    catalogue.add(CLIPSave(Arc::clone(runtime)));
    catalogue.add(VAESave(Arc::clone(runtime)));
}

/// A network that is written, with its patches.
struct Written<'a> {
    source: &'a Source,
    manifest: Manifest,
    patches: PatchSet,
    /// What its names begin with in the new file.
    prefix: String,
}

impl<'a> Written<'a> {
    fn new(
        source: &'a Source,
        beside: &[Arc<Source>],
        patches: &[WeightPatch],
        prefix: &str,
    ) -> Result<Written<'a>> {
        let (manifest, patches) = (source.manifest()?, patch_set(source, beside, patches)?);
        Ok(Written { source, manifest, patches, prefix: prefix.to_owned() })
    }

    /// The tensors of its part of the file.
    fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.source.file.entries().iter().filter(|entry| self.source.part.has(entry.name()))
    }

    /// A tensor of the new file.
    fn described(&self, entry: &Entry) -> Result<NewTensor> {
        let name = entry.name().strip_prefix(self.source.part.prefix.as_str()).unwrap_or(entry.name());
        let Encoding::Plain(dtype) = entry.encoding() else {
            return Err(Error::Told(format!(
                "{}: {} is stored as {}, which is no type of a checkpoint; load the model from a file of 16 or 32 bits",
                self.source.name(),
                entry.name(),
                entry.encoding(),
            )));
        };
        Ok(NewTensor { name: format!("{}{name}", self.prefix), dtype, shape: *entry.shape() })
    }

    /// The bytes of a tensor, with the patches of the weights that lie in it.
    fn bytes(&self, lane: &Lane, entry: &Entry) -> Result<Vec<u8>> {
        let stored = self.source.file.bytes(entry);
        let mut bytes = stored.to_vec();
        let start = stored.as_ptr() as usize;
        for (name, patches) in self.patches.iter() {
            let Some(index) = self.manifest.index_of(name) else { continue };
            let spec = &self.manifest.weights()[index];
            let at = (spec.bytes.as_ptr() as usize).checked_sub(start);
            let Some(at) = at.filter(|at| at + spec.bytes.len() <= bytes.len()) else { continue };
            if spec.companions.scale.is_some() {
                let text = format!(
                    "{}: {name} has a scale beside it, and cannot be patched and saved; load the model from a file of \
                     16 or 32 bits",
                    self.source.name()
                );
                return Err(Error::Told(text));
            }
            merged(lane, spec, patches, &mut bytes[at..at + spec.bytes.len()])?;
        }
        Ok(bytes)
    }
}

/// A stored weight with its patches, in the type that it is stored in.
fn merged(lane: &Lane, spec: &WeightSpec, patches: &[Patch], into: &mut [u8]) -> Result<()> {
    let weight = Weight::upload(lane.device(), spec.encoding, spec.shape, &spec.bytes)?;
    let merged = merge_stored(lane, &weight, patches)?;
    Ok(lane.stream().read(&merged.operand().span(), into)?)
}

/// Writes networks into a new file under a prefix such as `checkpoints/mine`.
fn write(runtime: &Runtime, call: &Call, prefix: &str, parts: &[Written<'_>]) -> Result<(), Failure> {
    let mut tensors = Vec::new();
    for part in parts {
        for entry in part.entries() {
            tensors.push(part.described(entry)?);
        }
    }
    if parts.iter().any(predicts_velocity) && tensors.iter().all(|tensor| tensor.name != VELOCITY_MARK) {
        let (name, shape) = (VELOCITY_MARK.to_owned(), Shape::from([0]));
        tensors.push(NewTensor { name, dtype: DType::F32, shape });
    }
    let mut texts = provenance(runtime, call);
    // What the first file says of itself, such as its sizes, is true of the new one.
    let said = parts.first().map(|part| part.source.file.metadata());
    for (key, text) in said.iter().flat_map(|said| said.keys().filter_map(|key| Some((key, said.str(key)?))))
    {
        if texts.iter().all(|(known, _)| known != key) {
            texts.push((key.to_owned(), text.to_owned()));
        }
    }
    let head = SafetensorsHead::new(Path::new(prefix), &texts, &tensors).map_err(Error::from)?;
    let lane = Lane::new(runtime.devices.get(DeviceId::CPU).map_err(Error::from)?, DType::F32);
    let lane = lane.map_err(Error::from)?;
    let mut place = runtime.folders.save_place(Place::Output, prefix, (0, 0))?;
    let total = tensors.len() as f64;
    let mut written = 0.0;
    place.save_draft(0, "safetensors", &mut |draft| {
        let path = draft.path().to_owned();
        let io = |source| Error::Io { path: path.clone(), source };
        draft.write_all(head.bytes()).map_err(io)?;
        for part in parts {
            for entry in part.entries() {
                let bytes = part.bytes(&lane, entry).map_err(|error| io(std::io::Error::other(error)))?;
                draft.write_all(&bytes).map_err(io)?;
                written += 1.0;
                let stopped = |_| io(std::io::ErrorKind::Interrupted.into());
                call.plain_progress(written, total).map_err(stopped)?;
            }
        }
        Ok(())
    })?;
    Ok(())
}

fn predicts_velocity(part: &Written<'_>) -> bool {
    match &*part.source.network {
        runtime::Network::Diffusion(model, _) => model.sampling().parameterization() == Parameterization::V,
        _ => false,
    }
}

/// A class that saves: nothing comes out of it.
fn output(schema: Schema, prefix: &str) -> Schema {
    schema
        .input(Input::text("filename_prefix", prefix))
        .hidden("prompt", Hidden::Prompt)
        .hidden("extra_pnginfo", Hidden::ExtraPngInfo)
        .output_node()
        .module(MODULE)
}

fn diffusion(model: &Model) -> Result<Written<'_>> {
    Written::new(&model.source, &[], &model.loras, DIFFUSION)
}

/// The encoders of a set. Those of a checkpoint keep the places that they have there.
fn encoders<'a>(clip: &'a Clip, named: impl Fn(&Source) -> String) -> Result<Vec<Written<'a>>> {
    let encoder = |source: &'a Arc<Source>| Written::new(source, &clip.encoders, &clip.loras, &named(source));
    clip.encoders.iter().map(encoder).collect()
}

/// What an encoder's names begin with in a checkpoint.
fn in_checkpoint(source: &Source) -> String {
    let key = source.encoder_key().unwrap_or_default();
    match source.part.prefix.as_str() {
        "" => format!("text_encoders.{key}.transformer."),
        prefix => prefix.to_owned(),
    }
}

class! {
    /// A model, its text encoders and its autoencoder in one file.
    CheckpointSave in "advanced/model_merging";
    |schema| {
        let schema = schema
            .input(Input::socket("model", "MODEL"))
            .input(Input::socket("clip", "CLIP"))
            .input(Input::socket("vae", "VAE"));
        output(schema, "checkpoints/ComfyUI").title("Save Checkpoint")
    };
    |runtime, call| {
        let (model, clip, vae) =
            (call.object::<Model>("model")?, call.object::<Clip>("clip")?, call.object::<Vae>("vae")?);
        let mut parts = vec![diffusion(&model)?];
        parts.extend(encoders(&clip, in_checkpoint)?);
        parts.push(Written::new(&vae.source, &[], &[], AUTOENCODER)?);
        write(runtime, call, call.text("filename_prefix")?, &parts)?;
        Ok(Outcome::default())
    }
}

class! {
    /// A diffusion model alone.
    ModelSave in "advanced/model_merging";
    |schema| output(schema.input(Input::socket("model", "MODEL")), "diffusion_models/ComfyUI");
    |runtime, call| {
        let model = call.object::<Model>("model")?;
        write(runtime, call, call.text("filename_prefix")?, &[diffusion(&model)?])?;
        Ok(Outcome::default())
    }
}

class! {
    /// Text encoders, each in a file of its own.
    CLIPSave in "advanced/model_merging";
    |schema| output(schema.input(Input::socket("clip", "CLIP")), "clip/ComfyUI");
    |runtime, call| {
        let clip = call.object::<Clip>("clip")?;
        let prefix = call.text("filename_prefix")?;
        for encoder in encoders(&clip, |_| String::new())? {
            let key = encoder.source.encoder_key().unwrap_or_default();
            write(runtime, call, &format!("{prefix}_{key}"), &[encoder])?;
        }
        Ok(Outcome::default())
    }
}

class! {
    /// An autoencoder alone.
    VAESave in "advanced/model_merging";
    |schema| output(schema.input(Input::socket("vae", "VAE")), "vae/ComfyUI_vae");
    |runtime, call| {
        let vae = call.object::<Vae>("vae")?;
        write(runtime, call, call.text("filename_prefix")?, &[Written::new(&vae.source, &[], &[], "")?])?;
        Ok(Outcome::default())
    }
}
