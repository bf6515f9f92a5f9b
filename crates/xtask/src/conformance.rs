//! `cargo xtask conformance`: writes docs/CONFORMANCE.md from the self-tests in docs/results, so that no
//! figure in it is typed by hand. With `--check` it only says whether the page is what they give.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

/// The page that is written.
const PAGE: &str = "docs/CONFORMANCE.md";
/// Where the results are, as `gantry selftest --json` printed them.
const RESULTS: &str = "docs/results";

#[derive(Deserialize)]
struct Selftest {
    version: String,
    devices: Vec<Tested>,
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize)]
struct Tested {
    id: String,
    name: String,
    detail: String,
    simulated: bool,
}

#[derive(Deserialize)]
struct Outcome {
    op: String,
    device: String,
    dtype: String,
    against: String,
    relative_error: Option<f64>,
    allowed: f64,
    passed: bool,
}

/// Writes the page, or with `--check` compares it.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = result_files(&root.join(RESULTS))?;
    let page = page(&files)?;
    match arguments {
        [] => {
            disk::write(&root.join(PAGE), page.as_bytes()).with_context(|| format!("writing {PAGE}"))?;
            println!("{PAGE} written from {} results", files.len());
            Ok(ExitCode::SUCCESS)
        }
        [only] if only == "--check" => {
            if fs::read_to_string(root.join(PAGE)).is_ok_and(|text| text == page) {
                return Ok(ExitCode::SUCCESS);
            }
            eprintln!("{PAGE} is not what {RESULTS} gives; run `cargo xtask conformance`");
            Ok(ExitCode::FAILURE)
        }
        _ => bail!("usage: cargo xtask conformance [--check]"),
    }
}

/// The results by name.
fn result_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {RESULTS}"))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("selftest-")));
    files.sort();
    Ok(files)
}

fn page(files: &[PathBuf]) -> Result<String> {
    let mut text = String::from(
        "# Conformance\n\n\
         Written by `cargo xtask conformance` from the files in `docs/results`, which `gantry selftest --json`\n\
         printed on the machines named below. Do not edit it.\n\n\
         The error is ‖got − want‖ / ‖want‖, the worst of all cases of an operation. On the CPU it is measured\n\
         against plain loops in f64, elsewhere against the CPU, with inputs rounded to the same type. Simulated\n\
         devices compute with the CPU's kernels: comparing them would compare the CPU with itself.\n",
    );
    for file in files {
        let json = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        let selftest: Selftest = serde_json::from_str(&json).with_context(|| file.display().to_string())?;
        section(&mut text, &selftest)?;
    }
    Ok(text)
}

fn section(text: &mut String, selftest: &Selftest) -> Result<()> {
    // A simulation is no evidence, whatever a file says of it.
    for device in selftest.devices.iter().filter(|device| !device.simulated) {
        writeln!(text, "\n## {} on {}\n", device.id, device.name)?;
        writeln!(text, "Gantry {}; {}.\n", selftest.version, device.detail)?;
        let own: Vec<&Outcome> = selftest.outcomes.iter().filter(|o| o.device == device.id).collect();
        let passed = own.iter().filter(|o| o.passed).count();
        writeln!(text, "{passed} of {} cases passed.\n", own.len())?;
        text.push_str("| operation | type | cases | against | worst error | allowed | result |\n|---|---|---|---|---|---|---|\n");
        for rows in grouped(&own) {
            let first = rows[0];
            let failed = rows.iter().any(|o| !o.passed);
            let worst = rows.iter().map(|o| o.relative_error.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
            let strictest = rows.iter().map(|o| o.allowed).fold(f64::INFINITY, f64::min);
            let allowed = if strictest == 0.0 { "same bits".into() } else { format!("{strictest:.0e}") };
            let worst = if worst == 0.0 { "0".into() } else { format!("{worst:.1e}") };
            let result = if failed { "**failed**" } else { "ok" };
            writeln!(
                text,
                "| {} | {} | {} | {} | {worst} | {allowed} | {result} |",
                first.op,
                first.dtype,
                rows.len(),
                first.against
            )?;
        }
    }
    Ok(())
}

/// Outcomes of one operation in one type, in the order in which they first appear.
fn grouped<'a>(outcomes: &[&'a Outcome]) -> Vec<Vec<&'a Outcome>> {
    let mut groups: Vec<Vec<&Outcome>> = Vec::new();
    for outcome in outcomes {
        let same = |group: &&mut Vec<&Outcome>| group[0].op == outcome.op && group[0].dtype == outcome.dtype;
        match groups.iter_mut().find(same) {
            Some(group) => group.push(outcome),
            None => groups.push(vec![outcome]),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_and_the_worst_error_counts() {
        let outcome = |dtype: &str, error: Option<f64>, passed: bool| Outcome {
            op: "linear".into(),
            device: "cuda:0".into(),
            dtype: dtype.into(),
            against: "cpu".into(),
            relative_error: error,
            allowed: 1e-2,
            passed,
        };
        let tested = |id: &str, simulated: bool| Tested {
            id: id.into(),
            name: "card".into(),
            detail: "d".into(),
            simulated,
        };
        let simulation = Outcome { device: "sim:0".into(), ..outcome("f32", Some(0.0), true) };
        let selftest = Selftest {
            version: "1".into(),
            devices: vec![tested("cuda:0", false), tested("sim:0", true)],
            outcomes: vec![
                outcome("f32", Some(1e-7), true),
                outcome("bf16", Some(2e-3), true),
                outcome("bf16", Some(5e-3), true),
                outcome("f32", None, false),
                simulation,
            ],
        };
        let mut text = String::new();
        section(&mut text, &selftest).unwrap();
        assert!(text.contains("3 of 4 cases passed."), "{text}");
        assert!(!text.contains("sim:0"), "a simulation is no evidence: {text}");
        assert!(text.contains("| linear | bf16 | 2 | cpu | 5.0e-3 | 1e-2 | ok |"), "{text}");
        assert!(text.contains("| linear | f32 | 2 | cpu | inf | 1e-2 | **failed** |"), "{text}");
    }
}
