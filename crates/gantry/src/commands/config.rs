//! `gantry config`: what is set outside of the command line, and which flags can be.

use std::process::ExitCode;

use anyhow::Result;
use clap::CommandFactory;
use serde_json::json;

use super::{print, print_json};
use crate::cli::{Cli, ConfigArgs};
use crate::environment;
use crate::settings::{self, Setting, Sources};
use crate::table::Table;

/// The flag whose value is nobody's business.
const SECRET: &str = "token";

pub(super) fn run(args: &ConfigArgs) -> Result<ExitCode> {
    if args.markdown {
        print(&markdown())?;
    } else if args.list {
        list(args.output.json)?;
    } else {
        show(args.output.json)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What is set, for which command, and where.
fn show(as_json: bool) -> Result<()> {
    let sources = Sources::read()?;
    let mut set: Vec<(Setting, Vec<String>)> = Vec::new();
    for command in Cli::command().get_subcommands() {
        for setting in sources.all_for(command.get_name())? {
            match set.iter_mut().find(|(known, _)| *known == setting) {
                Some((_, commands)) => commands.push(command.get_name().to_owned()),
                None => set.push((setting, vec![command.get_name().to_owned()])),
            }
        }
    }
    let usual = environment::config_file().map(|path| path.display().to_string());
    let file = sources.file().map(|path| path.display().to_string());
    let unknown = sources.unknown_variables();
    if as_json {
        let shown = set.iter().map(|(setting, commands)| {
            json!({ "flag": setting.flag, "value": value(setting), "from": setting.origin, "commands": commands })
        });
        return print_json(
            &json!({ "file": file, "usual_file": usual, "settings": shown.collect::<Vec<_>>(),
            "unknown_variables": unknown }),
        );
    }
    let mut text = match (&file, &usual) {
        (Some(file), _) => format!("the configuration file is {file}\n"),
        (None, Some(usual)) => format!("there is no configuration file; it would be {usual}\n"),
        (None, None) => "there is no configuration file; name one with GANTRY_CONFIG\n".to_owned(),
    };
    if set.is_empty() {
        text += "nothing is set outside of the command line; `gantry config --list` lists what can be\n";
    } else {
        let mut table = Table::new(&["flag", "value", "from", "commands"]);
        for (setting, commands) in &set {
            let flag = format!("--{}", setting.flag);
            table.row(&[&flag, &value(setting), &setting.origin, &commands.join(", ")]);
        }
        text += &format!("\n{table}");
    }
    for name in unknown {
        text += &format!("{name} is no variable of gantry: no flag is called so\n");
    }
    print(&text)
}

fn value(setting: &Setting) -> String {
    match setting.values.as_slice() {
        [] => "on".to_owned(),
        _ if setting.flag == SECRET => "***".to_owned(),
        values => values.join("; "),
    }
}

/// All flags.
fn list(as_json: bool) -> Result<()> {
    let rows = settings::table();
    if as_json {
        let shown = rows.iter().map(|row| {
            json!({ "flag": row.flag, "variable": row.variable, "commands": row.commands, "help": row.help })
        });
        return print_json(&shown.collect::<Vec<_>>());
    }
    let mut table = Table::new(&["flag", "variable", "commands"]);
    for row in &rows {
        table.row(&[&format!("--{}", row.flag), &row.variable, &row.commands.join(", ")]);
    }
    print(&table.to_string())
}

/// The table of the guide.
fn markdown() -> String {
    let everywhere = Cli::command().get_subcommands().count();
    let mut text = "| flag and key | variable | commands | what it says |\n|---|---|---|---|\n".to_owned();
    for row in settings::table() {
        let commands =
            if row.commands.len() == everywhere { "all".to_owned() } else { row.commands.join(", ") };
        let help = row.help.replace('|', "\\|").replace('<', "&lt;");
        text += &format!("| `--{}` | `{}` | {commands} | {help} |\n", row.flag, row.variable);
    }
    text
}
