//! GGUF files: every tensor type, typed metadata, arrays left in the file, and every kind of lie in a header.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod writer;

use std::borrow::Cow;

use checkpoint::{
    Checkpoint, ElementType, Error, Format, HeaderFault, MAX_ENTRIES, MAX_GGUF_ALIGNMENT, MAX_GGUF_KEYS,
    MAX_GGUF_STRING_BYTES, TensorFault, Value, ValueFault,
};
use meta::{DType, Encoding, QuantFormat, Shape, SizeError};
use writer::{Gguf, array_value, str_value, tensor, text, u32_value, value};

fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_memory(("model.gguf", Cow::Owned(bytes)), Vec::new())
}

fn tensor_fault(bytes: Vec<u8>) -> (String, TensorFault) {
    match open(bytes).unwrap_err() {
        Error::Tensor { tensor, fault, .. } => (tensor, *fault),
        other => panic!("{other:?}"),
    }
}

fn header_fault(bytes: Vec<u8>) -> HeaderFault {
    match open(bytes).unwrap_err() {
        Error::Header { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

fn value_fault(pairs: &[(&str, Vec<u8>)]) -> (String, ValueFault) {
    match open(Gguf::new(pairs, &[]).write()).unwrap_err() {
        Error::Value { key, fault, .. } => (key, fault),
        other => panic!("{other:?}"),
    }
}

const TYPES: [(u32, Encoding); 26] = [
    (0, Encoding::Plain(DType::F32)),
    (1, Encoding::Plain(DType::F16)),
    (2, Encoding::Quant(QuantFormat::Q4_0)),
    (3, Encoding::Quant(QuantFormat::Q4_1)),
    (6, Encoding::Quant(QuantFormat::Q5_0)),
    (7, Encoding::Quant(QuantFormat::Q5_1)),
    (8, Encoding::Quant(QuantFormat::Q8_0)),
    (10, Encoding::Quant(QuantFormat::Q2_K)),
    (11, Encoding::Quant(QuantFormat::Q3_K)),
    (12, Encoding::Quant(QuantFormat::Q4_K)),
    (13, Encoding::Quant(QuantFormat::Q5_K)),
    (14, Encoding::Quant(QuantFormat::Q6_K)),
    (16, Encoding::Quant(QuantFormat::IQ2_XXS)),
    (17, Encoding::Quant(QuantFormat::IQ2_XS)),
    (18, Encoding::Quant(QuantFormat::IQ3_XXS)),
    (19, Encoding::Quant(QuantFormat::IQ1_S)),
    (20, Encoding::Quant(QuantFormat::IQ4_NL)),
    (21, Encoding::Quant(QuantFormat::IQ3_S)),
    (22, Encoding::Quant(QuantFormat::IQ2_S)),
    (23, Encoding::Quant(QuantFormat::IQ4_XS)),
    (24, Encoding::Plain(DType::I8)),
    (25, Encoding::Plain(DType::I16)),
    (26, Encoding::Plain(DType::I32)),
    (27, Encoding::Plain(DType::I64)),
    (28, Encoding::Plain(DType::F64)),
    (30, Encoding::Plain(DType::BF16)),
];

#[test]
fn every_tensor_type_in_both_versions() {
    let quantised = TYPES.iter().filter(|(_, encoding)| encoding.quant().is_some()).count();
    assert_eq!(quantised, QuantFormat::ALL.len());
    let shape = Shape::from([2, 3, 256]);
    let tensors: Vec<_> = TYPES
        .iter()
        .map(|(id, encoding)| {
            let bytes = vec![*id as u8; encoding.bytes(&shape).unwrap() as usize];
            tensor(&format!("t{id}"), *id, &[2, 3, 256], &bytes)
        })
        .collect();
    for version in [2, 3] {
        let file = Gguf { version, ..Gguf::new(&[], &tensors) }.write();
        let checkpoint = open(file).unwrap();
        assert_eq!(checkpoint.format(), Format::Gguf);
        for (entry, (id, encoding)) in checkpoint.entries().iter().zip(TYPES) {
            assert_eq!((entry.name(), entry.encoding()), (&*format!("t{id}"), encoding));
            assert_eq!((entry.shape(), entry.stored_shape()), (&shape, &shape));
            assert_eq!(entry.len(), encoding.bytes(&shape).unwrap());
            assert!(checkpoint.bytes(entry).iter().all(|&byte| byte == id as u8), "{}", entry.name());
        }
    }
}

#[test]
fn other_types_name_tensor_and_type() {
    for (id, name) in
        [(4, Some("Q4_2")), (15, Some("Q8_K")), (29, Some("IQ1_M")), (39, Some("MXFP4")), (999, None)]
    {
        let file = Gguf::new(&[], &[tensor("blk.0", id, &[256], &[0; 512])]).write();
        assert_eq!(tensor_fault(file), ("blk.0".to_owned(), TensorFault::UnknownType { id, name }));
    }
}

#[test]
fn versions_that_cannot_be_read_say_why() {
    let with = |version| Gguf { version, ..Gguf::new(&[], &[]) }.write();
    for version in [0, 1, 4] {
        assert_eq!(header_fault(with(version)), HeaderFault::GgufVersion { version });
    }
    assert_eq!(header_fault(with(3u32.swap_bytes())), HeaderFault::BigEndian { version: 3 });
}

#[test]
fn typed_metadata() {
    let pairs = [
        ("u8", value(0, &[200])),
        ("i8", value(1, &[200])),
        ("u16", value(2, &60_000u16.to_le_bytes())),
        ("i16", value(3, &(-5i16).to_le_bytes())),
        ("u32", u32_value(4_000_000_000)),
        ("i32", value(5, &(-7i32).to_le_bytes())),
        ("f32", value(6, &1.5f32.to_le_bytes())),
        ("yes", value(7, &[1])),
        ("name", str_value("flüx")),
        ("u64", value(10, &u64::MAX.to_le_bytes())),
        ("i64", value(11, &i64::MIN.to_le_bytes())),
        ("f64", value(12, &2.5f64.to_le_bytes())),
    ];
    let checkpoint = open(Gguf::new(&pairs, &[]).write()).unwrap();
    let metadata = checkpoint.metadata();
    assert_eq!(metadata.keys().collect::<Vec<_>>(), pairs.clone().map(|(key, _)| key));
    assert_eq!((metadata.u64("u8"), metadata.i64("i8")), (Some(200), Some(-56)));
    assert_eq!((metadata.u64("u16"), metadata.i64("i16")), (Some(60_000), Some(-5)));
    assert_eq!((metadata.u64("u32"), metadata.i64("i32")), (Some(4_000_000_000), Some(-7)));
    assert_eq!((metadata.f64("f32"), metadata.f64("f64")), (Some(1.5), Some(2.5)));
    assert_eq!((metadata.bool("yes"), metadata.str("name")), (Some(true), Some("flüx")));
    assert_eq!((metadata.u64("u64"), metadata.i64("u64")), (Some(u64::MAX), None));
    assert_eq!((metadata.i64("i64"), metadata.u64("i64")), (Some(i64::MIN), None));
    assert_eq!((metadata.str("u8"), metadata.u64("name"), metadata.bool("u8")), (None, None, None));
    let shown: Vec<String> = metadata.iter().map(|(key, value)| format!("{key}={value}")).collect();
    assert_eq!(shown[6..9], ["f32=1.5", "yes=true", "name=flüx"]);
}

#[test]
fn arrays_stay_in_the_file_and_are_read_one_by_one() {
    let tokens: Vec<String> = (0..150_000).map(|i| format!("token{i}")).collect();
    let packed: Vec<u8> = tokens.iter().flat_map(|token| text(token.as_bytes())).collect();
    let scores: Vec<u8> = (0..1000).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let pairs = [
        ("tokens", array_value(8, tokens.len() as u64, &packed)),
        ("scores", array_value(6, 1000, &scores)),
        ("empty", array_value(8, 0, &[])),
        ("flags", array_value(7, 3, &[1, 0, 1])),
        ("after", u32_value(7)),
    ];
    let checkpoint = open(Gguf::new(&pairs, &[]).write()).unwrap();
    let metadata = checkpoint.metadata();
    let read: Vec<&str> = metadata.strings("tokens").unwrap().collect::<Result<_, _>>().unwrap();
    assert!(read == tokens, "all tokens come back in order");
    let scores = metadata.array("scores").unwrap();
    assert_eq!((scores.len(), scores.element(), scores.raw().len()), (1000, ElementType::F32, 4000));
    let sum: f64 = scores.iter().map(|s| if let Ok(Value::Float(s)) = s { s } else { f64::NAN }).sum();
    assert_eq!(sum, 499_500.0);
    assert_eq!(metadata.strings("empty").unwrap().count(), 0);
    assert_eq!(metadata.array("flags").unwrap().iter().count(), 3);
    assert!(metadata.strings("scores").is_none() && metadata.array("after").is_none());
    assert_eq!(metadata.u64("after"), Some(7));
    assert_eq!(metadata.get("tokens").unwrap().to_string(), "150000 × text");
}

#[test]
fn bad_elements_are_found_when_their_turn_comes() {
    let texts = [text(b"good"), text(b"\xff\xfe"), text(b"never read")].concat();
    let pairs = [("texts", array_value(8, 3, &texts)), ("flags", array_value(7, 2, &[1, 2]))];
    let checkpoint = open(Gguf::new(&pairs, &[]).write()).unwrap();
    let read: Vec<_> = checkpoint.metadata().strings("texts").unwrap().collect();
    assert_eq!(read.len(), 2);
    let error = read[1].as_ref().unwrap_err();
    assert!(
        matches!(error, Error::Value { key, fault: ValueFault::NotText { index: 1 }, .. } if key == "texts")
    );
    let flags: Vec<_> = checkpoint.metadata().array("flags").unwrap().iter().collect();
    assert!(matches!(
        flags[1],
        Err(Error::Value { fault: ValueFault::NotBoolean { index: 1, value: 2 }, .. })
    ));
}

#[test]
fn bad_values_name_their_key() {
    let nested = array_value(9, 1, &array_value(0, 1, &[0])[4..]);
    assert_eq!(value_fault(&[("deep", nested)]), ("deep".to_owned(), ValueFault::NestedArray));
    assert_eq!(value_fault(&[("odd", value(13, &[0; 8]))]).1, ValueFault::UnknownType { id: 13 });
    assert_eq!(value_fault(&[("odd", array_value(99, 1, &[0; 8]))]).1, ValueFault::UnknownType { id: 99 });
    assert_eq!(value_fault(&[("b", value(7, &[2]))]).1, ValueFault::NotBoolean { index: 0, value: 2 });
    assert_eq!(value_fault(&[("s", value(8, &text(b"\xff")))]).1, ValueFault::NotText { index: 0 });
    assert_eq!(
        value_fault(&[("k", u32_value(1)), ("k", u32_value(1))]),
        ("k".to_owned(), ValueFault::Duplicate)
    );
    let long = value(8, &(MAX_GGUF_STRING_BYTES + 1).to_le_bytes());
    let too_long =
        ValueFault::StringTooLong { bytes: MAX_GGUF_STRING_BYTES + 1, limit: MAX_GGUF_STRING_BYTES };
    assert_eq!(value_fault(&[("s", long)]).1, too_long);
}

#[test]
fn counts_that_lie_are_truncation_or_limits() {
    let lying = |at: usize, count: u64| {
        let mut file = Gguf::new(&[("k", u32_value(1))], &[tensor("t", 0, &[1], &[0; 4])]).write();
        file[at..at + 8].copy_from_slice(&count.to_le_bytes());
        file
    };
    let (tensors, keys) = (8, 16);
    let limit = MAX_ENTRIES;
    assert_eq!(
        header_fault(lying(tensors, limit + 1)),
        HeaderFault::TooManyTensors { count: limit + 1, limit }
    );
    let limit = MAX_GGUF_KEYS;
    assert_eq!(header_fault(lying(keys, u64::MAX)), HeaderFault::TooManyKeys { count: u64::MAX, limit });
    assert!(open(lying(tensors, MAX_ENTRIES)).is_err());
    assert!(open(lying(keys, MAX_GGUF_KEYS)).is_err());
    for len in [u64::MAX, u64::MAX / 4 + 1, 1 << 40] {
        let file = Gguf::new(&[("a", array_value(6, len, &[0; 64]))], &[]).write();
        assert!(matches!(open(file).unwrap_err(), Error::TruncatedHeader { .. }), "{len}");
        let file = Gguf::new(&[("a", array_value(8, len, &[0; 64]))], &[]).write();
        assert!(matches!(open(file).unwrap_err(), Error::TruncatedHeader { .. }), "{len}");
    }
    let file = Gguf::new(&[(&"k".repeat(65_536), u32_value(1))], &[]).write();
    assert!(matches!(header_fault(file), HeaderFault::NameTooLong { what: "metadata key", number: 0, .. }));
    let file = Gguf::new(&[], &[tensor("t", 0, &[1; 9], &[0; 4])]).write();
    assert_eq!(tensor_fault(file).1, TensorFault::Rank { rank: 9 });
}

#[test]
fn alignment_is_honoured_and_checked() {
    let tensors = [tensor("a", 24, &[3], &[1, 2, 3]), tensor("b", 24, &[1], &[9])];
    for alignment in [1u32, 8, 64, 4096] {
        let pairs = [("general.alignment", u32_value(alignment))];
        let file = Gguf { alignment: alignment.into(), ..Gguf::new(&pairs, &tensors) }.write();
        let checkpoint = open(file).unwrap();
        assert_eq!(checkpoint.bytes(checkpoint.entry("a").unwrap()), [1, 2, 3]);
        assert_eq!(checkpoint.bytes(checkpoint.entry("b").unwrap()), [9]);
        assert!(checkpoint.entries().iter().all(|entry| entry.offset().is_multiple_of(alignment.into())));
    }
    let limit = MAX_GGUF_ALIGNMENT;
    for bad in
        [u32_value(0), u32_value(48), u32_value(1 << 25), str_value("32"), value(5, &32i32.to_le_bytes())]
    {
        let file = Gguf::new(&[("general.alignment", bad)], &tensors).write();
        assert!(matches!(header_fault(file), HeaderFault::Alignment { limit: l, .. } if l == limit));
    }
    let file = Gguf::new(&[], &tensors).write_at(&[0, 40]);
    assert_eq!(tensor_fault(file), ("b".to_owned(), TensorFault::Unaligned { offset: 40, alignment: 32 }));
}

#[test]
fn overlaps_are_refused_and_gaps_accepted() {
    let tensors =
        [tensor("a", 0, &[16], &[1; 64]), tensor("b", 0, &[4], &[2; 16]), tensor("none", 0, &[0], &[])];
    let overlap = Gguf::new(&[], &tensors).write_at(&[0, 32, 64]);
    assert_eq!(tensor_fault(overlap), ("b".to_owned(), TensorFault::Overlap { with: "a".to_owned() }));
    let mut gap = Gguf::new(&[], &tensors).write_at(&[0, 128, 32]);
    gap.resize(gap.len() + 128, 5);
    let checkpoint = open(gap).unwrap();
    assert_eq!(checkpoint.bytes(checkpoint.entry("a").unwrap()), [1; 64]);
    assert_eq!(checkpoint.bytes(checkpoint.entry("b").unwrap()), [5; 16]);
    let far = Gguf::new(&[], &tensors).write_at(&[0, 64, 1 << 40]);
    let checkpoint = open(far).unwrap();
    assert!(checkpoint.bytes(checkpoint.entry("none").unwrap()).is_empty());
    let same = Gguf::new(&[], &[tensor("a", 0, &[1], &[0; 4]), tensor("a", 0, &[1], &[0; 4])]).write();
    assert_eq!(tensor_fault(same), ("a".to_owned(), TensorFault::Duplicate { also_in: None }));
}

#[test]
fn sizes_that_cannot_be() {
    let one = |dims: &[u64], kind, offset| {
        tensor_fault(Gguf::new(&[], &[tensor("t", kind, dims, &[0; 64])]).write_at(&[offset])).1
    };
    assert!(matches!(
        one(&[4, 100], 12, 0),
        TensorFault::Size(SizeError::PartialBlock { block_len: 256, .. })
    ));
    assert!(matches!(one(&[1 << 40, 1 << 40], 0, 0), TensorFault::Size(SizeError::Overflow { .. })));
    let last = u64::MAX - 31;
    assert_eq!(one(&[16], 0, last), TensorFault::Beyond { offset: last, len: 64 });
    assert_eq!(one(&[1], 0, last), TensorFault::Beyond { offset: last, len: 4 });
}

#[test]
fn truncation_says_how_much_is_missing() {
    let whole = Gguf::new(&[("k", u32_value(1))], &[tensor("a", 0, &[25], &[7; 100])]).write();
    let file = whole[..whole.len() - 30].to_vec();
    assert!(matches!(open(file).unwrap_err(), Error::Truncated { missing: 30, .. }));
    for len in 4..whole.len() - 100 {
        let error = open(whole[..len].to_vec()).unwrap_err();
        let missing = matches!(error, Error::TruncatedHeader { .. } | Error::Truncated { .. });
        assert!(missing, "{len}: {error}");
        assert!(error.to_string().starts_with("model.gguf: "), "{error}");
    }
}

#[test]
fn regrouped_tensors_get_their_shape_back() {
    let shape = |kind, sizes: &[i64]| {
        let bytes: Vec<u8> = match kind {
            5 => sizes.iter().flat_map(|&size| (size as i32).to_le_bytes()).collect(),
            _ => sizes.iter().flat_map(|&size| size.to_le_bytes()).collect(),
        };
        array_value(kind, sizes.len() as u64, &bytes)
    };
    let tensors = [tensor("conv.weight", 12, &[45, 256], &vec![3; 45 * 144])];
    for kind in [5, 11] {
        let pairs = [
            ("comfy.gguf.orig_shape.conv.weight", shape(kind, &[320, 4, 3, 3])),
            ("comfy.gguf.orig_shape.gone", shape(kind, &[1])),
        ];
        let checkpoint = open(Gguf::new(&pairs, &tensors).write()).unwrap();
        let entry = checkpoint.entry("conv.weight").unwrap();
        assert_eq!(*entry.shape(), Shape::from([320, 4, 3, 3]));
        assert_eq!(*entry.stored_shape(), Shape::from([45, 256]));
        assert_eq!(entry.len(), 45 * 144);
    }
    for bad in [&[320, 4, 3][..], &[-1, 4], &[], &[1; 9]] {
        let pairs = [("comfy.gguf.orig_shape.conv.weight", shape(11, bad))];
        let (name, fault) = tensor_fault(Gguf::new(&pairs, &tensors).write());
        let expected = TensorFault::OriginalShape { stored: Shape::from([45, 256]), original: bad.to_vec() };
        assert_eq!((name.as_str(), fault), ("conv.weight", expected));
    }
}

#[test]
fn a_tokenizer_in_the_metadata_is_typed() {
    let texts = [text(b"<pad>"), text(b"fox")].concat();
    let scores: Vec<u8> = [0.0f32, -2.5].iter().flat_map(|score| score.to_le_bytes()).collect();
    let kinds: Vec<u8> = [3i32, 1].iter().flat_map(|kind| kind.to_le_bytes()).collect();
    let model = ("tokenizer.ggml.model", str_value("t5"));
    let tokens = ("tokenizer.ggml.tokens", array_value(8, 2, &texts));
    let scored = ("tokenizer.ggml.scores", array_value(6, 2, &scores));
    let kinded = ("tokenizer.ggml.token_type", array_value(5, 2, &kinds));
    let map = ("tokenizer.ggml.precompiled_charsmap", array_value(0, 3, &[7, 8, 9]));
    let file = |pairs: &[(&str, Vec<u8>)]| open(Gguf::new(pairs, &[]).write()).unwrap();
    let whole = file(&[model.clone(), tokens.clone(), scored.clone(), kinded.clone(), map]);
    let tokenizer = whole.metadata().tokenizer().unwrap();
    assert_eq!((tokenizer.model(), tokenizer.character_map()), ("t5", Some(&[7u8, 8, 9][..])));
    let pieces: Vec<(&str, f32, u64)> =
        tokenizer.pieces().unwrap().iter().map(|piece| (piece.text, piece.score, piece.kind)).collect();
    assert_eq!(pieces, [("<pad>", 0.0, 3), ("fox", -2.5, 1)]);
    // What is missing or of another type is named by its key.
    let fault = |file: Checkpoint| match file.metadata().tokenizer().unwrap().pieces().unwrap_err() {
        Error::Value { key, fault, .. } => (key, fault),
        other => panic!("{other:?}"),
    };
    let missing = fault(file(&[model.clone(), tokens.clone(), kinded.clone()]));
    assert_eq!(missing, ("tokenizer.ggml.scores".to_owned(), ValueFault::Missing));
    let swapped = ("tokenizer.ggml.scores", array_value(5, 2, &kinds));
    let wrong = fault(file(&[model, tokens, swapped, kinded]));
    assert_eq!(wrong, ("tokenizer.ggml.scores".to_owned(), ValueFault::NotThat { wanted: "floats" }));
    assert!(file(&[]).metadata().tokenizer().is_none());
}
