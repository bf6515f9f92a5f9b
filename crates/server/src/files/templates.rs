//! Workflows that come with the program, as templates of the front end: its first screen shows them before those that a
//! package installs.

use serde_json::{Value, json};

/// A workflow that runs at once, or as soon as the files of a model are there.
#[derive(Clone, Copy, Debug)]
pub struct Template {
    /// Its name in addresses.
    pub name: &'static str,
    /// What people see.
    pub title: &'static str,
    /// What it shows.
    pub description: &'static str,
    /// The workflow, in the editor's format.
    pub workflow: &'static [u8],
    /// What it draws, as a PNG file.
    pub picture: &'static [u8],
    /// What `gantry pull` gets its files by; nothing for one whose model comes with the program.
    pub pull: Option<&'static str>,
}

/// How the names of its picture end.
const PICTURE: &str = "-1.png";

/// A file of a template: its type and its bytes.
pub(super) fn file(templates: &[Template], name: &str) -> Option<(&'static str, &'static [u8])> {
    templates.iter().find_map(|template| match name.strip_prefix(template.name)? {
        ".json" => Some(("application/json", template.workflow)),
        PICTURE => Some(("image/png", template.picture)),
        _ => None,
    })
}

/// The list of templates in the form of the front end's: ours, those that run at once first, then those of an installed
/// list.
pub(super) fn list(templates: &[Template], installed: Option<Value>) -> Value {
    let category = |title: &str, needs_files: bool| {
        let shown: Vec<Value> = templates
            .iter()
            .filter(|template| template.pull.is_some() == needs_files)
            .map(|template| {
                json!({
                    "name": template.name,
                    "title": template.title,
                    "description": described(template),
                    "mediaType": "image",
                    "mediaSubtype": "png",
                })
            })
            .collect();
        (!shown.is_empty())
            .then(|| json!({ "moduleName": "default", "title": title, "type": "image", "templates": shown }))
    };
    let ours = [category("Runs here at once", false), category("Models that people download", true)];
    let installed = match installed {
        Some(Value::Array(categories)) => categories,
        _ => Vec::new(),
    };
    Value::Array(ours.into_iter().flatten().chain(installed).collect())
}

/// What a template shows, and how to have its files.
fn described(template: &Template) -> String {
    match template.pull {
        Some(name) => format!("{} Its files: gantry pull {name}.", template.description),
        None => template.description.to_owned(),
    }
}
