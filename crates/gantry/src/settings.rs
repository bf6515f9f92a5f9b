//! Settings that are not on the command line: variables `GANTRY_…` and a configuration file. Both come from the
//! definition of the command line, so that every flag has its variable and its key, and a new flag has them at once.
//!
//! A setting becomes the flag that it stands for, right behind the command's name, unless the command line has that
//! flag or one that excludes it. So it is read, checked and told exactly as the flag is.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::{Table, Value};

use crate::cli::Cli;
use crate::environment;

/// How variables begin.
pub(crate) const PREFIX: &str = "GANTRY_";
/// The variable that names the configuration file.
pub(crate) const FILE_VARIABLE: &str = "GANTRY_CONFIG";
/// Variables that are no flags: the program, its build and its installer read them.
const OTHER_VARIABLES: [&str; 7] = [
    FILE_VARIABLE,
    "GANTRY_CACHE_DIR",
    "GANTRY_COMMIT",
    "GANTRY_NVRTC_ROOT",
    "GANTRY_PREFIX",
    "GANTRY_RELEASES",
    "GANTRY_VERSION",
];
/// Between the values of a repeatable flag in a variable.
const SEPARATOR: char = ';';

/// What is said outside of the command line.
pub(crate) struct Sources {
    variables: Vec<(String, String)>,
    file: Option<(PathBuf, Table)>,
}

/// A flag as it is set from outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Setting {
    /// The flag's long name, without its dashes.
    pub(crate) flag: String,
    /// Its id among the command's arguments.
    id: String,
    /// Its values; none for a flag that takes none.
    pub(crate) values: Vec<String>,
    /// Where it is said, for people.
    pub(crate) origin: String,
}

/// A flag, and what it is called elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) flag: String,
    pub(crate) variable: String,
    pub(crate) commands: Vec<String>,
    pub(crate) help: String,
}

/// What stops the program before a command runs.
pub(crate) enum Stop {
    /// The command line is wrong, or asks for help; with where settings are from that it may be about.
    Usage(clap::Error, Vec<String>),
    /// A setting cannot be read.
    Settings(anyhow::Error),
}

/// The command line, with what is set elsewhere.
pub(crate) fn parse(args: &[OsString], sources: impl FnOnce() -> Result<Sources>) -> Result<Cli, Stop> {
    let command = Cli::command();
    let usage = |error| Stop::Usage(error, Vec::new());
    let as_written = command.clone().ignore_errors(true).try_get_matches_from(args);
    // Help and the version are shown whatever is set.
    let Some((name, given)) = as_written.ok().and_then(|mut matches| matches.remove_subcommand()) else {
        return read(command, args).map_err(usage);
    };
    let sources = sources().map_err(Stop::Settings)?;
    let settings = sources.settings(&command, &name, &given).map_err(Stop::Settings)?;
    let mut whole = args.to_vec();
    let at = place_of(&command, args, &name);
    whole.splice(at..at, settings.iter().flat_map(Setting::to_args));
    read(command, &whole).map_err(|error| {
        let text = error.to_string();
        let is_meant = |setting: &&Setting| text.contains(&format!("--{}", setting.flag));
        let notes = settings.iter().filter(is_meant);
        let notes = notes.map(|setting| format!("--{} is set by {}", setting.flag, setting.origin)).collect();
        Stop::Usage(error, notes)
    })
}

fn read(command: Command, args: &[OsString]) -> Result<Cli, clap::Error> {
    Cli::from_arg_matches(&command.try_get_matches_from(args)?)
}

impl Stop {
    /// Tells it and ends the process, as clap does.
    pub(crate) fn exit(self) -> ! {
        match self {
            Stop::Usage(error, notes) => {
                // A terminal that is gone does not change the exit status.
                let _ = error.print();
                notes.iter().for_each(|note| crate::commands::tell(&format!("note: {note}\n")));
                let is_asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
                std::process::exit(if is_asked { 0 } else { 2 })
            }
            Stop::Settings(error) => {
                crate::commands::tell(&format!("{}\n", crate::told(&error)));
                std::process::exit(2)
            }
        }
    }
}

impl Sources {
    /// The variables of this process, and the file that it is to read, if there is one.
    pub(crate) fn read() -> Result<Sources> {
        let variables = environment::variables_with(PREFIX);
        let file = match variables.iter().find(|(name, _)| name == FILE_VARIABLE) {
            Some((_, path)) if path.is_empty() => None,
            Some((_, path)) => Some(read_file(Path::new(path)).context(FILE_VARIABLE)?),
            None => match environment::config_file().filter(|path| path.is_file()) {
                Some(path) => Some(read_file(&path)?),
                None => None,
            },
        };
        Ok(Sources { variables, file })
    }

    /// The file that was read.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_ref().map(|(path, _)| path.as_path())
    }

    /// Variables that look as if they were ours and are not.
    pub(crate) fn unknown_variables(&self) -> Vec<&str> {
        let rows = table();
        let is_known =
            |name: &str| OTHER_VARIABLES.contains(&name) || rows.iter().any(|row| row.variable == name);
        self.variables.iter().map(|(name, _)| name.as_str()).filter(|name| !is_known(name)).collect()
    }

    /// What is set for a command and not said on its command line.
    fn settings(&self, root: &Command, name: &str, given: &ArgMatches) -> Result<Vec<Setting>> {
        self.check_names(root)?;
        let explicit =
            given.ids().filter(|id| given.value_source(id.as_str()) == Some(ValueSource::CommandLine));
        let mut taken: Vec<String> = explicit.map(|id| id.as_str().to_owned()).collect();
        let flags = flags_of(root, name);
        let mut settings: Vec<Setting> = Vec::new();
        for level in [Sources::of_variables, Sources::of_command, Sources::of_all] {
            let mut found = Vec::new();
            for (owner, flag) in &flags {
                let id = flag.get_id().as_str();
                let is_free = !taken.iter().any(|other| other == id || excludes(owner, id, other));
                if let Some(setting) = level(self, name, flag)?.filter(|_| is_free) {
                    found.push(setting);
                }
            }
            // What one level says excludes what a lower one does, but not itself: that is for clap to refuse.
            taken.extend(found.iter().map(|setting| setting.id.clone()));
            settings.extend(found);
        }
        // A flag that is switched off in a higher level has taken its place there.
        settings.retain(|setting| setting.values != [OFF]);
        Ok(settings)
    }

    /// Everything that is set for a command, whatever its command line says.
    pub(crate) fn all_for(&self, name: &str) -> Result<Vec<Setting>> {
        self.settings(&Cli::command(), name, &ArgMatches::default())
    }

    fn of_variables(&self, _: &str, flag: &Arg) -> Result<Option<Setting>> {
        for long in names_of(flag) {
            let variable = variable_of(long);
            let found = self.variables.iter().find(|(name, text)| *name == variable && !text.is_empty());
            let Some((_, text)) = found else { continue };
            let value =
                match flag.get_action() {
                    ArgAction::SetTrue => Value::Boolean(switch(text).with_context(|| {
                        format!("{variable}={text}: this flag is on or off: write 1 or 0")
                    })?),
                    ArgAction::Append => {
                        let parts = text.split(SEPARATOR).map(str::trim).filter(|part| !part.is_empty());
                        Value::Array(parts.map(|part| Value::String(part.to_owned())).collect())
                    }
                    _ => Value::String(text.clone()),
                };
            return setting(flag, &value, variable).map(Some);
        }
        Ok(None)
    }

    fn of_command(&self, name: &str, flag: &Arg) -> Result<Option<Setting>> {
        let Some((path, table)) = &self.file else { return Ok(None) };
        match table.get(name) {
            Some(Value::Table(table)) => in_table(table, flag, &format!("[{name}] in {}", path.display())),
            _ => Ok(None),
        }
    }

    fn of_all(&self, _: &str, flag: &Arg) -> Result<Option<Setting>> {
        let Some((path, table)) = &self.file else { return Ok(None) };
        in_table(table, flag, &path.display().to_string())
    }

    /// A key that means nothing would be passed over without a word.
    fn check_names(&self, root: &Command) -> Result<()> {
        let Some((path, table)) = &self.file else { return Ok(()) };
        let path = path.display();
        let knows = |command: &str, key: &str| {
            flags_of(root, command).iter().any(|(_, flag)| names_of(flag).any(|name| name == key))
        };
        for (key, value) in table {
            if let Value::Table(inner) = value {
                ensure!(root.find_subcommand(key).is_some(), "{path}: there is no command \"{key}\"");
                if let Some(wrong) = inner.keys().find(|inner| !knows(key, inner)) {
                    bail!("{path}: gantry {key} has no flag --{wrong}; `gantry config --list` lists them");
                }
                continue;
            }
            let is_known = root.get_subcommands().any(|command| knows(command.get_name(), key));
            ensure!(is_known, "{path}: no command has a flag --{key}; `gantry config --list` lists them");
        }
        Ok(())
    }
}

impl Setting {
    fn to_args(&self) -> Vec<OsString> {
        if self.values.is_empty() {
            return vec![format!("--{}", self.flag).into()];
        }
        self.values.iter().map(|value| format!("--{}={value}", self.flag).into()).collect()
    }
}

/// All flags of all commands by their names, with their variables.
pub(crate) fn table() -> Vec<Row> {
    let root = Cli::command();
    let mut rows: Vec<Row> = Vec::new();
    for command in root.get_subcommands().filter(|command| !command.is_hide_set()) {
        for (_, flag) in flags_of(&root, command.get_name()) {
            let long = flag.get_long().unwrap_or_default();
            let name = command.get_name().to_owned();
            match rows.iter_mut().find(|row| row.flag == long) {
                Some(row) => row.commands.push(name),
                None => rows.push(Row {
                    flag: long.to_owned(),
                    variable: variable_of(long),
                    commands: vec![name],
                    help: flag.get_help().map(ToString::to_string).unwrap_or_default(),
                }),
            }
        }
    }
    rows.sort_by(|a, b| a.flag.cmp(&b.flag));
    rows
}

/// The variable of a flag.
fn variable_of(flag: &str) -> String {
    format!("{PREFIX}{}", flag.to_ascii_uppercase().replace('-', "_"))
}

/// The flags that a command takes, each with the command that defines it.
fn flags_of<'a>(root: &'a Command, name: &str) -> Vec<(&'a Command, &'a Arg)> {
    let own = root.find_subcommand(name).into_iter();
    let all = own.flat_map(|command| command.get_arguments().map(move |flag| (command, flag)));
    let global = root.get_arguments().filter(|flag| flag.is_global_set()).map(|flag| (root, flag));
    let is_flag = |flag: &Arg| {
        let is_own = !["help", "version"].contains(&flag.get_id().as_str());
        flag.get_long().is_some() && is_own && !flag.is_hide_set()
    };
    all.chain(global).filter(|(_, flag)| is_flag(flag)).collect()
}

/// A flag's long name, and the others that people see.
fn names_of(flag: &Arg) -> impl Iterator<Item = &str> {
    flag.get_long().into_iter().chain(flag.get_visible_aliases().unwrap_or_default())
}

/// Whether two arguments of a command cannot stand together.
fn excludes(command: &Command, one: &str, other: &str) -> bool {
    let find = |id: &str| command.get_arguments().find(|flag| flag.get_id() == id);
    let (Some(first), Some(second)) = (find(one), find(other)) else { return false };
    let names = |from: &Arg, to: &str| {
        command.get_arg_conflicts_with(from).iter().any(|conflict| conflict.get_id() == to)
    };
    let of_group = command.get_groups().any(|group| {
        let has = |id: &str| group.get_args().any(|member| member == id);
        !group.clone().is_multiple() && has(one) && has(other)
    });
    names(first, other) || names(second, one) || of_group
}

/// The value of a flag that is switched off, which takes the place of what lower levels say.
const OFF: &str = "\0off";

fn in_table(table: &Table, flag: &Arg, place: &str) -> Result<Option<Setting>> {
    for name in names_of(flag) {
        if let Some(value) = table.get(name).filter(|value| !value.is_table()) {
            return setting(flag, value, format!("\"{name}\" of {place}")).map(Some);
        }
    }
    Ok(None)
}

/// A value becomes what the flag takes.
fn setting(flag: &Arg, value: &Value, origin: String) -> Result<Setting> {
    let values = match (flag.get_action(), value) {
        (ArgAction::SetTrue, Value::Boolean(true)) => Vec::new(),
        (ArgAction::SetTrue, Value::Boolean(false)) => vec![OFF.to_owned()],
        (ArgAction::SetTrue, _) => bail!("{origin}: write true or false"),
        (ArgAction::Append, Value::Array(list)) => {
            list.iter().map(|value| plain(value).with_context(|| origin.clone())).collect::<Result<_>>()?
        }
        (_, value) => vec![plain(value).with_context(|| origin.clone())?],
    };
    let flag_name = flag.get_long().unwrap_or_default().to_owned();
    Ok(Setting { flag: flag_name, id: flag.get_id().as_str().to_owned(), values, origin })
}

/// A text or number as it would be written on the command line.
fn plain(value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => bail!("write a text or a number"),
    }
}

fn switch(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some(true),
        "0" | "false" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn read_file(path: &Path) -> Result<(PathBuf, Table)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    let table = text.parse().with_context(|| format!("{} is no TOML", path.display()))?;
    Ok((path.to_owned(), table))
}

/// Where the command's name stands; settings go behind it.
fn place_of(root: &Command, args: &[OsString], name: &str) -> usize {
    let takes_value = |text: &str| {
        let flag = root.get_arguments().find(|flag| flag.get_long() == text.strip_prefix("--"));
        flag.is_some_and(|flag| flag.get_action().takes_values())
    };
    let mut at = 1;
    while at < args.len() {
        let text = args[at].to_string_lossy();
        if text == name {
            return at + 1;
        }
        at += 1 + usize::from(takes_value(&text));
    }
    args.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli;

    fn sources(variables: &[(&str, &str)], file: &str) -> Sources {
        let variables = variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
        let table: Table = file.parse().unwrap();
        Sources { variables: variables.collect(), file: Some((PathBuf::from("config.toml"), table)) }
    }

    fn line(words: &str) -> Vec<OsString> {
        words.split_whitespace().map(OsString::from).collect()
    }

    fn serve(words: &str, variables: &[(&str, &str)], file: &str) -> Box<cli::ServeArgs> {
        let cli = parse(&line(words), || Ok(sources(variables, file)));
        match cli.map(|cli| cli.command) {
            Ok(cli::Command::Serve(args)) => args,
            Ok(_) => panic!("another command"),
            Err(stop) => panic!("{}", told(stop)),
        }
    }

    fn told(stop: Stop) -> String {
        match stop {
            Stop::Usage(error, notes) => format!("{error}{}", notes.join("\n")),
            Stop::Settings(error) => crate::told(&error),
        }
    }

    fn refused(words: &str, variables: &[(&str, &str)], file: &str) -> String {
        match parse(&line(words), || Ok(sources(variables, file))) {
            Ok(_) => panic!("{words} is taken"),
            Err(stop) => told(stop),
        }
    }

    #[test]
    fn the_command_line_goes_before_a_variable_and_that_before_the_file() {
        let file = "port = 1\npreview-size = 5\n[serve]\nport = 2\nmax-upload-size = 7.5";
        let args = serve("gantry serve", &[], file);
        assert_eq!((args.port, args.jobs.preview_size, args.max_upload_size), (2, 5, 7.5));
        assert_eq!(serve("gantry serve", &[("GANTRY_PORT", "3")], file).port, 3);
        assert_eq!(serve("gantry serve --port 4", &[("GANTRY_PORT", "3")], file).port, 4);
        assert_eq!(serve("gantry serve", &[("GANTRY_PORT", "")], file).port, 2, "an empty one is none");
    }

    #[test]
    fn switches_lists_and_other_names_are_taken() {
        let args = serve("gantry serve", &[("GANTRY_NO_TOKEN", "yes")], "allow-host = ['a', 'b']");
        assert!(args.no_token);
        assert_eq!(args.allow_host, ["a", "b"]);
        let args = serve("gantry serve", &[("GANTRY_ALLOW_HOST", "c; d")], "allow-host = ['a', 'b']");
        assert_eq!(args.allow_host, ["c", "d"]);
        let args = serve("gantry serve --allow-host e", &[("GANTRY_ALLOW_HOST", "c")], "");
        assert_eq!(args.allow_host, ["e"]);
        let off = [("GANTRY_OFFLINE", "0")];
        assert!(!serve("gantry serve", &off, "offline = true").disable_api_nodes);
        assert!(serve("gantry serve", &[], "offline = true").disable_api_nodes);
        let args = serve("gantry serve", &[("GANTRY_COMFY_DIR", "/models of mine")], "");
        assert_eq!(args.folders.base_directory.as_deref(), Some(Path::new("/models of mine")));
    }

    #[test]
    fn what_the_command_line_says_ends_what_excludes_it() {
        let file = "cache-lru = 5\ntoken-file = 'f'";
        let args = serve("gantry serve --cache-none", &[("GANTRY_TOKEN", "s")], file);
        assert!(args.cache.cache_none && args.cache.cache_lru.is_none());
        assert_eq!(
            args.token.read().unwrap().as_deref(),
            Some("s"),
            "the variable, not the file's token-file"
        );
        let both = refused("gantry serve", &[], "cache-lru = 5\ncache-none = true");
        assert!(both.contains("cannot be used with") && both.contains("of config.toml"), "{both}");
    }

    #[test]
    fn global_flags_stand_before_or_behind_the_command() {
        let cli = |words: &str, file: &str| {
            let parsed = parse(&line(words), || Ok(sources(&[], file)));
            parsed.map_err(told).unwrap()
        };
        assert!(cli("gantry devices", "cpu = true").machine.cpu);
        let file = "sim-device = ['1gb@2gbps', '2gb@2gbps']";
        assert_eq!(cli("gantry --cpu devices", file).machine.sim_device.len(), 2);
        assert_eq!(cli("gantry --sim-device 8gb@1gbps devices", file).machine.sim_device.len(), 1);
        assert_eq!(cli("gantry devices --sim-device 8gb@1gbps", file).machine.sim_device.len(), 1);
    }

    #[test]
    fn what_is_required_may_be_set() {
        let cli = parse(&line("gantry draw fox"), || Ok(sources(&[("GANTRY_MODEL", "m.gguf")], "")));
        match cli.map_err(told).unwrap().command {
            cli::Command::Draw(args) => assert_eq!(args.model, PathBuf::from("m.gguf")),
            _ => panic!("another command"),
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let text = refused("gantry serve", &[("GANTRY_PORT", "high")], "");
        assert!(text.contains("'high'") && text.contains("--port is set by GANTRY_PORT"), "{text}");
        let text = refused("gantry serve", &[("GANTRY_NO_TOKEN", "maybe")], "");
        assert!(text.contains("GANTRY_NO_TOKEN=maybe") && text.contains("1 or 0"), "{text}");
        let text = refused("gantry serve", &[], "prot = 1");
        assert!(text.contains("config.toml: no command has a flag --prot"), "{text}");
        let text = refused("gantry serve", &[], "[demo]\nport = 1");
        assert!(text.contains("gantry demo has no flag --port"), "{text}");
        let text = refused("gantry serve", &[], "[demos]\nport = 1");
        assert!(text.contains("no command \"demos\""), "{text}");
        let text = refused("gantry serve", &[], "no-token = 1");
        assert!(text.contains("write true or false"), "{text}");
    }

    #[test]
    fn every_flag_has_a_variable_of_its_own_and_unknown_ones_are_found() {
        let rows = table();
        assert!(rows.len() > 60, "{}", rows.len());
        let mut variables: Vec<&str> = rows.iter().map(|row| row.variable.as_str()).collect();
        variables.dedup();
        assert_eq!(variables.len(), rows.len());
        assert!(
            rows.iter().all(|row| !OTHER_VARIABLES.contains(&row.variable.as_str()) && !row.help.is_empty())
        );
        let sources = sources(&[("GANTRY_PORT", "1"), ("GANTRY_PROT", "1"), ("GANTRY_CACHE_DIR", "x")], "");
        assert_eq!(sources.unknown_variables(), ["GANTRY_PROT"]);
    }
}
