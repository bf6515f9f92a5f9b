//! What a call costs: how much it computes in which type, and how many bytes it moves.

use meta::DType;

use super::OpCall;

/// What limits an operation, and so which measured speed its time is told from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkKind {
    /// Matrix products.
    Product,
    /// Scaled dot-product attention.
    Attention,
    /// Convolutions.
    Convolution,
    /// Everything else, which takes as long as its bytes need.
    Memory,
}

/// The work of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpCost {
    /// What limits it.
    pub kind: WorkKind,
    /// The type it computes in: that of its activations, or of the codes that they were rounded to.
    pub dtype: DType,
    /// Additions and multiplications.
    pub flops: u64,
    /// Bytes read and written, each operand once.
    pub bytes: u64,
}

impl OpCall {
    /// The work of the call.
    pub fn cost(&self) -> OpCost {
        let kind = match self {
            OpCall::Linear(_) | OpCall::QuantisedLinear(_) | OpCall::Matmul(_) => WorkKind::Product,
            OpCall::Attention(_) => WorkKind::Attention,
            OpCall::Convolution(_) => WorkKind::Convolution,
            _ => WorkKind::Memory,
        };
        let dtype = match self {
            OpCall::QuantisedLinear(_) => DType::F8E4M3,
            // Outputs are never quantised.
            _ => self.output().dtype().unwrap_or(DType::F32),
        };
        OpCost { kind, dtype, flops: self.flops(), bytes: self.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meta::{DeviceId, Encoding, Shape};

    use super::*;
    use crate::op::{Embedding, GatedAdd, Linear};
    use crate::{Device, NullBackend, Operand};

    fn operand(encoding: Encoding, dims: &[usize]) -> Operand {
        let shape = Shape::new(dims).unwrap();
        let device = Device::new(Arc::new(NullBackend::new(0, 1 << 40)), 1 << 40);
        let buffer = device.allocate(encoding.bytes(&shape).unwrap() as usize).unwrap();
        assert_eq!(buffer.device(), DeviceId::null(0));
        Operand::new(buffer, encoding, shape, 0).unwrap()
    }

    #[test]
    fn a_product_reads_its_weight_as_it_is_stored() {
        let call = OpCall::from(Linear {
            x: operand(Encoding::BF16, &[10, 64]),
            weight: operand(Encoding::Quant(meta::QuantFormat::Q8_0), &[32, 64]),
            scales: None,
            bias: None,
            activation: None,
            out: operand(Encoding::BF16, &[10, 32]),
        });
        let bytes = 10 * 64 * 2 + 32 * 64 / 32 * 34 + 10 * 32 * 2;
        let expected = OpCost { kind: WorkKind::Product, dtype: DType::BF16, flops: 2 * 10 * 32 * 64, bytes };
        assert_eq!(call.cost(), expected);
    }

    #[test]
    fn repeated_values_and_rows_that_are_not_looked_up_are_not_read() {
        let x = operand(Encoding::F32, &[100, 8]);
        let gate = operand(Encoding::F32, &[8]).broadcast([100, 8]).unwrap();
        let call = OpCall::from(GatedAdd { x: x.clone(), gate, y: x.clone(), out: x });
        assert_eq!(call.cost().bytes, (3 * 800 + 8) * 4);
        assert_eq!(call.cost().kind, WorkKind::Memory);
        let call = OpCall::from(Embedding {
            table: operand(Encoding::F16, &[50_000, 16]),
            scales: None,
            ids: operand(Encoding::Plain(DType::I32), &[3]),
            out: operand(Encoding::F32, &[3, 16]),
        });
        assert_eq!(call.cost().bytes, 3 * 16 * 2 + 3 * 4 + 3 * 16 * 4);
    }
}
