//! PyTorch as a peer: a Python process that times the same shapes in the same run, or runs the same network.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What the Python process runs.
const SCRIPT: &str = include_str!("torch_peer.py");

/// A running Python with PyTorch.
pub(super) struct Torch {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    version: String,
}

impl Torch {
    /// Starts `python` to time shapes; an error says why there is no PyTorch.
    pub(super) fn start(python: &str) -> Result<Torch> {
        Torch::running(python, SCRIPT)
    }

    /// Starts `python` with a script that tells version and threads first, and then answers questions.
    pub(super) fn running(python: &str, script: &str) -> Result<Torch> {
        let mut child = Command::new(python)
            .args(["-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("{python} cannot be started"))?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("the process has no output")?);
        let mut torch = Torch { child, questions, answers, version: String::new() };
        let hello = torch.answer()?;
        let threads = hello["threads"].as_u64().unwrap_or(0);
        torch.version = format!("PyTorch {}, {threads} threads", hello["version"].as_str().unwrap_or("?"));
        Ok(torch)
    }

    /// Version and threads.
    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// The shortest time of one case.
    pub(super) fn seconds(&mut self, case: &Value) -> Result<f64> {
        self.ask(case)?["seconds"].as_f64().context("the answer has no time")
    }

    /// Asks and waits for the answer.
    pub(super) fn ask(&mut self, question: &Value) -> Result<Value> {
        let questions = self.questions.as_mut().context("the process is gone")?;
        writeln!(questions, "{question}")?;
        questions.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> Result<Value> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!("the Python process ended");
        }
        let value: Value =
            serde_json::from_str(&line).with_context(|| format!("answered '{}'", line.trim()))?;
        match value["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(value),
        }
    }
}

impl Drop for Torch {
    fn drop(&mut self) {
        // Closing its input ends the process; waiting keeps no zombie. It has nothing left to say.
        self.questions = None;
        let _ = self.child.wait();
    }
}
