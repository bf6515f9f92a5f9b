//! A fuzzing campaign without tools: valid files are damaged at random, with some knowledge of their
//! structure, and opened. Nothing may panic, take long, or allocate more than the file's size explains.
#![allow(dead_code, unreachable_pub, reason = "each binary uses a part of this")]

pub mod allocation;
pub mod exercise;
pub mod mutation;
pub mod seeds;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use checkpoint::Error;
use mutation::{Random, mutate};
use seeds::Parser;

/// The most memory that opening may take at once: this many times the input, and a constant for errors
/// and small tables. An entry is larger than the few header bytes that describe an empty tensor.
pub const MAX_BYTES_PER_INPUT_BYTE: u64 = 12;
/// The constant.
pub const MAX_EXTRA_BYTES: u64 = 64 << 10;
/// The longest that one input may take, with room for a busy machine.
pub const MAX_TIME: Duration = Duration::from_secs(2);

/// The shortest input whose ratio of allocated bytes is reported; the constant hides that of shorter ones.
const MIN_RATIO_BYTES: u64 = 128;

/// What a campaign found.
#[derive(Default)]
pub struct Report {
    pub inputs: u64,
    pub opened: u64,
    /// How often each kind of error came up.
    pub errors: BTreeMap<&'static str, u64>,
    pub slowest: Duration,
    pub most_allocated: u64,
    /// Input and allocated bytes where their ratio was largest, among inputs large enough for a ratio
    /// to mean something.
    pub worst_ratio: (u64, u64),
}

impl Report {
    /// Worst allocation over input size.
    pub fn ratio(&self) -> f64 {
        self.worst_ratio.1 as f64 / self.worst_ratio.0.max(1) as f64
    }
}

/// Opens `inputs` damaged files. Panics, naming the input's number and seed, where a limit is passed.
pub fn run(parser: Parser, inputs: u64, seed: u64) -> Report {
    let seeds = parser.seeds();
    let mut report = Report::default();
    for number in 0..inputs {
        let mut random = Random::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let file = mutate(parser, &seeds, &mut random);
        let len = file.len() as u64;
        let start = Instant::now();
        let (result, allocated) = allocation::peak_of(|| parser.open(file));
        let elapsed = start.elapsed();
        let place = format!("{parser:?} input {number} of seed {seed}");
        assert!(elapsed < MAX_TIME, "{place}: {elapsed:?} for {len} bytes");
        let limit = parser.bytes_per_input_byte() * len + MAX_EXTRA_BYTES;
        assert!(allocated <= limit, "{place}: {allocated} bytes allocated for an input of {len}");
        report.inputs += 1;
        report.slowest = report.slowest.max(elapsed);
        report.most_allocated = report.most_allocated.max(allocated);
        if len >= MIN_RATIO_BYTES && allocated * report.worst_ratio.0.max(1) > report.worst_ratio.1 * len {
            report.worst_ratio = (len, allocated);
        }
        match result {
            Ok(()) => report.opened += 1,
            Err(error) => *report.errors.entry(kind(&error)).or_default() += 1,
        }
    }
    report
}

/// The name of an error's variant.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Io { .. } => "io",
        Error::Refused { .. } => "refused",
        Error::TruncatedHeader { .. } | Error::Truncated { .. } => "truncated",
        Error::Header { .. } => "header",
        Error::Tensor { .. } => "tensor",
        Error::Value { .. } => "value",
        Error::Shards { .. } => "shards",
        Error::LengthChanged { .. } | Error::Changed { .. } => "changed",
    }
}
