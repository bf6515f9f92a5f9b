//! The inputs that a node has: those that its class declares, with what a growing input or a choice brings
//! spelled out from the keys that were sent.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;

use indexmap::IndexMap;

use crate::class::{GraphInput, NodeClass};
use crate::literal::{Literal, Map};
use crate::schema::{Autogrow, GrowingNames, Hidden, Input, Kind, Schema};

/// A class with its declaration, which is asked for once per prompt: it may read folders.
pub(crate) struct ClassInfo {
    pub(crate) class: Arc<dyn NodeClass>,
    pub(crate) schema: Schema,
    roles: HashMap<String, Role>,
    is_dynamic: bool,
}

/// What is done with a declared input.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Role {
    /// It is evaluated only when the node asks for it.
    pub(crate) is_lazy: bool,
    /// The node gets the link itself.
    pub(crate) is_raw_link: bool,
}

/// An input that a node has, under its key in the prompt.
pub(crate) struct Declared<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) input: &'a Input,
    /// How many copies of a growing input were sent.
    pub(crate) copies: usize,
}

/// The keys that were sent, of a prompt's node or of a running one.
pub(crate) trait Sent {
    fn has(&self, key: &str) -> bool;
    fn constant(&self, key: &str) -> Option<&Literal>;
}

impl Sent for Map {
    fn has(&self, key: &str) -> bool {
        self.contains_key(key)
    }

    fn constant(&self, key: &str) -> Option<&Literal> {
        self.get(key)
    }
}

impl Sent for IndexMap<String, GraphInput> {
    fn has(&self, key: &str) -> bool {
        self.contains_key(key)
    }

    fn constant(&self, key: &str) -> Option<&Literal> {
        match self.get(key)? {
            GraphInput::Literal(literal) => Some(literal),
            GraphInput::Value(value) => value.literal(),
            GraphInput::Link(_) => None,
        }
    }
}

impl ClassInfo {
    pub(crate) fn new(class: Arc<dyn NodeClass>) -> ClassInfo {
        let schema = class.schema();
        let mut roles: HashMap<String, Role> =
            schema.inputs.iter().map(|input| (input.name.clone(), role_of(input))).collect();
        for (name, hidden) in &schema.hidden {
            if matches!(hidden, Hidden::Input(_)) {
                roles.entry(name.clone()).or_default();
            }
        }
        let is_dynamic = schema.inputs.iter().any(|input| is_dynamic(&input.kind));
        ClassInfo { class, schema, roles, is_dynamic }
    }

    /// The inputs that a node with these keys has, in widget order.
    pub(crate) fn declared(&self, sent: &dyn Sent) -> Vec<Declared<'_>> {
        let mut declared = Vec::with_capacity(self.schema.inputs.len());
        spell_out(&self.schema.inputs, "", sent, &mut declared);
        declared
    }

    /// What is done with each key that was sent; `None` for one that is not declared.
    pub(crate) fn roles<'a>(
        &self,
        sent: &dyn Sent,
        keys: impl Iterator<Item = &'a String>,
    ) -> Vec<Option<Role>> {
        if !self.is_dynamic {
            return keys.map(|key| self.roles.get(key).copied()).collect();
        }
        let declared = self.declared(sent);
        let mut roles: HashMap<&str, Role> =
            declared.iter().map(|one| (one.key.as_ref(), role_of(one.input))).collect();
        for (name, role) in &self.roles {
            roles.entry(name).or_insert(*role);
        }
        keys.map(|key| roles.get(key.as_str()).copied()).collect()
    }

    /// Whether such a node may look at the rest of the graph, or pass on links into it.
    pub(crate) fn looks_at_graph(&self) -> bool {
        let asks = self.schema.hidden.iter().any(|(_, hidden)| *hidden == Hidden::DynamicPrompt);
        asks || self.roles.values().any(|role| role.is_raw_link)
    }

    /// Whether a node of it may ask for inputs.
    pub(crate) fn is_lazy(&self) -> bool {
        self.is_dynamic || self.roles.values().any(|role| role.is_lazy)
    }
}

fn role_of(input: &Input) -> Role {
    Role { is_lazy: input.is_lazy(), is_raw_link: input.is_raw_link() }
}

fn is_dynamic(kind: &Kind) -> bool {
    matches!(kind, Kind::DynamicChoice(_) | Kind::Autogrow(_))
}

fn spell_out<'a>(inputs: &'a [Input], prefix: &str, sent: &dyn Sent, into: &mut Vec<Declared<'a>>) {
    for input in inputs {
        let key = if prefix.is_empty() {
            Cow::Borrowed(input.name.as_str())
        } else {
            Cow::Owned(format!("{prefix}{}", input.name))
        };
        match &input.kind {
            Kind::DynamicChoice(options) => {
                let chosen = sent.constant(&key).and_then(Literal::as_text);
                let inner = options.iter().find(|(name, _)| Some(name.as_str()) == chosen);
                let prefix = format!("{key}.");
                into.push(Declared { key, input, copies: 0 });
                if let Some((_, inputs)) = inner {
                    spell_out(inputs, &prefix, sent, into);
                }
            }
            Kind::Autogrow(growing) => {
                let copies = copies_of(growing, &key, sent);
                into.push(Declared { key, input, copies: copies.len() });
                into.extend(copies);
            }
            _ => into.push(Declared { key, input, copies: 0 }),
        }
    }
}

fn copies_of<'a>(growing: &'a Autogrow, key: &str, sent: &dyn Sent) -> Vec<Declared<'a>> {
    let copy = |name: String| {
        let key = format!("{key}.{name}");
        let is_sent = sent.has(&key);
        is_sent.then_some(Declared { key: Cow::Owned(key), input: &growing.input, copies: 0 })
    };
    match &growing.names {
        GrowingNames::Counted { prefix, max } => {
            (0..*max).filter_map(|number| copy(format!("{prefix}{number}"))).collect()
        }
        GrowingNames::Listed(names) => names.iter().filter_map(|name| copy(name.clone())).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::literal::map;

    fn keys(inputs: &[Input], sent: &Map) -> Vec<String> {
        let mut declared = Vec::new();
        spell_out(inputs, "", sent, &mut declared);
        declared.iter().map(|one| format!("{}:{}", one.key, one.copies)).collect()
    }

    #[test]
    fn a_choice_brings_the_inputs_of_its_option() {
        let inner =
            Input::new("mode", Kind::DynamicChoice(vec![("x".to_owned(), vec![Input::text("t", "")])]));
        let options = vec![
            ("size".to_owned(), vec![Input::int("width", 1, 1, 9), inner]),
            ("factor".to_owned(), vec![Input::float("by", 1.0, 0.0, 9.0, 0.1)]),
        ];
        let inputs = [Input::new("resize", Kind::DynamicChoice(options))];
        let sent = map([("resize", Literal::from("size")), ("resize.mode", Literal::from("x"))]);
        assert_eq!(keys(&inputs, &sent), ["resize:0", "resize.width:0", "resize.mode:0", "resize.mode.t:0"]);
        let sent = map([("resize", Literal::from("factor"))]);
        assert_eq!(keys(&inputs, &sent), ["resize:0", "resize.by:0"]);
        assert_eq!(keys(&inputs, &Map::new()), ["resize:0"]);
    }

    #[test]
    fn a_growing_input_has_the_copies_that_were_sent() {
        let names = GrowingNames::Counted { prefix: "image".to_owned(), max: 10 };
        let growing = Autogrow { input: Input::socket("image", "IMAGE"), names, min: 1 };
        let inputs = [Input::new("images", Kind::Autogrow(Box::new(growing)))];
        let sent = map([
            ("images.image3", Literal::Null),
            ("images.image0", Literal::Null),
            ("images.image10", Literal::Null),
        ]);
        assert_eq!(keys(&inputs, &sent), ["images:2", "images.image0:0", "images.image3:0"]);
    }
}
