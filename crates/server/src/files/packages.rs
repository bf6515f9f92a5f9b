//! The front end and what belongs to it, as Python packages install them.

use std::path::{Path, PathBuf};

/// What was found in folders with Python packages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WebPackages {
    /// The folder with the front end's `index.html`.
    pub front_end: Option<PathBuf>,
    /// The version of the front end's package.
    pub front_end_version: Option<String>,
    /// Folders with workflow templates: newer packages keep them in several.
    pub templates: Vec<PathBuf>,
    /// The version of the templates' package.
    pub templates_version: Option<String>,
    /// The folder with the documentation of nodes.
    pub docs: Option<PathBuf>,
}

impl WebPackages {
    /// Looks into folders with packages (`site-packages`), the first first. A folder that is not there has none.
    #[must_use]
    pub fn find(site_packages: &[PathBuf]) -> WebPackages {
        let mut found = WebPackages::default();
        for place in site_packages {
            let front_end = place.join("comfyui_frontend_package").join("static");
            if found.front_end.is_none() && front_end.join("index.html").is_file() {
                found.front_end_version = version(place, "comfyui_frontend_package");
                found.front_end = Some(front_end);
            }
            if found.templates.is_empty() {
                found.templates = template_folders(place);
                if !found.templates.is_empty() {
                    found.templates_version = version(place, "comfyui_workflow_templates");
                }
            }
            let docs = place.join("comfyui_embedded_docs").join("docs");
            if found.docs.is_none() && docs.is_dir() {
                found.docs = Some(docs);
            }
        }
        found
    }
}

fn template_folders(place: &Path) -> Vec<PathBuf> {
    let packages = names(place).into_iter().filter(|name| name.starts_with("comfyui_workflow_templates"));
    packages.map(|name| place.join(name).join("templates")).filter(|folder| folder.is_dir()).collect()
}

/// Installers write a package's version into the name of the folder that describes it.
fn version(place: &Path, package: &str) -> Option<String> {
    names(place).iter().find_map(|name| {
        let version = name.strip_prefix(package)?.strip_prefix('-')?.strip_suffix(".dist-info")?;
        Some(version.to_owned())
    })
}

fn names(place: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(place) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_with_their_versions() {
        let place = tempfile::tempdir().unwrap();
        let make = |path: &str| std::fs::create_dir_all(place.path().join(path)).unwrap();
        assert_eq!(WebPackages::find(&[place.path().join("nowhere")]), WebPackages::default());
        make("comfyui_frontend_package/static");
        assert_eq!(WebPackages::find(&[place.path().to_owned()]).front_end, None, "without an index.html");
        std::fs::write(place.path().join("comfyui_frontend_package/static/index.html"), "x").unwrap();
        make("comfyui_frontend_package-1.58.1.dist-info");
        make("comfyui_workflow_templates");
        make("comfyui_workflow_templates-0.11.97.dist-info");
        make("comfyui_workflow_templates_json/templates");
        make("comfyui_workflow_templates_media_image/templates");
        make("comfyui_embedded_docs/docs");
        let found = WebPackages::find(&[place.path().join("nowhere"), place.path().to_owned()]);
        let at = |path: &str| place.path().join(path);
        let expected = WebPackages {
            front_end: Some(at("comfyui_frontend_package/static")),
            front_end_version: Some("1.58.1".to_owned()),
            templates: vec![
                at("comfyui_workflow_templates_json/templates"),
                at("comfyui_workflow_templates_media_image/templates"),
            ],
            templates_version: Some("0.11.97".to_owned()),
            docs: Some(at("comfyui_embedded_docs/docs")),
        };
        assert_eq!(found, expected);
    }
}
