//! `extra_model_paths.yaml`: more model folders, such as those of another program.

use std::fs;
use std::path::{Path, PathBuf};

use saphyr::{LoadableYamlNode, Yaml};

use super::{Folders, absolute, normalized};
use crate::{Error, Result};

impl Folders {
    /// Adds the folders that a file names. Every section may have `base_path` and `is_default`; each other key is a
    /// kind of model with one path per line. `~` and `$VAR` in a base path are looked up with `variable`.
    ///
    /// # Errors
    /// The file cannot be read, or does not have that shape.
    pub fn add_extra_paths(&mut self, file: &Path, variable: &dyn Fn(&str) -> Option<String>) -> Result<()> {
        let text = fs::read_to_string(file).map_err(|source| Error::Io { path: file.to_owned(), source })?;
        let told = |what: String| Error::Told(format!("{}: {what}", file.display()));
        let documents = Yaml::load_from_str(&text).map_err(|error| told(error.to_string()))?;
        let Some(sections) = documents.first().filter(|document| !document.is_null()) else { return Ok(()) };
        let shape = "it must have sections, each with lines such as `checkpoints: models/checkpoints`";
        let sections = sections.as_mapping().ok_or_else(|| told(shape.to_owned()))?;
        let folder = absolute(file.parent().unwrap_or_else(|| Path::new("")));
        for (name, section) in sections.iter().filter(|(_, section)| !section.is_null()) {
            let name = name.as_str().unwrap_or_default();
            let section = Section::read(section, &folder, variable);
            let section = section.map_err(|what| told(format!("section \"{name}\": {what}")))?;
            for (key, place) in section.places {
                self.add_place(&key, &place, section.is_default);
            }
        }
        Ok(())
    }
}

struct Section {
    is_default: bool,
    places: Vec<(String, PathBuf)>,
}

impl Section {
    fn read(
        yaml: &Yaml,
        folder: &Path,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Section, String> {
        let section =
            yaml.as_mapping().ok_or("it must hold lines such as `checkpoints: models/checkpoints`")?;
        let base = match yaml.as_mapping_get("base_path") {
            None => folder.to_owned(),
            Some(base) => {
                let base = base.as_str().ok_or("base_path must be a path")?;
                folder.join(expanded(base, variable))
            }
        };
        let is_default = yaml.as_mapping_get("is_default").and_then(Yaml::as_bool).unwrap_or(false);
        let mut places = Vec::new();
        for (key, value) in section {
            let Some(key) = key.as_str() else { continue };
            if matches!(key, "base_path" | "is_default") || value.is_null() {
                continue;
            }
            let lines = value
                .as_str()
                .ok_or_else(|| format!("{key} must be a path, or several, one on each line"))?;
            let lines = lines.lines().filter(|line| !line.is_empty());
            places.extend(lines.map(|line| (key.to_owned(), normalized(&base.join(line)))));
        }
        Ok(Section { is_default, places })
    }
}

/// Replaces `~` at the start, and `$NAME` and `${NAME}` anywhere; what is not known stays.
fn expanded(path: &str, variable: &dyn Fn(&str) -> Option<String>) -> String {
    let mut out = String::new();
    let mut rest = path;
    if let Some(below) = path.strip_prefix('~')
        && (below.is_empty() || below.starts_with('/'))
        && let Some(home) = variable("HOME")
    {
        out.push_str(home.trim_end_matches('/'));
        rest = below;
    }
    while let Some(start) = rest.find('$') {
        out.push_str(&rest[..start]);
        let after = &rest[start + 1..];
        let (name, length) = match after.strip_prefix('{') {
            Some(braced) => braced.find('}').map_or(("", 0), |end| (&braced[..end], end + 2)),
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                let end = after.find(|c| !is_part(c)).unwrap_or(after.len());
                (&after[..end], end)
            }
        };
        match variable(name).filter(|_| !name.is_empty()) {
            Some(value) => out.push_str(&value),
            None => out.push_str(&rest[start..=start + length]),
        }
        rest = &after[length..];
    }
    out.push_str(rest);
    out
}
