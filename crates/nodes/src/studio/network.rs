//! What a handle stands for: one network of a file, and how it is to be loaded.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use checkpoint::Checkpoint;
use meta::{DType, DeviceId, Shape};
use models::detect::{Detected, Family, FluxVariant, Part, Role};
use models::diffusion::flux::Flux;
use models::text::{TextEncoder, TextTokenizer};
use models::vae::kl::Kl;
use models::vision::florence2::{Florence2, Florence2Tokenizer, Rules, Settings};
use placement::AllocationText;
use residency::{Manifest, ModelClaim, Retention};

use crate::{Error, Result};

/// Where a network is put, and whether it stays.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    /// Where it computes.
    pub(crate) compute: DeviceId,
    /// Where its bytes go.
    pub(crate) allocation: AllocationText,
    /// Whether it stays when models are asked to leave.
    pub(crate) retention: Retention,
    /// Whether others leave its compute device before it is loaded.
    pub(crate) eject_others: bool,
}

impl Placing {
    /// All of it on a device, as far as there is room.
    pub(crate) fn automatic(compute: DeviceId) -> Placing {
        Placing {
            compute,
            allocation: AllocationText::automatic(),
            retention: Retention::Default,
            eject_others: false,
        }
    }
}

/// A network that can run.
#[derive(Clone, Debug)]
pub(crate) enum Network {
    /// A FLUX.1 diffusion model.
    Flux(Flux, FluxVariant),
    /// A text encoder with its tokenizer.
    Text(Box<(TextEncoder, TextTokenizer)>),
    /// A KL autoencoder.
    Kl(Kl),
    /// A Florence-2 vision model.
    Florence2(Box<Captioner>),
}

impl Network {
    /// What it is, for people.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Network::Flux(..) => "a diffusion model",
            Network::Text(_) => "a text encoder",
            Network::Kl(_) => "an autoencoder",
            Network::Florence2(_) => "a vision model",
        }
    }

    /// Pixels along one side of a latent value.
    pub(crate) fn pixels_per_value(&self) -> usize {
        match self {
            Network::Kl(kl) => kl.config().factor(),
            Network::Flux(..) | Network::Text(_) | Network::Florence2(_) => 8,
        }
    }

    /// The element types that its activations may have, the preferred one first.
    pub(crate) fn activations(&self) -> &'static [DType] {
        match self {
            Network::Flux(flux, _) => flux.activations(),
            Network::Text(text) => text.0.activations(),
            Network::Kl(kl) => kl.activations(),
            Network::Florence2(captioner) => captioner.model.activations(),
        }
    }
}

/// A model that describes pictures, with what else it needs to write.
#[derive(Clone, Debug)]
pub(crate) struct Captioner {
    pub(crate) model: Florence2,
    pub(crate) tokenizer: Florence2Tokenizer,
    pub(crate) rules: Rules,
}

/// One network of a file, and how it is to be loaded.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) file: Arc<Checkpoint>,
    pub(crate) network: Network,
    /// What stands before the names of its tensors: tells the networks of one file apart.
    pub(crate) prefix: String,
    /// The type that weights are cast to when they are staged, if `weight_dtype` asks for one.
    pub(crate) cast: Option<DType>,
    pub(crate) placing: Placing,
    /// When the file was last changed: a changed file is another model.
    pub(crate) modified: Option<SystemTime>,
    weights: OnceLock<Vec<(String, Shape)>>,
    /// Keeps what it is registered as from being superseded away.
    claim: Mutex<Option<ModelClaim>>,
}

impl Source {
    /// The diffusion model of a file.
    pub(crate) fn diffusion(
        file: &Arc<Checkpoint>,
        found: &Detected,
        cast: Option<DType>,
        placing: Placing,
    ) -> Result<Source> {
        let part = found.part(Role::Diffusion, "a diffusion model")?;
        let Family::Flux(variant) = part.family else {
            return Err(not_yet(found, part, "FLUX.1 dev, schnell, Fill, Canny, Depth and Kontext"));
        };
        let network = Network::Flux(Flux::read(file, found)?, variant);
        Ok(Source::new(file, network, part, cast, placing))
    }

    /// The autoencoder of a file.
    pub(crate) fn autoencoder(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        let part = found.part(Role::Autoencoder, "an autoencoder")?;
        if !matches!(part.family, Family::Kl { .. }) {
            return Err(not_yet(found, part, "the KL autoencoders of FLUX.1, SD and SDXL"));
        }
        let network = Network::Kl(Kl::read(file, found)?);
        Ok(Source::new(file, network, part, None, placing))
    }

    /// Every text encoder of a file.
    pub(crate) fn encoders(
        file: &Arc<Checkpoint>,
        found: &Detected,
        placing: &Placing,
    ) -> Result<Vec<Source>> {
        found.part(Role::Text, "a text encoder")?;
        let read = |part: &Part| {
            if matches!(part.family, Family::Named(_)) {
                return Err(not_yet(found, part, "CLIP, T5 and UMT5"));
            }
            let encoder = TextEncoder::read(file, found, part)?;
            let tokenizer = TextTokenizer::for_encoder(file, &encoder)?;
            let network = Network::Text(Box::new((encoder, tokenizer)));
            Ok(Source::new(file, network, part, None, placing.clone()))
        };
        found.parts_for(Role::Text).map(read).collect()
    }

    /// The vision model of a file, with what lies beside it.
    pub(crate) fn vision(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        let settings = Settings::beside(file)?;
        let model = Florence2::read(file, found, &settings)?;
        let tokenizer = Florence2Tokenizer::beside(file)?;
        let network = Network::Florence2(Box::new(Captioner { model, tokenizer, rules: settings.rules }));
        Ok(Source::new(file, network, Florence2::part(found)?, None, placing))
    }

    fn new(
        file: &Arc<Checkpoint>,
        network: Network,
        part: &Part,
        cast: Option<DType>,
        placing: Placing,
    ) -> Source {
        Source {
            file: Arc::clone(file),
            network,
            prefix: part.prefix.clone(),
            cast,
            placing,
            modified: super::modified(file.path()),
            weights: OnceLock::new(),
            claim: Mutex::default(),
        }
    }

    /// The file's name, for people.
    pub(crate) fn name(&self) -> String {
        let path = self.file.path();
        path.file_name()
            .map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
    }

    /// Whether the file is as it was when it was opened. If it is not, it has to be opened anew.
    pub(crate) fn is_current(&self) -> bool {
        self.file.verify().is_ok()
    }

    /// Holds the registration that it was loaded as, for as long as somebody holds the handle.
    pub(super) fn hold(&self, claim: ModelClaim) {
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
    }

    /// What the network needs, its weights as they are or cast on their way.
    pub(crate) fn manifest(&self) -> Result<Manifest> {
        let manifest = match &self.network {
            Network::Flux(flux, _) => flux.manifest(&self.file)?,
            Network::Text(text) => text.0.manifest(&self.file)?,
            Network::Kl(kl) => kl.manifest(&self.file)?,
            Network::Florence2(captioner) => captioner.model.manifest(&self.file)?,
        };
        // A file whose weights have scales beside them is 8 bits wide already.
        let scaled = || self.file.entries().iter().any(|entry| self.file.is_companion(entry));
        match self.cast {
            Some(dtype) if !scaled() => manifest.kept_as(dtype).map_err(|error| self.cannot_cast(error)),
            _ => Ok(manifest),
        }
    }

    /// Why the weights cannot be cast, by the names that the file has.
    fn cannot_cast(&self, error: residency::Error) -> Error {
        let residency::Error::CannotCast { weight, encoding, to, .. } = error else { return error.into() };
        Error::Told(format!(
            "{}: {}{weight} is stored as {encoding}, which cannot be cast to {}; load it with the weight_dtype \
             \"default\"",
            self.file.path().display(),
            self.prefix,
            to.name().to_uppercase(),
        ))
    }

    /// The names and shapes of the weights.
    pub(crate) fn weights(&self) -> Result<&[(String, Shape)]> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let manifest = self.manifest()?;
        let weights = manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
        Ok(self.weights.get_or_init(|| weights))
    }
}

fn not_yet(found: &Detected, part: &Part, known: &str) -> Error {
    Error::Told(format!("{} is {part}, which cannot be run yet; what can is {known}", found.file))
}
