//! What vision towers see in pictures.

use std::fmt;

use graph::Object;
use models::conditioning::Array;

use runtime::host::Values;

/// Values on the host with their axes, counted in its ledger.
#[derive(Clone, PartialEq)]
pub struct Features {
    /// The lengths of the axes, pictures first.
    pub shape: Vec<usize>,
    /// The values, the last axis fastest.
    pub values: Values,
}

/// What a vision tower sees in a batch of pictures: `CLIP_VISION_OUTPUT`.
#[derive(Clone, PartialEq)]
pub struct ClipVisionOutput {
    /// What the last layer gives, `[batch, tokens, width]`.
    pub last: Features,
    /// What the layer before the last gives, `[batch, tokens, width]`.
    pub penultimate: Features,
    /// Each picture in the space that CLIP shares with text, `[batch, width]`; of a SigLIP tower its last states.
    pub embeds: Features,
    /// The patches as tokens of a language model, `[batch, patches, width]`, of a tower that has the way there.
    pub projected: Option<Features>,
    /// What the eleventh and the twentieth layer from the end give, `[batch, tokens, width]`, of a deep SigLIP tower.
    pub earlier: Option<[Features; 2]>,
}

impl Features {
    /// The same as an array of a conditioning.
    #[must_use]
    pub fn array(&self) -> Array {
        Array { shape: self.shape.clone(), values: self.values.to_vec() }
    }
}

impl Object for ClipVisionOutput {
    fn describe(&self) -> String {
        format!("what a vision model saw, {:?}", self.last.shape)
    }
}

impl fmt::Debug for ClipVisionOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}
