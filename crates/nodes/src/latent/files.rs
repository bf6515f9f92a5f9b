//! Latents in files, as ComfyUI writes them: safetensors with the values in the autoencoder's scale.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use checkpoint::{Checkpoint, NewTensor, SafetensorsHead};
use graph::{
    Call, Catalogue, Failure, Given, Hidden, Input, Literal, NodeClass, Outcome, Schema, Validates, Verdict,
};
use meta::{DType, Shape};
use sampling::Latent;

use crate::image::{file_fingerprint, file_verdict};
use crate::saving::{file_item, provenance};
use crate::value::LatentImage;
use crate::{Error, Result, Runtime};
use runtime::decode_values;
use runtime::folders::Place;
use runtime::host::{Host, Samples};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(SaveLatent(Arc::clone(runtime)));
    catalogue.add(LoadLatent(Arc::clone(runtime)));
}

/// The tensor with the values.
const VALUES: &str = "latent_tensor";
/// An empty tensor that says that the values are in the autoencoder's scale; older files are in Stable Diffusion's.
const SCALE_MARK: &str = "latent_format_version_0";
const OLD_SCALE: f32 = 0.18215;

struct SaveLatent(Arc<Runtime>);

impl NodeClass for SaveLatent {
    fn schema(&self) -> Schema {
        Schema::new("SaveLatent", "_for_testing")
            .about("Saves latents in the output folder.")
            .input(Input::socket("samples", "LATENT"))
            .input(Input::text("filename_prefix", "latents/ComfyUI"))
            .hidden("prompt", Hidden::Prompt)
            .hidden("extra_pnginfo", Hidden::ExtraPngInfo)
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let latent = call.object::<LatentImage>("samples")?;
        let mut place = self.0.folders.save_place(Place::Output, call.text("filename_prefix")?, (0, 0))?;
        let bytes = written("latent", &latent.samples, &provenance(&self.0, call))?;
        let name = place.save(0, "latent", &bytes)?;
        let items = Literal::List(vec![file_item(&name, &place.subfolder, Place::Output)]);
        Ok(Outcome::default().with_ui(graph::map([("latents", items)])))
    }
}

/// A latent as a file of that name, with texts that say how it was made.
fn written(name: &str, latent: &Latent, texts: &[(String, String)]) -> Result<Vec<u8>> {
    let tensor = |name: &str, shape: Shape| NewTensor { name: name.to_owned(), dtype: DType::F32, shape };
    let shape = Shape::new(latent.shape()).map_err(|error| Error::Told(format!("{name}: {error}")))?;
    let tensors = [tensor(VALUES, shape), tensor(SCALE_MARK, Shape::from([0]))];
    let mut file = SafetensorsHead::new(Path::new(name), texts, &tensors)?.bytes().to_vec();
    file.extend(latent.values().iter().flat_map(|value| value.to_le_bytes()));
    Ok(file)
}

struct LoadLatent(Arc<Runtime>);

impl NodeClass for LoadLatent {
    fn schema(&self) -> Schema {
        let entries = fs::read_dir(&self.0.folders.input).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut files: Vec<String> = names.filter(|name| name.ends_with(".latent")).collect();
        files.sort_unstable();
        Schema::new("LoadLatent", "_for_testing")
            .about("Loads latents from the input folder.")
            .input(Input::choice("latent", files))
            .output("LATENT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let path = self.0.folders.annotated(call.text("latent")?)?;
        let file = Checkpoint::open(&path).map_err(Error::from)?;
        Ok(Outcome::object(LatentImage::new(read(&self.0.host, &file)?)))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(file_fingerprint(&self.0.folders, call.text("latent")?)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["latent"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(&self.0.folders, given, "latent", "Invalid latent file"))
    }
}

fn read(host: &Host, file: &Checkpoint) -> Result<Samples> {
    let told = |what: &str| Error::Told(format!("{}: {what}", file.path().display()));
    let entry =
        file.entry(VALUES).ok_or_else(|| told("this is no latent: it has no tensor \"latent_tensor\""))?;
    let shape = entry.shape().dims().to_vec();
    let room = host.room(&shape)?;
    let mut values =
        decode_values(file, entry).ok_or_else(|| told("latents of 16 or 32 bits can be loaded"))?;
    if file.entry(SCALE_MARK).is_none() {
        values.iter_mut().for_each(|value| *value *= 1.0 / OLD_SCALE);
    }
    Ok(room.latent(Latent::new(shape, values)?))
}
