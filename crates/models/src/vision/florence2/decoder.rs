//! The decoder: one token after the other, for several answers (beams) at once. Keys and values of what is written are
//! kept, and so are those of what the encoder gave, which are the same for every token.

use residency::{Lease, Session};
use tensor::{Lane, Tensor};

use super::Florence2;
use super::bart::{attend, embed, feed_forward, heads_of, place};
use super::norm;
use super::weights::{DECODER, RATING_BIAS, WORDS};
use crate::Result;

/// Tokens that a cache has room for at first; it doubles when it is full.
const ROOM: usize = 32;

/// Answers in writing.
pub struct Decoder<'a> {
    model: &'a Florence2,
    session: &'a Session,
    /// What the encoder gave, `[1, tokens, width]`.
    encoded: Tensor,
    layers: Vec<LayerCache>,
    /// Tokens that are written.
    len: usize,
    beams: usize,
}

/// What a layer keeps.
#[derive(Default)]
struct LayerCache {
    /// Keys and values of what the encoder gave, `[beams, tokens, heads, size]`.
    seen: Option<(Tensor, Tensor)>,
    /// Keys and values of what is written, `[beams, room, heads, size]`.
    written: Option<(Tensor, Tensor)>,
}

impl<'a> Decoder<'a> {
    /// Nothing written yet of `beams` answers to what the encoder gave.
    pub fn new(
        model: &'a Florence2,
        session: &'a Session,
        encoded: &Tensor,
        beams: usize,
    ) -> Result<Decoder<'a>> {
        let layers = (0..model.config.decoder.layers).map(|_| LayerCache::default()).collect();
        Ok(Decoder { model, session, encoded: encoded.clone(), layers, len: 0, beams })
    }

    /// The number of answers.
    pub fn beams(&self) -> usize {
        self.beams
    }

    /// Entries of the token table.
    pub fn vocabulary(&self) -> usize {
        self.model.config.vocabulary
    }

    /// Writes the next token of every answer, and rates all that can come after: one row of the vocabulary's size for
    /// each.
    pub fn step(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let (model, session) = (self.model, self.session);
        let stack = &model.config.decoder;
        let lease = session.lease(model.words_block())?;
        let texts: Vec<&[u32]> = tokens.chunks(1).collect();
        let words = embed(&lease, &texts, model.config.vocabulary)?;
        let mut x = place(&lease, DECODER, &words, self.len, stack)?;
        drop(lease);
        for layer in 0..stack.layers {
            let lease = session.lease(model.decoder_block() + layer)?;
            x = self.layer(&lease, layer, &lease.bring(&x)?)?;
        }
        self.len += 1;
        let lease = session.lease(model.words_block())?;
        let x = lease.bring(&x)?;
        let mut ratings = x.linear(&lease.weight(WORDS)?, None)?;
        if let Some(bias) = lease.find(RATING_BIAS)? {
            ratings = ratings.add(&lease.lane().unpack(&bias)?)?;
        }
        Ok(ratings.to_vec()?)
    }

    /// Goes on with these of the answers, by their numbers; some may go on in several ways, others not at all.
    pub fn reorder(&mut self, order: &[usize]) -> Result<()> {
        if order.iter().enumerate().all(|(place, from)| place == *from) {
            return Ok(());
        }
        let reordered = |tensor: &Tensor| -> Result<Tensor> {
            let rows = order.iter().map(|from| tensor.slice(0, *from, 1)).collect::<Result<Vec<_>, _>>()?;
            Ok(Tensor::concat(&rows.iter().collect::<Vec<_>>(), 0)?)
        };
        for cache in &mut self.layers {
            if let Some((keys, values)) = &cache.written {
                cache.written = Some((reordered(keys)?, reordered(values)?));
            }
        }
        Ok(())
    }

    fn layer(&mut self, lease: &Lease<'_>, number: usize, x: &Tensor) -> Result<Tensor> {
        let heads = self.model.config.decoder.heads;
        let name = |module: &str| format!("language_model.{DECODER}.layers.{number}.{module}");
        let attention = name("self_attn");
        let query = heads_of(lease, &attention, "q_proj", x, heads)?;
        let key = heads_of(lease, &attention, "k_proj", x, heads)?;
        let value = heads_of(lease, &attention, "v_proj", x, heads)?;
        let (keys, values) = self.layers[number].written(lease.lane(), self.len, (&key, &value))?;
        let attended = attend(lease, &attention, &query, (&keys, &values))?;
        let x = norm(lease, &name("self_attn_layer_norm"), &x.add(&attended)?)?;

        let attention = name("encoder_attn");
        let query = heads_of(lease, &attention, "q_proj", &x, heads)?;
        if self.layers[number].seen.is_none() {
            let encoded = lease.bring(&self.encoded)?;
            let shared = |part: &str| -> Result<Tensor> {
                let one = heads_of(lease, &attention, part, &encoded, heads)?;
                let shape = one.shape().with(0, self.beams);
                Ok(one.broadcast(shape)?.contiguous()?)
            };
            let seen = (shared("k_proj")?, shared("v_proj")?);
            self.layers[number].seen = Some(seen);
        }
        let Some((keys, values)) = &self.layers[number].seen else { return Ok(x) };
        let attended = attend(lease, &attention, &query, (keys, values))?;
        let x = norm(lease, &name("encoder_attn_layer_norm"), &x.add(&attended)?)?;
        feed_forward(lease, &name(""), &x)
    }
}

impl LayerCache {
    /// Keeps the keys and values of the token at a place, and gives all up to it.
    fn written(
        &mut self,
        lane: &Lane,
        at: usize,
        (key, value): (&Tensor, &Tensor),
    ) -> Result<(Tensor, Tensor)> {
        let room = self.written.as_ref().map_or(0, |(keys, _)| keys.dim(1));
        if at >= room {
            let shape = key.shape().with(1, (2 * room).max(ROOM));
            let (keys, values) = (lane.empty(shape)?, lane.empty(shape)?);
            if let Some((old_keys, old_values)) = &self.written {
                old_keys.copy_into(&keys.slice(1, 0, room)?)?;
                old_values.copy_into(&values.slice(1, 0, room)?)?;
            }
            self.written = Some((keys, values));
        }
        let (keys, values) = self.written.as_ref().expect("room was made for it above");
        key.copy_into(&keys.slice(1, at, 1)?)?;
        value.copy_into(&values.slice(1, at, 1)?)?;
        Ok((keys.slice(1, 0, at + 1)?, values.slice(1, 0, at + 1)?))
    }
}
