//! The errors of validation: what clients know each by, and what they carry.
//!
//! Clients look at the kind and at the facts; message and details are for people.

use crate::coercion::{repr, to_text};
use crate::declared::Declared;
use crate::literal::Literal;
use crate::proof::{ErrorDetail, Fact, Facts};
use crate::schema::Kind;
use crate::value::NodeId;

/// A longer list is not sent back: it holds every model file of the user.
const LONGEST_LIST: usize = 20;
/// A longer cycle is named by its first nodes.
const LONGEST_CYCLE: usize = 32;

/// A check could not be carried out: the prompt's shape is wrong, or a class failed at it.
pub(super) struct Raised {
    pub(super) kind: String,
    pub(super) message: String,
}

impl ErrorDetail {
    fn new(kind: &str, message: impl Into<String>, details: impl Into<String>) -> ErrorDetail {
        let facts = Facts::new();
        ErrorDetail { kind: kind.to_owned(), message: message.into(), details: details.into(), facts }
    }

    fn with(mut self, fact: Fact, value: impl Into<Literal>) -> ErrorDetail {
        self.facts.insert(fact, value.into());
        self
    }

    fn of_input(self, input: &Declared<'_>) -> ErrorDetail {
        self.with(Fact::InputName, &*input.key).with(Fact::InputConfig, config(input))
    }
}

/// `[type, options]`, as the class is listed; a plain choice has its list in the type's place, unless that is
/// long.
fn config(input: &Declared<'_>) -> Literal {
    let kind = match &input.input.kind {
        Kind::Choice(values) if values.len() <= LONGEST_LIST => Literal::List(values.clone()),
        _ => Literal::from(input.input.type_name()),
    };
    Literal::List(vec![kind, Literal::Map(input.input.options.clone())])
}

pub(super) fn missing_node_type(
    id: &str,
    (class, title): (Option<&str>, Option<&str>),
    instead: Option<&str>,
) -> ErrorDetail {
    let message = match class {
        Some(class) => {
            let instead = instead.unwrap_or("Python node packs do not run in Gantry");
            format!("There is no node class \"{class}\" here; {instead}")
        }
        None => "A node has no class_type".to_owned(),
    };
    let title = title.or(class).map(str::to_owned);
    ErrorDetail::new("missing_node_type", message, format!("Node ID '#{id}'"))
        .with(Fact::NodeId, id)
        .with(Fact::ClassType, class.map(str::to_owned))
        .with(Fact::NodeTitle, title)
}

pub(super) fn no_outputs() -> ErrorDetail {
    let message = "The prompt has no output node to run: add one that saves or shows something";
    ErrorDetail::new("prompt_no_outputs", message, "")
}

pub(super) fn outputs_failed(details: String) -> ErrorDetail {
    ErrorDetail::new("prompt_outputs_failed_validation", "No output of the prompt can run", details)
}

pub(super) fn exception(raised: Raised) -> ErrorDetail {
    ErrorDetail::new("exception_during_validation", "The node could not be checked", raised.message)
        .with(Fact::ExceptionType, raised.kind)
        .with(Fact::Traceback, Vec::<Literal>::new())
}

pub(super) fn inner_exception(input: &Declared<'_>, link: &Literal, raised: Raised) -> ErrorDetail {
    let message = "A linked node could not be checked";
    ErrorDetail::new("exception_during_inner_validation", message, raised.message.clone())
        .of_input(input)
        .with(Fact::ExceptionMessage, raised.message)
        .with(Fact::ExceptionType, raised.kind)
        .with(Fact::Traceback, Vec::<Literal>::new())
        .with(Fact::LinkedNode, link.clone())
}

pub(super) fn dependency_cycle<'a>(id: &str, members: impl Iterator<Item = &'a NodeId>) -> ErrorDetail {
    let members: Vec<&str> = members.take(LONGEST_CYCLE).map(|id| &**id).collect();
    let details = format!("node {id} needs its own output, by way of {}", members.join(", "));
    ErrorDetail::new("dependency_cycle", "Nodes need each other's outputs", details)
        .with(Fact::NodeId, id)
        .with(Fact::CycleNodes, members)
}

pub(super) fn required_input_missing(input: &Declared<'_>) -> ErrorDetail {
    let name = input.key.rsplit('.').next().unwrap_or(&input.key);
    let message = "An input that the node needs is missing";
    ErrorDetail::new("required_input_missing", message, name).with(Fact::InputName, &*input.key)
}

pub(super) fn bad_linked_input(input: &Declared<'_>, value: &Literal) -> ErrorDetail {
    let message = "A link must be a list of a node's id and the number of its output";
    ErrorDetail::new("bad_linked_input", message, &*input.key)
        .of_input(input)
        .with(Fact::ReceivedValue, value.clone())
}

pub(super) fn return_type_mismatch(input: &Declared<'_>, received: &str, link: &Literal) -> ErrorDetail {
    let wanted = input.input.type_name();
    let details = format!("{}: {received} is linked where {wanted} is wanted", input.key);
    ErrorDetail::new("return_type_mismatch", "The linked output has another type", details)
        .of_input(input)
        .with(Fact::ReceivedType, received)
        .with(Fact::LinkedNode, link.clone())
}

pub(super) fn invalid_input_type(input: &Declared<'_>, value: &Literal, reason: String) -> ErrorDetail {
    let message = format!("The value cannot be made a value of type {}", input.input.type_name());
    let details = format!("{}, {}, {reason}", input.key, to_text(value));
    ErrorDetail::new("invalid_input_type", message, details)
        .of_input(input)
        .with(Fact::ReceivedValue, value.clone())
        .with(Fact::ExceptionMessage, reason)
}

pub(super) fn value_too_small(input: &Declared<'_>, value: &Literal, min: &Literal) -> ErrorDetail {
    let message = format!("{} is below the least value, {}", to_text(value), to_text(min));
    ErrorDetail::new("value_smaller_than_min", message, &*input.key)
        .of_input(input)
        .with(Fact::ReceivedValue, value.clone())
}

pub(super) fn value_too_big(input: &Declared<'_>, value: &Literal, max: &Literal) -> ErrorDetail {
    let message = format!("{} is above the greatest value, {}", to_text(value), to_text(max));
    ErrorDetail::new("value_bigger_than_max", message, &*input.key)
        .of_input(input)
        .with(Fact::ReceivedValue, value.clone())
}

pub(super) fn value_not_in_list(input: &Declared<'_>, value: &Literal, values: &[Literal]) -> ErrorDetail {
    let is_long = values.len() > LONGEST_LIST;
    let there = if values.is_empty() {
        "there are none yet".to_owned()
    } else if is_long {
        format!("there are {} values", values.len())
    } else {
        format!("there is {}", values.iter().map(repr).collect::<Vec<_>>().join(", "))
    };
    let nearest = nearest(value, values).map(|near| format!("; did you mean {}?", repr(near)));
    let details =
        format!("{}: there is no {}; {there}{}", input.key, repr(value), nearest.unwrap_or_default());
    let config = if is_long { Literal::Null } else { config(input) };
    ErrorDetail::new("value_not_in_list", "The value is not one of the list", details)
        .with(Fact::InputName, &*input.key)
        .with(Fact::InputConfig, config)
        .with(Fact::ReceivedValue, value.clone())
}

/// How alike two texts must be for one to be a slip of the other, from 0 to 1.
const ALIKE: f64 = 0.85;

/// The text of a list that was probably meant.
fn nearest<'a>(value: &Literal, values: &'a [Literal]) -> Option<&'a Literal> {
    let wanted = value.as_text()?.to_lowercase();
    let likeness =
        |it: &&Literal| it.as_text().map(|text| strsim::jaro_winkler(&wanted, &text.to_lowercase()));
    let best = values.iter().filter_map(|it| Some((likeness(&it)?, it))).max_by(|a, b| a.0.total_cmp(&b.0));
    best.filter(|(likeness, _)| *likeness >= ALIKE).map(|(_, it)| it)
}

pub(super) fn unknown_choice(input: &Declared<'_>, value: &Literal, options: &[&str]) -> ErrorDetail {
    let details = format!("{}: {} is none of {}", input.key, repr(value), options.join(", "));
    ErrorDetail::new("invalid_dynamic_input", "The choice is not one of the options", details)
        .of_input(input)
        .with(Fact::ReceivedValue, value.clone())
}

pub(super) fn too_few_copies(input: &Declared<'_>, min: usize) -> ErrorDetail {
    let details = format!("{}: {} given, at least {min} needed", input.key, input.copies);
    ErrorDetail::new("invalid_dynamic_input", "A growing input has too few links", details)
        .of_input(input)
        .with(Fact::ReceivedValue, input.copies)
}

pub(super) fn custom_validation_failed(input: &str, reason: Option<&str>) -> ErrorDetail {
    let details = reason.map_or_else(|| input.to_owned(), |reason| format!("{input} - {reason}"));
    let message = "The node does not accept its inputs";
    ErrorDetail::new("custom_validation_failed", message, details).with(Fact::InputName, input)
}
