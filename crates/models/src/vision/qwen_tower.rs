//! Qwen2.5-VL's tower: a picture becomes tokens that its language model reads among words. Patches of 14 pixels look at
//! others within windows of 112 pixels, in a few layers at all; each four neighbours end as one token.
//!
//! ```text
//! pixels ── patches, window by window ──> blocks ── merger ──> [tokens, width of the language model]
//! ```

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

use weights::Sizes;

/// How it cuts pictures.
const CUT: Cut = Cut {
    patch: 14,
    window: Some(4),
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    spread: [0.268_629_54, 0.261_302_6, 0.275_777_1],
};

/// Below every square root of a mean square.
const NORM_EPS: f32 = 1e-6;
/// Values of a head.
const HEAD: usize = 80;
/// The layers in which every patch looks at all others.
const FULL_LAYERS: [usize; 4] = [7, 15, 23, 31];
/// The side of the picture that a rehearsal looks at: a megapixel, to which pictures are scaled before.
const USUAL_SIDE: usize = 1036;

/// The family.
pub const FAMILY: VisionFamily = VisionFamily {
    name: "Qwen2.5-VL's tower",
    signs: &[Sign::native("patch_embed.proj.weight", |found| {
        let is_it = found.has("merger.ln_q.weight") && found.has("blocks.0.attn.qkv.weight");
        is_it.then_some(Cow::Borrowed("the tower of Qwen2.5-VL"))
    })],
    read: |checkpoint, part| Ok(Box::new(QwenTower::read(checkpoint, part)?)),
};

/// A tower: its sizes and how it computes.
#[derive(Clone, Debug)]
pub struct QwenTower {
    sizes: Sizes,
    prefix: String,
}

/// Where patches look.
struct Sight {
    cos: Tensor,
    sin: Tensor,
    /// The windows: how many of a length follow each other.
    windows: Vec<(usize, usize)>,
}

impl QwenTower {
    /// Reads the tower's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<QwenTower> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        Ok(QwenTower { sizes: weights::read(&claims)?, prefix: part.prefix.clone() })
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
        let lane = session.lane()?;
        let patches = lane.tensor([1, layout.count(), CUT.values()], &layout.patches(pixels))?;
        let [cos, sin] = layout.turns(HEAD / 2);
        let shape = [1, layout.count(), HEAD / 2];
        let sight = Sight {
            cos: lane.tensor_f32(shape, &cos)?,
            sin: lane.tensor_f32(shape, &sin)?,
            windows: layout.windows(),
        };
        let mut x = {
            let lease = session.lease(0)?;
            lease.linear("patch_embed.proj", &lease.bring(&patches)?)?
        };
        for i in 0..self.sizes.layers {
            let lease = session.lease(1 + i)?;
            x = self.block(&lease, i, &lease.bring(&x)?, &sight, probe)?;
            probe.show_step(format_args!("blocks.{i}"), || Ok(x.reshape([x.dim(1), x.dim(2)])?))?;
        }
        let lease = session.lease(1 + self.sizes.layers)?;
        let x = lease.bring(&x)?.rms_norm(Some(&lease.weight("merger.ln_q.weight")?), NORM_EPS)?;
        let x = x.reshape([layout.count() / 4, 4 * self.sizes.width])?;
        let x = lease.linear_then("merger.mlp.0", &x, Some(Activation::Gelu))?;
        let tokens = lease.linear("merger.mlp.2", &x)?;
        probe.show(format_args!("merger"), &tokens);
        Ok(Seen { tokens, deep: Vec::new(), grid: layout.grid() })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        i: usize,
        x: &Tensor,
        sight: &Sight,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = |module: &str| format!("blocks.{i}.{module}");
        let norm = |module: &str, x: &Tensor| -> Result<Tensor> {
            Ok(x.rms_norm(Some(&lease.weight(&name(module))?), NORM_EPS)?)
        };
        let normed = norm("norm1.weight", x)?;
        let qkv = lease.linear(&name("attn.qkv"), &normed)?;
        probe.show(format_args!("blocks.{i}.attn.qkv"), &qkv);
        let attended = attend(&qkv, self.sizes.width / HEAD, sight, FULL_LAYERS.contains(&i))?;
        let x = x.add(&lease.linear(&name("attn.proj"), &attended)?)?;
        let normed = norm("norm2.weight", &x)?;
        let gate = lease.linear(&name("mlp.gate_proj"), &normed)?;
        let up = lease.linear(&name("mlp.up_proj"), &normed)?;
        let change = lease.linear(&name("mlp.down_proj"), &gate.gate(Activation::Silu, &up)?)?;
        Ok(x.add(&change)?)
    }
}

/// Attention within windows, or of all patches.
fn attend(qkv: &Tensor, heads: usize, sight: &Sight, is_full: bool) -> Result<Tensor> {
    let len = qkv.dim(1);
    let parts = qkv.reshape([1, len, 3, heads, HEAD])?;
    let part = |i: usize| parts.slice(2, i, 1)?.reshape([1, len, heads, HEAD]);
    let (cos, sin) = (sight.cos.to_device_of(qkv.lane())?, sight.sin.to_device_of(qkv.lane())?);
    let turn = |x: Tensor| x.rope(&cos, &sin, RopeLayout::HalfSplit);
    let (q, k, v) = (turn(part(0)?)?, turn(part(1)?)?, part(2)?.contiguous()?);
    let scale = (HEAD as f32).sqrt().recip();
    if is_full {
        return Ok(q.attention(&k, &v, &Mask::None, scale)?.reshape([1, len, heads * HEAD])?);
    }
    let out = q.lane().empty_as(q.dtype(), *q.shape())?;
    let mut start = 0;
    for (count, length) in &sight.windows {
        // Windows of one length that follow each other are a batch.
        let batch = |x: &Tensor| x.slice(1, start, count * length)?.reshape([*count, *length, heads, HEAD]);
        batch(&q)?.attention_into(&batch(&k)?, &batch(&v)?, &Mask::None, scale, &batch(&out)?)?;
        start += count * length;
    }
    Ok(out.reshape([1, len, heads * HEAD])?)
}

impl Module for QwenTower {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, weights::FAMILY), &self.sizes)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl VisionModel for QwenTower {
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

impl LanguageTower for QwenTower {
    fn fitting_size(&self, size: [usize; 2]) -> [usize; 2] {
        CUT.fitting_size(size)
    }

    fn look(&self, session: &Session, size: [usize; 2], pixels: &[f32]) -> Result<Seen> {
        self.look_probed(session, size, pixels, &mut Probe::none())
    }
}
