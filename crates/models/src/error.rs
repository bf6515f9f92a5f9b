//! The errors of models.

/// A model's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can be wrong with a model's file or its use.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Weights could not be had.
    #[error(transparent)]
    Residency(#[from] residency::Error),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A patch that a model has in its file cannot be read.
    #[error(transparent)]
    Patch(#[from] patch::Error),
    /// A latent that does not fit.
    #[error(transparent)]
    Latent(#[from] sampling::Error),
    /// A tensor that the family needs is not in the file.
    #[error("{file} has no tensor {tensor}, which {family} needs; it looks like {seems}")]
    MissingTensor {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The family it was read as.
        family: &'static str,
        /// What the file seems to be.
        seems: String,
    },
    /// A tensor of another shape than the family needs.
    #[error("{file}: {tensor} has shape {got}, {family} needs {expected}")]
    WrongShape {
        /// The file.
        file: String,
        /// The tensor.
        tensor: String,
        /// The family it was read as.
        family: &'static str,
        /// The shape it should have.
        expected: String,
        /// The shape it has.
        got: String,
    },
    /// A file that is something else than what it was given as.
    #[error("{file} is not {wanted}: it seems to be {seems}")]
    WrongKind {
        /// The file.
        file: String,
        /// What it was given as.
        wanted: &'static str,
        /// What it seems to be.
        seems: String,
    },
    /// A text that cannot be tokenised, or a tokenizer that cannot be read.
    #[error("{tokenizer}: {reason}")]
    Tokenizer {
        /// Which tokenizer.
        tokenizer: String,
        /// What is wrong.
        reason: String,
    },
    /// A file beside a model that cannot be read.
    #[error("{file}: {reason}; take the file that was published with the model")]
    Settings {
        /// Which file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// An input of the model that does not fit.
    #[error("{what} is {got}, expected {expected}")]
    Input {
        /// Which input.
        what: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        got: String,
    },
}

impl Error {
    /// Whether a device had too little memory, so that doing less at a time may help.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(
            self,
            Error::Device(device::Error::OutOfMemory(_))
                | Error::Residency(residency::Error::Device(device::Error::OutOfMemory(_)))
        )
    }
}
