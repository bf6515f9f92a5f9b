//! Layers that some files keep in pieces: queries, keys and values that the model has as one product.

use residency::{Lease, LinearPart};
use tensor::{AsLayerInput, Tensor};

use crate::Result;

/// The linear layer `name`: whole, or of the pieces `name.0`, `name.1` and so on, whose outputs stand side by side.
pub(super) fn linear(lease: &Lease<'_>, name: &str, x: &impl AsLayerInput) -> Result<Tensor> {
    let (rows, x) = (rows_of(lease, name)?, x.as_layer_input());
    let x = x.as_ref();
    if rows.is_empty() {
        return Ok(lease.linear(name, x)?);
    }
    let last = x.rank() - 1;
    let all: usize = rows.iter().sum();
    let out = x.lane().empty_as(x.dtype(), x.shape().with(last, all))?;
    linear_in_parts(lease, name, x, &[LinearPart { rows: 0..all, activation: None, out: &out }])?;
    Ok(out)
}

/// The linear layer `name`, some of its outputs here and some there. No piece lies in two parts.
pub(super) fn linear_in_parts(
    lease: &Lease<'_>,
    name: &str,
    x: &impl AsLayerInput,
    parts: &[LinearPart<'_>],
) -> Result<()> {
    let (pieces, x) = (rows_of(lease, name)?, x.as_layer_input());
    let x = x.as_ref();
    if pieces.is_empty() {
        return Ok(lease.linear_in_parts(name, x, parts)?);
    }
    let mut start = 0;
    for (index, rows) in pieces.into_iter().enumerate() {
        for part in parts.iter().filter(|part| part.rows.contains(&start)) {
            let out = part.out.slice(part.out.rank() - 1, start - part.rows.start, rows)?;
            let piece = LinearPart { rows: 0..rows, activation: part.activation, out: &out };
            lease.linear_in_parts(&format!("{name}.{index}"), x, &[piece])?;
        }
        start += rows;
    }
    Ok(())
}

/// The rows of each piece; none if the layer is whole.
fn rows_of(lease: &Lease<'_>, name: &str) -> Result<Vec<usize>> {
    let mut rows = Vec::new();
    while let Some(weight) = lease.find(&format!("{name}.{}.weight", rows.len()))? {
        rows.push(weight.dims()[0]);
    }
    Ok(rows)
}
