//! Conditionings: combined, limited to areas, times and masks, and given more to look at.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome, Schema, Value};
use sampling::{Latent, resize_mask};

use crate::class::class;
use crate::value::{Area, Array, Cond, Conditioning, Entry, Image, LatentImage, Mask};
use crate::{Error, Result, Runtime, vae};
use runtime::Vae;
use runtime::host::Values;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let runtime = || Arc::clone(runtime);
    catalogue.add(ConditioningCombine(runtime()));
    catalogue.add(ConditioningSetDefaultCombine(runtime()));
    catalogue.add(ConditioningAverage(runtime()));
    catalogue.add(ConditioningConcat(runtime()));
    catalogue.add(ConditioningSetArea(runtime()));
    catalogue.add(ConditioningSetAreaPercentage(runtime()));
    catalogue.add(ConditioningSetAreaStrength(runtime()));
    catalogue.add(ConditioningSetMask(runtime()));
    catalogue.add(ConditioningZeroOut(runtime()));
    catalogue.add(ConditioningSetTimestepRange(runtime()));
    catalogue.add(InpaintModelConditioning(runtime()));
    catalogue.add(InstructPixToPixConditioning(runtime()));
    catalogue.add(ReferenceLatent(runtime()));
}

/// The longest side of a picture.
const MAX_SIDE: u64 = 16384;
/// Pixels along one side of a latent value.
const PIXELS: usize = 8;

/// The conditioning of an input with every entry changed.
pub(crate) fn changed(
    call: &Call,
    input: &str,
    change: impl Fn(&mut Entry),
) -> Result<Conditioning, Failure> {
    let mut conditioning = Conditioning::clone(&*call.object::<Conditioning>(input)?);
    conditioning.entries.iter_mut().for_each(change);
    Ok(conditioning)
}

/// The same for a change that may not be possible.
pub(crate) fn changed_or_failed(
    call: &Call,
    input: &str,
    change: impl FnMut(&mut Entry) -> Result<(), Failure>,
) -> Result<Conditioning, Failure> {
    let mut conditioning = Conditioning::clone(&*call.object::<Conditioning>(input)?);
    conditioning.entries.iter_mut().try_for_each(change)?;
    Ok(conditioning)
}

/// The first entry of an input that only one is taken of.
fn only_entry(call: &Call, input: &str) -> Result<Entry, Failure> {
    let conditioning = call.object::<Conditioning>(input)?;
    if conditioning.entries.len() > 1 {
        tracing::warn!("{}: only the first entry of {input} is used", call.identity.class);
    }
    let first = conditioning.entries.first().cloned();
    first.ok_or_else(|| Failure::value(format!("{input} is empty")))
}

class! {
    /// Both conditionings count.
    ConditioningCombine in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning_1", "CONDITIONING"))
        .input(Input::socket("conditioning_2", "CONDITIONING"))
        .title("Conditioning (Combine)")
        .output("CONDITIONING");
    |runtime, call| {
        let mut entries = call.object::<Conditioning>("conditioning_1")?.entries.clone();
        entries.extend(call.object::<Conditioning>("conditioning_2")?.entries.iter().cloned());
        Ok(Outcome::object(Conditioning { entries }))
    }
}

class! {
    /// A conditioning, and another that counts where it does not.
    ConditioningSetDefaultCombine in "advanced/hooks/cond single";
    |schema| Schema {
        is_experimental: true,
        ..schema
            .input(Input::socket("cond", "CONDITIONING"))
            .input(Input::socket("cond_DEFAULT", "CONDITIONING"))
            .input(Input::socket("hooks", "HOOKS").optional())
            .title("Cond Set Default Combine")
            .output("CONDITIONING")
            .module("comfy_extras.nodes_hooks")
    };
    |runtime, call| {
        if call.inputs.first("hooks").is_some_and(|hooks| !hooks.is_none()) {
            return Err(Failure::value("hooks cannot be used yet; unlink the input \"hooks\""));
        }
        let mut entries = call.object::<Conditioning>("cond")?.entries.clone();
        entries.extend(changed(call, "cond_DEFAULT", |entry| entry.is_default = true)?.entries);
        Ok(Outcome::object(Conditioning { entries }))
    }
}

class! {
    /// A weighted mean of two texts.
    ConditioningAverage in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning_to", "CONDITIONING"))
        .input(Input::socket("conditioning_from", "CONDITIONING"))
        .input(Input::float("conditioning_to_strength", 1.0, 0.0, 1.0, 0.01))
        .output("CONDITIONING");
    |runtime, call| {
        let from = only_entry(call, "conditioning_from")?;
        let strength = call.float("conditioning_to_strength")?;
        let averaged = changed(call, "conditioning_to", |entry| {
            let (cond, from) = (&mut entry.cond, &from.cond);
            cond.text = Arc::new(mix(&cond.text, &from.text, strength));
            cond.pooled = match (&cond.pooled, &from.pooled) {
                (Some(to), Some(from)) => Some(Arc::new(mix(to, from, strength))),
                (None, from) => from.clone(),
                (to, None) => to.clone(),
            };
        })?;
        Ok(Outcome::object(averaged))
    }
}

/// `to` times a strength plus `from` times the rest of it, over the tokens of `to`.
fn mix(to: &Array, from: &Array, strength: f64) -> Array {
    let (strength, rest) = (strength as f32, (1.0 - strength) as f32);
    let values = to.values.iter().enumerate();
    let mixed = values.map(|(at, to)| to * strength + from.values.get(at).copied().unwrap_or(0.0) * rest);
    Array { shape: to.shape.clone(), values: mixed.collect() }
}

class! {
    /// The tokens of one text after those of another.
    ConditioningConcat in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning_to", "CONDITIONING"))
        .input(Input::socket("conditioning_from", "CONDITIONING"))
        .title("Conditioning (Concat)")
        .output("CONDITIONING");
    |runtime, call| {
        let from = only_entry(call, "conditioning_from")?;
        let mut joined = Conditioning::clone(&*call.object::<Conditioning>("conditioning_to")?);
        for entry in &mut joined.entries {
            entry.cond.attention_mask = masks_joined(&entry.cond, &from.cond);
            entry.cond.text = Arc::new(after(&entry.cond.text, &from.cond.text)?);
        }
        Ok(Outcome::object(joined))
    }
}

/// Which tokens count of one text after another; all do of a text that does not say.
fn masks_joined(first: &Cond, second: &Cond) -> Option<Arc<Vec<bool>>> {
    if first.attention_mask.is_none() && second.attention_mask.is_none() {
        return None;
    }
    let mask =
        |cond: &Cond| cond.attention_mask.as_deref().cloned().unwrap_or_else(|| vec![true; cond.tokens()]);
    Some(Arc::new([mask(first), mask(second)].concat()))
}

/// Tokens of one array after those of another.
pub(crate) fn after(first: &Array, second: &Array) -> Result<Array, Failure> {
    let ([batch, a, width], [other_batch, b, other_width]) = (axes(first)?, axes(second)?);
    if (batch, width) != (other_batch, other_width) {
        return Err(Failure::value(format!(
            "conditionings of the shapes {:?} and {:?} cannot be joined: they come from different text encoders",
            first.shape, second.shape
        )));
    }
    let items = first.values.chunks_exact(a * width).zip(second.values.chunks_exact(b * width));
    let values = items.flat_map(|(first, second)| first.iter().chain(second).copied()).collect();
    Ok(Array { shape: vec![batch, a + b, width], values })
}

fn axes(array: &Array) -> Result<[usize; 3], Failure> {
    <[usize; 3]>::try_from(array.shape.as_slice()).map_err(|_| {
        Failure::value(format!("a conditioning has the shape {:?}, not three axes", array.shape))
    })
}

class! {
    /// A conditioning that counts in a part of the picture, in pixels.
    ConditioningSetArea in "conditioning";
    |schema| {
        let side = |name: &str, default: i64| Input::int(name, default, default, MAX_SIDE).with("step", 8);
        schema
            .input(Input::socket("conditioning", "CONDITIONING"))
            .input(side("width", 64))
            .input(side("height", 64))
            .input(side("x", 0))
            .input(side("y", 0))
            .input(strength_input())
            .title("Conditioning (Set Area)")
            .output("CONDITIONING")
    };
    |runtime, call| {
        let value = |name: &str| call.size(name).map(|pixels| pixels / PIXELS);
        let area = Area::Values([value("height")?, value("width")?, value("y")?, value("x")?]);
        with_area(call, area)
    }
}

class! {
    /// A conditioning that counts in a part of the picture, in shares of its sides.
    ConditioningSetAreaPercentage in "conditioning";
    |schema| {
        let share = |name: &str, default: f64| Input::float(name, default, 0.0, 1.0, 0.01);
        schema
            .input(Input::socket("conditioning", "CONDITIONING"))
            .input(share("width", 1.0))
            .input(share("height", 1.0))
            .input(share("x", 0.0))
            .input(share("y", 0.0))
            .input(strength_input())
            .title("Conditioning (Set Area with Percentage)")
            .output("CONDITIONING")
    };
    |runtime, call| {
        let share = |name: &str| call.float(name);
        with_area(call, Area::Shares([share("height")?, share("width")?, share("y")?, share("x")?]))
    }
}

fn strength_input() -> Input {
    Input::float("strength", 1.0, 0.0, 10.0, 0.01)
}

fn with_area(call: &Call, area: Area) -> Result<Outcome, Failure> {
    let strength = call.float("strength")? as f32;
    let limited = changed(call, "conditioning", |entry| {
        entry.area = Some(area);
        entry.strength = strength;
        entry.mask_sets_area = false;
    })?;
    Ok(Outcome::object(limited))
}

class! {
    /// How much a conditioning counts.
    ConditioningSetAreaStrength in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(strength_input())
        .output("CONDITIONING");
    |runtime, call| {
        let strength = call.float("strength")? as f32;
        Ok(Outcome::object(changed(call, "conditioning", |entry| entry.strength = strength)?))
    }
}

class! {
    /// A conditioning that counts where a mask says.
    ConditioningSetMask in "conditioning";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(Input::socket("mask", "MASK"))
        .input(strength_input())
        .input(Input::choice("set_cond_area", ["default", "mask bounds"]))
        .title("Conditioning (Set Mask)")
        .output("CONDITIONING");
    |runtime, call| {
        let mask = call.object::<Mask>("mask")?;
        let strength = call.float("strength")? as f32;
        let sets_area = call.text("set_cond_area")? != "default";
        let masked = changed(call, "conditioning", |entry| {
            entry.mask = Some(Arc::clone(&mask));
            entry.mask_strength = strength;
            entry.mask_sets_area = sets_area;
        })?;
        Ok(Outcome::object(masked))
    }
}

class! {
    /// A conditioning that tells nothing.
    ConditioningZeroOut in "advanced/conditioning";
    |schema| schema.input(Input::socket("conditioning", "CONDITIONING")).output("CONDITIONING");
    |runtime, call| {
        let zeros = |array: &Array| {
            Arc::new(Array { shape: array.shape.clone(), values: vec![0.0; array.values.len()] })
        };
        let emptied = changed(call, "conditioning", |entry| {
            entry.cond.text = zeros(&entry.cond.text);
            entry.cond.pooled = entry.cond.pooled.as_deref().map(zeros);
        })?;
        Ok(Outcome::object(emptied))
    }
}

class! {
    /// A conditioning that counts for a part of the steps.
    ConditioningSetTimestepRange in "advanced/conditioning";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(Input::float("start", 0.0, 0.0, 1.0, 0.001))
        .input(Input::float("end", 1.0, 0.0, 1.0, 0.001))
        .output("CONDITIONING");
    |runtime, call| {
        let (start, end) = (call.float("start")?, call.float("end")?);
        let limited = changed(call, "conditioning", |entry| {
            entry.start_percent = start;
            entry.end_percent = end;
        })?;
        Ok(Outcome::object(limited))
    }
}

/// The outputs of nodes that give two conditionings and a latent.
pub(crate) fn three_outputs(schema: Schema) -> Schema {
    schema
        .named_output("CONDITIONING", "positive")
        .named_output("CONDITIONING", "negative")
        .named_output("LATENT", "latent")
}

class! {
    /// A picture and a mask for inpainting models.
    InpaintModelConditioning in "conditioning/inpaint";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"))
            .input(Input::socket("pixels", "IMAGE"))
            .input(Input::socket("mask", "MASK"))
            .input(Input::boolean("noise_mask", true));
        three_outputs(schema)
    };
    |runtime, call| {
        let autoencoder = call.object::<Vae>("vae")?;
        let pixels = call.object::<Image>("pixels")?;
        let mask = resized(&*call.object::<Mask>("mask")?, pixels.height, pixels.width)?;
        let (emptied, mask) = without_masked(&pixels, &mask, PIXELS)?;
        let concat = vae::encode(runtime, call, &autoencoder, &emptied)?;
        let whole = vae::encode(runtime, call, &autoencoder, &pixels)?;
        let shape = [mask.batch, 1, mask.height, mask.width];
        let room = runtime.host.room(&shape)?;
        let concat_mask = Latent::new(shape.to_vec(), mask.values.to_vec()).map_err(Error::from)?;
        let concat_mask = room.latent(concat_mask);
        let with = |input: &str| {
            changed(call, input, |entry| {
                entry.cond.concat_latent = Some(concat.shared());
                entry.cond.concat_mask = Some(concat_mask.shared());
                entry.held.extend([concat.clone(), concat_mask.clone()]);
            })
        };
        let noise_mask = call.boolean("noise_mask")?.then_some(mask);
        let latent = LatentImage { noise_mask, ..LatentImage::new(whole) };
        Ok(Outcome::values([
            Value::object(with("positive")?),
            Value::object(with("negative")?),
            Value::object(latent),
        ]))
    }
}

/// A mask brought to the size of a picture.
pub(crate) fn resized(mask: &Mask, height: usize, width: usize) -> Result<Mask, Failure> {
    let planes = resize_mask(&mask.planes()?, &[mask.batch, 1, height, width]).map_err(Error::from)?;
    Ok(Mask::of([mask.batch, height, width], Values::new(mask.host(), planes.into_values())?))
}

/// A picture and its mask cut to whole latent values, with grey in the picture where the mask is.
pub(crate) fn without_masked(pixels: &Image, mask: &Mask, factor: usize) -> Result<(Image, Mask)> {
    let (height, width) = (pixels.height / factor * factor, pixels.width / factor * factor);
    let (top, left) = (pixels.height % factor / 2, pixels.width % factor / 2);
    let rows = (0..mask.batch).flat_map(|item| (top..top + height).map(move |y| item * mask.height + y));
    let marked = rows.flat_map(|row| &mask.values[row * mask.width + left..][..width]).copied();
    let cut = Mask::collect(mask.host(), [mask.batch, height, width], marked)?;
    let shape = [pixels.batch, height, width, pixels.channels];
    let room = pixels.host().room(&shape)?;
    let mut values = room.vector()?;
    for item in 0..pixels.batch {
        for y in 0..height {
            for x in 0..width {
                let masked = (item % cut.batch.max(1) * height + y) * width + x;
                let keep = 1.0 - cut.values[masked].round_ties_even();
                let pixel = ((item * pixels.height + top + y) * pixels.width + left + x) * pixels.channels;
                for (channel, value) in pixels.values[pixel..][..pixels.channels].iter().enumerate() {
                    let grey = if channel < 3 { (value - 0.5) * keep + 0.5 } else { *value };
                    values.push(grey);
                }
            }
        }
    }
    Ok((Image::of(shape, room.hold(values)), cut))
}

class! {
    /// A picture to look at, for models that take one beside the latent.
    InstructPixToPixConditioning in "conditioning/instructpix2pix";
    |schema| {
        let schema = schema
            .input(Input::socket("positive", "CONDITIONING"))
            .input(Input::socket("negative", "CONDITIONING"))
            .input(Input::socket("vae", "VAE"))
            .input(Input::socket("pixels", "IMAGE"));
        three_outputs(schema).module("comfy_extras.nodes_ip2p")
    };
    |runtime, call| {
        let autoencoder = call.object::<Vae>("vae")?;
        let concat = vae::encode(runtime, call, &autoencoder, &*call.object::<Image>("pixels")?)?;
        let with = |input: &str| {
            changed(call, input, |entry| {
                entry.cond.concat_latent = Some(concat.shared());
                entry.held.push(concat.clone());
            })
        };
        let room = runtime.host.room(concat.shape())?;
        Ok(Outcome::values([
            Value::object(with("positive")?),
            Value::object(with("negative")?),
            Value::object(LatentImage::new(room.latent(Latent::zeros(concat.shape())))),
        ]))
    }
}

class! {
    /// A latent to look at, for models that edit pictures.
    ReferenceLatent in "advanced/conditioning/edit_models";
    |schema| schema
        .input(Input::socket("conditioning", "CONDITIONING"))
        .input(Input::socket("latent", "LATENT").optional())
        .output("CONDITIONING")
        .module("comfy_extras.nodes_edit_model");
    |runtime, call| {
        let latent = call.object_if_given::<LatentImage>("latent")?;
        let seeing = changed(call, "conditioning", |entry| {
            entry.cond.reference_latents.extend(latent.iter().map(|latent| latent.samples.shared()));
            entry.held.extend(latent.iter().map(|latent| latent.samples.clone()));
        })?;
        Ok(Outcome::object(seeing))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::host::Host;

    fn array(shape: [usize; 3], first: f32) -> Array {
        let count: usize = shape.iter().product();
        Array { shape: shape.to_vec(), values: (0..count).map(|i| first + i as f32).collect() }
    }

    #[test]
    fn texts_are_joined_and_averaged() {
        let (a, b) = (array([1, 2, 2], 0.0), array([1, 1, 2], 10.0));
        let joined = after(&a, &b).unwrap();
        assert_eq!((joined.shape, joined.values), (vec![1, 3, 2], vec![0.0, 1.0, 2.0, 3.0, 10.0, 11.0]));
        assert!(after(&a, &array([1, 1, 3], 0.0)).is_err());
        // What the other text lacks counts as zero.
        assert_eq!(mix(&a, &b, 0.5).values, [5.0, 6.0, 1.0, 1.5]);
    }

    #[test]
    fn masked_pixels_become_grey_and_sizes_whole() {
        let host = Host::with_budget(1 << 30);
        let image = Image::filled(&host, [1, 9, 8, 3], 1.0).unwrap();
        let mut values = vec![0.0; 72];
        values[0] = 1.0;
        let mask = Mask::collect(&host, [1, 9, 8], values).unwrap();
        let (image, mask) = without_masked(&image, &mask, 8).unwrap();
        assert_eq!((image.height, image.width, mask.height), (8, 8, 8));
        assert_eq!(&image.values[..4], &[0.5, 0.5, 0.5, 1.0]);
    }
}
