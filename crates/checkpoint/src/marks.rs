//! Marks: what a file says about how the weights of its layers were quantised.
//!
//! Three kinds are in use, and an earlier one rules: the header entry `_quantization_metadata` with JSON for all layers; a
//! tensor of bytes `LAYER.comfy_quant` with the same JSON for one; and, in old files without that header entry, a tensor
//! `scaled_fp8` anywhere, by which every layer with a `scale_weight` is scaled fp8.

use std::collections::BTreeMap;

use meta::{DType, Encoding};
use serde::Deserialize;

use crate::companions::{MARKER, OLD_SCALE, split_last};
use crate::error::excerpt;
use crate::metadata::Metadata;
use crate::{Entry, Error, MarkFault, ProductMark, ValueFault};

/// The header entry with the marks of all layers.
pub(crate) const HEADER_MARKS: &str = "_quantization_metadata";
/// The last part of the name of a tensor that marks its layer.
pub(crate) const TENSOR_MARK: &str = "comfy_quant";
/// The longest text of the marks in a header, in bytes: over a hundred for each of a hundred thousand layers.
pub const MAX_HEADER_MARKS_BYTES: usize = 16 << 20;
/// The longest mark of one layer, in bytes.
pub const MAX_MARK_BYTES: usize = 64 << 10;

/// What is said about one layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mark {
    /// The name of the format.
    pub(crate) format: Option<String>,
    /// Whether columns were rotated.
    pub(crate) convrot: bool,
    /// Columns that were rotated together, if it says so.
    pub(crate) group: Option<u64>,
    /// How many matrices the layer has, if it is a bank of them.
    pub(crate) experts: Option<u64>,
    /// Whether activations keep their precision in its products.
    pub(crate) full_precision: bool,
    /// Whether it is of the old kind, whose scales have other names.
    pub(crate) is_old: bool,
}

/// The JSON of one layer. What is not known is of no matter for reading weights.
#[derive(Deserialize)]
struct MarkText {
    format: Option<String>,
    convrot: Option<bool>,
    convrot_groupsize: Option<u64>,
    num_experts: Option<u64>,
    full_precision_matrix_mult: Option<bool>,
    params: Option<serde_json::Value>,
}

/// What may also stand one level deeper.
#[derive(Default, Deserialize)]
struct Params {
    convrot: Option<bool>,
    convrot_groupsize: Option<u64>,
    full_precision_matrix_mult: Option<bool>,
}

/// The JSON of all layers.
#[derive(Deserialize)]
struct HeaderText {
    layers: BTreeMap<String, serde_json::Value>,
}

impl Mark {
    /// Reads the JSON of a layer.
    fn from_json(value: serde_json::Value) -> Result<Mark, serde_json::Error> {
        let text: MarkText = serde_json::from_value(value)?;
        // Parameters that are no object count as none, as they do elsewhere.
        let params = text.params.filter(serde_json::Value::is_object);
        let params: Params = params.map(serde_json::from_value).transpose()?.unwrap_or_default();
        Ok(Mark {
            format: text.format,
            convrot: text.convrot.or(params.convrot).unwrap_or(false),
            group: text.convrot_groupsize.or(params.convrot_groupsize),
            experts: text.num_experts,
            full_precision: text
                .full_precision_matrix_mult
                .or(params.full_precision_matrix_mult)
                .unwrap_or(false),
            is_old: false,
        })
    }

    /// The mark of an old file, where the weight itself says which of the two formats it is in.
    fn old(weight: Encoding, full_precision: bool) -> Mark {
        let format = if weight == DType::F8E5M2.into() { "float8_e5m2" } else { "float8_e4m3fn" };
        Mark { format: Some(format.to_owned()), full_precision, is_old: true, ..Mark::default() }
    }

    /// What it says of the layer's products; none where there are none of 8 bits for its format.
    pub(crate) fn product(&self) -> Option<ProductMark> {
        match (self.format.as_deref(), self.full_precision) {
            (Some("float8_e4m3fn"), false) => Some(ProductMark::EightBits),
            (Some("float8_e4m3fn"), true) => Some(ProductMark::FullPrecision),
            _ => None,
        }
    }
}

/// Looks up an entry by its name.
pub(crate) type Find<'a> = &'a dyn Fn(&str) -> Option<&'a Entry>;

/// The tensors of a file as marks are looked for in it.
pub(crate) struct Marked<'a> {
    pub(crate) metadata: &'a Metadata,
    pub(crate) entries: &'a [Entry],
    pub(crate) find: Find<'a>,
    /// The bytes of an entry.
    pub(crate) bytes: &'a dyn Fn(&Entry) -> &'a [u8],
}

impl Marked<'_> {
    /// Every marked layer and its mark, by the layers' names.
    pub(crate) fn layers(
        &self,
        fault: &dyn Fn(&str, MarkFault) -> Error,
    ) -> Result<BTreeMap<String, Mark>, Error> {
        let header = self.metadata.str(HEADER_MARKS);
        let mut layers = match header {
            Some(text) => self.header_layers(text, fault)?,
            None => BTreeMap::new(),
        };
        let markers: Vec<&Entry> =
            self.entries.iter().filter(|entry| split_last(entry.name()).1 == MARKER).collect();
        let has_old = header.is_none() && !markers.is_empty();
        for entry in self.entries {
            let (base, last) = split_last(entry.name());
            let Some(layer) = base.strip_suffix('.') else { continue };
            if last == TENSOR_MARK && layers.get(layer).is_none_or(|mark| mark.is_old) {
                let mark = self.tensor_mark(entry).map_err(|reason| fault(layer, reason))?;
                layers.insert(layer.to_owned(), mark);
            } else if has_old && last == OLD_SCALE && !layers.contains_key(layer) {
                let weight = (self.find)(&format!("{layer}.weight"));
                let is_fp8 = |weight: &&Entry| {
                    matches!(weight.encoding(), Encoding::Plain(DType::F8E4M3 | DType::F8E5M2))
                };
                if let Some(weight) = weight.filter(is_fp8) {
                    let full_precision = asks_for_full_precision(&markers, layer);
                    layers.insert(layer.to_owned(), Mark::old(weight.encoding(), full_precision));
                }
            }
        }
        Ok(layers)
    }

    fn header_layers(
        &self,
        text: &str,
        fault: &dyn Fn(&str, MarkFault) -> Error,
    ) -> Result<BTreeMap<String, Mark>, Error> {
        let wrong = |fault| self.metadata.value_error(HEADER_MARKS, fault);
        if text.len() > MAX_HEADER_MARKS_BYTES {
            let (bytes, limit) = (text.len() as u64, MAX_HEADER_MARKS_BYTES as u64);
            return Err(wrong(ValueFault::StringTooLong { bytes, limit }));
        }
        let header: HeaderText = serde_json::from_str(text)
            .map_err(|error| wrong(ValueFault::Marks { reason: excerpt(&error.to_string()) }))?;
        let mark = |(layer, value): (String, serde_json::Value)| match Mark::from_json(value) {
            Ok(mark) => Ok((layer, mark)),
            Err(error) => Err(fault(&layer, unreadable(HEADER_MARKS, &error))),
        };
        header.layers.into_iter().map(mark).collect()
    }

    /// Reads the tensor that marks a layer.
    fn tensor_mark(&self, entry: &Entry) -> Result<Mark, MarkFault> {
        if entry.len() > MAX_MARK_BYTES as u64 {
            return Err(MarkFault::TooLong { bytes: entry.len(), limit: MAX_MARK_BYTES as u64 });
        }
        let read = serde_json::from_slice((self.bytes)(entry)).and_then(Mark::from_json);
        read.map_err(|error| unreadable(TENSOR_MARK, &error))
    }
}

/// Whether the marker of an old file that is nearest to a layer has two values, by which such files ask for products of
/// full precision.
fn asks_for_full_precision(markers: &[&Entry], layer: &str) -> bool {
    let base = |marker: &&&Entry| split_last(marker.name()).0.len();
    let near = markers.iter().filter(|marker| layer.starts_with(split_last(marker.name()).0));
    near.max_by_key(base).is_some_and(|marker| marker.shape().count() == 2)
}

fn unreadable(mark: &'static str, error: &serde_json::Error) -> MarkFault {
    MarkFault::Json { mark, reason: excerpt(&error.to_string()) }
}
