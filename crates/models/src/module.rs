//! What placing and loading ask of any network, whatever it is for.

use std::fmt;

use checkpoint::Checkpoint;
use meta::DType;
use residency::Manifest;

use crate::Result;

/// A network that was read from a file: its sizes and how it computes. Its weights come with a session.
pub trait Module: fmt::Debug + Send + Sync {
    /// What it needs of the file it was read from, block by block in order of use.
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest>;

    /// The element types that its activations may have, the preferred one first.
    fn activations(&self) -> &'static [DType];
}
