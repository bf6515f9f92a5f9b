//! `gantry pull`: model files from the hub into the folders where loaders look for them.

mod fitting;

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use hub::{Address, Fetched, Hub, Remote, Watch};
use indicatif::ProgressBar;
use meta::ByteSize;
use models::downloads::{self, DownloadSet};
use runtime::Folders;
use serde_json::{Value, json};

use super::{print, print_json, tell};
use crate::bars::Bars;
use crate::cli::{MachineArgs, PullArgs};
use crate::machine::Machine;
use crate::table::Table;
use crate::{environment, host, running, serving, workflow_file};
use fitting::Fitting;

/// A file that is wanted, and where it goes.
struct Wanted {
    address: Address,
    /// The kind of folder that it goes into.
    kind: String,
    path: PathBuf,
}

pub(super) fn run(machine: &MachineArgs, args: &PullArgs) -> Result<ExitCode> {
    if args.list {
        return list(args.output.json);
    }
    let folders = serving::folders(&args.folders)?;
    let mut wanted: Vec<Wanted> = Vec::new();
    for text in &args.wanted {
        for file in files_of(text, args.into.as_deref(), &folders)? {
            if !wanted.iter().any(|known| known.path == file.path) {
                wanted.push(file);
            }
        }
    }
    running::on_interrupt("the same command goes on where this one was", || ());
    let hub = Hub::new(environment::variable("HF_ENDPOINT"), environment::variable("HF_TOKEN"));
    let mut told = Vec::new();
    let mut failures = 0;
    let fitting = Fitting::on(&Machine::open(machine)?, &folders)?;
    for file in &wanted {
        match pull(&hub, file, &fitting, args.dry_run) {
            Ok(value) => {
                if !args.output.json {
                    print(&format!("{}\n", line(&value)))?;
                }
                told.push(value);
            }
            Err(error) => {
                failures += 1;
                tell(&format!("{}\n", crate::told(&error)));
                told.push(json!({ "path": file.path, "address": file.address.to_string(), "error": error.to_string() }));
            }
        }
    }
    if args.output.json {
        print_json(&told)?;
    }
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints the short names.
fn list(as_json: bool) -> Result<ExitCode> {
    if as_json {
        let set = |set: &DownloadSet| {
            let file = |file: &downloads::Download| json!({ "address": file.address, "folder": file.folder });
            let files: Vec<Value> = set.files.iter().map(file).collect();
            json!({ "name": set.name, "title": set.title, "licence": set.licence, "files": files })
        };
        print_json(&downloads::all().map(set).collect::<Vec<_>>())?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["name", "what", "licence", "files"]);
    for set in downloads::all() {
        table.row(&[set.name, set.title, set.licence, &set.files.len().to_string()]);
    }
    print(&format!(
        "{table}\n`gantry pull NAME --dry-run` says how large they are, where they go and how they would fit here\n"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// The files of a short name, an address or a workflow.
fn files_of(text: &str, into: Option<&str>, folders: &Folders) -> Result<Vec<Wanted>> {
    if let Some(set) = downloads::all().find(|set| set.name == text) {
        let file = |file: &downloads::Download| {
            let address: Address = file.address.parse()?;
            let name = address.file_name().context("a file without a name")?.to_owned();
            placed(address, file.folder, &name, folders)
        };
        return set.files.iter().map(file).collect();
    }
    if text.starts_with("hf:") || text.contains("://") {
        let address: Address = text.parse()?;
        let kind = match into {
            Some(kind) => kind.to_owned(),
            None => kind_of(text, folders).with_context(|| {
                format!("{text}: say which kind of folder it goes into with --into, such as --into loras")
            })?,
        };
        let name = address
            .file_name()
            .with_context(|| format!("{text}: this address does not name a file"))?
            .to_owned();
        return Ok(vec![placed(address, &kind, &name, folders)?]);
    }
    ensure!(
        Path::new(text).exists(),
        "{text}: there is no such short name (see `gantry pull --list`) and no such workflow file; addresses begin with hf: or https://"
    );
    let models = workflow::wanted_models(&workflow_file::read(Path::new(text))?);
    ensure!(
        !models.is_empty(),
        "{text} names no model files with their addresses; published templates in the editor's format do"
    );
    models
        .into_iter()
        .map(|model| placed(model.url.parse()?, &model.directory, &model.name, folders))
        .collect()
}

/// The kind of folder that a part of an address names.
fn kind_of(address: &str, folders: &Folders) -> Option<String> {
    let mut parts = address.split('/').rev().skip(1);
    parts.find(|part| folders.keys().any(|key| key == *part)).map(str::to_owned)
}

/// Where a file goes: into the first folder of its kind, and nowhere else.
fn placed(address: Address, kind: &str, name: &str, folders: &Folders) -> Result<Wanted> {
    let Some(folder) = folders.places(kind).first() else {
        let kinds: Vec<&str> = folders.keys().collect();
        bail!("{address}: there is no kind of folder \"{kind}\"; there are {}", kinds.join(", "));
    };
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    ensure!(
        is_plain && !name.is_empty(),
        "{address}: \"{name}\" is no name for a file below {}",
        folder.display()
    );
    Ok(Wanted { address, kind: kind.to_owned(), path: folder.join(name) })
}

/// Fetches a file, or only looks at it.
fn pull(hub: &Hub, file: &Wanted, fitting: &Fitting, dry_run: bool) -> Result<Value> {
    let remote = hub.look(&file.address)?;
    let fits = fitting.of(hub, file, &remote);
    if let (Some(fits), false) = (&fits, dry_run) {
        tell(&format!("{}: {fits}\n", file.address));
    }
    let state = if dry_run {
        let is_there = std::fs::metadata(&file.path).is_ok_and(|there| Some(there.len()) == remote.bytes);
        if is_there { "there" } else { "missing" }
    } else {
        match fetch(hub, file, &remote)? {
            Fetched::New => "fetched",
            Fetched::There => "there",
        }
    };
    Ok(json!({
        "path": file.path,
        "address": file.address.to_string(),
        "bytes": remote.bytes,
        "sha256": remote.sha256,
        "state": state,
        "fits": fits,
    }))
}

fn fetch(hub: &Hub, file: &Wanted, remote: &Remote) -> Result<Fetched> {
    let name = file.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bar = Bars::default().bytes(&name, remote.bytes.unwrap_or(0));
    let fetched = hub.fetch(&file.address, remote, &file.path, &Shown { bar: bar.clone() });
    bar.finish_and_clear();
    Ok(fetched?)
}

/// A file on its way, on the terminal.
struct Shown {
    bar: ProgressBar,
}

impl Watch for Shown {
    fn at(&self, bytes: u64) {
        self.bar.set_position(bytes);
    }

    fn is_wanted(&self) -> bool {
        true
    }

    fn free_space(&self, folder: &Path) -> Option<u64> {
        host::free_space(folder)
    }
}

/// What became of a file, in a line.
fn line(value: &Value) -> String {
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let size = value["bytes"]
        .as_u64()
        .map_or_else(|| "unknown size".to_owned(), |bytes| ByteSize(bytes).to_string());
    let fits = value["fits"].as_str().map_or_else(String::new, |fits| format!("\n  {fits}"));
    format!("{}: {} ({size}){fits}", text("state"), text("path"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_go_where_loaders_look_and_nowhere_else() {
        let dir = testkit::ScratchDir::new().unwrap();
        let folders = Folders::at(dir.path());
        let vae = dir.path().join("models/vae");
        let found = files_of("hf:a/b/split_files/vae/ae.safetensors", None, &folders).unwrap();
        assert_eq!(found[0].path, vae.join("ae.safetensors"));
        let found = files_of("hf:a/b/x.safetensors", Some("loras"), &folders).unwrap();
        assert_eq!(found[0].path, dir.path().join("models/loras/x.safetensors"));
        for (text, into, words) in [
            ("hf:a/b/x.safetensors", None, "--into loras"),
            ("hf:a/b/x.safetensors", Some("nonsense"), "there is no kind of folder \"nonsense\""),
            ("no-such-name", None, "gantry pull --list"),
            ("https://x.org/api/download/1", Some("loras"), "does not name a file"),
        ] {
            let error = files_of(text, into, &folders).map(|_| ()).unwrap_err();
            assert!(crate::told(&error).contains(words), "{text}: {error:#}");
        }
        let address: Address = "hf:a/b/x.safetensors".parse().unwrap();
        for name in ["../x", "/etc/x", "a/../../x", ""] {
            assert!(placed(address.clone(), "vae", name, &folders).is_err(), "{name}");
        }
        assert_eq!(
            placed(address, "vae", "sub/x.safetensors", &folders).unwrap().path,
            vae.join("sub/x.safetensors")
        );
    }

    #[test]
    fn every_short_name_has_folders_for_its_files() {
        let dir = testkit::ScratchDir::new().unwrap();
        for set in downloads::all() {
            assert_eq!(
                files_of(set.name, None, &Folders::at(dir.path())).unwrap().len(),
                set.files.len(),
                "{}",
                set.name
            );
        }
    }
}
