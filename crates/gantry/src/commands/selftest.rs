//! `gantry selftest`: the conformance cases on this machine's devices, as a table or as JSON.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use conformance::{Outcome, Report};

use super::{print, print_json, tell};
use crate::cli::SelftestArgs;
use crate::machine::Machine;
use crate::table::Table;

/// Runs the cases and prints what they gave.
pub(super) fn run(machine: &Machine, args: &SelftestArgs) -> Result<ExitCode> {
    let devices = if args.device.is_empty() {
        machine.registry().iter().cloned().collect()
    } else {
        args.device.iter().map(|id| machine.registry().get(*id).cloned()).collect::<Result<Vec<_>, _>>()?
    };
    let report = conformance::run(machine.cpu(), &devices, &args.only)?;
    ensure!(
        !report.is_simulation(),
        "a simulated device computes with the CPU's kernels, so there is nothing to compare; test --device cpu"
    );
    ensure!(
        !report.is_empty(),
        "--only {}: no case has that in its name; `gantry selftest --all` shows all names",
        args.only
    );
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&table(&report, args.all))?;
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

/// The cases that one row shows.
struct Row<'a> {
    name: String,
    worst: &'a Outcome,
    count: usize,
    passed: bool,
}

/// The worst error of each operation on each device and type; all cases if `every`.
fn table(report: &Report, every: bool) -> String {
    let mut table =
        Table::new(&["operation", "cases", "device", "type", "against", "worst error", "allowed", "result"]);
    for row in rows(report, every) {
        let worst = row.worst;
        let error = worst
            .relative_error
            .map_or("failed".into(), |e| if e == 0.0 { "0".into() } else { format!("{e:.1e}") });
        let allowed =
            if worst.allowed == 0.0 { "same bits".into() } else { format!("{:.0e}", worst.allowed) };
        let result = if row.passed { "ok" } else { "FAILED" };
        let count = row.count.to_string();
        table.row(&[&row.name, &count, &worst.device, worst.dtype, worst.against, &error, &allowed, result]);
    }
    table.to_string()
}

fn rows(report: &Report, every: bool) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for o in report.outcomes() {
        let name = if every { format!("{} {}", o.op, o.variant) } else { o.op.to_owned() };
        let same = |row: &&mut Row<'_>| {
            row.name == name && row.worst.device == o.device && row.worst.dtype == o.dtype
        };
        match rows.iter_mut().find(same) {
            Some(row) => {
                row.count += 1;
                row.passed &= o.passed;
                if rank(o) > rank(row.worst) {
                    row.worst = o;
                }
            }
            None => rows.push(Row { name, worst: o, count: 1, passed: o.passed }),
        }
    }
    rows
}

/// Failures first, then by error.
fn rank(o: &Outcome) -> f64 {
    if o.passed { o.relative_error.unwrap_or(0.0) } else { f64::INFINITY }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::Device;

    fn devices(machine: &Machine) -> Vec<Device> {
        machine.registry().iter().cloned().collect()
    }

    #[test]
    fn a_row_is_an_operation_or_a_case() {
        let machine = Machine::for_tests();
        let report = conformance::run(machine.cpu(), &devices(&machine), "softmax").unwrap();
        let text = table(&report, false);
        assert_eq!(text.lines().filter(|line| line.starts_with("softmax")).count(), 1, "{text}");
        let text = table(&report, true);
        assert_eq!(text.lines().count(), report.outcomes().len() + 1, "{text}");
    }

    #[test]
    fn a_simulation_is_listed_and_is_no_evidence() {
        let machine = Machine::for_tests();
        let devices = devices(&machine);
        let report = conformance::run(machine.cpu(), &devices, "softmax").unwrap();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["devices"].as_array().unwrap().len(), 3);
        assert!(json["outcomes"].as_array().unwrap().iter().all(|it| it["device"] == "cpu"), "{json:#}");
        assert!(json["outcomes"].as_array().unwrap().iter().all(|it| it["against"] == "f64 loops"));
        let summary = report.summary();
        assert!(summary.ends_with("on 1 device(s); simulated, so not compared: sim:0, sim:1"), "{summary}");
        let only = conformance::run(machine.cpu(), &devices[1..], "softmax").unwrap();
        assert!(only.is_empty() && !only.passed());
    }
}
