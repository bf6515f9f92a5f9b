//! `gantry bench`: measurements, with the peer beside us in the same run where it is installed.

mod codec;
mod coding;
mod cpu;
mod disk;
mod launches;
mod load;
mod ops;
mod parts;
mod queue;
mod residency;
mod served;
mod server;
mod step;
mod torch;

use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde::Serialize;

use crate::cli::{BenchArgs, BenchCase};
use crate::commands::{print, print_json};
use crate::machine::Machine;

/// Whether `--only` names a row: by a part of its name, or by one of several with commas between them. A comma with a space
/// behind it belongs to a name.
fn is_wanted(only: &str, name: &str) -> bool {
    let mut texts: Vec<String> = Vec::new();
    for text in only.split(',') {
        match texts.last_mut() {
            Some(last) if text.starts_with(' ') => last.extend([",", text]),
            _ => texts.push(text.to_owned()),
        }
    }
    let is_named = |text: &String| !text.is_empty() && name.contains(text.as_str());
    only.is_empty() || texts.iter().any(is_named)
}

/// An error that says so if `--only` names no row.
fn need_rows(args: &BenchArgs, has_rows: bool) -> Result<()> {
    ensure!(has_rows, "--only {}: no row has that in its name; leave it out to see all", args.only);
    Ok(())
}

/// Prints what was measured, for people or for programs.
fn show<R: Serialize>(args: &BenchArgs, report: &R, to_text: impl Fn(&R) -> String) -> Result<ExitCode> {
    if args.output.json {
        print_json(report)?;
    } else {
        print(&to_text(report))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Measures what was asked for.
pub(crate) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    match args.case {
        BenchCase::Coding => coding::run(machine, args),
        BenchCase::Codec => codec::run(machine, args),
        BenchCase::Cpu => cpu::run(machine, args),
        BenchCase::Disk => disk::run(machine, args),
        BenchCase::Launches => launches::run(machine, args),
        BenchCase::Load => load::run(machine, args),
        BenchCase::Ops => ops::run(machine, args),
        BenchCase::Parts => parts::run(machine, args),
        BenchCase::Queue => queue::run(machine, args),
        BenchCase::Residency => residency::run(machine, args),
        BenchCase::Served => served::run(machine, args),
        BenchCase::Server => server::run(machine, args),
        BenchCase::Shared => served::shared::run(machine, args),
        BenchCase::Step => step::run(machine, args),
        BenchCase::Video => served::video::run(machine, args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_named_by_parts_of_their_names() {
        assert!(is_wanted("", "NVFP4") && is_wanted("FP4", "NVFP4") && !is_wanted("BF16", "NVFP4"));
        assert!(is_wanted("BF16,NVFP4", "NVFP4") && !is_wanted("BF16,Q8_0", "NVFP4"));
        assert!(is_wanted("resident, LoRA", "resident, LoRA") && !is_wanted("resident, LoRA", "resident"));
        assert!(is_wanted("decode,resident, fp8", "resident, fp8 products"));
        assert!(!is_wanted("BF16,", "NVFP4"), "an empty text names nothing");
    }
}
