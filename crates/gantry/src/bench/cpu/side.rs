//! One side of a comparison: a process that answers questions, one JSON line each.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// What the Python process runs.
const SCRIPT: &str = include_str!("peer.py");

/// A running process. Dropping it ends it.
pub(super) struct Side {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    version: String,
}

impl Side {
    /// This program, once more.
    pub(super) fn ours(threads: usize) -> Result<Side> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        command.args(["bench", "cpu", "--cpu", "--answer"]).env("RAYON_NUM_THREADS", threads.to_string());
        Side::start(command)
    }

    /// PyTorch; an error says why there is none.
    pub(super) fn torch(python: &str, threads: usize) -> Result<Side> {
        let mut command = Command::new(python);
        command.args(["-c", SCRIPT]).env("OMP_NUM_THREADS", threads.to_string()).stderr(Stdio::null());
        Side::start(command)
    }

    fn start(mut command: Command) -> Result<Side> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("{} cannot be started", command.get_program().display()))?;
        let questions = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("the process has no output")?);
        let mut side = Side { child, questions, answers, version: String::new() };
        let hello = side.answer()?;
        let text = |key: &str| hello[key].as_str().unwrap_or("?").to_owned();
        side.version = format!("PyTorch {}, Python {}", text("torch"), text("python"));
        Ok(side)
    }

    /// What runs there, if it is PyTorch.
    pub(super) fn version(&self) -> &str {
        &self.version
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
            bail!("a process of the measurement ended");
        }
        let value: Value =
            serde_json::from_str(&line).with_context(|| format!("answered '{}'", line.trim()))?;
        match value["error"].as_str() {
            Some(error) => bail!("{error}"),
            None => Ok(value),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        // Closing its input ends the process; waiting keeps no zombie. It has nothing left to say.
        self.questions = None;
        let _ = self.child.wait();
    }
}
