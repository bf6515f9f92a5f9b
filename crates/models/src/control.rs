//! Control networks: they look at a picture beside the latent and add to the activations inside of a diffusion model. One
//! line in [`FAMILIES`] for each kind; what belongs to a family of diffusion models stands in its folder.
//!
//! ```text
//! Checkpoint ── detect ──> Part ── ControlFamily::read ──> dyn ControlNetwork ── manifest ──> plan, load, open
//!                                                             │                               │
//!              ControlResiduals <── forward (every step) ─────┴─ start (once a run) <── Session
//! ```

use std::fmt;

use checkpoint::Checkpoint;
use meta::Shape;
use patch::{KeyMap, PatchFile};
use residency::Session;
use sampling::LatentSpec;
use tensor::Tensor;

use crate::conditioning::{Array, Cond, CondShape, Scene};
use crate::detect::{Part, Sign};
use crate::diffusion::{ControlResiduals, Evaluation, flux, qwen_image, sd2, sd3, sd15, sdxl};
use crate::{Error, Module, Result};

/// Every kind of control networks, in the order in which files are tried.
pub const FAMILIES: &[&ControlFamily] = &[
    &flux::CONTROL,
    &sd3::CONTROL,
    &sd3::IMAGE_CONTROL,
    &qwen_image::CONTROL,
    &sd15::CONTROL,
    &sd2::CONTROL,
    &sdxl::CONTROL,
    &sd15::ADAPTER,
    &sdxl::ADAPTER,
];

/// What the rest of the program asks of a kind before one of its files is read.
pub struct ControlFamily {
    /// Its name in the field.
    pub name: &'static str,
    /// What gives its files away.
    pub signs: &'static [Sign],
    /// Reads the sizes of one of its networks.
    pub read: fn(&Checkpoint, &Part) -> Result<Box<dyn ControlNetwork>>,
    /// A network as it was released, for measuring without its file; none if it is not measured.
    pub released: Option<ReleasedControl>,
}

/// A control network as it was released.
pub struct ReleasedControl {
    /// The family of diffusion models that it is for, by name.
    pub controls: &'static str,
    /// The names and shapes of its tensors beside a model that has these.
    pub tensors: fn(&[NamedShape]) -> Vec<NamedShape>,
}

/// The name and the shape of a tensor.
pub type NamedShape = (String, Shape);

/// A control network that was read from a file.
pub trait ControlNetwork: Module {
    /// The families of diffusion models that it is for, by name.
    fn controls(&self) -> &'static [&'static str];

    /// What it looks at.
    fn hint(&self) -> HintSpec;

    /// Channels of the latents of the models that it is for.
    fn latent_channels(&self) -> usize;

    /// Whether the latents of the models that it is for have frames.
    fn has_frames(&self) -> bool {
        false
    }

    /// How many kinds of pictures it can be told apart; none if it knows one only.
    fn picture_kinds(&self) -> usize {
        0
    }

    /// Whether it has weights of the model that it controls, and cannot be loaded without it.
    fn needs_base(&self) -> bool {
        false
    }

    /// The same with what it takes of the model that it controls: from its own file, and a part of the model's.
    fn on_base(&self, own: &Checkpoint, base: (&Checkpoint, &Part)) -> Result<Box<dyn ControlNetwork>> {
        Err(Error::Input {
            what: "a control network",
            expected: "one that has weights of the model that it controls".into(),
            got: format!("{}, which needs nothing of {}", own.path().display(), base.0.path().display()),
        })
    }

    /// What is patched into the weights that it takes of a model.
    fn patches(&self) -> Option<&PatchFile> {
        None
    }

    /// What patch files call its layers.
    fn patch_keys(&self, weights: &[(String, Shape)]) -> KeyMap {
        KeyMap::native(weights.iter().map(|(name, shape)| (name.as_str(), shape)))
    }

    /// An empty conditioning of these sizes, as a rehearsal needs it.
    fn blank(&self, shape: &CondShape) -> Cond;

    /// Starts a run: pictures and texts go through their layers once.
    fn start<'a>(
        &'a self,
        session: &'a Session,
        controlled: &[Controlled<'_>],
        scene: &Scene<'_>,
    ) -> Result<Box<dyn ControlRun + 'a>>;
}

/// A control network with its pictures and conditionings.
pub trait ControlRun {
    /// What the network gives for all evaluations of a step, in their order, in one pass over its blocks. Conditionings are
    /// those that the run was started with, by their places; what else control networks give is not looked at.
    fn forward(&self, evaluations: &[Evaluation<'_>]) -> Result<Vec<ControlResiduals>>;
}

/// A conditioning with the picture that controls it.
#[derive(Clone, Copy, Debug)]
pub struct Controlled<'a> {
    /// What the diffusion model is conditioned on.
    pub cond: &'a Cond,
    /// The picture as [`HintSpec`] says, `[items, channels, height, width]`.
    pub hint: &'a Array,
    /// What kind of picture it is, for a network that knows several.
    pub picture_kind: Option<usize>,
}

/// What a control network looks at.
#[derive(Clone, Copy, Debug)]
pub struct HintSpec {
    /// Pixels or latents.
    pub form: HintForm,
    /// What becomes of every value of the picture first.
    pub preparing: fn(f32) -> f32,
    /// Whether a mask is one more channel; ones everywhere if none is given.
    pub takes_mask: bool,
}

/// The form of a picture for a control network.
#[derive(Clone, Copy, Debug)]
pub enum HintForm {
    /// Pixels of values from 0 to 1.
    Pixels {
        /// How many along each side of a latent value.
        per_value: usize,
        /// Sides are brought to a multiple of this.
        multiple: usize,
        /// Channels: one is the mean of all that the picture has.
        channels: usize,
    },
    /// A latent of the picture, by the autoencoder of the diffusion model, scaled as such latents are.
    Latent(&'static LatentSpec),
}

impl HintSpec {
    /// Pixels, eight along each side of a latent value.
    #[must_use]
    pub fn pixels(channels: usize) -> HintSpec {
        let form = HintForm::Pixels { per_value: 8, multiple: 1, channels };
        HintSpec { form, preparing: |value| value, takes_mask: false }
    }

    /// The shape of the picture for a latent of a size: channels, height and width.
    #[must_use]
    pub fn shape(&self, height: usize, width: usize) -> [usize; 3] {
        let mask = usize::from(self.takes_mask);
        match self.form {
            HintForm::Pixels { per_value, multiple, channels } => {
                let side = |values: usize| (values * per_value).next_multiple_of(multiple);
                [channels + mask, side(height), side(width)]
            }
            HintForm::Latent(spec) => [spec.channels + mask, height, width],
        }
    }
}

/// The results of a network that has fewer blocks than the model that it controls, for as many of the model's blocks: each
/// for some in a row.
pub(crate) fn in_rows(results: &[Tensor], blocks: usize) -> Vec<Option<Tensor>> {
    let repeats = blocks.div_ceil(results.len().max(1));
    let all = results.iter().flat_map(|result| std::iter::repeat_n(Some(result.clone()), repeats));
    all.take(blocks).collect()
}

/// The same, all of them again and again.
pub(crate) fn in_turns(results: &[Tensor], blocks: usize) -> Vec<Option<Tensor>> {
    results.iter().cloned().map(Some).cycle().take(if results.is_empty() { 0 } else { blocks }).collect()
}

impl Controlled<'_> {
    /// The picture's axes: items, channels, height and width, of which the channels must be these.
    pub(crate) fn hint_axes(&self, channels: usize) -> Result<[usize; 4]> {
        let axes: [usize; 4] = self.hint.axes("the control picture", "items, channels, height and width")?;
        if axes[1] == channels {
            return Ok(axes);
        }
        Err(Error::Input {
            what: "the control picture",
            expected: format!("of {channels} channels"),
            got: format!("of {}", axes[1]),
        })
    }
}

impl fmt::Debug for ControlFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
