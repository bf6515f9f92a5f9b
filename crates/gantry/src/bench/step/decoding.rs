//! The last part of a picture: an autoencoder of random weights decodes a latent of 16 channels, and encodes a picture.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use checkpoint::Checkpoint;
use device::Registry;
use device_cuda::CudaBackend;
use meta::DeviceId;
use models::Probe;
use models::detect::detect;
use models::vae::kl::Kl;
use residency::Session;
use runtime::PlanQuestion;
use serde::Serialize;
use testkit::{Manifest, ScratchDir, random_normal};

use super::{STEPS, relative_error};
use crate::bench::parts::Opened;
use crate::machine::Machine;

/// An autoencoder of the size that most of today's families have.
const AUTOENCODER: &str = include_str!("../../../../testkit/data/manifests/flux_ae.json");
/// Width and height of the picture that is compared with the CPU's.
const COMPARED_PIXELS: usize = 256;

/// What decoding took.
#[derive(Serialize)]
pub(super) struct Decoding {
    /// The first time, which may have to look for kernels.
    pub(super) first_s: f64,
    /// The median of those after it.
    pub(super) decode_s: f64,
    peak_bytes: u64,
    planned_bytes: u64,
    /// Of a smaller picture, against the CPU in f32.
    pub(super) relative_error: f64,
    /// Whether all pictures have the same bits.
    identical: bool,
}

/// Decodes on a device.
pub(super) fn measure(machine: &Machine, device: DeviceId, pixels: usize) -> Result<Decoding> {
    let dir = ScratchDir::new()?;
    let path = Manifest::parse(AUTOENCODER)?.write_to(dir.path())?;
    let compared = |compute: DeviceId| -> Result<Vec<f32>> {
        Decoder::load(machine.registry(), compute, &path, COMPARED_PIXELS)?.decode()
    };
    let relative_error = relative_error(&compared(device)?, &compared(DeviceId::CPU)?);
    let decoder = Decoder::load(machine.registry(), device, &path, pixels)?;
    let (card, ledger) = (machine.cuda(device), machine.registry().get(device)?.ledger());
    ledger.take_peak();
    card.map(CudaBackend::take_peak_bytes);
    let timed = || -> Result<(f64, Vec<f32>)> {
        let start = Instant::now();
        let picture = decoder.decode()?;
        Ok((start.elapsed().as_secs_f64(), picture))
    };
    let (first_s, first) = timed()?;
    let (mut times, mut identical) = (Vec::new(), true);
    for _ in 0..STEPS {
        let (seconds, picture) = timed()?;
        times.push(seconds);
        identical &= picture == first;
    }
    times.sort_by(f64::total_cmp);
    Ok(Decoding {
        first_s,
        decode_s: times[STEPS / 2],
        peak_bytes: card.map_or(ledger.report().peak, CudaBackend::take_peak_bytes),
        planned_bytes: decoder.planned_bytes,
        relative_error,
        identical,
    })
}

/// The autoencoder on one device.
struct Decoder {
    kl: Kl,
    session: Session,
    pixels: usize,
    planned_bytes: u64,
}

impl Decoder {
    fn load(devices: &Registry, compute: DeviceId, path: &Path, pixels: usize) -> Result<Decoder> {
        let checkpoint = Arc::new(Checkpoint::open(path)?);
        let kl = Kl::read(&checkpoint, &detect(&checkpoint))?;
        let question = PlanQuestion { size: (pixels, pixels), ..PlanQuestion::default() };
        let Opened { session, planned_bytes, .. } =
            Opened::new(devices, compute, &checkpoint, &kl, &question)?;
        Ok(Decoder { kl, session, pixels, planned_bytes })
    }

    fn decode(&self) -> Result<Vec<f32>> {
        let side = self.pixels / 8;
        let latent = self.session.lane()?.tensor([1, 16, side, side], &random_normal(1, 16 * side * side))?;
        Ok(self.kl.decode_whole(&self.session, &latent, &mut Probe::none())?.to_vec()?)
    }
}
