//! What a pickle makes: values that refer to each other by number, so that none owns another and cycles do no harm.

use std::ops::Range;

use meta::DType;

use super::globals::Global;

/// A value: a small one itself, others by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    None,
    Bool(bool),
    Int(i32),
    Node(u32),
}

/// A value that is not small.
#[derive(Debug)]
pub(super) enum Node {
    Long(i64),
    /// Text, as its place in the pickle.
    Text(Range<u32>),
    Tuple(Box<[Slot]>),
    List(Vec<Slot>),
    Dict(Vec<(Slot, Slot)>),
    /// Something of Python that is known.
    Global(Global),
    /// Something else of Python, by the places of its module and its name. It may stand there; it is not called.
    Unknown(Box<[Range<u32>; 2]>),
    Storage(Box<Storage>),
    Tensor(Box<Tensor>),
    /// A value of which nothing is known, since no tensor needs it.
    Inert,
}

/// The bytes that tensors lie in.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    /// The type of its values, unless its tensors say it.
    pub(super) dtype: Option<DType>,
    /// The place of its name in the pickle.
    pub(super) key: Range<u32>,
}

/// A tensor in a storage.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    pub(super) storage: Storage,
    pub(super) dtype: Option<DType>,
    /// Values before its first.
    pub(super) offset: u64,
    pub(super) size: Box<[u64]>,
    pub(super) stride: Box<[u64]>,
}

/// All values of a pickle.
#[derive(Debug, Default)]
pub(super) struct Nodes<'a> {
    bytes: &'a [u8],
    all: Vec<Node>,
}

impl<'a> Nodes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Nodes<'a> {
        Nodes { bytes, all: Vec::new() }
    }

    pub(super) fn push(&mut self, node: Node) -> Slot {
        // There are fewer nodes than bytes, which 32 bits count.
        let number = self.all.len() as u32;
        self.all.push(node);
        Slot::Node(number)
    }

    /// Every value.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Node> {
        self.all.iter()
    }

    /// Bytes of the pickle.
    pub(super) fn len_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn get(&self, slot: Slot) -> Option<&Node> {
        match slot {
            Slot::Node(number) => self.all.get(number as usize),
            _ => None,
        }
    }

    pub(super) fn get_mut(&mut self, slot: Slot) -> Option<&mut Node> {
        match slot {
            Slot::Node(number) => self.all.get_mut(number as usize),
            _ => None,
        }
    }

    /// The text at a place, if it is text.
    pub(super) fn text_at(&self, place: &Range<u32>) -> Option<&'a str> {
        str::from_utf8(self.bytes.get(place.start as usize..place.end as usize)?).ok()
    }

    /// The text of a value.
    pub(super) fn text(&self, slot: Slot) -> Option<&'a str> {
        match self.get(slot)? {
            Node::Text(place) => self.text_at(place),
            _ => None,
        }
    }

    /// The number of a value.
    pub(super) fn number(&self, slot: Slot) -> Option<u64> {
        match (slot, self.get(slot)) {
            (Slot::Int(value), _) => u64::try_from(value).ok(),
            (_, Some(Node::Long(value))) => u64::try_from(*value).ok(),
            _ => None,
        }
    }

    /// The items of a tuple or a list.
    pub(super) fn items(&self, slot: Slot) -> Option<&[Slot]> {
        match self.get(slot)? {
            Node::Tuple(items) => Some(items),
            Node::List(items) => Some(items),
            _ => None,
        }
    }

    /// The pairs of a dictionary.
    pub(super) fn pairs(&self, slot: Slot) -> Option<&[(Slot, Slot)]> {
        match self.get(slot)? {
            Node::Dict(pairs) => Some(pairs),
            _ => None,
        }
    }

    /// The value that a dictionary has for a text; the last if there are several.
    pub(super) fn value(&self, dict: Slot, key: &str) -> Option<Slot> {
        let pairs = self.pairs(dict)?;
        pairs.iter().rev().find(|(name, _)| self.text(*name) == Some(key)).map(|(_, value)| *value)
    }
}
