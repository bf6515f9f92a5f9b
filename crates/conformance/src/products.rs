//! Cases of linear layers, matrix products, attention, rotary positions and embeddings.

use meta::{DType, Encoding, QuantFormat, Rotation, Scheme};
use tensor::{Activation, Mask, RopeLayout};

use crate::case::{Case, Input};
use crate::naive::{self, AttentionSize};

/// Element types in which weights are stored.
pub(crate) const STORED: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::F8E5M2];

/// Every encoding in which weights are stored.
pub(crate) fn encodings() -> impl Iterator<Item = Encoding> {
    STORED.into_iter().map(Encoding::from).chain(QuantFormat::ALL.into_iter().map(Encoding::from))
}

pub(crate) fn cases() -> Vec<Case> {
    [linear(), matmul(), attention(), rope(), normed_rope(), embedding()].concat()
}

fn linear() -> Vec<Case> {
    let mut cases: Vec<Case> = encodings().map(|e| linear_of(e, 37, [96, 512], e.name())).collect();
    cases.extend(
        [Encoding::BF16, Encoding::Quant(QuantFormat::Q8_0)]
            .map(|e| linear_of(e, 1, [200, 256], &format!("{e}, one row"))),
    );
    cases.extend([1, 2, 3, 5].map(|rows| {
        linear_of(DType::F8E4M3.into(), rows, [77, 1040], &format!("f8_e4m3, {rows} rows of 1040"))
    }));
    cases.push(few_scaled_rows());
    cases.push(linear_of(Encoding::F32, 130, [67, 101], "f32, odd sizes"));
    cases.push(linear_of(Encoding::BF16, 257, [320, 1000], "bf16, larger"));
    cases.extend(Activation::ALL.map(linear_activated));
    cases.push(scaled_linear());
    cases.extend(schemes().map(|(scheme, dims)| coded_linear(scheme, 37, dims, "")));
    cases.extend(schemes().map(|(scheme, dims)| coded_linear(scheme, 2, dims, ", two rows")));
    cases.extend(schemes().map(|(scheme, dims)| coded_part(scheme, dims)));
    cases.push(strided_linear());
    cases
}

fn linear_of(encoding: Encoding, rows: usize, [n, k]: [usize; 2], variant: &str) -> Case {
    let inputs = vec![
        Input::random(1, [rows, k]),
        Input::weight(encoding, 2, [n, k]),
        Input::weight(Encoding::F32, 3, [n]),
    ];
    Case::new(
        "linear",
        variant,
        inputs,
        |_, i| i.tensor(0).linear(i.weight(1), Some(i.weight(2))),
        move |v| naive::linear(&v[0], &v[1], k).iter().enumerate().map(|(i, y)| y + v[2][i % n]).collect(),
    )
}

fn linear_activated(activation: Activation) -> Case {
    let inputs = vec![
        Input::random(4, [2, 9, 64]),
        Input::weight(Encoding::BF16, 5, [80, 64]),
        Input::weight(Encoding::BF16, 6, [80]),
    ];
    Case::new(
        "linear",
        format!("then {activation:?}"),
        inputs,
        move |_, i| i.tensor(0).linear_then(i.weight(1), Some(i.weight(2)), Some(activation)),
        move |v| {
            let y = naive::linear(&v[0], &v[1], 64);
            y.iter().enumerate().map(|(i, y)| naive::activate(activation, y + v[2][i % 80])).collect()
        },
    )
}

fn scaled_linear() -> Case {
    let inputs = vec![
        Input::random(7, [12, 64]),
        Input::weight(DType::F8E4M3.into(), 8, [48, 64]),
        Input::Stored(Encoding::F32, [1].into(), 0.37f32.to_le_bytes().to_vec()),
    ];
    Case::new(
        "linear",
        "scaled f8_e4m3",
        inputs,
        |_, i| i.tensor(0).linear(&i.weight(1).clone().scaled(i.weight(2).operand().clone()), None),
        |v| naive::linear(&v[0], &v[1], 64).iter().map(|y| y * v[2][0]).collect(),
    )
}

/// A modulation: one row for each item, of a weight with a scale.
fn few_scaled_rows() -> Case {
    let inputs = vec![
        Input::random(65, [2, 96]),
        Input::weight(DType::F8E4M3.into(), 66, [576, 96]),
        Input::Stored(Encoding::F32, [1].into(), 0.37f32.to_le_bytes().to_vec()),
        Input::weight(Encoding::BF16, 67, [576]),
    ];
    Case::new(
        "linear",
        "scaled f8_e4m3, two rows",
        inputs,
        |_, i| {
            let weight = i.weight(1).clone().scaled(i.weight(2).operand().clone());
            i.tensor(0).linear_then(&weight, Some(i.weight(3)), Some(Activation::Silu))
        },
        |v| {
            let y = naive::linear(&v[0], &v[1], 96);
            let y = y.iter().enumerate().map(|(i, y)| y * v[2][0] + v[3][i % 576]);
            y.map(|y| naive::activate(Activation::Silu, y)).collect()
        },
    )
}

/// Every scheme of codes with scales beside them, with every length of rotation, and sizes that it fits: for schemes of
/// blocks more than one tile of scales, rows and columns that are filled up.
pub(crate) fn schemes() -> impl Iterator<Item = (Scheme, [usize; 2])> {
    let rotated = [4, 16, 64, 256, 1024].into_iter().filter_map(Rotation::new);
    let rotated = rotated.map(|rotation| {
        let columns = if rotation.group() == 4 { 772 } else { 3 * rotation.group() };
        (Scheme::Int8 { rotation: Some(rotation) }, [67, columns])
    });
    let others = [
        (Scheme::Int8 { rotation: None }, [67, 101]),
        (Scheme::Mxfp8, [150, 200]),
        (Scheme::Nvfp4, [150, 200]),
        (Scheme::Nvfp4, [256, 2112]),
    ];
    rotated.chain(others)
}

/// A scheme and sizes in words.
pub(crate) fn scheme_name(scheme: Scheme, [n, k]: [usize; 2]) -> String {
    match scheme {
        Scheme::Int8 { rotation: Some(rotation) } => format!("{scheme} {}, {n}x{k}", rotation.group()),
        _ => format!("{scheme}, {n}x{k}"),
    }
}

fn coded_linear(scheme: Scheme, rows: usize, dims @ [n, k]: [usize; 2], more: &str) -> Case {
    let inputs = vec![
        Input::random(31, [rows, k]),
        Input::coded(scheme, 32, dims),
        Input::weight(Encoding::BF16, 33, [n]),
    ];
    Case::new(
        "linear",
        format!("{}{more}", scheme_name(scheme, dims)),
        inputs,
        |_, i| i.tensor(0).linear(i.weight(1), Some(i.weight(2))),
        move |v| naive::linear(&v[0], &v[1], k).iter().enumerate().map(|(i, y)| y + v[2][i % n]).collect(),
    )
}

/// Some rows of a weight, as a joined projection is taken apart.
fn coded_part(scheme: Scheme, dims @ [n, k]: [usize; 2]) -> Case {
    let inputs = vec![Input::random(34, [5, k]), Input::coded(scheme, 35, dims)];
    let rows = n / 3..n - 7;
    let own = rows.clone();
    Case::new(
        "linear",
        format!("{}, some rows", scheme_name(scheme, dims)),
        inputs,
        move |_, i| i.tensor(0).linear(&i.weight(1).rows(rows.clone())?, None),
        move |v| naive::linear(&v[0], &v[1][own.start * k..own.end * k], k),
    )
}

fn strided_linear() -> Case {
    let inputs = vec![Input::random(9, [3, 10, 96]), Input::weight(Encoding::BF16, 10, [40, 32])];
    Case::new(
        "linear",
        "rows of a slice",
        inputs,
        |_, i| i.tensor(0).slice(2, 32, 32)?.slice(1, 2, 7)?.linear(i.weight(1), None),
        |v| {
            let rows = (0..3).flat_map(|b| (2..9).map(move |r| (b * 10 + r) * 96 + 32));
            let x: Vec<f64> = rows.flat_map(|at| v[0][at..at + 32].to_vec()).collect();
            naive::linear(&x, &v[1], 32)
        },
    )
}

fn matmul() -> Vec<Case> {
    let sizes = [[5, 33, 47, 29], [2, 64, 64, 64], [1, 1, 100, 70]];
    let plain = sizes.map(|[b, m, k, n]| {
        let inputs = vec![Input::random(11, [b, m, k]), Input::random(12, [b, k, n])];
        Case::new(
            "matmul",
            format!("{b} of {m}x{k}x{n}"),
            inputs,
            |_, i| i.tensor(0).matmul(i.tensor(1), 1.0),
            move |v| naive::matmul(&v[0], &v[1], [m, k, n]),
        )
    });
    let transposed = Case::new(
        "matmul",
        "both transposed, scaled",
        vec![Input::random(13, [3, 40, 24]), Input::random(14, [3, 31, 40])],
        |_, i| i.tensor(0).transpose(1, 2)?.matmul(&i.tensor(1).transpose(1, 2)?, 0.5),
        |v| {
            let a = transpose(&v[0], [3, 40, 24]);
            let b = transpose(&v[1], [3, 31, 40]);
            naive::matmul(&a, &b, [24, 40, 31]).iter().map(|y| y * 0.5).collect()
        },
    );
    let repeated = Case::new(
        "matmul",
        "right repeated over the batch",
        vec![Input::random(15, [4, 20, 16]), Input::random(16, [16, 12])],
        |_, i| i.tensor(0).matmul(i.tensor(1), 1.0),
        |v| naive::matmul(&v[0], &v[1].repeat(4), [20, 16, 12]),
    );
    // As a LoRA is merged: few values summed, rows of a larger weight.
    let added = [[300, 64, 257], [33, 24, 128], [1, 8, 40]].map(|[m, k, n]| {
        Case::new(
            "matmul",
            format!("{m}x{k}x{n} added to rows of a matrix"),
            vec![Input::random(27, [m, k]), Input::random(28, [k, n]), Input::random(29, [m + 5, n])],
            move |_, i| {
                let out = i.tensor(2).clone();
                out.slice(0, 3, m)?.add_matmul(i.tensor(0), i.tensor(1), 0.25)?;
                Ok(out)
            },
            move |v| {
                let product = naive::matmul(&v[0], &v[1], [m, k, n]);
                let mut out = v[2].clone();
                out[3 * n..].iter_mut().zip(product).for_each(|(out, y)| *out += 0.25 * y);
                out
            },
        )
    });
    plain.into_iter().chain([transposed, repeated]).chain(added).collect()
}

fn transpose(x: &[f64], [b, m, n]: [usize; 3]) -> Vec<f64> {
    (0..b * n * m).map(|i| x[i / (m * n) * m * n + i % m * n + i / m % n]).collect()
}

/// What the mask of an attention case is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MaskKind {
    Full,
    Causal,
    PerHead,
    PerBatch,
    /// The later keys of each item are hidden, and from the last query all of them are.
    Hidden,
}

impl MaskKind {
    fn shape(self, s: AttentionSize) -> [usize; 4] {
        match self {
            MaskKind::PerBatch => [s.batch, 1, 1, s.keys],
            MaskKind::Hidden => [s.batch, 1, s.queries, s.keys],
            _ => [1, s.heads, s.queries, s.keys],
        }
    }

    fn mask(self, inputs: &crate::case::Inputs) -> Mask {
        match self {
            MaskKind::Full => Mask::None,
            MaskKind::Causal => Mask::Causal,
            _ => Mask::Additive(inputs.tensor(3).clone()),
        }
    }

    fn bias(self, s: AttentionSize, mask: &[f64], [b, h, q, k]: [usize; 4]) -> f64 {
        match self {
            MaskKind::Full => 0.0,
            MaskKind::Causal if k + s.queries <= q + s.keys => 0.0,
            MaskKind::Causal => f64::NEG_INFINITY,
            MaskKind::PerHead => mask[(h * s.queries + q) * s.keys + k],
            MaskKind::PerBatch => mask[b * s.keys + k],
            MaskKind::Hidden => mask[(b * s.queries + q) * s.keys + k],
        }
    }

    /// Whether a key is hidden from a query.
    fn hides(self, s: AttentionSize, query: usize, key: usize) -> bool {
        self == MaskKind::Hidden && (query + 1 == s.queries || key + 9 >= s.keys)
    }
}

fn attention_inputs(s: AttentionSize, kind: MaskKind) -> Vec<Input> {
    let shape = kind.shape(s);
    let mask = match kind {
        MaskKind::Hidden => {
            let hidden = |i: usize| kind.hides(s, i / s.keys % s.queries, i % s.keys);
            let value = |i: usize| if hidden(i) { f32::NEG_INFINITY } else { 0.0 };
            Input::Activation(shape.into(), (0..shape.iter().product()).map(value).collect())
        }
        _ => Input::random(20, shape),
    };
    vec![
        Input::random(17, [s.batch, s.queries, s.heads, s.size]),
        Input::random(18, [s.batch, s.keys, s.groups, s.size]),
        Input::random(19, [s.batch, s.keys, s.groups, s.size]),
        mask,
    ]
}

fn attention() -> Vec<Case> {
    let s = |batch, queries, keys, [heads, groups]: [usize; 2], size| AttentionSize {
        batch,
        queries,
        keys,
        heads,
        groups,
        size,
    };
    let mut cases: Vec<Case> = [8, 40, 64, 80, 96, 128, 160, 192, 256]
        .map(|size| attention_of(s(1, 70, 70, [3, 3], size), MaskKind::Full, &format!("head {size}")))
        .into();
    cases.extend([
        attention_of(s(1, 33, 33, [2, 2], 7), MaskKind::Full, "head 7"),
        attention_of(s(2, 130, 77, [4, 4], 64), MaskKind::Full, "77 keys"),
        attention_of(s(1, 1, 200, [2, 2], 64), MaskKind::Full, "one query"),
        attention_of(s(2, 90, 1, [2, 2], 128), MaskKind::Full, "one key"),
        attention_of(s(2, 100, 100, [8, 2], 64), MaskKind::Full, "grouped heads"),
        attention_of(s(1, 150, 150, [2, 2], 64), MaskKind::Causal, "causal"),
        attention_of(s(1, 60, 140, [4, 2], 128), MaskKind::Causal, "causal, fewer queries, grouped"),
        attention_of(s(2, 65, 129, [3, 3], 64), MaskKind::PerHead, "mask per head"),
        attention_of(s(2, 65, 129, [3, 3], 128), MaskKind::PerBatch, "mask per batch"),
        attention_of(s(1, 700, 700, [2, 2], 128), MaskKind::Full, "700 positions"),
        attention_of(s(2, 513, 1037, [3, 3], 64), MaskKind::Full, "513 queries, 1037 keys"),
        attention_of(s(1, 530, 530, [1, 1], 40), MaskKind::Full, "530 positions, head 40"),
        fused_attention(),
    ]);
    // Large enough for kernels of libraries, which must hide keys and share groups as ours do.
    cases.extend([
        attention_of(s(1, 1040, 1100, [4, 2], 64), MaskKind::Full, "1040 positions, grouped heads"),
        attention_of(s(1, 1030, 1030, [2, 2], 64), MaskKind::PerHead, "1030 positions, mask per head"),
        attention_of(
            s(2, 1024, 1111, [2, 1], 64),
            MaskKind::PerBatch,
            "1024 positions, mask per batch, grouped",
        ),
        attention_of(s(2, 1056, 1160, [1, 1], 128), MaskKind::Hidden, "1056 positions, keys hidden"),
        attention_of(s(2, 40, 70, [2, 2], 64), MaskKind::Hidden, "keys hidden"),
    ]);
    cases.extend([
        capped_attention(s(1, 70, 70, [4, 2], 128), MaskKind::Causal, "capped, causal, grouped"),
        capped_attention(s(2, 65, 129, [3, 3], 40), MaskKind::PerHead, "capped, mask per head"),
        capped_attention(s(1, 600, 600, [1, 1], 256), MaskKind::Full, "capped, 600 positions, head 256"),
    ]);
    cases
}

/// Scores stay below this; those of the cases are larger.
const CAP: f32 = 1.5;

fn capped_attention(s: AttentionSize, kind: MaskKind, variant: &str) -> Case {
    let run = move |_: &tensor::Lane, i: &crate::case::Inputs| {
        i.tensor(0).capped_attention(i.tensor(1), i.tensor(2), &kind.mask(i), 0.3, CAP)
    };
    let naive = move |v: &[Vec<f64>]| {
        let cap = f64::from(CAP);
        let bent = |score: f64| cap * (score / cap).tanh();
        let bias = |b, h, q, k| kind.bias(s, &v[3], [b, h, q, k]);
        naive::attention_of_scores(s, [&v[0], &v[1], &v[2]], f64::from(0.3f32), bent, bias)
    };
    Case::new("attention", variant, attention_inputs(s, kind), run, naive)
}

fn attention_of(s: AttentionSize, kind: MaskKind, variant: &str) -> Case {
    let scale = 1.0 / (s.size as f32).sqrt();
    let run = move |_: &tensor::Lane, i: &crate::case::Inputs| {
        i.tensor(0).attention(i.tensor(1), i.tensor(2), &kind.mask(i), scale)
    };
    let naive = move |v: &[Vec<f64>]| {
        let bias = |b, h, q, k| kind.bias(s, &v[3], [b, h, q, k]);
        naive::attention(s, [&v[0], &v[1], &v[2]], f64::from(scale), bias)
    };
    Case::new("attention", variant, attention_inputs(s, kind), run, naive)
}

/// Queries, keys and values side by side in one tensor, as fused projections leave them.
fn fused_attention() -> Case {
    let s = AttentionSize { batch: 2, queries: 50, keys: 50, heads: 2, groups: 2, size: 64 };
    Case::new(
        "attention",
        "slices of fused q, k, v",
        vec![Input::random(21, [2, 50, 384])],
        move |_, i| {
            let part = |n: usize| i.tensor(0).slice(2, n * 128, 128)?.reshape([2, 50, 2, 64]);
            part(0)?.attention(&part(1)?, &part(2)?, &Mask::None, 0.125)
        },
        move |v| {
            let part = |n: usize| {
                v[0].chunks(384).flat_map(|r| r[n * 128..(n + 1) * 128].to_vec()).collect::<Vec<_>>()
            };
            naive::attention(s, [&part(0), &part(1), &part(2)], 0.125, |_, _, _, _| 0.0)
        },
    )
}

fn rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for layout in [RopeLayout::Interleaved, RopeLayout::HalfSplit] {
        for (rotated, tables, variant) in
            [(64, 1, "whole head"), (48, 1, "part of the head"), (64, 2, "tables per batch")]
        {
            let turned = Turned { layout, size: 64, rotated, tables };
            cases.push(rope_of(turned, &format!("{layout:?}, {variant}")));
        }
    }
    cases
}

/// Heads of which the first `rotated` values turn, and the tables of their angles.
#[derive(Clone, Copy)]
struct Turned {
    layout: RopeLayout,
    size: usize,
    rotated: usize,
    tables: usize,
}

impl Turned {
    const BATCH: usize = 2;
    const LENGTH: usize = 19;
    const HEADS: usize = 3;

    fn heads(self, seed: u64) -> Input {
        Input::random(seed, [Turned::BATCH, Turned::LENGTH, Turned::HEADS, self.size])
    }

    fn table(self, of: fn(f32) -> f32) -> Input {
        let shape = [self.tables, Turned::LENGTH, self.rotated / 2];
        let count = shape.iter().product();
        Input::Table(shape.into(), (0..count).map(|i: usize| of(i as f32 * 0.37 % 6.0)).collect())
    }

    fn naive(self, heads: &[f64], [cos, sin]: [&[f64]; 2]) -> Vec<f64> {
        let (half, length) = (self.rotated / 2, Turned::LENGTH);
        let mut out = heads.to_vec();
        for (row, x) in heads.chunks(self.size).enumerate() {
            let (b, l) = (row / (length * Turned::HEADS), row / Turned::HEADS % length);
            for p in 0..half {
                let at = ((b % self.tables) * length + l) * half + p;
                let (i, j) = match self.layout {
                    RopeLayout::Interleaved => (2 * p, 2 * p + 1),
                    RopeLayout::HalfSplit => (p, p + half),
                };
                out[row * self.size + i] = x[i] * cos[at] - x[j] * sin[at];
                out[row * self.size + j] = x[i] * sin[at] + x[j] * cos[at];
            }
        }
        out
    }
}

fn rope_of(turned: Turned, variant: &str) -> Case {
    Case::new(
        "rope",
        variant,
        vec![turned.heads(22), turned.table(f32::cos), turned.table(f32::sin)],
        move |_, i| i.tensor(0).rope(i.tensor(1), i.tensor(2), turned.layout),
        move |v| turned.naive(&v[0], [&v[1], &v[2]]),
    )
}

fn normed_rope() -> Vec<Case> {
    let mut cases = Vec::new();
    for layout in [RopeLayout::Interleaved, RopeLayout::HalfSplit] {
        for (size, rotated, encoding) in [
            (128, 128, Encoding::BF16),
            (64, 64, Encoding::F32),
            (64, 48, Encoding::F16),
            (96, 96, Encoding::F32),
        ] {
            cases.push(normed_rope_of(Turned { layout, size, rotated, tables: 1 }, encoding));
        }
    }
    cases
}

/// Heads are read out of a wider tensor and written between others.
fn normed_rope_of(turned: Turned, encoding: Encoding) -> Case {
    let Turned { layout, size, rotated, .. } = turned;
    let inputs = vec![
        turned.heads(25),
        turned.table(f32::cos),
        turned.table(f32::sin),
        Input::weight(encoding, 26, [size]),
    ];
    let run = move |lane: &tensor::Lane, i: &crate::case::Inputs| {
        let wide = tensor::Tensor::concat(&[i.tensor(0), i.tensor(0)], 2)?;
        let room = lane.full([Turned::BATCH, Turned::LENGTH + 2, Turned::HEADS, size], 0.0)?.contiguous()?;
        let part = room.slice(1, 1, Turned::LENGTH)?;
        let tables = [i.tensor(1), i.tensor(2)];
        let x = wide.slice(2, Turned::HEADS, Turned::HEADS)?;
        x.normed_rope_into(i.weight(3), 1e-6, tables, layout, &part)?;
        Ok(room)
    };
    let naive = move |v: &[Vec<f64>]| {
        let normed = naive::rms(&v[0], size, 1e-6);
        let scaled: Vec<f64> = normed.iter().enumerate().map(|(i, x)| x * v[3][i % size]).collect();
        let turned = turned.naive(&scaled, [&v[1], &v[2]]);
        let border = vec![0.0; Turned::HEADS * size];
        let items = turned.chunks(Turned::LENGTH * Turned::HEADS * size);
        items.flat_map(|item| [&border[..], item, &border[..]].concat()).collect()
    };
    let variant = format!("{layout:?}, {rotated} of {size} values, {encoding} weight");
    Case::new("normed rope", variant, inputs, run, naive)
}

fn embedding() -> Vec<Case> {
    let of = |encoding: Encoding| {
        let ids: Vec<i32> = (0..14).map(|i| i * 7 % 30).collect();
        let inputs = vec![Input::weight(encoding, 23, [30, 256]), Input::Ids([2, 7].into(), ids)];
        Case::new(
            "embedding",
            encoding.name(),
            inputs,
            |lane, i| lane.embedding(i.weight(0), i.tensor(1)),
            |v| v[1].iter().flat_map(|id| v[0][*id as usize * 256..][..256].to_vec()).collect(),
        )
        .exact()
    };
    let quantised = [QuantFormat::Q8_0, QuantFormat::Q4_K, QuantFormat::Q6_K].map(Encoding::from);
    STORED.map(Encoding::from).into_iter().chain(quantised).map(of).collect()
}
