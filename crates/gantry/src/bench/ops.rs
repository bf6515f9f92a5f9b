//! `gantry bench ops`: matrix products, convolutions and attention at the shapes that SD1.5, FLUX and
//! the autoencoder have.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use device::Device;
use meta::{DType, Encoding, QuantFormat};
use serde::Serialize;
use serde_json::{Value, json};
use tensor::{Activation, ConvolutionShape, Lane, Mask, Tensor, Weight};
use testkit::{encode, random_normal};

use super::is_wanted;
use super::torch::Torch;
use crate::bench::{need_rows, show};
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::table::Table;

/// Ours and the peer's are measured in turns, this often each; the shortest counts.
const ROUNDS: usize = 3;
/// Seconds that one round may take at most, unless three runs take longer.
const ROUND_BUDGET_S: f64 = 0.4;

/// One shape.
#[derive(Clone, Debug)]
struct Shape {
    name: String,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Linear {
        m: usize,
        k: usize,
        n: usize,
        stored: Encoding,
    },
    Conv2d {
        channels: [usize; 2],
        side: usize,
        kernel: usize,
    },
    Attention {
        batch: usize,
        queries: usize,
        keys: usize,
        heads: usize,
        size: usize,
    },
    /// A product of codes that are there, with a bias.
    EightBits {
        m: usize,
        k: usize,
        n: usize,
        activation: Option<Activation>,
    },
    /// Rows of activations to codes.
    Rounding {
        m: usize,
        k: usize,
        before: Before,
    },
}

/// What is done to rows in the pass that rounds them.
#[derive(Clone, Copy, Debug)]
enum Before {
    Nothing,
    Norm,
    GeluTanh,
}

#[derive(Serialize)]
struct Row {
    name: String,
    dtype: &'static str,
    flops: u64,
    seconds: f64,
    gflops: f64,
    peer_seconds: Option<f64>,
    /// Our throughput over the peer's.
    ratio: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    version: &'static str,
    device: String,
    device_name: String,
    peer: String,
    rows: Vec<Row>,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    let device = machine.registry().get(args.device)?;
    let lane = Lane::preferred(device)?;
    let bare = machine.cuda(args.device);
    let mut torch =
        if bare.is_some() { Err("measured bare instead".into()) } else { start_torch(&args.python) };
    let peer = match (&bare, &torch) {
        (Some(_), _) => "cuBLASLt called bare".to_owned(),
        (None, Ok(torch)) => torch.version().to_owned(),
        (None, Err(why)) => format!("none: {why}"),
    };
    let mut rows = Vec::new();
    let has_fp8 = device.description().capabilities.fp8_products.contains(&lane.dtype());
    let mut shapes = shapes();
    shapes.extend(if has_fp8 { eight_bits() } else { Vec::new() });
    for shape in shapes.iter().filter(|shape| is_wanted(&args.only, &shape.name)) {
        rows.push(match bare {
            Some(backend) => match shape.kind {
                Kind::Linear { m, k, n, stored: Encoding::BF16 } => row(shape, &lane, |budget| {
                    let repeats = repeats(budget, m * n * k);
                    Ok(Some(backend.bare_matmul_seconds(device.ledger(), [m, n, k], repeats)?))
                })?,
                _ => row(shape, &lane, |_| Ok(None))?,
            },
            None => row(shape, &lane, |budget| peer_seconds(&mut torch, shape, &lane, budget))?,
        });
    }
    need_rows(args, !rows.is_empty())?;
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        device: device.id().to_string(),
        device_name: device.description().name.clone(),
        peer,
        rows,
    };
    show(args, &report, Report::to_text)
}

fn start_torch(python: &str) -> Result<Torch, String> {
    if python == "none" {
        return Err("left out".into());
    }
    Torch::start(python).map_err(|error| format!("{error:#}"))
}

/// Enough repeats to fill a budget on a device of a few hundred TFLOP/s.
fn repeats(budget_s: f64, multiplications: usize) -> usize {
    (budget_s * 2e14 / multiplications as f64).clamp(5.0, 200.0) as usize
}

fn peer_seconds(
    torch: &mut Result<Torch, String>,
    shape: &Shape,
    lane: &Lane,
    budget: f64,
) -> Result<Option<f64>> {
    match torch {
        Ok(_) if matches!(shape.kind, Kind::EightBits { .. } | Kind::Rounding { .. }) => Ok(None),
        Ok(torch) => Ok(Some(torch.seconds(&shape.question(lane, budget))?)),
        Err(_) => Ok(None),
    }
}

/// Measures one shape, ours and the peer's in turns.
fn row(shape: &Shape, lane: &Lane, mut peer: impl FnMut(f64) -> Result<Option<f64>>) -> Result<Row> {
    let work = shape.prepare(lane)?;
    let (mut ours, mut theirs): (f64, Option<f64>) = (f64::INFINITY, None);
    for _ in 0..ROUNDS {
        ours = ours.min(shortest(lane.device(), &work)?);
        if let Some(seconds) = peer(ROUND_BUDGET_S)? {
            theirs = Some(theirs.map_or(seconds, |best| best.min(seconds)));
        }
    }
    let flops = shape.flops();
    Ok(Row {
        name: shape.name.clone(),
        dtype: lane.dtype().name(),
        flops,
        seconds: ours,
        gflops: flops as f64 / ours / 1e9,
        peer_seconds: theirs,
        ratio: theirs.map(|theirs| theirs / ours),
    })
}

/// The shortest time of several runs. On a device that queues work, runs are timed in groups, so that
/// the wait for the end does not count as work.
fn shortest(device: &Device, work: &Work) -> Result<f64> {
    let stream = device.compute_stream()?;
    let time = |runs: usize| -> Result<f64> {
        let start = Instant::now();
        for _ in 0..runs {
            work()?;
        }
        stream.synchronize()?;
        Ok(start.elapsed().as_secs_f64() / runs as f64)
    };
    let first = time(1)?;
    let group = if first < 2e-3 { 20 } else { 1 };
    let (mut best, mut spent, mut rounds) = (f64::INFINITY, 0.0, 0);
    while rounds < 3 || (spent < ROUND_BUDGET_S && rounds < 50) {
        let taken = time(group)?;
        best = best.min(taken);
        spent += taken * group as f64;
        rounds += 1;
    }
    Ok(best)
}

/// One run of a shape on a device.
type Work = Box<dyn Fn() -> tensor::Result<Tensor>>;

impl Shape {
    fn flops(&self) -> u64 {
        let product = |sizes: &[usize]| sizes.iter().map(|s| *s as u64).product::<u64>();
        match self.kind {
            Kind::Linear { m, k, n, .. } => 2 * product(&[m, k, n]),
            Kind::Conv2d { channels: [a, b], side, kernel } => {
                2 * product(&[a, b, side, side, kernel, kernel])
            }
            Kind::Attention { batch, queries, keys, heads, size } => {
                4 * product(&[batch, heads, queries, keys, size])
            }
            Kind::EightBits { m, k, n, .. } => 2 * product(&[m, k, n]),
            // Passes over memory: an operation per value.
            Kind::Rounding { m, k, .. } => product(&[m, k]),
        }
    }

    fn prepare(&self, lane: &Lane) -> Result<Work> {
        let values =
            |n: usize| random_normal(5, n.min(1 << 20)).into_iter().cycle().take(n).collect::<Vec<_>>();
        let stored = |encoding: Encoding, dims: &[usize]| -> Result<Weight> {
            let shape = meta::Shape::new(dims)?;
            Ok(Weight::upload(lane.device(), encoding, shape, &encode(encoding, &values(shape.count()))?)?)
        };
        let activation = |dims: &[usize]| -> Result<Tensor> {
            let shape = meta::Shape::new(dims)?;
            Ok(lane.tensor(shape, &values(shape.count()))?)
        };
        Ok(match self.kind {
            Kind::Linear { m, k, n, stored: encoding } => {
                let (x, w) = (activation(&[m, k])?, stored(encoding, &[n, k])?);
                Box::new(move || x.linear(&w, None))
            }
            Kind::Conv2d { channels: [a, b], side, kernel } => {
                let x = activation(&[1, a, side, side])?;
                let encoding = Encoding::Plain(lane.dtype());
                let (w, bias) = (stored(encoding, &[b, a, kernel, kernel])?, stored(encoding, &[b])?);
                let shape = ConvolutionShape::uniform(2, 1, kernel / 2);
                Box::new(move || x.convolution(&w, Some(&bias), &shape))
            }
            Kind::Attention { batch, queries, keys, heads, size } => {
                let q = activation(&[batch, queries, heads, size])?;
                let (k, v) =
                    (activation(&[batch, keys, heads, size])?, activation(&[batch, keys, heads, size])?);
                let scale = 1.0 / (size as f32).sqrt();
                Box::new(move || q.attention(&k, &v, &Mask::None, scale))
            }
            Kind::EightBits { m, k, n, activation: then } => {
                let (x, w) = (activation(&[m, k])?.quantise()?, stored(DType::F8E4M3.into(), &[n, k])?);
                let bias = stored(Encoding::Plain(lane.dtype()), &[n])?;
                Box::new(move || x.linear_then(&w, Some(&bias), then))
            }
            Kind::Rounding { m, k, before } => {
                let (x, by) = (activation(&[m, k])?, activation(&[1, k])?);
                // What is measured gives back something of the device; the codes are no tensor.
                Box::new(move || {
                    match before {
                        Before::Nothing => x.quantise(),
                        Before::Norm => x.quantise_normed(&by, &by, 1e-6),
                        Before::GeluTanh => x.quantise_gelu_tanh(0),
                    }?;
                    Ok(by.clone())
                })
            }
        })
    }

    /// The same shape for the peer.
    fn question(&self, lane: &Lane, budget_s: f64) -> Value {
        let device = if lane.device().id().kind == meta::DeviceKind::Cuda { "cuda" } else { "cpu" };
        let mut question = match self.kind {
            Kind::Linear { m, k, n, stored } => {
                json!({"op": "linear", "m": m, "k": k, "n": n, "stored": stored.name()})
            }
            Kind::Conv2d { channels: [a, b], side, kernel } => {
                json!({"op": "conv2d", "in": a, "out": b, "height": side, "width": side, "kernel": kernel})
            }
            Kind::Attention { batch, queries, keys, heads, size } => {
                json!({"op": "attention", "batch": batch, "queries": queries, "keys": keys, "heads": heads, "size": size})
            }
            // Only cards have these, and there the peer is not asked.
            Kind::EightBits { .. } | Kind::Rounding { .. } => json!({"op": "none"}),
        };
        question["device"] = device.into();
        question["dtype"] = lane.dtype().name().into();
        question["budget_s"] = budget_s.into();
        question
    }
}

/// The shapes, by the model they are of.
fn shapes() -> Vec<Shape> {
    let mut all = Vec::new();
    let products = [
        ("SD1.5 64² ff in", 4096, 320, 2560),
        ("SD1.5 64² ff out", 4096, 1280, 320),
        ("SD1.5 32² ff in", 1024, 640, 5120),
        ("FLUX 512² qkv", 1536, 3072, 9216),
        ("FLUX 512² mlp in", 1536, 3072, 12288),
        ("FLUX 512² mlp out", 1536, 12288, 3072),
        ("FLUX 1024² qkv", 4608, 3072, 9216),
        ("FLUX modulation", 1, 3072, 18432),
    ];
    let encodings = [Encoding::Plain(DType::F32), Encoding::BF16, Encoding::Quant(QuantFormat::Q8_0)];
    for (name, m, k, n) in products {
        all.extend(encodings.map(|stored| Shape {
            name: format!("linear {name}, {stored} weights"),
            kind: Kind::Linear { m, k, n, stored },
        }));
    }
    let convolutions = [
        ("SD1.5 64²", [320, 320], 64, 3),
        ("SD1.5 32²", [640, 640], 32, 3),
        ("SD1.5 16²", [1280, 1280], 16, 3),
        ("SD1.5 64² 1x1", [640, 320], 64, 1),
        ("VAE 64²", [512, 512], 64, 3),
        ("VAE 256²", [256, 256], 256, 3),
        ("VAE 512²", [128, 128], 512, 3),
    ];
    all.extend(convolutions.map(|(name, channels, side, kernel)| Shape {
        name: format!("conv2d {name}"),
        kind: Kind::Conv2d { channels, side, kernel },
    }));
    let attentions = [
        ("SD1.5 64²", [2, 4096, 4096, 8, 40]),
        ("SD1.5 32²", [2, 1024, 1024, 8, 80]),
        ("SD1.5 64² to text", [2, 4096, 77, 8, 40]),
        ("FLUX 512²", [1, 1536, 1536, 24, 128]),
        ("FLUX 1024²", [1, 4608, 4608, 24, 128]),
    ];
    all.extend(attentions.map(|(name, [batch, queries, keys, heads, size])| Shape {
        name: format!("attention {name}"),
        kind: Kind::Attention { batch, queries, keys, heads, size },
    }));
    all
}

/// Products of 8 bits of FLUX at 1024², what rounds activations for them, and its modulations from weights of fp8.
fn eight_bits() -> Vec<Shape> {
    let gelu = Some(Activation::GeluTanh);
    let products = [
        ("qkv", 3072, 9216, None),
        ("mlp in", 3072, 12288, None),
        ("mlp in, then GELU", 3072, 12288, gelu),
        ("mlp out", 12288, 3072, None),
        ("joined out", 15360, 3072, None),
    ];
    let products = products.map(|(name, k, n, activation)| Shape {
        name: format!("8-bit linear FLUX 1024² {name}"),
        kind: Kind::EightBits { m: 4608, k, n, activation },
    });
    let rounding = [
        ("hidden", 3072, Before::Nothing),
        ("hidden, normed", 3072, Before::Norm),
        ("inner", 12288, Before::Nothing),
        ("inner, after GELU", 12288, Before::GeluTanh),
        ("joined", 15360, Before::Nothing),
        ("joined, after GELU", 15360, Before::GeluTanh),
    ];
    let rounding = rounding.map(|(name, k, before)| Shape {
        name: format!("8-bit rounding FLUX 1024² {name}"),
        kind: Kind::Rounding { m: 4608, k, before },
    });
    let modulation = Kind::Linear { m: 1, k: 3072, n: 18432, stored: DType::F8E4M3.into() };
    let modulation = Shape { name: "linear FLUX modulation, f8_e4m3 weights".into(), kind: modulation };
    products.into_iter().chain(rounding).chain([modulation]).collect()
}

impl Report {
    fn to_text(&self) -> String {
        let mut table = Table::new(&["shape", "type", "ms", "GFLOP/s", "peer ms", "ours / peer"]);
        for row in &self.rows {
            let number =
                |value: Option<f64>, digits: usize| value.map_or("-".into(), |v| format!("{v:.digits$}"));
            table.row(&[
                &row.name,
                row.dtype,
                &format!("{:.3}", row.seconds * 1e3),
                &format!("{:.1}", row.gflops),
                &number(row.peer_seconds.map(|s| s * 1e3), 3),
                &number(row.ratio, 2),
            ]);
        }
        format!("{} ({}); peer: {}\n\n{table}", self.device, self.device_name, self.peer)
    }
}
