//! Checkpoints in several files: safetensors with an index, and split GGUF.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod folder;
mod writer;

use std::borrow::Cow;

use checkpoint::{Checkpoint, Error, Format, MAX_SHARDS, Refusal, ShardFault, TensorFault};
use folder::Folder;
use writer::{Gguf, index, safetensors, str_value, tensor, u32_value, value};

fn shard_fault(error: &Error) -> &ShardFault {
    match error {
        Error::Shards { fault, .. } => fault,
        other => panic!("{other:?}"),
    }
}

fn owned(bytes: impl Into<Vec<u8>>) -> Cow<'static, [u8]> {
    Cow::Owned(bytes.into())
}

const ONE: &str = "m-00001-of-00002.safetensors";
const TWO: &str = "m-00002-of-00002.safetensors";

fn shard(name: &str, byte: u8) -> Vec<u8> {
    safetensors(&[("format", name)], &[tensor(name, "U8", &[3], &[byte; 3])])
}

#[test]
fn an_index_opens_its_shards() {
    let folder = Folder::new();
    folder.write(ONE, &shard("a", 1));
    folder.write(TWO, &shard("b", 2));
    let path = folder.write("any name", index(&[("b", TWO), ("a", ONE)]).as_bytes());
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!((checkpoint.path(), checkpoint.format()), (&*path, Format::Safetensors));
    let files: Vec<_> =
        checkpoint.files().map(|(path, len)| (path.file_name().unwrap().to_owned(), len)).collect();
    assert_eq!(files.len(), 2);
    assert_eq!(files[0].0, ONE);
    assert_eq!(files[1], (TWO.into(), shard("b", 2).len() as u64));
    let names: Vec<_> = checkpoint.entries().iter().map(|e| (e.name(), e.file())).collect();
    assert_eq!(names, [("a", 0), ("b", 1)]);
    assert_eq!(checkpoint.bytes(checkpoint.entry("b").unwrap()), [2; 3]);
    assert_eq!(checkpoint.metadata().str("format"), Some("a"));
    assert_eq!(checkpoint.shard(), None);
    checkpoint.verify().unwrap();

    let alone = Checkpoint::open(folder.path().join(TWO)).unwrap();
    assert_eq!(alone.entries().len(), 1);
    assert_eq!(alone.shard().unwrap().index, folder.path().join("m.safetensors.index.json"));
}

fn open_index(json: &str, parts: Vec<(&str, Vec<u8>)>) -> Result<Checkpoint, Error> {
    let parts = parts.into_iter().map(|(name, bytes)| (name, owned(bytes))).collect();
    Checkpoint::from_memory(("m.safetensors.index.json", owned(json)), parts)
}

#[test]
fn an_index_that_lies_is_refused() {
    let both = || vec![(ONE, shard("a", 1)), (TWO, shard("b", 2))];
    let good = index(&[("a", ONE), ("b", TWO)]);
    assert_eq!(open_index(&good, both()).unwrap().entries().len(), 2);

    let missing = open_index(&good, vec![(ONE, shard("a", 1))]).unwrap_err();
    assert_eq!(shard_fault(&missing), &ShardFault::MissingPart { name: TWO.to_owned() });
    assert_eq!(missing.file().to_str(), Some("m.safetensors.index.json"));

    for (tensor, file) in [("c", ONE), ("b", ONE)] {
        let error = open_index(&index(&[("a", ONE), ("b", TWO), (tensor, file)]), both()).unwrap_err();
        match error {
            Error::Tensor { tensor: named, fault, .. } if tensor == "c" => {
                assert_eq!((&*named, *fault), ("c", TensorFault::NotInShard { shard: ONE.to_owned() }));
            }
            Error::Tensor { fault, .. } => assert_eq!(*fault, TensorFault::Duplicate { also_in: None }),
            other => panic!("{other:?}"),
        }
    }
    let swapped = open_index(&index(&[("a", TWO), ("b", ONE)]), both()).unwrap_err();
    assert!(
        matches!(swapped, Error::Tensor { fault, .. } if matches!(*fault, TensorFault::NotInShard { .. }))
    );

    let twice = vec![(ONE, shard("a", 1)), (TWO, shard("a", 2))];
    let error = open_index(&index(&[("a", ONE), ("b", TWO)]), twice).unwrap_err();
    assert_eq!(error.file().to_str(), Some(TWO));
    let also_in = Some(ONE.into());
    assert!(matches!(error, Error::Tensor { fault, .. } if *fault == TensorFault::Duplicate { also_in }));

    let wrong = vec![(ONE, Gguf::new(&[], &[]).write()), (TWO, shard("b", 2))];
    let error = open_index(&good, wrong).unwrap_err();
    assert!(matches!(shard_fault(&error), ShardFault::NotAPart { found: "it is a GGUF file", .. }));
    let pickle = vec![(ONE, b"\x80\x04\x95".to_vec()), (TWO, shard("b", 2))];
    let error = open_index(&good, pickle).unwrap_err();
    assert!(matches!(&error, Error::Refused { reason: Refusal::Pickle, .. }));
    assert_eq!(error.file().to_str(), Some(ONE));
}

#[test]
fn an_index_cannot_leave_its_folder() {
    let folder = Folder::new();
    let outside = folder.write("secret.safetensors", &shard("a", 1));
    std::fs::create_dir(folder.path().join("models")).unwrap();
    let absolute = outside.to_str().unwrap();
    for name in ["../secret.safetensors", absolute, "sub/a", "..", ".", "", "a\\b", "c:a", "a/"] {
        let path = folder.write("models/i.json", index(&[("a", name)]).as_bytes());
        let error = Checkpoint::open(path).unwrap_err();
        assert!(matches!(shard_fault(&error), ShardFault::FileName { .. }), "{name}: {error}");
    }
}

#[test]
fn json_that_is_no_index() {
    for json in ["{}", "{\"error\":\"Repository not found\"}", "{\"weight_map\":{}}", " \n{\"a\":[[]]}"] {
        let error = open_index(json, Vec::new()).unwrap_err();
        assert!(matches!(error, Error::Refused { reason: Refusal::Json, .. }), "{json}");
    }
    for json in
        ["{", "{\"weight_map\":[]}", "{\"weight_map\":{\"a\":1}}", "{\"weight_map\":{},\"weight_map\":{}}"]
    {
        assert!(matches!(open_index(json, Vec::new()), Err(Error::Header { .. })), "{json}");
    }
    let many: Vec<String> = (0..=MAX_SHARDS).map(|i| format!("f{i}")).collect();
    let weights: Vec<_> = many.iter().map(|name| (name.as_str(), name.as_str())).collect();
    let error = open_index(&index(&weights), Vec::new()).unwrap_err();
    assert_eq!(shard_fault(&error), &ShardFault::TooMany { count: MAX_SHARDS + 1, limit: MAX_SHARDS });
}

/// Part `number` (from 1) of a split GGUF, typed as llama.cpp's gguf-split types it.
fn part(number: u16, count: u16, tensors: i32) -> Vec<u8> {
    let pairs = [
        ("general.architecture", str_value(if number == 1 { "flux" } else { "" })),
        ("split.no", value(2, &(number - 1).to_le_bytes())),
        ("split.count", value(2, &count.to_le_bytes())),
        ("split.tensors.count", value(5, &tensors.to_le_bytes())),
    ];
    let name = format!("t{number}");
    Gguf::new(&pairs, &[tensor(&name, 24, &[4], &[number as u8; 4])]).write()
}

fn part_name(number: u16, count: u16) -> String {
    format!("m-{number:05}-of-{count:05}.gguf")
}

#[test]
fn the_first_part_opens_all() {
    let folder = Folder::new();
    for number in 1..=3 {
        folder.write(&part_name(number, 3), &part(number, 3, 3));
    }
    let checkpoint = Checkpoint::open(folder.path().join(part_name(1, 3))).unwrap();
    assert_eq!((checkpoint.format(), checkpoint.files().len()), (Format::Gguf, 3));
    for number in 1..=3u8 {
        let entry = checkpoint.entry(&format!("t{number}")).unwrap();
        assert_eq!(entry.file(), usize::from(number) - 1);
        assert_eq!(checkpoint.bytes(entry), [number; 4]);
    }
    assert_eq!(checkpoint.metadata().str("general.architecture"), Some("flux"));

    let error = Checkpoint::open(folder.path().join(part_name(2, 3))).unwrap_err();
    let first = folder.path().join(part_name(1, 3));
    assert_eq!(shard_fault(&error), &ShardFault::NotFirst { number: 2, count: 3, first: first.clone() });
    assert!(error.to_string().contains(first.to_str().unwrap()), "{error}");

    std::fs::remove_file(folder.path().join(part_name(3, 3))).unwrap();
    let error = Checkpoint::open(first).unwrap_err();
    assert_eq!(shard_fault(&error), &ShardFault::MissingPart { name: part_name(3, 3) });
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let open = |name: &str, first: Vec<u8>, second: Vec<u8>| {
        let second_name = part_name(2, 2);
        Checkpoint::from_memory((name, owned(first)), vec![(&second_name, owned(second))])
    };
    let name = part_name(1, 2);
    assert_eq!(open(&name, part(1, 2, 2), part(2, 2, 2)).unwrap().entries().len(), 2);

    let renamed = open("renamed.gguf", part(1, 2, 2), part(2, 2, 2)).unwrap_err();
    assert_eq!(shard_fault(&renamed), &ShardFault::PartName { number: 1, count: 2 });
    let wrong = open(&name, part(1, 2, 2), part(3, 3, 2)).unwrap_err();
    assert_eq!(shard_fault(&wrong), &ShardFault::WrongPart { name: part_name(2, 2), number: 3, count: 3 });
    let short = open(&name, part(1, 2, 5), part(2, 2, 5)).unwrap_err();
    assert_eq!(shard_fault(&short), &ShardFault::TensorCount { expected: 5, got: 2 });
    let other = open(&name, part(1, 2, 2), shard("a", 1)).unwrap_err();
    assert!(matches!(shard_fault(&other), ShardFault::NotAPart { found: "it is a safetensors file", .. }));
    let many = Gguf::new(&[("split.count", u32_value(2_000_000))], &[]).write();
    let error = open("m.gguf", many, Vec::new()).unwrap_err();
    assert_eq!(shard_fault(&error), &ShardFault::TooMany { count: 2_000_000, limit: MAX_SHARDS });
}
