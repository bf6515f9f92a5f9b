//! GGUF arrays: left in the mapped file, read and checked one element at a time.

use std::fmt;

use crate::source::Source;
use crate::{Error, Value, ValueFault};

/// The type of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say all there is")]
pub enum ElementType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F32,
    F64,
    Bool,
    Str,
}

impl ElementType {
    /// The type with this number in a GGUF file. Arrays have a number of their own and are not elements.
    pub(super) fn from_id(id: u32) -> Option<ElementType> {
        Some(match id {
            0 => ElementType::U8,
            1 => ElementType::I8,
            2 => ElementType::U16,
            3 => ElementType::I16,
            4 => ElementType::U32,
            5 => ElementType::I32,
            6 => ElementType::F32,
            7 => ElementType::Bool,
            8 => ElementType::Str,
            10 => ElementType::U64,
            11 => ElementType::I64,
            12 => ElementType::F64,
            _ => return None,
        })
    }

    /// Bytes of one element; `None` for texts, whose lengths differ.
    pub(super) fn bytes(self) -> Option<usize> {
        match self {
            ElementType::U8 | ElementType::I8 | ElementType::Bool => Some(1),
            ElementType::U16 | ElementType::I16 => Some(2),
            ElementType::U32 | ElementType::I32 | ElementType::F32 => Some(4),
            ElementType::U64 | ElementType::I64 | ElementType::F64 => Some(8),
            ElementType::Str => None,
        }
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ElementType::U8 => "u8",
            ElementType::I8 => "i8",
            ElementType::U16 => "u16",
            ElementType::I16 => "i16",
            ElementType::U32 => "u32",
            ElementType::I32 => "i32",
            ElementType::U64 => "u64",
            ElementType::I64 => "i64",
            ElementType::F32 => "f32",
            ElementType::F64 => "f64",
            ElementType::Bool => "bool",
            ElementType::Str => "text",
        })
    }
}

/// An array in a mapped file.
#[derive(Clone, Copy)]
pub struct Array<'a> {
    source: &'a Source,
    key: &'a str,
    element: ElementType,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new(
        source: &'a Source,
        key: &'a str,
        element: ElementType,
        len: usize,
        bytes: &'a [u8],
    ) -> Array<'a> {
        Array { source, key, element, len, bytes }
    }

    /// The type of the elements.
    pub fn element(&self) -> ElementType {
        self.element
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements as they lie in the file: little endian, and before each text its length in eight
    /// bytes. This is how files embed other files, as arrays of `u8`.
    pub fn raw(&self) -> &'a [u8] {
        self.bytes
    }

    /// The elements, each checked when its turn comes. An error ends the iteration.
    pub fn iter(&self) -> Elements<'a> {
        Elements { array: *self, rest: self.bytes, index: 0 }
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Array({} × {})", self.len, self.element)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Result<Value<'a>, Error>;
    type IntoIter = Elements<'a>;

    fn into_iter(self) -> Elements<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`].
#[derive(Debug)]
pub struct Elements<'a> {
    array: Array<'a>,
    rest: &'a [u8],
    index: usize,
}

impl<'a> Elements<'a> {
    fn read(&mut self) -> Result<Value<'a>, ValueFault> {
        Ok(match self.array.element {
            ElementType::U8 => Value::Unsigned(u8::from_le_bytes(self.take()?).into()),
            ElementType::U16 => Value::Unsigned(u16::from_le_bytes(self.take()?).into()),
            ElementType::U32 => Value::Unsigned(u32::from_le_bytes(self.take()?).into()),
            ElementType::U64 => Value::Unsigned(u64::from_le_bytes(self.take()?)),
            ElementType::I8 => Value::Signed(i8::from_le_bytes(self.take()?).into()),
            ElementType::I16 => Value::Signed(i16::from_le_bytes(self.take()?).into()),
            ElementType::I32 => Value::Signed(i32::from_le_bytes(self.take()?).into()),
            ElementType::I64 => Value::Signed(i64::from_le_bytes(self.take()?)),
            ElementType::F32 => Value::Float(f32::from_le_bytes(self.take()?).into()),
            ElementType::F64 => Value::Float(f64::from_le_bytes(self.take()?)),
            ElementType::Bool => match self.take::<1>()? {
                [0] => Value::Bool(false),
                [1] => Value::Bool(true),
                [value] => return Err(ValueFault::NotBoolean { index: self.index, value }),
            },
            ElementType::Str => Value::Str(self.text()?),
        })
    }

    /// The next `N` bytes. They were there when the file was opened.
    fn take<const N: usize>(&mut self) -> Result<[u8; N], ValueFault> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(ValueFault::Changed { index: self.index })?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn text(&mut self) -> Result<&'a str, ValueFault> {
        let len = u64::from_le_bytes(self.take()?);
        let split = usize::try_from(len).ok().and_then(|len| self.rest.split_at_checked(len));
        let (bytes, rest) = split.ok_or(ValueFault::Changed { index: self.index })?;
        self.rest = rest;
        str::from_utf8(bytes).map_err(|_| ValueFault::NotText { index: self.index })
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Value<'a>, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.index >= self.array.len {
            return None;
        }
        let read = self.read();
        self.index = if read.is_ok() { self.index + 1 } else { self.array.len };
        Some(read.map_err(|fault| self.array.source.value_error(self.array.key, fault)))
    }
}
