//! HunyuanVideo and its version 1.5: the blocks of FLUX over the tokens of a video, with a text that is refined by blocks of
//! its own. Variants take a picture beside the latent, in place of the first frame or behind the video; 1.5 reads letters and
//! features of a picture beside the text. Formulas and names are those of the authors' code (Tencent/HunyuanVideo,
//! `hyvideo/modules/models.py`, and Tencent-Hunyuan/HunyuanVideo-1.5).

mod config;
mod downloads;
mod family;
mod given;
mod names;
mod refiner;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{Latent, LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::batches::together;
use super::kept_heads::LastTokens;
use super::latents::{VIDEO_KL_16, VIDEO_KL_32};
use super::modulation::{Everywhere, Modulation, by_item, embed, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, wrong};
use super::patches::{Grid, PatchOrder, frames_together};
use super::positions::{Along, Positions};
use super::references::ReferencePlaces;
use super::streams::{NORM_EPS, StreamBlock};
use super::tokens::Tokens;
use super::video::{VideoGrid, patchify_video};
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun, Kept};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use given::Given;

pub use config::{Config, Letters};
pub use family::FAMILY;
pub(super) use family::{ReleasedVideo, is_later, tensors};

/// How far levels are shifted, unless a node says otherwise.
const SHIFT: f64 = 7.0;
/// Times that differ by less are the same.
const SAME_TIME: f32 = 1e-3;
/// The layers by which a time, a guidance or a pooled text becomes a vector of the model's width.
const LAYERS: [&str; 2] = ["in_layer", "out_layer"];

/// A HunyuanVideo model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct HunyuanVideo {
    config: Config,
    prefix: String,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    /// The text is the prompt alone until it is refined.
    tokens: Tokens,
    /// What joins the refined text in front.
    joining: Option<Tensor>,
    /// What is added to refined tokens of the text.
    kind: Option<Tensor>,
    /// What moves the refiner's blocks, after SiLU.
    refined_by: Everywhere,
    /// What moves all other blocks, after SiLU.
    vector: Everywhere,
    /// What moves the tokens of the first frame, if that has a time of its own.
    first_vector: Option<Everywhere>,
    /// Tokens of a frame.
    per_frame: usize,
    positions: Arc<Positions>,
}

/// One evaluation's activations before the first block.
struct Entered {
    image: Tensor,
    text: Tensor,
    joining: Option<Tensor>,
    refined_by: Tensor,
    vector: Tensor,
    first_vector: Option<Tensor>,
}

impl HunyuanVideo {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<HunyuanVideo> {
        let config = Config::read(&names::claims(checkpoint, &part.prefix))?;
        Ok(HunyuanVideo { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Whether it is of the generation before 1.5.
    fn is_first_generation(&self) -> bool {
        self.config.patch != 1
    }

    /// A latent's size in tokens.
    fn grid(&self, shape: &Shape) -> VideoGrid {
        let grid = VideoGrid::sized(shape);
        if self.is_first_generation() {
            return grid;
        }
        VideoGrid { rows: grid.height, columns: grid.width, ..grid }
    }

    /// A latent as tokens `[batch, tokens, channels · patch · patch]`, channel by channel.
    fn patches(&self, latent: &Tensor) -> Result<Tensor> {
        if self.is_first_generation() {
            return patchify_video(latent);
        }
        let (batch, channels) = (latent.dim(0), latent.dim(1));
        let tokens = self.grid(latent.shape()).tokens();
        Ok(latent.reshape([batch, channels, tokens])?.transpose(1, 2)?.contiguous()?)
    }

    /// Tokens back to a latent of this shape.
    fn unpatched(&self, tokens: &Tensor, latent: &Shape) -> Result<Tensor> {
        let (grid, batch) = (self.grid(latent), tokens.dim(0));
        if !self.is_first_generation() {
            let shape = [batch, tokens.dim(2), grid.frames, grid.height, grid.width];
            return Ok(tokens.transpose(1, 2)?.contiguous()?.reshape(shape)?);
        }
        let frames = tokens.reshape([batch * grid.frames, grid.per_frame(), tokens.dim(2)])?;
        let frames = Grid::of_frame(latent).unpatchify(&frames, PatchOrder::ChannelsFirst)?;
        frames_together(&frames, grid.frames)
    }

    /// What comes in of one evaluation.
    fn enter_one(
        &self,
        lease: &Lease<'_>,
        Member { latent, time, given, .. }: &Member<'_, Given>,
        probe: &mut Probe<'_>,
    ) -> Result<Entered> {
        let items = latent.dim(0);
        let mut latent = lease.bring(latent)?;
        if let Some(concat) = &given.concat {
            let concat = lease.bring(concat)?;
            if concat.shape() != &latent.shape().with(1, concat.dim(1)) {
                return wrong("what stands beside the latent", "of the latent's size".into(), &concat);
            }
            latent = Tensor::concat(&[&latent, &concat], 1)?;
        }
        let mut image = lease.linear("img_in.proj", &self.patches(&latent)?)?;
        probe.show(format_args!("img_in"), &image);
        if let Some(reference) = &given.reference {
            let reference = lease.linear("img_in.proj", &self.patches(&lease.bring(reference)?)?)?;
            image = Tensor::concat(&[&image, &for_items(&reference, items)?], 1)?;
        }
        let mut timed = |name: &str, time: f32| -> Result<Tensor> {
            embed(lease, (name, LAYERS), &time_embedding(lease.lane(), time)?, probe)
        };
        let (now, refined_by) = (timed("time_in", *time)?, timed("txt_in.t_embedder", *time)?);
        let now = match next_time(&given.times, *time) {
            None => now,
            Some(landing) => now.add(&timed("time_r_in", landing)?)?,
        };
        let first = given.first_time.map(|time| timed("time_in", time)).transpose()?;
        let with_vector = |time: Tensor| -> Result<Tensor> {
            match &given.vector {
                None => Ok(time),
                Some(vector) => Ok(time.add(&lease.bring(vector)?)?),
            }
        };
        let each = |x: &Tensor| for_items(&lease.bring(x)?, items);
        Ok(Entered {
            image,
            text: each(&given.text)?,
            joining: given.joining.as_ref().map(each).transpose()?,
            refined_by: refined_by.add(&lease.bring(&given.mean)?)?,
            vector: with_vector(now)?,
            first_vector: first.map(with_vector).transpose()?,
        })
    }

    /// How a block is moved, by a layer of its own; the tokens from `first` on are those of the first frame.
    fn changes<const N: usize>(
        &self,
        lease: &Lease<'_>,
        layer: &str,
        (state, items, first): (&mut State, usize, Option<usize>),
        parts: impl Fn(&Tensor) -> Result<[Modulation; N]>,
    ) -> Result<[Modulation; N]> {
        let change = by_item(&lease.linear(layer, &state.vector.on(lease)?)?, items)?;
        let all = parts(&change)?;
        let Some((first, vector)) = first.zip(state.first_vector.as_mut()) else { return Ok(all) };
        let change = by_item(&lease.linear(layer, &vector.on(lease)?)?, items)?;
        let mut others = parts(&change)?.into_iter();
        let tokens = first..first + state.per_frame;
        Ok(all.map(|change| match others.next() {
            Some(other) => change.but_for(tokens.clone(), other),
            None => change,
        }))
    }

    /// The text refined, with what joins it, as the blocks behind the refiner want it.
    fn joined_text(&self, lease: &Lease<'_>, state: State, probe: &mut Probe<'_>) -> Result<State> {
        let [image, text] = state.tokens.sides()?;
        probe.show(format_args!("txt_in"), &text);
        let kind = state.kind.as_ref().map(|kind| lease.bring(kind)).transpose()?;
        let text = given::of_kind(kind.as_ref(), text)?;
        let text = match &state.joining {
            None => text,
            Some(joining) => Tensor::concat(&[&lease.bring(joining)?, &text], 1)?,
        };
        Ok(State { tokens: Tokens::Apart { image, text }, joining: None, kind: None, ..state })
    }
}

impl Transformer for HunyuanVideo {
    type Given = Given;
    type State = State;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        Given::new(self, lease, (conditioned, scene), probe)
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 5 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, frames, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let vectors = given.vector.as_ref().map_or(1, |vector| vector.dim(0)).max(given.mean.dim(0));
        let tokens = self.grid(latent).tokens();
        Shapes::new(latent, tokens, given.text.dim(1))
            .with_joining(given.joining.as_ref().map_or(0, |joining| joining.dim(1)))
            .with_times(1 + usize::from(given.first_time.is_some()))
            .with_vectors(vectors)
            .with_references(
                given.reference.iter().map(|reference| *reference.shape()),
                ReferencePlaces::default(),
            )
    }

    /// The video counts its frames, rows and columns from zero; all of the text stands at zero. A picture to look at
    /// stands before the first frame, to the right of it.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let grid = self.grid(latent);
        let mut positions = Positions::new(&config::AXES, config::THETA);
        let joining = given.joining.as_ref().map_or(0, |joining| joining.dim(1));
        positions.push_text(joining + given.text.dim(1), &[Along::At(0.0); 3]);
        let along = [Along::Frames(0.0), Along::Rows(0.0), Along::Columns(0.0)];
        positions.push([grid.frames, grid.rows, grid.columns], &along);
        if let Some(reference) = &given.reference {
            let own = self.grid(reference.shape());
            let along = [Along::At(-1.0), Along::Rows(0.0), Along::Columns(grid.columns as f64)];
            positions.push([own.frames, own.rows, own.columns], &along);
        }
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, HunyuanVideo>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let entered: Vec<Entered> =
            batch.members().map(|member| self.enter_one(lease, member, probe)).collect::<Result<_>>()?;
        positions.show(lease.lane(), probe)?;
        let all = |part: fn(&Entered) -> &Tensor| together(&entered.iter().map(part).collect::<Vec<_>>(), 0);
        let some = |part: fn(&Entered) -> Option<&Tensor>| -> Result<Option<Tensor>> {
            let parts: Vec<&Tensor> = entered.iter().filter_map(part).collect();
            if parts.is_empty() { Ok(None) } else { together(&parts, 0).map(Some) }
        };
        let moving = |vector: Tensor| -> Result<Everywhere> {
            Ok(Everywhere::new(vector.activate(Activation::Silu)?))
        };
        let Member { latent, given, .. } = batch.first();
        Ok(State {
            tokens: Tokens::Apart { image: all(|one| &one.image)?, text: all(|one| &one.text)? },
            joining: some(|one| one.joining.as_ref())?,
            kind: given.kind.clone(),
            refined_by: moving(all(|one| &one.refined_by)?)?,
            vector: moving(all(|one| &one.vector)?)?,
            first_vector: some(|one| one.first_vector.as_ref())?.map(moving).transpose()?,
            per_frame: self.grid(latent.shape()).per_frame(),
            positions,
        })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        mut state: State,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let Some((group, index)) = self.config.kind_of(block) else {
            let [image, text] = state.tokens.sides()?;
            let (text, vector) = (lease.bring(&text)?, state.refined_by.on(lease)?);
            let text = refiner::block(&self.config, lease, block - 1, (&text, &vector), probe)?;
            return Ok(State { tokens: Tokens::Apart { image, text }, ..state });
        };
        state.tokens = state.tokens.bring(lease)?;
        if (group, index) == (BlockGroup::Double, 0) {
            state = self.joined_text(lease, state, probe)?;
        }
        let [image, text] = state.tokens.sides()?;
        let (items, texts) = (image.dim(0), text.dim(1));
        drop([image, text]);
        let halves = |change: &Tensor| -> Result<[Modulation; 2]> {
            Ok([Modulation::part(change, 0, 6)?, Modulation::part(change, 3, 6)?])
        };
        let (rotation, sizes) = (state.positions.on(lease.lane())?, self.config.sizes());
        let name = match group {
            BlockGroup::Double => format!("double_blocks.{index}"),
            BlockGroup::Single => format!("single_blocks.{index}"),
        };
        let positions = Arc::clone(&state.positions);
        let stream = StreamBlock {
            sizes,
            lease,
            name: name.clone(),
            rotation,
            attending: &positions.attending,
            last: LastTokens::Usual,
        };
        let tokens = match group {
            BlockGroup::Double => {
                let (layer, given) = (format!("{name}.img_mod.lin"), (&mut state, items, Some(0)));
                let image = self.changes(lease, &layer, given, halves)?;
                let (layer, given) = (format!("{name}.txt_mod.lin"), (&mut state, items, None));
                let text = self.changes(lease, &layer, given, halves)?;
                stream.double(state.tokens, [&image, &text], probe)?
            }
            BlockGroup::Single => {
                let (layer, given) = (format!("{name}.modulation.lin"), (&mut state, items, Some(texts)));
                let whole = |change: &Tensor| Ok([Modulation::part(change, 0, 3)?]);
                let [change] = self.changes(lease, &layer, given, whole)?;
                stream.single(state.tokens, &change, probe)?
            }
        };
        Ok(State { tokens, ..state })
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let tokens = self.grid(latent).tokens();
        let image = lease.bring(&state.tokens.image()?.slice(1, 0, tokens)?)?;
        let exit = |vector: &Everywhere| -> Result<Modulation> {
            let change = lease.linear("final_layer.adaLN_modulation.1", &lease.bring(vector.first())?)?;
            Modulation::of_exit(&by_item(&change, image.dim(0))?)
        };
        let change = exit(&state.vector)?;
        let change = match &state.first_vector {
            None => change,
            Some(first) => change.but_for(0..state.per_frame, exit(first)?),
        };
        let image = lease.linear("final_layer.linear", &change.normed(&image, NORM_EPS)?)?;
        probe.show(format_args!("final_layer"), &image);
        self.unpatched(&image, latent)
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        self.config.kind_of(block)
    }
}

impl Diffusion for HunyuanVideo {
    fn latent(&self) -> &'static LatentSpec {
        if self.is_first_generation() { &VIDEO_KL_16 } else { &VIDEO_KL_32 }
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(SHIFT, 1000.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        names::patch_keys(weights)
    }

    fn takes(&self) -> &'static [CondInput] {
        use CondInput::{
            ConcatLatent, ConcatMask, Guidance, GuidingFrame, NoiseAugmentation, ReferenceLatents, Vision,
        };
        match (self.is_first_generation(), self.config.beside(), self.config.guidance) {
            (false, _, _) if self.config.enlarges() => &[ConcatLatent, NoiseAugmentation, Vision],
            (false, _, _) => &[ConcatLatent, ConcatMask, Vision],
            (true, [0, _], true) => &[Guidance, GuidingFrame, ReferenceLatents],
            (true, [0, _], false) => &[GuidingFrame, ReferenceLatents],
            (true, _, true) => &[Guidance, ConcatLatent, ConcatMask],
            (true, _, false) => &[ConcatLatent, ConcatMask],
        }
    }

    /// The latent's frames that stay are shown as they are.
    fn kept(&self) -> Kept {
        Kept::Clean
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let pooled = self.config.pooled_width.map(|width| Array::zeros(&[1, width]));
        let reference = |[height, width]: &[usize; 2]| {
            Arc::new(Latent::zeros(&[1, self.config.channels, 1, *height, *width]))
        };
        let vision = self.config.vision_width.filter(|_| shape.vision > 0);
        Cond {
            reference_latents: shape.references.iter().map(reference).collect(),
            vision: vision.map(|width| Arc::new(Array::zeros(&[1, shape.vision, width]))),
            ..Cond::text(text, pooled)
        }
    }

    fn start<'a>(
        &'a self,
        session: &'a Session,
        conds: &[Conditioned<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn DiffusionRun + 'a>> {
        pass::start(self, session, conds, scene)
    }
}

/// Where a step that begins at a time lands; nowhere if none begins there.
fn next_time(times: &[f32], time: f32) -> Option<f32> {
    let begins = |from: &f32| (from - time).abs() <= SAME_TIME;
    times.get(times.iter().position(begins)? + 1).copied()
}

impl Module for HunyuanVideo {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims: Claims<'_> = names::claims(checkpoint, &self.prefix);
        weights::manifest(&claims, &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}
