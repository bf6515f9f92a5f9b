//! Pictures whose working memory cannot fit are refused before anything is computed, with the memory that they take.

use meta::{ByteSize, DeviceId};
use models::vae::kl::{Kl, LeastBytes};
use tensor::Lane;

use crate::studio::Vae;
use crate::{Error, Result, Studio};

/// Sides that are proposed are multiples of this.
const STEP: usize = 64;

/// What is to be done with an autoencoder: how many pictures of which size in pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pictures {
    pub(super) batch: usize,
    pub(super) height: usize,
    pub(super) width: usize,
}

/// Fails if decoding has no room, neither whole nor in tiles.
///
/// # Errors
/// How much it takes, where, and what would fit.
pub(super) fn check_decode(studio: &Studio, vae: &Vae, kl: &Kl, pictures: Pictures) -> Result<()> {
    check(studio, vae, "decoding", pictures, |Pictures { batch, height, width }, element_bytes| {
        kl.least_to_decode(batch, height, width, element_bytes)
    })
}

/// Fails if encoding has no room, neither whole nor in tiles.
///
/// # Errors
/// How much it takes, where, and what would fit.
pub(super) fn check_encode(studio: &Studio, vae: &Vae, kl: &Kl, pictures: Pictures) -> Result<()> {
    check(studio, vae, "encoding", pictures, |Pictures { batch, height, width }, element_bytes| {
        kl.least_to_encode(batch, height, width, element_bytes)
    })
}

fn check(
    studio: &Studio,
    vae: &Vae,
    action: &str,
    pictures: Pictures,
    least: impl Fn(Pictures, usize) -> LeastBytes,
) -> Result<()> {
    let compute = studio.devices.get(vae.source.placing.compute)?;
    let element_bytes = Lane::preferred(compute)?.dtype().bytes();
    let device_bytes = compute.ledger().report().budget;
    let host_bytes = host_bytes(studio)?;
    let fits = |pictures: Pictures| {
        let LeastBytes { whole, tiled, canvas } = least(pictures, element_bytes);
        let is_host = compute.id() == DeviceId::CPU;
        let in_tiles = match is_host {
            true => tiled.saturating_add(canvas) <= device_bytes.min(host_bytes),
            false => tiled <= device_bytes && canvas <= host_bytes,
        };
        in_tiles || whole <= device_bytes && (!is_host || whole <= host_bytes)
    };
    if fits(pictures) {
        return Ok(());
    }
    let LeastBytes { whole, tiled, canvas } = least(pictures, element_bytes);
    let Pictures { batch, height, width } = pictures;
    let (device, count) =
        (compute.id(), if batch == 1 { String::new() } else { format!("{batch} pictures of ") });
    Err(Error::Told(format!(
        "{action} {count}{width}x{height} pixels takes at least {} on {device} at once, or {} there and {} of host memory \
         in tiles; {device} has {}, the host {} left: {}",
        ByteSize(whole),
        ByteSize(tiled),
        ByteSize(canvas),
        ByteSize(device_bytes),
        ByteSize(host_bytes),
        proposal(pictures, fits),
    )))
}

/// The host's memory that is left: no more than its budget, and no more than the system has.
fn host_bytes(studio: &Studio) -> Result<u64> {
    let host = studio.devices.get(DeviceId::CPU)?;
    let budget = host.ledger().report().budget;
    // A system that tells nothing tells 0.
    Ok(match host.memory().map_or(0, |memory| memory.free.saturating_add(memory.cached)) {
        0 => budget,
        free => budget.min(free),
    })
}

/// The largest size of the same proportions that fits, as a sentence.
fn proposal(pictures: Pictures, fits: impl Fn(Pictures) -> bool) -> String {
    let side = |length: usize, parts: usize| (length * parts / 64 / STEP * STEP).max(STEP);
    let scaled = |parts: usize| Pictures {
        height: side(pictures.height, parts),
        width: side(pictures.width, parts),
        ..pictures
    };
    match (1..64).rev().map(scaled).find(|smaller| fits(*smaller)) {
        Some(Pictures { height, width, .. }) => format!("{width}x{height} pixels would fit"),
        None if pictures.batch > 1 => "take fewer pictures at a time".to_owned(),
        None => "free memory, or compute on another device".to_owned(),
    }
}
