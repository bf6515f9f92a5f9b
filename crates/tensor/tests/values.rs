//! Tensors on the CPU and on simulated devices: views, joins, repeats, moves between devices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use device::{Backend, Device, SimBackend, SimSpec};
use device_cpu::CpuBackend;
use meta::{DType, Encoding};
use tensor::{Activation, ConvolutionShape, Lane, Tensor, Weight};

fn cpu() -> Lane {
    Lane::preferred(&Device::new(Arc::new(CpuBackend::new()), 1 << 30)).unwrap()
}

fn sim(ordinal: u16) -> Lane {
    simulated(ordinal, "64mb@20gbps")
}

fn simulated(ordinal: u16, spec: &str) -> Lane {
    let spec: SimSpec = spec.parse().unwrap();
    let host = Arc::new(CpuBackend::new());
    let executor = host.executor();
    let backend = SimBackend::new(ordinal, spec, host as Arc<dyn Backend>, executor);
    Lane::preferred(&Device::new(Arc::new(backend), spec.memory)).unwrap()
}

fn counting(lane: &Lane, dims: &[usize]) -> Tensor {
    let shape = meta::Shape::new(dims).unwrap();
    let values: Vec<f32> = (0..shape.count()).map(|i| i as f32).collect();
    lane.tensor(shape, &values).unwrap()
}

#[test]
fn reshape_copies_only_where_no_view_can_show_the_values() {
    let lane = cpu();
    let x = counting(&lane, &[2, 6]);
    let view = x.reshape([3, 4]).unwrap();
    assert!(view.operand().buffer().same_memory(x.operand().buffer()));
    let turned = x.transpose(0, 1).unwrap().reshape([12]).unwrap();
    assert!(!turned.operand().buffer().same_memory(x.operand().buffer()));
    assert_eq!(turned.to_vec().unwrap()[..4], [0.0, 6.0, 1.0, 7.0]);
}

#[test]
fn concat_and_chunk_are_opposites() {
    let lane = cpu();
    let x = counting(&lane, &[2, 6, 3]);
    let parts = x.chunk(1, 3).unwrap();
    let joined = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 1).unwrap();
    assert_eq!(joined.to_vec().unwrap(), x.to_vec().unwrap());
    assert!(Tensor::concat(&[], 0).is_err());
    assert!(Tensor::concat(&[&x, &counting(&lane, &[2, 6])], 1).is_err());
}

#[test]
fn a_tensor_moves_between_devices_with_its_strides_resolved() {
    let (here, there) = (sim(0), sim(1));
    let x = counting(&here, &[4, 5]).transpose(0, 1).unwrap();
    let moved = x.to_lane(&there).unwrap();
    assert_eq!(moved.operand().buffer().device(), there.device().id());
    assert_eq!(moved.to_vec().unwrap(), x.to_vec().unwrap());
    let same = moved.to_lane(&there).unwrap();
    assert!(same.operand().buffer().same_memory(moved.operand().buffer()));
}

#[test]
fn scaled_weights_are_scaled_wherever_they_are_used() {
    let lane = cpu();
    let values = [1.0f32, -2.0, 0.5, 4.0];
    let bytes = testkit::encode(DType::F8E4M3.into(), &values).unwrap();
    let scale = lane.tensor_f32([1], &[3.0]).unwrap().operand().clone();
    let stored = |shape: &[usize]| {
        let shape = meta::Shape::new(shape).unwrap();
        Weight::upload(lane.device(), DType::F8E4M3.into(), shape, &bytes).unwrap().scaled(scale.clone())
    };
    assert_eq!(lane.unpack(&stored(&[4])).unwrap().to_vec().unwrap(), [3.0, -6.0, 1.5, 12.0]);
    let x = lane.tensor([1, 2], &[1.0, 1.0]).unwrap();
    assert_eq!(x.linear(&stored(&[2, 2]), None).unwrap().to_vec().unwrap(), [-3.0, 13.5]);
    let image = lane.tensor([1, 1, 1, 1], &[2.0]).unwrap();
    let shape = ConvolutionShape::uniform(2, 1, 0);
    let out = image.convolution(&stored(&[4, 1, 1, 1]), None, &shape).unwrap();
    assert_eq!(out.to_vec().unwrap(), [6.0, -12.0, 3.0, 24.0]);
}

#[test]
fn wrong_shapes_are_errors_that_name_operation_and_shapes() {
    let lane = cpu();
    let x = counting(&lane, &[2, 3]);
    let weight = Weight::upload_f32(lane.device(), [4, 5], &[0.0; 20]).unwrap();
    let error = x.linear(&weight, None).unwrap_err().to_string();
    assert_eq!(error, "linear: input is f32 [2, 3] on cpu, expected […, 5]");
    let error = x.add(&counting(&lane, &[4])).unwrap_err().to_string();
    assert_eq!(error, "binary: right is of shape [4], expected repeatable with [2, 3]");
    assert!(x.slice(1, 2, 2).is_err());
    assert!(x.reshape([7]).is_err());
    assert!(x.activate(Activation::Silu).is_ok());
    assert!(Lane::new(lane.device(), DType::BF16).is_err());
    assert!(Weight::upload(lane.device(), Encoding::F32, [3], &[0; 8]).is_err());
}

#[test]
fn results_are_counted_by_the_ledger_and_credited_when_dropped() {
    let lane = cpu();
    let x = counting(&lane, &[100]);
    let used = lane.device().ledger().report().used;
    let y = x.add(&x).unwrap();
    assert_eq!(lane.device().ledger().report().used, used + lane.device().allocation_bytes(400));
    drop(y);
    assert_eq!(lane.device().ledger().report().used, used);
}

#[test]
fn a_lane_takes_the_first_type_that_its_device_has() {
    let chosen = |device: &Device, wanted: &[DType]| Lane::choose(device, wanted).unwrap().dtype();
    let half = simulated(0, "1gb@10gbps@f16").device().clone();
    assert_eq!(half.description().activations, &[DType::F16, DType::F32]);
    assert_eq!(Lane::preferred(&half).unwrap().dtype(), DType::F16);
    assert_eq!(chosen(&half, &[DType::BF16, DType::F16, DType::F32]), DType::F16);
    assert_eq!(chosen(&half, &[DType::BF16, DType::F32]), DType::F32);
    assert_eq!(chosen(&half, &[DType::BF16]), DType::F32, "every device computes in f32");
    let brain = simulated(0, "1gb@10gbps@bf16");
    assert_eq!(chosen(brain.device(), &[DType::BF16, DType::F32]), DType::BF16);
    assert_eq!(chosen(cpu().device(), &[DType::BF16, DType::F16]), DType::F32);
}

#[test]
fn a_simulated_device_rounds_to_16_bits() {
    let lane = simulated(0, "1gb@10gbps@f16");
    let x = lane.tensor([2, 2], &[1.0, 3.0, 300.0, 0.1]).unwrap();
    assert_eq!(x.dtype(), DType::F16);
    let rounded = x.to_vec().unwrap();
    assert_eq!(rounded[..3], [1.0, 3.0, 300.0]);
    assert!(rounded[3] != 0.1 && (rounded[3] - 0.1).abs() < 1e-4, "{rounded:?}");
    // 300² is more than f16 holds; in place and out of place.
    let squares = x.mul(&x).unwrap().to_vec().unwrap();
    assert_eq!(squares[..3], [1.0, 9.0, f32::INFINITY]);
    let weight = Weight::upload_f32(lane.device(), [2, 2], &[200.0, 1.0, 1.0, 1.0]).unwrap();
    assert_eq!(x.linear(&weight, None).unwrap().to_vec().unwrap()[2], 60_000.0);
    let exact = lane.with_dtype(DType::F32).unwrap();
    let squares = x.cast(DType::F32).unwrap().to_lane(&exact).unwrap();
    assert_eq!(squares.mul(&squares).unwrap().to_vec().unwrap()[2], 90_000.0);
}
