//! The floor of a step: its matrix products and its attention alone, at the speed that the device reaches with large ones
//! in the same run. What a step takes beyond that is passes over memory, launches and waiting.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use checkpoint::Checkpoint;
use device::{Device, NullBackend, OpCall, Registry, WorkKind};
use meta::{DType, DeviceId};
use models::diffusion::Diffusion;
use placement::DeviceSpec;
use residency::{Cancel, LoadOptions, Residency};
use serde::Serialize;
use tensor::{Lane, Mask, Tensor, Weight};
use testkit::random_normal;

use super::{Bench, Loaded, read_model};

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
    /// Products of 8 bits with codes that are there; none where the device has no such products.
    fp8_product_flops_per_s: Option<f64>,
    /// The same with products of 8 bits.
    pub(super) fp8_seconds: Option<f64>,
}

impl Floor {
    /// Counts the operations of a step of a model file, and measures one call of each kind like the step's largest.
    pub(super) fn of(device: &Device, host: &Device, path: &Path, bench: &Bench<'_>) -> Result<Floor> {
        let checkpoint = Checkpoint::open(path)?;
        let model = read_model(&checkpoint)?;
        let lane = Lane::choose(device, model.activations())?;
        let counted = operations(&checkpoint, model, (device, host), bench)?;
        let [rows, inner, columns] = counted.largest_product;
        let x = lane.tensor([rows, inner], &random_normal(1, rows * inner))?;
        let values = random_normal(2, columns * inner);
        let weight = Weight::new(lane.tensor([columns, inner], &values)?.operand().clone());
        let product_s = timed(&lane, || x.linear(&weight, None))?;
        let has_fp8 = device.description().capabilities.fp8_products.contains(&lane.dtype());
        let fp8_s = if has_fp8 {
            let codes = lane.tensor([columns, inner], &values)?.cast(DType::F8E4M3)?;
            let (weight, x) = (Weight::new(codes.operand().clone()), x.quantise()?);
            Some(timed(&lane, || x.linear_then(&weight, None, None))?)
        } else {
            None
        };
        let [batch, queries, heads, size] = counted.largest_attention;
        let count = batch * queries * heads * size;
        let q = lane.tensor(counted.largest_attention, &random_normal(3, count))?;
        let attention_s = timed(&lane, || q.attention(&q, &q, &Mask::None, 0.1))?;
        let flops = 2.0 * (rows * inner * columns) as f64;
        let (product_flops_per_s, fp8_product_flops_per_s) = (flops / product_s, fp8_s.map(|s| flops / s));
        let attention_flops_per_s = 4.0 * (count * queries) as f64 / attention_s;
        let Counted { product_flops, attention_flops, .. } = counted;
        let at =
            |products: f64| product_flops as f64 / products + attention_flops as f64 / attention_flops_per_s;
        Ok(Floor {
            product_flops,
            attention_flops,
            product_flops_per_s,
            attention_flops_per_s,
            seconds: at(product_flops_per_s),
            fp8_product_flops_per_s,
            fp8_seconds: fp8_product_flops_per_s.map(at),
        })
    }
}

/// The matrix products and the attention of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Counted {
    product_flops: u64,
    attention_flops: u64,
    /// Rows, inner and outer columns of the largest product with a weight.
    largest_product: [usize; 3],
    /// Batch, tokens, heads and values per head of the largest attention.
    largest_attention: [usize; 4],
}

impl Counted {
    fn add(&mut self, call: &OpCall) {
        let cost = call.cost();
        match cost.kind {
            WorkKind::Product => self.product_flops += cost.flops,
            WorkKind::Attention => self.attention_flops += cost.flops,
            WorkKind::Convolution | WorkKind::Memory => {}
        }
        match call {
            OpCall::Linear(linear) => {
                let (x, out) = (linear.x.shape().dims(), linear.out.shape().dims());
                let rows: usize = x[..x.len() - 1].iter().product();
                let sizes = [rows, x[x.len() - 1], out[out.len() - 1]];
                if sizes.iter().product::<usize>() > self.largest_product.iter().product() {
                    self.largest_product = sizes;
                }
            }
            OpCall::Attention(attention) => {
                if let Ok(q) = <[usize; 4]>::try_from(attention.q.shape().dims())
                    && q.iter().product::<usize>() > self.largest_attention.iter().product()
                {
                    self.largest_attention = q;
                }
            }
            _ => {}
        }
    }
}

/// The operations of one step, counted on a null device.
fn operations(
    checkpoint: &Checkpoint,
    model: Box<dyn Diffusion>,
    (device, host): (&Device, &Device),
    bench: &Bench<'_>,
) -> Result<Counted> {
    let counts = Arc::new(Mutex::new(Counted::default()));
    let counted = Arc::clone(&counts);
    let count = move |call: &OpCall| {
        counted.lock().unwrap_or_else(PoisonError::into_inner).add(call);
        0.0
    };
    let null = Device::new(Arc::new(NullBackend::like(device, 0, Arc::new(count))), BOUNDLESS);
    let manifest = model.manifest(checkpoint)?;
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
    let dtype = Some(Lane::choose(device, model.activations())?.dtype());
    let id = residency.load(manifest, plan, LoadOptions { dtype, ..LoadOptions::default() })?;
    let session = residency.open(id, &Cancel::default())?;
    let loaded = Loaded { model, session, residency };
    let run = loaded.start(bench.size, bench.evaluations)?;
    // What is done once a run is no part of a step.
    *counts.lock().unwrap_or_else(PoisonError::into_inner) = Counted::default();
    let latent = loaded.latent(bench.size, &loaded.noise(bench.size))?;
    loaded.step(&*run, &latent, bench.evaluations)?;
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
