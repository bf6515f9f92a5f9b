//! Constants as a workflow file writes them, and Python's view of them.
//!
//! A [`Literal`] keeps the order of an object's keys and tells whole numbers from others, because both
//! reach users again: in the queue, in the history and in the text of a saved picture.

use std::fmt;

use indexmap::IndexMap;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// An object whose keys keep their order.
pub type Map = IndexMap<String, Literal>;

/// A constant: what JSON can write.
#[derive(Clone, Debug, PartialEq, Default)]
pub enum Literal {
    /// `null`, Python's `None`.
    #[default]
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number. Seeds reach 2^64 - 1, so 64 signed bits are not enough.
    Int(i128),
    /// A number with a point or an exponent.
    Float(f64),
    /// A string.
    Text(String),
    /// An array.
    List(Vec<Literal>),
    /// An object.
    Map(Map),
}

impl Literal {
    /// The text, if this is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Literal::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if this is one; a boolean is none.
    #[must_use]
    pub fn as_float(&self) -> Option<f64> {
        match self {
            Literal::Int(value) => Some(*value as f64),
            Literal::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// The whole number, if this is one.
    #[must_use]
    pub fn as_int(&self) -> Option<i128> {
        match self {
            Literal::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The boolean, if this is one.
    #[must_use]
    pub fn as_bool(&self) -> Option<bool> {
        match self {
            Literal::Bool(value) => Some(*value),
            _ => None,
        }
    }

    /// The object, if this is one.
    #[must_use]
    pub fn as_map(&self) -> Option<&Map> {
        match self {
            Literal::Map(map) => Some(map),
            _ => None,
        }
    }

    /// The array, if this is one.
    #[must_use]
    pub fn as_list(&self) -> Option<&[Literal]> {
        match self {
            Literal::List(list) => Some(list),
            _ => None,
        }
    }

    /// The value under a key, if this is an object that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Literal> {
        self.as_map()?.get(key)
    }

    /// Python's `bool(value)`: empty, zero and null are false.
    #[must_use]
    pub fn is_truthy(&self) -> bool {
        match self {
            Literal::Null => false,
            Literal::Bool(value) => *value,
            Literal::Int(value) => *value != 0,
            Literal::Float(value) => *value != 0.0,
            Literal::Text(text) => !text.is_empty(),
            Literal::List(list) => !list.is_empty(),
            Literal::Map(map) => !map.is_empty(),
        }
    }
}

/// An object from its keys and values, in order.
pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Literal)>) -> Map {
    entries.into_iter().map(|(key, value)| (key.into(), value)).collect()
}

macro_rules! literal_from {
    ($($from:ty => |$value:ident| $make:expr;)*) => {
        $(impl From<$from> for Literal {
            fn from($value: $from) -> Literal {
                $make
            }
        })*
    };
}

literal_from! {
    bool => |value| Literal::Bool(value);
    i32 => |value| Literal::Int(value.into());
    u32 => |value| Literal::Int(value.into());
    i64 => |value| Literal::Int(value.into());
    u64 => |value| Literal::Int(value.into());
    i128 => |value| Literal::Int(value);
    usize => |value| Literal::Int(value as i128);
    f32 => |value| Literal::Float(value.into());
    f64 => |value| Literal::Float(value);
    &str => |value| Literal::Text(value.to_owned());
    String => |value| Literal::Text(value);
    Map => |value| Literal::Map(value);
}

impl<T: Into<Literal>> From<Vec<T>> for Literal {
    fn from(values: Vec<T>) -> Literal {
        Literal::List(values.into_iter().map(Into::into).collect())
    }
}

impl<T: Into<Literal>> From<Option<T>> for Literal {
    fn from(value: Option<T>) -> Literal {
        value.map_or(Literal::Null, Into::into)
    }
}

impl Serialize for Literal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Literal::Null => serializer.serialize_unit(),
            Literal::Bool(value) => serializer.serialize_bool(*value),
            // Numbers beyond 64 bits never come from a file: their text would be read as a float.
            Literal::Int(value) => match (i64::try_from(*value), u64::try_from(*value)) {
                (Ok(value), _) => serializer.serialize_i64(value),
                (_, Ok(value)) => serializer.serialize_u64(value),
                _ => serializer.serialize_f64(*value as f64),
            },
            Literal::Float(value) => serializer.serialize_f64(*value),
            Literal::Text(text) => serializer.serialize_str(text),
            Literal::List(list) => {
                let mut sequence = serializer.serialize_seq(Some(list.len()))?;
                for item in list {
                    sequence.serialize_element(item)?;
                }
                sequence.end()
            }
            Literal::Map(map) => {
                let mut object = serializer.serialize_map(Some(map.len()))?;
                for (key, value) in map {
                    object.serialize_entry(key, value)?;
                }
                object.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Literal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Literal, D::Error> {
        deserializer.deserialize_any(LiteralVisitor)
    }
}

struct LiteralVisitor;

impl<'de> Visitor<'de> for LiteralVisitor {
    type Value = Literal;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Literal, E> {
        Ok(Literal::Null)
    }

    fn visit_none<E>(self) -> Result<Literal, E> {
        Ok(Literal::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Literal, D::Error> {
        deserializer.deserialize_any(LiteralVisitor)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Literal, E> {
        Ok(Literal::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Literal, E> {
        Ok(Literal::Int(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Literal, E> {
        Ok(Literal::Int(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Literal, E> {
        Ok(Literal::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Literal, E> {
        Ok(Literal::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Literal, E> {
        Ok(Literal::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut sequence: A) -> Result<Literal, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = sequence.next_element()? {
            list.push(item);
        }
        Ok(Literal::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Literal, A::Error> {
        let mut map = Map::new();
        while let Some((key, value)) = object.next_entry()? {
            map.insert(key, value);
        }
        Ok(Literal::Map(map))
    }
}
