//! Validation: which outputs of a prompt can run, and what is wrong with the others.

mod check;
mod cycles;
mod detail;
mod walk;

use std::collections::HashSet;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::catalogue::Catalogue;
use crate::declared::ClassInfo;
use crate::literal::Literal;
use crate::prompt::{Prompt, PromptNode};
use crate::value::NodeId;
use walk::{Classes, Finding, Walk};

/// A prompt that can run, at least in part.
#[derive(Clone, Debug, Default)]
pub struct Accepted {
    /// The output nodes that can run, in the prompt's order.
    pub outputs: Vec<NodeId>,
    /// What is wrong with the others.
    pub node_errors: NodeErrors,
}

/// A prompt that cannot run.
#[derive(Clone, Debug)]
pub struct Rejected {
    /// Why.
    pub error: ErrorDetail,
    /// What is wrong, node by node.
    pub node_errors: NodeErrors,
}

/// What is wrong, node by node.
pub type NodeErrors = IndexMap<NodeId, NodeProblems>;

/// What is wrong with one node.
#[derive(Clone, Debug, Default)]
pub struct NodeProblems {
    /// The errors, in the order of the inputs.
    pub errors: Vec<ErrorDetail>,
    /// The output nodes that cannot run because of it.
    pub dependent_outputs: Vec<NodeId>,
    /// Its class.
    pub class_type: String,
}

/// What is known of an error, in the order in which it is told.
pub type Facts = IndexMap<Fact, Literal>;

/// Something that is known of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// The input that it is about.
    InputName,
    /// What that input takes.
    InputConfig,
    /// What was given.
    ReceivedValue,
    /// The type of what was linked.
    ReceivedType,
    /// The link.
    LinkedNode,
    /// What a check that failed said.
    ExceptionMessage,
    /// The kind of that failure.
    ExceptionType,
    /// Where it failed; clients want a list.
    Traceback,
    /// The node that it is about.
    NodeId,
    /// The class of that node.
    ClassType,
    /// The title that its user gave it.
    NodeTitle,
    /// The nodes that need each other.
    CycleNodes,
}

/// One error, as clients get it.
#[derive(Clone, Debug, Default)]
pub struct ErrorDetail {
    /// What clients know it by, such as `value_not_in_list`.
    pub kind: String,
    /// What is wrong, for people.
    pub message: String,
    /// Where.
    pub details: String,
    /// More, for programs.
    pub facts: Facts,
}

/// More outputs than these are not named for one node.
const MOST_DEPENDENTS: usize = 64;

/// Checks a prompt and converts its constants to their declared types, in place. With `targets`, only
/// those output nodes count.
///
/// # Errors
/// No output can run.
#[expect(clippy::result_large_err, reason = "a prompt is refused once, and the caller wants all of it")]
pub fn validate(
    catalogue: &Catalogue,
    prompt: &mut Prompt,
    targets: Option<&[String]>,
) -> Result<Accepted, Rejected> {
    let classes = classes_of(catalogue, prompt).map_err(|error| Rejected::whole(*error))?;
    let targets: Option<HashSet<&str>> = targets.map(|targets| targets.iter().map(String::as_str).collect());
    let is_output = |(id, node): (&NodeId, &PromptNode)| {
        let class = node.class_type.as_deref().and_then(|class| classes.get(class));
        let is_wanted = targets.as_ref().is_none_or(|targets| targets.contains(&**id));
        is_wanted && class.is_some_and(|info| info.schema.is_output)
    };
    let outputs: Vec<usize> =
        (0..prompt.nodes.len()).filter(|&node| prompt.nodes.get_index(node).is_some_and(is_output)).collect();
    if outputs.is_empty() {
        return Err(Rejected::whole(detail::no_outputs()));
    }
    let mut walk = Walk::new(prompt, &classes);
    let (good, bad): (Vec<usize>, Vec<usize>) =
        outputs.iter().partition(|output| walk.check(**output).is_valid);
    let findings = walk.into_findings();
    let lines: Vec<String> = bad
        .iter()
        .flat_map(|output| &findings[output].errors)
        .map(|error| format!("{}: {}", error.message, error.details))
        .collect();
    let node_errors = collect(prompt, findings, &bad);
    if good.is_empty() {
        return Err(Rejected { error: detail::outputs_failed(lines.join("\n")), node_errors });
    }
    let ids = good.iter().filter_map(|&node| prompt.nodes.get_index(node));
    Ok(Accepted { outputs: ids.map(|(id, _)| Arc::clone(id)).collect(), node_errors })
}

/// The class of every node, needed or not.
fn classes_of(catalogue: &Catalogue, prompt: &Prompt) -> Result<Classes, Box<ErrorDetail>> {
    let mut classes = Classes::new();
    for (id, node) in &prompt.nodes {
        let name = node.class_type.as_deref();
        if name.is_some_and(|name| classes.contains_key(name)) {
            continue;
        }
        let title = node.rest.get("_meta").and_then(|meta| meta.get("title")).and_then(Literal::as_text);
        let instead = name.and_then(|name| catalogue.instead_of(name));
        let missing = || Box::new(detail::missing_node_type(id, (name, title), instead));
        let name = name.ok_or_else(missing)?;
        let class = catalogue.get(name).ok_or_else(missing)?;
        classes.insert(name.to_owned(), ClassInfo::new(Arc::clone(class)));
    }
    Ok(classes)
}

/// What is wrong, node by node. One that is only linked to a faulty one is left out.
fn collect(prompt: &Prompt, findings: IndexMap<usize, Finding>, bad: &[usize]) -> NodeErrors {
    let mut dependents = dependents(prompt, &findings, bad);
    let faulty = findings.into_iter().filter(|(_, finding)| !finding.is_valid && !finding.errors.is_empty());
    let problems = faulty.filter_map(|(node, finding)| {
        let (id, sent) = prompt.nodes.get_index(node)?;
        let class_type = sent.class_type.clone().unwrap_or_default();
        let dependent_outputs = std::mem::take(&mut dependents[node]);
        Some((Arc::clone(id), NodeProblems { errors: finding.errors, dependent_outputs, class_type }))
    });
    problems.collect()
}

/// By node, the outputs that cannot run because of it. A node that has all it may have is not passed
/// again: what lies behind it has as many.
fn dependents(prompt: &Prompt, findings: &IndexMap<usize, Finding>, bad: &[usize]) -> Vec<Vec<NodeId>> {
    let mut dependents: Vec<Vec<NodeId>> = vec![Vec::new(); prompt.nodes.len()];
    for &output in bad {
        let Some((id, _)) = prompt.nodes.get_index(output) else { continue };
        let mut stack = vec![output];
        while let Some(node) = stack.pop() {
            let Some(finding) = findings.get(&node) else { continue };
            let known = &mut dependents[node];
            let is_passed = known.last() == Some(id) || known.len() == MOST_DEPENDENTS;
            if finding.is_valid || is_passed {
                continue;
            }
            known.push(Arc::clone(id));
            stack.extend(&finding.sources);
        }
    }
    dependents
}

impl Rejected {
    fn whole(error: ErrorDetail) -> Rejected {
        Rejected { error, node_errors: NodeErrors::new() }
    }
}
