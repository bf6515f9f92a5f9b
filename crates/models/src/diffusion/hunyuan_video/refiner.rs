//! What becomes of a text before it meets the video: blocks over the text alone, moved by the time and by the mean of the
//! text.

use residency::Lease;
use tensor::{Activation, Tensor};

use super::config::Config;
use crate::diffusion::heads::Heads;
use crate::diffusion::modulation::by_item;
use crate::diffusion::pieces;
use crate::diffusion::streams::NORM_EPS;
use crate::{Probe, Result};

/// What the weights of a block are called.
pub(super) fn block_name(index: usize) -> String {
    format!("txt_in.individual_token_refiner.blocks.{index}")
}

/// One block over texts `[items, tokens, hidden]`; `vector` is what moves it, after SiLU.
pub(super) fn block(
    config: &Config,
    lease: &Lease<'_>,
    index: usize,
    (text, vector): (&Tensor, &Tensor),
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let (name, hidden) = (block_name(index), config.hidden);
    let gates = lease.linear(&format!("{name}.adaLN_modulation.1"), vector)?;
    let gates = by_item(&gates, text.dim(0))?.chunk(2, 2)?;
    let qkv = pieces::linear(lease, &format!("{name}.self_attn.qkv"), &normed(lease, &name, 1, text)?)?;
    let sizes = config.head_sizes();
    let part = |i: usize| -> Result<Tensor> {
        let shape = [text.dim(0), text.dim(1), sizes.heads, sizes.size];
        Ok(qkv.slice(2, i * hidden, hidden)?.reshape(shape)?)
    };
    let attended = Heads { q: part(0)?, k: part(1)?, v: part(2)? }.attend()?;
    let out = lease.linear(&format!("{name}.self_attn.proj"), &attended)?;
    let text = text.gated_add(&gates[0], &out)?;
    let inner = normed(lease, &name, 2, &text)?;
    let inner = lease.linear_then(&format!("{name}.mlp.0"), &inner, Some(Activation::Silu))?;
    let out = lease.linear(&format!("{name}.mlp.2"), &inner)?;
    let text = text.gated_add(&gates[1], &out)?;
    probe.show(format_args!("{name}"), &text);
    Ok(text)
}

fn normed(lease: &Lease<'_>, name: &str, half: usize, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.norm{half}.weight"))?;
    let bias = lease.find(&format!("{name}.norm{half}.bias"))?;
    Ok(x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?)
}
