//! Sharded safetensors: a JSON index whose `weight_map` says which file has which tensor.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Component, Path};

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use crate::checkpoint::{MAX_ENTRIES, MAX_SHARDS};
use crate::error::excerpt;
use crate::name_index::{NameIndex, Named};
use crate::source::Source;
use crate::{Error, HeaderFault, Refusal, ShardFault, TensorFault};

/// The longest index file, in bytes.
pub const MAX_INDEX_BYTES: u64 = 100_000_000;

/// The field of an index that maps tensors to files.
const WEIGHT_MAP: &str = "weight_map";

/// What an index says: the shards by name, and for each tensor the number of its shard.
#[derive(Debug, Default)]
pub(crate) struct Index {
    /// File names, sorted.
    pub(crate) shards: Vec<Box<str>>,
    /// What the index says about each tensor, in its own order.
    pub(crate) tensors: Vec<IndexedTensor>,
}

/// A tensor and the shard that has it.
#[derive(Debug)]
pub(crate) struct IndexedTensor {
    pub(crate) name: Box<str>,
    /// Place in [`Index::shards`].
    pub(crate) shard: u32,
}

impl Named for IndexedTensor {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Reads a JSON file as an index.
pub(crate) fn parse(source: &Source) -> Result<Index, Error> {
    let bytes = source.bytes();
    if bytes.len() as u64 > MAX_INDEX_BYTES {
        let fault = HeaderFault::TooLarge { bytes: bytes.len() as u64, limit: MAX_INDEX_BYTES };
        return Err(source.header_error(fault));
    }
    let mut collector =
        Collector { source, shards: BTreeMap::new(), tensors: Vec::new(), found: false, refused: None };
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let read = IndexSeed(&mut collector).deserialize(&mut json).and_then(|()| json.end());
    match (read, collector.refused.take()) {
        (Err(_), Some(refused)) => Err(refused),
        (Err(error), None) => Err(source.header_error(HeaderFault::Json { reason: error.to_string() })),
        (Ok(()), _) if !collector.found => {
            Err(Error::Refused { file: source.path().to_owned(), reason: Refusal::Json })
        }
        (Ok(()), _) => collector.finish(),
    }
}

/// What the visitors have read so far. JSON errors carry only text, so a typed error waits in `refused`.
struct Collector<'a> {
    source: &'a Source,
    /// File names, numbered in order of appearance.
    shards: BTreeMap<Box<str>, u32>,
    tensors: Vec<IndexedTensor>,
    found: bool,
    refused: Option<Error>,
}

impl Collector<'_> {
    fn push(&mut self, name: Box<str>, file: &str) -> Result<(), Error> {
        let (count, limit) = (self.tensors.len() as u64 + 1, MAX_ENTRIES);
        if count > limit {
            return Err(self.source.header_error(HeaderFault::TooManyTensors { count, limit }));
        }
        let shard = match self.shards.get(file) {
            Some(&shard) => shard,
            None => self.add_shard(file)?,
        };
        self.tensors.push(IndexedTensor { name, shard });
        Ok(())
    }

    fn add_shard(&mut self, file: &str) -> Result<u32, Error> {
        let error = |fault| Error::Shards { file: self.source.path().to_owned(), fault };
        let (count, limit) = (self.shards.len() as u64 + 1, MAX_SHARDS);
        if count > limit {
            return Err(error(ShardFault::TooMany { count, limit }));
        }
        if !is_plain_name(file) {
            return Err(error(ShardFault::FileName { name: excerpt(file) }));
        }
        let number = self.shards.len() as u32;
        self.shards.insert(file.into(), number);
        Ok(number)
    }

    /// Numbers the shards in the order of their names and checks that no tensor is there twice.
    fn finish(self) -> Result<Index, Error> {
        if let Err((_, second)) = NameIndex::new(&self.tensors) {
            let fault = TensorFault::Duplicate { also_in: None };
            return Err(self.source.tensor_error(&self.tensors[second].name, fault));
        }
        let mut places = vec![0; self.shards.len()];
        for (place, &number) in self.shards.values().enumerate() {
            places[number as usize] = place as u32;
        }
        let mut tensors = self.tensors;
        for tensor in &mut tensors {
            tensor.shard = places[tensor.shard as usize];
        }
        Ok(Index { shards: self.shards.into_keys().collect(), tensors })
    }
}

/// Whether a name stays in its folder on every system.
fn is_plain_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    let single = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    single && !name.contains(['/', '\\', ':', '\0'])
}

struct IndexSeed<'c, 'a>(&'c mut Collector<'a>);

impl<'de> DeserializeSeed<'de> for IndexSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for IndexSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with a weight_map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let collector = self.0;
        while let Some(is_weight_map) = map.next_key_seed(IsWeightMap)? {
            if !is_weight_map {
                map.next_value::<IgnoredAny>()?;
            } else if std::mem::replace(&mut collector.found, true) {
                return Err(A::Error::custom("weight_map is there twice"));
            } else {
                map.next_value_seed(WeightMapSeed(collector))?;
            }
        }
        Ok(())
    }
}

/// Reads a field name without keeping it.
struct IsWeightMap;

impl<'de> DeserializeSeed<'de> for IsWeightMap {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsWeightMap {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a field name")
    }

    fn visit_str<E>(self, name: &str) -> Result<bool, E> {
        Ok(name == WEIGHT_MAP)
    }
}

struct WeightMapSeed<'c, 'a>(&'c mut Collector<'a>);

impl<'de> DeserializeSeed<'de> for WeightMapSeed<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for WeightMapSeed<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of file names by tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let collector = self.0;
        while let Some((tensor, file)) = map.next_entry::<Box<str>, Box<str>>()? {
            if let Err(error) = collector.push(tensor, &file) {
                let stop = A::Error::custom(&error);
                collector.refused = Some(error);
                return Err(stop);
            }
        }
        Ok(())
    }
}
