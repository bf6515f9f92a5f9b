//! What is said of a case that ran in one way.

use std::ops::AddAssign;

use placement::Plan;
use serde::Serialize;

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "verdict")]
pub(super) enum Verdict {
    /// Everything is within the tolerance.
    Ok,
    /// Something is not: how many tensors, or a tensor of another shape.
    Differs {
        /// What differs, and by how much.
        reason: String,
    },
    /// It ran into an error that says nothing of something to come.
    Failed {
        /// The error.
        reason: String,
    },
    /// A class, an option or a family that it needs is not there yet.
    #[serde(rename = "cannot-run-yet")]
    NotYet {
        /// What is not there.
        reason: String,
        /// Whether the same holds wherever the weights are.
        #[serde(skip)]
        everywhere: bool,
    },
}

/// What came out of a case in one way.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) verdict: Verdict,
    /// The worst relative error, and of which tensor.
    pub(super) worst: Option<(f64, String)>,
    /// How many tensors were compared.
    pub(super) compared: usize,
    /// Models that are not spread although the way spreads them: their loaders take no allocation, or all their blocks
    /// are too small.
    pub(super) stayed: Vec<String>,
    /// What of the weights was losslessly coded.
    pub(super) coded: CodedWeights,
    /// All values that were compared, by tensor: other ways are to give the same bits.
    pub(super) values: Vec<(String, Vec<f32>)>,
}

/// What of a case's models was losslessly coded when it ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct CodedWeights {
    /// Blocks that were.
    pub(super) blocks: usize,
    /// Their bytes in the models' files.
    pub(super) plain_bytes: u64,
    /// Their bytes as they were kept and sent.
    pub(super) coded_bytes: u64,
}

impl CodedWeights {
    /// Of these plans.
    pub(super) fn of<'a>(plans: impl Iterator<Item = &'a Plan>) -> CodedWeights {
        let mut all = CodedWeights::default();
        for block in plans.flat_map(|plan| &plan.blocks) {
            if let Some(coded) = block.coded_bytes {
                all.blocks += 1;
                all.plain_bytes += block.bytes;
                all.coded_bytes += coded;
            }
        }
        all
    }

    /// Whether nothing was.
    pub(super) fn is_none(&self) -> bool {
        self.blocks == 0
    }
}

impl AddAssign for CodedWeights {
    fn add_assign(&mut self, other: CodedWeights) {
        self.blocks += other.blocks;
        self.plain_bytes += other.plain_bytes;
        self.coded_bytes += other.coded_bytes;
    }
}

/// The most characters of a reason: lists of options can be long.
const REASON_CHARACTERS: usize = 400;

impl Verdict {
    pub(super) fn not_yet(reason: &str) -> Verdict {
        Verdict::NotYet { reason: short(reason), everywhere: true }
    }

    /// The verdict on an error of a node. The files that a loader is given are right to the bit, so one that it
    /// refuses is of a family that it does not know yet; other errors that name something to come say "cannot be …
    /// yet" everywhere in the program. Too little memory, and anything else, is a failure.
    pub(super) fn of_failure(reason: &str, is_loader: bool, is_out_of_memory: bool) -> Verdict {
        let promises = reason.split("cannot be").skip(1).any(|rest| {
            let clause = rest.split([';', '.', '\n']).next().unwrap_or_default();
            clause.split_whitespace().any(|word| word == "yet")
        });
        if !is_out_of_memory && (is_loader || promises) {
            return Verdict::not_yet(reason);
        }
        Verdict::Failed { reason: short(reason) }
    }

    /// Takes a folder out of the reason.
    pub(super) fn shorten(&mut self, folder: &str) {
        if let Verdict::Differs { reason } | Verdict::Failed { reason } | Verdict::NotYet { reason, .. } =
            self
        {
            *reason = reason.replace(&format!("{folder}/"), "").replace(folder, "models");
        }
    }

    /// Whether the command fails because of it.
    pub(super) fn is_failure(&self) -> bool {
        matches!(self, Verdict::Differs { .. } | Verdict::Failed { .. })
    }

    pub(super) fn reason(&self) -> Option<&str> {
        match self {
            Verdict::Ok => None,
            Verdict::Differs { reason } | Verdict::Failed { reason } | Verdict::NotYet { reason, .. } => {
                Some(reason)
            }
        }
    }

    pub(super) fn word(&self) -> &'static str {
        match self {
            Verdict::Ok => "ok",
            Verdict::Differs { .. } => "DIFFERS",
            Verdict::Failed { .. } => "FAILED",
            Verdict::NotYet { .. } => "cannot run yet",
        }
    }
}

impl Outcome {
    /// A case of which nothing was compared.
    pub(super) fn of(verdict: Verdict) -> Outcome {
        let coded = CodedWeights::default();
        Outcome { verdict, worst: None, compared: 0, stayed: Vec::new(), coded, values: Vec::new() }
    }
}

fn short(text: &str) -> String {
    let text = text.trim_end();
    match text.char_indices().nth(REASON_CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_to_come_is_no_failure() {
        let is_yet = |text: &str, is_loader, is_short| {
            matches!(Verdict::of_failure(text, is_loader, is_short), Verdict::NotYet { .. })
        };
        let yet = |text: &str| is_yet(text, false, false);
        assert!(yet("x.safetensors is Wan 2.1, which cannot be run yet; what can is FLUX.1"));
        assert!(yet("hooks cannot be used yet; unlink the input"));
        assert!(!yet("sim:0 needs 8 GB and has 4"));
        assert!(!yet("the file cannot be read; it is not there yet"));
        assert!(!yet("there are no copies yet"));
        assert!(is_yet("t5.safetensors (T5) cannot be used for wan", true, false));
        assert!(!is_yet("sim:0 needs 8 GB and has 4", true, true));
    }

    #[test]
    fn folders_and_long_lists_are_left_out() {
        let mut verdict = Verdict::not_yet(&format!("/a/b/vae/x is wrong in /a/b: {}", "x".repeat(1000)));
        verdict.shorten("/a/b");
        let reason = verdict.reason().unwrap();
        assert!(reason.starts_with("vae/x is wrong in models: xxx") && reason.ends_with('…'), "{reason}");
        assert!(reason.chars().count() <= REASON_CHARACTERS + 1);
    }
}
