//! `gantry doctor`: looks at the machine and says in plain words what works, what does not and what to do.
//!
//! Every check is a function that gives [`Check`] values. Checks run one after the other on a thread of their own
//! under a time limit, so that a driver or a network disk that hangs is reported and does not hang the doctor. Nothing
//! is changed: what is written is one small file for each question about writing, and it is deleted at once.

mod check;
mod computing;
mod disk;
mod folders;
mod installs;
mod models;
mod port;
mod report;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use anyhow::{Context, Result};
use runtime::Folders;

use super::{print, print_json};
use crate::cli::{DoctorArgs, MachineArgs};
use crate::machine::Machine;
use crate::{environment, serving};
use check::Check;
use models::Found;
use report::Report;

/// The exit status if something does not work.
const SOMETHING_BROKEN: u8 = 3;
/// How long the drivers may take to open all devices.
const OPENING: Duration = Duration::from_secs(60);
/// How long a device may take to compute something: its kernels may have to be compiled first.
const COMPUTING: Duration = Duration::from_secs(60);
/// How long every other check may take.
const LOOKING: Duration = Duration::from_secs(10);

/// What the checks look at.
struct Place {
    /// The folder that has models, outputs and the rest.
    base: PathBuf,
    folders: Folders,
    database: PathBuf,
    port: u16,
}

pub(super) fn run(machine: &MachineArgs, args: &DoctorArgs) -> Result<ExitCode> {
    let mut checks = Vec::new();
    let place = Arc::new(place(args, &mut checks)?);
    checks.extend(machine_checks(machine));
    let shared = Arc::clone(&place);
    checks.extend(within(LOOKING, "folders", move || folders::checks(&shared)));
    let shared = Arc::clone(&place);
    let found = limited(LOOKING, move || models::look(&shared.folders));
    let found = found.unwrap_or_else(|why| {
        checks.push(gave_up("models", &why));
        Found::default()
    });
    let shared = Arc::clone(&place);
    let found = Arc::new(found);
    checks.extend(models::checks(&found, &place));
    let largest = Arc::clone(&found);
    checks.extend(within(LOOKING, "disk", move || disk::check(&largest, &shared).into_iter().collect()));
    let base = place.base.clone();
    let installs = limited(LOOKING, move || installs::look(&base)).unwrap_or_default();
    checks.extend(installs::checks(&installs));
    checks.extend(within(LOOKING, "front_end", || vec![installs::front_end()]));
    let port = place.port;
    checks.extend(within(LOOKING, "port", move || vec![port::check(port)]));
    let next = next_command(&place, &found, &installs, &checks);
    let report = Report::new(checks, next);
    if args.output.json {
        print_json(&report)?;
    } else {
        print(&report.to_text(&report::Style::of_output()))?;
    }
    Ok(if report.is_broken() { ExitCode::from(SOMETHING_BROKEN) } else { ExitCode::SUCCESS })
}

/// Where the server would look, with the flags that were given. What is wrong with the flags is a check of its own.
fn place(args: &DoctorArgs, checks: &mut Vec<Check>) -> Result<Place> {
    let base = match &args.folders.base_directory {
        Some(base) => base.clone(),
        None => environment::current_dir().context("finding the current folder")?,
    };
    let base = std::path::absolute(&base).unwrap_or(base);
    let folders = match serving::folders(&args.folders) {
        Ok(folders) => folders,
        Err(error) => {
            let said = crate::told(&error);
            let said = said.trim_start_matches("gantry:").trim();
            checks.push(Check::broken("settings", said, "Correct what is named above, then run this again."));
            Folders::at(&base)
        }
    };
    let database = args.database.clone().unwrap_or_else(|| folders.user.join(super::serve::DATABASE));
    let database = std::path::absolute(&database).unwrap_or(database);
    Ok(Place { base, folders, database, port: args.port })
}

/// What the devices say, and whether they compute.
fn machine_checks(args: &MachineArgs) -> Vec<Check> {
    let wanted = args.clone();
    let opened = limited(OPENING, move || Machine::open(&wanted));
    let machine = match opened {
        Ok(Ok(machine)) => Arc::new(machine),
        Ok(Err(error)) => {
            let said = crate::told(&error);
            return vec![Check::broken(
                "devices",
                said.trim_start_matches("gantry:").trim(),
                "Correct the flag that is named, or use --cpu to go on without GPUs.",
            )];
        }
        Err(why) => {
            let check = gave_up("devices", &why);
            return vec![check.with_advice(
                "The driver does not answer. Restart the machine, or use --cpu to go on without GPUs.",
            )];
        }
    };
    let uses_gpus = !args.cpu;
    let shared = Arc::clone(&machine);
    let mut checks = within(LOOKING, "cpu", move || computing::host(&shared));
    let shared = Arc::clone(&machine);
    let devices = u32::try_from(machine.registry().iter().count()).unwrap_or(1);
    checks.extend(within(COMPUTING * devices, "gpu", move || computing::gpus(&shared, uses_gpus)));
    checks
}

/// Runs something on a thread of its own for at most so long. A thread that does not come back is left to the end
/// of the process.
fn limited<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        // Whoever waited may have given up.
        let _ = sender.send(work());
    });
    receiver.recv_timeout(limit).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => format!("there was no answer within {} s", limit.as_secs()),
        mpsc::RecvTimeoutError::Disconnected => {
            "the check itself failed; this is an error in Gantry, please report it".to_owned()
        }
    })
}

/// Runs a check under a limit; if that is passed, the check says so.
fn within(
    limit: Duration,
    name: &'static str,
    work: impl FnOnce() -> Vec<Check> + Send + 'static,
) -> Vec<Check> {
    limited(limit, work).unwrap_or_else(|why| vec![gave_up(name, &why)])
}

fn gave_up(name: &'static str, why: &str) -> Check {
    Check::broken(
        name,
        format!("This could not be looked at: {why}."),
        "A disk or a driver may hang. See what the system's log says of it.",
    )
}

/// The command to type next.
fn next_command(
    place: &Place,
    found: &Found,
    installs: &[installs::Install],
    checks: &[Check],
) -> (String, &'static str) {
    let asked = checks.iter().find(|check| check.name == "port").and_then(|check| check.facts.get("server"));
    let port = if asked.is_some_and(|server| !server.is_null()) {
        format!(" --port {}", place.port.checked_add(1).unwrap_or(8189))
    } else {
        String::new()
    };
    let here = environment::current_dir().is_ok_and(|dir| dir == place.base);
    let folder = |path: &Path| format!(" --comfy-dir {}", quoted(path));
    let elsewhere = installs.iter().find(|install| install.path != place.base && install.model_files > 0);
    match elsewhere {
        _ if found.is_complete() || !found.models.is_empty() => {
            let folder = if here { String::new() } else { folder(&place.base) };
            (format!("gantry serve{folder}{port}"), "serves the models that were found")
        }
        Some(install) => (
            format!("gantry serve{}{port}", folder(&install.path)),
            "serves the models of the ComfyUI install that was found",
        ),
        None => (
            "gantry demo \"a red circle above a blue square\"".to_owned(),
            "draws with the model that comes with the program",
        ),
    }
}

/// A path as a shell takes it.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |c: char| c.is_alphanumeric() || "/._-+:@~".contains(c);
    if text.chars().all(plain) { text } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_hangs_or_panics_is_told() {
        let slow = limited(Duration::from_millis(20), || std::thread::sleep(Duration::from_secs(5)));
        assert!(slow.unwrap_err().contains("no answer within"));
        let checks = within(LOOKING, "disk", || panic!("on purpose"));
        assert_eq!((checks[0].name, checks[0].status), ("disk", check::Status::DoesNotWork));
        assert!(checks[0].says.contains("please report"), "{}", checks[0].says);
    }

    #[test]
    fn paths_are_quoted_for_a_shell() {
        assert_eq!(quoted(Path::new("/home/a/ComfyUI")), "/home/a/ComfyUI");
        assert_eq!(quoted(Path::new("/my models/it's")), "'/my models/it'\\''s'");
    }
}
