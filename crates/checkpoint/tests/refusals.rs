//! Files that are no models: each is recognised by content and refused with a reason that helps.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod folder;
mod writer;

use checkpoint::{Checkpoint, Error, Refusal};
use folder::Folder;
use writer::safetensors_raw;

/// Refuses `bytes` under a name that lies about what they are.
fn refuse(bytes: &[u8]) -> (Refusal, String) {
    let folder = Folder::new();
    let error = Checkpoint::open(folder.write("model.safetensors", bytes)).unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with(folder.path().to_str().unwrap()), "{text}");
    match error {
        Error::Refused { reason, .. } => (reason, text),
        other => panic!("{other:?}"),
    }
}

#[test]
fn pickles_that_pytorch_did_not_write() {
    let mut tar = vec![0; 512];
    tar[..8].copy_from_slice(b"sys_info");
    tar[257..262].copy_from_slice(b"ustar");
    for (bytes, expected) in [
        (&b"\x80\x02}q\x00."[..], Refusal::Pickle),
        (b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}.", Refusal::Pickle),
        (b"}q\x00X\x01\x00\x00\x00a", Refusal::Pickle),
        (b"(dp0\nS'a'\n", Refusal::Pickle),
        (b"ccopy_reg\n_reconstructor\n", Refusal::Pickle),
        (&tar, Refusal::Tar),
    ] {
        let (reason, text) = refuse(bytes);
        assert_eq!(reason, expected);
        for word in ["pickle", "can run any code", "convert", "save_file", "weights_only=True"] {
            assert!(text.contains(word), "{word} is missing: {text}");
        }
    }
}

#[test]
fn a_header_of_640_bytes_is_no_pickle() {
    let header = format!("{{}}{}", " ".repeat(638));
    let file = safetensors_raw(&header, &[]);
    assert_eq!(file[..2], [0x80, 0x02]);
    assert!(Checkpoint::open(Folder::new().write("x", &file)).unwrap().entries().is_empty());
}

#[test]
fn downloads_that_went_wrong() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 23802932552\n";
    let (reason, text) = refuse(pointer);
    assert_eq!(reason, Refusal::GitLfsPointer { size: Some(23_802_932_552) });
    assert!(text.contains("22.17 GB") && text.contains("git lfs pull"), "{text}");
    assert_eq!(refuse(b"version https://git-lfs").0, Refusal::GitLfsPointer { size: None });

    for page in ["<!DOCTYPE html><html>", "\u{feff}\n <HTML lang=en>", "<?xml version=\"1.0\"?><Error>"] {
        assert_eq!(refuse(page.as_bytes()).0, Refusal::WebPage, "{page}");
    }
    assert_eq!(refuse(b"").0, Refusal::Empty);
    assert_eq!(refuse(&[0; 5000]).0, Refusal::Zeros);
    assert_eq!(refuse(&[0]).0, Refusal::Zeros);
    let (reason, text) = refuse(b"Invalid username or password.");
    assert_eq!(reason, Refusal::Unknown { start: "Invalid username or password.".to_owned() });
    assert!(text.contains("\"Invalid username or password.\""), "{text}");
    assert_eq!(refuse(b"\xde\xad\xbe\xef").0, Refusal::Unknown { start: "de ad be ef".to_owned() });
}

#[test]
fn other_formats_by_name() {
    for (bytes, expected) in [
        (&b"PK\x03\x04 something else"[..], Refusal::Archive("zip")),
        (b"\x1f\x8b\x08\x00", Refusal::Archive("gzip")),
        (b"7z\xbc\xaf\x27\x1c\x00", Refusal::Archive("7z")),
        (b"\x89HDF\r\n\x1a\n\x00", Refusal::OtherFormat("HDF5 (Keras)")),
        (b"tjgg\x03\x00\x00\x00", Refusal::OtherFormat("GGML (older than GGUF)")),
    ] {
        assert_eq!(refuse(bytes).0, expected);
    }
}

#[test]
fn what_is_no_file() {
    let folder = Folder::new();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Refused { reason: Refusal::Folder, .. }));
    let missing = folder.path().join("missing.gguf");
    let error = Checkpoint::open(&missing).unwrap_err();
    assert_eq!(error.file(), missing);
    assert!(matches!(&error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound));
    #[cfg(unix)]
    assert!(matches!(Checkpoint::open("/dev/null"), Err(Error::Refused { reason: Refusal::NotAFile, .. })));
}
