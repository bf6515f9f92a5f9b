//! The values of a node's widgets: stored by position, sent by name.
//!
//! The positions follow from the schema: an input has a widget if a person can type its value. Some widgets
//! take a second place for a control that never reaches a prompt: what happens to a seed after a run, or the
//! button that uploads a file.

use graph::{Input, Kind, Literal, Map, Schema};

use crate::document::{Node, Values};

/// Types that are no constants of a prompt's own, and that editors have widgets for all the same.
const WIDGET_TYPES: &[&str] = &[
    "BOUNDING_BOX",
    "BOUNDING_BOXES",
    "CHART",
    "COLOR",
    "COLORS",
    "COMPOSITOR",
    "CURVE",
    "GALLERIA",
    "IMAGECOMPARE",
    "LOAD_3D",
    "LOAD_3D_ANIMATION",
    "MARKDOWN",
    "PAINTER",
    "RANGE",
    "TEXTAREA",
    "VIDEO_EDIT",
    "WEBCAM",
];

/// The values of one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WidgetValues {
    /// In the order of the widgets.
    pub(crate) values: Map,
    /// Widgets that nothing is stored for.
    pub(crate) missing: Vec<String>,
    /// How many stored values belong to no widget.
    pub(crate) extra: usize,
}

/// Reads the values of a node of a known class.
pub(crate) fn read(schema: &Schema, node: &Node<'_>) -> WidgetValues {
    match node.values {
        Values { list: Some(list), named } => {
            let by_position = read_list(schema, node, list);
            match named {
                // Editors that store both write the same values; the names still fit when the class has changed.
                Some(named) if by_position.extra > 0 || !by_position.missing.is_empty() => {
                    read_named(schema, node, named)
                }
                _ => by_position,
            }
        }
        Values { list: None, named: Some(named) } => {
            let mut read = read_named(schema, node, named);
            // Some nodes make their widgets themselves, and no schema has them.
            let others = named.iter().filter(|(_, value)| value.as_map().is_none());
            for (name, value) in others {
                read.values.entry(name.clone()).or_insert_with(|| sendable(value.clone()));
            }
            read
        }
        Values { list: None, named: None } => {
            let mut read = read_list(schema, node, &[]);
            // A node that stores nothing was made by a program, which relies on the defaults.
            read.missing.clear();
            read
        }
    }
}

/// Reads the values of a node whose class is unknown, as far as its slots name its widgets.
pub(crate) fn guess(node: &Node<'_>) -> WidgetValues {
    let named =
        node.values.named.map(|named| named.iter().map(|(name, value)| (name.as_str(), value)).collect());
    let pairs: Vec<(&str, &Literal)> = named.unwrap_or_else(|| {
        let names: Vec<&str> =
            node.inputs.iter().filter(|slot| slot.is_widget).map(|slot| slot.name).collect();
        let list = node.values.list.unwrap_or_default();
        if names.len() == list.len() {
            return names.into_iter().zip(list).collect();
        }
        // The difference is usually the control that follows a seed.
        let without_controls: Vec<&Literal> = list.iter().filter(|value| !is_control_word(value)).collect();
        let fits = names.len() == without_controls.len();
        names.into_iter().zip(without_controls).take_while(|_| fits).collect()
    });
    let values = pairs.into_iter().map(|(name, value)| (name.to_owned(), sendable(value.clone()))).collect();
    WidgetValues { values, ..WidgetValues::default() }
}

/// A value as a prompt carries it: a list would be read as a link, so it is wrapped.
pub(crate) fn sendable(value: Literal) -> Literal {
    match value {
        list @ Literal::List(_) => Literal::Map(graph::map([("__value__", list)])),
        other => other,
    }
}

fn read_list(schema: &Schema, node: &Node<'_>, list: &[Literal]) -> WidgetValues {
    // Old editors gave a place to inputs that take links only; their count tells.
    let mut with_forced = ListReader::new(node, list, true);
    let has_forced = with_forced.read(schema);
    if has_forced && with_forced.at == list.len() && with_forced.out.missing.is_empty() {
        return with_forced.finish();
    }
    let mut reader = ListReader::new(node, list, false);
    reader.read(schema);
    reader.finish()
}

/// Takes values from a list, one widget after the other.
struct ListReader<'n, 'a> {
    node: &'n Node<'a>,
    list: &'n [Literal],
    at: usize,
    /// Whether inputs that take links only have a place.
    forced_have_places: bool,
    saw_forced: bool,
    out: WidgetValues,
}

impl<'n, 'a> ListReader<'n, 'a> {
    fn new(node: &'n Node<'a>, list: &'n [Literal], forced_have_places: bool) -> ListReader<'n, 'a> {
        ListReader { node, list, at: 0, forced_have_places, saw_forced: false, out: WidgetValues::default() }
    }

    /// Reads all inputs; says whether one of them takes links only although it could have a widget.
    fn read(&mut self, schema: &Schema) -> bool {
        self.read_group(&schema.inputs, "", false);
        self.skip_uploads(&schema.inputs);
        self.read_group(&schema.inputs, "", true);
        self.saw_forced
    }

    fn finish(mut self) -> WidgetValues {
        let rest = self.list.get(self.at..).unwrap_or_default();
        self.out.extra = rest.iter().filter(|value| **value != Literal::Null).count();
        self.out
    }

    fn read_group(&mut self, inputs: &[Input], prefix: &str, optional: bool) {
        for input in inputs.iter().filter(|input| input.is_optional == optional) {
            self.read_input(input, &format!("{prefix}{}", input.name));
        }
    }

    fn read_input(&mut self, input: &Input, name: &str) {
        match &input.kind {
            Kind::Autogrow(_) => {
                // Copies with a widget are the exception: the node's slots say which there are.
                let inside = format!("{name}.");
                let node = self.node;
                for slot in node.inputs.iter().filter(|slot| slot.is_widget && slot.name.starts_with(&inside))
                {
                    self.take(slot.name, None);
                }
            }
            _ if !has_widget(input, name, self.node) => {
                if is_forced(input) {
                    self.saw_forced = true;
                    self.at += usize::from(self.forced_have_places);
                }
            }
            Kind::DynamicChoice(options) => {
                let chosen = self.take(name, Some(input));
                let chosen = chosen.as_ref().and_then(Literal::as_text).unwrap_or_default();
                if let Some((_, inner)) = options.iter().find(|(key, _)| key == chosen) {
                    let prefix = format!("{name}.");
                    self.read_group(inner, &prefix, false);
                    self.read_group(inner, &prefix, true);
                }
            }
            _ => {
                self.take(name, Some(input));
                if has_control(input, name) && self.list.get(self.at).is_some_and(is_control) {
                    self.at += 1;
                }
            }
        }
    }

    /// Takes one value; the default if there is none.
    fn take(&mut self, name: &str, input: Option<&Input>) -> Option<Literal> {
        let stored = self.list.get(self.at).filter(|value| **value != Literal::Null);
        if self.at >= self.list.len() && input.is_some_and(|input| !input.is_set("hidden")) {
            self.out.missing.push(name.to_owned());
        }
        self.at = (self.at + 1).min(self.list.len());
        let value = stored.cloned().or_else(|| default_of(input?))?;
        self.out.values.insert(name.to_owned(), sendable(value.clone()));
        Some(value)
    }

    /// Passes the places of upload buttons, which follow the required widgets.
    fn skip_uploads(&mut self, inputs: &[Input]) {
        let uploads = |option: &str| inputs.iter().any(|input| input.is_set(option));
        if uploads("image_upload") || uploads("animated_image_upload") || uploads("video_upload") {
            let is_button = |value: &Literal| matches!(value.as_text(), Some("image" | "video"));
            if self.list.get(self.at).is_some_and(|value| *value == Literal::Null || is_button(value)) {
                self.at += 1;
            }
        } else if uploads("audio_upload") {
            let is_button =
                |value: &Literal| matches!(value, Literal::Null | Literal::Text(_) | Literal::Map(_));
            // One is the player, the other the button.
            for _ in 0..2 {
                self.at += usize::from(self.list.get(self.at).is_some_and(is_button));
            }
        }
    }
}

fn read_named(schema: &Schema, node: &Node<'_>, named: &Map) -> WidgetValues {
    let mut out = WidgetValues::default();
    // Inputs of a chosen option stand before what comes after the choice.
    let mut waiting: Vec<(String, &Input)> = in_widget_order(&schema.inputs, "");
    while let Some((name, input)) = waiting.pop() {
        if matches!(input.kind, Kind::Autogrow(_)) {
            let inside = format!("{name}.");
            let copies = named.iter().filter(|(copy, _)| copy.starts_with(&inside));
            out.values.extend(copies.map(|(copy, value)| (copy.clone(), sendable(value.clone()))));
            continue;
        }
        if !has_widget(input, &name, node) {
            continue;
        }
        let stored = named.get(&name).filter(|value| **value != Literal::Null);
        if !named.contains_key(&name) {
            out.missing.push(name.clone());
        }
        let Some(value) = stored.cloned().or_else(|| default_of(input)) else { continue };
        if let Kind::DynamicChoice(options) = &input.kind {
            let chosen = value.as_text().unwrap_or_default();
            if let Some((_, inner)) = options.iter().find(|(key, _)| key == chosen) {
                waiting.extend(in_widget_order(inner, &format!("{name}.")));
            }
        }
        out.values.insert(name, sendable(value));
    }
    out
}

/// The inputs with their full names, the last one first: required ones come before optional ones.
fn in_widget_order<'s>(inputs: &'s [Input], prefix: &str) -> Vec<(String, &'s Input)> {
    let required = inputs.iter().filter(|input| !input.is_optional);
    let optional = inputs.iter().filter(|input| input.is_optional);
    let ordered: Vec<&Input> = required.chain(optional).collect();
    ordered.into_iter().rev().map(|input| (format!("{prefix}{}", input.name), input)).collect()
}

/// Whether a person can type an input's value.
pub(crate) fn has_widget(input: &Input, name: &str, node: &Node<'_>) -> bool {
    if input.is_set("forceInput") {
        return false;
    }
    match &input.kind {
        Kind::Int | Kind::Float | Kind::Text | Kind::Boolean | Kind::Choice(_) | Kind::DynamicChoice(_) => {
            true
        }
        Kind::Socket(kind) => {
            let shown_as = input.options.get("widgetType").and_then(Literal::as_text).unwrap_or(kind);
            let is_constant = matches!(shown_as, "INT" | "FLOAT" | "STRING" | "BOOLEAN" | "COMBO");
            let slot = node.input_named(name).map(|at| &node.inputs[at]);
            (is_constant || WIDGET_TYPES.contains(&shown_as)) && slot.is_none_or(|slot| slot.is_widget)
        }
        Kind::Autogrow(_) | Kind::MatchType { .. } => false,
    }
}

/// Whether an input takes links only although it is a constant's type.
fn is_forced(input: &Input) -> bool {
    let is_constant =
        matches!(input.kind, Kind::Int | Kind::Float | Kind::Text | Kind::Boolean | Kind::Choice(_));
    is_constant && input.is_set("forceInput")
}

/// Whether a control follows an input's widget: seeds have one unless they say otherwise.
fn has_control(input: &Input, name: &str) -> bool {
    match (&input.kind, input.options.get("control_after_generate")) {
        (Kind::Int | Kind::Choice(_), Some(control)) => control.is_truthy(),
        (Kind::Int, None) => matches!(name, "seed" | "noise_seed"),
        _ => false,
    }
}

/// Whether a stored value can be that of a control. The oldest editors stored whether to draw a new seed.
fn is_control(value: &Literal) -> bool {
    matches!(value, Literal::Null | Literal::Bool(_)) || is_control_word(value)
}

fn is_control_word(value: &Literal) -> bool {
    matches!(value.as_text(), Some("fixed" | "increment" | "decrement" | "randomize" | "increment-wrap"))
}

/// What a widget shows before anyone touches it.
fn default_of(input: &Input) -> Option<Literal> {
    if let Some(default) = input.options.get("default") {
        return Some(default.clone());
    }
    match &input.kind {
        Kind::Int => Some(Literal::Int(0)),
        Kind::Float => Some(Literal::Float(0.0)),
        Kind::Text => Some(Literal::Text(String::new())),
        Kind::Boolean => Some(Literal::Bool(false)),
        Kind::Choice(choices) => choices.first().cloned(),
        Kind::DynamicChoice(options) => options.first().map(|(key, _)| Literal::Text(key.clone())),
        _ => None,
    }
}
