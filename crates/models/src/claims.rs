//! Claims: how a model takes its tensors out of a file. Every tensor is asked for by name and with the
//! shape that the rest of the model implies, so that a file that does not fit says where.

use std::collections::HashMap;

use checkpoint::{Checkpoint, Entry, EntryBytes};
use meta::Shape;
use residency::{Companions, Manifest, WeightSpec};

use crate::detect::{self, Part};
use crate::{Error, Result};

/// The largest dimension from which other sizes follow; vocabularies are the largest there are.
const MAX_DIM: usize = 1 << 20;

/// What a file calls a weight of the model: one name, or those of the pieces that the model has as one.
pub(crate) type FileNames = fn(&str) -> Vec<String>;

/// What a file calls the tensors of a model, by the names that the model knows, without the part's prefix.
pub(crate) type StoredNames = HashMap<String, String>;

/// The tensors of one part of a file.
pub(crate) struct Claims<'a> {
    checkpoint: &'a Checkpoint,
    prefix: &'a str,
    family: &'static str,
    stored: Option<&'a StoredNames>,
    names: FileNames,
    /// The model that has what this file does not, for a file that is a change of one.
    base: Option<&'a Claims<'a>>,
    /// Whether what both have is taken of that model.
    base_first: bool,
}

impl<'a> Claims<'a> {
    /// The tensors of `part`, which is read as `family`.
    pub(crate) fn new(checkpoint: &'a Checkpoint, prefix: &'a str, family: &'static str) -> Claims<'a> {
        let names: FileNames = |name| vec![name.to_owned()];
        Claims { checkpoint, prefix, family, stored: None, names, base: None, base_first: false }
    }

    /// What the file has one step above, where the prefix ends so.
    pub(crate) fn above(&self, end: &str) -> Claims<'a> {
        Claims::new(self.checkpoint, self.prefix.strip_suffix(end).unwrap_or(self.prefix), self.family)
    }

    /// The same tensors in a file that has other names for them.
    pub(crate) fn named_by(self, names: FileNames) -> Claims<'a> {
        Claims { names, ..self }
    }

    /// The same in a file that has other names for the tensors, if it has.
    pub(crate) fn stored_as(self, stored: Option<&'a StoredNames>) -> Claims<'a> {
        Claims { stored, ..self }
    }

    /// The same over a model that has what is not here.
    pub(crate) fn over(self, base: &'a Claims<'a>) -> Claims<'a> {
        Claims { base: Some(base), ..self }
    }

    /// The same with a model's tensors in the place of those that it has, too.
    pub(crate) fn under(self, base: &'a Claims<'a>) -> Claims<'a> {
        Claims { base_first: true, ..self.over(base) }
    }

    /// What the file calls a tensor, or the pieces of one.
    fn file_names(&self, name: &str) -> Vec<String> {
        match self.stored {
            None => (self.names)(name),
            Some(names) => names.get(name).cloned().into_iter().collect(),
        }
    }

    /// The file's name, for texts and manifests.
    pub(crate) fn file(&self) -> String {
        detect::file_name(self.checkpoint)
    }

    /// A tensor that may be there; of one in pieces the first.
    pub(crate) fn find(&self, name: &str) -> Option<&'a Entry> {
        match self.of_base(name) {
            Some(base) => base.find(name),
            None => self.own(name),
        }
    }

    /// The model that a tensor is taken of, if it is not this file's own.
    fn of_base(&self, name: &str) -> Option<&'a Claims<'a>> {
        let base = self.base?;
        let is_own = if self.base_first { base.find(name).is_none() } else { self.own(name).is_some() };
        (!is_own).then_some(base)
    }

    /// A tensor of this file that may be there.
    fn own(&self, name: &str) -> Option<&'a Entry> {
        self.stored(self.file_names(name).first()?)
    }

    /// A tensor by the name that the file has, without the prefix.
    fn stored(&self, name: &str) -> Option<&'a Entry> {
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

    /// The values of a tensor that may be there, if they are stored as plain numbers.
    pub(crate) fn values(&self, name: &str) -> Option<Vec<f32>> {
        self.checkpoint.values(self.find(name)?)
    }

    /// A number that the file has under a name of its own, in the part or beside all parts.
    pub(crate) fn number(&self, name: &str) -> Option<f64> {
        let entry = self.mark(name)?;
        self.checkpoint.values(entry)?.first().copied().map(f64::from)
    }

    /// Whether the file has a tensor that says something by being there, in the part or beside all parts.
    pub(crate) fn is_marked(&self, name: &str) -> bool {
        self.mark(name).is_some()
    }

    fn mark(&self, name: &str) -> Option<&'a Entry> {
        self.checkpoint.entry(name).or_else(|| self.checkpoint.entry(&format!("{}{name}", self.prefix)))
    }

    /// A weight of this shape.
    pub(crate) fn weight(&self, name: &str, shape: &[usize]) -> Result<WeightSpec> {
        match self.of_base(name) {
            Some(base) => base.weight(name, shape),
            None => self.weight_of(name.to_owned(), self.entry(name)?, shape),
        }
    }

    /// A tensor of this shape as a weight of the model.
    fn weight_of(&self, name: String, entry: &Entry, shape: &[usize]) -> Result<WeightSpec> {
        let padded = is_padded(entry, shape);
        if entry.shape().dims() != shape && !padded {
            let expected = Shape::new(shape).map_or_else(|_| format!("{shape:?}"), |s| s.to_string());
            return Err(self.wrong_shape(entry, expected));
        }
        Ok(WeightSpec {
            name,
            encoding: entry.encoding(),
            kept_as: entry.encoding(),
            shape: if padded { Shape::from([shape[0], shape[1]]) } else { *entry.shape() },
            padded: padded.then_some(*entry.shape()),
            bytes: self.checkpoint.entry_bytes(entry),
            companions: Companions::of(self.checkpoint, entry),
            rounds_patches: false,
            fp8_product: false,
        })
    }

    /// The weight and the bias, if there is one, of a layer with this shape of weight. A layer that the file has in
    /// pieces is several, `name.0`, `name.1` and so on, whose rows stand below each other.
    pub(crate) fn layer(&self, name: &str, shape: &[usize]) -> Result<Vec<WeightSpec>> {
        let weight = format!("{name}.weight");
        let pieces = self.file_names(&weight);
        if pieces.len() > 1 {
            return self.pieces(name, &pieces, shape);
        }
        let mut specs = vec![self.weight(&weight, shape)?];
        let bias = format!("{name}.bias");
        if self.find(&bias).is_some() {
            specs.push(self.weight(&bias, &shape[..1])?);
        }
        Ok(specs)
    }

    fn pieces(&self, name: &str, files: &[String], shape: &[usize]) -> Result<Vec<WeightSpec>> {
        let (mut specs, mut rows) = (Vec::new(), 0);
        let mut last = None;
        for (index, file) in files.iter().enumerate() {
            let entry = self.stored(file).ok_or_else(|| self.missing(file))?;
            let own = entry.shape().dims().first().copied().unwrap_or(0);
            let mut piece = shape.to_vec();
            piece[0] = own;
            specs.push(self.weight_of(format!("{name}.{index}.weight"), entry, &piece)?);
            let bias = file.strip_suffix(".weight").and_then(|layer| self.stored(&format!("{layer}.bias")));
            if let Some(bias) = bias {
                specs.push(self.weight_of(format!("{name}.{index}.bias"), bias, &piece[..1])?);
            }
            rows += own;
            last = Some(entry);
        }
        match last {
            Some(entry) if rows != shape[0] => {
                let all = format!("{} rows together with the other parts of {name}", shape[0]);
                Err(self.wrong_shape(entry, all))
            }
            _ => Ok(specs),
        }
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

    /// The error for a tensor of this name whose shape does not fit.
    pub(crate) fn misfit(&self, name: &str, expected: String) -> Error {
        match self.entry(name) {
            Ok(entry) => self.wrong_shape(entry, expected),
            Err(missing) => missing,
        }
    }

    fn entry(&self, name: &str) -> Result<&'a Entry> {
        self.find(name)
            .ok_or_else(|| self.missing(self.file_names(name).first().map_or(name, String::as_str)))
    }

    /// The error for a tensor that is not there, by the name that the file should have.
    fn missing(&self, name: &str) -> Error {
        Error::MissingTensor {
            file: self.file(),
            tensor: format!("{}{name}", self.prefix),
            family: self.family,
            seems: detect::seems(self.checkpoint),
        }
    }
}

/// Whether a matrix of this shape is stored filled up to whole blocks of its encoding.
fn is_padded(entry: &Entry, shape: &[usize]) -> bool {
    let Some(padding) = entry.encoding().scheme().map(meta::Scheme::padding) else { return false };
    let stored = entry.shape().dims();
    let whole = |(size, stored): (&usize, &usize)| size.checked_next_multiple_of(padding) == Some(*stored);
    shape.len() == 2 && stored.len() == 2 && stored != shape && shape.iter().zip(stored).all(whole)
}

/// Ends of names of tables that files have though they follow from sizes, are numbers that are read as such, or say how a
/// model was trained, so that no weight is read from them.
const FOLLOWING: [&str; 19] = [
    ".position_ids",
    "relative_position_index",
    "relative_position_index_SA",
    "relative_position_index_OCA",
    "attn_mask",
    "attn_mask_0",
    "attn_mask_1",
    "num_batches_tracked",
    "rpe_biases",
    "pos_frequencies",
    "timestep_scale_multiplier",
    "per_channel_statistics.mean-of-stds",
    "per_channel_statistics.mean-of-stds_over_std-of-means",
    "per_channel_statistics.channel",
    ".fuser.alpha_attn",
    ".fuser.alpha_dense",
    "conv2.0.kernel",
    "skip.0.kernel",
    "motion_encoder.dec.direction.weight",
];

impl Part {
    /// The part's tensors that no weight of `manifest` is read from. What counts is where the bytes of weights lie, since a
    /// model may know its weights by other names than the file does, and may take several out of one tensor.
    pub fn unused<'a>(&self, checkpoint: &'a Checkpoint, manifest: &Manifest) -> Vec<&'a str> {
        let weights = manifest.weights().iter().chain(manifest.tables());
        let mut read: Vec<&EntryBytes> = weights.map(|weight| &weight.bytes).collect();
        read.sort_by_key(|bytes| bytes.place().start);
        let is_read = |entry: &Entry| {
            let own = checkpoint.entry_bytes(entry);
            let first = read.partition_point(|bytes| bytes.place().start < own.place().start);
            let begin_inside = read[first..].iter().take_while(|bytes| bytes.place().start < own.place().end);
            begin_inside.into_iter().any(|bytes| bytes.same_file(&own))
        };
        let is_unused = |entry: &&Entry| {
            let follows = FOLLOWING.iter().any(|end| entry.name().ends_with(end));
            self.has(entry.name())
                && !entry.is_empty()
                && !follows
                && !checkpoint.is_companion(entry)
                && !is_read(entry)
        };
        checkpoint.entries().iter().filter(is_unused).map(Entry::name).collect()
    }
}
