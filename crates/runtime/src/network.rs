//! What a handle stands for: one network of a file, and how it is to be loaded.

use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::SystemTime;

use checkpoint::Checkpoint;
use meta::{DType, DeviceId, Encoding, Shape};
use models::Module;
use models::audio::{self, AudioEncoder};
use models::control::{self, ControlNetwork};
use models::detect::{Detected, Part, Reader, Role};
use models::diffusion::model_patches::{self, PatchNetwork};
use models::diffusion::{self, Diffusion, DiffusionFamily};
use models::latent_upscale::{self, LatentUpscaler};
use models::text::{self, TextModel};
use models::upscale::{self, Upscaler};
use models::vae::{self, Autoencoder};
use models::vision::{self, VisionModel};
use placement::AllocationText;
use residency::{Manifest, ModelClaim, Products, Retention};

use crate::loading::Identity;
use crate::{Error, Result};

/// Where a network is put, and whether it stays.
#[derive(Clone, Debug)]
pub struct Placing {
    /// Where it computes.
    pub compute: DeviceId,
    /// Whether that is only where the worker that loaded it computes: another worker that uses it computes on its own
    /// device.
    pub follows: bool,
    /// Where its bytes go.
    pub allocation: AllocationText,
    /// Whether it stays when models are asked to leave.
    pub retention: Retention,
    /// Whether others leave its compute device before it is loaded.
    pub eject_others: bool,
}

impl Placing {
    /// All of it on a device, as far as there is room.
    pub fn automatic(compute: DeviceId) -> Placing {
        Placing {
            compute,
            follows: false,
            allocation: AllocationText::automatic(),
            retention: Retention::Default,
            eject_others: false,
        }
    }

    /// The same on the device of whoever uses it.
    pub fn following(compute: DeviceId) -> Placing {
        Placing { follows: true, ..Placing::automatic(compute) }
    }
}

/// A network that can run, by what it is for.
#[derive(Debug)]
pub enum Network {
    /// A diffusion model, and its family.
    Diffusion(Box<dyn Diffusion>, &'static DiffusionFamily),
    /// A text encoder with its tokenizer.
    Text(TextModel),
    /// An autoencoder.
    Autoencoder(Box<dyn Autoencoder>),
    /// A vision model.
    Vision(Box<dyn VisionModel>),
    /// An audio encoder.
    Audio(Box<dyn AudioEncoder>),
    /// A control network.
    Control(Box<dyn ControlNetwork>),
    /// A patch of a diffusion model.
    ModelPatch(Box<dyn PatchNetwork>),
    /// An upscaler.
    Upscale(Box<dyn Upscaler>),
    /// A network that makes latents larger.
    LatentUpscale(Box<dyn LatentUpscaler>),
}

impl Network {
    /// What it is, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Network::Diffusion(..) => "a diffusion model",
            Network::Text(_) => "a text encoder",
            Network::Autoencoder(_) => "an autoencoder",
            Network::Vision(_) => "a vision model",
            Network::Audio(_) => "an audio encoder",
            Network::Control(_) => "a control network",
            Network::ModelPatch(_) => "a model patch",
            Network::Upscale(_) => "an upscaler",
            Network::LatentUpscale(_) => "an upscaler of latents",
        }
    }

    /// Pixels along one side of a latent value.
    pub fn pixels_per_value(&self) -> usize {
        match self {
            Network::Diffusion(model, _) => model.latent().pixels_per_value,
            Network::Autoencoder(autoencoder) => autoencoder.pixels_per_value(),
            // They know no latents; pictures are counted as most latents count them.
            Network::Text(_)
            | Network::Vision(_)
            | Network::Audio(_)
            | Network::Control(_)
            | Network::ModelPatch(_)
            | Network::Upscale(_)
            | Network::LatentUpscale(_) => 8,
        }
    }

    /// Frames of a video behind the first that one frame of its latents stands for; none where it makes pictures.
    pub fn frames_per_value(&self) -> Option<usize> {
        match self {
            Network::Diffusion(model, _) => model.latent().frames_per_value,
            Network::Autoencoder(autoencoder) => autoencoder.frames_per_value(),
            _ => None,
        }
    }

    /// What placing and loading ask of it.
    pub fn module(&self) -> &dyn Module {
        match self {
            Network::Diffusion(model, _) => &**model,
            Network::Text(text) => &*text.encoder,
            Network::Autoencoder(autoencoder) => &**autoencoder,
            Network::Vision(vision) => &**vision,
            Network::Audio(audio) => &**audio,
            Network::Control(control) => &**control,
            Network::ModelPatch(patch) => &**patch,
            Network::Upscale(upscaler) => &**upscaler,
            Network::LatentUpscale(upscaler) => &**upscaler,
        }
    }

    /// The element types that its activations may have, the preferred one first.
    pub fn activations(&self) -> &'static [DType] {
        self.module().activations()
    }
}

/// A model that another network has weights of.
#[derive(Clone, Debug)]
struct Base {
    file: Arc<Checkpoint>,
    identity: Identity,
}

/// One network of a file, and how it is to be loaded.
#[derive(Debug)]
pub struct Source {
    /// The file.
    pub file: Arc<Checkpoint>,
    /// The network.
    pub network: Arc<Network>,
    /// Which part of the file it is: its prefix tells the networks of one file apart.
    pub part: Part,
    /// The type that weights are cast to when they are staged, if `weight_dtype` asks for one.
    pub cast: Option<DType>,
    /// Which of its products are of 8 bits, where the device has such.
    pub products: Products,
    /// Where it goes.
    pub placing: Placing,
    /// Where it goes as its loader said it.
    said: Placing,
    /// When the file was last changed: a changed file is another model.
    pub modified: Option<SystemTime>,
    weights: OnceLock<Vec<(String, Shape)>>,
    /// The model that it has weights of, if it has.
    base: Option<Base>,
    /// Keeps what it is registered as from being superseded away.
    claim: Mutex<Option<ModelClaim>>,
    /// The same for other workers' devices, once they use it.
    elsewhere: Mutex<Vec<Arc<Source>>>,
}

impl Source {
    /// The diffusion model of a file.
    pub fn diffusion(
        file: &Arc<Checkpoint>,
        found: &Detected,
        cast: Option<DType>,
        placing: Placing,
    ) -> Result<Source> {
        let part = found.part(Role::Diffusion, "a diffusion model")?;
        Ok(Source { cast, ..Source::of_part(file, part, placing)? })
    }

    /// The same network with other products of 8 bits.
    #[must_use]
    pub fn with_products(self, products: Products) -> Source {
        Source { products, ..self }
    }

    /// The autoencoder of a file.
    pub fn autoencoder(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::Autoencoder, "an autoencoder")?, placing)
    }

    /// Every text encoder of a file.
    pub fn encoders(file: &Arc<Checkpoint>, found: &Detected, placing: &Placing) -> Result<Vec<Source>> {
        found.part(Role::Text, "a text encoder")?;
        found.parts_for(Role::Text).map(|part| Source::of_part(file, part, placing.clone())).collect()
    }

    /// The vision model of a file, with what lies beside it.
    pub fn vision(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::Vision, "a vision model")?, placing)
    }

    /// The audio encoder of a file.
    pub fn audio(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::Audio, "an audio encoder")?, placing)
    }

    /// The control network of a file.
    pub fn control(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::Control, "a control network")?, placing)
    }

    /// The model patch of a file.
    pub fn model_patch(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::ModelPatch, "a model patch")?, placing)
    }

    /// The model patch.
    ///
    /// # Errors
    /// It is none, which loaders do not let happen.
    pub fn patch_network(&self) -> Result<&dyn PatchNetwork> {
        match &*self.network {
            Network::ModelPatch(patch) => Ok(&**patch),
            _ => Err(Error::Told(format!(
                "{} is {}, which changes no model between its blocks; take a patch that does",
                self.name(),
                self.part
            ))),
        }
    }

    /// The same control network with the weights that it takes of the model that it controls.
    ///
    /// # Errors
    /// It is no control network, or the model has no such weights.
    pub fn on_base(&self, base: &Source) -> Result<Source> {
        let network =
            Network::Control(self.control_network()?.on_base(&self.file, (&base.file, &base.part))?);
        Ok(Source {
            file: Arc::clone(&self.file),
            network: Arc::new(network),
            part: self.part.clone(),
            cast: self.cast,
            products: self.products,
            placing: self.placing.clone(),
            said: self.said.clone(),
            modified: self.modified,
            weights: OnceLock::new(),
            base: Some(Base { file: Arc::clone(&base.file), identity: Identity::of(base) }),
            claim: Mutex::default(),
            elsewhere: Mutex::default(),
        })
    }

    /// The same network as a worker uses it that computes on this device: itself, unless it follows whoever uses it.
    /// What it is registered as there is held as long as this is.
    pub(crate) fn on(&self, device: DeviceId) -> Option<Arc<Source>> {
        if !self.placing.follows || self.placing.compute == device {
            return None;
        }
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = elsewhere.iter().find(|source| source.placing.compute == device) {
            return Some(Arc::clone(known));
        }
        let source = Arc::new(self.placed(Placing { compute: device, ..self.placing.clone() }));
        elsewhere.push(Arc::clone(&source));
        Some(source)
    }

    /// The same network on a device, wherever its loader put it.
    #[must_use]
    pub fn placed_on(&self, device: DeviceId) -> Source {
        let is_automatic = self.placing.allocation.allocation().devices().is_empty();
        let allocation = self.placing.allocation.clone();
        self.placed(Placing {
            compute: device,
            follows: false,
            // What names devices means other ones.
            allocation: if is_automatic { allocation } else { AllocationText::automatic() },
            ..self.placing.clone()
        })
    }

    /// The same network where its loader put it.
    #[must_use]
    pub fn as_loaded(&self) -> Source {
        self.placed(self.said.clone())
    }

    fn placed(&self, placing: Placing) -> Source {
        Source {
            file: Arc::clone(&self.file),
            network: Arc::clone(&self.network),
            part: self.part.clone(),
            cast: self.cast,
            products: self.products,
            placing,
            said: self.said.clone(),
            modified: self.modified,
            weights: self.weights.clone(),
            base: self.base.clone(),
            claim: Mutex::default(),
            elsewhere: Mutex::default(),
        }
    }

    /// The control network.
    ///
    /// # Errors
    /// It is none, which loaders do not let happen.
    pub fn control_network(&self) -> Result<&dyn ControlNetwork> {
        match &*self.network {
            Network::Control(control) => Ok(&**control),
            _ => Err(Error::Told(format!("{} is no control network", self.name()))),
        }
    }

    /// Whether it has weights of a model that it controls.
    pub fn has_base(&self) -> bool {
        self.base.is_some()
    }

    /// The model that it has weights of, if it has.
    pub(crate) fn base(&self) -> Option<&Identity> {
        self.base.as_ref().map(|base| &base.identity)
    }

    /// The upscaler of a file.
    pub fn upscaler(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::Upscale, "an upscaler")?, placing)
    }

    /// The upscaler of latents of a file.
    pub fn latent_upscaler(file: &Arc<Checkpoint>, found: &Detected, placing: Placing) -> Result<Source> {
        Source::of_part(file, found.part(Role::LatentUpscale, "an upscaler of latents")?, placing)
    }

    /// The network of one part of a file.
    ///
    /// # Errors
    /// Nothing here can run such a part, or something of it is missing or does not fit.
    pub fn of_part(file: &Arc<Checkpoint>, part: &Part, placing: Placing) -> Result<Source> {
        let network = match part.reader {
            Some(Reader::Diffusion(family)) if part.is_native() => {
                Network::Diffusion((family.read)(file, part)?, family)
            }
            Some(Reader::Autoencoder(family)) => Network::Autoencoder((family.read)(file, part)?),
            Some(Reader::Text(architecture)) => Network::Text((architecture.read)(file, part)?),
            Some(Reader::Vision(family)) => Network::Vision((family.read)(file, part)?),
            Some(Reader::Audio(family)) => Network::Audio((family.read)(file, part)?),
            Some(Reader::Control(family)) => Network::Control((family.read)(file, part)?),
            Some(Reader::ModelPatch(family)) => Network::ModelPatch((family.read)(file, part)?),
            Some(Reader::Upscale(family)) => Network::Upscale((family.read)(file, part)?),
            Some(Reader::LatentUpscale(family)) => Network::LatentUpscale((family.read)(file, part)?),
            Some(Reader::Diffusion(_)) | None => {
                let (file, part, role) = (name_of(file.path()), part.to_string(), part.role);
                return Err(Error::NotYet { file, part, known: runnable(role) });
            }
        };
        Ok(Source {
            file: Arc::clone(file),
            network: Arc::new(network),
            part: part.clone(),
            cast: None,
            products: Products::Exact,
            said: placing.clone(),
            placing,
            modified: crate::runtime::modified(file.path()),
            weights: OnceLock::new(),
            base: None,
            claim: Mutex::default(),
            elsewhere: Mutex::default(),
        })
    }

    /// The file's name, for people.
    pub fn name(&self) -> String {
        name_of(self.file.path())
    }

    /// The tensors of its part that no weight is read from, by the names that the file has.
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    pub fn unused(&self) -> Result<Vec<&str>> {
        Ok(self.part.unused(&self.file, &self.network.module().manifest(&self.file)?))
    }

    /// Whether the file is as it was when it was opened. If it is not, it has to be opened anew.
    pub fn is_current(&self) -> bool {
        self.file.verify().is_ok() && self.base.as_ref().is_none_or(|base| base.file.verify().is_ok())
    }

    /// Holds the registration that it was loaded as, for as long as somebody holds the handle.
    pub(crate) fn hold(&self, claim: ModelClaim) {
        *self.claim.lock().unwrap_or_else(PoisonError::into_inner) = Some(claim);
    }

    /// What the network needs, its weights as they are or cast on their way.
    pub fn manifest(&self) -> Result<Manifest> {
        let manifest = self.network.module().manifest(&self.file)?;
        // A file whose weights have scales beside them is 8 bits wide already.
        let scaled = || self.file.entries().iter().any(|entry| self.file.is_companion(entry));
        let manifest = match self.cast {
            Some(dtype) if !scaled() => manifest.kept_as(dtype).map_err(|error| self.cannot_cast(error))?,
            _ => manifest,
        };
        let manifest = manifest.with_products(self.products);
        Ok(if matches!(*self.network, Network::Text(_)) { manifest.rounding_patches() } else { manifest })
    }

    /// The element type that most of its bytes are stored in, if they are plain.
    ///
    /// # Errors
    /// A tensor is missing or does not fit.
    pub fn plain_type(&self) -> Result<Option<DType>> {
        let manifest = self.network.module().manifest(&self.file)?;
        let largest = manifest.weights().iter().max_by_key(|weight| weight.shape.count());
        Ok(match largest.map(|weight| weight.encoding) {
            Some(Encoding::Plain(dtype)) => Some(dtype),
            _ => None,
        })
    }

    /// Why the weights cannot be cast, by the names that the file has.
    fn cannot_cast(&self, error: residency::Error) -> Error {
        let residency::Error::CannotCast { weight, encoding, to, .. } = error else { return error.into() };
        Error::Told(format!(
            "{}: {}{weight} is stored as {encoding}, which cannot be cast to {}; load it with the weight_dtype \
             \"default\"",
            self.file.path().display(),
            self.part.prefix,
            to.name().to_uppercase(),
        ))
    }

    /// The names and shapes of the weights.
    pub fn weights(&self) -> Result<&[(String, Shape)]> {
        if let Some(weights) = self.weights.get() {
            return Ok(weights);
        }
        let manifest = self.manifest()?;
        let weights = manifest.weights().iter().map(|weight| (weight.name.clone(), weight.shape)).collect();
        Ok(self.weights.get_or_init(|| weights))
    }
}

/// A file's name without its folder.
fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// What of a role can run here, for people.
pub fn runnable(role: Role) -> String {
    let known: Vec<&str> = match role {
        Role::Text => text::ARCHITECTURES.iter().map(|known| known.name).collect(),
        Role::Autoencoder => vae::FAMILIES.iter().map(|family| family.name).collect(),
        Role::Vision => vision::FAMILIES.iter().map(|family| family.name).collect(),
        Role::Audio => audio::FAMILIES.iter().map(|family| family.name).collect(),
        Role::Control => control::FAMILIES.iter().map(|family| family.name).collect(),
        Role::ModelPatch => model_patches::FAMILIES.iter().map(|family| family.name).collect(),
        Role::Upscale => upscale::FAMILIES.iter().map(|family| family.name).collect(),
        Role::LatentUpscale => latent_upscale::FAMILIES.iter().map(|family| family.name).collect(),
        Role::Diffusion | Role::Patch | Role::Embedding | Role::Other => {
            diffusion::FAMILIES.iter().map(|family| family.variants).collect()
        }
    };
    match known.as_slice() {
        [others @ .., last] if !others.is_empty() => format!("{} and {last}", others.join(", ")),
        names => names.concat(),
    }
}
