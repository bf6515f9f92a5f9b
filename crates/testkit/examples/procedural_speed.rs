//! How fast procedural values are made, per encoding, on one thread and on all:
//! `cargo run --release -p testkit --example procedural_speed`.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use meta::{DType, Encoding, QuantFormat};
use testkit::Procedural;

/// Values made per measurement.
const COUNT: usize = 64 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let rule = Procedural::new("procedural_speed", 0.1, 0.0);
    let one_thread = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    println!(
        "{:<8} {:>12} {:>12}   (MB/s; all = {} threads)",
        "encoding",
        "one thread",
        "all",
        rayon::current_num_threads()
    );
    for encoding in [
        Encoding::F32,
        Encoding::F16,
        Encoding::BF16,
        DType::F8E4M3.into(),
        QuantFormat::Q8_0.into(),
        QuantFormat::Q4_0.into(),
    ] {
        let one = one_thread.install(|| megabytes_per_second(rule, encoding))?;
        let all = megabytes_per_second(rule, encoding)?;
        println!("{encoding:<8} {one:>12.0} {all:>12.0}");
    }
    Ok(())
}

/// The best of three, stored bytes over time.
fn megabytes_per_second(rule: Procedural, encoding: Encoding) -> Result<f64, testkit::Error> {
    let mut best = 0f64;
    for _ in 0..3 {
        let start = Instant::now();
        let bytes = black_box(rule.encoded(encoding, COUNT)?);
        best = best.max(bytes.len() as f64 / 1e6 / start.elapsed().as_secs_f64());
    }
    Ok(best)
}
