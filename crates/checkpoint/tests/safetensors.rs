//! Safetensors files: every dtype, metadata, companions of scaled fp8, and every kind of lie in a header.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod folder;
mod writer;

use std::borrow::Cow;

use checkpoint::{
    Checkpoint, Entry, Error, Format, HeaderFault, MAX_SAFETENSORS_HEADER_BYTES, TensorFault, ValueFault,
};
use folder::Folder;
use meta::{DType, Encoding, Shape, SizeError};
use writer::{safetensors, safetensors_raw, tensor};

fn open(bytes: Vec<u8>) -> Result<Checkpoint, Error> {
    Checkpoint::from_memory(("model.safetensors", Cow::Owned(bytes)), Vec::new())
}

/// The fault of the one tensor that a bad header names.
fn tensor_fault(header: &str, data: &[u8]) -> (String, TensorFault) {
    let error = open(safetensors_raw(header, data)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("model.safetensors: tensor "), "{text}");
    match error {
        Error::Tensor { tensor, fault, .. } => (tensor, *fault),
        other => panic!("{other:?}"),
    }
}

fn header_fault(header: &str, data: &[u8]) -> HeaderFault {
    match open(safetensors_raw(header, data)).unwrap_err() {
        Error::Header { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_dtype_with_its_bytes() {
    let dtypes = [
        ("F64", DType::F64),
        ("F32", DType::F32),
        ("F16", DType::F16),
        ("BF16", DType::BF16),
        ("F8_E4M3", DType::F8E4M3),
        ("F8_E5M2", DType::F8E5M2),
        ("I64", DType::I64),
        ("I32", DType::I32),
        ("I16", DType::I16),
        ("I8", DType::I8),
        ("U64", DType::U64),
        ("U32", DType::U32),
        ("U16", DType::U16),
        ("U8", DType::U8),
        ("BOOL", DType::Bool),
    ];
    assert_eq!(dtypes.len(), DType::ALL.len());
    let tensors: Vec<_> = dtypes
        .iter()
        .enumerate()
        .map(|(at, (name, dtype))| tensor(name, *name, &[3, 2], &vec![at as u8; 6 * dtype.bytes()]))
        .collect();
    let checkpoint = open(safetensors(&[], &tensors)).unwrap();
    assert_eq!(checkpoint.format(), Format::Safetensors);
    assert_eq!(checkpoint.entries().len(), dtypes.len());
    for (at, (entry, (name, dtype))) in checkpoint.entries().iter().zip(dtypes).enumerate() {
        assert_eq!((entry.name(), entry.encoding()), (name, Encoding::Plain(dtype)));
        assert_eq!(*entry.shape(), Shape::from([3, 2]));
        assert_eq!(checkpoint.bytes(entry), vec![at as u8; 6 * dtype.bytes()]);
        assert_eq!(checkpoint.entry(name), Some(entry));
    }
    assert_eq!(checkpoint.tensor_bytes(), 6 * (3 * 8 + 3 * 4 + 4 * 2 + 5));
    assert!(checkpoint.entry("F4").is_none());
}

#[test]
fn unknown_dtypes_name_the_tensor() {
    for dtype in ["F4", "F6_E2M3", "C64", "f32", "", &"x".repeat(200)] {
        let header = format!(r#"{{"a.b":{{"dtype":"{dtype}","shape":[1],"data_offsets":[0,4]}}}}"#);
        match tensor_fault(&header, &[0; 4]) {
            (name, TensorFault::UnknownDtype { dtype: got }) => {
                assert_eq!(name, "a.b");
                assert!(dtype.starts_with(got.trim_end_matches('…')) && got.chars().count() <= 81);
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn header_order_scalars_empty_tensors_and_escapes() {
    let tensors = [
        tensor("z", "F32", &[], &[1, 2, 3, 4]),
        tensor("a", "F32", &[0, 7], &[]),
        tensor("quote\" and ünïcode\n", "U8", &[2], &[5, 6]),
    ];
    let checkpoint = open(safetensors(&[], &tensors)).unwrap();
    let names: Vec<&str> = checkpoint.entries().iter().map(Entry::name).collect();
    assert_eq!(names, ["z", "a", "quote\" and ünïcode\n"]);
    assert_eq!(checkpoint.bytes(&checkpoint.entries()[0]), [1, 2, 3, 4]);
    assert!(checkpoint.entries()[1].is_empty());
    assert_eq!(checkpoint.bytes(&checkpoint.entries()[2]), [5, 6]);
}

#[test]
fn unknown_fields_and_padding_are_ignored_like_in_the_reference() {
    let header = r#"{"a":{"extra":[{"deep":1}],"dtype":"U8","shape":[1],"data_offsets":[0,1]}}      "#;
    assert_eq!(open(safetensors_raw(header, &[9])).unwrap().entries().len(), 1);
    assert!(open(safetensors_raw("{}", &[])).unwrap().entries().is_empty());
}

#[test]
fn metadata_is_text_by_key() {
    let checkpoint = open(safetensors(&[("format", "pt"), ("né\"w", "v\\")], &[])).unwrap();
    let metadata = checkpoint.metadata();
    assert_eq!(metadata.str("format"), Some("pt"));
    assert_eq!(metadata.str("né\"w"), Some("v\\"));
    assert_eq!(metadata.str("absent"), None);
    assert_eq!(metadata.u64("format"), None);
    assert_eq!(metadata.keys().collect::<Vec<_>>(), ["format", "né\"w"]);
    assert!(open(safetensors_raw(r#"{"__metadata__":null}"#, &[])).unwrap().metadata().is_empty());

    assert!(matches!(header_fault(r#"{"__metadata__":{"a":1}}"#, &[]), HeaderFault::Json { .. }));
    assert!(matches!(
        header_fault(r#"{"__metadata__":{},"__metadata__":{}}"#, &[]),
        HeaderFault::Json { .. }
    ));
    let twice = open(safetensors_raw(r#"{"__metadata__":{"a":"1","a":"2"}}"#, &[])).unwrap_err();
    assert!(
        matches!(&twice, Error::Value { key, fault: ValueFault::Duplicate, .. } if key == "a"),
        "{twice:?}"
    );
}

#[test]
fn offsets_must_cover_the_data_exactly_once() {
    let u8s = |name: &str, begin: u64, end: u64| {
        format!(
            r#""{name}":{{"dtype":"U8","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
            end.saturating_sub(begin)
        )
    };
    let header = |parts: &[String]| format!("{{{}}}", parts.join(","));
    let overlap = header(&[u8s("b", 3, 6), u8s("a", 0, 4)]);
    let expected = TensorFault::Overlap { with: "a".to_owned() };
    assert_eq!(tensor_fault(&overlap, &[0; 6]), ("b".to_owned(), expected));
    let inside = header(&[u8s("a", 0, 4), u8s("empty", 2, 2)]);
    assert!(matches!(tensor_fault(&inside, &[0; 4]), (name, TensorFault::Overlap { .. }) if name == "empty"));
    let hole = header(&[u8s("a", 0, 4), u8s("b", 6, 8)]);
    assert_eq!(tensor_fault(&hole, &[0; 8]), ("b".to_owned(), TensorFault::Hole { bytes: 2 }));
    let first = header(&[u8s("a", 1, 4)]);
    assert_eq!(tensor_fault(&first, &[0; 4]), ("a".to_owned(), TensorFault::Hole { bytes: 1 }));
    let backwards = header(&[u8s("a", 4, 0)]);
    assert_eq!(tensor_fault(&backwards, &[0; 4]).1, TensorFault::Offsets { begin: 4, end: 0 });
    assert_eq!(header_fault(&header(&[u8s("a", 0, 4)]), &[0; 7]), HeaderFault::LeftoverBytes { bytes: 3 });
}

#[test]
fn sizes_must_agree() {
    let one = |shape: &str, dtype: &str, begin: &str, end: &str| {
        let header =
            format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#);
        tensor_fault(&header, &[0; 8]).1
    };
    let short = TensorFault::Length { shape: Shape::from([3]), expected: 12, got: 8 };
    assert_eq!(one("[3]", "F32", "0", "8"), short);
    let huge = format!("[{0},{0}]", u64::MAX);
    assert!(matches!(one(&huge, "F32", "0", "8"), TensorFault::Size(SizeError::Overflow { .. })));
    assert_eq!(one("[1,1,1,1,1,1,1,1,8]", "U8", "0", "8"), TensorFault::Rank { rank: 9 });
    let far = TensorFault::Beyond { offset: u64::MAX - 8, len: 8 };
    assert_eq!(one("[8]", "U8", &(u64::MAX - 8).to_string(), &u64::MAX.to_string()), far);
    for bad in ["[-1]", "[1.5]", "\"8\"", "{}", "[[8]]"] {
        assert!(matches!(one(bad, "U8", "0", "8"), TensorFault::Json { .. }), "{bad}");
    }
    assert!(matches!(one("[8]", "U8", "-1", "8"), TensorFault::Json { .. }));
}

#[test]
fn missing_and_repeated_fields_name_the_tensor() {
    for description in [
        r#"{"dtype":"U8","shape":[1]}"#,
        r#"{"dtype":"U8","data_offsets":[0,1]}"#,
        r#"{"shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}"#,
        r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}"#,
        "null",
        "3",
    ] {
        let (name, fault) = tensor_fault(&format!("{{\"x.weight\":{description}}}"), &[0]);
        assert_eq!(name, "x.weight");
        assert!(matches!(fault, TensorFault::Json { .. }), "{description}");
    }
}

#[test]
fn a_name_twice_is_an_error() {
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}"#;
    assert_eq!(tensor_fault(header, &[0; 2]), ("a".to_owned(), TensorFault::Duplicate { also_in: None }));
}

#[test]
fn broken_json_is_a_header_fault() {
    for header in ["{", "{\"a\"", "{}x", "{\"a\":{}", "{\"\\ud800\":1}"] {
        let error = open(safetensors_raw(header, &[])).unwrap_err();
        assert!(
            matches!(error, Error::Header { fault: HeaderFault::Json { .. }, .. } | Error::Tensor { .. }),
            "{header}"
        );
    }
    let deep = format!("{{\"a\":{}", "[".repeat(100_000));
    assert!(open(safetensors_raw(&deep, &[])).is_err());
    let long = format!("{{\"{}\":{{}}}}", "n".repeat(70_000));
    assert!(matches!(header_fault(&long, &[]), HeaderFault::NameTooLong { bytes: 70_000, .. }));
}

#[test]
fn truncation_says_how_much_is_missing() {
    let whole = safetensors(&[], &[tensor("a", "F32", &[25], &[7; 100])]);
    match open(whole[..whole.len() - 30].to_vec()).unwrap_err() {
        Error::Truncated { expected, got, missing, .. } => {
            assert_eq!((expected, got, missing), (whole.len() as u64, whole.len() as u64 - 30, 30));
        }
        other => panic!("{other:?}"),
    }
    let error = open(whole[..20].to_vec()).unwrap_err();
    let needed = whole.len() as u64 - 100;
    assert!(
        matches!(&error, Error::TruncatedHeader { expected: Some(e), got: 20, .. } if *e == needed),
        "{error:?}"
    );
    assert!(error.to_string().contains(&format!("at least {} more", needed - 20)), "{error}");
}

#[test]
fn a_header_length_beyond_the_limit_is_refused() {
    let mut file = safetensors_raw("{}", &[]);
    file[..8].copy_from_slice(&(MAX_SAFETENSORS_HEADER_BYTES + 1).to_le_bytes());
    let fault = match open(file).unwrap_err() {
        Error::Header { fault, .. } => fault,
        other => panic!("{other:?}"),
    };
    let limit = MAX_SAFETENSORS_HEADER_BYTES;
    assert_eq!(fault, HeaderFault::TooLarge { bytes: limit + 1, limit });
}

/// A flux checkpoint in scaled fp8, as ComfyUI's tools write them: names, shapes and dtypes of a real one.
#[test]
fn scaled_fp8_weights_find_their_scales() {
    let manifest: serde_json::Value =
        serde_json::from_str(include_str!("data/flux_dev_micro_fp8_scaled.json")).unwrap();
    let described = manifest["tensors"].as_array().unwrap();
    let tensors: Vec<_> = described
        .iter()
        .map(|t| {
            let dims: Vec<u64> = t["shape"].as_array().unwrap().iter().map(|d| d.as_u64().unwrap()).collect();
            let kind = t["dtype"].as_str().unwrap();
            let size = dims.iter().product::<u64>() as usize * if kind == "BF16" { 2 } else { 1 };
            let offset = t["offset"].as_f64().unwrap() as f32;
            let bytes = if kind == "F32" { offset.to_le_bytes().to_vec() } else { vec![0; size] };
            tensor(t["name"].as_str().unwrap(), kind, &dims, &bytes)
        })
        .collect();
    let checkpoint = open(safetensors(&[], &tensors)).unwrap();
    let mut scaled = 0;
    for (entry, described) in checkpoint.entries().iter().zip(described) {
        let is_fp8 = entry.encoding() == Encoding::Plain(DType::F8E4M3) && entry.name() != "scaled_fp8";
        assert_eq!(checkpoint.scale_of(entry).is_some(), is_fp8, "{}", entry.name());
        let expected = entry.name().ends_with(".scale_weight") || entry.name() == "scaled_fp8";
        assert_eq!(checkpoint.is_companion(entry), expected, "{}", entry.name());
        assert_eq!(entry.name(), described["name"]);
        if let Some(scale) = checkpoint.scale_of(entry) {
            assert_eq!((scale.encoding(), scale.shape().count()), (Encoding::F32, 1));
            assert!(f32::from_le_bytes(checkpoint.bytes(scale).try_into().unwrap()) > 0.0);
            scaled += 1;
        }
    }
    assert_eq!(scaled, 26);
}

#[test]
fn newer_companion_names_are_found_too() {
    let note = br#"{"format": "float8_e4m3fn"}"#;
    let tensors = [
        tensor("m.a.weight", "F8_E4M3", &[2], &[1, 2]),
        tensor("m.a.weight_scale", "F32", &[1], &2f32.to_le_bytes()),
        tensor("m.a.input_scale", "F32", &[], &3f32.to_le_bytes()),
        tensor("m.a.comfy_quant", "U8", &[note.len() as u64], note),
        tensor("m.b.weight", "F8_E4M3", &[2], &[1, 2]),
        tensor("m.c.weight_scale", "F32", &[1], &2f32.to_le_bytes()),
    ];
    let checkpoint = open(safetensors(&[], &tensors)).unwrap();
    let entry = |name| checkpoint.entry(name).unwrap();
    let weight = entry("m.a.weight");
    assert_eq!(checkpoint.scale_of(weight), Some(entry("m.a.weight_scale")));
    assert_eq!(checkpoint.input_scale_of(weight), Some(entry("m.a.input_scale")));
    assert_eq!(checkpoint.quant_note_of(weight).map(|note| checkpoint.bytes(note)), Some(&note[..]));
    assert_eq!(checkpoint.scale_of(entry("m.b.weight")), None);
    let companions: Vec<bool> = checkpoint.entries().iter().map(|e| checkpoint.is_companion(e)).collect();
    assert_eq!(companions, [false, true, true, true, false, false]);
}

#[test]
fn shares_outlive_the_checkpoint_and_are_not_copies() {
    fn is_shareable<T: Send + Sync + Clone + AsRef<[u8]> + 'static>(_: &T) {}
    fn is_sync<T: Send + Sync>(_: &T) {}
    let folder = Folder::new();
    let file = safetensors(&[], &[tensor("a", "U8", &[5], &[1, 2, 3, 4, 5])]);
    let checkpoint = Checkpoint::open(folder.write("model.bin", &file)).unwrap();
    let entry = checkpoint.entry("a").unwrap();
    let share = checkpoint.entry_bytes(entry);
    is_shareable(&share);
    is_sync(&checkpoint);
    assert_eq!(share.as_ref().as_ptr(), checkpoint.bytes(entry).as_ptr());
    drop(checkpoint);
    let part = share.clone().slice(1..4);
    std::thread::spawn(move || assert_eq!(*part, [2, 3, 4])).join().unwrap();
    assert_eq!(*share, [1, 2, 3, 4, 5]);
    assert!(std::panic::catch_unwind(|| share.slice(3..6)).is_err());
}

#[test]
fn a_shard_alone_says_that_it_is_one() {
    let file = safetensors(&[], &[]);
    let open = |name| Checkpoint::from_memory((name, Cow::Owned(file.clone())), Vec::new()).unwrap();
    let shard = open("model-00002-of-00003.safetensors").shard().unwrap();
    assert_eq!((shard.number, shard.count), (2, 3));
    assert_eq!(shard.index.to_str(), Some("model.safetensors.index.json"));
    assert_eq!(open("model.safetensors").shard(), None);
}
