//! The first five minutes: what `gantry doctor` finds, and what wrong input is answered with.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod benches;
mod doctor;
mod habits;
mod pulling;
mod videos;
mod wrong_input;

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs the program in a folder, far from the home of whoever runs the tests.
pub(crate) fn gantry(folder: &Path, arguments: &[&str]) -> Output {
    program(folder, arguments).output().unwrap()
}

/// The same, not started yet.
pub(crate) fn program(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(arguments).current_dir(folder).stdin(Stdio::null());
    command.env("HOME", folder.join("home")).env("PATH", folder.join("bin"));
    for name in
        ["VIRTUAL_ENV", "CONDA_PREFIX", "GANTRY_CACHE_DIR", "XDG_CACHE_HOME", "CUDA_PATH", "CUDA_HOME"]
    {
        command.env_remove(name);
    }
    command.env_remove("XDG_CONFIG_HOME").env_remove("GANTRY_CONFIG");
    command
}

/// A file of the demo model.
pub(crate) fn demo(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo").join(name)
}
