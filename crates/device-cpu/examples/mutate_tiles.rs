//! Decodes damaged coded weights with every coder of this processor, as many as told, and writes what came of it as JSON.
//!
//! ```text
//! cargo run --release -p device-cpu --example mutate_tiles -- 10000000 [SEED] >docs/results/fuzz-coded-2-cores.json
//! ```

#[path = "../../codec/tests/campaign/mod.rs"]
mod campaign;

use std::time::{Instant, SystemTime};

use device::Backend;
use device_cpu::{CpuBackend, tile_coders};
use meta::Moment;

fn main() {
    let mut numbers = std::env::args().skip(1).filter_map(|text| text.parse::<u64>().ok());
    let (inputs, seed) = (numbers.next().unwrap_or(100_000), numbers.next().unwrap_or(1));
    let (start, coders) = (Instant::now(), tile_coders());
    let report = campaign::run_by_all(&coders, inputs, seed);
    let seconds = start.elapsed().as_secs_f64();
    let listed = |items: Vec<String>| items.join(", ");
    let coders = listed(coders.iter().map(|coder| format!("{:?}", coder.name())).collect());
    let refused = listed(report.errors.iter().map(|(kind, count)| format!("{kind:?}: {count}")).collect());
    println!("{{");
    println!("  \"version\": {:?},", env!("CARGO_PKG_VERSION"));
    println!("  \"date\": {:?},", Moment::utc(SystemTime::now()).date());
    println!("  \"host\": {:?},", CpuBackend::new().describe().name);
    println!("  \"cores\": {},", std::thread::available_parallelism().map_or(1, usize::from));
    println!("  \"coders\": [{coders}],");
    println!("  \"inputs\": {inputs},");
    println!("  \"seed\": {seed},");
    println!("  \"seconds\": {seconds:.1},");
    println!("  \"decoded\": {},", report.decoded);
    println!("  \"refused\": {{ {refused} }}");
    println!("}}");
}
