//! A server as a program of its own, on a port of this machine and a folder of its own.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use testkit::ScratchDir;

use crate::{environment, host, http};

/// How long a server may take to start.
const LONGEST_START: Duration = Duration::from_secs(180);
/// How long is waited between two questions whether it answers.
const PAUSE: Duration = Duration::from_millis(1);

/// How to start a server.
pub(in crate::bench) struct Program {
    pub(in crate::bench) name: &'static str,
    /// How often it is started; the median counts.
    pub(in crate::bench) starts: usize,
    program: PathBuf,
    arguments: Vec<String>,
    /// Where it is started.
    folder: Option<PathBuf>,
    /// Where its models and outputs are; a folder of its own without one.
    base: Option<PathBuf>,
}

impl Program {
    /// This program.
    pub(super) fn gantry() -> Result<Program> {
        Ok(Program { starts: 5, base: None, ..Program::serving(Path::new(""), vec!["--cpu".to_owned()])? })
    }

    /// This program on a folder that has models, with more arguments.
    pub(in crate::bench) fn serving(base: &Path, more: Vec<String>) -> Result<Program> {
        let mut arguments = vec!["serve".to_owned()];
        arguments.extend(more);
        Ok(Program {
            name: "Gantry",
            starts: 1,
            program: environment::own_program().context("finding this program")?,
            arguments,
            folder: None,
            base: Some(base.to_owned()),
        })
    }

    /// ComfyUI in a folder, run by a Python that has what it needs.
    pub(super) fn comfy(folder: &Path, python: &str) -> Result<Program> {
        ensure!(
            folder.join("main.py").is_file(),
            "--with-comfy {}: there is no main.py in it; give the folder of a ComfyUI install",
            folder.display()
        );
        Ok(Program {
            name: "ComfyUI",
            starts: 1,
            program: PathBuf::from(python),
            arguments: vec![
                "main.py".to_owned(),
                "--cpu".to_owned(),
                "--disable-all-custom-nodes".to_owned(),
            ],
            folder: Some(std::path::absolute(folder)?),
            base: None,
        })
    }

    /// Starts it and waits for its first answer.
    pub(in crate::bench) fn start(&self) -> Result<Running> {
        let scratch = ScratchDir::new()?;
        let base = self.base.as_deref().unwrap_or(scratch.path());
        for folder in ["models", "input", "output", "temp", "user", "custom_nodes"] {
            std::fs::create_dir_all(base.join(folder))?;
        }
        // Nobody else takes a port that was just free; if somebody does, the server says so.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let log = File::options().create(true).append(true).open(scratch.path().join("log"))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).args(["--port", &port.to_string(), "--base-directory"]).arg(base);
        command.current_dir(self.folder.as_deref().unwrap_or(scratch.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let begun = Instant::now();
        let child = command.spawn().with_context(|| format!("starting {}", self.program.display()))?;
        let mut running =
            Running { address: format!("http://127.0.0.1:{port}"), start_s: 0.0, child, scratch };
        running.wait(begun, self.name)?;
        Ok(running)
    }
}

/// A server that runs until this value goes away.
pub(in crate::bench) struct Running {
    pub(in crate::bench) address: String,
    /// From the start to the first answer.
    pub(in crate::bench) start_s: f64,
    child: Child,
    scratch: ScratchDir,
}

impl Running {
    fn wait(&mut self, begun: Instant, name: &str) -> Result<()> {
        loop {
            let answer = http::get(&self.address, "/system_stats", Duration::from_secs(5));
            if answer.is_ok_and(|answer| answer.status == 200) {
                self.start_s = begun.elapsed().as_secs_f64();
                return Ok(());
            }
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > LONGEST_START {
                bail!("{name} does not answer. The end of its log:\n{}", self.end_of_log());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The last lines that it told.
    pub(in crate::bench) fn end_of_log(&self) -> String {
        let log = std::fs::read_to_string(self.scratch.path().join("log")).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    /// Its memory.
    pub(super) fn resident_bytes(&self) -> Option<u64> {
        host::resident_bytes(self.child.id())
    }

    /// Its memory, by what it is.
    pub(in crate::bench) fn memory(&self) -> Option<host::ProcessMemory> {
        host::process_memory(self.child.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
