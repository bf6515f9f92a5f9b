//! One tensor of a checkpoint: what it is and where its bytes are, without the bytes.

use std::ops::Range;

use meta::{Encoding, Shape};

use crate::name_index::Named;

/// The longest name of a tensor or of a metadata key, in bytes.
pub const MAX_NAME_BYTES: u64 = 65_535;

/// What a file says of the products that a weight is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProductMark {
    /// Nothing.
    #[default]
    Unsaid,
    /// Activations may be rounded to 8 bits for it: its layer is marked as fp8, and not as one of full precision.
    EightBits,
    /// They may not.
    FullPrecision,
}

/// One tensor in a checkpoint. Entries come from a [`Checkpoint`](crate::Checkpoint), which has checked
/// that the bytes are there and, but for tensors of a pickle that share a storage, belong to no other entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    name: Box<str>,
    encoding: Encoding,
    shape: Shape,
    /// Only where it differs from `shape`, which is rare.
    stored_shape: Option<Box<Shape>>,
    file: u32,
    offset: u64,
    len: u64,
    product: ProductMark,
}

impl Entry {
    /// An entry whose bytes have the size of its shape.
    pub(crate) fn new(
        name: Box<str>,
        encoding: Encoding,
        shape: Shape,
        file: u32,
        bytes: Range<u64>,
    ) -> Entry {
        Entry {
            name,
            encoding,
            shape,
            stored_shape: None,
            file,
            offset: bytes.start,
            len: bytes.end - bytes.start,
            product: ProductMark::Unsaid,
        }
    }

    /// Puts the first byte elsewhere; the caller has checked that the last one can still be counted.
    pub(crate) fn move_to(&mut self, offset: u64) {
        self.offset = offset;
    }

    /// Gives the tensor another shape of the same size, remembering the one its blocks were cut by.
    pub(crate) fn reshape(&mut self, shape: Shape) {
        if shape != self.shape {
            self.stored_shape = Some(Box::new(self.shape));
            self.shape = shape;
        }
    }

    /// Says what the bytes really are; the encoding and the shape together have as many.
    pub(crate) fn quantise(&mut self, encoding: Encoding, shape: Shape) {
        (self.encoding, self.shape) = (encoding, shape);
    }

    /// Says what the file says of its products.
    pub(crate) fn mark_product(&mut self, product: ProductMark) {
        self.product = product;
    }

    /// What the file says of the products that it is for.
    pub fn product(&self) -> ProductMark {
        self.product
    }

    /// The name in the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How the values are stored.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The dimensions that the model expects, outermost first (GGUF files list them the other way round).
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dimensions that the blocks were cut by. The same as [`Entry::shape`], except in GGUF files
    /// whose rows were regrouped so that they divide into blocks: there the values come in the same
    /// order, but a row of [`Entry::shape`] need not be whole blocks.
    pub fn stored_shape(&self) -> &Shape {
        self.stored_shape.as_deref().unwrap_or(&self.shape)
    }

    /// Which of [`Checkpoint::files`](crate::Checkpoint::files) has the bytes.
    pub fn file(&self) -> usize {
        self.file as usize
    }

    /// The first byte's place in that file.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The byte after the last. Cannot pass 64 bits: the entry was made from a range.
    pub(crate) fn end(&self) -> u64 {
        self.offset + self.len
    }

    /// The place of the bytes in the file. They were checked against the file's length, so they fit `usize`.
    pub(crate) fn range(&self) -> Range<usize> {
        self.offset as usize..self.end() as usize
    }
}

impl Named for Entry {
    fn name(&self) -> &str {
        &self.name
    }
}
