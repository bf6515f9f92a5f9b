//! The walk from an output up its links, each node checked once. It keeps its own stack, because a prompt
//! may be as deep as its sender likes.

use std::collections::HashMap;

use indexmap::IndexMap;

use crate::class::{Failure, Given, Validates, Verdict};
use crate::declared::{ClassInfo, Declared};
use crate::guard::guarded;
use crate::literal::{Literal, Map};
use crate::prompt::{Prompt, constant_of, link_of};
use crate::proof::ErrorDetail;
use crate::proof::check;
use crate::proof::cycles::Cycles;
use crate::proof::detail::{self, Raised};
use crate::schema::Kind;

/// What was found of a node.
pub(super) struct Finding {
    pub(super) is_valid: bool,
    pub(super) errors: Vec<ErrorDetail>,
    /// The nodes that it is linked to by declared inputs.
    pub(super) sources: Vec<usize>,
}

/// The classes of a prompt, by name.
pub(super) type Classes = HashMap<String, ClassInfo>;

/// The checks of a prompt so far.
pub(super) struct Walk<'a> {
    prompt: &'a mut Prompt,
    classes: &'a Classes,
    cycles: Cycles,
    /// By node, in the order in which they were done.
    findings: IndexMap<usize, Finding>,
    is_open: Vec<bool>,
}

struct Frame<'a> {
    node: usize,
    info: &'a ClassInfo,
    validates: Validates,
    inputs: Vec<Declared<'a>>,
    next: usize,
    errors: Vec<ErrorDetail>,
    is_valid: bool,
    types: IndexMap<String, String>,
    sources: Vec<usize>,
}

enum Step {
    /// The input is done.
    Next,
    /// This node must be checked first.
    Enter(usize),
    /// All inputs are done.
    Done,
}

impl<'a> Walk<'a> {
    pub(super) fn new(prompt: &'a mut Prompt, classes: &'a Classes) -> Walk<'a> {
        let cycles = Cycles::find(prompt);
        let is_open = vec![false; prompt.nodes.len()];
        Walk { prompt, classes, cycles, findings: IndexMap::new(), is_open }
    }

    pub(super) fn into_findings(self) -> IndexMap<usize, Finding> {
        self.findings
    }

    /// Checks an output and everything that it needs.
    pub(super) fn check(&mut self, output: usize) -> &Finding {
        if !self.findings.contains_key(&output)
            && let Err(raised) = self.walk_from(output)
        {
            self.file(output, detail::exception(raised));
        }
        &self.findings[&output]
    }

    fn file(&mut self, node: usize, error: ErrorDetail) {
        self.is_open[node] = false;
        let finding = Finding { is_valid: false, errors: vec![error], sources: Vec::new() };
        self.findings.insert(node, finding);
    }

    fn walk_from(&mut self, output: usize) -> Result<(), Raised> {
        let mut stack = vec![self.enter(output)?];
        while let Some(frame) = stack.last_mut() {
            let node = frame.node;
            let (node, raised) = match self.advance(frame) {
                Ok(Step::Next) => continue,
                Ok(Step::Enter(source)) => match self.enter(source) {
                    Ok(frame) => {
                        stack.push(frame);
                        continue;
                    }
                    Err(raised) => (source, raised),
                },
                Ok(Step::Done) => {
                    self.leave(frame);
                    stack.pop();
                    continue;
                }
                Err(raised) => {
                    stack.pop();
                    (node, raised)
                }
            };
            let Some(consumer) = stack.last() else { return Err(raised) };
            let input = &consumer.inputs[consumer.next];
            let link = self.input(consumer.node, &input.key).cloned().unwrap_or_default();
            self.file(node, detail::inner_exception(input, &link, raised));
        }
        Ok(())
    }

    fn leave(&mut self, frame: &mut Frame<'a>) {
        self.is_open[frame.node] = false;
        let errors = std::mem::take(&mut frame.errors);
        let is_valid = frame.is_valid && errors.is_empty();
        self.findings
            .insert(frame.node, Finding { is_valid, errors, sources: std::mem::take(&mut frame.sources) });
    }

    fn input(&self, node: usize, key: &str) -> Option<&Literal> {
        self.prompt.nodes[node].inputs.as_ref()?.get(key)
    }

    fn enter(&mut self, node: usize) -> Result<Frame<'a>, Raised> {
        let (id, sent) =
            self.prompt.nodes.get_index(node).expect("nodes are entered by their place in the prompt");
        let class = sent.class_type.as_deref().unwrap_or_default();
        let (Some(info), Some(inputs)) = (self.classes.get(class), &sent.inputs) else {
            let message = format!("node {id} has no object \"inputs\"");
            return Err(Raised { kind: "KeyError".to_owned(), message });
        };
        let mut errors = Vec::new();
        if let Some(members) = self.cycles.of(node) {
            let ids = members.iter().filter_map(|&member| self.prompt.nodes.get_index(member));
            errors.push(detail::dependency_cycle(id, ids.map(|(id, _)| id)));
        }
        self.is_open[node] = true;
        Ok(Frame {
            node,
            info,
            validates: info.class.validates(),
            inputs: info.declared(inputs),
            next: 0,
            errors,
            is_valid: true,
            types: IndexMap::new(),
            sources: Vec::new(),
        })
    }

    /// Checks the next input, and after the last one lets the class look at them all.
    fn advance(&mut self, frame: &mut Frame<'a>) -> Result<Step, Raised> {
        if frame.next == frame.inputs.len() {
            self.ask_class(frame)?;
            return Ok(Step::Done);
        }
        let step = self.check_input(frame)?;
        if let Step::Next = step {
            frame.next += 1;
        }
        Ok(step)
    }

    fn check_input(&mut self, frame: &mut Frame<'a>) -> Result<Step, Raised> {
        let input = &frame.inputs[frame.next];
        if let Kind::Autogrow(growing) = &input.input.kind {
            let is_left_out = input.input.is_optional && input.copies == 0;
            if input.copies < growing.min && !is_left_out {
                frame.errors.push(detail::too_few_copies(input, growing.min));
            }
            return Ok(Step::Next);
        }
        let Some(value) = self.input(frame.node, &input.key) else {
            if !input.input.is_optional {
                frame.errors.push(detail::required_input_missing(input));
            }
            return Ok(Step::Next);
        };
        match value.as_list() {
            Some(list) if !check::takes_list(input, value) => {
                if list.len() == 2 {
                    return self.check_link(frame);
                }
                frame.errors.push(detail::bad_linked_input(input, value));
            }
            _ => {
                if let Err(error) = self.check_constant(frame) {
                    frame.errors.push(*error);
                }
            }
        }
        Ok(Step::Next)
    }

    fn check_constant(&mut self, frame: &Frame<'a>) -> Result<(), Box<ErrorDetail>> {
        let input = &frame.inputs[frame.next];
        let inputs = self.prompt.nodes[frame.node].inputs.as_mut();
        let Some(value) = inputs.and_then(|inputs| inputs.get_mut(&*input.key)) else {
            return Ok(());
        };
        check::convert(input, value)?;
        let value = constant_of(value);
        if frame.validates.everything || frame.validates.inputs.contains(&&*input.key) {
            return Ok(());
        }
        check::check_dynamic_choice(input, value)?;
        check::check_value(input, value)
    }

    fn check_link(&self, frame: &mut Frame<'a>) -> Result<Step, Raised> {
        let input = &frame.inputs[frame.next];
        let value = self.input(frame.node, &input.key).unwrap_or(&Literal::Null);
        let (source, received) = self.output_behind(value, &input.key)?;
        if !frame.validates.types && !check::types_match(received, input.input.type_name()) {
            frame.errors.push(detail::return_type_mismatch(input, received, value));
            return Ok(Step::Next);
        }
        frame.types.insert(input.key.to_string(), received.to_owned());
        match self.findings.get(&source) {
            Some(finding) => {
                frame.is_valid &= finding.is_valid;
                frame.sources.push(source);
                Ok(Step::Next)
            }
            None if self.is_open[source] => {
                // The source waits for this very node: the cycle is filed with the nodes that are in it.
                frame.is_valid = false;
                frame.sources.push(source);
                Ok(Step::Next)
            }
            None => Ok(Step::Enter(source)),
        }
    }

    /// The node behind a link, and the type of its output.
    fn output_behind(&self, link: &Literal, key: &str) -> Result<(usize, &'a str), Raised> {
        let Some(link) = link_of(link) else {
            let message = format!("the link of {key} is no list of a node's id and the number of its output");
            return Err(Raised { kind: "TypeError".to_owned(), message });
        };
        let Some((source, id, node)) = self.prompt.nodes.get_full(&*link.node) else {
            let message = format!("{key} is linked to node {}, which is not in the prompt", link.node);
            return Err(Raised { kind: "KeyError".to_owned(), message });
        };
        let class = self.classes.get(node.class_type.as_deref().unwrap_or_default());
        let output = class.and_then(|info| info.schema.outputs.get(link.slot));
        let output = output.ok_or_else(|| Raised {
            kind: "IndexError".to_owned(),
            message: format!("{key} is linked to output {} of node {id}, which has fewer", link.slot),
        })?;
        Ok((source, &output.kind))
    }

    /// Lets the class check what it checks itself. A refusal is filed once per input it was shown.
    fn ask_class(&self, frame: &mut Frame<'a>) -> Result<(), Raised> {
        let Validates { inputs: named, everything, types } = &frame.validates;
        if named.is_empty() && !everything && !types {
            return Ok(());
        }
        let no_inputs = Map::new();
        let sent = self.prompt.nodes[frame.node].inputs.as_ref().unwrap_or(&no_inputs);
        let roles = frame.info.roles(sent, sent.keys());
        let mut constants = Map::new();
        for ((key, value), role) in sent.iter().zip(roles) {
            let is_link = link_of(value).is_some();
            if (*everything || named.contains(&key.as_str())) && (is_link || role.is_some()) {
                constants
                    .insert(key.clone(), if is_link { Literal::Null } else { constant_of(value).clone() });
            }
        }
        let given = Given { constants: &constants, types: &frame.types };
        let reason = match guarded(|| frame.info.class.validate(&given)) {
            Ok(Verdict::Good) => return Ok(()),
            Ok(Verdict::Bad) => None,
            Ok(Verdict::Because(reason)) => Some(reason),
            Err(Failure::Error { kind, message }) => return Err(Raised { kind, message }),
            Err(other) => {
                return Err(Raised { kind: "RuntimeError".to_owned(), message: other.to_string() });
            }
        };
        let shown = constants.keys().map(String::as_str).chain(types.then_some("input_types"));
        frame.errors.extend(shown.map(|input| detail::custom_validation_failed(input, reason.as_deref())));
        Ok(())
    }
}
