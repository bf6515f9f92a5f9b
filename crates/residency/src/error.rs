//! The errors of residency.

use meta::{DType, Encoding};

use crate::ModelId;

/// A result of residency.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong with a model's weights.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A device failed or is short of memory.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// The plan does not fit the model it is for.
    #[error("the plan has {planned} blocks, the model {name} has {blocks}")]
    PlanMismatch {
        /// The model.
        name: String,
        /// Blocks of the plan.
        planned: usize,
        /// Blocks of the model.
        blocks: usize,
    },
    /// A model's file changed under it.
    #[error("{name} cannot be read any more: {source}")]
    File {
        /// The model.
        name: String,
        /// What the file's reader says.
        source: checkpoint::Error,
    },
    /// A weight that the model asks for is not in the leased block.
    #[error("block {block} of {model} has no weight {weight}")]
    NoSuchWeight {
        /// The model.
        model: String,
        /// The block.
        block: String,
        /// The weight asked for.
        weight: String,
    },
    /// A block index beyond the model's blocks.
    #[error("{model} has {blocks} blocks; there is no block {index}")]
    NoSuchBlock {
        /// The model.
        model: String,
        /// The block asked for.
        index: usize,
        /// Blocks there are.
        blocks: usize,
    },
    /// The model is not loaded, or no longer.
    #[error("model {id} is not loaded")]
    NoSuchModel {
        /// The model asked for.
        id: ModelId,
    },
    /// A patch does not fit.
    #[error(transparent)]
    Patch(#[from] patch::Error),
    /// A manifest that contradicts itself.
    #[error("the manifest of {name}: {reason}")]
    Manifest {
        /// The model.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A weight that cannot be kept in the type that was asked for.
    #[error(
        "{weight} of {name} is stored as {encoding}, which cannot be cast to {to}; load it as it is stored"
    )]
    CannotCast {
        /// The model.
        name: String,
        /// The weight.
        weight: String,
        /// How it is stored.
        encoding: Encoding,
        /// What it should be cast to.
        to: DType,
    },
    /// The job was cancelled.
    #[error("cancelled")]
    Cancelled,
}
