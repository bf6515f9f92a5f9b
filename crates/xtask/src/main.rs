//! The project's own chores, run as `cargo xtask COMMAND`. A new command is a module with a `run`
//! function and one line in `COMMANDS`.
#![forbid(unsafe_code)]

mod bench_report;
mod conformance;
mod findings;
mod scan;
mod tidy;
mod workspace;

use std::process::ExitCode;

use anyhow::Result;

/// One chore: what the user types, what the help says about it, and the function that does it.
///
/// The function receives the arguments after the command's name. It returns the exit code for an
/// answer such as "tidy found something", and an error when it could not do its work at all.
struct Command {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<ExitCode>,
}

const COMMANDS: &[Command] = &[
    Command {
        name: "tidy",
        about: "check crate edges, unsafe code, file openings, names, sizes and the documents",
        run: tidy::run,
    },
    Command {
        name: "conformance",
        about: "write docs/CONFORMANCE.md from the self-tests in docs/results; --check compares",
        run: conformance::run,
    },
    Command {
        name: "bench-report",
        about: "write docs/BENCHMARKS.md and the README's numbers from the measurements in docs/results; --check compares",
        run: bench_report::run,
    },
];

/// The exit code for a command line that names no command we have, or names it wrongly.
const USAGE_ERROR: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(arguments: &[String]) -> Result<ExitCode> {
    let Some((name, rest)) = arguments.split_first() else {
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    };
    if ["help", "--help", "-h"].contains(&name.as_str()) {
        print!("{}", help());
        return Ok(ExitCode::SUCCESS);
    }
    match COMMANDS.iter().find(|command| command.name == name) {
        Some(command) => (command.run)(rest),
        None => {
            eprint!("error: there is no command `{name}`\n\n{}", help());
            Ok(ExitCode::from(USAGE_ERROR))
        }
    }
}

fn help() -> String {
    let width = COMMANDS.iter().map(|command| command.name.len()).max().unwrap_or(0);
    let mut text = String::from("Usage: cargo xtask COMMAND\n\nCommands:\n");
    for command in COMMANDS {
        text.push_str(&format!("  {:width$}  {}\n", command.name, command.about));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_lists_every_command() {
        let text = help();
        for command in COMMANDS {
            assert!(text.contains(command.name) && text.contains(command.about), "{text}");
        }
    }

    #[test]
    fn an_unknown_command_is_a_usage_error() {
        let code = dispatch(&["no-such-chore".to_owned()]).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::from(USAGE_ERROR)));
    }

    #[test]
    fn no_command_prints_help_and_succeeds() {
        let code = dispatch(&[]).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
    }
}
