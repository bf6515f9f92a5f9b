//! Tensors that describe another tensor: the scales of "scaled fp8" files. A weight `a.b.weight` has
//! its scale in `a.b.scale_weight` (with a marker tensor `scaled_fp8` in the file) or, in newer files, in
//! `a.b.weight_scale` (with a note `a.b.comfy_quant`); loaders need not know which.

use crate::{Checkpoint, Entry};

/// The last part of the names of weights that have companions.
const WEIGHT: &str = "weight";
/// Scales that the stored weight is to be multiplied with.
const WEIGHT_SCALES: [&str; 2] = ["scale_weight", "weight_scale"];
/// Scales for the other factor of a matrix product, if that is rounded to fp8, too.
const INPUT_SCALES: [&str; 2] = ["scale_input", "input_scale"];
/// JSON text, stored as bytes, that names the weight's quantisation.
const QUANT_NOTES: [&str; 1] = ["comfy_quant"];
/// A tensor that marks the whole file as scaled fp8.
const MARKER: &str = "scaled_fp8";

impl Checkpoint {
    /// The tensor whose values the stored weight `entry` is to be multiplied with: one f32 in all
    /// files seen so far. Others would be per row or block, so look at its shape.
    pub fn scale_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &WEIGHT_SCALES)
    }

    /// The scale that was measured for the inputs of the weight `entry`, needed only where they are
    /// rounded to fp8.
    pub fn input_scale_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &INPUT_SCALES)
    }

    /// The tensor of bytes with JSON that names the quantisation of the weight `entry`.
    pub fn quant_note_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &QUANT_NOTES)
    }

    /// Whether `entry` only describes another tensor, or marks the file, and is no weight itself.
    pub fn is_companion(&self, entry: &Entry) -> bool {
        let (base, last) = split_last(entry.name());
        if last == MARKER {
            return true;
        }
        let describes =
            WEIGHT_SCALES.contains(&last) || INPUT_SCALES.contains(&last) || QUANT_NOTES.contains(&last);
        describes && self.entry(&format!("{base}{WEIGHT}")).is_some()
    }

    fn companion(&self, entry: &Entry, names: &[&str]) -> Option<&Entry> {
        let (base, last) = split_last(entry.name());
        if last != WEIGHT {
            return None;
        }
        names.iter().find_map(|name| self.entry(&format!("{base}{name}")))
    }
}

/// A name up to and with its last dot, and what follows.
fn split_last(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('.').map_or(0, |dot| dot + 1))
}
