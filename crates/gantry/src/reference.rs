//! `gantry selftest --golden FOLDER`: whole workflows against what the reference implementation computed for them, on
//! one device, with the weights resident, streamed and split. The model files are rebuilt from their manifests.

mod bench;
mod places;
mod report;
mod spread;
mod verdict;

use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result};
use golden::{Case, GoldenFolder, ModelsFolder, Tolerance};
use meta::{ByteSize, DType};
use runtime::folders::{Folders, Layout};
use testkit::ScratchDir;

use crate::cli::{How, MachineArgs, SelftestArgs};
use crate::commands::{print, print_json, tell};
use crate::serving;
use bench::Bench;
use places::Places;
use report::{CaseReport, Report, WayReport};
use verdict::{Outcome, Verdict};

/// Runs the cases that were asked for and tells of each whether it is as the reference has it.
pub(crate) fn run(machine: &MachineArgs, args: &SelftestArgs, folder: &Path) -> Result<ExitCode> {
    serving::tell_warnings();
    let golden = GoldenFolder::open(folder)?;
    let chosen = golden.select(&args.cases)?;
    anyhow::ensure!(args.device.len() <= 1, "--golden runs on one device: give --device once");
    let dtype = args.dtype.dtype();
    let mut hows = if args.how.is_empty() { How::ALL.to_vec() } else { args.how.clone() };
    hows.sort_unstable();
    hows.dedup();
    // What is compared is computed anew.
    let machine = &MachineArgs { coded_cache: ByteSize(0), ..machine.clone() };
    let places = Places::open(machine, args.device.first().copied(), dtype, &hows)?;
    let scratch = ScratchDir::new()?;
    let kept = args.models.clone().unwrap_or_else(|| scratch.join("models"));
    let runner = Runner { models: ModelsFolder::at(&kept)?, golden: &golden, dtype };
    let benches = runner.benches(&places, &hows, &scratch)?;
    let coding = places.machine().coding();
    let mut report = Report::new(dtype, coding, benches.iter().map(|bench| bench.place.clone()).collect());
    let told = |text: &str| match args.output.json {
        true => {
            tell(text);
            Ok(())
        }
        false => print(text),
    };
    told(&report.heading())?;
    for name in chosen {
        let case = runner.run(name, &benches, &mut report)?;
        told(&case.line())?;
        report.add(case);
    }
    report.end();
    if args.output.json {
        print_json(&report)?;
    }
    told(&report.summary())?;
    if let Some(note) = places.note() {
        told(&format!("{note}\n"))?;
    }
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What all cases share.
struct Runner<'a> {
    golden: &'a GoldenFolder,
    models: ModelsFolder,
    dtype: DType,
}

impl Runner<'_> {
    /// A bench for every way.
    fn benches(&self, places: &Places, hows: &[How], scratch: &ScratchDir) -> Result<Vec<Bench>> {
        let mut layout = Layout::at(scratch.path());
        layout.models = self.models.path().to_owned();
        layout.input = self.golden.inputs();
        let bench = |how: &How| {
            let place = places.of(*how)?;
            let profile = scratch.join("profile.json");
            Bench::new(place, places, (Folders::new(&layout), profile), self.dtype)
        };
        hows.iter().map(bench).collect()
    }

    /// Runs a case in every way.
    fn run(&self, name: &str, benches: &[Bench], report: &mut Report) -> Result<CaseReport> {
        let case = self.golden.case(name)?;
        let tolerance = Tolerance::of(name, self.dtype);
        let mut told = CaseReport::new(&case, tolerance);
        let mut first: Option<Outcome> = None;
        for bench in benches {
            let started = Instant::now();
            // What is missing is missing in every way.
            let known = first
                .as_ref()
                .filter(|first| matches!(first.verdict, Verdict::NotYet { everywhere: true, .. }));
            let outcome = match known {
                Some(known) => known.clone(),
                None => self.outcome(&case, bench, tolerance, report)?,
            };
            told.ways.push(WayReport::new(bench.place.how, &outcome, first.as_ref(), started.elapsed()));
            first.get_or_insert(outcome);
        }
        Ok(told)
    }

    fn outcome(
        &self,
        case: &Case,
        bench: &Bench,
        tolerance: Tolerance,
        report: &mut Report,
    ) -> Result<Outcome> {
        if let Some(missing) = bench.missing_classes(case) {
            return Ok(Outcome::of(Verdict::not_yet(&missing)));
        }
        let started = Instant::now();
        let files = case.files.iter().map(String::as_str);
        let built = self.models.ensure(self.golden, files).with_context(|| case.name.clone())?;
        report.rebuilt(built, started.elapsed());
        let mut outcome = bench.run(case, tolerance)?;
        // What is told of a file is not about the folder that it was rebuilt in.
        outcome.verdict.shorten(&self.models.path().display().to_string());
        Ok(outcome)
    }
}
