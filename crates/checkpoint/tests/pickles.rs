//! PyTorch's files: both forms, what programs wrap around their tensors, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

use std::borrow::Cow;

use checkpoint::{Checkpoint, Error, Format, HeaderFault, PickleFault, TensorFault};
use meta::DType;
use testkit::pickle::{PickleForm, PickledTensor, Pickler, packed_strides, pickled, with_storages};

const FORMS: [PickleForm; 2] = [PickleForm::Archive, PickleForm::Legacy];

fn open(bytes: &[u8]) -> Result<Checkpoint, Error> {
    Checkpoint::from_memory(("model.pth", Cow::Owned(bytes.to_vec())), Vec::new())
}

/// Names, shapes and bytes of a file's tensors.
fn tensors(bytes: &[u8]) -> Vec<(String, Vec<usize>, Vec<u8>)> {
    let checkpoint = open(bytes).unwrap();
    assert_eq!(checkpoint.format(), Format::Pickle);
    let about = |entry: &checkpoint::Entry| {
        (entry.name().to_owned(), entry.shape().dims().to_vec(), checkpoint.bytes(entry).to_vec())
    };
    checkpoint.entries().iter().map(about).collect()
}

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

const ONE: PickledTensor<'_> =
    PickledTensor { name: "a", dtype: DType::F32, shape: &[2, 3], bytes: &[7; 24] };

/// What is wrong with a pickle that ends with what `write` adds to an open dictionary.
fn fault(form: PickleForm, write: impl Fn(&mut Pickler)) -> PickleFault {
    let mut pickle = Pickler::new(form);
    write(&mut pickle);
    pickle.raw(b".");
    match open(&with_storages(form, &pickle.bytes, &[(&[7; 24], DType::F32)])).unwrap_err() {
        Error::Header { fault: HeaderFault::Pickle { fault }, .. } => fault,
        other => panic!("{other}"),
    }
}

#[test]
fn both_forms_give_names_shapes_and_bytes() {
    let values = floats(&[1.0, -2.0, 3.5]);
    let written = [
        PickledTensor { name: "conv.weight", dtype: DType::F32, shape: &[3, 1], bytes: &values },
        PickledTensor { name: "ids", dtype: DType::I64, shape: &[2], bytes: &[9; 16] },
        PickledTensor { name: "half", dtype: DType::F16, shape: &[], bytes: &[1, 2] },
        PickledTensor { name: "empty", dtype: DType::BF16, shape: &[0, 5], bytes: &[] },
    ];
    for form in FORMS {
        for wrapper in [None, Some("state_dict"), Some("params_ema"), Some("params"), Some("model")] {
            let read = tensors(&pickled(form, wrapper, &written));
            let expected: Vec<_> = written
                .iter()
                .map(|tensor| (tensor.name.to_owned(), tensor.shape.to_vec(), tensor.bytes.to_vec()))
                .collect();
            assert_eq!(read, expected, "{form:?} {wrapper:?}");
        }
    }
}

#[test]
fn the_averaged_weights_count_where_both_are_there() {
    for form in FORMS {
        let mut pickle = Pickler::new(form);
        let other = PickledTensor { name: "b", ..ONE };
        pickle.raw(b"}(").text("params").raw(b"}(").text("a").tensor(&other, 0, 0, &[3, 1]).raw(b"u");
        pickle.text("params_ema").raw(b"}(").text("a").tensor(&ONE, 1, 0, &[3, 1]).raw(b"uu.");
        let storages: [(&[u8], DType); 2] = [(&[1; 24], DType::F32), (&[2; 24], DType::F32)];
        let read = tensors(&with_storages(form, &pickle.bytes, &storages));
        assert_eq!(read, [("a".to_owned(), vec![2, 3], vec![2; 24])]);
    }
}

#[test]
fn embeddings_and_nested_values_have_names_of_their_keys() {
    for form in FORMS {
        let mut pickle = Pickler::new(form);
        pickle.raw(b"}(").text("string_to_token").raw(b"}").text("*").int(265).raw(b"s");
        pickle.text("string_to_param").raw(b"}").text("*").tensor(&ONE, 0, 0, &[3, 1]).raw(b"s");
        pickle.text("list").raw(b"](").tensor(&ONE, 0, 3, &[3, 1]).raw(b"N").raw(b"e");
        pickle.text("step").int(70_000_000_000).raw(b"u.");
        let bytes = with_storages(form, &pickle.bytes, &[(&[7; 36], DType::F32)]);
        let names: Vec<String> = tensors(&bytes).into_iter().map(|(name, ..)| name).collect();
        assert_eq!(names, ["string_to_param.*", "list.0"]);
    }
}

#[test]
fn parameters_of_modules_are_found() {
    let mut pickle = Pickler::new(PickleForm::Archive);
    pickle.raw(b"}").text("string_to_param").global("torch.nn.modules.container", "ParameterDict");
    pickle.raw(b")\x81}(").text("training").raw(b"\x88").text("_parameters");
    pickle.global("collections", "OrderedDict").raw(b")R").text("*");
    pickle.global("torch._utils", "_rebuild_parameter").raw(b"(").tensor(&ONE, 0, 0, &[3, 1]);
    pickle.raw(b"\x88").global("collections", "OrderedDict").raw(b")RtRs").raw(b"ubs.");
    let read = tensors(&with_storages(PickleForm::Archive, &pickle.bytes, &[(&[7; 24], DType::F32)]));
    assert_eq!(read, [("string_to_param.*".to_owned(), vec![2, 3], vec![7; 24])]);
}

#[test]
fn what_is_called_is_refused_by_name_and_what_is_only_named_is_not() {
    for form in FORMS {
        let system = fault(form, |pickle| {
            pickle.global("os", "system").raw(b"(").text("true").raw(b"tR");
        });
        assert_eq!(system, PickleFault::Calls { name: "os.system".into() });
        let object = fault(form, |pickle| {
            pickle.global("evil", "Thing").raw(b")\x81");
        });
        assert_eq!(object, PickleFault::Calls { name: "evil.Thing".into() });
        let through = fault(form, |pickle| {
            pickle.global("copy_reg", "_reconstructor").raw(b"(").global("evil", "Thing");
            pickle.global("__builtin__", "object").raw(b"NtR");
        });
        assert_eq!(through, PickleFault::Calls { name: "evil.Thing".into() });
        // The class of a callback is the key of its state in checkpoints of trainers.
        let mut named = Pickler::new(form);
        named.raw(b"}(").text("callbacks").raw(b"}").global("trainer", "Callback").raw(b"}s");
        named.text("state_dict").raw(b"}").text("a").tensor(&ONE, 0, 0, &[3, 1]).raw(b"su.");
        let read = tensors(&with_storages(form, &named.bytes, &[(&[7; 24], DType::F32)]));
        assert_eq!(read.len(), 1);
    }
}

#[test]
fn what_is_broken_says_so() {
    for form in FORMS {
        let none = fault(form, |pickle| {
            pickle.int(1).raw(b"}");
        });
        assert_eq!(none, PickleFault::NoTensors);
        let broken = fault(form, |pickle| {
            pickle.raw(b"h\x09");
        });
        assert!(matches!(broken, PickleFault::Broken { .. }), "{broken:?}");
        let odd = fault(form, |pickle| {
            pickle.raw(b"}(").text("alone").raw(b"u");
        });
        assert!(matches!(odd, PickleFault::Broken { .. }), "{odd:?}");
        // An instruction that makes an object by calling its class.
        let call = fault(form, |pickle| {
            pickle.raw(b"(ios\nsystem\n");
        });
        assert!(matches!(call, PickleFault::Instruction { code: b'i', .. }), "{call:?}");
    }
    let mut deep = Pickler::new(PickleForm::Archive);
    deep.raw(b"}q\x00").text("own").raw(b"h\x00s").text("a").tensor(&ONE, 0, 0, &[3, 1]).raw(b"s.");
    let error =
        open(&with_storages(PickleForm::Archive, &deep.bytes, &[(&[7; 24], DType::F32)])).unwrap_err();
    assert!(error.to_string().contains("without end"), "{error}");
}

#[test]
fn tensors_that_cannot_be_used_where_they_lie_are_refused_by_name() {
    let cases: [(u64, &[u64], &str); 3] = [
        (0, &[1, 2], "do not stand in order"),
        (1, &[3, 1], "do not lie in its storage"),
        (u64::MAX / 2, &[3, 1], "do not lie in its storage"),
    ];
    for form in FORMS {
        for (offset, strides, told) in cases {
            let mut pickle = Pickler::new(form);
            pickle.raw(b"}").text("layer.weight").tensor(&ONE, 0, offset, strides).raw(b"s.");
            let error =
                open(&with_storages(form, &pickle.bytes, &[(&[7; 24], DType::F32)])).unwrap_err().to_string();
            assert!(error.contains("layer.weight") && error.contains(told), "{error}");
        }
        // A dimension of one may have any stride.
        let thin = PickledTensor { shape: &[6, 1], ..ONE };
        let mut pickle = Pickler::new(form);
        pickle.raw(b"}").text("a").tensor(&thin, 0, 0, &[1, 99]).raw(b"s.");
        assert_eq!(tensors(&with_storages(form, &pickle.bytes, &[(&[7; 24], DType::F32)])).len(), 1);
    }
    let mut pickle = Pickler::new(PickleForm::Archive);
    pickle.raw(b"}").text("a").tensor(&ONE, 5, 0, &packed_strides(&[2, 3])).raw(b"s.");
    let error = open(&with_storages(PickleForm::Archive, &pickle.bytes, &[])).unwrap_err();
    assert!(
        matches!(&error, Error::Tensor { fault, .. } if matches!(**fault, TensorFault::NoStorage { .. }))
    );
}

#[test]
fn tensors_may_share_a_storage() {
    for form in FORMS {
        let mut pickle = Pickler::new(form);
        let row = PickledTensor { shape: &[3], ..ONE };
        pickle.raw(b"}(").text("all").tensor(&ONE, 0, 0, &[3, 1]);
        pickle.text("second").tensor(&row, 0, 3, &[1]).raw(b"u.");
        let values = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let read = tensors(&with_storages(form, &pickle.bytes, &[(&values, DType::F32)]));
        assert_eq!(read[1], ("second".to_owned(), vec![3], floats(&[3.0, 4.0, 5.0])));
    }
}

#[test]
fn archives_that_pytorch_does_not_write_are_refused() {
    let good = pickled(PickleForm::Archive, None, &[ONE]);
    let at = good.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    // The first entry in the list is the pickle; it gets a method of compression.
    let first = good.windows(4).position(|window| window == b"PK\x01\x02").unwrap();
    let mut packed = good.clone();
    packed[first + 10] = 8;
    let error = open(&packed).unwrap_err();
    assert!(matches!(&error, Error::Header { fault: HeaderFault::Packed { .. }, .. }), "{error}");
    let mut cut = good;
    cut.truncate(at);
    assert!(matches!(open(&cut).unwrap_err(), Error::TruncatedHeader { .. }));
}

/// Files that PyTorch 2.15 wrote (`tests/data/README.md` says how).
fn of_pytorch(name: &str) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read(path).unwrap()
}

#[test]
fn files_of_pytorch_are_read_in_both_forms() {
    let weight: Vec<f32> = (0..54).map(|at| at as f32 / 64.0).collect();
    let expected = [
        ("conv_first.weight", vec![2, 3, 3, 3], floats(&weight)),
        ("half", vec![6], vec![0, 0, 0, 0x3c, 0, 0x40, 0, 0x42, 0, 0x44, 0, 0x45]),
        ("bf", vec![4], vec![0, 0, 0x80, 0x3f, 0, 0x40, 0x40, 0x40]),
        ("steps", vec![], vec![7, 0, 0, 0, 0, 0, 0, 0]),
        ("view", vec![3, 3, 3], floats(&weight[27..])),
    ];
    let expected = expected.map(|(name, shape, bytes)| (name.to_owned(), shape, bytes));
    for file in ["archive.pth", "legacy.pth"] {
        assert_eq!(tensors(&of_pytorch(file)), expected, "{file}");
    }
    let rows: Vec<f32> = (0..24).map(|at| at as f32).collect();
    assert_eq!(
        tensors(&of_pytorch("embedding.pt")),
        [("string_to_param.*".to_owned(), vec![3, 8], floats(&rows))]
    );
    let types = open(&of_pytorch("types.pt")).unwrap();
    let encodings: Vec<String> = types.entries().iter().map(|entry| entry.encoding().to_string()).collect();
    assert_eq!(encodings, [DType::F8E4M3, DType::U16].map(|dtype| meta::Encoding::from(dtype).to_string()));
}

#[test]
fn whole_modules_and_strided_tensors_of_pytorch_are_refused() {
    let module = open(&of_pytorch("module.pt")).unwrap_err().to_string();
    assert!(module.contains("torch.nn.modules.conv.Conv2d"), "{module}");
    let strided = open(&of_pytorch("strided.pt")).unwrap_err().to_string();
    assert!(strided.contains("\"t\"") && strided.contains(".contiguous()"), "{strided}");
}
