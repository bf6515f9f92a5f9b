//! From the values of a pickle to entries: the dictionary of tensors is found, and each tensor's place in the file.

use std::ops::Range;

use meta::{Encoding, MAX_RANK, Shape};

use super::PickleFault;
use super::nodes::{Node, Nodes, Slot, Tensor};
use crate::checkpoint::MAX_ENTRIES;
use crate::source::Source;
use crate::{Entry, Error, HeaderFault, MAX_NAME_BYTES, TensorFault};

/// Keys under which programs save the dictionary of tensors, beside other things; the first that is there counts.
const WRAPPERS: [&str; 7] = ["state_dict", "params_ema", "params-ema", "params", "model", "net", "module"];
/// The most dictionaries around a tensor.
const MAX_DEPTH: usize = 8;
/// Bytes that the names of tensors may have together, for each byte of the pickle: they are made of the keys of dictionaries.
const NAME_BYTES_PER_BYTE: usize = 8;

/// Where the bytes of a storage lie, by its name.
pub(super) type Place<'a> = dyn Fn(&str) -> Result<Option<Range<u64>>, Error> + 'a;

/// What tensors are found in.
pub(super) struct Tensors<'a> {
    pub(super) source: &'a Source,
    pub(super) nodes: &'a Nodes<'a>,
    pub(super) place: &'a Place<'a>,
}

/// What has been found.
#[derive(Default)]
struct Found {
    entries: Vec<Entry>,
    name_bytes: usize,
    /// Values that were looked at.
    seen: u64,
}

impl Tensors<'_> {
    /// The tensors of what a pickle made.
    pub(super) fn entries(&self, root: Slot) -> Result<Vec<Entry>, Error> {
        let mut found = Found::default();
        self.collect(self.unwrapped(root), "", 0, &mut found)?;
        if found.entries.is_empty() {
            return Err(self.refused(PickleFault::NoTensors));
        }
        found.entries.shrink_to_fit();
        Ok(found.entries)
    }

    /// The dictionary of tensors, which may lie within others.
    fn unwrapped(&self, root: Slot) -> Slot {
        let mut dict = root;
        for _ in 0..MAX_DEPTH {
            let pairs = self.nodes.pairs(dict).unwrap_or_default();
            let is_tensor = |slot: &Slot| matches!(self.nodes.get(*slot), Some(Node::Tensor(_)));
            if pairs.iter().any(|(_, value)| is_tensor(value)) {
                return dict;
            }
            let is_dict = |slot: &Slot| self.nodes.pairs(*slot).is_some_and(|pairs| !pairs.is_empty());
            let named = WRAPPERS.iter().find_map(|key| self.nodes.value(dict, key).filter(is_dict));
            match named {
                Some(inner) => dict = inner,
                None => return dict,
            }
        }
        dict
    }

    fn collect(&self, slot: Slot, name: &str, depth: usize, found: &mut Found) -> Result<(), Error> {
        found.seen += 1;
        if depth > MAX_DEPTH || found.seen > MAX_ENTRIES {
            return Err(self.refused(PickleFault::TooDeep));
        }
        match self.nodes.get(slot) {
            Some(Node::Tensor(tensor)) => self.add(tensor, name, found),
            Some(Node::Dict(pairs)) => {
                for (index, (key, value)) in pairs.iter().enumerate() {
                    // Of two values with one key, a dictionary has the last.
                    let is_last = || self.is_last(pairs, index, *key);
                    if let Some(key) = self.key(*key)
                        && self.leads_to_tensors(*value)
                        && is_last()
                    {
                        self.collect(*value, &joined(name, &key), depth + 1, found)?;
                    }
                }
                Ok(())
            }
            Some(Node::List(items)) => self.collect_items(items, name, depth, found),
            Some(Node::Tuple(items)) => self.collect_items(items, name, depth, found),
            _ => Ok(()),
        }
    }

    fn collect_items(
        &self,
        items: &[Slot],
        name: &str,
        depth: usize,
        found: &mut Found,
    ) -> Result<(), Error> {
        for (index, item) in items.iter().enumerate() {
            if self.leads_to_tensors(*item) {
                self.collect(*item, &joined(name, &index.to_string()), depth + 1, found)?;
            }
        }
        Ok(())
    }

    /// Whether a value is a tensor or may hold one.
    fn leads_to_tensors(&self, slot: Slot) -> bool {
        match self.nodes.get(slot) {
            Some(Node::Tensor(_)) => true,
            Some(Node::Dict(pairs)) => !pairs.is_empty(),
            Some(Node::List(items)) => !items.is_empty(),
            Some(Node::Tuple(items)) => !items.is_empty(),
            _ => false,
        }
    }

    /// Whether no later pair has the same key. Only neighbours are looked at: what is further away is told as a name that is
    /// used twice.
    fn is_last(&self, pairs: &[(Slot, Slot)], index: usize, key: Slot) -> bool {
        pairs.get(index + 1).is_none_or(|(next, _)| self.key(*next) != self.key(key))
    }

    fn key(&self, slot: Slot) -> Option<String> {
        match slot {
            Slot::Int(value) => Some(value.to_string()),
            _ => self.nodes.text(slot).map(str::to_owned),
        }
    }

    fn add(&self, tensor: &Tensor, name: &str, found: &mut Found) -> Result<(), Error> {
        let (number, bytes) = (found.entries.len() as u64, name.len() as u64);
        if bytes > MAX_NAME_BYTES {
            let (what, limit) = ("tensor", MAX_NAME_BYTES);
            return Err(self.source.header_error(HeaderFault::NameTooLong { what, number, bytes, limit }));
        }
        found.name_bytes += name.len();
        if found.name_bytes > NAME_BYTES_PER_BYTE * self.nodes.len_bytes() {
            return Err(self.refused(PickleFault::TooDeep));
        }
        found.entries.push(self.entry(tensor, name)?);
        Ok(())
    }

    fn entry(&self, tensor: &Tensor, name: &str) -> Result<Entry, Error> {
        let fault = |fault| self.source.tensor_error(name, fault);
        let rank = tensor.size.len() as u64;
        if rank > MAX_RANK as u64 {
            return Err(fault(TensorFault::Rank { rank }));
        }
        let dims = tensor
            .size
            .iter()
            .map(|size| usize::try_from(*size).map_err(|_| fault(TensorFault::Dimension { size: *size })));
        let shape = Shape::new(&dims.collect::<Result<Vec<usize>, Error>>()?);
        let shape = shape.map_err(|error| fault(TensorFault::Rank { rank: error.rank as u64 }))?;
        if !is_packed(&tensor.size, &tensor.stride) {
            return Err(fault(TensorFault::Strided { strides: tensor.stride.to_vec() }));
        }
        let key = self.nodes.text_at(&tensor.storage.key).unwrap_or("?");
        let unknown = || fault(TensorFault::UnknownDtype { dtype: "of an untyped storage".into() });
        let encoding = Encoding::from(tensor.dtype.ok_or_else(unknown)?);
        let len = encoding.bytes(&shape).map_err(|error| fault(error.into()))?;
        let lacks = || fault(TensorFault::NoStorage { storage: crate::error::excerpt(key) });
        let place = (self.place)(key)?.ok_or_else(lacks)?;
        let size = encoding.bytes(&Shape::from([1])).map_err(|error| fault(error.into()))?;
        let skipped = tensor.offset.checked_mul(size);
        let start = skipped.and_then(|skipped| place.start.checked_add(skipped));
        let (offset, storage) = (tensor.offset, place.end - place.start);
        let outside = || fault(TensorFault::OutsideStorage { offset, len, storage });
        let start = start.filter(|start| *start <= place.end).ok_or_else(outside)?;
        let end = start.checked_add(len).filter(|end| *end <= place.end).ok_or_else(outside)?;
        Ok(Entry::new(name.into(), encoding, shape, 0, start..end))
    }

    fn refused(&self, fault: PickleFault) -> Error {
        super::refused(self.source, fault)
    }
}

/// A key within a dictionary that has a name itself.
fn joined(name: &str, key: &str) -> String {
    if name.is_empty() { key.to_owned() } else { format!("{name}.{key}") }
}

/// Whether values stand in order, one after the other. Dimensions of size 1 may have any stride.
fn is_packed(size: &[u64], stride: &[u64]) -> bool {
    if size.len() != stride.len() {
        return false;
    }
    if size.contains(&0) {
        return true;
    }
    let mut packed = 1u64;
    for (size, stride) in size.iter().zip(stride).rev() {
        if *size != 1 && *stride != packed {
            return false;
        }
        packed = packed.saturating_mul(*size);
    }
    true
}
