//! The commands.

mod about;
mod cache;
mod check;
mod config;
mod demo;
mod devices;
mod doctor;
mod draw;
mod free;
mod front;
mod inspect;
mod list;
mod plan;
mod ps;
mod pull;
mod run;
mod selftest;
mod serve;
mod stop;
mod worker;
mod workers;

use std::io::Write;
use std::process::ExitCode;
use std::sync::OnceLock;

use anyhow::Result;
use serde::Serialize;

use crate::cli::{Cli, Command};
use crate::machine::Machine;
use crate::{bench, reference};

/// Runs the command that was asked for.
pub(crate) fn run(cli: &Cli, notes: &[String]) -> Result<ExitCode> {
    // Only once in a process; a test may do so again.
    let _ = QUIET.set(cli.quiet);
    match &cli.command {
        Command::Serve(args) => serve::run(&Machine::open(&cli.machine)?, args, notes),
        Command::Worker(args) => worker::run(&Machine::open(&cli.machine)?, args, notes),
        Command::Workers(args) => workers::run(args),
        Command::Run(args) => run::run(&Machine::open(&cli.machine)?, args),
        Command::Pull(args) => pull::run(&cli.machine, args),
        Command::List(args) => list::run(args),
        Command::Ps(args) => ps::run(args),
        Command::Stop(args) => stop::run(args),
        Command::Free(args) => free::run(args),
        Command::Check(args) => check::run(&Machine::open(&cli.machine)?, args),
        Command::Demo(args) => demo::run(&Machine::open(&cli.machine)?, args),
        Command::Draw(args) => draw::run(&Machine::open(&cli.machine)?, args),
        Command::Doctor(args) => doctor::run(&cli.machine, args),
        Command::Cache(args) => cache::run(&cli.machine, args),
        Command::Devices(output) => devices::run(&Machine::open(&cli.machine)?, *output),
        Command::Inspect(args) => inspect::run(args),
        Command::Plan(args) => plan::run(&Machine::open(&cli.machine)?, args),
        Command::Selftest(args) => match &args.golden {
            Some(folder) => reference::run(&cli.machine, args, folder),
            None => selftest::run(&Machine::open(&cli.machine)?, args),
        },
        Command::Config(args) => config::run(args),
        Command::Version(output) => about::version(*output),
        Command::Completions { shell } => about::completions(*shell),
        Command::Man { folder, output } => about::manual(folder, *output),
        Command::Bench(args) => bench::run(&Machine::open(&cli.machine)?, args),
    }
}

/// Prints text; a reader that has gone is an error that `main` takes as success.
pub(crate) fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Whether only results, warnings and errors are told.
static QUIET: OnceLock<bool> = OnceLock::new();

/// Whether only results, warnings and errors are told.
pub(crate) fn is_quiet() -> bool {
    QUIET.get().copied().unwrap_or(false)
}

/// Tells people how it goes, unless they do not want to know.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        tell(text);
    }
}

/// Tells people something beside the output. Where nobody reads it any more, the program goes on.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
