//! Residual streams in f32. What a transformer adds up layer by layer loses most where every sum is rounded to 16 bits; its
//! products lose little. So sums are kept in f32, and what layers read is rounded once.

use meta::DType;
use residency::Lease;
use tensor::{Lane, Tensor};

use crate::Result;

/// The lane for sums, beside one for products.
pub(crate) fn lane_beside(products: &Lane) -> Result<Lane> {
    Ok(products.with_dtype(DType::F32)?)
}

/// What a layer reads of a normalised sum: in the type of its products.
pub(crate) fn for_products(lease: &Lease<'_>, normed: &Tensor) -> Result<Tensor> {
    Ok(normed.to_lane(lease.lane())?)
}

/// A sum with what a layer adds to it.
pub(crate) fn add(sum: &Tensor, change: &Tensor) -> Result<Tensor> {
    Ok(sum.add(&change.to_lane(sum.lane())?)?)
}
