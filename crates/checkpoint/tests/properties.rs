//! Properties: what is written is what is read, and no damage makes opening panic or an error anonymous.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod campaign;
mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;

use campaign::exercise::exercise;
use campaign::seeds::Parser;
use checkpoint::{Checkpoint, Error, Value};
use meta::{DType, Encoding, QuantFormat, Shape};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use testkit::pickle::{self, PickleForm, PickledTensor};
use writer::{Gguf, Tensor, array_value, str_value, text, value};

const SAFETENSORS_TYPES: [(&str, DType); 6] = [
    ("F64", DType::F64),
    ("F32", DType::F32),
    ("BF16", DType::BF16),
    ("F8_E5M2", DType::F8E5M2),
    ("I16", DType::I16),
    ("BOOL", DType::Bool),
];

const GGUF_TYPES: [(u32, Encoding); 6] = [
    (0, Encoding::F32),
    (30, Encoding::BF16),
    (27, Encoding::Plain(DType::I64)),
    (8, Encoding::Quant(QuantFormat::Q8_0)),
    (14, Encoding::Quant(QuantFormat::Q6_K)),
    (19, Encoding::Quant(QuantFormat::IQ1_S)),
];

/// What a pickle of the older form begins with.
const PICKLE_START: &[u8] = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.N.N.";

/// A tensor of one of six types, small dimensions, and what its bytes are made from.
type Described = (usize, Vec<u64>, u8);

fn tensors() -> impl Strategy<Value = BTreeMap<String, Described>> {
    btree_map(".{0,20}", (0usize..6, vec(0u64..5, 0..=8), any::<u8>()), 0..12)
        .prop_filter("this name is the metadata's", |tensors| !tensors.contains_key("__metadata__"))
}

fn fill(len: u64, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn shape(dims: &[u64]) -> Shape {
    Shape::new(&dims.iter().map(|&dim| dim as usize).collect::<Vec<_>>()).unwrap()
}

fn safetensors_file(tensors: &BTreeMap<String, Described>) -> Vec<Tensor<&'static str>> {
    let write = |(name, (kind, dims, seed)): (&String, &Described)| {
        let (kind, dtype) = SAFETENSORS_TYPES[*kind];
        let bytes = fill(Encoding::Plain(dtype).bytes(&shape(dims)).unwrap(), *seed);
        Tensor { name: name.clone(), kind, dims: dims.clone(), bytes }
    };
    tensors.iter().map(write).collect()
}

fn gguf_file(tensors: &BTreeMap<String, Described>) -> Vec<Tensor<u32>> {
    let write = |(name, (kind, dims, seed)): (&String, &Described)| {
        let (kind, encoding) = GGUF_TYPES[*kind];
        let mut dims = dims.clone();
        let block = encoding.block_len() as u64;
        match dims.last_mut() {
            Some(last) => *last *= block,
            None if block > 1 => dims.push(block),
            None => {}
        }
        let bytes = fill(encoding.bytes(&shape(&dims)).unwrap(), *seed);
        Tensor { name: name.clone(), kind, dims, bytes }
    };
    tensors.iter().map(write).collect()
}

/// Checks that a checkpoint has exactly these tensors, in this order, with these bytes.
fn check<T: Copy>(checkpoint: &Checkpoint, tensors: &[Tensor<T>], encoding: impl Fn(T) -> Encoding) {
    assert_eq!(checkpoint.entries().len(), tensors.len());
    for (entry, tensor) in checkpoint.entries().iter().zip(tensors) {
        assert_eq!(entry.name(), tensor.name);
        assert_eq!(entry.encoding(), encoding(tensor.kind));
        assert_eq!(*entry.shape(), shape(&tensor.dims));
        assert_eq!(checkpoint.bytes(entry), tensor.bytes);
        assert_eq!(*checkpoint.entry_bytes(entry), tensor.bytes);
        assert_eq!(checkpoint.entry(&tensor.name), Some(entry));
    }
}

fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_memory(("some file", Cow::Owned(bytes)), Vec::new())
}

/// Opens damaged bytes; what opens must be sound, what does not must name the file.
fn open_damaged(mut file: Vec<u8>, changes: &[(prop::sample::Index, u8)], keep: Option<prop::sample::Index>) {
    for (at, byte) in changes {
        if !file.is_empty() {
            let at = at.index(file.len());
            file[at] = *byte;
        }
    }
    file.truncate(keep.map_or(file.len(), |keep| keep.index(file.len() + 1)));
    match open(file) {
        Ok(checkpoint) => drop(exercise(&checkpoint)),
        Err(error) => {
            assert_eq!(error.file().to_str(), Some("some file"));
            assert!(error.to_string().starts_with("some file: "), "{error}");
        }
    }
}

const PICKLE_TYPES: [DType; 6] = [DType::F64, DType::F32, DType::BF16, DType::F16, DType::I16, DType::Bool];

fn pickle_file(tensors: &BTreeMap<String, Described>, form: PickleForm) -> (Vec<u8>, Vec<Tensor<DType>>) {
    let write = |(name, (kind, dims, seed)): (&String, &Described)| {
        let kind = PICKLE_TYPES[*kind];
        let bytes = fill(Encoding::Plain(kind).bytes(&shape(dims)).unwrap(), *seed);
        Tensor { name: name.clone(), kind, dims: dims.clone(), bytes }
    };
    let tensors: Vec<Tensor<DType>> = tensors.iter().map(write).collect();
    let shapes: Vec<Shape> = tensors.iter().map(|tensor| shape(&tensor.dims)).collect();
    let pickled: Vec<PickledTensor<'_>> = tensors
        .iter()
        .zip(&shapes)
        .map(|(tensor, shape)| PickledTensor {
            name: &tensor.name,
            dtype: tensor.kind,
            shape: shape.dims(),
            bytes: &tensor.bytes,
        })
        .collect();
    (pickle::pickled(form, None, &pickled), tensors)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn safetensors_come_back(tensors in tensors(), metadata in btree_map(".{0,8}", ".{0,30}", 0..6)) {
        let tensors = safetensors_file(&tensors);
        let pairs: Vec<(&str, &str)> = metadata.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
        let checkpoint = open(writer::safetensors(&pairs, &tensors)).unwrap();
        let dtype = |name| Encoding::Plain(SAFETENSORS_TYPES.iter().find(|(n, _)| *n == name).unwrap().1);
        check(&checkpoint, &tensors, dtype);
        prop_assert_eq!(checkpoint.metadata().len(), pairs.len());
        for (key, text) in pairs {
            prop_assert_eq!(checkpoint.metadata().str(key), Some(text));
        }
    }

    #[test]
    fn gguf_comes_back(
        tensors in tensors(),
        texts in btree_map("[a-z.]{1,12}", vec(".{0,10}", 0..8), 0..5),
        version in 2u32..=3,
        alignment in 0u32..=10,
    ) {
        let mut file = Gguf { version, alignment: 1 << alignment, ..Gguf::new(&[], &gguf_file(&tensors)) };
        file.pairs.push(("general.alignment".to_owned(), value(4, &(1u32 << alignment).to_le_bytes())));
        for (key, texts) in &texts {
            let packed: Vec<u8> = texts.iter().flat_map(|t| text(t.as_bytes())).collect();
            file.pairs.push((format!("list.{key}"), array_value(8, texts.len() as u64, &packed)));
            file.pairs.push((format!("text.{key}"), str_value(&texts.concat())));
        }
        let checkpoint = open(file.write()).unwrap();
        let encoding = |id| GGUF_TYPES.iter().find(|(i, _)| *i == id).unwrap().1;
        check(&checkpoint, &file.tensors, encoding);
        let metadata = checkpoint.metadata();
        prop_assert_eq!(metadata.len(), file.pairs.len());
        for (key, texts) in &texts {
            let read: Vec<&str> = metadata.strings(&format!("list.{key}")).unwrap().map(Result::unwrap).collect();
            prop_assert_eq!(&read, texts);
            prop_assert_eq!(metadata.str(&format!("text.{key}")), Some(&*texts.concat()));
        }
    }

    #[test]
    fn pickles_come_back(tensors in tensors(), legacy in any::<bool>()) {
        let form = if legacy { PickleForm::Legacy } else { PickleForm::Archive };
        let (file, tensors) = pickle_file(&tensors, form);
        match open(file) {
            Ok(checkpoint) => check(&checkpoint, &tensors, Encoding::Plain),
            Err(error) => prop_assert!(tensors.is_empty(), "{}", error),
        }
    }

    #[test]
    fn every_number_comes_back(numbers in vec(any::<i64>(), 0..20), floats in vec(any::<f64>(), 0..20)) {
        let packed: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let packed_floats: Vec<u8> = floats.iter().flat_map(|n| n.to_le_bytes()).collect();
        let pairs = [
            ("numbers", array_value(11, numbers.len() as u64, &packed)),
            ("floats", array_value(12, floats.len() as u64, &packed_floats)),
        ];
        let checkpoint = open(Gguf::new(&pairs, &[]).write()).unwrap();
        let array = |key| checkpoint.metadata().array(key).unwrap();
        let read: Vec<i64> = array("numbers").iter().map(|n| n.unwrap().to_i64().unwrap()).collect();
        prop_assert_eq!(read, numbers);
        for (read, float) in array("floats").iter().zip(floats) {
            let Value::Float(read) = read.unwrap() else { panic!("no float") };
            prop_assert_eq!(read.to_bits(), float.to_bits());
        }
    }

    #[test]
    fn damage_never_panics_and_errors_name_the_file(
        tensors in tensors(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        keep in proptest::option::of(any::<prop::sample::Index>()),
    ) {
        open_damaged(writer::safetensors(&[("k", "v")], &safetensors_file(&tensors)), &changes, keep);
        let pairs = [("text", str_value("v")), ("list", array_value(8, 2, &[text(b"a"), text(b"b")].concat()))];
        open_damaged(Gguf::new(&pairs, &gguf_file(&tensors)).write(), &changes, keep);
        for form in [PickleForm::Archive, PickleForm::Legacy] {
            open_damaged(pickle_file(&tensors, form).0, &changes, keep);
        }
    }

    #[test]
    fn noise_never_panics(noise in vec(any::<u8>(), 0..300)) {
        for start in [&b""[..], b"GGUF\x03\0\0\0", b"\x20\0\0\0\0\0\0\0{", b"{\"weight_map\":{", PICKLE_START] {
            open_damaged([start, &noise].concat(), &[], None);
            let _ = Parser::SafetensorsIndex.open([start, &noise].concat());
        }
    }
}
