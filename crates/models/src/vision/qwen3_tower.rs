//! Qwen3-VL's tower: a picture becomes tokens that its language model reads among words. Patches of 16 pixels look at all
//! others; each four neighbours end as one token. What some layers give is added to the tokens further on, behind the
//! first layers of the language model. Names and formulas are those of the transformers library (`modeling_qwen3_vl.py`).
//!
//! ```text
//! pixels ── patches, their places ──> blocks ── merger ──> [tokens, width of the language model]
//!                                       └─ mergers of some blocks ──> the same, for its first layers
//! ```

mod places;
mod weights;

use std::any::Any;
use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Mask, RopeLayout, Tensor};

use super::patches::{Cut, Layout};
use super::{LanguageTower, Seen, VisionFamily, VisionModel};
use crate::claims::Claims;
use crate::detect::{Part, Sign};
use crate::rehearsal::read_back;
use crate::{Module, Probe, Result};
use places::Taps;
use weights::Sizes;

/// How it cuts pictures.
const CUT: Cut = Cut { patch: 16, window: None, mean: [0.5; 3], spread: [0.5; 3] };
/// Added to the variance in every normalisation.
const NORM_EPS: f32 = 1e-6;
/// Heads of attention, in every released size.
const HEADS: usize = 16;
/// The side of the picture that a rehearsal looks at: a megapixel, to which pictures are scaled before.
const USUAL_SIDE: usize = 1024;

/// The tower.
pub const FAMILY: VisionFamily = VisionFamily {
    name: weights::FAMILY,
    signs: &[Sign::native("patch_embed.proj.weight", |found| {
        let is_it = found.has("deepstack_merger_list.0.norm.weight") && found.has("blocks.0.attn.qkv.weight");
        is_it.then_some(Cow::Borrowed("the tower of Qwen3-VL"))
    })],
    read: |checkpoint, part| Ok(Box::new(Qwen3Tower::read(checkpoint, part)?)),
};

/// A tower: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct Qwen3Tower {
    sizes: Sizes,
    prefix: String,
}

/// The cosines and sines of the places of patches, `[1, patches, head / 2]`.
struct Turns {
    cos: Tensor,
    sin: Tensor,
}

impl Qwen3Tower {
    /// Reads the tower's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Qwen3Tower> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        Ok(Qwen3Tower { sizes: weights::read(&claims)?, prefix: part.prefix.clone() })
    }

    /// As [`LanguageTower::look`], with a look at what the modules compute.
    pub fn look_probed(
        &self,
        session: &Session,
        size: [usize; 2],
        pixels: &[f32],
        probe: &mut Probe<'_>,
    ) -> Result<Seen> {
        let layout = Layout::new(&CUT, size, pixels.len())?;
        let head = self.sizes.width / HEADS;
        let lane = session.lane()?;
        let [cos, sin] = layout.turns(head / 2);
        let shape = [1, layout.count(), head / 2];
        let turns = Turns { cos: lane.tensor_f32(shape, &cos)?, sin: lane.tensor_f32(shape, &sin)? };
        let mut x = self.entrance(session, &layout, pixels, probe)?;
        let mut deep = Vec::new();
        for i in 0..self.sizes.layers {
            let lease = session.lease(1 + i)?;
            x = self.block(&lease, i, &lease.bring(&x)?, &turns)?;
            probe.show_step(format_args!("blocks.{i}"), || Ok(x.reshape([x.dim(1), x.dim(2)])?))?;
            if let Some(index) = self.sizes.deep.iter().position(|layer| *layer == i) {
                let name = format!("deepstack_merger_list.{index}");
                // Four patches are normalised as one here.
                let cells = x.reshape([layout.count() / 4, 4 * self.sizes.width])?;
                let seen = merged(&lease, &name, &normed(&lease, &format!("{name}.norm"), &cells)?)?;
                probe.show(format_args!("{name}"), &seen);
                deep.push(seen);
            }
        }
        let lease = session.lease(1 + self.sizes.layers)?;
        let x = normed(&lease, "merger.norm", &lease.bring(&x)?)?;
        let tokens = merged(&lease, "merger", &x.reshape([layout.count() / 4, 4 * self.sizes.width])?)?;
        probe.show(format_args!("merger"), &tokens);
        let deep = deep.iter().map(|seen| seen.to_lane(tokens.lane())).collect::<Result<Vec<_>, _>>()?;
        Ok(Seen { tokens, deep, grid: layout.grid() })
    }

    /// Patches in the tower's width, with what is learned for their places.
    fn entrance(
        &self,
        session: &Session,
        layout: &Layout,
        pixels: &[f32],
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let lease = session.lease(0)?;
        let (lane, count, width) = (lease.lane(), layout.count(), self.sizes.width);
        let patches = lane.tensor([1, count, CUT.values()], &layout.patches(pixels))?;
        let x = lease.linear("patch_embed.proj", &patches)?;
        probe.show_step(format_args!("patch_embed"), || Ok(x.reshape([count, width])?))?;
        let Taps { rows, shares } = Taps::of(layout, self.sizes.side);
        let places = lane.embedding(&lease.weight("pos_embed.weight")?, &lane.ids([count, 4], &rows)?)?;
        let places = places.mul(&lane.tensor([count, 4, 1], &shares)?)?.sum(&[1])?;
        Ok(x.add(&places.reshape([1, count, width])?)?)
    }

    fn block(&self, lease: &Lease<'_>, i: usize, x: &Tensor, turns: &Turns) -> Result<Tensor> {
        let name = |module: &str| format!("blocks.{i}.{module}");
        let qkv = lease.linear(&name("attn.qkv"), &normed(lease, &name("norm1"), x)?)?;
        let x = x.add(&lease.linear(&name("attn.proj"), &attend(&qkv, turns)?)?)?;
        let inner = normed(lease, &name("norm2"), &x)?;
        let inner = lease.linear_then(&name("mlp.linear_fc1"), &inner, Some(Activation::GeluTanh))?;
        Ok(x.add(&lease.linear(&name("mlp.linear_fc2"), &inner)?)?)
    }
}

/// Attention of all patches over all.
fn attend(qkv: &Tensor, turns: &Turns) -> Result<Tensor> {
    let (len, width) = (qkv.dim(1), qkv.dim(2) / 3);
    let head = width / HEADS;
    let parts = qkv.reshape([1, len, 3, HEADS, head])?;
    let part = |i: usize| parts.slice(2, i, 1)?.reshape([1, len, HEADS, head]);
    let (cos, sin) = (turns.cos.to_device_of(qkv.lane())?, turns.sin.to_device_of(qkv.lane())?);
    let turn = |x: Tensor| x.rope(&cos, &sin, RopeLayout::HalfSplit);
    let (q, k, v) = (turn(part(0)?)?, turn(part(1)?)?, part(2)?.contiguous()?);
    let scale = (head as f32).sqrt().recip();
    Ok(q.attention(&k, &v, &Mask::None, scale)?.reshape([1, len, width])?)
}

/// A normalisation with weight and bias.
fn normed(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let (weight, bias) = (lease.weight(&format!("{name}.weight"))?, lease.weight(&format!("{name}.bias"))?);
    Ok(x.layer_norm(Some(&weight), Some(&bias), NORM_EPS)?)
}

/// Cells of four patches as tokens.
fn merged(lease: &Lease<'_>, name: &str, cells: &Tensor) -> Result<Tensor> {
    let inner = lease.linear_then(&format!("{name}.linear_fc1"), cells, Some(Activation::Gelu))?;
    Ok(lease.linear(&format!("{name}.linear_fc2"), &inner)?)
}

impl Module for Qwen3Tower {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, weights::FAMILY), &self.sizes)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl VisionModel for Qwen3Tower {
    fn rehearse(&self, session: &Session) -> Result<()> {
        let pixels = vec![0.0; USUAL_SIDE * USUAL_SIDE * 3];
        read_back(&self.look(session, [USUAL_SIDE; 2], &pixels)?.tokens)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn tower(&self) -> Option<&dyn LanguageTower> {
        Some(self)
    }
}

impl LanguageTower for Qwen3Tower {
    fn fitting_size(&self, size: [usize; 2]) -> [usize; 2] {
        CUT.fitting_size(size)
    }

    fn look(&self, session: &Session, size: [usize; 2], pixels: &[f32]) -> Result<Seen> {
        self.look_probed(session, size, pixels, &mut Probe::none())
    }
}
