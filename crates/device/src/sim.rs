//! Simulated accelerators: another backend's memory and kernels under an id, a budget and a link of
//! their own, so that multi-device behaviour can be tried on a laptop. Always labelled as simulation.

mod rounding;

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use meta::{ByteSize, DType, DeviceId};

use crate::backend::SharedBytes;
use crate::backend::{Backend, Capabilities, Description, Memory, MemoryInfo, StreamBackend, StreamKind};
use crate::buffer::ReadOnly;
use crate::{Cancel, Error, HostExecutor, HostStream, Ledger, OpCall, OutOfMemory, Result, Span};

/// What a simulated device has: `8gb@12gbps`, or `8gb@12gbps@2tflops` to slow computing down too, or
/// `8gb@12gbps@f16` for one that keeps activations in f16 unless it is asked for f32, or `8gb@12gbps@fp8` for one that has
/// products of 8 bits. What follows the link is written in this order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SimSpec {
    /// Its memory in bytes.
    pub memory: u64,
    /// Bytes per second of its link, each way.
    pub link_bytes_per_s: f64,
    /// Operations per second at most; without it, computing takes as long as the host needs.
    pub flops_per_s: Option<f64>,
    /// The 16-bit type that it prefers for activations; without it, it has the host's types.
    pub activation: Option<DType>,
    /// Whether it says that it has products of 8 bits.
    pub fp8_products: bool,
}

/// Activations of every type.
const ALL_ACTIVATIONS: &[DType] = &[DType::F32, DType::BF16, DType::F16];

/// Text that describes no simulated device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a simulated device: write memory@link, such as 8gb@12gbps, or 8gb@12gbps@2tflops, or \
     8gb@12gbps@f16, or 8gb@12gbps@fp8"
)]
pub struct ParseSimSpecError {
    /// What was written.
    pub text: String,
}

impl FromStr for SimSpec {
    type Err = ParseSimSpecError;

    /// Memory in powers of 1024; the link in decimal gigabytes per second, as makers give it.
    fn from_str(text: &str) -> Result<SimSpec, ParseSimSpecError> {
        let error = || ParseSimSpecError { text: text.to_owned() };
        let lower = text.to_ascii_lowercase();
        let mut parts = lower.split('@');
        let memory: ByteSize = parts.next().unwrap_or_default().parse().map_err(|_| error())?;
        let link = parts.next().and_then(|t| rate(t, &[("gbps", 1e9), ("mbps", 1e6)])).ok_or_else(error)?;
        let mut rest = parts.peekable();
        let flops_per_s = rest.peek().and_then(|t| rate(t, &[("tflops", 1e12), ("gflops", 1e9)]));
        rest.next_if(|_| flops_per_s.is_some());
        let activation = rest.peek().and_then(|t| activation(t));
        rest.next_if(|_| activation.is_some());
        let fp8_products = rest.next_if(|t| t.trim() == FP8).is_some();
        if rest.next().is_some() || memory.0 == 0 {
            return Err(error());
        }
        Ok(SimSpec { memory: memory.0, link_bytes_per_s: link, flops_per_s, activation, fp8_products })
    }
}

impl fmt::Display for SimSpec {
    /// The text that says the same.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}b@{}mbps", self.memory, self.link_bytes_per_s / 1e6)?;
        self.flops_per_s.map_or(Ok(()), |flops| write!(f, "@{}gflops", flops / 1e9))?;
        self.activation.map_or(Ok(()), |dtype| write!(f, "@{dtype}"))?;
        if self.fp8_products { write!(f, "@{FP8}") } else { Ok(()) }
    }
}

/// What says that it has products of 8 bits.
const FP8: &str = "fp8";

/// A positive number with one of these units.
fn rate(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let (number, factor) =
        units.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let value = number.trim().parse::<f64>().ok()? * factor;
    (value.is_finite() && value > 0.0).then_some(value)
}

/// A 16-bit type of activations.
fn activation(text: &str) -> Option<DType> {
    [DType::F16, DType::BF16].into_iter().find(|dtype| dtype.name() == text.trim())
}

/// A simulated accelerator.
pub struct SimBackend {
    id: DeviceId,
    spec: SimSpec,
    host: Arc<dyn Backend>,
    meter: Arc<Meter>,
    used: Arc<Mutex<u64>>,
}

impl SimBackend {
    /// A device that computes with `executor` in memory of `host`.
    pub fn new(
        ordinal: u16,
        spec: SimSpec,
        host: Arc<dyn Backend>,
        executor: Arc<dyn HostExecutor>,
    ) -> SimBackend {
        let memory = Arc::clone(&host);
        let meter =
            Arc::new(Meter { executor, memory, spec, inward: Way::default(), outward: Way::default() });
        SimBackend { id: DeviceId::sim(ordinal), spec, host, meter, used: Arc::default() }
    }
}

impl Backend for SimBackend {
    fn describe(&self) -> Description {
        let host = self.host.describe();
        let mut compute =
            self.spec.flops_per_s.map_or(String::new(), |f| format!(", {:.3} TFLOP/s", f / 1e12));
        let activations: &[DType] = match self.spec.activation {
            None => host.activations,
            Some(DType::BF16) => &[DType::BF16, DType::F32],
            Some(_) => &[DType::F16, DType::F32],
        };
        if let Some(dtype) = self.spec.activation {
            compute += &format!(", activations rounded to {dtype}");
        }
        if self.spec.fp8_products {
            compute += ", 8-bit products";
        }
        Description {
            id: self.id,
            name: format!("simulated accelerator on {}", host.name),
            detail: format!("simulation: link {:.2} GB/s{compute}", self.spec.link_bytes_per_s / 1e9),
            activations,
            simulated: true,
            capabilities: Capabilities {
                copies_fast_from_pinned_only: false,
                pins_in_place: true,
                fp8_products: if self.spec.fp8_products { ALL_ACTIVATIONS } else { &[] },
            },
        }
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let used = *self.used.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(MemoryInfo { total: self.spec.memory, free: self.spec.memory - used, cached: 0 })
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let free = self.spec.memory - *used;
        if bytes as u64 > free {
            return Err(Error::OutOfMemory(OutOfMemory {
                device: self.id,
                wanted: bytes as u64,
                available: free,
                budget: self.spec.memory,
                used: *used,
                reserved: 0,
                op: None,
            }));
        }
        let block = self.host.allocate(bytes)?;
        *used += bytes as u64;
        Ok(Arc::new(SimMemory { block, used: Arc::clone(&self.used) }))
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        self.host.allocate(bytes)
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> Result<Option<Vec<Arc<dyn Memory>>>> {
        // The host's memory is as good as pinned here, so the bytes themselves will do.
        Ok(Some(regions.into_iter().map(|bytes| Arc::new(ReadOnly::new(bytes)) as Arc<dyn Memory>).collect()))
    }

    fn open_stream(&self, kind: StreamKind, _ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        let executor: Arc<Meter> = Arc::clone(&self.meter);
        Ok(Arc::new(HostStream::new(executor, kind)))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        let rounded = self.spec.activation.is_some() && call.output().dtype() == self.spec.activation;
        if rounded { Ok(()) } else { self.host.supports(call) }
    }

    fn trim(&self) -> Result<()> {
        self.host.trim()
    }

    fn said(&self) -> Option<SimSpec> {
        Some(self.spec)
    }

    fn reaches(&self, _other: DeviceId) -> bool {
        true
    }
}

/// The host's memory, given back to the simulated device's total when dropped.
struct SimMemory {
    block: Arc<dyn Memory>,
    used: Arc<Mutex<u64>>,
}

// SAFETY: all is that of the block, which keeps the promise.
unsafe impl Memory for SimMemory {
    fn len(&self) -> usize {
        self.block.len()
    }

    fn host_pointer(&self) -> Option<std::ptr::NonNull<u8>> {
        self.block.host_pointer()
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

impl Drop for SimMemory {
    fn drop(&mut self) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) -= self.block.len() as u64;
    }
}

/// Does the work and makes it take as long as the specification says.
struct Meter {
    executor: Arc<dyn HostExecutor>,
    /// Where activations are while they are in f32.
    memory: Arc<dyn Backend>,
    spec: SimSpec,
    /// The link to the device, and the link from it: as those of cards, they do not share their speed.
    inward: Way,
    outward: Way,
}

/// One direction of a link: when what was sent so far has arrived, if anything was.
#[derive(Default)]
struct Way(Mutex<Option<Instant>>);

/// A link that has been idle for no longer than this is taken as busy throughout: the sleep before
/// woke up that much late.
const WAKE_UP_SLACK: Duration = Duration::from_millis(1);
/// Large transfers go in pieces that take about this long, between which short ones have their turn, as they have on a card.
const PIECE: Duration = Duration::from_millis(1);

impl Way {
    /// Takes the link for so long behind what it has to do already; when that is over. It has been waited for without a
    /// pause since the piece before, if this is not the first of a transfer.
    fn take(&self, time: Duration, is_first: bool) -> Instant {
        let mut busy_until = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let follows = |end: &Instant| !is_first || *end + WAKE_UP_SLACK >= now;
        let end = busy_until.filter(follows).unwrap_or(now) + time;
        *busy_until = Some(end);
        end
    }
}

impl HostExecutor for Meter {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        let start = Instant::now();
        match self.spec.activation {
            None => self.executor.run(call, cancel)?,
            Some(dtype) => rounding::run(call, dtype, &*self.memory, &*self.executor, cancel)?,
        }
        if let Some(flops_per_s) = self.spec.flops_per_s {
            let end = start + Duration::from_secs_f64(call.flops() as f64 / flops_per_s);
            sleep_until(end, cancel)?;
        }
        Ok(())
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        let on_device = |span: &Span| span.buffer.device() != DeviceId::CPU;
        if !on_device(to) && !on_device(from) {
            return self.executor.copy(to, from, cancel);
        }
        let way = if on_device(to) { &self.inward } else { &self.outward };
        self.metered(way, to.len, cancel, || self.executor.copy(to, from, cancel))
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.metered(&self.outward, from.len, cancel, || self.executor.read(from, to, cancel))
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.metered(&self.inward, to.len, cancel, || self.executor.write(to, from, cancel))
    }
}

impl Meter {
    /// Does a transfer and lets it take as long as the link needs, beside and after the transfers of others.
    fn metered(
        &self,
        way: &Way,
        bytes: usize,
        cancel: &Cancel,
        transfer: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut rest = Duration::from_secs_f64(bytes as f64 / self.spec.link_bytes_per_s);
        let mut end = way.take(rest.min(PIECE), true);
        transfer()?;
        while rest > PIECE {
            rest -= PIECE;
            nap_until(end, cancel)?;
            end = way.take(rest.min(PIECE), false);
        }
        sleep_until(end, cancel)
    }
}

/// Sleeps, unless it is cancelled, and spins through the last stretch, which sleep overshoots.
fn sleep_until(end: Instant, cancel: &Cancel) -> Result<()> {
    const SPIN: Duration = Duration::from_micros(150);
    nap_until(end.checked_sub(SPIN).unwrap_or(end), cancel)?;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
    Ok(())
}

/// Sleeps until about then, unless it is cancelled.
fn nap_until(end: Instant, cancel: &Cancel) -> Result<()> {
    /// What is slept at once where it can be cancelled.
    const NAP: Duration = Duration::from_millis(10);
    while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        cancel.check()?;
        std::thread::sleep(if cancel.is_possible() { rest.min(NAP) } else { rest });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_transfer_goes_between_the_pieces_of_a_long_one() {
        // So long that no other program can make the link idle in between.
        let (way, long, short) = (Way::default(), Duration::from_secs(9), Duration::from_micros(50));
        let first = way.take(long, true);
        let other = way.take(short, true);
        let second = way.take(long, false);
        assert_eq!((other - first, second - first), (short, short + long));
    }

    #[test]
    fn a_link_is_idle_only_between_transfers() {
        let way = Way::default();
        let first = way.take(PIECE, true);
        std::thread::sleep(PIECE + 4 * WAKE_UP_SLACK);
        // A piece was waited for all the time, and what comes late to it does not slow the link down.
        let second = way.take(PIECE, false);
        assert_eq!(second - first, PIECE);
        std::thread::sleep(4 * WAKE_UP_SLACK);
        let since = Instant::now();
        assert!(way.take(PIECE, true) >= since + PIECE, "another transfer begins when it comes");
    }

    #[test]
    fn reads_specifications() {
        let spec: SimSpec = "8gb@12gbps".parse().unwrap();
        let plain = SimSpec {
            memory: 8 << 30,
            link_bytes_per_s: 12e9,
            flops_per_s: None,
            activation: None,
            fp8_products: false,
        };
        assert_eq!(spec, plain);
        let spec: SimSpec = "512MB@1.5GBps@2tflops".parse().unwrap();
        assert_eq!((spec.flops_per_s, spec.activation), (Some(2e12), None));
        assert_eq!("8gb@12gbps@f16".parse(), Ok(SimSpec { activation: Some(DType::F16), ..plain }));
        let spec: SimSpec = "8gb@12gbps@2tflops@BF16".parse().unwrap();
        assert_eq!((spec.flops_per_s, spec.activation), (Some(2e12), Some(DType::BF16)));
        assert_eq!("8gb@12gbps@fp8".parse(), Ok(SimSpec { fp8_products: true, ..plain }));
        for text in [
            "",
            "8gb",
            "8gb@",
            "8gb@0gbps",
            "8gb@-1gbps",
            "0gb@1gbps",
            "8gb@1gbps@3",
            "8gb@1gbps@1tflops@1",
            "8gb@1gbps@f32",
            "8gb@1gbps@f16@1tflops",
            "8gb@1gbps@fp8@f16",
            "8gb@1gbps@1tflops@f16@f16",
        ] {
            assert!(text.parse::<SimSpec>().is_err(), "{text}");
        }
        for text in ["8gb@12gbps", "100mb@50mbps@20gflops", "1b@1.5gbps@2tflops@f16@fp8"] {
            let spec: SimSpec = text.parse().unwrap();
            assert_eq!(spec.to_string().parse(), Ok(spec), "{spec}");
        }
    }
}
