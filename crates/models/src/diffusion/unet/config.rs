//! The sizes of a UNet, read from the names and shapes of its tensors: which layers there are, in order of use.

use crate::claims::Claims;
use crate::{Error, Result};

/// The sizes of a UNet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Channels of what goes in: the latent's, and those of what stands beside it.
    pub in_channels: usize,
    /// Channels of what comes out.
    pub out_channels: usize,
    /// Channels of the first layer, which times have as many waves as.
    pub channels: usize,
    /// Values of a time's embedding.
    pub time_width: usize,
    /// Values per token of the text.
    pub context_width: usize,
    /// Values of the vector that is embedded beside the time, of models that take one.
    pub vector_width: Option<usize>,
    /// How channels are shared out among heads.
    pub heads: Heads,
    /// Whether each layer over pictures has one over the frames of a video behind it.
    pub has_frames: bool,
    /// The layers between the first and the last convolution, in order of use.
    pub units: Vec<Unit>,
}

/// How channels are shared out among the heads of attention, which shapes do not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heads {
    /// So many heads at every level.
    Count(usize),
    /// Heads of so many channels.
    Size(usize),
}

impl Heads {
    /// Heads and channels of each.
    pub(super) fn of(self, channels: usize) -> (usize, usize) {
        match self {
            Heads::Count(count) => (count, channels / count),
            Heads::Size(size) => (channels / size, size),
        }
    }
}

/// A part of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// On the way in: what comes out of a block is kept for the way out.
    Input,
    /// In the middle.
    Middle,
    /// On the way out: a block gets what its counterpart kept.
    Output,
}

/// A block of the network, by the numbers in its tensors' names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The part.
    pub side: Side,
    /// The number of the block in it.
    pub block: usize,
}

/// One layer, or one block of a layer's transformer: what is placed and streamed as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The block that it is in.
    pub place: Place,
    /// What its tensors' names begin with: `input_blocks.1.0`.
    pub name: String,
    /// What it is.
    pub layer: Layer,
    /// Whether its block begins with it.
    pub opens: bool,
    /// Whether its block ends with it.
    pub closes: bool,
}

impl Unit {
    /// Channels that come out of it.
    pub(super) fn channels(&self) -> usize {
        match self.layer {
            Layer::Residual { to, .. } => to,
            Layer::Transformer { channels, .. } | Layer::Down { channels } | Layer::Up { channels } => {
                channels
            }
        }
    }
}

/// What a unit is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// Two convolutions beside which the picture goes on.
    Residual {
        /// Channels that go in.
        from: usize,
        /// Channels that come out.
        to: usize,
    },
    /// One block of a transformer over the picture's values.
    Transformer {
        /// Channels.
        channels: usize,
        /// Its number in the layer.
        index: usize,
        /// Blocks of the layer.
        depth: usize,
        /// Whether the layer's projections are stored as convolutions.
        convolved: bool,
    },
    /// Half the size.
    Down {
        /// Channels.
        channels: usize,
    },
    /// The size of what comes from the way in next.
    Up {
        /// Channels.
        channels: usize,
    },
}

/// Blocks on one way; there are twelve at most in released models.
const MOST_BLOCKS: usize = 64;

impl Config {
    pub(super) fn read(claims: &Claims<'_>, heads: Heads) -> Result<Config> {
        let [out_channels, _, _, _] = claims.dims("out.2.weight")?;
        Ok(Config { out_channels, ..Config::of(claims, heads, true)? })
    }

    /// The sizes of a network that has the way in and the middle alone, whose result counts as having the channels of what
    /// goes in.
    pub(super) fn without_end(claims: &Claims<'_>, heads: Heads) -> Result<Config> {
        Config::of(claims, heads, false)
    }

    fn of(claims: &Claims<'_>, heads: Heads, has_end: bool) -> Result<Config> {
        let [channels, in_channels, _, _] = claims.dims("input_blocks.0.0.weight")?;
        let [time_width, _] = claims.dims("time_embed.0.weight")?;
        let vector_width = match claims.find("label_emb.0.0.weight") {
            Some(_) => {
                let [_, width] = claims.dims("label_emb.0.0.weight")?;
                Some(width)
            }
            None => None,
        };
        let mut reading =
            Reading { claims, heads, units: Vec::new(), channels, kept: vec![channels], context: None };
        reading.way_in()?;
        reading.middle()?;
        if has_end {
            reading.way_out()?;
        }
        let Reading { units, context, .. } = reading;
        Ok(Config {
            in_channels,
            out_channels: in_channels,
            channels,
            time_width,
            context_width: context.unwrap_or(0),
            vector_width,
            heads,
            has_frames: claims.find("input_blocks.1.0.time_stack.in_layers.0.weight").is_some(),
            units,
        })
    }

    /// The same without the way out.
    pub(super) fn cut_short(&self) -> Config {
        let units = self.units.iter().filter(|unit| unit.place.side != Side::Output);
        Config { units: units.cloned().collect(), ..self.clone() }
    }

    /// The blocks, in order of use.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        let first = Place { side: Side::Input, block: 0 };
        std::iter::once(first).chain(self.units.iter().filter(|unit| unit.closes).map(|unit| unit.place))
    }

    /// How often the picture is halved.
    pub(super) fn halvings(&self) -> usize {
        self.units.iter().filter(|unit| matches!(unit.layer, Layer::Down { .. })).count()
    }
}

/// The network as far as it was read.
struct Reading<'a> {
    claims: &'a Claims<'a>,
    heads: Heads,
    units: Vec<Unit>,
    /// Channels at this point.
    channels: usize,
    /// Channels of what the way in keeps.
    kept: Vec<usize>,
    context: Option<usize>,
}

impl Reading<'_> {
    /// Block 0 is the first convolution.
    fn way_in(&mut self) -> Result<()> {
        for block in 1..MOST_BLOCKS {
            let place = Place { side: Side::Input, block };
            let name = format!("input_blocks.{block}");
            let before = self.units.len();
            if self.has(&format!("{name}.0.op.weight")) {
                self.push(place, format!("{name}.0"), Layer::Down { channels: self.channels });
            } else if self.has(&format!("{name}.0.in_layers.0.weight")) {
                self.residual(place, format!("{name}.0"))?;
                self.attention(place, &format!("{name}.1"))?;
            } else {
                return Ok(());
            }
            self.ends(before);
            self.kept.push(self.channels);
        }
        Ok(())
    }

    fn middle(&mut self) -> Result<()> {
        let place = Place { side: Side::Middle, block: 0 };
        let before = self.units.len();
        self.residual(place, "middle_block.0".to_owned())?;
        self.attention(place, "middle_block.1")?;
        if self.has("middle_block.2.in_layers.0.weight") {
            self.residual(place, "middle_block.2".to_owned())?;
        }
        self.ends(before);
        Ok(())
    }

    fn way_out(&mut self) -> Result<()> {
        for block in 0..MOST_BLOCKS {
            let place = Place { side: Side::Output, block };
            let name = format!("output_blocks.{block}");
            let before = self.units.len();
            if !self.has(&format!("{name}.0.in_layers.0.weight")) {
                return Ok(());
            }
            let first = format!("{name}.0.in_layers.0.weight");
            let Some(kept) = self.kept.pop() else {
                let got = format!("{first} is there");
                let expected = "as many blocks on the way out as on the way in".into();
                return Err(Error::Input { what: "the UNet", expected, got });
            };
            self.channels += kept;
            self.residual(place, format!("{name}.0"))?;
            let next = if self.attention(place, &format!("{name}.1"))? { 2 } else { 1 };
            if self.has(&format!("{name}.{next}.conv.weight")) {
                self.push(place, format!("{name}.{next}"), Layer::Up { channels: self.channels });
            }
            self.ends(before);
        }
        Ok(())
    }

    fn residual(&mut self, place: Place, name: String) -> Result<()> {
        let [to, _, _, _] = self.claims.dims(&format!("{name}.in_layers.2.weight"))?;
        self.push(place, name, Layer::Residual { from: self.channels, to });
        self.channels = to;
        Ok(())
    }

    /// The transformer of a block; whether it has one.
    fn attention(&mut self, place: Place, name: &str) -> Result<bool> {
        let Some(projection) = self.claims.find(&format!("{name}.proj_in.weight")) else { return Ok(false) };
        let (channels, (heads, size)) = (self.channels, self.heads.of(self.channels));
        if heads == 0 || heads * size != channels {
            let expected = format!("channels that {:?} can be made of", self.heads);
            return Err(self.claims.wrong_shape(projection, expected));
        }
        let convolved = projection.shape().rank() == 4;
        let depth = self.claims.count(|i| format!("{name}.transformer_blocks.{i}.attn1.to_q.weight"));
        if depth == 0 {
            // Says what is missing.
            self.claims.dims::<2>(&format!("{name}.transformer_blocks.0.attn1.to_q.weight"))?;
        }
        if self.context.is_none() {
            let [_, width] = self.claims.dims(&format!("{name}.transformer_blocks.0.attn2.to_k.weight"))?;
            self.context = Some(width);
        }
        for index in 0..depth {
            self.push(place, name.to_owned(), Layer::Transformer { channels, index, depth, convolved });
        }
        Ok(true)
    }

    fn push(&mut self, place: Place, name: String, layer: Layer) {
        self.units.push(Unit { place, name, layer, opens: false, closes: false });
    }

    /// The units from the first of a block on are all of it.
    fn ends(&mut self, first: usize) {
        if let [opening, ..] = &mut self.units[first..] {
            opening.opens = true;
        }
        if let [.., closing] = &mut self.units[first..] {
            closing.closes = true;
        }
    }

    fn has(&self, name: &str) -> bool {
        self.claims.find(name).is_some()
    }
}
