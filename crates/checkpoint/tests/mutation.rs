//! Damaged files, twenty thousand per parser, and headers made to cost as much memory as they can.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod campaign;
mod writer;

use campaign::seeds::Parser;
use campaign::{MAX_EXTRA_BYTES, allocation, run};
use testkit::pickle::{PickleForm, Pickler, with_storages};
use writer::{Gguf, Tensor, tensor, value};

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;

const INPUTS: u64 = 20_000;

#[test]
fn undamaged_files_are_opened() {
    for parser in Parser::ALL {
        for (number, seed) in parser.seeds().into_iter().enumerate() {
            parser.open(seed).unwrap_or_else(|error| panic!("{parser:?} seed {number}: {error}"));
        }
    }
}

#[test]
fn damaged_files_are_opened_or_refused() {
    for parser in Parser::ALL {
        let report = run(parser, INPUTS, 1);
        // A campaign that never gets past the first check, or never fails, tests nothing.
        assert!(report.opened > INPUTS / 100, "{parser:?}: {} opened", report.opened);
        assert!(report.errors.len() >= 3, "{parser:?}: {:?}", report.errors);
    }
}

#[test]
fn headers_cannot_cost_more_memory_than_they_are_long() {
    // Just above a power of two, where growing lists are half empty.
    let count = 33_000;
    let names: Vec<String> = (0..count).map(|i| format!("{i:x}")).collect();
    let empty =
        |kind: u32| -> Vec<Tensor<u32>> { names.iter().map(|name| tensor(name, kind, &[0], &[])).collect() };
    let plain: Vec<Tensor<&str>> = names.iter().map(|name| tensor(name, "U8", &[0], &[])).collect();
    let texts: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "")).collect();
    let values: Vec<(&str, Vec<u8>)> = names.iter().map(|name| (name.as_str(), value(0, &[0]))).collect();
    let tensor_index: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "f")).collect();
    for (what, parser, file) in [
        ("tensors", Parser::Safetensors, writer::safetensors(&[], &plain)),
        ("metadata", Parser::Safetensors, writer::safetensors(&texts, &[])),
        ("tensors", Parser::Gguf, Gguf::new(&[], &empty(24)).write()),
        ("keys", Parser::Gguf, Gguf::new(&values, &[]).write()),
        ("values", Parser::Pickle, empty_dictionaries(count)),
        ("tensors", Parser::SafetensorsIndex, writer::index(&tensor_index).into_bytes()),
    ] {
        let len = file.len() as u64;
        let (result, allocated) = allocation::peak_of(|| parser.open(file));
        println!(
            "{parser:?} {what}: {len} bytes, {allocated} allocated, {:.2} times",
            allocated as f64 / len as f64
        );
        let opens = !matches!(parser, Parser::SafetensorsIndex | Parser::Pickle);
        assert_eq!(result.is_ok(), opens, "{parser:?} {what}: {result:?}");
        assert!(
            allocated <= parser.bytes_per_input_byte() * len + MAX_EXTRA_BYTES,
            "{parser:?} {what}: {allocated}"
        );
    }
}

/// A pickle in which every byte makes a value.
fn empty_dictionaries(count: usize) -> Vec<u8> {
    let mut pickle = Pickler::new(PickleForm::Archive);
    pickle.raw(&vec![b'}'; count]).raw(b".");
    with_storages(PickleForm::Archive, &pickle.bytes, &[])
}

#[test]
fn counts_in_a_header_reserve_nothing() {
    for parser in [Parser::Gguf, Parser::Safetensors] {
        for claimed in [1u64 << 16, 1 << 20, 1 << 32, u64::MAX] {
            let mut file = parser.seeds().swap_remove(0);
            // The tensor count of GGUF; in safetensors, into the header.
            file[8..16].copy_from_slice(&claimed.to_le_bytes());
            let (result, allocated) = allocation::peak_of(|| parser.open(file));
            assert!(result.is_err());
            assert!(allocated < 16 << 10, "{parser:?} {claimed}: {allocated}");
        }
    }
}
