//! The commands.

mod check;
mod demo;
mod devices;
mod doctor;
mod draw;
mod free;
mod inspect;
mod plan;
mod run;
mod serve;

use std::io::Write;
use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;

use crate::cli::{Cli, Command, SelftestArgs};
use crate::machine::Machine;
use crate::{bench, selftest};

/// Runs the command that was asked for.
pub(crate) fn run(cli: &Cli, notes: &[String]) -> Result<ExitCode> {
    match &cli.command {
        Command::Serve(args) => serve::run(&Machine::open(&cli.machine)?, args, notes),
        Command::Run(args) => run::run(&Machine::open(&cli.machine)?, args),
        Command::Free(args) => free::run(args),
        Command::Check(args) => check::run(&Machine::open(&cli.machine)?, args),
        Command::Demo(args) => demo::run(&Machine::open(&cli.machine)?, args),
        Command::Draw(args) => draw::run(&Machine::open(&cli.machine)?, args),
        Command::Doctor(args) => doctor::run(&cli.machine, args),
        Command::Devices(output) => devices::run(&Machine::open(&cli.machine)?, *output),
        Command::Inspect(args) => inspect::run(args),
        Command::Plan(args) => plan::run(&Machine::open(&cli.machine)?, args),
        Command::Selftest(args) => run_selftest(&Machine::open(&cli.machine)?, args),
        Command::Bench(args) => bench::run(&Machine::open(&cli.machine)?, args),
    }
}

fn run_selftest(machine: &Machine, args: &SelftestArgs) -> Result<ExitCode> {
    let devices = if args.device.is_empty() {
        machine.registry().iter().cloned().collect()
    } else {
        args.device.iter().map(|id| machine.registry().get(*id).cloned()).collect::<Result<Vec<_>, _>>()?
    };
    let report = selftest::run(machine.cpu(), &devices, &args.only)?;
    anyhow::ensure!(
        !report.is_simulation(),
        "a simulated device computes with the CPU's kernels, so there is nothing to compare; test --device cpu"
    );
    anyhow::ensure!(
        !report.is_empty(),
        "--only {}: no case has that in its name; `gantry selftest --all` shows all names",
        args.only
    );
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&report.table(args.all))?;
        print(&format!("{}\n", report.summary()))?;
        if let Some(note) = machine.note() {
            print(&format!("{note}\n"))?;
        }
    }
    if report.passed() {
        return Ok(ExitCode::SUCCESS);
    }
    tell(&format!("{}\n", report.failures()));
    Ok(ExitCode::FAILURE)
}

/// Prints text; a reader that has gone is an error that `main` takes as success.
pub(crate) fn print(text: &str) -> Result<()> {
    Ok(std::io::stdout().lock().write_all(text.as_bytes())?)
}

/// Tells people something beside the output. Where nobody reads it any more, the program goes on.
pub(crate) fn tell(text: &str) {
    let _ = std::io::stderr().lock().write_all(text.as_bytes());
}

/// Prints a value as JSON.
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    print(&format!("{}\n", serde_json::to_string_pretty(value)?))
}
