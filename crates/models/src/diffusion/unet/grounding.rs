//! What is to be where in a picture (gligen/GLIGEN, `attention.py` and `text_grounding_net.py`): texts with their places
//! become tokens, and in every transformer of a UNet the picture's tokens look at them, too, behind their look at each other.

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Activation, Lane, Mask, Tensor};

use super::attention::NORM_EPS;
use super::config::Heads;
use crate::claims::Claims;
use crate::conditioning::{Grounding, PlacedText};
use crate::detect::Part;
use crate::diffusion::model_patches::{
    PatchGiven, PatchNetwork, PatchPass, PatchPicture, PatchPoint, PatchRun, Seen,
};
use crate::{Error, Module, Result};

/// Texts that a network is told at once; those that are not there have tokens of their own.
const TEXTS: usize = 30;
/// Waves of a number of a place, the first of which turn slowest.
const WAVES: usize = 8;
/// How much faster the waves turn from the first to one behind the last.
const FASTER: f64 = 100.0;
/// Values of a place: a sine and a cosine of each wave of its four numbers.
const PLACE: usize = 2 * WAVES * 4;
/// Values of a token inside of the layers that make it.
const INNER: usize = 512;
/// Blocks of each part of a UNet; there are twelve at most in released models.
const MOST_BLOCKS: usize = 20;

/// A network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub(in crate::diffusion) struct GroundingNetwork {
    prefix: String,
    name: &'static str,
    grounds: &'static [&'static str],
    heads: Heads,
    /// Values of a text and of a token.
    text: usize,
    token: usize,
    fusers: Vec<Fuser>,
}

/// What stands in one transformer of the UNet.
#[derive(Clone, Debug)]
struct Fuser {
    name: String,
    channels: usize,
    /// How much its attention counts, and its layers behind it.
    attention: f32,
    layers: f32,
}

impl GroundingNetwork {
    /// Reads the sizes of a network for some families, whose heads are these.
    pub(in crate::diffusion) fn read(
        checkpoint: &Checkpoint,
        part: &Part,
        (name, grounds): (&'static str, &'static [&'static str]),
        heads: Heads,
    ) -> Result<GroundingNetwork> {
        let claims = Claims::new(checkpoint, &part.prefix, name);
        let [text] = claims.dims("position_net.null_positive_feature")?;
        let [token, _] = claims.dims("position_net.linears.4.weight")?;
        let mut fusers = Vec::new();
        for part in ["input_blocks", "middle_block", "output_blocks"] {
            for block in 0..MOST_BLOCKS {
                // In the middle the numbers are those of layers.
                let layer = if part == "middle_block" { String::new() } else { ".1".to_owned() };
                let name = format!("{part}.{block}{layer}.transformer_blocks.0.fuser");
                if claims.find(&format!("{name}.linear.weight")).is_some() {
                    fusers.push(Fuser::read(&claims, name)?);
                }
            }
        }
        Ok(GroundingNetwork { prefix: part.prefix.clone(), name, grounds, heads, text, token, fusers })
    }

    fn claims<'a>(&'a self, checkpoint: &'a Checkpoint) -> Claims<'a> {
        Claims::new(checkpoint, &self.prefix, self.name)
    }

    /// Texts with their places as tokens, `[1, texts, width]`; none if there are no texts.
    fn tokens(&self, lease: &Lease<'_>, grounding: &Grounding) -> Result<Option<Tensor>> {
        let texts = &grounding.texts;
        if texts.is_empty() {
            return Ok(None);
        }
        if texts.len() > TEXTS {
            return Err(Error::Input {
                what: "texts with places",
                expected: format!("at most {TEXTS}"),
                got: texts.len().to_string(),
            });
        }
        let lane = lease.lane();
        let mut values = Vec::with_capacity(texts.len() * (self.text + PLACE));
        for PlacedText { text, place } in texts {
            if text.shape.last() != Some(&self.text) || text.values.len() != self.text {
                return Err(Error::Input {
                    what: "a text with a place",
                    expected: format!(
                        "one vector of {} values, as the text encoder of the model gives",
                        self.text
                    ),
                    got: format!("of shape {:?}", text.shape),
                });
            }
            values.extend_from_slice(&text.values);
            values.extend(place_waves(*place, grounding.size));
        }
        let given = lane.tensor([1, texts.len(), self.text + PLACE], &values)?;
        let nothing = |name: &str| -> Result<Tensor> {
            let own = lane.unpack(&lease.weight(&format!("position_net.{name}"))?)?;
            Ok(own.reshape([1, 1, own.shape().count()])?)
        };
        let absent =
            Tensor::concat(&[&nothing("null_positive_feature")?, &nothing("null_position_feature")?], 2)?;
        let rest = TEXTS - texts.len();
        let all = match rest {
            0 => given,
            _ => {
                let absent = absent.broadcast([1, rest, self.text + PLACE])?.contiguous()?;
                Tensor::concat(&[&given, &absent], 1)?
            }
        };
        let inner = lease.linear_then("position_net.linears.0", &all, Some(Activation::Silu))?;
        let inner = lease.linear_then("position_net.linears.2", &inner, Some(Activation::Silu))?;
        Ok(Some(lease.linear("position_net.linears.4", &inner)?))
    }
}

/// The waves of a place's corners, as shares of a latent of this size: all sines of a wave, then all of its cosines.
fn place_waves([height, width, top, left]: [usize; 4], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let share = |at: usize, of: usize| (at as f64 / of.max(1) as f64) as f32;
    let corners =
        [share(left, columns), share(top, rows), share(left + width, columns), share(top + height, rows)];
    let wave = |i: usize| FASTER.powf(i as f64 / WAVES as f64) as f32;
    let angles = |i: usize| corners.map(|corner| wave(i) * corner);
    (0..WAVES).flat_map(|i| angles(i).map(f32::sin).into_iter().chain(angles(i).map(f32::cos))).collect()
}

impl Fuser {
    fn read(claims: &Claims<'_>, name: String) -> Result<Fuser> {
        let [channels, _] = claims.dims(&format!("{name}.linear.weight"))?;
        let amount = |part: &str| {
            let tensor = format!("{name}.{part}");
            let value = claims.values(&tensor).and_then(|values| values.first().copied());
            value.map(f32::tanh).ok_or_else(|| claims.misfit(&tensor, "one number".into()))
        };
        Ok(Fuser { attention: amount("alpha_attn")?, layers: amount("alpha_dense")?, channels, name })
    }

    fn weights(&self, claims: &Claims<'_>, token: usize) -> Result<Vec<WeightSpec>> {
        let Fuser { name, channels, .. } = self;
        let channels = *channels;
        let layer = |part: &str, shape: &[usize]| claims.layer(&format!("{name}.{part}"), shape);
        let mut weights = layer("linear", &[channels, token])?;
        for part in ["to_q", "to_k", "to_v", "to_out.0"] {
            weights.extend(layer(&format!("attn.{part}"), &[channels, channels])?);
        }
        weights.extend(layer("norm1", &[channels])?);
        weights.extend(layer("norm2", &[channels])?);
        weights.extend(layer("ff.net.0.proj", &[8 * channels, channels])?);
        weights.extend(layer("ff.net.2", &[channels, 4 * channels])?);
        Ok(weights)
    }

    /// The tokens of a picture `[items, tokens, channels]` with what they make of the texts' tokens.
    fn fuse(&self, lease: &Lease<'_>, heads: Heads, x: &Tensor, texts: &Tensor) -> Result<Tensor> {
        let items = x.dim(0);
        let layer = |part: &str| format!("{}.{part}", self.name);
        let normed = |part: &str, x: &Tensor| -> Result<Tensor> {
            let (weight, bias) = (
                lease.weight(&layer(&format!("{part}.weight")))?,
                lease.find(&layer(&format!("{part}.bias")))?,
            );
            Ok(x.layer_norm(Some(&weight), bias.as_ref(), NORM_EPS)?)
        };
        let texts = lease.linear(&layer("linear"), &lease.bring(texts)?)?;
        let texts = texts.broadcast([items, texts.dim(1), texts.dim(2)])?.contiguous()?;
        let both = normed("norm1", &Tensor::concat(&[x, &texts], 1)?)?;
        let own = both.slice(1, 0, x.dim(1))?.contiguous()?;
        let (count, size) = heads.of(self.channels);
        let project = |part: &str, from: &Tensor| -> Result<Tensor> {
            let y = lease.linear(&layer(&format!("attn.{part}")), from)?;
            Ok(y.reshape([items, from.dim(1), count, size])?)
        };
        let (q, k, v) = (project("to_q", &own)?, project("to_k", &both)?, project("to_v", &both)?);
        let attended = q.attention(&k, &v, &Mask::None, 1.0 / (size as f32).sqrt())?;
        let out = lease.linear(&layer("attn.to_out.0"), &attended.reshape(*x.shape())?)?;
        let x = x.add(&out.affine(self.attention, 0.0)?)?;
        let halves = lease.linear(&layer("ff.net.0.proj"), &normed("norm2", &x)?)?.chunk(2, 2)?;
        let inner = halves[1].gate(Activation::Gelu, &halves[0])?;
        Ok(x.add(&lease.linear(&layer("ff.net.2"), &inner)?.affine(self.layers, 0.0)?)?)
    }
}

impl Module for GroundingNetwork {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = self.claims(checkpoint);
        let layer = |number: usize, shape: [usize; 2]| {
            claims.layer(&format!("position_net.linears.{number}"), &shape)
        };
        let mut entrance = vec![
            claims.weight("position_net.null_positive_feature", &[self.text])?,
            claims.weight("position_net.null_position_feature", &[PLACE])?,
        ];
        entrance.extend(layer(0, [INNER, self.text + PLACE])?);
        entrance.extend(layer(2, [INNER, INNER])?);
        entrance.extend(layer(4, [self.token, INNER])?);
        let mut builder = Manifest::builder(claims.file(), self.name).block("in", true, entrance);
        for fuser in &self.fusers {
            builder = builder.block(fuser.name.clone(), false, fuser.weights(&claims, self.token)?);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::F16, DType::BF16, DType::F32]
    }
}

impl PatchNetwork for GroundingNetwork {
    fn patches(&self) -> &'static [&'static str] {
        self.grounds
    }

    fn picture(&self) -> Option<PatchPicture> {
        None
    }

    fn text_width(&self) -> Option<usize> {
        Some(self.text)
    }

    fn points(&self) -> Vec<PatchPoint> {
        (0..self.fusers.len()).map(PatchPoint::Block).collect()
    }

    /// Channels double where sides are halved, but for the smallest picture, which counts as larger than it is here.
    fn blank(&self, lane: &Lane, [batch, height, width]: [usize; 3], point: PatchPoint) -> Result<Seen> {
        let channels = match point {
            PatchPoint::Block(index) => self.fusers.get(index).map_or(0, |fuser| fuser.channels),
            PatchPoint::Refiner(_) => 0,
        };
        let fewest = self.fusers.iter().map(|fuser| fuser.channels).min().unwrap_or(1);
        let smaller = (channels / fewest.max(1)).max(1);
        let tokens = height.div_ceil(smaller) * width.div_ceil(smaller);
        Ok(Seen::tokens([height, width], lane.empty_as(lane.dtype(), [batch, tokens, channels])?))
    }

    fn start<'a>(&'a self, session: &'a Session, given: &PatchGiven<'_>) -> Result<Box<dyn PatchRun + 'a>> {
        let lease = session.lease(0)?;
        let tokens = |grounding: &Grounding| self.tokens(&lease, grounding);
        let tokens = given.grounded.iter().map(tokens).collect::<Result<_>>()?;
        Ok(Box::new(Run { network: self, session, tokens }))
    }
}

/// A network with what it is told for each conditioning of a run.
struct Run<'a> {
    network: &'a GroundingNetwork,
    session: &'a Session,
    tokens: Vec<Option<Tensor>>,
}

impl PatchRun for Run<'_> {
    fn pass(&self) -> Box<dyn PatchPass + '_> {
        Box::new(Pass(self))
    }
}

/// One pass: nothing goes on from block to block.
struct Pass<'a>(&'a Run<'a>);

impl PatchPass for Pass<'_> {
    fn behind(&mut self, point: PatchPoint, seen: &[Seen]) -> Result<()> {
        let PatchPoint::Block(index) = point else { return Ok(()) };
        let Run { network, session, tokens } = self.0;
        let Some(fuser) = network.fusers.get(index) else { return Ok(()) };
        let told = |cond: &usize| tokens.get(*cond).and_then(Option::as_ref);
        if !seen.iter().flat_map(|seen| &seen.conds).any(|cond| told(cond).is_some()) {
            return Ok(());
        }
        let lease = session.lease(1 + index)?;
        for seen in seen {
            if seen.image.dim(2) != fuser.channels {
                return Err(Error::Input {
                    what: "a network for texts with places",
                    expected: format!("for a model with {} channels at {}", fuser.channels, fuser.name),
                    got: format!("one with {}", seen.image.dim(2)),
                });
            }
            // Each evaluation by itself, so that it gives the same bits in whatever company.
            let items = seen.image.dim(0) / seen.conds.len().max(1);
            for (place, cond) in seen.conds.iter().enumerate() {
                let Some(texts) = told(cond) else { continue };
                let own = seen.image.slice(0, place * items, items)?;
                let fused = fuser.fuse(&lease, network.heads, &lease.bring(&own)?, texts)?;
                fused.to_lane(own.lane())?.copy_into(&own)?;
            }
        }
        Ok(())
    }
}
