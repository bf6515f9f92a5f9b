//! FLUX.1: a transformer whose first blocks keep image and text apart and meet in attention, and whose later
//! blocks run over both together. Formulas and names are those of the authors' code
//! (black-forest-labs/flux, `src/flux/model.py` and `src/flux/modules/layers.py`).

mod batches;
mod blocks;
mod conditioning;
mod config;
mod control;
mod downloads;
mod family;
mod positions;
mod prepared;
mod run;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::{Lane, Tensor};

use super::BlockGroup;
use super::batches::{Batch, in_order, together};
pub use super::latents::FLUX_KL as LATENT;
use super::modulation::{by_item, embed, time_embedding};
use super::patches::{Grid, PatchOrder, patchify};
use super::positions::Positions;
pub use super::references::ReferencePlaces;
use super::residuals::add_to_tokens;
pub use super::stream_keys::key_map as patch_keys;
use super::streams::NORM_EPS;
use crate::claims::Claims;
use crate::conditioning::TokenBias;
use crate::detect::{Detected, Layout, Part, Reader, Role};
use crate::{Error, Module, Probe, Result};
use batches::{Member, Shapes};
use blocks::{Apart, Entered, Joined};
pub use config::Config;
pub use control::{CONTROL, FluxControl};
pub use family::FAMILY;
use prepared::Prepared;
use run::KnownPositions;

/// The layers by which an embedding or a pooled text becomes a vector of the model's width.
const LAYERS: [&str; 2] = ["in_layer", "out_layer"];

/// What errors call a file that should have this model.
const WANTED: &str = "a FLUX.1 diffusion model";

/// A FLUX.1 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Flux {
    config: Config,
    prefix: String,
}

/// What one evaluation of the model is given.
pub struct FluxInputs<'a> {
    /// The noisy latent, `[batch, channels, height, width]`.
    pub latent: &'a Tensor,
    /// Further channels beside the latent, of its size: Fill's masked image and mask, a control image.
    pub concat: Option<&'a Tensor>,
    /// How much of the latent is noise, 0 to 1.
    pub sigma: f32,
    /// The text, `[batch or 1, tokens, width]`.
    pub context: &'a Tensor,
    /// Spans of the text that are looked at more or less.
    pub biased: &'a [TokenBias],
    /// Tokens before those of the text, in the model's width, `[batch or 1, tokens, hidden]`.
    pub in_front: Option<&'a Tensor>,
    /// The whole text in one vector, `[batch or 1, width]`.
    pub pooled: &'a Tensor,
    /// The guidance that dev was distilled with; schnell has no use for it.
    pub guidance: Option<f32>,
    /// Latents of images to look at (Kontext), each `[batch or 1, channels, height, width]`.
    pub references: &'a [Tensor],
    /// Where the references stand.
    pub reference_places: ReferencePlaces,
}

impl<'a> FluxInputs<'a> {
    /// Text to image, without guidance; the fields are there to be changed.
    pub fn new(latent: &'a Tensor, sigma: f32, context: &'a Tensor, pooled: &'a Tensor) -> FluxInputs<'a> {
        FluxInputs {
            latent,
            concat: None,
            sigma,
            context,
            biased: &[],
            in_front: None,
            pooled,
            guidance: None,
            references: &[],
            reference_places: ReferencePlaces::default(),
        }
    }
}

impl Flux {
    /// Reads the model's sizes from a file.
    pub fn read(checkpoint: &Checkpoint, detected: &Detected) -> Result<Flux> {
        let part = detected.part(Role::Diffusion, WANTED)?;
        if part.reader != Some(Reader::Diffusion(&FAMILY)) || part.layout != Layout::Native {
            return Err(detected.wrong_kind(WANTED));
        }
        Flux::of_part(checkpoint, part)
    }

    fn of_part(checkpoint: &Checkpoint, part: &Part) -> Result<Flux> {
        let config =
            Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY), checkpoint.metadata())?;
        Ok(Flux { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Evaluates the model: the direction from image to noise, `[batch, channels, height, width]`.
    pub fn forward(&self, session: &Session, inputs: &FluxInputs<'_>) -> Result<Tensor> {
        self.forward_probed(session, inputs, &mut Probe::none())
    }

    /// As [`Flux::forward`], with a look at what the modules compute.
    pub fn forward_probed(
        &self,
        session: &Session,
        inputs: &FluxInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let mut outputs = self.pass(session, std::slice::from_ref(inputs), probe)?;
        // A pass gives one result for each evaluation.
        Ok(outputs.swap_remove(0))
    }

    /// As [`Flux::forward`] for all evaluations of a step, in one pass over the blocks: a block is leased once and
    /// every evaluation runs through it before the lease is dropped, so weights that stream travel once however many
    /// conditionings there are. Evaluations of equal shapes run as one batch; whether they do is decided by shapes
    /// alone, and on the CPU each gives the same bits as by itself.
    pub fn forward_all(&self, session: &Session, evaluations: &[FluxInputs<'_>]) -> Result<Vec<Tensor>> {
        self.pass(session, evaluations, &mut Probe::none())
    }

    /// Prepares the evaluations one by one, then passes over the blocks.
    fn pass(
        &self,
        session: &Session,
        evaluations: &[FluxInputs<'_>],
        probe: &mut Probe<'_>,
    ) -> Result<Vec<Tensor>> {
        evaluations.iter().try_for_each(|inputs| self.check(inputs))?;
        if evaluations.is_empty() {
            return Ok(Vec::new());
        }
        let lease = session.lease(0)?;
        let prepare = |inputs: &FluxInputs<'_>| Prepared::new(self, &lease, inputs, probe);
        let prepared: Vec<Prepared> = evaluations.iter().map(prepare).collect::<Result<_>>()?;
        let pairs = evaluations.iter().zip(&prepared);
        let members: Vec<Member<'_>> = pairs
            .map(|(inputs, given)| Member {
                latent: inputs.latent,
                sigma: inputs.sigma,
                given,
                control: None,
                altered: &[],
            })
            .collect();
        self.pass_prepared(session, lease, &members, &KnownPositions::default(), probe)
    }

    /// One pass over the blocks, which begins with a lease of the first; one result for each evaluation, in their order.
    fn pass_prepared(
        &self,
        session: &Session,
        first: Lease<'_>,
        evaluations: &[Member<'_>],
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<Vec<Tensor>> {
        let batches = Batch::all_of(evaluations, Shapes::of);
        let (first_single, last) = (1 + self.config.double_blocks, session.manifest().blocks().len() - 1);
        let mut apart: Vec<Apart> = {
            let lease = first;
            let enter = |batch: &Batch<Shapes, Member<'_>>| {
                self.enter(&lease, batch, positions.of(&self.config, batch)?, probe)
            };
            batches.iter().map(enter).collect::<Result<_>>()?
        };
        for block in 1..first_single {
            let lease = session.lease(block)?;
            let through = |(state, batch): (Apart, &Batch<Shapes, Member<'_>>)| {
                if batch.shapes().skipped.has(BlockGroup::Double, block - 1) {
                    return Ok(state);
                }
                let state = state.bring(&lease)?.double_block(&self.config, &lease, block - 1, probe)?;
                let given = batch.members().map(|member| member.control?.input.get(block - 1)?.as_ref());
                add_to_tokens(&lease, state.image(), 0, given)?;
                Ok(state)
            };
            apart = apart.into_iter().zip(&batches).map(through).collect::<Result<_>>()?;
        }
        let mut joined: Vec<Joined> = apart.into_iter().map(Apart::join).collect::<Result<_>>()?;
        for block in first_single..last {
            let (lease, index) = (session.lease(block)?, block - first_single);
            let through = |(state, batch): (Joined, &Batch<Shapes, Member<'_>>)| {
                if batch.shapes().skipped.has(BlockGroup::Single, index) {
                    return Ok(state);
                }
                let state = state.bring(&lease)?.single_block(&self.config, &lease, index, probe)?;
                let given = batch.members().map(|member| member.control?.output.get(index)?.as_ref());
                add_to_tokens(&lease, state.tokens(), state.texts(), given)?;
                Ok(state)
            };
            joined = joined.into_iter().zip(&batches).map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(last)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(joined) {
            let latent = batch.first().latent;
            let output = self.leave(&lease, &state, &Grid::of(latent), probe)?;
            outputs.extend(batch.apart(&output, latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From inputs to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Batch<Shapes, Member<'_>>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<Apart> {
        let entered: Vec<Entered> =
            batch.members().map(|member| self.enter_one(lease, member, probe)).collect::<Result<_>>()?;
        Apart::new(&entered, positions)
    }

    fn enter_one(&self, lease: &Lease<'_>, member: &Member<'_>, probe: &mut Probe<'_>) -> Result<Entered> {
        let (batch, given) = (member.latent.dim(0), member.given);
        let mut latent = lease.bring(member.latent)?;
        if let Some(concat) = &given.concat {
            latent = Tensor::concat(&[&latent, &lease.bring(concat)?], 1)?;
        }
        let mut patches = vec![patchify(&latent)?];
        for reference in &given.references {
            let shape = [batch, reference.patches.dim(1), reference.patches.dim(2)];
            patches.push(lease.bring(&reference.patches)?.broadcast(shape)?);
        }
        let patches = together(&patches.iter().collect::<Vec<_>>(), 1)?;
        let mut image = lease.linear("img_in", &patches)?;
        probe.show(format_args!("img_in"), &image);
        if let Some(hint) = &given.hint {
            image = image.add(&lease.bring(hint)?)?;
        }
        let mut vector = embed(lease, ("time_in", LAYERS), &embedding(lease.lane(), member.sigma)?, probe)?;
        if let Some(guidance) = &given.guidance {
            vector = vector.add(&lease.bring(guidance)?)?;
        }
        let vector = vector.add(&lease.bring(&given.pooled)?)?;
        let text = lease.bring(&given.text)?;
        let text = text.broadcast([batch, text.dim(1), text.dim(2)])?.contiguous()?;
        Ok(Entered { image, text, vector })
    }

    /// From tokens to a latent: the last block of the manifest.
    fn leave(&self, lease: &Lease<'_>, state: &Joined, grid: &Grid, probe: &mut Probe<'_>) -> Result<Tensor> {
        let image = lease.bring(&state.image_tokens(grid.patches())?)?;
        let change = lease.linear("final_layer.adaLN_modulation.1", &lease.bring(state.vector())?)?;
        let change = by_item(&change, image.dim(0))?.chunk(2, 2)?;
        let (shift, scale) = (&change[0], &change[1]);
        let image = image.modulated_norm(scale, shift, NORM_EPS)?;
        let image = lease.linear("final_layer.linear", &image)?;
        probe.show(format_args!("final_layer"), &image);
        grid.unpatchify(&image, PatchOrder::ChannelsFirst)
    }

    fn check(&self, inputs: &FluxInputs<'_>) -> Result<()> {
        self.check_latent(inputs.latent, inputs.concat)?;
        self.check_given(inputs.latent.dim(0), inputs)
    }

    /// Whether a latent, with what stands beside it, is one for this model.
    fn check_latent(&self, latent: &Tensor, concat: Option<&Tensor>) -> Result<()> {
        if latent.rank() != 4 || latent.dims().contains(&0) {
            return wrong("the latent", "[batch, channels, height, width]".into(), latent);
        }
        let extra = concat.map_or(0, |concat| concat.dims().get(1).copied().unwrap_or(0));
        if latent.dim(1) + extra != self.config.in_channels {
            let expected = format!("{} channels with what stands beside it", self.config.in_channels);
            return wrong("the latent", expected, latent);
        }
        if let Some(concat) = concat
            && (concat.rank() != 4 || concat.shape() != &latent.shape().with(1, extra))
        {
            return wrong("what stands beside the latent", "of the latent's size".into(), concat);
        }
        Ok(())
    }

    /// Whether all else fits a batch of so many items.
    fn check_given(&self, batch: usize, inputs: &FluxInputs<'_>) -> Result<()> {
        let context = inputs.context;
        let repeats = |tensor: &Tensor| tensor.dim(0) == 1 || tensor.dim(0) == batch;
        if context.rank() != 3 || context.dim(2) != self.config.context_width || !repeats(context) {
            return wrong(
                "the text",
                format!("[{batch} or 1, tokens, {}]", self.config.context_width),
                context,
            );
        }
        let is_outside = |span: &TokenBias| span.start.saturating_add(span.tokens) > context.dim(1);
        if inputs.biased.iter().any(is_outside) {
            return wrong("the text", "as long as what is said of its tokens".into(), context);
        }
        if let Some(tokens) = inputs.in_front
            && (tokens.rank() != 3 || tokens.dim(2) != self.config.hidden || !repeats(tokens))
        {
            let width = self.config.hidden;
            let expected =
                format!("[{batch} or 1, tokens, {width}]: a style of one picture, or of one for each latent");
            return wrong("what stands before the text", expected, tokens);
        }
        let pooled = inputs.pooled;
        if pooled.rank() != 2 || pooled.dim(1) != self.config.pooled_width || !repeats(pooled) {
            return wrong("the pooled text", format!("[{batch} or 1, {}]", self.config.pooled_width), pooled);
        }
        for reference in inputs.references {
            let fits =
                reference.rank() == 4 && reference.dim(1) == self.config.in_channels && repeats(reference);
            if !fits {
                let expected = format!("[{batch} or 1, {}, height, width]", self.config.in_channels);
                return wrong("a reference latent", expected, reference);
            }
        }
        Ok(())
    }
}

impl Module for Flux {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

fn wrong(what: &'static str, expected: String, got: &Tensor) -> Result<()> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}

/// A time or a guidance, of which the model counts a thousand, as waves.
fn embedding(lane: &Lane, value: f32) -> Result<Tensor> {
    time_embedding(lane, 1000.0 * value)
}
