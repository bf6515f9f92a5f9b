//! Learned vectors that prompts name: `embedding:name` is a file of the embeddings folder.

use std::collections::HashMap;

use checkpoint::{Checkpoint, Entry};
use models::text::{Embeddings, Symbol, Tokens};
use tensor::Lane;

use crate::Result;
use crate::studio::{Studio, decode_values};

/// Endings of embedding files; only safetensors can be read.
const ENDING: &str = ".safetensors";

/// The embedding files of a studio, for one encoder.
pub(super) struct EmbeddingFiles<'a> {
    studio: &'a Studio,
    /// What files call this encoder's vectors.
    key: &'static str,
    width: usize,
}

impl<'a> EmbeddingFiles<'a> {
    pub(super) fn new(studio: &'a Studio, key: &'static str, width: usize) -> EmbeddingFiles<'a> {
        EmbeddingFiles { studio, key, width }
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

    /// The file of an embedding and which of its tensors fits this encoder.
    fn find(&self, name: &str) -> Option<(std::sync::Arc<Checkpoint>, usize)> {
        let with_ending = format!("{name}{ENDING}");
        let path =
            [name, with_ending.as_str()].iter().find_map(|name| self.studio.find("embeddings", name).ok())?;
        let file = self.studio.open_file(&path);
        let file = file.inspect_err(|error| tracing::warn!("embedding {name}: {error}")).ok()?;
        let named = file.entries().iter().position(|entry| entry.name() == self.key);
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
