//! Batches of latents: parted, repeated, joined, and the noise and mask of each.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, NodeClass, Outcome, Schema, Slot, Value};

use super::{axes, fit_size};
use crate::class::class;
use crate::image::{Method, Target, growing, grown, scale_mask};
use crate::value::{LatentImage, Mask};
use crate::{Result, Runtime};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LatentFromBatch(Arc::clone(runtime)));
    catalogue.add(RepeatLatentBatch(Arc::clone(runtime)));
    catalogue.add(RebatchLatents);
    catalogue.add(LatentBatch(Arc::clone(runtime)));
    catalogue.add(BatchLatentsNode(Arc::clone(runtime)));
    catalogue.add(LatentBatchSeedBehavior(Arc::clone(runtime)));
    catalogue.add(SetLatentNoiseMask(Arc::clone(runtime)));
}

class! {
    LatentFromBatch in "latent/batch";
    |schema| schema
        .title("Latent From Batch")
        .about("Takes some latents out of a batch. They keep their noise.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::int("batch_index", 0, 0, 63))
        .input(Input::int("length", 1, 1, 64))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let start = call.size("batch_index")?.min(latent.batch().saturating_sub(1));
        let length = call.size("length")?.min(latent.batch() - start);
        Ok(Outcome::object(latent.items(start..start + length)?))
    }
}

impl LatentImage {
    /// Some items of the batch, with their masks and their noise.
    fn items(&self, items: std::ops::Range<usize>) -> Result<LatentImage> {
        let part = self.with_samples(axes::narrowed(&self.samples, 0, items.start, items.len())?)?;
        let noise_mask = match &self.noise_mask {
            Some(mask) if mask.batch != 1 => Some(mask.repeated_to(self.batch())?.frames(items.clone())?),
            mask => mask.clone(),
        };
        let batch_index = Some(self.batch_indices().get(items).unwrap_or_default().to_vec());
        Ok(LatentImage { noise_mask, batch_index, ..part })
    }
}

class! {
    RepeatLatentBatch in "latent/batch";
    |schema| schema
        .title("Repeat Latent Batch")
        .about("Repeats a batch.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::int("amount", 1, 1, 64))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let amount = call.size("amount")?;
        let batch = latent.batch().saturating_mul(amount);
        let mut shape = latent.samples.shape().to_vec();
        shape.iter_mut().take(1).for_each(|length| *length = batch);
        let repeated = latent.with(&shape, || axes::repeated_to(&latent.samples, batch))?;
        let noise_mask = match &latent.noise_mask {
            Some(mask) if mask.batch > 1 => Some(mask.repeated_to(latent.batch())?.repeated_to(batch)?),
            mask => mask.clone(),
        };
        // Each repetition gets noise of its own, beyond that of the one before.
        let batch_index = latent.batch_index.as_ref().map(|indices| {
            let (least, most) = (indices.iter().min().unwrap_or(&0), indices.iter().max().unwrap_or(&0));
            let offset = most - least + 1;
            (0..amount).flat_map(|round| indices.iter().map(move |index| index + round * offset)).collect()
        });
        Ok(Outcome::object(LatentImage { noise_mask, batch_index, ..repeated }))
    }
}

class! {
    LatentBatch in "latent/batch";
    |schema| schema
        .about("Joins two batches. The second is scaled and cut to the size of the first.")
        .input(Input::socket("samples1", "LATENT"))
        .input(Input::socket("samples2", "LATENT"))
        .output("LATENT");
    |runtime, call| Ok(Outcome::object(joined(&[call.object("samples1")?, call.object("samples2")?])?))
}

class! {
    BatchLatentsNode in "latent";
    |schema| schema
        .title("Batch Latents")
        .about("Joins any number of batches. All are scaled and cut to the size of the first.")
        .input(growing("latents", "LATENT", "latent", 2))
        .output("LATENT");
    |runtime, call| Ok(Outcome::object(joined(&grown(call, "latents")?)?))
}

/// All latents in one batch, with what else the first one says.
fn joined(latents: &[Arc<LatentImage>]) -> Result<LatentImage> {
    let mut out = LatentImage::clone(&latents[0]);
    let mut indices = Vec::new();
    for (number, latent) in latents.iter().enumerate() {
        indices.extend(latent.batch_indices());
        if number > 0 {
            let fitted = fit_size(&latent.samples, out.samples.shape())?;
            let mut shape = out.samples.shape().to_vec();
            shape.iter_mut().take(1).for_each(|length| *length += latent.batch());
            out = out.with(&shape, || axes::joined(&out.samples, &fitted, 0))?;
        }
    }
    out.batch_index = Some(indices);
    Ok(out)
}

struct RebatchLatents;

impl NodeClass for RebatchLatents {
    fn schema(&self) -> Schema {
        Schema::new("RebatchLatents", "latent/batch")
            .title("Rebatch Latents")
            .about("Parts a list of batches into batches of another size.")
            .takes_lists()
            .input(Input::socket("latents", "LATENT"))
            .input(Input::int("batch_size", 1, 1, 4096))
            .list_output("LATENT", "LATENT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let size = call.size("batch_size")?.max(1);
        let mut batches: Vec<LatentImage> = Vec::new();
        let mut seen = 0;
        for value in call.inputs.list("latents") {
            let latent = value.downcast::<LatentImage>().ok_or_else(|| {
                Failure::error(
                    "TypeError",
                    format!("latents must hold latents, but has {}", value.describe()),
                )
            })?;
            for item in 0..latent.batch() {
                let mut single = latent.items(item..item + 1)?;
                if latent.batch_index.is_none() {
                    single.batch_index = Some(vec![seen + item]);
                }
                match batches.last_mut() {
                    Some(last)
                        if last.batch() < size
                            && last.samples.shape()[1..] == single.samples.shape()[1..] =>
                    {
                        *last = appended(last, &single)?;
                    }
                    _ => batches.push(single),
                }
            }
            seen += latent.batch();
        }
        for batch in &mut batches {
            batch.noise_mask =
                batch.noise_mask.take().filter(|mask| mask.values.iter().any(|value| *value != 1.0));
        }
        Ok(Outcome::slots([Slot::Many(batches.into_iter().map(Value::object).collect())]))
    }
}

/// A batch with one more item; items without a mask are made new everywhere.
fn appended(batch: &LatentImage, item: &LatentImage) -> Result<LatentImage> {
    let both = batch.with_samples(axes::joined(&batch.samples, &item.samples, 0)?)?;
    let noise_mask = match (&batch.noise_mask, &item.noise_mask) {
        (None, None) => None,
        (mask, other) => {
            let (height, width) =
                mask.as_ref().or(other.as_ref()).map_or((1, 1), |mask| (mask.height, mask.width));
            let of = |mask: &Option<Mask>, count: usize| match mask {
                Some(mask) => scale_mask(mask, Target::new(width, height), Method::Bilinear),
                None => Mask::filled(batch.samples.host(), [count, height, width], 1.0),
            };
            let first = of(mask, batch.batch())?.repeated_to(batch.batch())?;
            let last = of(other, 1)?.repeated_to(1)?;
            let values = first.values.iter().chain(&last.values).copied();
            Some(Mask::collect(first.host(), [first.batch + 1, height, width], values)?)
        }
    };
    let batch_index = Some([batch.batch_indices(), item.batch_indices()].concat());
    Ok(LatentImage { noise_mask, batch_index, ..both })
}

class! {
    LatentBatchSeedBehavior in "latent/advanced";
    |schema| schema
        .about("Gives every item of a batch noise of its own, or all the same.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::choice("seed_behavior", ["random", "fixed"]).with("default", "fixed"))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let first = latent.batch_index.as_ref().and_then(|indices| indices.first()).copied().unwrap_or(0);
        let batch_index = (call.text("seed_behavior")? == "fixed").then(|| vec![first; latent.batch()]);
        Ok(Outcome::object(LatentImage { batch_index, ..LatentImage::clone(&latent) }))
    }
}

class! {
    SetLatentNoiseMask in "latent/inpaint";
    |schema| schema
        .title("Set Latent Noise Mask")
        .about("Lets a sampler make only that part new which a mask marks.")
        .input(Input::socket("samples", "LATENT"))
        .input(Input::socket("mask", "MASK"))
        .output("LATENT");
    |runtime, call| {
        let latent = call.object::<LatentImage>("samples")?;
        let noise_mask = Some(Mask::clone(&*call.object("mask")?));
        Ok(Outcome::object(LatentImage { noise_mask, ..LatentImage::clone(&latent) }))
    }
}
