//! Attention of the middle of an autoencoder: every position over all, in one head.

use tensor::Tensor;

use crate::Result;

/// Scores that attention holds at a time. Its one head is as wide as all channels, which is more than the
/// attention of devices takes, so queries come in chunks of this size over the number of keys.
pub(super) const SCORES: usize = 1 << 22;

/// Attention of queries over keys and values, each `[items, channels, positions]`, and so is the result.
pub(super) fn attend([q, k, v]: [&Tensor; 3]) -> Result<Tensor> {
    let (items, channels, positions) = (q.dim(0), q.dim(1), q.dim(2));
    let out = q.lane().empty_as(q.dtype(), [items, channels, positions])?;
    let chunk = (SCORES / (positions * items)).clamp(1, positions);
    for start in (0..positions).step_by(chunk) {
        let len = chunk.min(positions - start);
        let queries = q.slice(2, start, len)?.transpose(1, 2)?;
        let scores = queries.matmul(k, 1.0 / (channels as f32).sqrt())?.softmax()?;
        v.matmul(&scores.transpose(1, 2)?, 1.0)?.copy_into(&out.slice(2, start, len)?)?;
    }
    Ok(out)
}
