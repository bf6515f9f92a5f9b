//! FLUX.1 from prompt to picture: two text encoders, the diffusion model, the autoencoder.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use checkpoint::Checkpoint;
use device::Registry;
use meta::DeviceId;
use models::detect::{Family, FluxVariant, Role, detect};
use models::diffusion::flux::{Flux, FluxInputs};
use models::text::{EncodeOptions, Encoded, PromptOptions, TextEncoder, TextTokenizer};
use models::vae::kl::Kl;
use patch::{KeyMap, PatchFile, PatchSet};
use placement::AllocationText;
use residency::{Cancel, LoadOptions, Manifest, ModelId, Residency, Session};
use sampling::{
    Latent, LatentFormat, ModelSampling, Observer, Prediction, Request, Sampler, Scheduler, StepPlan, Tuning,
};
use tensor::Lane;

use super::Picture;
use crate::planning::device_specs;

/// Pixels along one side of a latent value.
const LATENT_PIXELS: usize = 8;
/// Channels of a latent.
const LATENT_CHANNELS: usize = 16;
/// Bytes per second of a link, good enough to place blocks by: nothing is measured before a picture.
const NOMINAL_LINK: f64 = 20e9;
/// What the text encoders work in: a prompt is short, and so are its activations.
const TEXT_WORKING_BYTES: u64 = 64 << 20;
/// T5's prompts are filled up to this many tokens.
const T5_TOKENS: usize = 256;

/// The files of a FLUX model; all of them may be the same.
pub(crate) struct FluxFiles {
    pub(crate) diffusion: Arc<Checkpoint>,
    pub(crate) clip_l: Arc<Checkpoint>,
    pub(crate) t5: Arc<Checkpoint>,
    pub(crate) autoencoder: Arc<Checkpoint>,
}

/// What is to be drawn.
pub(crate) struct Drawing {
    pub(crate) prompt: String,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) steps: usize,
    pub(crate) seed: u64,
    /// The guidance that dev was distilled with.
    pub(crate) guidance: f32,
}

/// A FLUX model, loaded.
pub(crate) struct FluxPipeline {
    residency: Residency,
    diffusion: Loaded<Flux>,
    variant: FluxVariant,
    clip_l: LoadedEncoder,
    t5: LoadedEncoder,
    autoencoder: Loaded<Kl>,
}

struct Loaded<M> {
    model: M,
    id: ModelId,
}

struct LoadedEncoder {
    model: TextEncoder,
    tokenizer: TextTokenizer,
    id: ModelId,
}

impl FluxPipeline {
    /// Loads the parts onto a machine for pictures of a size; `allocation` says where the diffusion
    /// model's bytes go.
    pub(crate) fn load(
        devices: &Registry,
        compute: DeviceId,
        files: &FluxFiles,
        allocation: AllocationText,
        (width, height): (usize, usize),
    ) -> Result<FluxPipeline> {
        let residency = Residency::new(devices.clone());
        let element_bytes = Lane::preferred(devices.get(compute)?)?.dtype().bytes();
        let load = |manifest: Manifest, allocation: AllocationText, working_bytes: u64| -> Result<ModelId> {
            let mut request =
                Residency::plan_request(&manifest, compute, device_specs(devices, NOMINAL_LINK), |flops| {
                    flops as f64 / 1e12
                });
            request.allocation = allocation;
            request.working_bytes = working_bytes + devices.get(compute)?.workspace_bytes();
            let plan = placement::plan(&request)?;
            Ok(residency.load(manifest, plan, LoadOptions::default())?)
        };
        let found = detect(&files.diffusion);
        let flux = Flux::read(&files.diffusion, &found)?;
        let variant = match found.part(Role::Diffusion, "a FLUX.1 diffusion model")?.family {
            Family::Flux(variant) => variant,
            _ => FluxVariant::Dev,
        };
        let tokens = flux.tokens(1, height / LATENT_PIXELS, width / LATENT_PIXELS, T5_TOKENS);
        let working = flux.working_bytes(tokens, element_bytes);
        let diffusion = load(flux.manifest(&files.diffusion, tokens)?, allocation, working)?;
        let encoder =
            |file: &Checkpoint, wanted: &str, is_it: fn(&Family) -> bool| -> Result<LoadedEncoder> {
                let found = detect(file);
                let part = found.parts_for(Role::Text).find(|part| is_it(&part.family));
                let part = part.with_context(|| {
                    format!("{} has no {wanted}: it is {}", file.path().display(), found.seems())
                })?;
                let model = TextEncoder::read(file, &found, part)?;
                let tokenizer = TextTokenizer::for_encoder(file, &model)?.filled_to(T5_TOKENS);
                let id =
                    load(model.manifest(file, T5_TOKENS)?, AllocationText::automatic(), TEXT_WORKING_BYTES)?;
                Ok(LoadedEncoder { model, tokenizer, id })
            };
        let clip_l =
            encoder(&files.clip_l, "CLIP text encoder", |family| matches!(family, Family::Clip { .. }))?;
        let t5 = encoder(&files.t5, "T5 text encoder", |family| matches!(family, Family::T5 { .. }))?;
        let kl = Kl::read(&files.autoencoder, &detect(&files.autoencoder))?;
        // The autoencoder works in tiles where a whole picture has no room.
        let manifest = kl.manifest(&files.autoencoder, height, width)?;
        let autoencoder = load(manifest, AllocationText::automatic(), 0)?;
        Ok(FluxPipeline {
            residency,
            diffusion: Loaded { model: flux, id: diffusion },
            variant,
            clip_l,
            t5,
            autoencoder: Loaded { model: kl, id: autoencoder },
        })
    }

    /// Puts LoRA files in force, each at its strength; the tensors that none of the weights took.
    pub(crate) fn patch(&self, loras: &[(Arc<Checkpoint>, f64)]) -> Result<Vec<String>> {
        let session = self.open(self.diffusion.id)?;
        let weights = session.manifest().weights();
        let keys = KeyMap::for_flux(weights.iter().map(|w| (w.name.as_str(), &w.shape)));
        let mut set = PatchSet::new();
        for (file, strength) in loras {
            set.add(&PatchFile::read(file)?, &keys, *strength)?;
        }
        drop(session);
        let unmatched = set.unmatched().to_vec();
        self.residency.set_patches(self.diffusion.id, set)?;
        Ok(unmatched)
    }

    /// Draws a picture.
    pub(crate) fn draw(&self, drawing: &Drawing, observer: &mut dyn Observer) -> Result<Picture> {
        let (height, width) = (drawing.height, drawing.width);
        let step = 2 * LATENT_PIXELS;
        ensure!(height > 0 && width > 0, "a picture of {width}x{height} has no pixels");
        ensure!(
            height.is_multiple_of(step) && width.is_multiple_of(step),
            "{width}x{height} is no size for FLUX: both sides must be multiples of {step}"
        );
        let text = self.encode(&drawing.prompt)?;
        let latent = self.sample(drawing, &text, observer)?;
        let session = self.open(self.autoencoder.id)?;
        let shape = [1, LATENT_CHANNELS, height / LATENT_PIXELS, width / LATENT_PIXELS];
        let latent = session.lane()?.tensor(shape, latent.values())?;
        let image = self.autoencoder.model.decode(&session, &latent)?.to_vec()?;
        session.verify()?;
        Picture::new(width, height, &image)
    }

    fn encode(&self, prompt: &str) -> Result<Encoded> {
        let clip = self.clip_l.tokenizer.tokenize(prompt, PromptOptions::default());
        let t5 = self.t5.tokenizer.tokenize(prompt, PromptOptions::default());
        let session = self.open(self.clip_l.id)?;
        let options = EncodeOptions { unprojected: true, ..EncodeOptions::default() };
        let pooled = self.clip_l.model.encode(&session, &clip, options)?;
        session.verify()?;
        let session = self.open(self.t5.id)?;
        let words = self.t5.model.encode(&session, &t5, EncodeOptions::default())?;
        session.verify()?;
        Ok(Encoded::flux(&pooled, words))
    }

    fn sample(&self, drawing: &Drawing, text: &Encoded, observer: &mut dyn Observer) -> Result<Latent> {
        let session = self.open(self.diffusion.id)?;
        let shape = [1, LATENT_CHANNELS, drawing.height / LATENT_PIXELS, drawing.width / LATENT_PIXELS];
        // Schnell was distilled without a shift, the others expect the one of their training.
        let (model_sampling, guidance) = match self.variant {
            FluxVariant::Schnell => (ModelSampling::flow(1.0, 1.0), None),
            _ => (ModelSampling::flux(1.15), Some(drawing.guidance)),
        };
        let sampler = Sampler::Euler;
        let sigmas = StepPlan::new(drawing.steps, 1.0).sigmas(&model_sampling, Scheduler::Simple, sampler)?;
        let pooled =
            text.pooled.as_ref().context("the CLIP text encoder gives no vector for the whole prompt")?;
        let mut predict = |x: &Latent, sigma: f32, _: bool| {
            let latent = session.lane()?.tensor(shape, x.values())?;
            let inputs = FluxInputs { guidance, ..FluxInputs::new(&latent, sigma, &text.cond, pooled) };
            let output = self.diffusion.model.forward(&session, &inputs)?.to_vec()?;
            let output = Latent::new(shape.to_vec(), output)?;
            Ok(Prediction { positive: model_sampling.calculate_denoised(sigma, &output, x), negative: None })
        };
        let request = Request {
            sampling: &model_sampling,
            format: LatentFormat::Flux,
            sampler,
            tuning: Tuning::default(),
            sigmas,
            noise: sampling::noise::prepare_noise(drawing.seed, &shape, None)?,
            latent: Latent::zeros(&shape),
            mask: None,
            cfg: 1.0,
            seed: drawing.seed,
        };
        let latent = sampling::sample(&request, &mut predict, observer)?;
        session.verify()?;
        Ok(latent)
    }

    fn open(&self, id: ModelId) -> Result<Session> {
        Ok(self.residency.open(id, &Cancel::default())?)
    }
}
