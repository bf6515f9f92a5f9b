//! Tensors that describe another tensor: the scales of quantised weights. A weight `a.b.weight` has its scale in
//! `a.b.weight_scale` or, in old files of scaled fp8, in `a.b.scale_weight`; loaders need not know which.

use crate::marks::TENSOR_MARK;
use crate::{Checkpoint, Entry};

/// The last part of the names of weights that have companions.
pub(crate) const WEIGHT: &str = "weight";
/// Scales that the stored weight is to be multiplied with.
pub(crate) const SCALE: &str = "weight_scale";
/// What old files call them.
pub(crate) const OLD_SCALE: &str = "scale_weight";
/// One number that multiplies the scales of blocks.
pub(crate) const TENSOR_SCALE: &str = "weight_scale_2";
/// What the input of a layer is to be multiplied with, column by column.
pub(crate) const INPUT_FACTOR: &str = "pre_quant_scale";
/// Scales for the other factor of a matrix product, if that is rounded to fp8, too.
const INPUT_SCALES: [&str; 2] = ["scale_input", "input_scale"];
/// A tensor that marks the whole file as scaled fp8.
pub(crate) const MARKER: &str = "scaled_fp8";
/// The end of the name of a tensor with JSON about how a module attends, which is no weight.
const ATTENTION_NOTE: &str = "comfy_attention.config";

impl Checkpoint {
    /// The tensor whose values the stored weight `entry` is to be multiplied with: one f32, one for each row, or the bytes
    /// of one for each block, as the entry's encoding says.
    pub fn scale_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &[OLD_SCALE, SCALE])
    }

    /// The one f32 that multiplies the scales of blocks of the weight `entry`.
    pub fn tensor_scale_of(&self, entry: &Entry) -> Option<&Entry> {
        entry.encoding().scheme()?;
        self.companion(entry, &[TENSOR_SCALE])
    }

    /// What the input of the layer with the weight `entry` is to be multiplied with, one number for each column.
    pub fn input_factor_of(&self, entry: &Entry) -> Option<&Entry> {
        entry.encoding().scheme()?;
        self.companion(entry, &[INPUT_FACTOR])
    }

    /// The scale that was measured for the inputs of the weight `entry`, needed only where they are
    /// rounded to fp8.
    pub fn input_scale_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &INPUT_SCALES)
    }

    /// The tensor of bytes with JSON that names the quantisation of the weight `entry`.
    pub fn quant_note_of(&self, entry: &Entry) -> Option<&Entry> {
        self.companion(entry, &[TENSOR_MARK])
    }

    /// Whether `entry` only describes another tensor, or marks the file, and is no weight itself.
    pub fn is_companion(&self, entry: &Entry) -> bool {
        let (base, last) = split_last(entry.name());
        if last == MARKER || entry.name().ends_with(ATTENTION_NOTE) {
            return true;
        }
        let describes = [SCALE, OLD_SCALE, TENSOR_SCALE, INPUT_FACTOR, TENSOR_MARK].contains(&last)
            || INPUT_SCALES.contains(&last);
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
pub(crate) fn split_last(name: &str) -> (&str, &str) {
    name.split_at(name.rfind('.').map_or(0, |dot| dot + 1))
}
