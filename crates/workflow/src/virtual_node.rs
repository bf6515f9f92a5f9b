//! Nodes that only editors know: they are drawn, and never run.

use graph::Literal;

use crate::document::Node;

/// What a node that never runs does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VirtualNode {
    /// Its output is its input.
    Reroute,
    /// It gives its own value to the widgets that it is linked to.
    Primitive,
    /// Its input is known by a name, and goes out, too.
    Set,
    /// It gives what a [`VirtualNode::Set`] of the same name was given.
    Get,
    /// It has no outputs that count: a note, a label, a switch panel.
    Decoration,
}

/// Classes that are only drawn, or that steer the editor itself. What those that send a value everywhere do is
/// stored as links in the file.
const DECORATIONS: &[&str] = &[
    "Note",
    "MarkdownNote",
    "Anything Everywhere",
    "Anything Everywhere3",
    "Anything Everywhere?",
    "Bookmark (rgthree)",
    "Fast Actions Button (rgthree)",
    "Fast Bypasser (rgthree)",
    "Fast Groups Bypasser (rgthree)",
    "Fast Groups Muter (rgthree)",
    "Fast Muter (rgthree)",
    "Label (rgthree)",
    "Mute / Bypass Relay (rgthree)",
    "Mute / Bypass Repeater (rgthree)",
    "Node Collector (rgthree)",
    "Prompts Everywhere",
    "Random Unmuter (rgthree)",
];

impl VirtualNode {
    /// What a class does, if it never runs.
    pub(crate) fn of(class: &str) -> Option<VirtualNode> {
        match class {
            "Reroute" | "Reroute (rgthree)" => Some(VirtualNode::Reroute),
            "PrimitiveNode" => Some(VirtualNode::Primitive),
            "SetNode" | "easy setNode" => Some(VirtualNode::Set),
            "GetNode" | "easy getNode" => Some(VirtualNode::Get),
            _ => DECORATIONS.contains(&class).then_some(VirtualNode::Decoration),
        }
    }
}

/// The name under which a set and a get node meet.
pub(crate) fn shared_name<'a>(node: &Node<'a>) -> Option<&'a str> {
    node.values.list?.first().and_then(Literal::as_text)
}
