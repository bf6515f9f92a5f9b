//! Opens damaged model files, as many as told: the fuzzing campaign of the tests at any length.
//!
//! ```text
//! cargo run --release -p checkpoint --example mutate -- 1000000 [SEED]
//! ```

#[path = "../tests/campaign/mod.rs"]
mod campaign;
#[path = "../tests/writer/mod.rs"]
mod writer;

use std::process::ExitCode;
use std::time::Instant;

use campaign::seeds::Parser;
use campaign::{allocation, run};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (inputs, seed) = match (numbers.next(), numbers.next()) {
        (None, _) => (100_000, 1),
        (Some(Ok(inputs)), None) => (inputs, 1),
        (Some(Ok(inputs)), Some(Ok(seed))) => (inputs, seed),
        _ => {
            eprintln!("usage: mutate [INPUTS_PER_PARSER [SEED]]");
            return ExitCode::FAILURE;
        }
    };
    println!(
        "| parser | inputs | opened | errors | seconds | slowest input | most allocated | worst allocated / input |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for parser in Parser::ALL {
        let start = Instant::now();
        let report = run(parser, inputs, seed);
        let errors: Vec<String> =
            report.errors.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        println!(
            "| {parser:?} | {} | {} | {} | {:.1} | {:.2} ms | {} B | {:.2} |",
            report.inputs,
            report.opened,
            errors.join(", "),
            start.elapsed().as_secs_f64(),
            report.slowest.as_secs_f64() * 1e3,
            report.most_allocated,
            report.ratio()
        );
    }
    ExitCode::SUCCESS
}
