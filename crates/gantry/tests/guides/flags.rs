//! The flags that the program has, read from its own help, and the check that a text names no others.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The flags of each command, and the words that can follow `bench`.
pub(crate) struct Flags {
    commands: BTreeMap<String, BTreeSet<String>>,
}

impl Flags {
    /// Asks the program.
    pub(crate) fn of_program() -> Flags {
        let help = |words: &[&str]| {
            let output =
                Command::new(env!("CARGO_BIN_EXE_gantry")).args(words).arg("--help").output().unwrap();
            assert!(output.status.success(), "gantry {words:?} --help fails");
            String::from_utf8(output.stdout).unwrap()
        };
        let top = help(&[]);
        let listed = top.split("Commands:").nth(1).unwrap().split("\n\n").next().unwrap();
        let names = listed.lines().filter_map(|line| line.split_whitespace().next());
        let names: Vec<&str> = names.filter(|name| *name != "help").collect();
        let commands = names.iter().map(|name| ((*name).to_owned(), flags_in(&help(&[name])))).collect();
        Flags { commands }
    }

    /// Whether any command has the flag.
    pub(crate) fn known(&self, flag: &str) -> bool {
        self.commands.values().any(|flags| flags.contains(flag))
    }

    /// What is wrong with a command, if anything: the words after `gantry`.
    pub(crate) fn fault(&self, words: &[&str]) -> Option<String> {
        let Some(name) = words.iter().find(|word| !word.starts_with('-')) else {
            let flag = words.iter().find(|word| !["--help", "--version"].contains(word))?;
            return Some(format!("gantry has no flag {flag}"));
        };
        let Some(flags) = self.commands.get(*name) else {
            return Some(format!("there is no command gantry {name}"));
        };
        let named = words.iter().filter(|word| word.starts_with('-') && word.len() > 1);
        let bare = named.map(|word| word.split('=').next().unwrap_or(word));
        let unknown = bare.filter(|flag| flag.parse::<f64>().is_err()).find(|flag| !flags.contains(*flag));
        unknown.map(|flag| format!("gantry {name} has no flag {flag}"))
    }
}

/// The flags that a help text lists, aliases included.
fn flags_in(help: &str) -> BTreeSet<String> {
    let is_flag = |word: &&str| word.starts_with('-') && word.len() > 1 && *word != "--";
    let words = help.split(|c: char| c.is_whitespace() || ",[]()".contains(c));
    words.filter(is_flag).map(|word| word.trim_end_matches(['.', ':', ';']).to_owned()).collect()
}

#[test]
fn a_flag_that_does_not_exist_is_found() {
    let flags = Flags::of_program();
    assert_eq!(flags.fault(&["plan", "f", "--virtual-vram-gb", "4", "--donor", "cpu"]), None);
    assert_eq!(flags.fault(&["--cpu", "plan", "f", "--picture=x.svg"]), None);
    assert_eq!(flags.fault(&["demo", "--outline", "-1"]), None);
    let fault = flags.fault(&["plan", "f", "--virtual-ram", "4"]).unwrap();
    assert_eq!(fault, "gantry plan has no flag --virtual-ram");
    assert!(flags.fault(&["demo", "--donor", "cpu"]).is_some(), "a flag of another command");
    assert_eq!(flags.fault(&["draws", "x"]).unwrap(), "there is no command gantry draws");
    assert!(flags.known("--comfy-dir") && !flags.known("--comfy-folder"));
}
