//! Decodes damaged coded weights, as many as told: the campaign of the tests at any length.
//!
//! ```text
//! cargo run --release -p codec --example mutate_coded -- 1000000 [SEED]
//! ```

#[path = "../tests/campaign/mod.rs"]
mod campaign;

use std::process::ExitCode;
use std::time::Instant;

use codec::Portable;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (inputs, seed) = match (numbers.next(), numbers.next()) {
        (None, _) => (100_000, 1),
        (Some(Ok(inputs)), None) => (inputs, 1),
        (Some(Ok(inputs)), Some(Ok(seed))) => (inputs, seed),
        _ => {
            eprintln!("usage: mutate [INPUTS [SEED]]");
            return ExitCode::FAILURE;
        }
    };
    let start = Instant::now();
    let report = campaign::run(&[&Portable], inputs, seed);
    println!("{inputs} inputs in {:.1} s: {} decoded", start.elapsed().as_secs_f64(), report.decoded);
    for (kind, count) in report.errors {
        println!("refused, {kind}: {count}");
    }
    ExitCode::SUCCESS
}
