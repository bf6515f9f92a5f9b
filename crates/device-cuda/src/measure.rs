//! Measuring a card: how fast bytes move, and how fast a bare matrix product is.

use std::sync::Arc;
use std::time::Instant;

use device::{Buffer, Cancel, Charge, Error, Ledger, Memory, Result, Span};
use meta::{DType, DeviceId};

use crate::blas::{Epilogue, Matrix, Places, Prepared, Product, WORKSPACE_BYTES};
use crate::kernel::{Args, KernelFile};
use crate::memory::{DeviceMemory, PinnedMemory};
use crate::pool::{self, Pool};
use crate::stream::Queue;
use crate::{CudaBackend, copy};

/// How fast bytes move, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bandwidths {
    /// From pinned host memory to the device.
    pub up_pinned: f64,
    /// From other host memory to the device.
    pub up_pageable: f64,
    /// From the device to pinned host memory.
    pub down_pinned: f64,
    /// Within the device: each byte is read once and written once, and counted once.
    pub within: f64,
}

/// Bytes of one measured copy.
const SAMPLE_BYTES: usize = 128 << 20;

impl CudaBackend {
    /// Measures how fast bytes move; takes a fraction of a second. The ledger is that of this device.
    pub fn measure_bandwidths(&self, ledger: &Ledger) -> Result<Bandwidths> {
        let device = || -> Result<Buffer> {
            let (memory, charge) = self.charged(ledger, SAMPLE_BYTES)?;
            Ok(Buffer::new(self.id(), Arc::new(memory), Some(charge)))
        };
        let (first, second) = (device()?, device()?);
        let pinned: Arc<dyn Memory> = Arc::new(PinnedMemory::allocate(&self.runtime.context, SAMPLE_BYTES)?);
        let pinned = Buffer::new(DeviceId::CPU, pinned, None);
        let pageable = Buffer::over(Arc::new(vec![1u8; SAMPLE_BYTES]));
        let queue = Queue::open(&self.runtime.context)?;
        let rate = |to: &Buffer, from: &Buffer, repeats: usize| -> Result<f64> {
            let once = |to: &Span, from: &Span| {
                copy::copy(&self.runtime, &queue, (to, from), &Cancel::NEVER).map(drop)
            };
            let (to, from) = (to.whole(), from.whole());
            let timed = once(&to, &from)
                .and_then(|()| self.seconds(&queue, || (0..repeats).try_for_each(|_| once(&to, &from))));
            // The buffers are let go only when nothing uses them any more.
            queue.synchronize()?;
            Ok((SAMPLE_BYTES * repeats) as f64 / timed?)
        };
        Ok(Bandwidths {
            up_pinned: rate(&first, &pinned, 4)?,
            up_pageable: rate(&first, &pageable, 2)?,
            down_pinned: rate(&pinned, &first, 4)?,
            within: rate(&second, &first, 8)?,
        })
    }

    /// Seconds of one bf16 product `[m, k] · [n, k]ᵀ` by cuBLASLt called bare, with nothing of this
    /// crate in between: the measure for what the layers above cost. The ledger is that of this device.
    pub fn bare_matmul_seconds(&self, ledger: &Ledger, [m, n, k]: [usize; 3], repeats: usize) -> Result<f64> {
        if m == 0 || n == 0 || k == 0 || repeats == 0 {
            return Err(Error::Operand {
                op: "bare matmul",
                operand: "size",
                expected: "sizes and repeats above 0".into(),
                got: format!("{m}, {n}, {k}, {repeats}"),
            });
        }
        let packed =
            |transposed, leading: usize| Matrix { transposed, leading: leading as i64, batch_stride: 0 };
        let product = Product {
            dtype: DType::BF16,
            codes: None,
            rows: n as u64,
            columns: m as u64,
            inner: k as u64,
            a: packed(true, k),
            b: packed(false, k),
            d: packed(false, n),
            batch: 1,
            epilogue: Epilogue::None,
        };
        let runtime = &self.runtime;
        let allocate = |values: usize| self.charged(ledger, values * 2);
        let memory = [allocate(n * k)?, allocate(m * k)?, allocate(m * n)?];
        let (scratch, _charge) = self.charged(ledger, WORKSPACE_BYTES)?;
        let queue = Queue::open(&runtime.context)?;
        for block in memory.iter().map(|(block, _)| block).chain([&scratch]) {
            block.touch(&queue)?;
            // Zeros: what uninitialised bits mean as numbers would change the card's clock.
            let context = &runtime.context;
            context.enter()?;
            let filled = context.driver().fill(block.address(), 0, block.len(), queue.raw());
            context.check("filling memory", filled)?;
        }
        let [a, b, d] = memory.each_ref().map(|(block, _)| block.address());
        let places = Places { a, b, d, bias: 0, scales: [0; 2], alpha: 1.0, beta: 0.0 };
        let prepared = Prepared::new(&runtime.blas, &product, 0)?;
        let algorithm = prepared.best(&runtime.blas, &product)?;
        let workspace = (scratch.address(), WORKSPACE_BYTES);
        let once = || prepared.queue(&runtime.blas, &places, &algorithm, workspace, queue.raw());
        (0..3).try_for_each(|_| once())?;
        let total = self.seconds(&queue, || (0..repeats).try_for_each(|_| once()))?;
        Ok(total / repeats as f64)
    }

    /// Memory that the ledger has.
    fn charged(&self, ledger: &Ledger, bytes: usize) -> Result<(DeviceMemory, Charge)> {
        let charge = ledger.charge(pool::taken(bytes))?;
        Ok((Pool::allocate(&self.runtime.pool, bytes)?, charge))
    }

    /// The card's own time for what `work` queues, in seconds.
    /// The least seconds of the host that one launch of a kernel by the driver took, with nothing of ours around it: no
    /// operation is queued in less.
    pub fn measure_driver_launch(&self) -> Result<f64> {
        /// Launches between two waits, which every driver's queue holds, and how often they are repeated.
        const LAUNCHES: u32 = 256;
        const RUNS: usize = 24;
        let context = &self.runtime.context;
        let queue = Queue::open(context)?;
        let defines = [("T", "f32"), ("W", "none"), ("B", "none"), ("VECTOR", "1"), ("ACROSS", "1")];
        let kernel = self.runtime.kernels.get(KernelFile::Norm, "norm_across", &defines)?;
        // It has no place to normalise, so it reads nothing.
        let mut args = Args::new().ptr(0).ptr(0).ptr(0).i64(0).i64(1).u32(1).f32(0.0);
        let mut least = f64::INFINITY;
        for _ in 0..RUNS {
            context.enter()?;
            let start = Instant::now();
            for _ in 0..LAUNCHES {
                kernel.launch_alone(context, &queue, &mut args)?;
            }
            least = least.min(start.elapsed().as_secs_f64() / f64::from(LAUNCHES));
            queue.synchronize()?;
        }
        Ok(least)
    }

    fn seconds(&self, queue: &Queue, work: impl FnOnce() -> Result<()>) -> Result<f64> {
        let start = queue.record_timed()?;
        work()?;
        let end = queue.record_timed()?;
        queue.synchronize()?;
        Ok(end.seconds_since(&start)?.unwrap_or(f64::NAN))
    }
}
