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

use anyhow::Result;

use crate::cli::{BenchArgs, BenchCase};
use crate::machine::Machine;

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
        BenchCase::Step => step::run(machine, args),
        BenchCase::Video => served::video::run(args),
    }
}
