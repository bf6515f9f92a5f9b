//! Mapped files: a 20 GB one opens at once and in little memory, one that changes is noticed, and
//! advice gives memory back.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod folder;
mod writer;

use std::fs::OpenOptions;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use checkpoint::{Advice, Checkpoint, Error};
use folder::Folder;
use writer::{safetensors, tensor};

const TENSORS: u64 = 1000;
const TENSOR_BYTES: u64 = 20 << 20;
/// The bars of the project for opening and inspecting a 20 GB file.
const MAX_OPEN_TIME: Duration = Duration::from_millis(100);
const MAX_OPEN_MEMORY_BYTES: u64 = 20 << 20;

/// Bytes of this process in memory, where the system tells.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

/// Makes the file `len` bytes long without writing them.
fn stretch(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

fn sparse_safetensors(path: &Path) -> u64 {
    let described: Vec<String> = (0..TENSORS)
        .map(|i| {
            let (begin, end) = (i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES);
            format!(
                r#""block.{i}.weight":{{"dtype":"BF16","shape":[{}],"data_offsets":[{begin},{end}]}}"#,
                TENSOR_BYTES / 2
            )
        })
        .collect();
    let header = writer::safetensors_raw(&format!("{{{}}}", described.join(",")), &[]);
    std::fs::write(path, &header).unwrap();
    header.len() as u64 + TENSORS * TENSOR_BYTES
}

fn sparse_gguf(path: &Path) -> u64 {
    let tokens: Vec<u8> = (0..150_000).flat_map(|i| writer::text(format!("token{i}").as_bytes())).collect();
    let pairs = [("tokenizer.ggml.tokens", writer::array_value(8, 150_000, &tokens))];
    let tensors: Vec<_> =
        (0..TENSORS).map(|i| tensor(&format!("block.{i}.weight"), 30, &[TENSOR_BYTES / 2], &[])).collect();
    let offsets: Vec<u64> = (0..TENSORS).map(|i| i * TENSOR_BYTES).collect();
    let header = writer::Gguf::new(&pairs, &tensors).write_at(&offsets);
    std::fs::write(path, &header).unwrap();
    header.len() as u64 + TENSORS * TENSOR_BYTES
}

/// Opens a 20 GB file and looks at all that a listing needs.
fn open_large(folder: &Folder, name: &str, write: fn(&Path) -> u64) -> Checkpoint {
    let path = folder.path().join(name);
    let len = write(&path);
    stretch(&path, len);
    let before = resident_bytes();
    let start = Instant::now();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let listed: u64 =
        checkpoint.entries().iter().map(|e| e.len() + e.name().len() as u64 + e.shape().rank() as u64).sum();
    let elapsed = start.elapsed();
    let grown = before.zip(resident_bytes()).map(|(before, after)| after.saturating_sub(before));
    println!("{name}: {len} bytes, opened in {elapsed:?}, memory grew by {grown:?} bytes");
    assert!(listed > TENSORS * TENSOR_BYTES);
    assert!(elapsed < MAX_OPEN_TIME, "{elapsed:?}");
    assert!(grown.is_none_or(|grown| grown < MAX_OPEN_MEMORY_BYTES), "{grown:?}");
    checkpoint
}

/// Tests here measure the memory of the process or change what it maps: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn large_files_open_at_once_and_give_memory_back() {
    let _alone = alone();
    let folder = Folder::new();
    open_large(&folder, "large.gguf", sparse_gguf);
    let checkpoint = open_large(&folder, "large.safetensors", sparse_safetensors);

    let bytes = checkpoint.entry_bytes(checkpoint.entry("block.500.weight").unwrap());
    bytes.advise(Advice::Sequential).unwrap();
    bytes.advise(Advice::WillNeed).unwrap();
    let before = resident_bytes();
    assert_eq!(bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>(), 0);
    let touched = resident_bytes();
    bytes.advise(Advice::DontNeed).unwrap();
    let after = resident_bytes();
    if let (Some(before), Some(touched), Some(after)) = (before, touched, after) {
        assert!(touched >= before + TENSOR_BYTES / 2, "reading maps pages: {before} to {touched}");
        assert!(after <= touched - TENSOR_BYTES / 2, "advice gives them back: {touched} to {after}");
    }
    assert_eq!(bytes[12345], 0);
    checkpoint.advise(Advice::DontNeed).unwrap();
}

#[test]
fn a_file_that_changes_length_is_noticed() {
    let _alone = alone();
    let folder = Folder::new();
    let file = safetensors(&[], &[tensor("a", "U8", &[5000], &[1; 5000])]);
    let path = folder.write("model.safetensors", &file);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let bytes = checkpoint.entry_bytes(&checkpoint.entries()[0]);
    checkpoint.verify().unwrap();
    for now in [100, file.len() as u64 + 1] {
        stretch(&path, now);
        for error in [checkpoint.verify().unwrap_err(), bytes.verify().unwrap_err()] {
            assert_eq!(error.file(), path);
            let opened = file.len() as u64;
            assert!(
                matches!(error, Error::LengthChanged { opened: o, now: n, .. } if (o, n) == (opened, now))
            );
        }
    }
}

/// Bytes that are gone read as zeros, the file counts as damaged, and opening it anew works once it is whole.
#[cfg(any(target_os = "linux", target_os = "macos"))]
#[test]
fn a_file_that_is_cut_short_while_it_is_read_is_noticed_and_harms_nobody() {
    let _alone = alone();
    const LEN: u64 = 4 << 20;
    let folder = Folder::new();
    let values: Vec<u8> = (0..LEN).map(|i| (i % 251) as u8 + 1).collect();
    let file = safetensors(&[], &[tensor("a", "U8", &[LEN], &values)]);
    let path = folder.write("model.safetensors", &file);
    let other = folder.write("other.safetensors", &file);
    let (checkpoint, untouched) = (Checkpoint::open(&path).unwrap(), Checkpoint::open(&other).unwrap());
    let bytes = checkpoint.entry_bytes(&checkpoint.entries()[0]);
    let sum = |bytes: &[u8]| bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>();
    let whole = sum(&bytes);

    stretch(&path, LEN / 2);
    assert!(checkpoint.is_intact(), "nobody has read what is gone");
    // Many threads at once, as kernels read weights.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| assert!(sum(&bytes) < whole));
        }
    });
    assert_eq!(bytes[LEN as usize - 1], 0);
    assert!(!checkpoint.is_intact());
    let told = bytes.check_intact().unwrap_err();
    assert!(matches!(&told, Error::Changed { file } if *file == path), "{told}");
    let told = told.to_string();
    assert!(told.contains("model.safetensors") && told.contains("while it was in use"), "{told}");
    assert!(checkpoint.verify().is_err() && Checkpoint::open(&path).is_err());
    assert!(untouched.is_intact() && untouched.verify().is_ok());

    std::fs::write(&path, &file).unwrap();
    assert!(bytes.check_intact().is_err() && checkpoint.verify().is_err(), "it was damaged once");
    let again = Checkpoint::open(&path).unwrap();
    assert_eq!(sum(again.bytes(&again.entries()[0])), whole);
    again.verify().unwrap();
}

/// The same length and other bytes: only the date tells.
#[test]
fn a_file_that_is_overwritten_in_place_is_noticed() {
    let _alone = alone();
    let folder = Folder::new();
    let file = |value: u8| safetensors(&[], &[tensor("a", "U8", &[5000], &[value; 5000])]);
    let path = folder.write("model.safetensors", &file(1));
    let checkpoint = Checkpoint::open(&path).unwrap();
    checkpoint.verify().unwrap();
    // Dates are coarse on some systems.
    let later = std::time::SystemTime::now() + Duration::from_secs(3);
    std::fs::write(&path, file(2)).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_modified(later).unwrap();
    assert!(checkpoint.is_intact());
    assert!(matches!(checkpoint.verify(), Err(Error::Changed { .. })));
    assert!(!checkpoint.is_intact());
}

/// Only Unix lets a mapped file be removed.
#[cfg(unix)]
#[test]
fn a_file_that_is_removed_stays_readable() {
    let _alone = alone();
    let folder = Folder::new();
    let path = folder.write("model.safetensors", &safetensors(&[], &[tensor("a", "U8", &[3], &[1, 2, 3])]));
    let checkpoint = Checkpoint::open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    checkpoint.verify().unwrap();
    assert_eq!(checkpoint.bytes(&checkpoint.entries()[0]), [1, 2, 3]);
}
