//! Weights that are cast when they are staged: the rounding, the same bits wherever they live, and what it takes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;

use device::op::Copy;
use device::{Buffer, Device, Operand};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding, QuantFormat};
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Manifest, Residency, Session};
use support::*;

/// A value rounded to nearest even, as PyTorch converts, by the numbers of the format: what is too large for e4m3 has no
/// value, and is infinite in e5m2.
fn byte(dtype: DType, value: f32) -> u8 {
    let (mantissa, bias, too_large) = match dtype {
        DType::F8E4M3 => (3u32, 7i32, 0x7f),
        _ => (2, 15, 0x7c),
    };
    let sign = u8::from(value.is_sign_negative()) << 7;
    if value.is_nan() {
        return sign | 0x7f;
    }
    // Below the smallest normal value, steps are as wide as there.
    let exponent = ((value.to_bits() >> 23 & 0xff) as i32 - 127).max(1 - bias);
    let steps = (f64::from(value.abs()) * 2f64.powi(mantissa as i32 - exponent)).round_ties_even();
    // Counted from the smallest step on, the bytes of positive values are consecutive numbers.
    let number = steps + f64::from((exponent + bias - 1) << mantissa);
    if number >= f64::from(too_large) { sign | too_large } else { sign | number as u8 }
}

fn cast(from: DType, stored: &[u8], to: DType) -> Vec<u8> {
    let device = Device::new(Arc::new(CpuBackend::new()), 1 << 30);
    let count = stored.len() / from.bytes();
    let x = Operand::new(Buffer::over(Arc::new(stored.to_vec())), from.into(), [count], 0).unwrap();
    let out = Operand::new(device.allocate(count).unwrap(), to.into(), [count], 0).unwrap();
    let stream = device.compute_stream().unwrap();
    stream.launch(&Copy { x, out: out.clone() }.into()).unwrap();
    let mut bytes = vec![0; count];
    stream.read(&out.span(), &mut bytes).unwrap();
    bytes
}

#[test]
fn values_round_to_nearest_even_as_pytorch_does() {
    let table = [
        (0.0, 0x00, 0x00),
        (-0.0, 0x80, 0x80),
        (1.0, 0x38, 0x3c),
        (-1.5, 0xbc, 0xbe),
        // Half way between two neighbours goes to the even one.
        (1.0625, 0x38, 0x3c),
        (1.1875, 0x3a, 0x3d),
        (0.001953125, 0x01, 0x18),
        (0.0009765625, 0x00, 0x14),
        (448.0, 0x7e, 0x5f),
        (464.0, 0x7e, 0x5f),
        (465.0, 0x7f, 0x5f),
        (57344.0, 0x7f, 0x7b),
        (61440.0, 0x7f, 0x7c),
        (f32::INFINITY, 0x7f, 0x7c),
    ];
    for (dtype, column) in [(DType::F8E4M3, 0), (DType::F8E5M2, 1)] {
        let stored: Vec<u8> = table.iter().flat_map(|(value, ..)| value.to_le_bytes()).collect();
        let want: Vec<u8> = table.iter().map(|(_, e4m3, e5m2)| [*e4m3, *e5m2][column]).collect();
        assert_eq!(cast(DType::F32, &stored, dtype), want, "{dtype}");
        assert!(table.iter().zip(&want).all(|((value, ..), want)| byte(dtype, *value) == *want));
        let nan = cast(DType::F32, &f32::NAN.to_le_bytes(), dtype);
        assert_eq!(nan[0] & 0x7f, 0x7f);
    }
}

/// Every value that 16 bits can have, and numbers over the whole range of 32.
#[test]
fn every_value_rounds_as_the_numbers_of_the_format_say() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    let spread: Vec<f32> = (0..1u32 << 20).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B1))).collect();
    let stored: Vec<u8> = spread.iter().flat_map(|value| value.to_le_bytes()).collect();
    for dtype in [DType::F8E4M3, DType::F8E5M2] {
        let same = |name: &str, values: &[f32], got: &[u8]| {
            for (value, got) in values.iter().zip(got) {
                assert_eq!(*got, byte(dtype, *value), "{value} of {name} in {dtype}");
            }
        };
        for from in [DType::BF16, DType::F16] {
            let values = testkit::decode(from.into(), &all).unwrap();
            same(from.name(), &values, &cast(from, &all, dtype));
        }
        same("f32", &spread, &cast(DType::F32, &stored, dtype));
    }
}

/// The bytes of every weight, as leases give them.
fn weights(session: &Session) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for block in 0..BLOCKS {
        let lease = session.lease(block).unwrap();
        for name in ["up.weight", "up.bias", "down.weight"] {
            let weight = lease.weight(&format!("blocks.{block}.{name}")).unwrap();
            let mut bytes = vec![0; weight.operand().extent()];
            lease.lane().stream().read(&weight.operand().span(), &mut bytes).unwrap();
            all.push(bytes);
        }
    }
    all
}

const PLACEMENTS: [(&str, DeviceId, RemotePolicy); 6] = [
    ("", DeviceId::sim(0), RemotePolicy::Auto),
    ("sim:0,0%;cpu,100%", DeviceId::sim(0), RemotePolicy::Auto),
    ("sim:0,50%;cpu,50%", DeviceId::sim(0), RemotePolicy::Auto),
    ("sim:0,50%;sim:1,50%", DeviceId::sim(0), RemotePolicy::Stream),
    ("sim:0,50%;sim:1,50%", DeviceId::sim(0), RemotePolicy::InPlace),
    ("", DeviceId::CPU, RemotePolicy::Auto),
];

/// Wherever the weights live, they are cast to the same bits, take what the plan says, and on the host what is told
/// before; and with a LoRA the output is the same everywhere.
#[test]
fn cast_weights_are_the_same_everywhere_and_counted() {
    for (encoding, dtype) in
        [(Encoding::BF16, DType::F8E4M3), (Encoding::F16, DType::F8E5M2), (Encoding::F32, DType::F8E4M3)]
    {
        let file = write_model(1, encoding);
        let stored = manifest(&file, "model");
        let expected: Vec<Vec<u8>> = stored
            .weights()
            .iter()
            .map(|w| testkit::decode(encoding, &w.bytes).unwrap().iter().map(|v| byte(dtype, *v)).collect())
            .collect();
        let mut outputs: Vec<Vec<f32>> = Vec::new();
        for (text, compute, remote) in PLACEMENTS {
            let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
            let kept = manifest(&file, "model").kept_as(dtype).unwrap();
            assert_eq!(kept.bytes(), stored.bytes() / encoding.block_bytes() as u64);
            let plan = plan(&kept, residency.devices(), compute, text, remote);
            let told = Residency::host_bytes(&kept, &plan);
            let planned: u64 =
                plan.devices.iter().map(|device| device.weight_bytes + device.ring_bytes).sum();
            let patches = lora(&file, &kept, 0.8);
            let id = residency.load(kept, plan, LoadOptions::default()).unwrap();
            let session = residency.open(id, &Cancel::default()).unwrap();
            assert!(weights(&session) == expected, "{encoding} {text} {compute}");
            let [host, first, second] = used(residency.devices())[..] else { panic!("three devices") };
            assert_eq!(host, told, "{encoding} {text} {compute}: what is on the host was told before");
            assert_eq!(host + first + second, planned, "{encoding} {text} {compute}");
            assert_nothing_reserved(residency.devices());
            drop(session);
            residency.set_patches(id, patches).unwrap();
            outputs.push(run(&residency, id).unwrap());
            assert_eq!(outputs[0], *outputs.last().unwrap(), "{encoding} {text} {compute}");
        }
    }
}

#[test]
fn what_is_narrow_already_stays_and_what_cannot_be_cast_is_refused() {
    let narrow = write_model(2, DType::F8E5M2.into());
    let kept = manifest(&narrow, "model").kept_as(DType::F8E4M3).unwrap();
    assert!(kept.weights().iter().all(|weight| !weight.is_cast()));
    let quantised = write_model(3, QuantFormat::Q8_0.into());
    let error = manifest(&quantised, "model").kept_as(DType::F8E4M3).unwrap_err().to_string();
    let why = "blocks.0.up.weight of model is stored as Q8_0, which cannot be cast to f8_e4m3; load it as it is stored";
    assert_eq!(error, why);
    let dir = testkit::ScratchDir::new().unwrap();
    let path = testkit::Manifest::bundled("flux_dev_micro_fp8_scaled").unwrap().write_to(dir.path()).unwrap();
    let scaled = Manifest::by_names(&checkpoint::Checkpoint::open(path).unwrap(), "scaled").unwrap();
    let kept = scaled.kept_as(DType::F8E5M2).unwrap();
    assert!(kept.weights().iter().all(|weight| !weight.is_cast()));
}
