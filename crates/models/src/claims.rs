//! Claims: how a model takes its tensors out of a file. Every tensor is asked for by name and with the
//! shape that the rest of the model implies, so that a file that does not fit says where.

use checkpoint::{Checkpoint, Entry};
use meta::Shape;
use residency::{Manifest, WeightSpec};

use crate::detect::{self, Part};
use crate::{Error, Result};

/// The largest dimension from which other sizes follow; vocabularies are the largest there are.
const MAX_DIM: usize = 1 << 20;

/// The tensors of one part of a file.
pub(crate) struct Claims<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'a str,
    family: &'static str,
}

impl<'a> Claims<'a> {
    /// The tensors of `part`, which is read as `family`.
    pub(crate) fn new(checkpoint: &'a Checkpoint, prefix: &'a str, family: &'static str) -> Claims<'a> {
        Claims { checkpoint, prefix, family }
    }

    /// The file's name, for texts and manifests.
    pub(crate) fn file(&self) -> String {
        detect::file_name(self.checkpoint)
    }

    /// A tensor that may be there.
    pub(crate) fn find(&self, name: &str) -> Option<&'a Entry> {
        if self.prefix.is_empty() {
            return self.checkpoint.entry(name);
        }
        self.checkpoint.entry(&format!("{}{name}", self.prefix))
    }

    /// The dimensions of a tensor that must be there and have `N` of them. They are small enough that products
    /// of a few of them can be counted.
    pub(crate) fn dims<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let entry = self.entry(name)?;
        let dims: &[usize; N] = entry
            .shape()
            .dims()
            .try_into()
            .map_err(|_| self.wrong_shape(entry, format!("{N} dimensions")))?;
        if dims.iter().all(|dim| (1..=MAX_DIM).contains(dim)) {
            return Ok(*dims);
        }
        Err(self.wrong_shape(entry, format!("dimensions from 1 to {MAX_DIM}")))
    }

    /// How many of the tensors that `name` gives for 0, 1, 2, … are there without a gap.
    pub(crate) fn count(&self, name: impl Fn(usize) -> String) -> usize {
        (0..).take_while(|&i| self.find(&name(i)).is_some()).count()
    }

    /// A weight of this shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<WeightSpec> {
        let entry = self.entry(name)?;
        if entry.shape().dims() != shape {
            let expected = Shape::new(shape).map_or_else(|_| format!("{shape:?}"), |s| s.to_string());
            return Err(self.wrong_shape(entry, expected));
        }
        let scale = self.checkpoint.scale_of(entry).map(|scale| self.checkpoint.entry_bytes(scale));
        Ok(WeightSpec {
            name: name.to_owned(),
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape: *entry.shape(),
            bytes: self.checkpoint.entry_bytes(entry),
            scale,
        })
    }

    /// The weight and the bias, if there is one, of a layer with this shape of weight.
    pub(crate) fn layer(&self, name: &str, shape: &[usize]) -> Result<Vec<WeightSpec>> {
        let mut specs = vec![self.weight(&format!("{name}.weight"), shape)?];
        let bias = format!("{name}.bias");
        if self.find(&bias).is_some() {
            specs.push(self.weight(&bias, &shape[..1])?);
        }
        Ok(specs)
    }

    /// The error for a tensor whose shape does not fit.
    pub(crate) fn wrong_shape(&self, entry: &Entry, expected: String) -> Error {
        Error::WrongShape {
            file: self.file(),
            tensor: entry.name().to_owned(),
            family: self.family,
            expected,
            got: entry.shape().to_string(),
        }
    }

    fn entry(&self, name: &str) -> Result<&'a Entry> {
        self.find(name).ok_or_else(|| Error::MissingTensor {
            file: self.file(),
            tensor: format!("{}{name}", self.prefix),
            family: self.family,
            seems: detect::seems(self.checkpoint),
        })
    }
}

impl Part {
    /// The part's tensors that no weight of `manifest` was read from.
    pub fn unused<'a>(&self, checkpoint: &'a Checkpoint, manifest: &Manifest) -> Vec<&'a str> {
        let used = |entry: &Entry| {
            let name = entry.name().strip_prefix(self.prefix.as_str());
            name.is_none_or(|name| manifest.index_of(name).is_some()) || checkpoint.is_companion(entry)
        };
        checkpoint.entries().iter().filter(|entry| !used(entry)).map(Entry::name).collect()
    }
}
