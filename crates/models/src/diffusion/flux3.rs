//! FLUX.3 klein: text, image and pictures to look at pass blocks of their own, then blocks over all of them, which move each
//! kind by its own modulation. Formulas and names are those of the authors' files (in diffusers `transformer_flux3.py`).
//! Latents are those of the generation before it. A distilled model is told where each step lands.

mod blocks;
mod config;
mod family;
mod keys;
mod references;
pub(crate) mod text;
mod weights;

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{LatentShape, LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::batches::together;
use super::modulation::{Everywhere, Modulation, by_item, embed, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, tokens_as_values, values_as_tokens};
use super::positions::{Along, Positions, frequencies};
use super::references::ReferencePlaces;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use blocks::{Block, NORM_EPS};
use config::Mode;
use references::References;

pub use super::flux2::LATENT;
pub use config::Config;
pub use family::FAMILY;
pub use keys::key_map as patch_keys;

/// The layers by which a time becomes a vector of the model's width.
const LAYERS: [&str; 2] = ["in_layer", "out_layer"];
/// How much noise is in the steps of its schedule.
const SHIFT: f64 = 6.93;
/// Rows and columns are this far apart.
const PLACE_STEP: f64 = 0.5;
/// Times that are nearer than this are the same.
const SAME_TIME: f32 = 1e-5;

/// A FLUX.3 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Flux3 {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    references: References,
    /// The times of the run's steps, falling.
    times: Vec<f32>,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    tokens: Tokens,
    /// How many tokens there are of each kind.
    counts: [usize; 3],
    /// The times of the image after SiLU, one row for each evaluation.
    vector: Tensor,
    /// How the blocks of each kind of tokens move them, and how the blocks over all do.
    changes: [[Everywhere; 3]; 2],
    positions: Arc<Positions>,
}

/// Tokens of evaluations that run as one batch, `[items, tokens, hidden]`.
enum Tokens {
    /// Of each kind by itself; none of pictures to look at, if there are none.
    Apart(Box<[Option<Tensor>; 3]>),
    /// As one sequence.
    Joined(Tensor),
}

impl Tokens {
    /// One sequence.
    fn joined(self, lease: &Lease<'_>) -> Result<Tensor> {
        match self {
            Tokens::Joined(all) => Ok(lease.bring(&all)?),
            Tokens::Apart(kinds) => {
                let here = kinds.iter().flatten().map(|tokens| lease.bring(tokens));
                let here = here.collect::<Result<Vec<_>, _>>()?;
                Ok(Tensor::concat(&here.iter().collect::<Vec<_>>(), 1)?)
            }
        }
    }
}

impl Flux3 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Flux3> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Flux3 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Evaluates the model for a latent at a time of a run with these times, with a look at what its modules compute.
    pub fn forward_probed(
        &self,
        session: &Session,
        (cond, times): (&Cond, &[f32]),
        (latent, time): (&Tensor, f32),
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let scene = Scene { times, ..Scene::empty(LatentShape::sized(latent.dims())?) };
        pass::probed_in(self, session, (cond, &scene), (latent, time), probe)
    }

    /// The tokens of pictures, in the model's width.
    fn picture(
        &self,
        lease: &Lease<'_>,
        mode: Mode,
        tokens: &Tensor,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let name = format!("emb_in.{}", mode.name());
        let picture = lease.linear(&name, tokens)?;
        probe.show(format_args!("{name}"), &picture);
        Ok(picture)
    }

    /// The pictures to look at for so many items, if there are any.
    fn looked_at(
        &self,
        lease: &Lease<'_>,
        given: &Given,
        items: usize,
        probe: &mut Probe<'_>,
    ) -> Result<Option<Tensor>> {
        let mut all = Vec::new();
        for tokens in &given.references.tokens {
            all.push(lease.bring(tokens)?.broadcast([items, tokens.dim(1), tokens.dim(2)])?);
        }
        if all.is_empty() {
            return Ok(None);
        }
        let tokens = together(&all.iter().collect::<Vec<_>>(), 1)?;
        Ok(Some(self.picture(lease, Mode::LookedAt, &tokens, probe)?))
    }

    /// The vectors of the image's time and of the end of time, at which all else is read, `[1, hidden]` each; with where
    /// the step lands, if the model jumps.
    fn times(
        &self,
        lease: &Lease<'_>,
        time: f32,
        given: &Given,
        probe: &mut Probe<'_>,
    ) -> Result<[Tensor; 2]> {
        let vector = |name: &str, time: f32, probe: &mut Probe<'_>| -> Result<Tensor> {
            let waves = time_embedding(lease.lane(), 1000.0 * time)?;
            embed(lease, (name, LAYERS), &waves, probe)
        };
        let own = vector("time_in", time, &mut Probe::none())?;
        let still = vector("time_in", 0.0, probe)?;
        if !self.config.jumps {
            return Ok([own, still]);
        }
        let landing = vector("ref_time_in", next_time(&given.times, time), probe)?;
        Ok([own.add(&landing)?, still.add(&landing)?])
    }
}

/// The highest of falling times below a time; the end if there is none.
fn next_time(times: &[f32], time: f32) -> f32 {
    times.iter().copied().filter(|next| *next < time - SAME_TIME).fold(0.0, f32::max)
}

impl Transformer for Flux3 {
    type Given = Given;
    type State = State;

    fn prepare(
        &self,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let cond = conditioned.cond;
        let text = text_of(lease, cond, scene.shape.batch, self.config.context_width)?;
        let text = lease.linear("txt_in", &text)?;
        probe.show(format_args!("txt_in"), &text);
        let references = References::new(self.config.looked_at_channels, lease, cond, scene)?;
        Ok(Given { text, references, times: scene.times.to_vec() })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let references = given.references.shapes.iter().copied();
        Shapes::new(latent, Grid::of_values(latent).patches(), given.text.dim(1))
            .with_references(references, ReferencePlaces::IndexDown)
    }

    /// Pictures count half rows and half columns; those to look at stand below the picture that is made, on the axis on
    /// which the text counts its tokens.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        let whole = frequencies(self.config.head_size / config::AXES, config::THETA);
        let half: Vec<f64> = whole.iter().map(|frequency| PLACE_STEP * frequency).collect();
        let mut positions = Positions::turning(vec![whole.clone(), half.clone(), half, whole]);
        let at = Along::At(0.0);
        positions.push_text(given.text.dim(1), &[at, at, at, Along::Rows(0.0)]);
        for (index, shape) in std::iter::once(latent).chain(&given.references.shapes).enumerate() {
            let grid = Grid::of_values(shape);
            let along = [at, Along::Rows(0.0), Along::Columns(0.0), Along::At(-(index as f64))];
            positions.push([1, grid.rows, grid.columns], &along);
        }
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, Flux3>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let mut kinds: [Vec<Tensor>; 3] = Default::default();
        let (mut own, mut still) = (Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            kinds[0].push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            let tokens = values_as_tokens(&lease.bring(latent)?)?;
            kinds[1].push(self.picture(lease, Mode::Image, &tokens, probe)?);
            kinds[2].extend(self.looked_at(lease, given, latent.dim(0), probe)?);
            let [image, others] = self.times(lease, *time, given, probe)?;
            own.push(image);
            still.push(others);
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        let own = all(&own)?.activate(Activation::Silu)?;
        let still = all(&still)?.activate(Activation::Silu)?;
        let mut change = |stage: &str, mode: Mode| -> Result<Everywhere> {
            let name = format!("{stage}_stream_modulations.{}", mode.name());
            let vector = if mode == Mode::Image { &own } else { &still };
            let change = lease.linear(&format!("{name}.lin"), vector)?;
            probe.show(format_args!("{name}"), &change);
            Ok(Everywhere::new(change))
        };
        let mut changes = |stage: &str| -> Result<[Everywhere; 3]> {
            let [text, image, looked_at] = Mode::ALL;
            Ok([change(stage, text)?, change(stage, image)?, change(stage, looked_at)?])
        };
        let changes = [changes("early")?, changes("single")?];
        let Member { latent, given, .. } = batch.first();
        let images = Grid::of_values(latent.shape()).patches();
        let counts = [given.text.dim(1), images, given.references.count()];
        let joined = |parts: &Vec<Tensor>| (!parts.is_empty()).then(|| all(parts)).transpose();
        let kinds = [joined(&kinds[0])?, joined(&kinds[1])?, joined(&kinds[2])?];
        Ok(State { tokens: Tokens::Apart(Box::new(kinds)), counts, vector: own, changes, positions })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        mut state: State,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let (mode, name) = self.config.block(block);
        let own = Block { config: &self.config, lease, name: &name };
        let rotation = state.positions.on(lease.lane())?;
        let [texts, images, looked_at] = state.counts;
        let starts = [0, texts, texts + images];
        let Some(mode) = mode else {
            let all = state.tokens.joined(lease)?;
            let mut change = |kind: usize| -> Result<Modulation> {
                Modulation::part(&by_item(&state.changes[1][kind].on(lease)?, all.dim(0))?, 0, 3)
            };
            let spread = change(1)?.but_for(0..texts, change(0)?);
            let spread = spread.but_for(starts[2]..starts[2] + looked_at, change(2)?);
            let all = own.over(&all, &spread, &rotation, probe)?;
            probe.show_step(format_args!("{name}"), || Ok(all.slice(1, 0, texts)?.contiguous()?))?;
            let content = || Ok(all.slice(1, texts, images + looked_at)?.contiguous()?);
            probe.show_step(format_args!("{name}.1"), content)?;
            return Ok(State { tokens: Tokens::Joined(all), ..state });
        };
        let kind = mode as usize;
        if let Tokens::Apart(kinds) = &mut state.tokens
            && let Some(tokens) = kinds[kind].take()
        {
            let change = by_item(&state.changes[0][kind].on(lease)?, tokens.dim(0))?;
            let change = Modulation::part(&change, 0, 3)?;
            let rotation = rotation.slice(starts[kind], state.counts[kind])?;
            let tokens = own.over(&lease.bring(&tokens)?, &change, &rotation, probe)?;
            probe.show(format_args!("{name}"), &tokens);
            kinds[kind] = Some(tokens);
        }
        Ok(state)
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let grid = Grid::of_values(latent);
        let image = match &state.tokens {
            Tokens::Joined(all) => all.slice(1, state.counts[0], state.counts[1])?,
            Tokens::Apart(kinds) => match &kinds[1] {
                Some(image) => image.clone(),
                None => return wrong("the image", "some tokens".into(), &state.vector),
            },
        };
        let image = lease.bring(&image)?;
        let vector = lease.bring(&state.vector)?;
        let change = lease.linear("final_layer.image.adaLN_modulation.1", &vector)?;
        let change = Modulation::of_exit(&by_item(&change, image.dim(0))?)?;
        let image = change.normed(&image, NORM_EPS)?;
        probe.show(format_args!("final_layer.norm"), &image);
        let image = lease.linear("final_layer.image.linear", &image)?;
        tokens_as_values(&image, [grid.height, grid.width])
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some((BlockGroup::Single, block.checked_sub(1 + self.config.first_joint())?))
    }
}

impl Diffusion for Flux3 {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::flow(SHIFT, 1.0)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        &[CondInput::ReferenceLatents]
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(alteration, Alteration::SkipBlock { group: BlockGroup::Single, .. })
    }

    fn blank(&self, shape: &CondShape) -> Cond {
        let text = Array::zeros(&[1, shape.tokens.max(1), self.config.context_width]);
        let reference = |[height, width]: &[usize; 2]| {
            Arc::new(sampling::Latent::zeros(&[1, LATENT.channels, *height, *width]))
        };
        Cond { reference_latents: shape.references.iter().map(reference).collect(), ..Cond::text(text, None) }
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

impl Module for Flux3 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// It was trained in bf16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_lands_at_the_next_lower_time() {
        let times = [1.0, 0.8, 0.4, 0.0];
        assert_eq!(next_time(&times, 1.0), 0.8);
        // A sampler may ask between two of them.
        assert_eq!(next_time(&times, 0.6), 0.4);
        assert_eq!(next_time(&times, 0.4), 0.0);
        assert_eq!(next_time(&[], 0.4), 0.0);
    }
}
