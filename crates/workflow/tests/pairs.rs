//! Workflows stored twice, as the editor saved them and as it sent them: one must give the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod declared;

use std::fs;
use std::path::{Path, PathBuf};

use graph::{Catalogue, Literal, Map, Prompt};

/// Inputs that old editors sent and that no node has: upload buttons and players.
const BUTTONS: &[&str] = &["upload", "choose file to upload", "video-preview"];

fn read(path: &Path) -> Literal {
    declared::literal(&fs::read_to_string(path).unwrap())
}

/// All pairs below a folder: what was saved, and what was sent.
fn pairs(folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let mut found = Vec::new();
    let mut waiting = vec![folder.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                waiting.push(path);
            } else if let Some(stem) = path.to_str().unwrap().strip_suffix(".workflow.json") {
                let sent = PathBuf::from(format!("{stem}.prompt.json"));
                found.push((path, sent));
            }
        }
    }
    found.sort();
    found
}

/// Whether two values are the same to a node: `1` is `1.0`.
fn same(one: &Literal, other: &Literal) -> bool {
    match (one, other) {
        (Literal::List(one), Literal::List(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Literal::Int(one), Literal::Int(other)) => one == other,
        _ => match (one.as_float(), other.as_float()) {
            (Some(one), Some(other)) => one == other,
            _ => one == other,
        },
    }
}

/// What differs between a converted workflow and what was sent.
fn differences(workflow: &Literal, sent: &Literal, catalogue: &Catalogue) -> Vec<String> {
    let converted = match workflow::to_prompt(workflow, catalogue) {
        Ok(converted) => converted,
        Err(error) => return vec![error.to_string()],
    };
    let sent = Prompt::from_literal(sent).unwrap();
    let mut found = Vec::new();
    for id in converted.prompt.nodes.keys().filter(|id| !sent.nodes.contains_key(*id)) {
        found.push(format!("node {id} was not sent"));
    }
    for (id, sent) in &sent.nodes {
        let Some(ours) = converted.prompt.nodes.get(id) else {
            found.push(format!("node {id} is missing"));
            continue;
        };
        if ours.class_type != sent.class_type {
            found.push(format!("node {id} is a {:?}, not a {:?}", ours.class_type, sent.class_type));
        }
        let (ours, sent) = (ours.inputs.as_ref().unwrap(), sent.inputs.as_ref().unwrap());
        found.extend(differing_inputs(ours, sent).map(|text| format!("node {id}: {text}")));
        // Classes have grown since the files were made: what was not sent has its default.
        let defaulted: Vec<&String> = ours.keys().filter(|name| !sent.contains_key(*name)).collect();
        let warned = converted.warnings.iter().any(|warning| {
            matches!(warning, workflow::Warning::MissingValues { node, names, .. }
                if **node == **id && defaulted.iter().all(|name| names.contains(name)))
        });
        if !defaulted.is_empty() && !warned {
            found.push(format!("node {id} has {defaulted:?}, which was not sent"));
        }
    }
    found
}

fn differing_inputs<'a>(ours: &'a Map, sent: &'a Map) -> impl Iterator<Item = String> + 'a {
    sent.iter().filter(|(name, _)| !BUTTONS.contains(&name.as_str())).filter_map(|(name, sent)| {
        match ours.get(name) {
            Some(ours) if same(ours, sent) => None,
            Some(ours) => Some(format!("{name} is {ours:?}, and was {sent:?}")),
            None => Some(format!("{name} is missing, and was {sent:?}")),
        }
    })
}

fn check(folder: &Path, catalogue: &Catalogue) -> usize {
    let pairs = pairs(folder);
    let mut report = String::new();
    for (saved, sent) in &pairs {
        let found = differences(&read(saved), &read(sent), catalogue);
        if !found.is_empty() {
            report.push_str(&format!("{}:\n  {}\n", saved.display(), found.join("\n  ")));
        }
    }
    assert!(report.is_empty(), "{report}");
    pairs.len()
}

#[test]
fn saved_workflows_give_what_was_sent() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let catalogue = declared::catalogue(include_str!("data/classes.json"));
    assert!(check(&data, &catalogue) >= 8);
}

/// Collections of real workflows are not ours to include; where there is one beside the checkout, it counts.
#[test]
fn collected_workflows_give_what_was_sent() {
    let collection = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/workflows");
    if collection.is_dir() {
        let catalogue = declared::catalogue(include_str!("data/classes.json"));
        check(&collection, &catalogue);
    }
}
