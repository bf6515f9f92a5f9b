//! Attention as models call it: views of fused projections, masks that repeat, outputs inside larger tensors.
#![allow(clippy::unwrap_used, reason = "what cannot be set up fails the test")]

use std::sync::Arc;

use device::op::{Attention, AttentionMask};
use device::{Device, OpCall, Operand};
use device_cpu::CpuBackend;
use meta::Encoding;
use testkit::{assert_close, random_normal};

const BATCH: usize = 2;
const POSITIONS: usize = 50;
const HEADS: usize = 6;
const SIZE: usize = 40;

fn upload(device: &Device, values: &[f32], shape: impl Into<meta::Shape>) -> Operand {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    Operand::new(device.upload(&bytes).unwrap(), Encoding::F32, shape, 0).unwrap()
}

fn download(device: &Device, operand: &Operand) -> Vec<f32> {
    let mut bytes = vec![0; operand.extent()];
    device.compute_stream().unwrap().read(&operand.span(), &mut bytes).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The value of a view at an index; `values` are those of its whole extent.
fn at<const N: usize>(values: &[f32], view: &Operand, index: [usize; N]) -> f64 {
    f64::from(values[view.strides().iter().zip(index).map(|(stride, i)| stride * i).sum::<usize>()])
}

/// Attention in f64, as a contiguous `[batch, queries, heads, size]`.
fn reference(device: &Device, call: &Attention) -> Vec<f32> {
    let [q, k, v] = [&call.q, &call.k, &call.v].map(|view| (download(device, view), view));
    let (queries, keys, per_group) = (q.1.dim(1), k.1.dim(1), q.1.dim(2) / k.1.dim(2));
    let mask = match &call.mask {
        AttentionMask::Additive(mask) => Some(mask.broadcast([BATCH, HEADS, queries, keys]).unwrap()),
        _ => None,
    };
    let mask_values = mask.as_ref().map(|mask| download(device, mask));
    let added = |index: [usize; 4]| match (&call.mask, &mask, &mask_values) {
        (_, Some(mask), Some(values)) => at(values, mask, index),
        (AttentionMask::Causal, ..) if index[3] + queries > index[2] + keys => f64::NEG_INFINITY,
        _ => 0.0,
    };
    let mut out = Vec::new();
    for (b, i, h) in
        (0..BATCH * queries * HEADS).map(|n| (n / HEADS / queries, n / HEADS % queries, n % HEADS))
    {
        let g = h / per_group;
        let score = |j: usize| {
            let dot: f64 = (0..SIZE).map(|d| at(&q.0, q.1, [b, i, h, d]) * at(&k.0, k.1, [b, j, g, d])).sum();
            dot * f64::from(call.scale) + added([b, h, i, j])
        };
        let scores: Vec<f64> = (0..keys).map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        out.extend((0..SIZE).map(|d| {
            let total: f64 = weights.iter().enumerate().map(|(j, w)| w * at(&v.0, v.1, [b, j, g, d])).sum();
            (total / sum) as f32
        }));
    }
    out
}

#[test]
fn views_of_a_fused_projection_with_every_mask() {
    let device = Device::new(Arc::new(CpuBackend::new()), 1 << 30);
    for groups in [HEADS, 2] {
        let columns = (HEADS + 2 * groups) * SIZE;
        let fused =
            upload(&device, &random_normal(1, BATCH * POSITIONS * columns), [BATCH, POSITIONS, columns]);
        let part = |start: usize, heads: usize| {
            let view = fused.slice(2, start * SIZE, heads * SIZE).unwrap();
            view.reshape([BATCH, POSITIONS, heads, SIZE]).unwrap()
        };
        let numbers = random_normal(2, HEADS * POSITIONS * POSITIONS);
        let mask = |shape: &[usize]| {
            let count = shape.iter().product();
            AttentionMask::Additive(upload(&device, &numbers[..count], meta::Shape::new(shape).unwrap()))
        };
        for mask in [
            AttentionMask::None,
            AttentionMask::Causal,
            mask(&[POSITIONS]),
            mask(&[POSITIONS, POSITIONS]),
            mask(&[BATCH, 1, 1, POSITIONS]),
            mask(&[HEADS, POSITIONS, POSITIONS]),
            mask(&[1, HEADS, POSITIONS, 1]),
        ] {
            // The output is the right part of wider rows, whose left part must stay as it is.
            let width = (HEADS + 3) * SIZE;
            let wide = upload(&device, &vec![7.0; BATCH * POSITIONS * width], [BATCH, POSITIONS, width]);
            let out = wide.slice(2, 3 * SIZE, HEADS * SIZE).unwrap();
            let call = Attention {
                q: part(0, HEADS),
                k: part(HEADS, groups),
                v: part(HEADS + groups, groups),
                mask,
                scale: 0.158,
                soft_cap: None,
                out: out.reshape([BATCH, POSITIONS, HEADS, SIZE]).unwrap(),
            };
            let want = reference(&device, &call);
            let stream = device.compute_stream().unwrap();
            stream.launch(&OpCall::from(call)).unwrap();
            stream.synchronize().unwrap();
            let rows = download(&device, &wide);
            let rows = rows.chunks_exact(width).map(|row| row.split_at(3 * SIZE));
            assert!(rows.clone().all(|(left, _)| left.iter().all(|value| *value == 7.0)));
            let got: Vec<f32> = rows.flat_map(|(_, right)| right.to_vec()).collect();
            assert_close("output", &got, &want, 1e-5);
        }
    }
}
