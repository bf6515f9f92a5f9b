//! The `gantry` binary: flags and environment become a configuration, the configuration becomes
//! devices, and a command runs on them. Only this crate reads the environment and names backends.
#![forbid(unsafe_code)]

mod bandwidth;
mod bench;
mod cli;
mod commands;
mod environment;
mod machine;
mod selftest;
mod table;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    match commands::run(&cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gantry: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the reader of our output went away, as `gantry inspect … | head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
