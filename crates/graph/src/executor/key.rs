//! What a node's output is kept under: its class, its constants, and the keys of what it is linked to.
//!
//! Equal parts of two prompts have equal keys, whatever their nodes are called. A key is 128 bits of two
//! hashes that are seeded anew for each shelf, so nobody can choose inputs that collide.

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::class::GraphInput;
use crate::executor::live::LiveNode;
use crate::literal::Literal;
use crate::schema::Hidden;
use crate::value::Value;

/// What an output is kept under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key(u64, u64);

/// What a class says of the state outside its inputs.
pub(super) enum Fingerprint {
    /// Nothing but the inputs counts.
    None,
    /// This counts, too.
    Some(Literal),
    /// It could not be said, so the node counts as changed.
    Unknown,
}

/// Makes keys.
#[derive(Default)]
pub(super) struct KeyMaker {
    first: RandomState,
    second: RandomState,
    /// How many things were met that equal nothing.
    unequalled: AtomicU64,
}

/// A node's description, byte by byte; each part says what it is and how long.
struct Signature<'a> {
    bytes: Vec<u8>,
    unequalled: &'a AtomicU64,
}

impl KeyMaker {
    /// The key of a node. `source` gives the keys of linked nodes; one without a key equals nothing.
    pub(super) fn key(
        &self,
        node: &LiveNode,
        fingerprint: &Fingerprint,
        source: impl Fn(&str) -> Option<Key>,
    ) -> Key {
        let mut signature = Signature { bytes: Vec::with_capacity(256), unequalled: &self.unequalled };
        signature.text(&node.identity.class);
        match fingerprint {
            Fingerprint::None => signature.bytes.push(0),
            Fingerprint::Some(literal) => signature.literal(literal),
            Fingerprint::Unknown => signature.unequalled(),
        }
        let schema = &node.info.schema;
        if schema.is_per_node || schema.hidden.iter().any(|(_, hidden)| *hidden == Hidden::UniqueId) {
            signature.text(&node.identity.node);
        }
        let mut inputs: Vec<(&String, &GraphInput)> = node.inputs.iter().collect();
        inputs.sort_unstable_by_key(|(name, _)| *name);
        for (name, input) in inputs {
            signature.text(name);
            match input {
                GraphInput::Link(link) => match source(&link.node) {
                    Some(key) => signature.link(key, link.slot),
                    None => signature.unequalled(),
                },
                GraphInput::Literal(literal) | GraphInput::Value(Value::Literal(literal)) => {
                    signature.literal(literal);
                }
                GraphInput::Value(Value::Blocker(message)) => {
                    signature.bytes.push(b'b');
                    signature.text(message.as_deref().unwrap_or_default());
                }
                GraphInput::Value(Value::Object(_)) => signature.unequalled(),
            }
        }
        let bytes = signature.bytes;
        Key(self.first.hash_one(&bytes), self.second.hash_one(&bytes))
    }
}

impl Signature<'_> {
    fn length(&mut self, length: usize) {
        self.bytes.extend((length as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.bytes.push(b't');
        self.length(text.len());
        self.bytes.extend(text.as_bytes());
    }

    fn link(&mut self, key: Key, slot: usize) {
        self.bytes.push(b'l');
        self.bytes.extend(key.0.to_le_bytes());
        self.bytes.extend(key.1.to_le_bytes());
        self.length(slot);
    }

    /// Something that is not even equal to itself.
    fn unequalled(&mut self) {
        let number = self.unequalled.fetch_add(1, Ordering::Relaxed);
        self.bytes.push(b'u');
        self.bytes.extend(number.to_le_bytes());
    }

    fn literal(&mut self, literal: &Literal) {
        match literal {
            Literal::Null => self.bytes.push(b'n'),
            Literal::Bool(flag) => self.bytes.extend([b'?', u8::from(*flag)]),
            Literal::Int(number) => {
                self.bytes.push(b'i');
                self.bytes.extend(number.to_le_bytes());
            }
            Literal::Float(number) if number.is_nan() => self.unequalled(),
            Literal::Float(number) => {
                self.bytes.push(b'f');
                self.bytes.extend(number.to_le_bytes());
            }
            Literal::Text(text) => self.text(text),
            Literal::List(list) => {
                self.bytes.push(b'[');
                self.length(list.len());
                for item in list {
                    self.literal(item);
                }
            }
            Literal::Map(map) => {
                self.bytes.push(b'{');
                self.length(map.len());
                let mut entries: Vec<(&String, &Literal)> = map.iter().collect();
                entries.sort_unstable_by_key(|(name, _)| *name);
                for (name, item) in entries {
                    self.text(name);
                    self.literal(item);
                }
            }
        }
    }
}
