//! The floor of a step: its matrix products and its attention alone, at the speed that the device reaches with large ones
//! in the same run. What a step takes beyond that is passes over memory, launches and waiting.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use checkpoint::Checkpoint;
use device::{Device, NullBackend, OpCall, Registry, WorkKind};
use meta::DeviceId;
use models::detect::detect;
use models::diffusion::flux::Flux;
use placement::DeviceSpec;
use residency::{Cancel, LoadOptions, Residency};
use serde::Serialize;
use tensor::{Lane, Mask, Tensor, Weight};
use testkit::random_normal;

use super::Loaded;

/// Calls that are timed together.
const CALLS: usize = 20;
/// Memory of the null device: more than any model takes.
const BOUNDLESS: u64 = 1 << 52;

/// What a step must compute, and how fast that can be.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Floor {
    product_flops: u64,
    attention_flops: u64,
    product_flops_per_s: f64,
    attention_flops_per_s: f64,
    /// Both one after the other.
    pub(super) seconds: f64,
}

impl Floor {
    /// Counts the operations of a step of a model file, and measures one large call of each kind.
    pub(super) fn of(
        device: &Device,
        host: &Device,
        path: &Path,
        (pixels, text): (usize, usize),
    ) -> Result<Floor> {
        let checkpoint = Checkpoint::open(path)?;
        let flux = Flux::read(&checkpoint, &detect(&checkpoint))?;
        let (product_flops, attention_flops) =
            operations(&checkpoint, &flux, (device, host), (pixels, text))?;
        let lane = Lane::choose(device, flux.activations())?;
        let config = flux.config();
        let tokens = (pixels / 16).pow(2) + text;
        let x = lane.tensor([tokens, config.hidden], &random_normal(1, tokens * config.hidden))?;
        let values = random_normal(2, config.mlp * config.hidden);
        let weight = Weight::new(lane.tensor([config.mlp, config.hidden], &values)?.operand().clone());
        let product_s = timed(&lane, || x.linear(&weight, None))?;
        let heads = config.hidden / config.head_size;
        let q =
            lane.tensor([1, tokens, heads, config.head_size], &random_normal(3, tokens * config.hidden))?;
        let attention_s = timed(&lane, || q.attention(&q, &q, &Mask::None, 0.1))?;
        let product_flops_per_s = 2.0 * (tokens * config.hidden * config.mlp) as f64 / product_s;
        let attention_flops_per_s = 4.0 * (tokens * tokens * config.hidden) as f64 / attention_s;
        let seconds =
            product_flops as f64 / product_flops_per_s + attention_flops as f64 / attention_flops_per_s;
        Ok(Floor { product_flops, attention_flops, product_flops_per_s, attention_flops_per_s, seconds })
    }
}

/// Operations of matrix products and of attention in one evaluation, counted on a null device.
fn operations(
    checkpoint: &Checkpoint,
    flux: &Flux,
    (device, host): (&Device, &Device),
    (pixels, text): (usize, usize),
) -> Result<(u64, u64)> {
    let counts = Arc::new(Mutex::new((0u64, 0u64)));
    let counted = Arc::clone(&counts);
    let count = move |call: &OpCall| {
        let cost = call.cost();
        let mut counts = counted.lock().unwrap_or_else(PoisonError::into_inner);
        match cost.kind {
            WorkKind::Product => counts.0 += cost.flops,
            WorkKind::Attention => counts.1 += cost.flops,
            WorkKind::Convolution | WorkKind::Memory => {}
        }
        0.0
    };
    let null = Device::new(Arc::new(NullBackend::like(device, 0, Arc::new(count))), BOUNDLESS);
    let manifest = flux.manifest(checkpoint)?;
    let spec = DeviceSpec {
        id: DeviceId::null(0),
        total_bytes: BOUNDLESS,
        available_bytes: BOUNDLESS,
        link_bytes_per_s: 1.0,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    let plan = placement::plan(&Residency::plan_request(&manifest, null.id(), vec![spec]))?;
    let residency = Residency::new(Registry::new([host.clone(), null]));
    let dtype = Some(Lane::choose(device, flux.activations())?.dtype());
    let id = residency.load(manifest, plan, LoadOptions { dtype, ..LoadOptions::default() })?;
    let session = residency.open(id, &Cancel::default())?;
    let loaded = Loaded { flux: flux.clone(), session, residency };
    let _: Tensor = loaded.evaluate(pixels, text)?;
    let counts = *counts.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(counts)
}

/// Seconds of one of many equal calls.
fn timed(lane: &Lane, call: impl Fn() -> device::Result<Tensor>) -> Result<f64> {
    let stream = lane.stream();
    (0..3).try_for_each(|_| call().map(drop))?;
    stream.synchronize()?;
    let begin = stream.record_timed()?;
    (0..CALLS).try_for_each(|_| call().map(drop))?;
    let end = stream.record_timed()?;
    stream.synchronize()?;
    let seconds = end.seconds_since(&begin)?.unwrap_or(f64::INFINITY);
    Ok(seconds / CALLS as f64)
}
