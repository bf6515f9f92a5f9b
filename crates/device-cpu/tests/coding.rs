//! Encoding and decoding as operations: on the CPU, and on simulated devices that keep activations in 16 bits.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

use std::sync::Arc;

use codec::{Format, Layout, TILE};
use device::op::{Decode, Encode};
use device::{Device, Error, OpCall, Operand, SimBackend};
use device_cpu::CpuBackend;
use meta::DType;
use testkit::random_trained;

fn cpu() -> Device {
    Device::new(Arc::new(CpuBackend::new()), 1 << 30)
}

fn simulated(spec: &str) -> Device {
    let cpu = Arc::new(CpuBackend::new());
    let executor = cpu.executor();
    Device::new(Arc::new(SimBackend::new(0, spec.parse().unwrap(), cpu, executor)), 1 << 30)
}

fn operand(device: &Device, dtype: DType, count: usize) -> Operand {
    Operand::new(device.allocate(count * dtype.bytes()).unwrap(), dtype.into(), [count], 0).unwrap()
}

fn uploaded(device: &Device, dtype: DType, bytes: &[u8]) -> Operand {
    Operand::new(device.upload(bytes).unwrap(), dtype.into(), [bytes.len() / dtype.bytes()], 0).unwrap()
}

fn run(device: &Device, call: impl Into<OpCall>) -> device::Result<()> {
    let stream = device.compute_stream()?;
    stream.launch(&call.into())?;
    stream.synchronize()
}

fn read(device: &Device, operand: &Operand) -> Vec<u8> {
    let mut bytes = vec![0; operand.extent()];
    device.compute_stream().unwrap().read(&operand.span(), &mut bytes).unwrap();
    bytes
}

fn trained(format: Format, elements: usize) -> Vec<u8> {
    testkit::encode(format.dtype().into(), &random_trained(1, [1, elements], 1.0)).unwrap()
}

#[test]
fn what_is_encoded_is_what_the_portable_coder_writes_and_comes_back() {
    for device in
        [cpu(), simulated("1gb@100gbps"), simulated("1gb@100gbps@bf16"), simulated("1gb@100gbps@f16")]
    {
        for format in Format::ALL {
            for elements in [1, TILE, 40 * TILE + 77] {
                let values = trained(format, elements);
                let (dtype, portable) = (format.dtype(), codec::encode(format.dtype(), &values).unwrap());
                let room = Layout::new(dtype, elements).unwrap().max_coded_bytes();
                let coded = operand(&device, DType::U8, room);
                let call = Encode { values: uploaded(&device, dtype, &values), out: coded.clone() };
                run(&device, call).unwrap();
                assert!(read(&device, &coded)[..portable.len()] == portable[..], "{format:?} {elements}");
                let out = operand(&device, dtype, elements);
                run(&device, Decode { coded, out: out.clone() }).unwrap();
                assert!(read(&device, &out) == values, "{format:?} {elements}");
            }
        }
    }
}

#[test]
fn what_is_damaged_or_does_not_fit_is_refused() {
    let device = cpu();
    let values = trained(Format::Bf16, TILE);
    let good = codec::encode(DType::BF16, &values).unwrap();
    let decode = |bytes: &[u8], dtype: DType, elements: usize| {
        let out = operand(&device, dtype, elements);
        run(&device, Decode { coded: uploaded(&device, DType::U8, bytes), out })
    };
    decode(&good, DType::BF16, TILE).unwrap();
    let said = |result: device::Result<()>| match result {
        Err(Error::Operand { op: "decode", got, .. }) => got,
        other => panic!("{other:?}"),
    };
    let mut damaged = good.clone();
    damaged[64 + 2] ^= 1;
    assert!(said(decode(&damaged, DType::BF16, TILE)).contains("tile 0"));
    assert!(said(decode(&good, DType::F16, TILE)).contains("2048 values of bf16"));
    assert!(said(decode(&good, DType::BF16, TILE - 1)).contains("2048 values of bf16"));
    said(decode(&good, DType::F32, TILE));
    said(decode(&good[..good.len() - 800], DType::BF16, TILE));
    said(decode(&good[..100], DType::BF16, TILE));
    let small = Encode {
        values: uploaded(&device, DType::BF16, &values),
        out: operand(&device, DType::U8, good.len()),
    };
    assert!(matches!(run(&device, small), Err(Error::Operand { op: "encode", operand: "output", .. })));
}
