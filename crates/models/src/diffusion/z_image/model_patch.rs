//! Control of Z-Image as a patch of the model (alibaba-pai, `Z-Image-Turbo-Fun-Controlnet-Union`): a picture goes through
//! blocks of the model's kind beside the model, and what they give is added to the image's tokens behind some of its blocks.

use std::borrow::Cow;
use std::cell::RefCell;
use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session, WeightSpec};
use tensor::{Lane, Tensor};

use super::blocks::Block;
use super::config::{Config, Generation};
use super::{FAMILY, weights};
use crate::claims::Claims;
use crate::conditioning::Array;
use crate::detect::{Layout, Part, Sign};
use crate::diffusion::latents::FLUX_KL;
use crate::diffusion::model_patches::{
    BesidePicture, KnownPictures, PatchFamily, PatchGiven, PatchNetwork, PatchPass, PatchPicture, PatchPoint,
    PatchRun, Seen,
};
use crate::diffusion::patches::{Grid, PATCH as SIDE, PatchOrder, patchify_as};
use crate::diffusion::positions::{Along, Positions};
use crate::{Error, Module, Probe, Result};

/// Blocks of the released models, over which the results of a network are spread.
const MODEL_BLOCKS: usize = 30;
/// The layer that pictures go through first.
const ENTRANCE: &str = "control_all_x_embedder.2-1";

/// Control of Z-Image.
pub const PATCH: PatchFamily = PatchFamily {
    name: "Fun ControlNet for Z-Image",
    signs: &[Sign {
        tensor: "control_all_x_embedder.2-1.weight",
        layout: Layout::Diffusers,
        name: |_| Some(Cow::Borrowed("Fun ControlNet for Z-Image")),
    }],
    read: |checkpoint, part| Ok(Box::new(FunControl::read(checkpoint, part)?)),
};

/// How the refiners of a network work with those of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refining {
    /// The picture goes through them before all else.
    Alone,
    /// Each adds to the model's image behind the model's own.
    Beside,
    /// As the one before, but they were not trained: the other blocks of the network stand in for them.
    ByLayers,
}

/// The network: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
struct FunControl {
    prefix: String,
    /// The sizes of its blocks, which are those of a model.
    config: Config,
    beside: BesidePicture,
    refiners: usize,
    layers: usize,
    refining: Refining,
}

/// What a file calls the tensors.
fn file_names(name: &str) -> Vec<String> {
    let renamed = |from: &str, to: &str| name.contains(from).then(|| name.replace(from, to));
    if name.contains(".attention.qkv.") {
        return ["to_q", "to_k", "to_v"].map(|part| name.replace("qkv", part)).to_vec();
    }
    let other = renamed(".attention.out.", ".attention.to_out.0.")
        .or_else(|| renamed(".attention.q_norm.", ".attention.norm_q."))
        .or_else(|| renamed(".attention.k_norm.", ".attention.norm_k."));
    vec![other.unwrap_or_else(|| name.to_owned())]
}

fn claims<'a>(checkpoint: &'a Checkpoint, prefix: &'a str) -> Claims<'a> {
    Claims::new(checkpoint, prefix, PATCH.name).named_by(file_names)
}

impl FunControl {
    fn read(checkpoint: &Checkpoint, part: &Part) -> Result<FunControl> {
        let claims = claims(checkpoint, &part.prefix);
        let [hidden, columns] = claims.dims("control_all_x_embedder.2-1.weight")?;
        let channels = columns / (SIDE * SIDE);
        let whole = channels * SIDE * SIDE == columns;
        let Some(beside) = PatchPicture::beside(&FLUX_KL, channels).filter(|_| whole) else {
            let expected = format!("[{hidden}, {} or {}]", 16 * SIDE * SIDE, 33 * SIDE * SIDE);
            return Err(claims.misfit("control_all_x_embedder.2-1.weight", expected));
        };
        let config = block_sizes(&claims, hidden)?;
        let count = |stack: &str| claims.count(|i| format!("{stack}.{i}.attention_norm1.weight"));
        let refining = match claims.values("control_noise_refiner.0.after_proj.weight") {
            _ if claims.find("control_noise_refiner.0.after_proj.weight").is_none() => Refining::Alone,
            Some(values) if values.iter().all(|value| *value == 0.0) => Refining::ByLayers,
            _ => Refining::Beside,
        };
        Ok(FunControl {
            prefix: part.prefix.clone(),
            config,
            beside,
            refiners: count("control_noise_refiner"),
            layers: count("control_layers"),
            refining,
        })
    }

    fn looks_at(&self) -> PatchPicture {
        PatchPicture { latent: &FLUX_KL, beside: self.beside }
    }

    /// How many blocks of the model there are for each of the network's.
    fn each(&self) -> usize {
        let shares = MODEL_BLOCKS as f64 / self.layers.max(1) as f64;
        (shares.round_ties_even() as usize).max(1)
    }

    /// The weights of a block, with the layers before and behind it that it may have.
    fn block(&self, claims: &Claims<'_>, name: &str) -> Result<Vec<WeightSpec>> {
        let hidden = self.config.hidden;
        let mut weights = weights::block(claims, &self.config, name, true)?;
        for layer in ["before_proj", "after_proj"] {
            let layer = format!("{name}.{layer}");
            if claims.find(&format!("{layer}.weight")).is_some() {
                weights.extend(claims.layer(&layer, &[hidden, hidden])?);
            }
        }
        Ok(weights)
    }
}

/// The sizes of blocks, as a model of them would have.
fn block_sizes(claims: &Claims<'_>, hidden: usize) -> Result<Config> {
    let [head_size] = claims.dims("control_layers.0.attention.q_norm.weight")?;
    let [_, queries] = claims.dims("control_layers.0.attention.out.weight")?;
    let [mlp, _] = claims.dims("control_layers.0.feed_forward.w1.weight")?;
    let [_, time_width] = claims.dims("control_layers.0.adaLN_modulation.0.weight")?;
    if head_size % 8 != 0 || queries % head_size != 0 {
        let expected = format!("a divisor of {queries} and a multiple of eight");
        return Err(claims.misfit("control_layers.0.attention.q_norm.weight", expected));
    }
    Ok(Config {
        generation: Generation::ZImage,
        channels: FLUX_KL.channels,
        hidden,
        heads: queries / head_size,
        groups: queries / head_size,
        head_size,
        mlp,
        context_width: 0,
        time_width,
        time_inner: 0,
        context_refiners: 0,
        noise_refiners: 0,
        layers: 0,
        is_filled: false,
        axes: [head_size / 4, (head_size - head_size / 4) / 2, (head_size - head_size / 4) / 2],
        theta: 256.0,
    })
}

impl Module for FunControl {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = claims(checkpoint, &self.prefix);
        let channels = self.looks_at().channels();
        let entrance = claims.layer(ENTRANCE, &[self.config.hidden, channels * SIDE * SIDE])?;
        let mut builder = Manifest::builder(claims.file(), PATCH.name).block("in", true, entrance);
        let refiners = (0..self.refiners).map(|index| format!("control_noise_refiner.{index}"));
        let layers = (0..self.layers).map(|index| format!("control_layers.{index}"));
        for name in refiners.chain(layers) {
            let weights = self.block(&claims, &name)?;
            builder = builder.block(name, false, weights);
        }
        Ok(builder.finish()?)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

impl PatchNetwork for FunControl {
    fn patches(&self) -> &'static [&'static str] {
        &[FAMILY.name]
    }

    fn picture(&self) -> Option<PatchPicture> {
        Some(self.looks_at())
    }

    fn points(&self) -> Vec<PatchPoint> {
        let refiners = (0..self.refiners).map(PatchPoint::Refiner);
        let layers = (0..self.layers).map(|layer| PatchPoint::Block(layer * self.each()));
        refiners.chain(layers).collect()
    }

    fn blank(&self, lane: &Lane, [batch, height, width]: [usize; 3], _: PatchPoint) -> Result<Seen> {
        let grid = Grid::of_size(height, width);
        let tokens = || lane.empty_as(lane.dtype(), [batch, grid.patches(), self.config.hidden]);
        let mut positions = Positions::new(&self.config.axes, self.config.theta);
        let along = [Along::At(1.0), Along::Rows(0.0), Along::Columns(0.0)];
        positions.push([1, grid.rows, grid.columns], &along);
        Ok(Seen {
            before: Some(tokens()?),
            time: Some(lane.empty_as(lane.dtype(), [1, self.config.time_width])?),
            places: Some((Arc::new(positions), 0)),
            ..Seen::tokens([height, width], tokens()?)
        })
    }

    fn start<'a>(&'a self, session: &'a Session, given: &PatchGiven<'_>) -> Result<Box<dyn PatchRun + 'a>> {
        let lease = session.lease(0)?;
        let layer = |picture: &Array, axes: [usize; 4]| -> Result<Tensor> {
            let latent = lease.lane().tensor(axes, &picture.values)?;
            Ok(lease.linear(ENTRANCE, &patchify_as(&latent, PatchOrder::ChannelsLast)?)?)
        };
        let pictures = KnownPictures::new(given.pictures, self.looks_at().channels(), layer)?;
        let strength = given.strength;
        Ok(Box::new(Run { network: self, session, pictures, strength, left: RefCell::default() }))
    }
}

/// A network with its pictures.
struct Run<'a> {
    network: &'a FunControl,
    session: &'a Session,
    pictures: KnownPictures,
    strength: f32,
    /// How far the last pass came. A model of as many blocks as the network was made for leaves nothing here; one of
    /// fewer ends before the network does, and the reference goes on from there.
    left: RefCell<Option<Progress>>,
}

/// How far pictures came through the blocks of a network.
struct Progress {
    /// The number of the last layer; below zero are the refiners, and what stands before them.
    reached: isize,
    /// The picture's tokens for each batch, `[batch, tokens, hidden]`.
    pictures: Vec<Tensor>,
}

impl PatchRun for Run<'_> {
    fn pass(&self) -> Box<dyn PatchPass + '_> {
        Box::new(Pass(self))
    }
}

/// One pass: the picture's tokens go on from block to block.
struct Pass<'a>(&'a Run<'a>);

impl PatchPass for Pass<'_> {
    fn behind(&mut self, point: PatchPoint, seen: &[Seen]) -> Result<()> {
        let run = self.0;
        let (index, before) = match point {
            PatchPoint::Refiner(index) => (index, -1 - run.network.refiners as isize),
            PatchPoint::Block(index) => (index, -1),
        };
        let (layers, each) = (run.network.layers, run.network.each());
        let left = run.left.take();
        if index > each * layers.saturating_sub(1) {
            return Ok(());
        }
        let wanted = (index / each) as isize;
        let usable = |left: &Progress| left.reached <= wanted && left.pictures.len() == seen.len();
        let mut progress = match left.filter(usable) {
            Some(progress) => progress,
            None => Progress { reached: before, pictures: run.enter(seen)? },
        };
        match point {
            PatchPoint::Refiner(index) => run.refine(index, &mut progress, seen)?,
            PatchPoint::Block(_) => {
                let is_place = index % each == 0;
                while progress.reached < wanted {
                    let layer = (progress.reached + 1).rem_euclid(layers as isize) as usize;
                    let given = run.through(Place::Layer(layer), &mut progress, seen)?;
                    progress.reached += 1;
                    if is_place && progress.reached == wanted {
                        run.add(&given, seen)?;
                    }
                }
                if is_place && wanted as usize + 1 == layers {
                    return Ok(());
                }
            }
        }
        run.left.replace(Some(progress));
        Ok(())
    }
}

/// A block of the network.
#[derive(Clone, Copy)]
enum Place {
    Refiner(usize),
    Layer(usize),
}

impl Run<'_> {
    /// Adds what a block gave to the model's image.
    fn add(&self, given: &[Tensor], seen: &[Seen]) -> Result<()> {
        seen.iter().zip(given).try_for_each(|(seen, given)| seen.add(given, self.strength))
    }

    /// The pictures before the first block.
    fn enter(&self, seen: &[Seen]) -> Result<Vec<Tensor>> {
        let Run { network, session, pictures, .. } = self;
        let spread = |seen: &Seen| -> Result<Tensor> {
            let picture = pictures.of(seen)?;
            Ok(picture.broadcast([seen.image.dim(0), picture.dim(1), picture.dim(2)])?.contiguous()?)
        };
        let mut pictures: Vec<Tensor> = seen.iter().map(spread).collect::<Result<_>>()?;
        if network.refining != Refining::Alone {
            return Ok(pictures);
        }
        for index in 0..network.refiners {
            let lease = session.lease(1 + index)?;
            let name = format!("control_noise_refiner.{index}");
            for (picture, seen) in pictures.iter_mut().zip(seen) {
                *picture = moved(&network.config, &lease, &name, (&lease.bring(picture)?, seen))?;
            }
        }
        Ok(pictures)
    }

    /// What happens behind one of the model's blocks over the image alone.
    fn refine(&self, index: usize, progress: &mut Progress, seen: &[Seen]) -> Result<()> {
        progress.reached += 1;
        let place = match self.network.refining {
            Refining::Alone => return Ok(()),
            Refining::Beside => Place::Refiner(index),
            Refining::ByLayers => Place::Layer(index),
        };
        let given = self.through(place, progress, seen)?;
        if self.network.refining == Refining::ByLayers && index > 0 {
            for layer in index + 1..self.network.layers {
                self.through(Place::Layer(layer), progress, seen)?;
            }
        }
        self.add(&given, seen)
    }

    /// The pictures through a block; what it gives to the model.
    fn through(&self, place: Place, progress: &mut Progress, seen: &[Seen]) -> Result<Vec<Tensor>> {
        let Run { network, session, .. } = self;
        let (name, block) = match place {
            Place::Refiner(index) => (format!("control_noise_refiner.{index}"), 1 + index),
            Place::Layer(index) => (format!("control_layers.{index}"), 1 + network.refiners + index),
        };
        let lease = session.lease(block)?;
        let is_first = matches!(place, Place::Refiner(0) | Place::Layer(0));
        let mut given = Vec::with_capacity(seen.len());
        for (picture, seen) in progress.pictures.iter_mut().zip(seen) {
            let mut tokens = lease.bring(picture)?;
            if is_first {
                let before = image_before(seen, tokens.dim(1))?;
                tokens =
                    lease.linear(&format!("{name}.before_proj"), &tokens)?.add(&lease.bring(&before)?)?;
            }
            *picture = moved(&network.config, &lease, &name, (&tokens, seen))?;
            given.push(lease.linear(&format!("{name}.after_proj"), picture)?);
        }
        Ok(given)
    }
}

/// The first tokens of the model's image before its block.
fn image_before(seen: &Seen, tokens: usize) -> Result<Tensor> {
    match &seen.before {
        Some(before) => Ok(before.slice(1, 0, tokens)?),
        None => missing("the image before a block"),
    }
}

/// A block of the model's kind over a picture's tokens, which stand where the image's do.
fn moved(config: &Config, lease: &Lease<'_>, name: &str, (tokens, seen): (&Tensor, &Seen)) -> Result<Tensor> {
    let (Some(time), Some((positions, first))) = (&seen.time, &seen.places) else {
        return missing("times and places");
    };
    let rotation = positions.on(lease.lane())?.slice(*first, tokens.dim(1))?;
    Block { config, lease, name }.moved(tokens, &lease.bring(time)?, &rotation, &mut Probe::none())
}

fn missing<T>(what: &str) -> Result<T> {
    Err(Error::Input {
        what: "a model patch",
        expected: format!("to be shown {what}"),
        got: "a model that shows none".into(),
    })
}
