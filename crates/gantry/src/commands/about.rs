//! `gantry version`, `completions` and `man`: what the program says of itself, all from the definition of its command
//! line.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use serde_json::json;

use super::{note, print, print_json};
use crate::cli::{Cli, Output, VERSION};

/// The name of the program in scripts and pages.
const NAME: &str = "gantry";

pub(super) fn version(output: Output) -> Result<ExitCode> {
    if output.json {
        print_json(
            &json!({ "version": VERSION, "os": std::env::consts::OS, "arch": std::env::consts::ARCH }),
        )?;
    } else {
        print(&format!("{NAME} {VERSION}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn completions(shell: Shell) -> Result<ExitCode> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    print(&String::from_utf8_lossy(&script))?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn manual(folder: &Path, output: Output) -> Result<ExitCode> {
    let told = || format!("{}: the manual pages cannot be written there", folder.display());
    std::fs::create_dir_all(folder).with_context(told)?;
    clap_mangen::generate_to(Cli::command().name(NAME), folder).with_context(told)?;
    if output.json {
        print_json(&json!({ "folder": folder }))?;
    }
    note(&format!("the manual pages are in {}; MANPATH=FOLDER/.. man {NAME} shows them\n", folder.display()));
    Ok(ExitCode::SUCCESS)
}
