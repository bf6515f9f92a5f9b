//! What the cases gave, as lines and as JSON.

use std::time::{Duration, Instant};

use golden::{Built, Case, Tolerance};
use meta::{ByteSize, DType};
use placement::CodingPolicy;
use serde::Serialize;

use super::places::WayPlace;
use super::verdict::{CodedWeights, Outcome, Verdict};
use crate::cli::How;

/// The longest name that lines are aligned for.
const NAME_WIDTH: usize = 46;

/// All cases.
#[derive(Serialize)]
pub(super) struct Report {
    version: &'static str,
    /// The element type of activations that was asked for.
    dtype: &'static str,
    /// The largest relative error that passes unless a case says otherwise.
    tolerance: f64,
    /// Which of the streamed weights were losslessly coded.
    coding: &'static str,
    ways: Vec<WayPlace>,
    cases: Vec<CaseReport>,
    totals: Totals,
    #[serde(skip_serializing_if = "CodedTotals::is_none")]
    coded: CodedTotals,
    rebuilt_files: usize,
    rebuilt_bytes: u64,
    rebuilding_seconds: f64,
    seconds: f64,
    #[serde(skip)]
    started: Instant,
}

/// How many cases ended how. A case counts by the worst of its ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct Totals {
    ok: usize,
    differs: usize,
    failed: usize,
    cannot_run_yet: usize,
}

/// What was losslessly coded in all cases.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
struct CodedTotals {
    /// Runs of a case in one way in which something was.
    runs: usize,
    /// Those of them that gave the bits of the case's first way.
    same_bits: usize,
    /// The weights, run by run.
    #[serde(flatten)]
    weights: CodedWeights,
}

impl CodedTotals {
    fn is_none(&self) -> bool {
        self.runs == 0
    }
}

/// One case.
#[derive(Serialize)]
pub(super) struct CaseReport {
    name: String,
    tolerance: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    tolerance_because: Option<&'static str>,
    /// Tensors of the reference that are inside of nodes and not compared.
    not_compared: usize,
    pub(super) ways: Vec<WayReport>,
}

/// One case in one way.
#[derive(Serialize)]
pub(super) struct WayReport {
    how: How,
    #[serde(flatten)]
    verdict: Verdict,
    #[serde(skip_serializing_if = "Option::is_none")]
    relative_error: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    worst_tensor: Option<String>,
    compared: usize,
    /// Models that are not spread although the way spreads them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stayed: Vec<String>,
    /// What of the weights was losslessly coded.
    #[serde(skip_serializing_if = "CodedWeights::is_none")]
    coded: CodedWeights,
    /// Whether all values are those of the first way, to the bit.
    #[serde(skip_serializing_if = "Option::is_none")]
    same_bits: Option<bool>,
    seconds: f64,
}

impl WayReport {
    pub(super) fn new(how: How, outcome: &Outcome, first: Option<&Outcome>, took: Duration) -> WayReport {
        let bits = |outcome: &Outcome| -> Vec<u32> {
            outcome.values.iter().flat_map(|(_, values)| values).map(|value| value.to_bits()).collect()
        };
        let same = first.filter(|_| outcome.compared > 0).filter(|first| first.compared > 0);
        WayReport {
            how,
            verdict: outcome.verdict.clone(),
            relative_error: outcome.worst.as_ref().map(|(error, _)| *error),
            worst_tensor: outcome.worst.as_ref().map(|(_, tensor)| tensor.clone()),
            compared: outcome.compared,
            stayed: outcome.stayed.clone(),
            coded: outcome.coded,
            same_bits: same.map(|first| bits(first) == bits(outcome)),
            seconds: took.as_secs_f64(),
        }
    }

    fn told(&self) -> String {
        let how = self.how.name();
        match (&self.verdict, self.relative_error) {
            (Verdict::Ok, Some(error)) if self.stayed.is_empty() => format!("{how} {error:.1e}"),
            (Verdict::Ok, Some(error)) => format!("{how} {error:.1e} (but {})", self.stayed.join(", ")),
            (verdict, _) => format!("{how} {}: {}", verdict.word(), verdict.reason().unwrap_or_default()),
        }
    }
}

impl CaseReport {
    pub(super) fn new(case: &Case, tolerance: Tolerance) -> CaseReport {
        CaseReport {
            name: case.name.clone(),
            tolerance: tolerance.relative,
            tolerance_because: tolerance.why,
            not_compared: case.others.len(),
            ways: Vec::new(),
        }
    }

    /// The worst of its ways.
    fn worst(&self) -> &Verdict {
        let rank = |verdict: &Verdict| match verdict {
            Verdict::Ok => 0,
            Verdict::NotYet { .. } => 1,
            Verdict::Failed { .. } => 2,
            Verdict::Differs { .. } => 3,
        };
        let verdicts = self.ways.iter().map(|way| &way.verdict);
        verdicts.max_by_key(|verdict| rank(verdict)).unwrap_or(&Verdict::Ok)
    }

    /// One line.
    pub(super) fn line(&self) -> String {
        let seconds: f64 = self.ways.iter().map(|way| way.seconds).sum();
        let name = format!("{:NAME_WIDTH$}", self.name);
        let first = self.ways.first().map(|way| &way.verdict);
        // What is the same in every way is said once.
        if self.ways.iter().all(|way| Some(&way.verdict) == first)
            && let Some(reason) = self.worst().reason()
        {
            return format!("{name}  {}: {reason}\n", self.worst().word());
        }
        let ways: Vec<String> = self.ways.iter().map(WayReport::told).collect();
        format!("{name}  {}  {}, {seconds:.1} s\n", self.worst().word(), ways.join(", "))
    }
}

impl Report {
    pub(super) fn new(dtype: DType, coding: CodingPolicy, ways: Vec<WayPlace>) -> Report {
        Report {
            version: env!("CARGO_PKG_VERSION"),
            dtype: dtype.name(),
            tolerance: Tolerance::usual(dtype).relative,
            coding: coding.name(),
            ways,
            cases: Vec::new(),
            totals: Totals::default(),
            coded: CodedTotals::default(),
            rebuilt_files: 0,
            rebuilt_bytes: 0,
            rebuilding_seconds: 0.0,
            seconds: 0.0,
            started: Instant::now(),
        }
    }

    /// What is run, where, and how far it may be off.
    pub(super) fn heading(&self) -> String {
        let ways: Vec<String> = self.ways.iter().map(WayPlace::told).collect();
        format!(
            "activations in {}, relative error at most {:.0e}; {}\n",
            self.dtype,
            self.tolerance,
            ways.join(", ")
        )
    }

    /// Notes that model files were rebuilt.
    pub(super) fn rebuilt(&mut self, built: Built, took: Duration) {
        if built.files > 0 {
            self.rebuilt_files += built.files;
            self.rebuilt_bytes += built.bytes;
            self.rebuilding_seconds += took.as_secs_f64();
        }
    }

    pub(super) fn add(&mut self, case: CaseReport) {
        let counted = match case.worst() {
            Verdict::Ok => &mut self.totals.ok,
            Verdict::Differs { .. } => &mut self.totals.differs,
            Verdict::Failed { .. } => &mut self.totals.failed,
            Verdict::NotYet { .. } => &mut self.totals.cannot_run_yet,
        };
        *counted += 1;
        for way in case.ways.iter().filter(|way| !way.coded.is_none()) {
            self.coded.runs += 1;
            self.coded.same_bits += usize::from(way.same_bits == Some(true));
            self.coded.weights += way.coded;
        }
        self.cases.push(case);
    }

    /// Stops the clock.
    pub(super) fn end(&mut self) {
        self.seconds = self.started.elapsed().as_secs_f64();
    }

    /// Whether no case differs and none failed.
    pub(super) fn passed(&self) -> bool {
        !self.cases.iter().flat_map(|case| &case.ways).any(|way| way.verdict.is_failure())
    }

    /// The totals.
    pub(super) fn summary(&self) -> String {
        let Totals { ok, differs, failed, cannot_run_yet } = self.totals;
        let CodedTotals { runs, same_bits, weights } = self.coded;
        let coded = match runs {
            0 => String::new(),
            _ => format!(
                "{} blocks coded in {runs} runs, {:.3} of their bytes; {same_bits} of these runs gave the bits of the \
                 first way\n",
                weights.blocks,
                weights.coded_bytes as f64 / weights.plain_bytes.max(1) as f64
            ),
        };
        format!(
            "{ok} ok, {differs} differ, {failed} failed, {cannot_run_yet} cannot run yet; {} files of {} rebuilt in \
             {:.0} s, {:.0} s in all\n{coded}",
            self.rebuilt_files,
            ByteSize(self.rebuilt_bytes),
            self.rebuilding_seconds,
            self.seconds
        )
    }
}
