//! Decodes damaged coded weights with every coder of this processor, as many as told.
//!
//! ```text
//! cargo run --release -p device-cpu --example mutate_tiles -- 1000000 [SEED]
//! ```

#[path = "../../codec/tests/campaign/mod.rs"]
mod campaign;

use std::time::Instant;

use device_cpu::tile_coders;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<u64>().ok());
    let (inputs, seed) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(1));
    let (start, coders) = (Instant::now(), tile_coders());
    let names: Vec<&str> = coders.iter().map(|coder| coder.name()).collect();
    let report = campaign::run(&coders, inputs, seed);
    println!("{inputs} inputs by {} in {:.1} s", names.join(", "), start.elapsed().as_secs_f64());
    println!("decoded: {}", report.decoded);
    for (kind, count) in report.errors {
        println!("refused, {kind}: {count}");
    }
}
