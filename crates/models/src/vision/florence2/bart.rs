//! The encoder of the language model, and what it shares with the decoder. Every sublayer is normalised after what it
//! adds.

use device::op::Activation;
use residency::{Lease, Session};
use tensor::{Mask, Tensor};

use super::config::{FIRST_POSITION, Stack};
use super::weights::{ENCODER, WORDS};
use super::{Florence2, norm};
use crate::text::encoder::look_up;
use crate::{Error, Result};

/// What the encoder makes of a picture's tokens and the words of a prompt after them.
pub(super) fn encode(model: &Florence2, session: &Session, features: &Tensor, ids: &[u32]) -> Result<Tensor> {
    let stack = &model.config.encoder;
    let lease = session.lease(model.words_block())?;
    let words = embed(&lease, &[ids], model.config.vocabulary)?;
    let tokens = Tensor::concat(&[&lease.bring(features)?, &words], 1)?;
    let mut x = place(&lease, ENCODER, &tokens, 0, stack)?;
    drop(lease);
    for layer in 0..stack.layers {
        let lease = session.lease(model.words_block() + 1 + layer)?;
        let name = |module: &str| format!("language_model.{ENCODER}.layers.{layer}.{module}");
        x = lease.bring(&x)?;
        let attention = name("self_attn");
        let query = heads_of(&lease, &attention, "q_proj", &x, stack.heads)?;
        let key = heads_of(&lease, &attention, "k_proj", &x, stack.heads)?;
        let value = heads_of(&lease, &attention, "v_proj", &x, stack.heads)?;
        let attended = attend(&lease, &attention, &query, (&key, &value))?;
        x = norm(&lease, &name("self_attn_layer_norm"), &x.add(&attended)?)?;
        x = feed_forward(&lease, &name(""), &x)?;
    }
    Ok(x)
}

/// Rows of the table of words for texts of one length, `[texts, tokens, width]`.
pub(super) fn embed(lease: &Lease<'_>, texts: &[&[u32]], vocabulary: usize) -> Result<Tensor> {
    let ids: Vec<u32> = texts.iter().copied().flatten().copied().collect();
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocabulary) {
        return Err(Error::Input {
            what: "a token",
            expected: format!("below {vocabulary}, as many as the model's table has"),
            got: id.to_string(),
        });
    }
    let ids: Vec<i32> = ids.into_iter().map(|id| id as i32).collect();
    let ids = lease.lane().ids([texts.len(), ids.len() / texts.len().max(1)], &ids)?;
    look_up(lease, &lease.weight(WORDS)?, &ids)
}

/// Tokens `[texts, tokens, width]` with their places in the text, from `start` on, normalised.
pub(super) fn place(
    lease: &Lease<'_>,
    half: &str,
    tokens: &Tensor,
    start: usize,
    stack: &Stack,
) -> Result<Tensor> {
    let len = tokens.dim(1);
    if start + len > stack.positions {
        return Err(Error::Input {
            what: "the text",
            expected: format!("at most {} tokens with those of the picture", stack.positions),
            got: (start + len).to_string(),
        });
    }
    let places: Vec<i32> = (start..start + len).map(|at| (at + FIRST_POSITION) as i32).collect();
    let table = lease.weight(&format!("language_model.{half}.embed_positions.weight"))?;
    let places = look_up(lease, &table, &lease.lane().ids([1, len], &places)?)?;
    norm(lease, &format!("language_model.{half}.layernorm_embedding"), &tokens.add(&places)?)
}

/// Queries, keys or values, `[texts, tokens, heads, size]`.
pub(super) fn heads_of(
    lease: &Lease<'_>,
    attention: &str,
    part: &str,
    x: &Tensor,
    heads: usize,
) -> Result<Tensor> {
    let y = lease.linear(&format!("{attention}.{part}"), x)?;
    Ok(y.reshape([x.dim(0), x.dim(1), heads, x.dim(2) / heads])?)
}

/// Attention of queries over keys and values, all of which they see.
pub(super) fn attend(
    lease: &Lease<'_>,
    attention: &str,
    query: &Tensor,
    (key, value): (&Tensor, &Tensor),
) -> Result<Tensor> {
    let [texts, len, heads, size] = [query.dim(0), query.dim(1), query.dim(2), query.dim(3)];
    let attended = query.attention(key, value, &Mask::None, 1.0 / (size as f32).sqrt())?;
    Ok(lease.linear(&format!("{attention}.out_proj"), &attended.reshape([texts, len, heads * size])?)?)
}

/// The feed-forward layers of the layer whose modules' names begin so.
pub(super) fn feed_forward(lease: &Lease<'_>, layer: &str, x: &Tensor) -> Result<Tensor> {
    let inner = lease.linear_then(&format!("{layer}fc1"), x, Some(Activation::Gelu))?;
    let change = lease.linear(&format!("{layer}fc2"), &inner)?;
    norm(lease, &format!("{layer}final_layer_norm"), &x.add(&change)?)
}
