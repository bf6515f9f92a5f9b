//! Operations in plain loops over f64, written for being obviously right.

use tensor::{Activation, Padding, ResizeMode, Window};

/// `x[m, k] · w[n, k]ᵀ`.
pub(crate) fn linear(x: &[f64], w: &[f64], k: usize) -> Vec<f64> {
    let row = |x: &[f64]| w.chunks(k).map(|w| dot(x, w)).collect::<Vec<_>>();
    x.chunks(k).flat_map(row).collect()
}

/// `a[m, k] · b[k, n]` for each batch.
pub(crate) fn matmul(a: &[f64], b: &[f64], [m, k, n]: [usize; 3]) -> Vec<f64> {
    let one = |(a, b): (&[f64], &[f64])| {
        let value = |i: usize| (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum();
        (0..m * n).map(value).collect::<Vec<f64>>()
    };
    a.chunks(m * k).zip(b.chunks(k * n)).flat_map(one).collect()
}

pub(crate) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Sizes of an attention.
#[derive(Clone, Copy)]
pub(crate) struct AttentionSize {
    pub(crate) batch: usize,
    pub(crate) queries: usize,
    pub(crate) keys: usize,
    pub(crate) heads: usize,
    pub(crate) groups: usize,
    pub(crate) size: usize,
}

/// Attention with `bias(batch, head, query, key)` added to the scores.
pub(crate) fn attention(
    s: AttentionSize,
    values: [&[f64]; 3],
    scale: f64,
    bias: impl Fn(usize, usize, usize, usize) -> f64,
) -> Vec<f64> {
    attention_of_scores(s, values, scale, |score| score, bias)
}

/// The same with something done to the scores before.
pub(crate) fn attention_of_scores(
    s: AttentionSize,
    [q, k, v]: [&[f64]; 3],
    scale: f64,
    score: impl Fn(f64) -> f64,
    bias: impl Fn(usize, usize, usize, usize) -> f64,
) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    let row = |len: usize, heads: usize, [b, i, h]: [usize; 3]| ((b * len + i) * heads + h) * s.size;
    for (b, i, h) in
        (0..s.batch).flat_map(|b| (0..s.queries).flat_map(move |i| (0..s.heads).map(move |h| (b, i, h))))
    {
        let g = h / (s.heads / s.groups);
        let at = row(s.queries, s.heads, [b, i, h]);
        let key = |j: usize| row(s.keys, s.groups, [b, j, g]);
        let scores: Vec<f64> = (0..s.keys)
            .map(|j| score(scale * dot(&q[at..at + s.size], &k[key(j)..key(j) + s.size])) + bias(b, h, i, j))
            .collect();
        if scores.iter().all(|score| *score == f64::NEG_INFINITY) {
            // A query that sees nothing gets zeros.
            continue;
        }
        for (j, p) in softmax(&scores, s.keys).into_iter().enumerate() {
            for d in 0..s.size {
                out[at + d] += p * v[key(j) + d];
            }
        }
    }
    out
}

/// Softmax over rows of `n`.
pub(crate) fn softmax(x: &[f64], n: usize) -> Vec<f64> {
    let row = |x: &[f64]| {
        let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let e: Vec<f64> = x.iter().map(|v| (v - max).exp()).collect();
        let sum: f64 = e.iter().sum();
        e.into_iter().map(|v| v / sum).collect::<Vec<_>>()
    };
    x.chunks(n).flat_map(row).collect()
}

/// Sizes of a convolution over three dimensions (the first of size 1 where there are fewer).
#[derive(Clone, Copy)]
pub(crate) struct ConvolutionSize {
    pub(crate) batch: usize,
    pub(crate) channels: [usize; 2],
    pub(crate) input: [usize; 3],
    pub(crate) kernel: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) window: [Window; 3],
    pub(crate) padding: Padding,
    pub(crate) groups: usize,
    pub(crate) transposed: bool,
}

/// Every index below the sizes, in order.
fn indices(sizes: [usize; 3]) -> impl Iterator<Item = [usize; 3]> {
    let [a, b, c] = sizes;
    (0..a * b * c).map(move |i| [i / (b * c), i / c % b, i % c])
}

fn flat(sizes: [usize; 3], at: [usize; 3]) -> usize {
    (at[0] * sizes[1] + at[1]) * sizes[2] + at[2]
}

/// A convolution, forward or transposed, as a sum over kernel positions.
pub(crate) fn convolution(s: ConvolutionSize, x: &[f64], w: &[f64], bias: &[f64]) -> Vec<f64> {
    let [ins, outs] = s.channels;
    let volume = |sizes: [usize; 3]| sizes.iter().product::<usize>();
    let (vin, vker, vout) = (volume(s.input), volume(s.kernel), volume(s.output));
    let mut out = vec![0.0; s.batch * outs * vout];
    let (gin, gout) = (ins / s.groups, outs / s.groups);
    for (n, o) in (0..s.batch).flat_map(|n| (0..outs).map(move |o| (n, o))) {
        let group = o / gout;
        for at in indices(s.output) {
            let mut sum = bias.get(o).copied().unwrap_or(0.0);
            for tap in indices(s.kernel) {
                let Some(source) = source(&s, at, tap) else { continue };
                for c in 0..gin {
                    let channel = group * gin + c;
                    let weight = if s.transposed { channel * gout + o % gout } else { o * gin + c };
                    sum += x[(n * ins + channel) * vin + flat(s.input, source)]
                        * w[weight * vker + flat(s.kernel, tap)];
                }
            }
            out[(n * outs + o) * vout + flat(s.output, at)] = sum;
        }
    }
    out
}

/// The input position that a kernel tap sees from an output position.
fn source(s: &ConvolutionSize, at: [usize; 3], tap: [usize; 3]) -> Option<[usize; 3]> {
    let mut source = [0; 3];
    for i in 0..3 {
        let window = &s.window[i];
        let step = (tap[i] * window.dilation) as isize - window.pad_before as isize;
        let index = if s.transposed {
            let moved = at[i] as isize - step;
            (moved % window.stride as isize == 0).then_some(moved / window.stride as isize)?
        } else {
            (at[i] * window.stride) as isize + step
        };
        source[i] = s.padding.source(index, s.input[i])?;
    }
    Some(source)
}

/// Mean 0 and variance 1 over runs of `n`.
pub(crate) fn normalise(x: &[f64], n: usize, eps: f64) -> Vec<f64> {
    let run = |x: &[f64]| {
        let mean = x.iter().sum::<f64>() / n as f64;
        let variance = x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n as f64;
        x.iter().map(|v| (v - mean) / (variance + eps).sqrt()).collect::<Vec<_>>()
    };
    x.chunks(n).flat_map(run).collect()
}

/// Root mean square 1 over rows of `n`.
pub(crate) fn rms(x: &[f64], n: usize, eps: f64) -> Vec<f64> {
    let run = |x: &[f64]| {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / n as f64;
        x.iter().map(|v| v / (mean + eps).sqrt()).collect::<Vec<_>>()
    };
    x.chunks(n).flat_map(run).collect()
}

pub(crate) fn activate(activation: Activation, x: f64) -> f64 {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::Gelu => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::QuickGelu => x * sigmoid(1.702 * x),
        Activation::Relu => x.max(0.0),
    }
}

/// The error function by its power series, which converges everywhere; at 6 it is 1 in f64.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut sum) = (x, x);
    for n in 1..400 {
        term *= -x * x / n as f64;
        sum += term / (2 * n + 1) as f64;
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

/// An image of another size.
pub(crate) fn resize(x: &[f64], [h, w]: [usize; 2], [oh, ow]: [usize; 2], mode: ResizeMode) -> Vec<f64> {
    let (rows, columns) = (taps(h, oh, mode), taps(w, ow, mode));
    let image = |x: &[f64]| {
        let value = |i: usize| {
            let row = |(r, a): &(usize, f64)| {
                a * columns[i % ow].iter().map(|(c, b)| b * x[r * w + c]).sum::<f64>()
            };
            rows[i / ow].iter().map(row).sum::<f64>()
        };
        (0..oh * ow).map(value).collect::<Vec<_>>()
    };
    x.chunks(h * w).flat_map(image).collect()
}

/// For each output index, the input indices it is made of and their weights.
fn taps(size: usize, out: usize, mode: ResizeMode) -> Vec<Vec<(usize, f64)>> {
    let scale = size as f64 / out as f64;
    let clamp = |i: f64| i.clamp(0.0, size as f64 - 1.0) as usize;
    let tap = |i: usize| match mode {
        ResizeMode::Nearest => vec![(clamp((i as f64 * scale).floor()), 1.0)],
        ResizeMode::NearestExact => vec![(clamp(((i as f64 + 0.5) * scale).floor()), 1.0)],
        ResizeMode::Bilinear => {
            let at = ((i as f64 + 0.5) * scale - 0.5).max(0.0);
            vec![(clamp(at.floor()), 1.0 - at.fract()), (clamp(at.floor() + 1.0), at.fract())]
        }
        ResizeMode::Bicubic => {
            let at = (i as f64 + 0.5) * scale - 0.5;
            let t = at - at.floor();
            (-1..3).map(|j| (clamp(at.floor() + f64::from(j)), cubic(f64::from(j) - t))).collect()
        }
        ResizeMode::Area => {
            let (first, last) = (i * size / out, ((i + 1) * size).div_ceil(out));
            (first..last).map(|j| (j, 1.0 / (last - first) as f64)).collect()
        }
    };
    (0..out).map(tap).collect()
}

/// The cubic convolution kernel with a = -¾.
fn cubic(x: f64) -> f64 {
    let (a, x) = (-0.75, x.abs());
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    }
}
