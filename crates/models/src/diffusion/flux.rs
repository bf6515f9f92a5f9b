//! FLUX.1: a transformer whose first blocks keep image and text apart and meet in attention, and whose later
//! blocks run over both together. Formulas and names are those of the authors' code
//! (black-forest-labs/flux, `src/flux/model.py` and `src/flux/modules/layers.py`).

mod batches;
mod blocks;
mod config;
mod positions;
mod weights;

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Lane, Padding, Tensor};

use crate::claims::Claims;
use crate::detect::{Detected, Family, Layout, Role};
use crate::{Error, Probe, Result};
use batches::Batch;
use blocks::{Apart, Entered, Joined, NORM_EPS, by_item};
pub use config::Config;
use positions::Positions;

/// Width and height of the patches that become one token.
const PATCH: usize = 2;
/// Values of the embedding of a time or of a guidance.
const TIME_VALUES: usize = 256;
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
    /// The whole text in one vector, `[batch or 1, width]`.
    pub pooled: &'a Tensor,
    /// The guidance that dev was distilled with; schnell has no use for it.
    pub guidance: Option<f32>,
    /// Latents of images to look at (Kontext), each `[batch or 1, channels, height, width]`.
    pub references: &'a [Tensor],
    /// Where the references stand.
    pub reference_places: ReferencePlaces,
}

/// Where reference images stand for the rotary positions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReferencePlaces {
    /// All one index away from the picture, below or beside each other, on whichever side the whole grows less.
    #[default]
    Offset,
    /// Each with an index of its own, over the picture.
    Index,
    /// In the picture's own plane, on the diagonal behind it.
    Diagonal,
}

impl<'a> FluxInputs<'a> {
    /// Text to image, without guidance; the fields are there to be changed.
    pub fn new(latent: &'a Tensor, sigma: f32, context: &'a Tensor, pooled: &'a Tensor) -> FluxInputs<'a> {
        FluxInputs {
            latent,
            concat: None,
            sigma,
            context,
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
        if !matches!(part.family, Family::Flux(_)) || part.layout != Layout::Native {
            return Err(detected.wrong_kind(WANTED));
        }
        let config =
            Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY), checkpoint.metadata())?;
        Ok(Flux { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What the model needs of the file it was read from.
    pub fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    /// The element types that its activations may have, the preferred one first.
    /// The residual streams outgrow f16.
    pub fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F32]
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

    /// One pass over the blocks; one result for each evaluation, in their order.
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
        let batches = Batch::all_of(evaluations);
        let (first_single, last) = (1 + self.config.double_blocks, session.manifest().blocks().len() - 1);
        let mut apart: Vec<Apart> = {
            let lease = session.lease(0)?;
            batches.iter().map(|batch| self.enter(&lease, batch, probe)).collect::<Result<_>>()?
        };
        for block in 1..first_single {
            let lease = session.lease(block)?;
            let through =
                |state: Apart| state.bring(&lease)?.double_block(&self.config, &lease, block - 1, probe);
            apart = apart.into_iter().map(through).collect::<Result<_>>()?;
        }
        let mut joined: Vec<Joined> = apart.into_iter().map(Apart::join).collect::<Result<_>>()?;
        for block in first_single..last {
            let (lease, index) = (session.lease(block)?, block - first_single);
            let through =
                |state: Joined| state.bring(&lease)?.single_block(&self.config, &lease, index, probe);
            joined = joined.into_iter().map(through).collect::<Result<_>>()?;
        }
        let lease = session.lease(last)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(joined) {
            let output = self.leave(&lease, &state, &batch.grid(), probe)?;
            outputs.extend(batch.apart(&output)?);
        }
        outputs.sort_by_key(|(place, _)| *place);
        Ok(outputs.into_iter().map(|(_, output)| output).collect())
    }

    /// From inputs to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(&self, lease: &Lease<'_>, batch: &Batch<'_>, probe: &mut Probe<'_>) -> Result<Apart> {
        let entered: Vec<Entered> =
            batch.members().map(|inputs| self.enter_one(lease, inputs, probe)).collect::<Result<_>>()?;
        Apart::new(&entered, Positions::new(&self.config, &batch.grid(), batch.first()))
    }

    fn enter_one(
        &self,
        lease: &Lease<'_>,
        inputs: &FluxInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Entered> {
        let batch = inputs.latent.dim(0);
        let mut latent = lease.bring(inputs.latent)?;
        if let Some(concat) = inputs.concat {
            latent = Tensor::concat(&[&latent, &lease.bring(concat)?], 1)?;
        }
        let mut patches = vec![patchify(&latent)?];
        for reference in inputs.references {
            let reference = patchify(&lease.bring(reference)?)?;
            let shape = [batch, reference.dim(1), reference.dim(2)];
            patches.push(reference.broadcast(shape)?);
        }
        let patches = match patches.as_slice() {
            [only] => only.clone(),
            many => Tensor::concat(&many.iter().collect::<Vec<_>>(), 1)?,
        };
        let image = lease.linear("img_in", &patches)?;
        probe.show(format_args!("img_in"), &image);

        let embed = |name: &str, x: &Tensor, probe: &mut Probe<'_>| -> Result<Tensor> {
            let inner = lease.linear_then(&format!("{name}.in_layer"), x, Some(Activation::Silu))?;
            let out = lease.linear(&format!("{name}.out_layer"), &inner)?;
            probe.show(format_args!("{name}"), &out);
            Ok(out)
        };
        let mut vector = embed("time_in", &embedding(lease.lane(), inputs.sigma)?, probe)?;
        if let Some(guidance) = inputs.guidance.filter(|_| self.config.guidance) {
            vector = vector.add(&embed("guidance_in", &embedding(lease.lane(), guidance)?, probe)?)?;
        }
        let vector = vector.add(&embed("vector_in", &lease.bring(inputs.pooled)?, probe)?)?;
        let text = lease.linear("txt_in", &lease.bring(inputs.context)?)?;
        probe.show(format_args!("txt_in"), &text);
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
        grid.unpatchify(&image)
    }

    fn check(&self, inputs: &FluxInputs<'_>) -> Result<()> {
        let wrong = |what, expected, got: &Tensor| {
            Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
        };
        let latent = inputs.latent;
        if latent.rank() != 4 || latent.dims().contains(&0) {
            return wrong("the latent", "[batch, channels, height, width]".into(), latent);
        }
        let batch = latent.dim(0);
        let extra = inputs.concat.map_or(0, |concat| concat.dims().get(1).copied().unwrap_or(0));
        if latent.dim(1) + extra != self.config.in_channels {
            let expected = format!("{} channels with what stands beside it", self.config.in_channels);
            return wrong("the latent", expected, latent);
        }
        if let Some(concat) = inputs.concat
            && (concat.rank() != 4 || concat.shape() != &latent.shape().with(1, extra))
        {
            return wrong("what stands beside the latent", "of the latent's size".into(), concat);
        }
        let context = inputs.context;
        let repeats = |tensor: &Tensor| tensor.dim(0) == 1 || tensor.dim(0) == batch;
        if context.rank() != 3 || context.dim(2) != self.config.context_width || !repeats(context) {
            return wrong(
                "the text",
                format!("[{batch} or 1, tokens, {}]", self.config.context_width),
                context,
            );
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

/// A latent's size, in values and in patches.
struct Grid {
    height: usize,
    width: usize,
    rows: usize,
    columns: usize,
}

impl Grid {
    fn of(latent: &Tensor) -> Grid {
        Grid::sized(latent.shape())
    }

    /// The size of latents of a shape.
    fn sized(shape: &Shape) -> Grid {
        let (height, width) = (shape.dims()[2], shape.dims()[3]);
        Grid { height, width, rows: height.div_ceil(PATCH), columns: width.div_ceil(PATCH) }
    }

    /// How many patches there are.
    fn patches(&self) -> usize {
        self.rows * self.columns
    }

    /// Tokens `[batch, rows · columns, channels · 2 · 2]` back to a latent of the size that came in.
    fn unpatchify(&self, tokens: &Tensor) -> Result<Tensor> {
        let (batch, channels) = (tokens.dim(0), tokens.dim(2) / (PATCH * PATCH));
        let grid = tokens.reshape([batch, self.rows, self.columns, channels, PATCH, PATCH])?;
        let latent = grid.permute(&[0, 3, 1, 4, 2, 5])?.reshape([
            batch,
            channels,
            self.rows * PATCH,
            self.columns * PATCH,
        ])?;
        Ok(latent.slice(2, 0, self.height)?.slice(3, 0, self.width)?.contiguous()?)
    }
}

/// A latent `[batch, channels, height, width]` as tokens `[batch, rows · columns, channels · 2 · 2]`. A size
/// that is no multiple of a patch goes on from the other side.
fn patchify(latent: &Tensor) -> Result<Tensor> {
    let grid = Grid::of(latent);
    let (batch, channels) = (latent.dim(0), latent.dim(1));
    let border =
        [(0, 0), (0, 0), (0, grid.rows * PATCH - grid.height), (0, grid.columns * PATCH - grid.width)];
    let even = if border[2].1 + border[3].1 == 0 {
        latent.clone()
    } else {
        latent.pad(&border, Padding::Circular)?
    };
    let patches = even.reshape([batch, channels, grid.rows, PATCH, grid.columns, PATCH])?;
    let tokens = patches.permute(&[0, 2, 4, 1, 3, 5])?;
    Ok(tokens.reshape([batch, grid.rows * grid.columns, channels * PATCH * PATCH])?)
}

/// A time or a guidance as waves of many lengths, `[1, 256]`. Angles are rounded to f32, as they are where the
/// weights were trained.
fn embedding(lane: &Lane, value: f32) -> Result<Tensor> {
    const HALF: usize = TIME_VALUES / 2;
    let angles = (0..HALF).map(|i| {
        let frequency = (-(10_000f64.ln()) as f32 * i as f32 / HALF as f32).exp();
        1000.0 * value * frequency
    });
    let angles: Vec<f32> = angles.collect();
    let waves: Vec<f32> = angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect();
    Ok(lane.tensor([1, TIME_VALUES], &waves)?)
}
