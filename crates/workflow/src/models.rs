//! The model files that a workflow names with their addresses, as published templates do.

use graph::Literal;

/// A model file that a workflow wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedModel {
    /// The file's name, as the loader has it; it may have folders in front.
    pub name: String,
    /// Where it comes from.
    pub url: String,
    /// The kind of folder that it goes into.
    pub directory: String,
}

/// The model files that the nodes of a workflow name in `properties.models`, each once, in the order of the file; nodes
/// of subgraphs count, too.
#[must_use]
pub fn wanted_models(file: &Literal) -> Vec<WantedModel> {
    let mut wanted = Vec::new();
    collect(file, &mut wanted);
    wanted
}

fn collect(value: &Literal, wanted: &mut Vec<WantedModel>) {
    let models = value.get("properties").and_then(|properties| properties.get("models"));
    for model in models.and_then(Literal::as_list).unwrap_or_default() {
        let text = |key: &str| model.get(key).and_then(Literal::as_text).map(str::to_owned);
        if let (Some(name), Some(url), Some(directory)) = (text("name"), text("url"), text("directory")) {
            let model = WantedModel { name, url, directory };
            if !wanted.contains(&model) {
                wanted.push(model);
            }
        }
    }
    match value {
        Literal::List(values) => values.iter().for_each(|value| collect(value, wanted)),
        Literal::Map(values) => values.values().for_each(|value| collect(value, wanted)),
        _ => {}
    }
}
