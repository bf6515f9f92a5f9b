//! Diffusion models: one folder per family, one line in [`FAMILIES`].
//!
//! ```text
//! Checkpoint ── detect ──> Part ── DiffusionFamily::read ──> dyn Diffusion ── manifest ──> plan, load, open
//!                                                               │                            │
//!                                          latents <── forward ─┴─ start (once a run) <── Session
//! ```

mod alterations;
mod attending;
mod batches;
pub mod chroma;
pub mod chroma_radiance;
pub mod cosmos;
mod file_names;
pub mod flux;
pub mod flux2;
pub mod flux3;
mod heads;
pub mod hidream;
pub mod hunyuan_video;
pub mod hunyuan_video_15;
pub mod kandinsky5;
mod kept_heads;
mod known;
pub mod krea2;
pub mod latents;
pub mod ltxv;
pub mod mochi;
pub mod model_patches;
pub(crate) mod modulation;
mod pass;
mod patches;
mod pieces;
mod positions;
pub mod qwen_image;
pub mod qwen_image21;
mod references;
mod residuals;
mod rotary;
pub mod sd15;
pub mod sd2;
pub mod sd3;
pub mod sdxl;
mod stream_keys;
mod stream_weights;
mod streams;
pub mod svd;
mod timed_change;
mod tokens;
mod told;
pub mod unet;
mod video;
pub mod wan;
pub mod z_image;

use std::fmt;

use checkpoint::Checkpoint;
use meta::Shape;
use patch::KeyMap;
use residency::Session;
use sampling::{LatentSpec, ModelSampling};
use tensor::Tensor;

use crate::conditioning::{Cond, CondInput, CondShape, Conditioned, Scene};
use crate::detect::{Part, Sign};
use crate::downloads::DownloadSet;
use crate::text::TextRecipe;
use crate::workflow::StandardWorkflow;
use crate::{Error, Module, Result};
use model_patches::PatchRun;

pub use alterations::{Alteration, Amount, BlockGroup, FreeU, Placed, Recording, Shrink};
pub use pass::ForwardProbed;

/// Every family of diffusion models, in the order in which files are tried.
pub const FAMILIES: &[&DiffusionFamily] = &[
    &flux::FAMILY,
    &sd3::FAMILY,
    &sd15::FAMILY,
    &sd2::FAMILY,
    &sdxl::FAMILY,
    &svd::FAMILY,
    &z_image::FAMILY,
    &qwen_image::FAMILY,
    &chroma::FAMILY,
    &flux2::FAMILY,
    &hidream::FAMILY,
    &wan::FAMILY,
    &hunyuan_video::FAMILY,
    &hunyuan_video_15::FAMILY,
    &ltxv::FAMILY,
    &mochi::FAMILY,
    &krea2::FAMILY,
    &flux3::FAMILY,
    &kandinsky5::FAMILY,
    &cosmos::FAMILY,
    &qwen_image21::FAMILY,
    &chroma_radiance::FAMILY,
];

/// What the rest of the program asks of a family before one of its files is read.
pub struct DiffusionFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What of it can run, for people.
    pub variants: &'static str,
    /// Its name on the command line, which is that of its folder.
    pub key: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its models.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn Diffusion>>,
    /// Whom a text is encoded by for it, the usual way first.
    pub text: &'static [&'static TextRecipe],
    /// What `draw` and the templates run.
    pub workflow: StandardWorkflow,
    /// What people download for it.
    pub downloads: &'static [DownloadSet],
    /// The usual one of its released sizes.
    pub released: ReleasedModel,
    /// The same in a size that two processor cores can run.
    pub small: ReleasedModel,
}

/// A model that was released: what a file of it has, for measuring without the file.
pub struct ReleasedModel {
    /// Its name in the field.
    pub name: &'static str,
    /// The names and shapes of its tensors, with at most so many blocks of each kind.
    pub tensors: fn(usize) -> Vec<(String, Shape)>,
    /// Pixels of the picture that it is measured with, along one side.
    pub pixels: usize,
    /// Values per token of the text encoders that it takes, by their keys, in the order of its recipe.
    pub encoders: &'static [(&'static str, usize)],
    /// Tokens of text that it is measured with.
    pub tokens: usize,
    /// The factor of guidance that is usual; at one there is a single evaluation per step.
    pub cfg: f64,
}

/// A diffusion model that was read from a file.
pub trait Diffusion: Module {
    /// Its latents.
    fn latent(&self) -> &'static LatentSpec;

    /// How it reads noise, unless a node says otherwise.
    fn sampling(&self) -> ModelSampling;

    /// What patch files call its layers.
    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap;

    /// What the part of a latent that stays is, while the rest is made new.
    fn kept(&self) -> Kept {
        Kept::Noised
    }

    /// What it has a use for beside a text.
    fn takes(&self) -> &'static [CondInput];

    /// Whether it can depart from its training in this way. What it cannot is left out of evaluations.
    fn knows(&self, alteration: &Alteration) -> bool {
        let _ = alteration;
        false
    }

    /// An empty conditioning of these sizes, as a rehearsal needs it.
    fn blank(&self, shape: &CondShape) -> Cond;

    /// Starts a run: what does not change within it (projected text, rotary tables) is brought to the device once.
    fn start<'a>(
        &'a self,
        session: &'a Session,
        conds: &[Conditioned<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn DiffusionRun + 'a>>;
}

/// What a model is shown where a mask says that the latent stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The latent at the level of the rest.
    Noised,
    /// The latent as it is: the model is told where it is clean.
    Clean,
}

/// A diffusion model with its conditionings, at a latent size.
pub trait DiffusionRun {
    /// What the model gives for all evaluations of a step, in their order, in one pass over its blocks: a block is
    /// leased once and every evaluation runs through it before the lease is dropped, so weights that stream travel once
    /// however many conditionings there are. Evaluations of equal shapes run as one batch; whether they do is decided by
    /// shapes alone, and on the CPU each gives the same bits as by itself.
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<Tensor>>;

    /// The same with patches of the model, in the order in which nodes said them.
    fn forward_patched(
        &self,
        evaluations: &[Evaluation<'_>],
        patches: &[&dyn PatchRun],
    ) -> Result<Vec<Tensor>> {
        if patches.is_empty() {
            return self.forward(evaluations);
        }
        Err(Error::Input {
            what: "a model patch",
            expected: "for a model that takes one".into(),
            got: "given to one that takes none".into(),
        })
    }
}

/// One evaluation of a diffusion model.
#[derive(Clone, Copy, Debug)]
pub struct Evaluation<'a> {
    /// Which of the run's conditionings, by its place.
    pub cond: usize,
    /// The noisy latent, `[batch, channels, height, width]`, or with frames before the height.
    pub latent: &'a Tensor,
    /// The model's time, as its sampling gives it for the level of noise.
    pub time: f32,
    /// What control networks add inside of the model.
    pub control: Option<&'a ControlResiduals>,
    /// How it departs from the model as it was trained.
    pub altered: &'a [Alteration],
}

impl<'a> Evaluation<'a> {
    /// An evaluation of the model as it was trained.
    #[must_use]
    pub fn new(cond: usize, latent: &'a Tensor, time: f32) -> Evaluation<'a> {
        Evaluation { cond, latent, time, control: None, altered: &[] }
    }
}

/// What control networks add to the activations of a diffusion model, by the part of it and in the order of its blocks. A
/// place without a tensor is left as it is.
#[derive(Clone, Debug, Default)]
pub struct ControlResiduals {
    /// Added on the way in: to the input blocks of a UNet, to the first kind of blocks of a transformer.
    pub input: Vec<Option<Tensor>>,
    /// Added in the middle of a UNet.
    pub middle: Vec<Option<Tensor>>,
    /// Added on the way out: to what a UNet's output blocks get from its input blocks, to the second kind of blocks of a
    /// transformer.
    pub output: Vec<Option<Tensor>>,
}

impl fmt::Debug for DiffusionFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
