//! The text's way into the model: the states that a token has in the text encoder look at each other and become one, then
//! the tokens look at each other. Nothing here depends on the time, so it is done once for a run.

use residency::Lease;
use tensor::{Activation, Tensor};

use super::blocks::{Block, NORM_EPS};
use super::config::{Config, TextConfig};
use crate::diffusion::modulation::one_more;
use crate::{Probe, Result};

/// The names of the blocks over the states of each token, and of those over the tokens.
pub(super) fn stacks(text: &TextConfig) -> [Vec<String>; 2] {
    let names = |stack: &str, count: usize| (0..count).map(|i| format!("txtfusion.{stack}.{i}")).collect();
    [names("layerwise_blocks", text.blocks[0]), names("refiner_blocks", text.blocks[1])]
}

/// A text `[batch, tokens, states · width]` in the model's width, `[batch, tokens, hidden]`.
pub(super) fn fuse(
    config: &Config,
    lease: &Lease<'_>,
    text: &Tensor,
    probe: &mut Probe<'_>,
) -> Result<Tensor> {
    let TextConfig { taps, width, .. } = config.text;
    let (batch, tokens) = (text.dim(0), text.dim(1));
    let [over_states, over_tokens] = stacks(&config.text);
    let block = |name| Block { sizes: config.text_block(), lease, name };
    let mut x = text.reshape([batch * tokens, taps, width])?;
    for name in &over_states {
        x = block(name).unmoved(&x, probe)?;
    }
    let x = x.reshape([batch, tokens, taps, width])?.transpose(2, 3)?.contiguous()?;
    let mut x = lease.linear("txtfusion.projector", &x)?.reshape([batch, tokens, width])?;
    for name in &over_tokens {
        x = block(name).unmoved(&x, probe)?;
    }
    probe.show(format_args!("txtfusion"), &x);
    let x = x.rms_norm(Some(&one_more(lease, "txtmlp.0.scale")?), NORM_EPS)?;
    let x = lease.linear_then("txtmlp.1", &x, Some(Activation::GeluTanh))?;
    let x = lease.linear("txtmlp.3", &x)?;
    probe.show(format_args!("txtmlp"), &x);
    Ok(x)
}
