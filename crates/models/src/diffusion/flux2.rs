//! FLUX.2: the blocks of FLUX with one modulation for all of a kind and a gated feed-forward, over latents whose patches
//! the autoencoder makes. Formulas and names are those of the authors' code (black-forest-labs/flux2, `src/flux2/model.py`).

mod config;
mod downloads;
mod family;
mod kept;
mod keys;
mod references;
pub(crate) mod text;
mod weights;

use std::borrow::Cow;
use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use patch::KeyMap;
use residency::{Lease, Manifest, Session};
use sampling::{LatentSpec, ModelSampling};
use tensor::{Activation, Tensor};

use super::batches::together;
use super::kept_heads::{KeptHeads, LastTokens};
use super::modulation::{Everywhere, Modulation, by_item, embed, time_embedding};
use super::pass::{self, Member, Members, Shapes, Transformer, for_items, text_of, wrong};
use super::patches::{Grid, tokens_as_values, values_as_tokens};
use super::positions::{Along, Positions};
use super::streams::{NORM_EPS, StreamBlock};
use super::tokens::Tokens;
use super::{Alteration, BlockGroup, Diffusion, DiffusionRun, Placed};
use crate::claims::Claims;
use crate::conditioning::{Array, Cond, CondInput, CondShape, Conditioned, Guidance, Scene};
use crate::detect::Part;
use crate::{Module, Probe, Result};
use kept::ReferenceUse;
use references::References;

pub use config::Config;
pub use family::{FAMILY, LATENT};
pub use keys::key_map as patch_keys;

/// Tokens that a text is filled up to, in front.
const TEXT_TOKENS: usize = 512;
/// The guidance of a conditioning that says none.
const USUAL_GUIDANCE: f32 = 3.5;
/// The layers by which a time or a guidance becomes a vector of the model's width.
const LAYERS: [&str; 2] = ["in_layer", "out_layer"];

/// A FLUX.2 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Flux2 {
    config: Config,
    prefix: String,
}

/// What does not change within a run, on the device of the first block.
pub(in crate::diffusion) struct Given {
    /// The text in the model's width, `[batch or 1, tokens, hidden]`.
    text: Tensor,
    /// The guidance in the model's width, of a model that takes one.
    guidance: Option<Tensor>,
    references: References,
    /// Keys and values of the pictures to look at, if they are kept.
    kept: Arc<KeptHeads>,
}

/// The activations between blocks, of evaluations that run as one batch.
pub(in crate::diffusion) struct State {
    tokens: Tokens,
    /// Time and guidance after SiLU, one row for each evaluation.
    vector: Tensor,
    /// How all blocks are moved: the image's side of double blocks, the text's side, single blocks. Behind the rows of the
    /// evaluations there are as many for pictures to look at, if those are read as at the end of time.
    changes: [Everywhere; 3],
    references: ReferenceUse,
    positions: Arc<Positions>,
}

impl Flux2 {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Flux2> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Flux2 { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A time and a guidance as a vector of the model's width.
    fn vector(&self, lease: &Lease<'_>, time: f32, given: &Given, probe: &mut Probe<'_>) -> Result<Tensor> {
        let waves = time_embedding(lease.lane(), 1000.0 * time)?;
        let vector = embed(lease, ("time_in", LAYERS), &waves, probe)?;
        Ok(match &given.guidance {
            Some(guidance) => vector.add(&lease.bring(guidance)?)?,
            None => vector,
        })
    }

    /// The tokens of a latent and of the pictures to look at, in the model's width.
    fn image(
        &self,
        lease: &Lease<'_>,
        latent: &Tensor,
        references: &[Tensor],
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let mut all = vec![values_as_tokens(&lease.bring(latent)?)?];
        for tokens in references {
            let shape = [latent.dim(0), tokens.dim(1), tokens.dim(2)];
            all.push(lease.bring(tokens)?.broadcast(shape)?);
        }
        let image = lease.linear("img_in", &together(&all.iter().collect::<Vec<_>>(), 1)?)?;
        probe.show(format_args!("img_in"), &image);
        Ok(image)
    }
}

/// A text with zeros in front, as many tokens as the model was trained with; longer ones stay as they are.
fn filled(text: &Array) -> Result<Array> {
    let [batch, tokens, width] = text.axes("a conditioning", "batch, tokens and width")?;
    let missing = TEXT_TOKENS.saturating_sub(tokens);
    let mut values = Vec::with_capacity(batch * (tokens + missing) * width);
    for item in text.values.chunks_exact((tokens * width).max(1)) {
        values.resize(values.len() + missing * width, 0.0);
        values.extend_from_slice(item);
    }
    Ok(Array { shape: vec![batch, tokens + missing, width], values })
}

impl Transformer for Flux2 {
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
        let guidance = match cond.guidance {
            Guidance::Usual => Some(USUAL_GUIDANCE),
            Guidance::Scale(scale) => Some(scale),
            Guidance::Off => None,
        };
        let guidance = match guidance.filter(|_| self.config.guidance) {
            None => None,
            Some(guidance) => {
                let waves = time_embedding(lease.lane(), 1000.0 * guidance)?;
                Some(embed(lease, ("guidance_in", LAYERS), &waves, probe)?)
            }
        };
        let references = References::new(&self.config, lease, cond, scene)?;
        Ok(Given { text, guidance, references, kept: Arc::default() })
    }

    fn check_latent(&self, latent: &Tensor) -> Result<()> {
        let channels = self.config.channels;
        if latent.rank() == 4 && latent.dim(1) == channels && !latent.dims().contains(&0) {
            return Ok(());
        }
        wrong("the latent", format!("[batch, {channels}, height, width]"), latent)
    }

    fn shapes(&self, latent: &Shape, given: &Given) -> Shapes {
        let References { shapes, places, are_still, .. } = &given.references;
        Shapes::new(latent, Grid::of_values(latent).patches(), given.text.dim(1))
            .with_references(shapes.iter().copied(), *places)
            .with_times(if *are_still == Some(true) { 2 } else { 1 })
            .with_vectors(if shapes.is_empty() { 1 } else { 2 })
            .with_kept(given.kept.are_whole(latent.dims()[0]))
    }

    /// Pictures count their index, rows and columns; the text counts its tokens on an axis of its own.
    fn positions(&self, latent: &Shape, given: &Given) -> Positions {
        self.positions_placed(latent, given, &Placed::COUNTED)
    }

    fn positions_placed(&self, latent: &Shape, given: &Given, placed: &Placed) -> Positions {
        let grid = Grid::of_values(latent);
        let mut positions = Positions::new(&self.config.axes, config::THETA);
        let at = Along::At(0.0);
        positions.push_text(given.text.dim(1), &[at, at, at, Along::Rows(0.0)]);
        let [index, rows, columns] = Along::picture(0.0, placed);
        positions.push([1, grid.rows, grid.columns], &[index, rows, columns, at]);
        for (shape, [index, row, column]) in given.references.placed(&grid) {
            let Grid { rows, columns, .. } = Grid::of_values(shape);
            let along = [Along::At(index), Along::Rows(row), Along::Columns(column), at];
            positions.push([1, rows, columns], &along);
        }
        positions
    }

    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Members<'_, Flux2>,
        positions: Arc<Positions>,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let references = ReferenceUse::of(batch);
        let (mut images, mut texts, mut vectors) = (Vec::new(), Vec::new(), Vec::new());
        for Member { latent, time, given, .. } in batch.members() {
            let shown = if references.are_read() { &[] } else { given.references.tokens() };
            images.push(self.image(lease, latent, shown, probe)?);
            texts.push(for_items(&lease.bring(&given.text)?, latent.dim(0))?);
            vectors.push(self.vector(lease, *time, given, probe)?);
        }
        let evaluations = vectors.len();
        if references.are_still {
            for Member { given, .. } in batch.members() {
                vectors.push(self.vector(lease, 0.0, given, &mut Probe::none())?);
            }
        }
        let all = |parts: &[Tensor]| together(&parts.iter().collect::<Vec<_>>(), 0);
        positions.show(lease.lane(), probe)?;
        let vector = all(&vectors)?.activate(Activation::Silu)?;
        let change = |name: &str| -> Result<Everywhere> {
            Ok(Everywhere::new(lease.linear(&format!("{name}.lin"), &vector)?))
        };
        let changes = [
            change("double_stream_modulation_img")?,
            change("double_stream_modulation_txt")?,
            change("single_stream_modulation")?,
        ];
        let tokens = Tokens::Apart { image: all(&images)?, text: all(&texts)? };
        let vector = vector.slice(0, 0, evaluations)?;
        Ok(State { tokens, vector, changes, references, positions })
    }

    fn block(
        &self,
        lease: &Lease<'_>,
        block: usize,
        mut state: State,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let tokens = state.tokens.bring(lease)?;
        let [image, text] = tokens.sides()?;
        let (items, images, texts) = (image.dim(0), image.dim(1), text.dim(1));
        drop((image, text));
        let rotation = state.positions.on(lease.lane())?;
        let (sizes, attending) = (self.config.sizes(), &state.positions.attending);
        let (references, rows) = (&state.references, state.vector.dim(0));
        let last = references.in_block(lease, block)?;
        let stream = |name, last| StreamBlock { sizes, lease, name, rotation, attending, last };
        let mut changes = |kind: usize, part: usize, parts: usize, tokens: usize| -> Result<Modulation> {
            references.modulation(&state.changes[kind].on(lease)?, (rows, items), (part, parts), tokens)
        };
        let (tokens, last) = match self.config.kind_of(block) {
            (BlockGroup::Double, index) => {
                let image = [changes(0, 0, 6, images)?, changes(0, 3, 6, images)?];
                let text = [changes(1, 0, 6, 0)?, changes(1, 3, 6, 0)?];
                let stream = stream(format!("double_blocks.{index}"), last);
                (stream.double(tokens, [&image, &text], probe)?, stream.last)
            }
            (BlockGroup::Single, index) => {
                let change = changes(2, 0, 3, texts + images)?;
                let stream = stream(format!("single_blocks.{index}"), last);
                (stream.single(tokens, &change, probe)?, stream.last)
            }
        };
        references.keep(block, last)?;
        Ok(State { tokens, ..state })
    }

    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        latent: &Shape,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        state.references.finish();
        let grid = Grid::of_values(latent);
        let image = lease.bring(&state.tokens.image()?.slice(1, 0, grid.patches())?)?;
        let change = lease.linear("final_layer.adaLN_modulation.1", &lease.bring(&state.vector)?)?;
        let change = by_item(&change, image.dim(0))?.chunk(2, 2)?;
        let image = image.modulated_norm(&change[1], &change[0], NORM_EPS)?;
        let image = lease.linear("final_layer.linear", &image)?;
        probe.show(format_args!("final_layer"), &image);
        tokens_as_values(&image, [grid.height, grid.width])
    }

    fn group(&self, block: usize) -> Option<(BlockGroup, usize)> {
        Some(self.config.kind_of(block))
    }

    fn controlled(&self, state: &State) -> Result<Option<Tensor>> {
        Ok(Some(state.tokens.image()?))
    }
}

impl Diffusion for Flux2 {
    fn latent(&self) -> &'static LatentSpec {
        &LATENT
    }

    fn sampling(&self) -> ModelSampling {
        ModelSampling::exponential_flow(2.02)
    }

    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        keys::key_map(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    fn takes(&self) -> &'static [CondInput] {
        if self.config.guidance {
            &[CondInput::Guidance, CondInput::ReferenceLatents]
        } else {
            &[CondInput::ReferenceLatents]
        }
    }

    fn knows(&self, alteration: &Alteration) -> bool {
        matches!(
            alteration,
            Alteration::SkipBlock { .. } | Alteration::Placed(_) | Alteration::KeepReferences
        )
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
        let fill = |conditioned: &Conditioned<'_>| -> Result<Cond> {
            let cond = conditioned.cond;
            Ok(Cond { text: Arc::new(filled(&cond.text)?), ..cond.clone() })
        };
        let filled = conds.iter().map(fill).collect::<Result<Vec<Cond>>>()?;
        let conds: Vec<Conditioned<'_>> = filled
            .iter()
            .zip(conds)
            .map(|(cond, conditioned)| Conditioned { cond, ..*conditioned })
            .collect();
        pass::start(self, session, &conds, scene)
    }
}

impl Module for Flux2 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The residual streams outgrow f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
    }
}

/// What the field calls a model of this width.
fn named(hidden: usize, has_guidance: bool) -> Cow<'static, str> {
    Cow::Borrowed(if has_guidance || hidden > 4096 { "FLUX.2 dev" } else { "FLUX.2 klein" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_filled_up_in_front() {
        let text = Array { shape: vec![2, 1, 2], values: vec![1.0, 2.0, 3.0, 4.0] };
        let filled = filled(&text).unwrap();
        assert_eq!(filled.shape, [2, TEXT_TOKENS, 2]);
        assert_eq!(filled.values[2 * TEXT_TOKENS - 2..2 * TEXT_TOKENS], [1.0, 2.0]);
        assert_eq!(filled.values.iter().sum::<f32>(), 10.0);
        let long = Array::zeros(&[1, TEXT_TOKENS + 3, 2]);
        assert_eq!(super::filled(&long).unwrap(), long);
    }
}
