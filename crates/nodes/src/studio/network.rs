//! What a handle stands for: one network of a file, and how it is to be loaded.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use checkpoint::Checkpoint;
use meta::{DeviceId, Shape};
use models::detect::{Detected, Family, FluxVariant, Part, Role};
use models::diffusion::flux::Flux;
use models::text::{TextEncoder, TextTokenizer};
use models::vae::kl::Kl;
use models::vision::florence2::{Florence2, Florence2Tokenizer, Rules, Settings};
use placement::AllocationText;
use residency::{Manifest, Retention};

use super::{Cast, WorkSize};
use crate::{Error, Result};

/// What the text encoders work in: a prompt is short, and so are its activations.
const TEXT_WORKING_BYTES: u64 = 64 << 20;
/// The tokens of a prompt that its encoder's time is predicted for.
const USUAL_TOKENS: usize = 256;

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
    pub(crate) cast: Option<Cast>,
    pub(crate) placing: Placing,
    /// When the file was last changed: a changed file is another model.
    pub(crate) modified: Option<SystemTime>,
    weights: OnceLock<Vec<(String, Shape)>>,
}

impl Source {
    /// The diffusion model of a file.
    pub(crate) fn diffusion(
        file: &Arc<Checkpoint>,
        found: &Detected,
        cast: Option<Cast>,
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
        cast: Option<Cast>,
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

    /// What the network needs, of its file as it is or as it is cast. The size says how long blocks take.
    pub(crate) fn manifest(&self, size: WorkSize) -> Result<Manifest> {
        match self.cast {
            Some(cast) => {
                let cast = cast.apply(&self.file)?;
                // The values that were cast are worth nothing if the file changed meanwhile.
                self.file.verify()?;
                self.manifest_of(&cast, size)
            }
            None => self.manifest_of(&self.file, size),
        }
    }

    fn manifest_of(&self, file: &Checkpoint, size: WorkSize) -> Result<Manifest> {
        Ok(match &self.network {
            Network::Flux(flux, _) => {
                flux.manifest(file, flux.tokens(size.batch, size.height, size.width, size.text))?
            }
            Network::Text(text) => text.0.manifest(file, USUAL_TOKENS)?,
            Network::Kl(kl) => kl.manifest(file, size.height * PIXELS, size.width * PIXELS)?,
            Network::Florence2(captioner) => captioner.model.manifest(file)?,
        })
    }

    /// Operations of one evaluation at a size.
    pub(crate) fn operations(&self, size: WorkSize) -> Result<u64> {
        let manifest = self.manifest_of(&self.file, size)?;
        Ok(manifest.blocks().iter().fold(0, |sum: u64, block| sum.saturating_add(block.flops)))
    }

    /// Bytes to work in at a size, with elements of this many bytes.
    pub(crate) fn working_bytes(&self, size: WorkSize, element_bytes: usize) -> u64 {
        match &self.network {
            Network::Flux(flux, _) => {
                let tokens = flux.tokens(size.batch, size.height, size.width, size.text);
                flux.working_bytes(tokens, element_bytes)
            }
            Network::Text(_) => TEXT_WORKING_BYTES,
            // It works in tiles where a whole picture has no room.
            Network::Kl(kl) => {
                kl.working_bytes(size.height.min(64) * PIXELS, size.width.min(64) * PIXELS, element_bytes)
            }
            Network::Florence2(captioner) => captioner.model.working_bytes(element_bytes),
        }
    }

    /// Bytes that move when the next block computes on another device.
    pub(crate) fn activation_bytes(&self, size: WorkSize, element_bytes: usize) -> u64 {
        match &self.network {
            Network::Flux(flux, _) => {
                let tokens = flux.tokens(size.batch, size.height, size.width, size.text);
                flux.activation_bytes(tokens, element_bytes)
            }
            Network::Text(text) => (text.0.width() * USUAL_TOKENS * element_bytes) as u64,
            Network::Kl(_) | Network::Florence2(_) => 0,
        }
    }

    /// The names and shapes of the weights.
    pub(crate) fn weights(&self) -> Result<&[(String, Shape)]> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        // Casting changes neither names nor shapes.
        let manifest = self.manifest_of(&self.file, WorkSize::USUAL)?;
        let weights = manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
        Ok(self.weights.get_or_init(|| weights))
    }
}

/// Pixels along one side of a latent value.
const PIXELS: usize = 8;

fn not_yet(found: &Detected, part: &Part, known: &str) -> Error {
    Error::Told(format!("{} is {part}, which cannot be run yet; what can is {known}", found.file))
}
