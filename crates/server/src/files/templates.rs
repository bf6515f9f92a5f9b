//! Workflows that come with the program, as templates of the front end: its first screen shows them before those that a
//! package installs.

use serde_json::{Value, json};

/// A workflow that runs at once.
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

/// The list of templates in the form of the front end's: ours, then those of an installed list.
pub(super) fn list(templates: &[Template], installed: Option<Value>) -> Value {
    let ours = (!templates.is_empty()).then(|| {
        let shown = |template: &Template| {
            json!({
                "name": template.name,
                "title": template.title,
                "description": template.description,
                "mediaType": "image",
                "mediaSubtype": "png",
            })
        };
        json!({
            "moduleName": "default",
            "title": "Runs here at once",
            "type": "image",
            "templates": templates.iter().map(shown).collect::<Vec<_>>(),
        })
    });
    let installed = match installed {
        Some(Value::Array(categories)) => categories,
        _ => Vec::new(),
    };
    Value::Array(ours.into_iter().chain(installed).collect())
}
