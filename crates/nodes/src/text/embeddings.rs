//! Learned vectors that prompts name: `embedding:name` is a file of the embeddings folder.

use std::collections::HashMap;

use checkpoint::{Checkpoint, Entry};
use models::text::{Embeddings, Symbol, Tokens};
use tensor::Lane;

use crate::{Error, Result};
use runtime::{Runtime, decode_values};

/// Endings of embedding files, in the order in which they are tried for a name without one.
const ENDINGS: [&str; 4] = ["", ".safetensors", ".pt", ".bin"];
/// What the tensors of textual inversions begin with, where they are not alone in their file.
const TRAINED: &str = "string_to_param.";

/// The embedding files of a runtime, for one encoder.
pub(super) struct EmbeddingFiles<'a> {
    runtime: &'a Runtime,
    /// What files call this encoder's vectors.
    key: &'static str,
    width: usize,
}

impl<'a> EmbeddingFiles<'a> {
    pub(super) fn new(runtime: &'a Runtime, key: &'static str, width: usize) -> EmbeddingFiles<'a> {
        EmbeddingFiles { runtime, key, width }
    }

    /// How many vectors an embedding has, if there is one that fits.
    pub(super) fn rows(&self, name: &str) -> Option<usize> {
        let (file, at) = self.find(name)?;
        rows_of(&file.entries()[at], self.width)
    }

    /// The vectors of the embeddings that a prompt names.
    pub(super) fn tensors(&self, tokens: &Tokens, lane: &Lane) -> Result<Embeddings> {
        let mut found: Embeddings = HashMap::new();
        for token in tokens.chunks.iter().flatten() {
            let Symbol::Embedding { name, .. } = &token.symbol else { continue };
            if found.contains_key(&**name) {
                continue;
            }
            let Some((file, at)) = self.find(name) else { continue };
            let entry = &file.entries()[at];
            if let (Some(rows), Some(values)) = (rows_of(entry, self.width), decode_values(&file, entry)) {
                found.insert(name.to_string(), lane.tensor([rows, self.width], &values)?);
            }
        }
        Ok(found)
    }

    /// The error for an embedding that is there and fits no encoder of these widths; nothing if there is none, or if it fits
    /// another one.
    pub(super) fn misfit(&self, name: &str, widths: &[usize]) -> Option<Error> {
        let (file, at) = self.find(name)?;
        let entry = &file.entries()[at];
        if widths.iter().any(|width| rows_of(entry, *width).is_some()) {
            return None;
        }
        let fitting: Vec<String> = widths.iter().map(usize::to_string).collect();
        Some(Error::Told(format!(
            "the embedding {} has vectors of shape {}, but these text encoders take vectors of {} values; use an embedding that \
             was trained for this model, or take embedding:{name} out of the prompt",
            file.path().display(),
            entry.shape(),
            fitting.join(" or "),
        )))
    }

    /// The file of an embedding and which of its tensors is meant for this encoder.
    fn find(&self, name: &str) -> Option<(std::sync::Arc<Checkpoint>, usize)> {
        let path = ENDINGS
            .iter()
            .find_map(|ending| self.runtime.find("embeddings", &format!("{name}{ending}")).ok())?;
        let file = self.runtime.open_file(&path);
        let file = file.inspect_err(|error| tracing::warn!("embedding {name}: {error}")).ok()?;
        let position =
            |is_it: &dyn Fn(&str) -> bool| file.entries().iter().position(|entry| is_it(entry.name()));
        let trained = position(&|name| name.starts_with(TRAINED));
        let named = trained.or_else(|| position(&|name| name == self.key));
        let at = named.or_else(|| (!file.entries().is_empty()).then_some(0))?;
        Some((file, at))
    }
}

/// The number of vectors of a tensor, if they have this width.
fn rows_of(entry: &Entry, width: usize) -> Option<usize> {
    match *entry.shape().dims() {
        [one] if one == width => Some(1),
        [rows, columns] if columns == width && rows > 0 => Some(rows),
        _ => None,
    }
}
