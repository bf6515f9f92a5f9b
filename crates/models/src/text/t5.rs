//! T5's encoder, and UMT5's, which has a table of relative positions in every layer. Names are those of the
//! published checkpoints (`encoder.block.0.layer.0.SelfAttention.q`).

mod weights;

use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Mask, Tensor};

use super::byte_tokenizer::ByteTokenizer;
use super::encoder::{Batch, EncodeOptions, Outputs, PaddingUse, TextEncoder, look_up};
use super::{TextArchitecture, TextModel, tokenizer};
use crate::claims::Claims;
use crate::detect::{Layout, Part, Sign};
use crate::{Module, Probe, Result, residual};

const NORM_EPS: f32 = 1e-6;
/// Distances from here on share the last bucket.
const FAR: f32 = 128.0;
/// Added to the scores of hidden tokens: far below any score, and within every type of activation.
const HIDDEN: f32 = -30_000.0;
/// The width of ByT5.
const BYTE_WIDTH: usize = 1472;

/// The architecture.
pub(super) const ARCHITECTURE: TextArchitecture = TextArchitecture {
    name: "T5 and UMT5",
    signs: &[
        Sign::native("encoder.block.0.layer.0.SelfAttention.q.weight", |found| {
            let table = "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";
            Some(named(found.has(table), found.dim(1)?))
        }),
        Sign {
            tensor: "enc.blk.0.attn_q.weight",
            layout: Layout::LlamaCpp,
            name: |found| Some(named(found.has("enc.blk.1.attn_rel_b.weight"), found.dim(1)?)),
        },
    ],
    read: |checkpoint, part| {
        let t5 = T5::read(checkpoint, part)?;
        if t5.config().reads_bytes() {
            return Ok(TextModel::new(t5, ByteTokenizer));
        }
        let tokenizer = tokenizer::for_t5(checkpoint, t5.config())?;
        Ok(TextModel::new(t5, tokenizer))
    },
};

/// The name of an encoder, by whether every layer has a table of positions, and by its width.
fn named(own_positions: bool, width: usize) -> Cow<'static, str> {
    match (own_positions, width) {
        (false, 4096) => Cow::Borrowed("T5-XXL"),
        (true, 4096) => Cow::Borrowed("UMT5-XXL"),
        (false, BYTE_WIDTH) => Cow::Borrowed("ByT5"),
        (false, width) => Cow::Owned(format!("T5 of width {width}")),
        (true, width) => Cow::Owned(format!("UMT5 of width {width}")),
    }
}

/// A T5 encoder: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct T5 {
    config: T5Config,
    layout: Layout,
    prefix: String,
}

/// The sizes of a T5 encoder.
#[derive(Clone, Debug, PartialEq)]
pub struct T5Config {
    /// Entries of the token table.
    pub vocabulary: usize,
    /// Values per token.
    pub width: usize,
    /// Heads of attention.
    pub heads: usize,
    /// Values of all heads together.
    pub inner: usize,
    /// Inner width of the feed-forward layers.
    pub mlp: usize,
    /// Layers.
    pub layers: usize,
    /// Rows of a table of relative positions.
    pub buckets: usize,
    /// Every layer has a table of its own (UMT5), not only the first.
    pub own_positions: bool,
    /// The feed-forward layers have a gate; those of the first T5 had not.
    pub is_gated: bool,
}

impl T5Config {
    /// Whether its tokens are bytes, as they are in all of this width.
    fn reads_bytes(&self) -> bool {
        self.width == BYTE_WIDTH
    }
}

impl T5 {
    /// Reads the encoder's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<T5> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let config = weights::read_config(&claims, part.layout)?;
        Ok(T5 { config, layout: part.layout, prefix: part.prefix.clone() })
    }

    /// The encoder's sizes.
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    fn layer(
        &self,
        lease: &Lease<'_>,
        i: usize,
        x: &Tensor,
        scores: &Tensor,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = |module: &str| format!("encoder.block.{i}.layer.{module}");
        let (batch, len) = (x.dim(0), x.dim(1));
        let T5Config { heads, inner, .. } = self.config;
        let normed = x.rms_norm(Some(&lease.weight(&name("0.layer_norm.weight"))?), NORM_EPS)?;
        let normed = residual::for_products(lease, &normed)?;
        probe.show(format_args!("block.{i}.layer.0.layer_norm"), &normed);
        let mut parts = Vec::with_capacity(3);
        for module in ["q", "k", "v"] {
            let y = lease.linear(&name(&format!("0.SelfAttention.{module}")), &normed)?;
            probe.show(format_args!("block.{i}.layer.0.SelfAttention.{module}"), &y);
            parts.push(y.reshape([batch, len, heads, inner / heads])?);
        }
        // The scale is part of the weights.
        let attended = parts[0].attention(&parts[1], &parts[2], &Mask::Additive(scores.clone()), 1.0)?;
        let attended = lease.linear(&name("0.SelfAttention.o"), &attended.reshape([batch, len, inner])?)?;
        probe.show(format_args!("block.{i}.layer.0.SelfAttention.0"), &attended);
        let x = residual::add(x, &attended)?;
        probe.show(format_args!("block.{i}.layer.0.0"), &x);
        let normed = x.rms_norm(Some(&lease.weight(&name("1.layer_norm.weight"))?), NORM_EPS)?;
        let normed = residual::for_products(lease, &normed)?;
        probe.show(format_args!("block.{i}.layer.1.layer_norm"), &normed);
        let inner = self.feed_forward(lease, i, &normed, probe)?;
        let change = lease.linear(&name("1.DenseReluDense.wo"), &inner)?;
        probe.show(format_args!("block.{i}.layer.1.DenseReluDense"), &change);
        residual::add(&x, &change)
    }

    /// The inner values of a feed-forward layer.
    fn feed_forward(&self, lease: &Lease<'_>, i: usize, x: &Tensor, probe: &mut Probe<'_>) -> Result<Tensor> {
        let name = |module: &str| format!("encoder.block.{i}.layer.1.DenseReluDense.{module}");
        if !self.config.is_gated {
            return Ok(lease.linear_then(&name("wi"), x, Some(Activation::Relu))?);
        }
        let gate = lease.linear(&name("wi_0"), x)?;
        probe.show(format_args!("block.{i}.layer.1.DenseReluDense.wi_0"), &gate);
        let up = lease.linear(&name("wi_1"), x)?;
        probe.show(format_args!("block.{i}.layer.1.DenseReluDense.wi_1"), &up);
        Ok(gate.gate(Activation::GeluTanh, &up)?)
    }

    /// What is added to the scores of attention, `[1 or batch, heads, queries, keys]`: how far apart two tokens
    /// are, by a learned table, and which tokens are hidden.
    fn position_scores(&self, lease: &Lease<'_>, i: usize, batch: &Batch, masked: bool) -> Result<Tensor> {
        let (len, heads) = (batch.len, self.config.heads);
        // A query's row is a stretch of the buckets of all distances, from far behind to far ahead.
        let distances = 1 - len as i64..len as i64;
        let by_distance: Vec<i32> = distances.map(|distance| bucket(distance, self.config.buckets)).collect();
        let buckets: Vec<i32> =
            (0..len).rev().flat_map(|start| &by_distance[start..start + len]).copied().collect();
        let ids = lease.lane().ids([len, len], &buckets)?;
        let name = format!("encoder.block.{i}.layer.0.SelfAttention.relative_attention_bias.weight");
        let table = lease.weight(&name)?;
        let scores = look_up(lease, &table, &ids)?.permute(&[2, 0, 1])?.reshape([1, heads, len, len])?;
        if !masked {
            return Ok(scores.contiguous()?);
        }
        let visible = batch.visible();
        let hidden: Vec<f32> =
            visible.iter().flatten().map(|seen| if *seen { 0.0 } else { HIDDEN }).collect();
        let hidden = lease.lane().tensor([visible.len(), 1, 1, len], &hidden)?;
        let shape = [visible.len(), heads, len, len];
        Ok(scores.broadcast(shape)?.add(&hidden)?)
    }
}

impl Module for T5 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.layout)
    }

    /// The feed-forward layers outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl TextEncoder for T5 {
    fn key(&self) -> &'static str {
        match &self.config {
            config if config.own_positions => "umt5xxl",
            config if config.reads_bytes() => "byt5",
            config if config.is_gated => "t5xxl",
            _ => "t5xxl_old",
        }
    }

    fn width(&self) -> usize {
        self.config.width
    }

    fn layers(&self) -> usize {
        self.config.layers
    }

    fn chunk_tokens(&self) -> Option<usize> {
        None
    }

    fn forward(
        &self,
        session: &Session,
        batch: &Batch,
        options: EncodeOptions<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Outputs> {
        let lease = session.lease(0)?;
        let sums = residual::lane_beside(lease.lane())?;
        let mut x = batch.embed(&lease, &sums, weights::TOKENS, options.embeddings)?;
        drop(lease);
        let mut bias: Option<Tensor> = None;
        for i in 0..self.config.layers {
            let lease = session.lease(1 + i)?;
            let scores = match bias.filter(|_| !self.config.own_positions) {
                Some(bias) => lease.bring(&bias)?,
                None => self.position_scores(&lease, i, batch, options.padding != PaddingUse::Seen)?,
            };
            x = self.layer(&lease, i, &lease.bring_unrounded(&x)?, &scores, probe)?;
            probe.show(format_args!("block.{i}.0"), &x);
            bias = Some(scores);
        }
        let lease = session.lease(1 + self.config.layers)?;
        let weight = lease.weight(weights::LAST_NORM)?;
        let hidden = lease.bring_unrounded(&x)?.rms_norm(Some(&weight), NORM_EPS)?;
        probe.show(format_args!("final_layer_norm"), &hidden);
        Ok(Outputs { hidden, pooled: None })
    }
}

/// The row of the table for a distance: half of the rows for either direction, of which half are for exact
/// distances and half for ever wider ranges.
fn bucket(distance: i64, buckets: usize) -> i32 {
    let half = (buckets / 2) as i32;
    let side = if distance > 0 { half } else { 0 };
    let exact = half / 2;
    let distance = distance.unsigned_abs();
    if distance < exact as u64 {
        return side + distance as i32;
    }
    // In f32 and in this order, as where the weights were trained: the ranges begin exactly there.
    let ratio = (distance as f32 / exact as f32).ln() / (FAR / exact as f32).ln();
    let wide = exact + (ratio * (half - exact) as f32) as i32;
    side + wide.min(half - 1)
}

#[cfg(test)]
mod tests {
    use super::bucket;

    #[test]
    fn buckets_of_distances() {
        let rows: Vec<i32> = [0, -1, -7, -8, -15, -16, -63, -64, -127, -500].map(|d| bucket(d, 32)).into();
        assert_eq!(rows, [0, 1, 7, 8, 9, 10, 13, 14, 15, 15]);
        assert_eq!([1, 8, 1000].map(|d| bucket(d, 32)), [17, 24, 31]);
    }
}
