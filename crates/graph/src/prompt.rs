//! A workflow as it is sent: nodes by id, each with a class and its inputs.

use indexmap::IndexMap;

use crate::literal::{Literal, Map};
use crate::value::{Link, NodeId};

/// A prompt: what a client posts, in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Prompt {
    /// The nodes.
    pub nodes: IndexMap<NodeId, PromptNode>,
}

/// One node of a prompt, as sent. Parts may be missing: validation says so.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptNode {
    /// The class, if it is given as text.
    pub class_type: Option<String>,
    /// Constants and links (`["id", slot]`), if they are given as an object.
    pub inputs: Option<Map>,
    /// Everything else that was sent, such as `_meta`; echoed.
    pub rest: Map,
}

impl Prompt {
    /// Reads a prompt; `None` if it is no object. A node that is no object has neither class nor inputs.
    #[must_use]
    pub fn from_literal(literal: &Literal) -> Option<Prompt> {
        let nodes =
            literal.as_map()?.iter().map(|(id, node)| (NodeId::from(id.as_str()), PromptNode::read(node)));
        Some(Prompt { nodes: nodes.collect() })
    }

    /// The prompt as it is echoed: with the inputs that validation converted.
    #[must_use]
    pub fn to_literal(&self) -> Literal {
        Literal::Map(self.nodes.iter().map(|(id, node)| (id.to_string(), node.to_literal())).collect())
    }
}

impl PromptNode {
    /// A node of a class.
    pub fn new(class: &str, inputs: Map) -> PromptNode {
        PromptNode { class_type: Some(class.to_owned()), inputs: Some(inputs), rest: Map::new() }
    }

    fn read(literal: &Literal) -> PromptNode {
        let mut node = PromptNode::default();
        for (key, value) in literal.as_map().into_iter().flatten() {
            match (key.as_str(), value) {
                ("class_type", Literal::Text(class)) => node.class_type = Some(class.clone()),
                ("inputs", Literal::Map(inputs)) => node.inputs = Some(inputs.clone()),
                _ => {
                    node.rest.insert(key.clone(), value.clone());
                }
            }
        }
        node
    }

    fn to_literal(&self) -> Literal {
        let mut map = Map::new();
        if let Some(inputs) = &self.inputs {
            map.insert("inputs".to_owned(), Literal::Map(inputs.clone()));
        }
        if let Some(class) = &self.class_type {
            map.insert("class_type".to_owned(), Literal::Text(class.clone()));
        }
        map.extend(self.rest.clone());
        Literal::Map(map)
    }
}

/// The key of an object that holds a constant. A list that would be taken for a link is sent so.
pub(crate) const WRAPPER: &str = "__value__";

/// The constant that an input is, out of its wrapper.
pub(crate) fn constant_of(literal: &Literal) -> &Literal {
    literal.get(WRAPPER).unwrap_or(literal)
}

/// The link that an input's constant is, if it is one: a list of a node's id and a slot.
#[must_use]
pub fn link_of(literal: &Literal) -> Option<Link> {
    match literal.as_list()? {
        [Literal::Text(node), Literal::Int(slot)] => {
            Some(Link::new(node.as_str(), usize::try_from(*slot).ok()?))
        }
        _ => None,
    }
}
