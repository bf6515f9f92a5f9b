//! Recognising what a file is by its content, never by its name, and refusing what is no model file
//! with the reason and what to do.

use std::fmt;

use meta::ByteSize;

use crate::error::excerpt;
use crate::gguf::MAGIC as GGUF_MAGIC;
use crate::pickle::LEGACY_MAGIC;
use crate::safetensors::LENGTH_BYTES;

/// A file that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Safetensors,
    Gguf,
    /// A JSON file, which may be the index of a sharded safetensors checkpoint.
    Json,
    /// A PyTorch checkpoint: a zip archive with a pickle in it.
    TorchZip,
    /// A PyTorch checkpoint of the format before 2020: pickles with PyTorch's number in front.
    TorchLegacy,
}

/// Something that is not opened, because of what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A folder.
    Folder,
    /// A pipe, socket or device.
    NotAFile,
    /// No bytes at all.
    Empty,
    /// Only zeros at the start: space set aside for a download that never came.
    Zeros,
    /// A Git LFS pointer: the few lines that stand for a large file until `git lfs pull` fetches it.
    GitLfsPointer {
        /// The size of the real file, if the pointer says it.
        size: Option<u64>,
    },
    /// A web page, saved in place of a download.
    WebPage,
    /// JSON that is no index of shards.
    Json,
    /// A bare Python pickle, without tensors that could be used where they lie.
    Pickle,
    /// A tar archive, as the oldest PyTorch wrote them, pickle included.
    Tar,
    /// Another archive, by the name of its format.
    Archive(&'static str),
    /// Another format that has tensors, by its name.
    OtherFormat(&'static str),
    /// Something else.
    Unknown {
        /// How it begins: text if it is text, else hexadecimal.
        start: String,
    },
}

/// What to do about a pickle that PyTorch did not write. The reader unpickles nothing but tensors (`weights_only`).
const CONVERT: &str = "Reading a pickle can run any code that its author put in, so Gantry opens only those that PyTorch \
    wrote, and calls nothing of them. Get the model as .safetensors, or convert it where Python and PyTorch are: python -c \"import sys, torch; from \
    safetensors.torch import save_file; m = torch.load(sys.argv[1], map_location='cpu', weights_only=True); m = \
    m.get('state_dict', m); save_file({k: v.contiguous().clone() for k, v in m.items() if hasattr(v, 'clone')}, \
    sys.argv[2])\" MODEL.ckpt MODEL.safetensors";

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::Folder => f.write_str(
                "this is a folder: name the model file in it (.safetensors, .gguf or .safetensors.index.json)",
            ),
            Refusal::NotAFile => f.write_str("this is not a regular file: only files on disk can be mapped"),
            Refusal::Empty => f.write_str("the file is empty: fetch it again"),
            Refusal::Zeros => f.write_str(
                "the file begins with zeros: its space was set aside but the download never arrived; fetch it again",
            ),
            Refusal::GitLfsPointer { size } => {
                f.write_str("this is a Git LFS pointer, a few lines of text that stand for the model")?;
                if let Some(size) = size {
                    write!(f, " of {}", ByteSize(*size))?;
                }
                f.write_str(": run `git lfs pull` in its folder, or download the file itself")
            }
            Refusal::WebPage => f.write_str(
                "this is a web page, not a model: the download link led to a page (often a login); \
                 download the file itself",
            ),
            Refusal::Json => f.write_str(
                "this JSON file has no tensors in a \"weight_map\", so it is no index of model files: name the model file itself",
            ),
            Refusal::Pickle => write!(f, "this is a Python pickle. {CONVERT}"),
            Refusal::Tar => write!(
                f,
                "this is a tar archive. If a model is in it, unpack it first; if PyTorch wrote it, it is a pickle. {CONVERT}"
            ),
            Refusal::Archive(name) => write!(f, "this is a {name} archive: unpack it and name the model file in it"),
            Refusal::OtherFormat(name) => {
                write!(f, "this is a {name} file, which Gantry does not read: get the model as .safetensors or .gguf")
            }
            Refusal::Unknown { start } => write!(
                f,
                "this is neither safetensors nor GGUF; it begins with {start:?}: check that the download is complete \
                 and that it is a model"
            ),
        }
    }
}

/// What a file is, by its first bytes.
pub(crate) fn recognise(bytes: &[u8]) -> Result<Kind, Refusal> {
    if bytes.is_empty() {
        return Err(Refusal::Empty);
    }
    if bytes.starts_with(GGUF_MAGIC) {
        return Ok(Kind::Gguf);
    }
    // Before pickles: a safetensors header of 640 bytes begins like one.
    if is_safetensors(bytes) {
        return Ok(Kind::Safetensors);
    }
    if bytes.starts_with(LEGACY_MAGIC) {
        return Ok(Kind::TorchLegacy);
    }
    if bytes.starts_with(b"PK\x03\x04") && has_pickle(bytes) {
        return Ok(Kind::TorchZip);
    }
    recognise_text(bytes).unwrap_or_else(|| Err(recognise_binary(bytes)))
}

/// PyTorch writes the pickle first, so its name is near the start.
fn has_pickle(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(4096)].windows(8).any(|window| window == b"data.pkl")
}

/// A header length with room above it, then the opening brace of the header.
fn is_safetensors(bytes: &[u8]) -> bool {
    // No text has zeros in it, so the two high bytes of the length tell it from JSON and web pages.
    matches!(bytes, [_, _, _, _, _, _, 0, 0, b'{', ..]) && bytes.len() > LENGTH_BYTES
}

/// What a text file is; `None` if it is not a kind of text that is known.
fn recognise_text(bytes: &[u8]) -> Option<Result<Kind, Refusal>> {
    let text = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes).trim_ascii_start();
    let begins =
        |prefix: &str| text.get(..prefix.len()).is_some_and(|t| t.eq_ignore_ascii_case(prefix.as_bytes()));
    if text.starts_with(b"{") {
        return Some(Ok(Kind::Json));
    }
    if begins("version https://git-lfs") {
        return Some(Err(Refusal::GitLfsPointer { size: lfs_size(text) }));
    }
    let is_page = ["<!doctype", "<html", "<head", "<?xml", "<!--"].into_iter().any(begins);
    is_page.then_some(Err(Refusal::WebPage))
}

/// The `size` line of a Git LFS pointer, which is short.
fn lfs_size(pointer: &[u8]) -> Option<u64> {
    let text = str::from_utf8(&pointer[..pointer.len().min(1024)]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("size "))?.trim().parse().ok()
}

fn recognise_binary(bytes: &[u8]) -> Refusal {
    const STARTS: [(&[u8], Refusal); 10] = [
        (b"\x1f\x8b", Refusal::Archive("gzip")),
        (b"7z\xbc\xaf\x27\x1c", Refusal::Archive("7z")),
        (b"Rar!", Refusal::Archive("rar")),
        (b"\x28\xb5\x2f\xfd", Refusal::Archive("zstd")),
        (b"\x89HDF\r\n\x1a\n", Refusal::OtherFormat("HDF5 (Keras)")),
        (b"\x93NUMPY", Refusal::OtherFormat("NumPy")),
        (b"lmgg", Refusal::OtherFormat("GGML (older than GGUF)")),
        (b"fmgg", Refusal::OtherFormat("GGML (older than GGUF)")),
        (b"tjgg", Refusal::OtherFormat("GGML (older than GGUF)")),
        (b"\x89PNG", Refusal::OtherFormat("PNG picture")),
    ];
    if let Some((_, refusal)) = STARTS.iter().find(|(start, _)| bytes.starts_with(start)) {
        return refusal.clone();
    }
    let head = &bytes[..bytes.len().min(4096)];
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"PK\x05\x06") {
        return Refusal::Archive("zip");
    }
    if is_pickle(bytes) {
        return Refusal::Pickle;
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return Refusal::Tar;
    }
    if head[..head.len().min(64)].iter().all(|&byte| byte == 0) {
        return Refusal::Zeros;
    }
    Refusal::Unknown { start: describe_start(head) }
}

/// Protocols 2 to 5 begin with a mark and their number; older ones with a container or with the import
/// of a class.
fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
        || [
            &b"(dp"[..],
            b"(lp",
            b"}q\x00",
            b"]q\x00",
            b"ccopy_reg\n",
            b"c__builtin__\n",
            b"ccollections\n",
            b"ctorch",
        ]
        .into_iter()
        .any(|start| bytes.starts_with(start))
}

/// The first bytes as text if they are text, else as hexadecimal.
fn describe_start(head: &[u8]) -> String {
    let line = &head[..head.len().min(160)];
    match str::from_utf8(line) {
        Ok(text) if !text.contains(|c: char| c.is_control() && !c.is_whitespace()) => {
            excerpt(text.trim_end())
        }
        _ => head.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "),
    }
}
