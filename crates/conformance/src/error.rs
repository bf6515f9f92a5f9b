//! What keeps cases from being run at all.

/// The reference could not do its part, so there is nothing to compare with. What fails on the devices that are compared
/// is no error: it is in the [`Report`](crate::Report).
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The inputs of a case could not be made on the reference. The text is the case; why it failed is the source.
    #[error("{case}")]
    Inputs {
        /// Operation and variant.
        case: String,
        /// What the reference said.
        source: Box<tensor::Error>,
    },
    /// The reference failed to open or to compute.
    #[error(transparent)]
    Reference(#[from] tensor::Error),
}
