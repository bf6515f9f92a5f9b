//! Golden data: what the reference implementation computed, in safetensors files of f32 tensors. Inputs are
//! procedural and described in the file's metadata; large tensors are kept in pieces (see [`crate::sampled`]).

use std::collections::HashMap;
use std::path::Path;

use checkpoint::{Checkpoint, Entry};
use meta::Shape;
use serde::Deserialize;

use crate::sampled::Sampling;
use crate::{Error, Procedural, Report, data_path, decode};

/// An opened golden file.
pub struct Golden {
    file: String,
    checkpoint: Checkpoint,
}

/// An input that a golden result was computed from.
#[derive(Clone, Debug, Deserialize)]
struct WrittenInput {
    name: String,
    shape: Vec<usize>,
    scale: f64,
    offset: f64,
}

/// A procedural input of a golden result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProceduralInput {
    /// Its dimensions.
    pub shape: Shape,
    /// The rule of its values.
    pub rule: Procedural,
}

impl ProceduralInput {
    /// The values, row-major.
    pub fn values(&self) -> Vec<f32> {
        self.rule.values(self.shape.count())
    }
}

impl Golden {
    /// Opens a golden file.
    pub fn open(path: impl AsRef<Path>) -> Result<Golden, Error> {
        let path = path.as_ref();
        Ok(Golden { file: path.display().to_string(), checkpoint: Checkpoint::open(path)? })
    }

    /// Opens one of the files that come with this crate, such as `noise.safetensors`.
    pub fn bundled(relative: &str) -> Result<Golden, Error> {
        Golden::open(data_path(relative))
    }

    /// The names of all stored tensors; those of pieces among them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.checkpoint.entries().iter().map(Entry::name)
    }

    /// A stored tensor's shape and values, as f32 whatever its stored type.
    pub fn tensor(&self, name: &str) -> Result<(Shape, Vec<f32>), Error> {
        let entry = self.entry(name)?;
        Ok((*entry.shape(), decode(entry.encoding(), self.checkpoint.bytes(entry))?))
    }

    /// The full shape of a tensor, whether it is stored whole or in pieces; `None` if there is none of this name.
    pub fn shape(&self, name: &str) -> Result<Option<Shape>, Error> {
        if let Some(entry) = self.checkpoint.entry(name) {
            return Ok(Some(*entry.shape()));
        }
        let Some(text) = self.checkpoint.metadata().str(name) else { return Ok(None) };
        Ok(Some(self.json::<Sampling>(name, text)?.shape(name)?))
    }

    /// The names of the tensors that are kept in pieces.
    pub fn sampled_names(&self) -> impl Iterator<Item = &str> {
        let metadata = self.checkpoint.metadata();
        metadata.keys().filter(|name| self.checkpoint.entry(&format!("{name}.rms")).is_some())
    }

    /// A stored tensor's bytes.
    pub fn bytes(&self, name: &str) -> Result<&[u8], Error> {
        Ok(self.checkpoint.bytes(self.entry(name)?))
    }

    /// A metadata text.
    pub fn metadata(&self, key: &str) -> Result<&str, Error> {
        self.checkpoint.metadata().str(key).ok_or_else(|| self.missing("metadata", key))
    }

    /// The procedural input called `key`: an entry of the metadata `inputs` (such as `x`), or a metadata text of
    /// its own (such as `decode.input`).
    pub fn input(&self, key: &str) -> Result<ProceduralInput, Error> {
        let inputs = match self.checkpoint.metadata().str("inputs") {
            Some(text) => self.json::<HashMap<String, WrittenInput>>("inputs", text)?,
            None => HashMap::new(),
        };
        let written = match inputs.get(key) {
            Some(written) => written.clone(),
            None => self.json(key, self.metadata(key)?)?,
        };
        let WrittenInput { name, shape, scale, offset } = written;
        let shape = Shape::new(&shape).map_err(|source| Error::Rank { tensor: name.clone(), source })?;
        Ok(ProceduralInput { shape, rule: Procedural::new(&name, scale as f32, offset as f32) })
    }

    /// Compares a whole tensor with the golden one of this name. Of a tensor that is kept in pieces, the report is
    /// that of the worst piece, and its name says which.
    pub fn compare(&self, name: &str, shape: &Shape, values: &[f32]) -> Result<Report, Error> {
        if self.checkpoint.entry(name).is_some() {
            let (expected, want) = self.tensor(name)?;
            self.check_shape(name, expected, shape)?;
            return Ok(Report::new(name, values, &want));
        }
        let Some(text) = self.checkpoint.metadata().str(name) else {
            return Err(self.missing("tensor", name));
        };
        let sampling: Sampling = self.json(name, text)?;
        self.check_shape(name, sampling.shape(name)?, shape)?;
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            return Err(Error::NotFinite { name: name.to_owned(), index, value: values[index] });
        }
        self.compare_pieces(name, shape, values, &sampling)
    }

    /// Panics unless the relative error of [`Golden::compare`] is at most `tolerance`.
    #[track_caller]
    pub fn assert_close(&self, name: &str, shape: &Shape, values: &[f32], tolerance: f64) {
        match self.compare(name, shape, values) {
            Ok(report) => report.assert(tolerance),
            Err(error) => panic!("cannot compare '{name}' with {}: {error}", self.file),
        }
    }

    fn compare_pieces(
        &self,
        name: &str,
        shape: &Shape,
        values: &[f32],
        sampling: &Sampling,
    ) -> Result<Report, Error> {
        // Means may cancel to almost nothing, so their errors are measured against the size of the values.
        let (_, size) = self.tensor(&format!("{name}.rms"))?;
        let size = f64::from(largest(&size));
        let mut pieces = Vec::new();
        for piece in sampling.pieces(name, shape, values)? {
            let (_, want) = self.tensor(&format!("{name}.{}", piece.suffix))?;
            pieces.push((piece, want));
        }
        // Values are all of one tensor, whose largest one counts, whichever piece has it.
        let of_values = pieces.iter().filter(|(piece, _)| !matches!(piece.suffix, "mean" | "rms"));
        let most = f64::from(of_values.map(|(_, want)| largest(want)).fold(0f32, f32::max));
        let reports = pieces.iter().map(|(piece, want)| {
            let piece_name = format!("{name}.{}", piece.suffix);
            match piece.suffix {
                "mean" => Report::with_scale(piece_name, &piece.values, want, size),
                "rms" => Report::new(piece_name, &piece.values, want),
                _ => Report::with_scale(piece_name, &piece.values, want, most),
            }
        });
        Ok(reports.max_by(|a, b| a.relative.total_cmp(&b.relative)).expect("every sampling has three pieces"))
    }

    fn entry(&self, name: &str) -> Result<&Entry, Error> {
        self.checkpoint.entry(name).ok_or_else(|| self.missing("tensor", name))
    }

    fn check_shape(&self, name: &str, expected: Shape, got: &Shape) -> Result<(), Error> {
        if expected == *got {
            return Ok(());
        }
        Err(Error::ShapeDiffers { name: name.to_owned(), expected: expected.into(), got: (*got).into() })
    }

    fn missing(&self, what: &'static str, name: &str) -> Error {
        Error::Missing { file: self.file.clone(), what, name: name.to_owned() }
    }

    fn json<'a, T: Deserialize<'a>>(&self, key: &str, text: &'a str) -> Result<T, Error> {
        serde_json::from_str(text)
            .map_err(|source| Error::Json { what: format!("metadata '{key}' of {}", self.file), source })
    }
}

/// The largest magnitude.
fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0f32, |most, value| most.max(value.abs()))
}
