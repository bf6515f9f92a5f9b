//! Which workflows can run with the classes that there are, and what the others lack.

use graph::{Catalogue, Literal};
use indexmap::{IndexMap, IndexSet};

use crate::convert::{prompt_of, workflow_of};
use crate::virtual_node::VirtualNode;

/// How many workflows can run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// By family, in the order of their names.
    pub families: Vec<FamilyCoverage>,
}

/// The workflows of one family: of one folder.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FamilyCoverage {
    /// The folder's name; empty for files outside any.
    pub family: String,
    /// How many workflows have all their classes.
    pub covered: usize,
    /// How many there are.
    pub total: usize,
    /// Classes that are missing, and in how many of the workflows; the most wanted first.
    pub missing: Vec<(String, usize)>,
    /// The workflows, in the order of their paths.
    pub files: Vec<FileCoverage>,
}

/// One workflow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FileCoverage {
    /// The path it was given with.
    pub path: String,
    /// The missing classes, and how many of its nodes have each.
    pub missing: Vec<(String, usize)>,
    /// Why it could not be read, if so; it is then not covered.
    pub problem: Option<String>,
}

impl FileCoverage {
    /// Whether all its classes are there.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        self.missing.is_empty() && self.problem.is_none()
    }
}

impl Coverage {
    /// How many workflows have all their classes.
    #[must_use]
    pub fn covered(&self) -> usize {
        self.families.iter().map(|family| family.covered).sum()
    }

    /// How many there are.
    #[must_use]
    pub fn total(&self) -> usize {
        self.families.iter().map(|family| family.total).sum()
    }
}

/// The classes that a workflow needs, and how many of its nodes have each, in the order of the file. Those of
/// subgraphs are counted once per definition; nodes that only editors know are not.
#[must_use]
pub fn classes(file: &Literal) -> Vec<(String, usize)> {
    let mut counts: IndexMap<&str, usize> = IndexMap::new();
    if let Some(prompt) = prompt_of(file) {
        let nodes = prompt.as_map().into_iter().flat_map(|nodes| nodes.values());
        for class in nodes.filter_map(|node| node.get("class_type")?.as_text()) {
            *counts.entry(class).or_default() += 1;
        }
    } else if let Some(workflow) = workflow_of(file) {
        count_nodes(workflow, &mut counts);
    }
    counts.retain(|class, _| VirtualNode::of(class).is_none());
    counts.into_iter().map(|(class, count)| (class.to_owned(), count)).collect()
}

fn count_nodes<'a>(workflow: &'a Literal, counts: &mut IndexMap<&'a str, usize>) {
    let mut graphs = vec![workflow];
    let groups = workflow.get("extra").and_then(|extra| extra.get("groupNodes")).and_then(Literal::as_map);
    let mut not_classes: IndexSet<&str> = IndexSet::new();
    let mut used_groups: IndexSet<&str> = IndexSet::new();
    let mut next = 0;
    while let Some(graph) = graphs.get(next).copied() {
        next += 1;
        let subgraphs = graph.get("definitions").and_then(|definitions| definitions.get("subgraphs"));
        for subgraph in subgraphs.and_then(Literal::as_list).unwrap_or_default() {
            not_classes.extend(subgraph.get("id").and_then(Literal::as_text));
            graphs.push(subgraph);
        }
        for node in graph.get("nodes").and_then(Literal::as_list).unwrap_or_default() {
            let Some(class) = node.get("type").and_then(Literal::as_text) else { continue };
            *counts.entry(class).or_default() += 1;
            let group = class.strip_prefix("workflow/").or_else(|| class.strip_prefix("workflow>"));
            let definition = group.and_then(|name| groups?.get_key_value(name));
            if let Some((name, definition)) = definition {
                not_classes.insert(class);
                if used_groups.insert(name) {
                    graphs.push(definition);
                }
            }
        }
    }
    counts.retain(|class, _| !not_classes.contains(class));
}

/// Which of some workflows can run. Each comes with its path below a common folder, whose first part is its
/// family, and with what was read from it or why nothing was. Files that are no workflows are passed over.
pub fn coverage(
    files: impl IntoIterator<Item = (String, Result<Literal, String>)>,
    catalogue: &Catalogue,
) -> Coverage {
    let mut families: IndexMap<String, FamilyCoverage> = IndexMap::new();
    for (path, file) in files {
        let (missing, problem) = match &file {
            Ok(file) if prompt_of(file).is_none() && workflow_of(file).is_none() => continue,
            Ok(file) => {
                let mut missing = classes(file);
                missing.retain(|(class, _)| catalogue.get(class).is_none());
                (missing, None)
            }
            Err(problem) => (Vec::new(), Some(problem.clone())),
        };
        let name = path.trim_start_matches("./").split_once('/').map_or("", |(first, _)| first).to_owned();
        let family = families.entry(name.clone()).or_default();
        family.family = name;
        family.files.push(FileCoverage { path, missing, problem });
    }
    families.sort_unstable_keys();
    Coverage { families: families.into_values().map(summed).collect() }
}

/// A family with its sums.
fn summed(mut family: FamilyCoverage) -> FamilyCoverage {
    family.files.sort_by(|one, other| one.path.cmp(&other.path));
    let mut wanted: IndexMap<&str, usize> = IndexMap::new();
    for (class, _) in family.files.iter().flat_map(|file| &file.missing) {
        *wanted.entry(class).or_default() += 1;
    }
    let mut missing: Vec<(String, usize)> =
        wanted.into_iter().map(|(class, count)| (class.to_owned(), count)).collect();
    missing.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
    FamilyCoverage {
        covered: family.files.iter().filter(|file| file.is_covered()).count(),
        total: family.files.len(),
        missing,
        ..family
    }
}
