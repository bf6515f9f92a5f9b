//! Plans for files that are not loaded, by the same planner that loads them.

use std::sync::Arc;

use checkpoint::Checkpoint;
use meta::DeviceId;
use models::detect::{Detected, detect};
use placement::{AllocationText, Plan};
use residency::Retention;

use crate::planning::Demand;
use crate::work::PictureSize;
use crate::{Error, Result};
use crate::{Network, Placing, Runtime, Source};

pub use models::detect::Role;

/// What is asked of a file.
#[derive(Clone, Debug)]
pub struct PlanQuestion {
    /// Which of its networks; the diffusion model of a file that has one, else what it has.
    pub part: Option<Role>,
    /// Where it computes; where the allocation says, or where models compute unless a node says otherwise.
    pub compute: Option<DeviceId>,
    /// Where its bytes go.
    pub allocation: AllocationText,
    /// Pixels of a picture, width and height.
    pub size: (usize, usize),
    /// Pictures at once.
    pub batch: usize,
    /// Frames of a video; 1 for a picture.
    pub frames: usize,
    /// Whether two conditionings are evaluated in every step.
    pub cfg: bool,
    /// Tokens of the prompt; as many as most workflows have without it.
    pub text: Option<usize>,
    /// Whether the plan is for another machine, whose host memory is what the device `cpu` says.
    pub elsewhere: bool,
}

impl Default for PlanQuestion {
    /// One picture of 1024 by 1024 pixels, placed automatically.
    fn default() -> PlanQuestion {
        PlanQuestion {
            part: None,
            compute: None,
            allocation: AllocationText::automatic(),
            size: (1024, 1024),
            batch: 1,
            frames: 1,
            cfg: false,
            text: None,
            elsewhere: false,
        }
    }
}

/// What options say of where bytes go.
#[derive(Clone, Copy, Debug, Default)]
pub struct SaidPlacing<'a> {
    /// In the allocation language; rules over the others.
    pub alloc: Option<&'a str>,
    /// Gigabytes to move off the compute device.
    pub virtual_vram_gb: Option<f64>,
    /// Who takes them; the host if it is not said.
    pub donor: Option<&'a str>,
    /// Where the model computes.
    pub compute: Option<DeviceId>,
}

/// The order in which a file's networks are looked for.
const ROLES: [Role; 9] = [
    Role::Diffusion,
    Role::Autoencoder,
    Role::Text,
    Role::Vision,
    Role::Audio,
    Role::Control,
    Role::ModelPatch,
    Role::Upscale,
    Role::LatentUpscale,
];

impl Runtime {
    /// What was said, in the allocation language, for this machine's devices.
    ///
    /// # Errors
    /// It cannot be understood, with the place of the character.
    pub fn allocation_of(&self, said: SaidPlacing<'_>) -> Result<AllocationText> {
        let text = match (said.alloc, said.virtual_vram_gb) {
            (Some(text), _) => text.to_owned(),
            (None, Some(gigabytes)) => {
                let compute = said.compute.map_or(String::new(), |id| id.to_string());
                format!("#{compute};{gigabytes};{}", said.donor.unwrap_or("cpu"))
            }
            (None, None) => return Ok(AllocationText::automatic()),
        };
        let devices: Vec<DeviceId> = self.devices.iter().map(device::Device::id).collect();
        Ok(AllocationText::parse_for(&text, &devices).map_err(placement::PlanError::from)?)
    }

    /// Where every block of a file would go: exactly what a job that loads it next will do.
    ///
    /// # Errors
    /// The file holds nothing that can run here, or there is no room; with what, where and what to do.
    pub fn plan_file(&self, file: &Arc<Checkpoint>, question: &PlanQuestion) -> Result<Plan> {
        let compute = question.compute.or(question.allocation.allocation().compute).unwrap_or(self.compute);
        self.devices.get(compute)?;
        let placing = Placing {
            compute,
            follows: false,
            allocation: question.allocation.clone(),
            retention: Retention::Default,
            eject_others: false,
        };
        let source = network_of(file, &detect(file), question.part, placing)?;
        let source = match *source.network {
            Network::Diffusion(..) => source.with_products(self.products(false)),
            _ => source,
        };
        let work = source.network.usual_work(size_of(&source.network, question)?);
        Ok(self
            .plan(&source, Demand { work: Some(&work), elsewhere: question.elsewhere, ..Demand::default() })?
            .plan)
    }
}

/// One network of a file.
fn network_of(
    file: &Arc<Checkpoint>,
    found: &Detected,
    part: Option<Role>,
    placing: Placing,
) -> Result<Source> {
    let has = |role: &Role| found.parts_for(*role).next().is_some();
    let role = part.or_else(|| ROLES.into_iter().find(has)).unwrap_or(Role::Diffusion);
    match role {
        Role::Autoencoder => Source::autoencoder(file, found, placing),
        Role::Vision => Source::vision(file, found, placing),
        Role::Audio => Source::audio(file, found, placing),
        Role::Control => alone(Source::control(file, found, placing)?),
        Role::ModelPatch => Source::model_patch(file, found, placing),
        Role::Upscale => Source::upscaler(file, found, placing),
        Role::LatentUpscale => Source::latent_upscaler(file, found, placing),
        Role::Text => {
            let encoders = Source::encoders(file, found, &placing)?;
            encoders
                .into_iter()
                .next()
                .ok_or_else(|| Error::Told(format!("{} has no text encoder", found.file)))
        }
        _ => Source::diffusion(file, found, None, placing),
    }
}

/// A control network that needs nothing of the model that it controls, whose file is not asked for here.
fn alone(source: Source) -> Result<Source> {
    if source.control_network()?.needs_base() {
        return Err(Error::Told(format!(
            "{} has weights of the model that it controls, so it cannot be planned without one; run a workflow that uses \
             both instead",
            source.name()
        )));
    }
    Ok(source)
}

/// A picture as the network's latents count it.
fn size_of(network: &Network, question: &PlanQuestion) -> Result<PictureSize> {
    let (width, height) = question.size;
    let pixels = network.pixels_per_value();
    if width < pixels || height < pixels || question.batch == 0 {
        return Err(Error::Told(format!(
            "a picture of {width}x{height} pixels in a batch of {} cannot be made; a side has at least {pixels} pixels, \
             and a batch one picture",
            question.batch
        )));
    }
    let frames = match (question.frames, network.frames_per_value()) {
        (1, _) => 1,
        (0, Some(_)) => return Err(Error::Told("a video has at least one frame".to_owned())),
        (frames, Some(per_value)) => (frames - 1) / per_value.max(1) + 1,
        (frames, None) => {
            return Err(Error::Told(format!(
                "{frames} frames: {} makes pictures, which have one frame; leave the frames out",
                network.kind()
            )));
        }
    };
    Ok(PictureSize {
        batch: question.batch,
        frames,
        height: height / pixels,
        width: width / pixels,
        evaluations: if question.cfg { 2 } else { 1 },
        text: question.text,
    })
}
