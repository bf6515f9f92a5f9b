//! `gantry list`: the model files that are here, and what each is, by its header alone.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use checkpoint::Checkpoint;
use meta::ByteSize;
use models::detect::detect;
use runtime::Folders;
use serde::Serialize;

use super::{print, print_json};
use crate::cli::ListArgs;
use crate::serving;
use crate::table::Table;

/// A model file.
#[derive(Serialize)]
struct ModelFile {
    name: String,
    /// The kind of folder that it lies in.
    folder: String,
    bytes: u64,
    /// What it is, or why it cannot be opened.
    what: String,
    path: String,
}

pub(super) fn run(args: &ListArgs) -> Result<ExitCode> {
    let folders = serving::folders(&args.folders)?;
    let files = files(&folders, args.text.as_deref().unwrap_or_default());
    if args.output.json {
        print_json(&files)?;
        return Ok(ExitCode::SUCCESS);
    }
    if files.is_empty() {
        let places = folders.places("diffusion_models").first().and_then(|place| place.parent());
        let place = places.map_or_else(|| "models".to_owned(), |place| place.display().to_string());
        print(&format!("no model files in {place}; `gantry pull --list` names some to get\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["name", "folder", "size", "what it is"]);
    for file in &files {
        table.row(&[&file.name, &file.folder, &ByteSize(file.bytes).to_string(), &file.what]);
    }
    let all = ByteSize(files.iter().map(|file| file.bytes).sum());
    let count = files.len();
    print(&format!("{table}\n{count} file{}, {all}\n", if count == 1 { "" } else { "s" }))?;
    Ok(ExitCode::SUCCESS)
}

/// The files of all kinds whose names contain a text, each once: kinds may share a folder.
fn files(folders: &Folders, text: &str) -> Vec<ModelFile> {
    let mut seen = BTreeSet::new();
    let mut files = Vec::new();
    let mut keys: Vec<&str> = folders.keys().collect();
    keys.sort_unstable();
    for key in keys {
        for name in folders.listing(key).iter().filter(|name| name.contains(text)) {
            let Some(path) = folders.find(key, name) else { continue };
            if seen.insert(path.clone()) {
                let bytes = std::fs::metadata(&path).map_or(0, |data| data.len());
                let what = Checkpoint::open(&path)
                    .map_or_else(|error| error.to_string(), |file| detect(&file).seems());
                let (folder, path) = (key.to_owned(), path.display().to_string());
                files.push(ModelFile { name: name.clone(), folder, bytes, what, path });
            }
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_listed_once_with_what_it_is() {
        let dir = testkit::ScratchDir::new().unwrap();
        let place = |name: &str| {
            let path = dir.path().join("models").join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            path
        };
        for (folder, name, bytes) in crate::demo_model::FILES {
            let folder = if folder == "unet_gguf" { "diffusion_models" } else { folder };
            std::fs::write(place(&format!("{folder}/{name}")), bytes).unwrap();
        }
        std::fs::write(place("loras/page.safetensors"), "<html>").unwrap();
        let found = files(&Folders::at(dir.path()), "");
        assert_eq!(found.len(), crate::demo_model::FILES.len() + 1);
        let one = |name: &str| found.iter().find(|file| file.name == name).unwrap();
        let model = one(crate::demo_model::DIFFUSION_NAME);
        assert!(
            model.what.contains("diffusion model") && model.folder == "diffusion_models",
            "{}",
            model.what
        );
        assert!(model.bytes > 0);
        assert!(!one("page.safetensors").what.is_empty());
        assert_eq!(files(&Folders::at(dir.path()), "page").len(), 1);
    }
}
