//! Rebuilds every checkpoint of the bundled manifests (or those named as arguments) without writing it, and
//! compares the sums: `cargo run --release -p testkit --example golden_sums [NAME ...]`.

use std::error::Error;
use std::process::ExitCode;
use std::time::Instant;

use testkit::{Manifest, Sums};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let sums = Sums::bundled()?;
    let mut names: Vec<String> = std::env::args().skip(1).collect();
    if names.is_empty() {
        names = Manifest::bundled_names()?;
    }
    println!("{:<34} {:>12} {:>9} {:>9}  sum", "manifest", "parameters", "seconds", "MB/s");
    let mut wrong = 0;
    for name in &names {
        let manifest = Manifest::bundled(name)?;
        let start = Instant::now();
        let sum = manifest.sha256()?;
        let seconds = start.elapsed().as_secs_f64();
        let speed = manifest.len_bytes()? as f64 / 1e6 / seconds;
        let agrees = sums.get(&manifest.file) == Some(sum.as_str());
        wrong += usize::from(!agrees);
        let verdict = if agrees { "agrees" } else { "DIFFERS" };
        println!("{name:<34} {:>12} {seconds:>9.2} {speed:>9.0}  {verdict}", manifest.parameters());
    }
    println!("{} of {} agree", names.len() - wrong, names.len());
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
