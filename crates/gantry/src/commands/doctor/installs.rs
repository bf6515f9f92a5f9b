//! ComfyUI installs in the usual places: only looked at, never changed.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::json;
use server::files::WebPackages;

use super::check::Check;
use crate::environment;

/// Folders of an install in which its Python packages may be.
const ENVIRONMENTS: [&str; 5] = ["venv", ".venv", "env", "python_embeded", "../python_embeded"];
/// Names that people give an install, below a home or the root of a server.
const NAMES: [&str; 3] = ["ComfyUI", "comfyui", "comfy/ComfyUI"];
/// How many folders above the current one are looked at.
const MOST_ABOVE: usize = 6;
/// How many model files are counted at most.
const MOST_FILES: usize = 2000;

/// An install of ComfyUI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Install {
    pub(super) path: PathBuf,
    version: Option<String>,
    /// The front end that is installed beside it.
    front_end: Option<String>,
    /// The front end that it asks for.
    wanted_front_end: Option<String>,
    pub(super) model_files: usize,
    has_extra_paths: bool,
}

/// Looks at the given folder, those above the current one, and the usual places.
pub(super) fn look(base: &Path) -> Vec<Install> {
    let mut candidates = vec![base.to_owned()];
    if let Ok(current) = environment::current_dir() {
        candidates.extend(
            current
                .ancestors()
                .take(MOST_ABOVE)
                .flat_map(|above| std::iter::once(above.to_owned()).chain([above.join("ComfyUI")])),
        );
    }
    let home = environment::variable("HOME").map(PathBuf::from);
    let roots = home.iter().flat_map(|home| [home.clone(), home.join("Documents")]);
    let roots = roots.chain(["/opt", "/workspace", "/srv"].map(PathBuf::from));
    candidates.extend(roots.flat_map(|root| NAMES.map(|name| root.join(name))));
    let mut installs: Vec<Install> = Vec::new();
    let mut seen = Vec::new();
    for candidate in candidates {
        // Two names may lead to one folder.
        let real = candidate.canonicalize().unwrap_or_else(|_| candidate.clone());
        if seen.contains(&real) {
            continue;
        }
        seen.push(real);
        installs.extend(Install::at(&candidate));
    }
    installs
}

impl Install {
    /// The install in a folder, if there is one.
    fn at(path: &Path) -> Option<Install> {
        let is_one = path.join("main.py").is_file() && path.join("comfy").is_dir();
        let is_one = is_one && path.join("folder_paths.py").is_file();
        if !is_one {
            return None;
        }
        let packages: Vec<PathBuf> = ENVIRONMENTS
            .iter()
            .flat_map(|name| {
                let prefix = path.join(name);
                let mut found = environment::packages_below(&prefix);
                found.push(prefix.join("Lib").join("site-packages"));
                found
            })
            .collect();
        Some(Install {
            path: path.to_owned(),
            version: version(path),
            front_end: WebPackages::find(&packages).front_end_version,
            wanted_front_end: wanted_front_end(path),
            model_files: model_files(&path.join("models")),
            has_extra_paths: path.join("extra_model_paths.yaml").is_file(),
        })
    }
}

/// `__version__ = "0.7.0"`.
fn version(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path.join("comfyui_version.py")).ok()?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("__version__"))?;
    let version = line.trim_start_matches([' ', '=']).trim().trim_matches(['"', '\'']);
    (!version.is_empty()).then(|| version.to_owned())
}

/// The line of `requirements.txt` that names the front end.
fn wanted_front_end(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path.join("requirements.txt")).ok()?;
    let line = text.lines().find_map(|line| line.trim().strip_prefix("comfyui-frontend-package"))?;
    let version = line.trim_start_matches(['=', '>', '<', '~', ' ']).trim();
    (!version.is_empty()).then(|| version.to_owned())
}

/// How many model files lie below a folder, counted up to a bound.
fn model_files(models: &Path) -> usize {
    let (mut count, mut folders, mut looked) = (0, vec![models.to_owned()], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).into_iter().flatten().flatten() {
            looked += 1;
            if count >= MOST_FILES || looked > 10 * MOST_FILES {
                return count;
            }
            let path = entry.path();
            let end = path.extension().and_then(|end| end.to_str()).unwrap_or_default();
            // Links are not followed: they may lead in a circle.
            match entry.file_type() {
                Ok(kind) if kind.is_dir() => folders.push(path),
                _ if matches!(end, "safetensors" | "sft" | "gguf" | "ckpt" | "pt" | "pth" | "bin") => {
                    count += 1;
                }
                _ => {}
            }
        }
    }
    count
}

pub(super) fn checks(installs: &[Install]) -> Vec<Check> {
    if installs.is_empty() {
        let says = "No ComfyUI install was found in the usual places. None is needed.";
        return vec![Check::works("comfyui", says).with_facts(json!({ "installs": [] }))];
    }
    let line = |install: &Install| {
        let version = install.version.as_ref().map_or(String::new(), |version| format!(" {version}"));
        let front_end = match (&install.front_end, &install.wanted_front_end) {
            (Some(has), _) => format!("front end {has}"),
            (None, Some(wants)) => format!("front end not found (it asks for {wants})"),
            (None, None) => "front end not found".to_owned(),
        };
        let more = if install.has_extra_paths { ", extra_model_paths.yaml" } else { "" };
        let (path, files) = (install.path.display(), install.model_files);
        format!("{path}: ComfyUI{version}, {files} model files, {front_end}{more}")
    };
    let s = if installs.len() == 1 { "" } else { "s" };
    let says = format!(
        "{} ComfyUI install{s} found; `gantry serve --comfy-dir FOLDER` uses the models, workflows and settings of one.",
        installs.len()
    );
    let lines = installs.iter().map(line).collect();
    vec![Check::works("comfyui", says).with_lines(lines).with_facts(json!({ "installs": installs }))]
}

/// The web front end that the server would show.
pub(super) fn front_end() -> Check {
    let found = WebPackages::find(&environment::python_packages());
    let facts = json!({ "path": found.front_end, "version": found.front_end_version });
    match (&found.front_end, &found.front_end_version) {
        (Some(path), version) => {
            let version = version.as_ref().map_or(String::new(), |version| format!(" {version}"));
            Check::works("front_end", format!("The web front end{version} is in {}.", path.display()))
        }
        (None, _) => Check::attention(
            "front_end",
            "The web front end was not found. The API and the dashboard at /gantry/ work without it.",
            "pip install comfyui-frontend-package, or give its folder with --front-end-root.",
        ),
    }
    .with_facts(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_install_is_recognised_by_its_files() {
        let dir = testkit::ScratchDir::new().unwrap();
        let root = dir.path();
        assert_eq!(Install::at(root), None);
        std::fs::create_dir_all(root.join("comfy")).unwrap();
        std::fs::create_dir_all(root.join("models/vae/more")).unwrap();
        for file in ["main.py", "folder_paths.py", "models/vae/ae.safetensors", "models/vae/more/b.gguf"] {
            std::fs::write(root.join(file), "").unwrap();
        }
        std::fs::write(root.join("comfyui_version.py"), "# x\n__version__ = \"0.7.0\"\n").unwrap();
        std::fs::write(root.join("requirements.txt"), "torch\ncomfyui-frontend-package==1.35.9\n").unwrap();
        let install = Install::at(root).unwrap();
        assert_eq!(install.version.as_deref(), Some("0.7.0"));
        assert_eq!(install.wanted_front_end.as_deref(), Some("1.35.9"));
        assert_eq!((install.model_files, install.front_end), (2, None));
    }
}
