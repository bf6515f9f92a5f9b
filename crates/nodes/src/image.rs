//! Pictures: made, loaded, scaled, cut, joined and mixed.

mod arrange;
mod batch;
mod canny;
mod composite;
mod filters;
mod load;
mod morphology;
mod porter_duff;
mod resample;
mod scale;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, GrowingNames, Input, Kind, Object};

use crate::Runtime;

pub(crate) use composite::{Patch, composite};
pub(crate) use load::{file_fingerprint, file_verdict};
pub(crate) use resample::{
    CROPS, LATENT_METHODS, Method, Target, scale_image, scale_image_as_pillow, scale_image_smoothly,
    scale_latent, scale_mask,
};

/// The longest side that widgets offer.
pub(crate) const MAX_RESOLUTION: u64 = 16_384;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    load::add(catalogue, runtime);
    scale::add(catalogue, runtime);
    batch::add(catalogue, runtime);
    arrange::add(catalogue, runtime);
    filters::add(catalogue, runtime);
    morphology::add(catalogue, runtime);
    canny::add(catalogue, runtime);
    composite::add(catalogue, runtime);
    porter_duff::add(catalogue, runtime);
}

/// A number of pixels, up to the longest side that there is.
pub(crate) fn pixels(name: &str, default: i64, min: i64, step: i64) -> Input {
    Input::int(name, default, min, MAX_RESOLUTION).with("step", step)
}

/// As many inputs of one type as are linked, at least `min`: `<name>.<prefix>0` and so on.
pub(crate) fn growing(name: &str, kind: &str, prefix: &str, min: usize) -> Input {
    let names = GrowingNames::Counted { prefix: prefix.to_owned(), max: 50 };
    let input = Input::socket(prefix, kind);
    Input::new(name, Kind::Autogrow(Box::new(graph::Autogrow { input, names, min })))
}

/// The objects of inputs that grew, in the order of their numbers.
pub(crate) fn grown<T: Object>(call: &Call, name: &str) -> Result<Vec<Arc<T>>, Failure> {
    let number = |key: &str| key.trim_start_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().ok();
    let keys = call
        .inputs
        .values
        .keys()
        .filter_map(|key| Some((key, number(key.strip_prefix(name)?.strip_prefix('.')?)?)));
    let mut keys: Vec<_> = keys.collect();
    keys.sort_by_key(|(_, number)| *number);
    let objects = keys.into_iter().filter_map(|(key, _)| call.object_if_given(key).transpose());
    let objects = objects.collect::<Result<Vec<_>, _>>()?;
    if objects.is_empty() {
        return Err(Failure::value(format!("nothing is linked to {name}; link at least one input")));
    }
    Ok(objects)
}
