//! Tells the program which commit it is built from: a released one says it with its version.

use std::env;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-env-changed=GANTRY_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    let given = env::var("GANTRY_COMMIT").ok().filter(|commit| !commit.is_empty());
    // While people work on it, a commit is no reason to build again.
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = given.or_else(|| is_release.then(checked_out).flatten());
    let number = env!("CARGO_PKG_VERSION");
    let version = commit.map_or_else(|| number.to_owned(), |commit| format!("{number} ({commit})"));
    println!("cargo::rustc-env=GANTRY_VERSION={version}");
}

/// The commit of the checkout, if this is one and git is there.
fn checked_out() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output =
            Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_owned())
    };
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    git(&["rev-parse", "--short=9", "HEAD"])
}
