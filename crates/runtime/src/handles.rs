//! The values of `MODEL`, `CLIP`, `VAE`, `CONTROL_NET` and `MODEL_PATCH` links: handles that are cheap to copy and load on use.

use std::fmt;
use std::sync::Arc;

use graph::Object;
use models::conditioning::Array;
use models::diffusion::Diffusion;
use models::text::{Layer, TextModel, TextRecipe};
use sampling::{LatentSpec, ModelSampling};

use crate::host::Values;
use crate::{Error, Guidance, Network, Result, Source, WeightPatch};

/// A diffusion model, with what nodes changed about it: `MODEL`.
#[derive(Clone)]
pub struct Model {
    /// Where it comes from.
    pub source: Arc<Source>,
    /// What is patched into it.
    pub loras: Vec<WeightPatch>,
    /// How it reads noise.
    pub sampling: Arc<ModelSampling>,
    /// How much masks become thresholds over the steps, if they do.
    pub differential: Option<f64>,
    /// What nodes changed about its steps.
    pub guidance: Guidance,
    /// What changes its image between blocks, in the order in which nodes said it.
    pub patches: Vec<Arc<Patching>>,
    /// What style networks made of pictures: tokens before those of every text.
    pub in_front: Option<Arc<Array>>,
    /// On how many accelerators the evaluations of a step may run at the same time.
    pub most_devices: usize,
}

/// Text encoders that belong together: `CLIP`.
#[derive(Clone)]
pub struct Clip {
    /// How texts are encoded.
    pub recipe: &'static TextRecipe,
    /// Where the encoders come from.
    pub encoders: Vec<Arc<Source>>,
    /// What looks at pictures for them, if their file has such a network.
    pub tower: Option<Arc<Source>>,
    /// What is patched into them.
    pub loras: Vec<WeightPatch>,
    /// The layer so many from the end, if a node said so.
    pub skip: Option<usize>,
    /// What a node said of the length of prompts without chunks: at least so many tokens, and so much padding.
    pub lengths: Option<(usize, usize)>,
}

/// An autoencoder: `VAE`.
#[derive(Clone)]
pub struct Vae {
    /// Where it comes from.
    pub source: Arc<Source>,
}

/// A control network: `CONTROL_NET`.
#[derive(Clone)]
pub struct ControlNet {
    /// Where it comes from.
    pub source: Arc<Source>,
    /// What kind of picture it is told that it sees, if it knows several.
    pub picture_kind: Option<usize>,
    /// Whether each result is the mean over the whole picture, as networks for colours want it.
    pub averages: bool,
}

/// A patch of diffusion models: `MODEL_PATCH`.
#[derive(Clone)]
pub struct ModelPatch {
    /// Where it comes from.
    pub source: Arc<Source>,
}

/// A patch of a model with what it looks at.
#[derive(Debug)]
pub struct Patching {
    /// The patch.
    pub patch: Arc<ModelPatch>,
    /// The autoencoder that makes latents of pictures.
    pub vae: Arc<Vae>,
    /// The picture that the model is to follow.
    pub picture: Option<Pixels>,
    /// The picture of which some stays.
    pub rest: Option<Pixels>,
    /// Where it stays, with one channel.
    pub kept: Option<Pixels>,
    /// How much it counts.
    pub strength: f32,
}

/// Pictures or masks, `[batch, height, width, channels]`, in the host's ledger.
#[derive(Clone)]
pub struct Pixels {
    /// Batch, height, width and channels.
    pub shape: [usize; 4],
    /// The values, the last axis fastest.
    pub values: Values,
}

impl fmt::Debug for Pixels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pixels of shape {:?}", self.shape)
    }
}

impl Patching {
    fn is_current(&self) -> bool {
        self.patch.source.is_current() && self.vae.source.is_current()
    }
}

impl Model {
    /// The model as its file has it.
    ///
    /// # Errors
    /// The file is no diffusion model.
    pub fn new(source: Source) -> Result<Model> {
        let sampling = diffusion_of(&source)?.sampling();
        Ok(Model {
            source: Arc::new(source),
            loras: Vec::new(),
            sampling: Arc::new(sampling),
            differential: None,
            guidance: Guidance::default(),
            patches: Vec::new(),
            in_front: None,
            most_devices: 1,
        })
    }

    /// The network.
    ///
    /// # Errors
    /// It is no diffusion model, which loaders do not let happen.
    pub fn diffusion(&self) -> Result<&dyn Diffusion> {
        diffusion_of(&self.source)
    }

    /// Its latents.
    ///
    /// # Errors
    /// As [`Model::diffusion`].
    pub fn latent(&self) -> Result<&'static LatentSpec> {
        Ok(self.diffusion()?.latent())
    }

    /// The same model that reads noise in another way.
    pub fn with_sampling(&self, sampling: ModelSampling) -> Model {
        Model { sampling: Arc::new(sampling), ..self.clone() }
    }
}

fn diffusion_of(source: &Source) -> Result<&dyn Diffusion> {
    match &*source.network {
        Network::Diffusion(model, _) => Ok(&**model),
        _ => Err(Error::Told(format!("{} is no diffusion model", source.name()))),
    }
}

impl Clip {
    /// Encoders for a family's recipe.
    #[must_use]
    pub fn new(recipe: &'static TextRecipe, encoders: Vec<Source>) -> Clip {
        let encoders = encoders.into_iter().map(Arc::new).collect();
        Clip { recipe, encoders, tower: None, loras: Vec::new(), skip: None, lengths: None }
    }

    /// The encoder of a key, and where it comes from.
    #[must_use]
    pub fn encoder(&self, key: &str) -> Option<(&Arc<Source>, &TextModel)> {
        self.encoders.iter().find_map(|source| match &*source.network {
            Network::Text(text) if text.encoder.key() == key => Some((source, text)),
            _ => None,
        })
    }

    /// The layer that CLIP's result is taken from, for an encoder that is used with `usual`.
    pub fn layer(&self, usual: Layer) -> Layer {
        match (self.skip, usual) {
            (None, usual) => usual,
            (Some(skip), Layer::SkipRaw(_)) => Layer::SkipRaw(skip),
            (Some(skip), _) => Layer::Skip(skip),
        }
    }
}

impl Source {
    /// What files and recipes call it, if it is a text encoder.
    #[must_use]
    pub fn encoder_key(&self) -> Option<&'static str> {
        match &*self.network {
            Network::Text(text) => Some(text.encoder.key()),
            _ => None,
        }
    }
}

macro_rules! handles {
    ($($name:ident => |$value:ident| $text:expr, $is_current:expr;)*) => {
        $(
            impl Object for $name {
                fn describe(&self) -> String {
                    let $value = self;
                    $text
                }

                fn is_current(&self) -> bool {
                    let $value = self;
                    $is_current
                }
            }

            impl fmt::Debug for $name {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str(&self.describe())
                }
            }
        )*
    };
}

handles! {
    Model => |it| format!("model {} with {} patches", it.source.name(), it.loras.len()),
        it.source.is_current()
            && it.loras.iter().all(WeightPatch::is_current)
            && it.patches.iter().all(|patching| patching.is_current());
    Clip => |it| {
        let names: Vec<String> = it.encoders.iter().map(|encoder| encoder.name()).collect();
        format!("text encoders {}", names.join(", "))
    },
        it.encoders.iter().all(|encoder| encoder.is_current()) && it.loras.iter().all(WeightPatch::is_current);
    Vae => |it| format!("autoencoder {}", it.source.name()), it.source.is_current();
    ControlNet => |it| format!("control network {}", it.source.name()), it.source.is_current();
    ModelPatch => |it| format!("model patch {}", it.source.name()), it.source.is_current();
}
