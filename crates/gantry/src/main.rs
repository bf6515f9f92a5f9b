//! The `gantry` binary: flags and environment become a configuration, the configuration becomes
//! devices, and a command runs on them. Only this crate reads the environment and names backends.
#![forbid(unsafe_code)]

mod asking;
mod bandwidth;
mod bars;
mod bench;
mod cli;
mod commands;
mod demo_model;
mod drawing;
mod environment;
mod host;
mod http;
mod machine;
mod planning;
mod profile;
mod reference;
mod running;
mod serving;
mod settings;
mod table;
mod templates;
mod workflow_file;

use std::process::ExitCode;

use settings::Sources;

fn main() -> ExitCode {
    device_cpu::use_few_arenas();
    let (args, notes) = cli::comfy_flags::without_unused(std::env::args_os());
    let cli = settings::parse(&args, Sources::read).unwrap_or_else(|stop| stop.exit());
    match commands::run(&cli, &notes) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        // What it means was told when the signal came.
        Err(error) if error.is::<running::Interrupted>() => ExitCode::from(running::INTERRUPTED),
        Err(error) => {
            commands::tell(&format!("{}\n", told(&error)));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each once. One that points at a character keeps its lines to itself, so that
/// the mark stands under what it means.
pub(crate) fn told(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !text.contains(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    if text.contains('\n') { format!("gantry:\n{text}") } else { format!("gantry: {text}") }
}

/// Whether the reader of our output went away, as `gantry inspect … | head` does.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let io = error.chain().find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_are_told_once_and_marks_keep_their_place() {
        let cause = std::io::Error::other("no such file");
        let error = anyhow::Error::new(cause).context("a.gguf: cannot open: no such file");
        assert_eq!(told(&error), "gantry: a.gguf: cannot open: no such file");
        let error = anyhow::anyhow!("disk full").context("writing b");
        assert_eq!(told(&error), "gantry: writing b: disk full");
        assert_eq!(told(&anyhow::anyhow!("cpu,x\n    ^ what")), "gantry:\ncpu,x\n    ^ what");
    }
}
