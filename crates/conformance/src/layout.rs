//! Cases of casts, permutations, joins, unpacking and noise.

use codec::{Format, TILE};
use device::Operand;
use meta::{DType, Encoding, Scheme};
use tensor::Tensor;
use testkit::{decode, encode, random_bytes, random_trained};

use crate::case::{Case, Input};
use crate::products::{encodings, scheme_name, schemes};

pub(crate) fn cases() -> Vec<Case> {
    [unpack(), decode_coded(), coded_rows(), cast(), narrowed(), moves(), noise()].concat()
}

/// Stored weights as plain values. Plain types are compared with the fixtures' own decoder; quantised
/// blocks only between devices, since the CPU's are held to reference values by its own tests.
fn unpack() -> Vec<Case> {
    let of = |encoding: Encoding| {
        let run = |lane: &tensor::Lane, i: &crate::case::Inputs| lane.unpack(i.weight(0));
        let input = Input::weight(encoding, 81, [9, 768]);
        let decoded = input.decoded();
        let case = Case::new("unpack", encoding.name(), vec![input], run, move |_| {
            decoded.clone().unwrap_or_default()
        });
        if encoding.dtype().is_some() { case.exact() } else { case.without_naive().exact() }
    };
    let coded = |(scheme, dims): (Scheme, [usize; 2])| {
        let run = |lane: &tensor::Lane, i: &crate::case::Inputs| lane.unpack(i.weight(0));
        let case = Case::new(
            "unpack",
            scheme_name(scheme, dims),
            vec![Input::coded(scheme, 88, dims)],
            run,
            |_| vec![],
        );
        case.without_naive().exact()
    };
    encodings().map(of).chain(schemes().map(coded)).collect()
}

/// Losslessly coded weights: the bits, as whole numbers, since floats compare equal too easily. Lengths that fill no tile
/// or group, and raw tiles of random bits.
fn decode_coded() -> Vec<Case> {
    let of = |(format, elements, raw): (Format, usize, bool)| {
        let dtype = format.dtype();
        let values = if raw {
            random_bytes(90, elements * dtype.bytes())
        } else {
            // Every float type can be written.
            encode(dtype.into(), &random_trained(91, [1, elements], 1.0))
                .unwrap_or_else(|error| panic!("{error}"))
        };
        let coded = codec::encode(dtype, &values).unwrap_or_else(|error| panic!("{error}"));
        let bits = if dtype.bytes() == 2 { DType::U16 } else { DType::U8 };
        let run = move |lane: &tensor::Lane, i: &crate::case::Inputs| {
            let decoded = lane.decode(i.weight(0).operand(), dtype, [elements])?;
            let buffer = decoded.operand().buffer().clone();
            Ok(Tensor::new(Operand::new(buffer, bits.into(), [elements], 0)?, lane.clone()))
        };
        let expected: Vec<f64> = if dtype.bytes() == 2 {
            values.as_chunks::<2>().0.iter().map(|b| f64::from(u16::from_le_bytes(*b))).collect()
        } else {
            values.iter().map(|byte| f64::from(*byte)).collect()
        };
        let input = Input::Stored(DType::U8.into(), [coded.len()].into(), coded);
        let kind = if raw { "random bits" } else { "like trained" };
        Case::new("decode", format!("{dtype}, {elements} {kind}"), vec![input], run, move |_| {
            expected.clone()
        })
        .exact()
    };
    let lengths = [(3 * TILE, false), (5 * TILE + 300, false), (77, false), (TILE + 1, true)];
    Format::ALL.into_iter().flat_map(|format| lengths.map(|(n, raw)| (format, n, raw))).map(of).collect()
}

/// Rows of tables of codes.
fn coded_rows() -> Vec<Case> {
    let of = |(scheme, dims): (Scheme, [usize; 2])| {
        let ids = Input::Ids([7].into(), vec![3, 0, 66, 3, 31, 32, 65]);
        let run = |lane: &tensor::Lane, i: &crate::case::Inputs| lane.embedding(i.weight(0), i.tensor(1));
        let naive = move |v: &[Vec<f64>]| {
            v[1].iter().flat_map(|id| v[0][*id as usize * dims[1]..][..dims[1]].to_vec()).collect()
        };
        let inputs = vec![Input::coded(scheme, 89, dims), ids];
        Case::new("embedding", scheme_name(scheme, dims), inputs, run, naive).exact()
    };
    schemes().map(of).collect()
}

fn cast() -> Vec<Case> {
    [
        DType::F16,
        DType::BF16,
        DType::F8E4M3,
        DType::F8E5M2,
        DType::F64,
        DType::I32,
        DType::I64,
        DType::U8,
        DType::I8,
    ]
    .map(|dtype| {
        let run = move |_: &tensor::Lane, i: &crate::case::Inputs| i.tensor(0).cast(dtype);
        let naive = move |v: &[Vec<f64>]| v[0].iter().map(|x| through(dtype, *x as f32)).collect();
        Case::new("cast", format!("through {dtype}"), vec![Input::scaled(82, [5, 103], 20.0)], run, naive)
            .exact()
    })
    .into()
}

/// Stored weights cast to 8 bits on the device, as they are when a model is loaded so.
fn narrowed() -> Vec<Case> {
    let of = |(from, to): (DType, DType)| {
        let input = Input::weight(from.into(), 87, [7, 520]);
        let run = move |lane: &tensor::Lane, i: &crate::case::Inputs| {
            Tensor::new(i.weight(0).operand().clone(), lane.clone()).cast(to)
        };
        let naive = move |v: &[Vec<f64>]| v[0].iter().map(|x| through(to, *x as f32)).collect();
        Case::new("cast", format!("{from} to {to}"), vec![input], run, naive).exact()
    };
    let sources = [DType::F32, DType::BF16, DType::F16];
    sources.into_iter().flat_map(|from| [(from, DType::F8E4M3), (from, DType::F8E5M2)]).map(of).collect()
}

/// A value after it was stored in another type.
fn through(dtype: DType, x: f32) -> f64 {
    let stored = || encode(dtype.into(), &[x]).and_then(|bytes| decode(dtype.into(), &bytes));
    match dtype {
        DType::I32 => f64::from(x as i32),
        DType::I64 => x as i64 as f64,
        DType::U8 => f64::from(x as u8),
        DType::I8 => f64::from(x as i8),
        _ => stored().map_or(f64::NAN, |values| f64::from(values[0])),
    }
}

fn moves() -> Vec<Case> {
    let dims = [5, 37, 41];
    let at = move |i: usize, j: usize, k: usize| (i * dims[1] + j) * dims[2] + k;
    let permute = move |order: [usize; 3]| {
        let naive = move |v: &[Vec<f64>]| {
            let out: [usize; 3] = order.map(|axis| dims[axis]);
            let value = |n: usize| {
                let index = [n / (out[1] * out[2]), n / out[2] % out[1], n % out[2]];
                let mut source = [0; 3];
                order.iter().zip(index).for_each(|(axis, i)| source[*axis] = i);
                v[0][at(source[0], source[1], source[2])]
            };
            (0..out.iter().product()).map(value).collect()
        };
        let run = move |_: &tensor::Lane, i: &crate::case::Inputs| i.tensor(0).permute(&order)?.contiguous();
        Case::new("permute", format!("{order:?}"), vec![Input::random(83, dims)], run, naive).exact()
    };
    let mut cases: Vec<Case> = [[0, 2, 1], [2, 1, 0], [1, 0, 2], [2, 0, 1]].map(permute).into();
    cases.push(
        Case::new(
            "concat",
            "middle dimension, one part a slice",
            vec![Input::random(84, [3, 4, 10]), Input::random(85, [3, 7, 10])],
            |_, i| Tensor::concat(&[i.tensor(0), &i.tensor(1).slice(1, 2, 5)?], 1),
            |v| {
                let part = |b: usize| {
                    let (a, c) = (&v[0][b * 40..][..40], &v[1][b * 70 + 20..][..50]);
                    a.iter().chain(c).copied().collect::<Vec<_>>()
                };
                (0..3).flat_map(part).collect()
            },
        )
        .exact(),
    );
    cases.push(
        Case::new(
            "slice",
            "every dimension",
            vec![Input::random(86, dims)],
            |_, i| i.tensor(0).slice(0, 1, 3)?.slice(1, 5, 20)?.slice(2, 7, 9)?.contiguous(),
            move |v| {
                let value = |n: usize| v[0][at(1 + n / 180, 5 + n / 9 % 20, 7 + n % 9)];
                (0..3 * 20 * 9).map(value).collect()
            },
        )
        .exact(),
    );
    cases
}

/// The same noise everywhere; the values are checked against PyTorch's by the CPU's tests.
fn noise() -> Vec<Case> {
    let of = |count: usize| {
        let run = move |lane: &tensor::Lane, _: &crate::case::Inputs| lane.normal_noise(1234, [count]);
        Case::new("normal noise", format!("{count} values"), Vec::new(), run, |_| Vec::new())
            .without_naive()
            .exact()
    };
    [5, 16, 1003].map(of).into()
}
