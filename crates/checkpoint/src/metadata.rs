//! What a file says about itself beside its tensors: the text map of safetensors and the typed keys of
//! GGUF behind one type. Long values stay in the mapped file until they are asked for.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::gguf::{Array, ElementType};
use crate::name_index::{NameIndex, Named};
use crate::source::Source;
use crate::{Error, ValueFault};

/// The key under which converters say what a model is.
const ARCHITECTURE: &str = "general.architecture";

/// The metadata of a checkpoint: values by key, in the file's order.
#[derive(Debug)]
pub struct Metadata {
    source: Arc<Source>,
    pairs: Vec<Pair>,
    index: NameIndex,
}

/// A key and its value, as kept.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) key: Box<str>,
    pub(crate) value: Stored,
}

/// A value as kept: small ones themselves, others as their place in the file.
#[derive(Debug)]
pub(crate) enum Stored {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Bool(bool),
    Text(Box<str>),
    TextAt(Range<usize>),
    ArrayAt { element: ElementType, len: usize, bytes: Range<usize> },
}

impl Named for Pair {
    fn name(&self) -> &str {
        &self.key
    }
}

/// One metadata value. Numbers are widened to 64 bits, which loses nothing.
#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    /// An unsigned integer.
    Unsigned(u64),
    /// A signed integer.
    Signed(i64),
    /// A float.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Text.
    Str(&'a str),
    /// Many values of one type (GGUF only), still in the file.
    Array(Array<'a>),
}

impl Metadata {
    /// Takes values read from `source`; an error if a key is there twice.
    pub(crate) fn new(source: Arc<Source>, mut pairs: Vec<Pair>) -> Result<Metadata, Error> {
        pairs.shrink_to_fit();
        match NameIndex::new(&pairs) {
            Ok(index) => Ok(Metadata { source, pairs, index }),
            Err((_, second)) => Err(source.value_error(&pairs[second].key, ValueFault::Duplicate)),
        }
    }

    /// Number of keys.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Every key, in the file's order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.pairs.iter().map(|pair| &*pair.key)
    }

    /// Every key and value, in the file's order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Value<'_>)> {
        self.pairs.iter().filter_map(|pair| Some((&*pair.key, self.value(pair)?)))
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'_>> {
        self.value(&self.pairs[self.index.find(&self.pairs, key)?])
    }

    /// What the file says that its model is, by the word of who converted it: `flux`, `wan`, `llama`. Only GGUF files do.
    pub fn architecture(&self) -> Option<&str> {
        self.str(ARCHITECTURE).filter(|name| !name.is_empty())
    }

    /// The value of a key, if it is text.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// The value of a key, if it is an integer of at least 0.
    pub fn u64(&self, key: &str) -> Option<u64> {
        self.get(key)?.to_u64()
    }

    /// The value of a key, if it is an integer that 63 bits and a sign can hold.
    pub fn i64(&self, key: &str) -> Option<i64> {
        self.get(key)?.to_i64()
    }

    /// The value of a key, if it is a float.
    pub fn f64(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(value) => Some(value),
            _ => None,
        }
    }

    /// The value of a key, if it is a boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(value) => Some(value),
            _ => None,
        }
    }

    /// The value of a key, if it is an array.
    pub fn array(&self, key: &str) -> Option<Array<'_>> {
        match self.get(key)? {
            Value::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The texts of a key, if it is an array of texts. Each is checked when its turn comes.
    pub fn strings(&self, key: &str) -> Option<impl Iterator<Item = Result<&str, Error>>> {
        let array = self.array(key).filter(|array| array.element() == ElementType::Str)?;
        Some(array.iter().filter_map(|element| match element {
            Ok(Value::Str(text)) => Some(Ok(text)),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        }))
    }

    /// The error of a value.
    pub(crate) fn value_error(&self, key: &str, fault: ValueFault) -> Error {
        self.source.value_error(key, fault)
    }

    fn value<'a>(&'a self, pair: &'a Pair) -> Option<Value<'a>> {
        Some(match &pair.value {
            Stored::Unsigned(value) => Value::Unsigned(*value),
            Stored::Signed(value) => Value::Signed(*value),
            Stored::Float(value) => Value::Float(*value),
            Stored::Bool(value) => Value::Bool(*value),
            Stored::Text(text) => Value::Str(text),
            // This was text when the file was opened. If another program changed it since, it is gone.
            Stored::TextAt(range) => {
                Value::Str(str::from_utf8(self.source.bytes().get(range.clone())?).ok()?)
            }
            Stored::ArrayAt { element, len, bytes } => {
                let bytes = self.source.bytes().get(bytes.clone())?;
                Value::Array(Array::new(&self.source, &pair.key, *element, *len, bytes))
            }
        })
    }
}

impl Value<'_> {
    /// The value, if it is an integer of at least 0.
    pub fn to_u64(self) -> Option<u64> {
        match self {
            Value::Unsigned(value) => Some(value),
            Value::Signed(value) => u64::try_from(value).ok(),
            _ => None,
        }
    }

    /// The value, if it is an integer that 63 bits and a sign can hold.
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Value::Unsigned(value) => i64::try_from(value).ok(),
            Value::Signed(value) => Some(value),
            _ => None,
        }
    }
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Unsigned(value) => write!(f, "{value}"),
            Value::Signed(value) => write!(f, "{value}"),
            Value::Float(value) => write!(f, "{value}"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Str(text) => f.write_str(text),
            Value::Array(array) => write!(f, "{} × {}", array.len(), array.element()),
        }
    }
}
