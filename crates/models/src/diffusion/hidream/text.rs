//! Texts for HiDream: T5's tokens, every state of Llama 3, and the pooled results of both CLIPs.

use tensor::Tensor;

use crate::text::{Encoded, EncoderUse, Layer, PaddingUse, TextRecipe};
use crate::{Error, Result};

/// Tokens of a prompt; T5 reads no more, Llama no fewer.
const TOKENS: usize = 128;
/// What fills Llama's prompts: the end of a turn.
const PAD: u32 = 128_009;
/// Values of the pooled results of both CLIPs.
const POOLED_WIDTHS: [usize; 2] = [768, 1280];
/// Values per token of T5 and of Llama's states, of which there are so many, where either is missing.
const TEXT_WIDTH: usize = 4096;
const STATES: usize = 32;

/// How texts are encoded.
pub(crate) const TEXT: TextRecipe = TextRecipe {
    name: "hidream",
    encoders: &[
        EncoderUse { is_optional: true, ..EncoderUse::clip("clip_l", Layer::Last) },
        EncoderUse { is_optional: true, ..EncoderUse::clip("clip_g", Layer::SkipRaw(2)) },
        EncoderUse {
            is_optional: true,
            most: Some(TOKENS),
            padding: PaddingUse::Hidden,
            ..EncoderUse::of_length("t5xxl", TOKENS)
        },
        EncoderUse {
            is_optional: true,
            layer: Layer::All,
            padding: PaddingUse::Hidden,
            pad: Some(PAD),
            ..EncoderUse::of_length("llama", TOKENS)
        },
    ],
    has_mask: false,
    join,
};

fn join(encoded: Vec<Option<Encoded>>) -> Result<Encoded> {
    let [clip_l, clip_g, t5, llama] =
        <[Option<Encoded>; 4]>::try_from(encoded).map_err(|all| Error::Input {
            what: "the text",
            expected: "encoded by up to four encoders".into(),
            got: format!("{} results", all.len()),
        })?;
    let lane =
        [&clip_l, &clip_g, &t5, &llama].into_iter().flatten().next().map(|text| text.cond.lane().clone());
    let lane = lane.ok_or_else(|| Error::Input {
        what: "the text",
        expected: "encoded by at least one encoder".into(),
        got: "by none".into(),
    })?;
    let pooled = |text: Option<Encoded>, width: usize| match text.and_then(|text| text.pooled) {
        Some(pooled) => pooled.to_lane(&lane),
        None => lane.full([1, width], 0.0),
    };
    let pooled = [pooled(clip_l, POOLED_WIDTHS[0])?, pooled(clip_g, POOLED_WIDTHS[1])?];
    let pooled = Tensor::concat(&[&pooled[0], &pooled[1]], 1)?;
    let states = match llama {
        // What goes into the first layer is none of the states that the model reads.
        Some(llama) => llama.cond.slice(1, 1, llama.cond.dim(1) - 1)?,
        None => lane.full([1, STATES, 1, TEXT_WIDTH], 0.0)?,
    };
    let (cond, attention_mask) = match t5 {
        Some(t5) => (t5.cond, t5.attention_mask),
        None => (lane.full([1, TOKENS, TEXT_WIDTH], 0.0)?, vec![true; TOKENS]),
    };
    Ok(Encoded { cond, pooled: Some(pooled), attention_mask, second: Some(states), slots: Vec::new() })
}
