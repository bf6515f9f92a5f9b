//! Why a file cannot be opened: every error names the file, the tensor or key where there is one, the
//! reason, and what to do. Names taken from a file are printed quoted and escaped.

use std::io;
use std::path::{Path, PathBuf};

use meta::{ByteSize, MAX_RANK, Shape, SizeError};

use crate::{PickleFault, Refusal};

/// What went wrong with a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on the file.
    #[error("{}: cannot {action}: {source}", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// The content is something else than a model file that can be read.
    #[error("{}: {reason}", file.display())]
    Refused {
        /// The file.
        file: PathBuf,
        /// What it is, and what to do.
        reason: Refusal,
    },
    /// The file ends before its header does.
    #[error(
        "{}: the file ends inside its header, after {got} bytes{}: the download or copy was probably \
         interrupted; fetch the file again",
        file.display(), at_least(.expected, *got)
    )]
    TruncatedHeader {
        /// The file.
        file: PathBuf,
        /// Bytes that the header alone needs, where the file says so.
        expected: Option<u64>,
        /// Bytes that the file has.
        got: u64,
    },
    /// The header is whole, but the file ends before the last tensor does.
    #[error(
        "{}: {missing} bytes ({}) are missing: the header describes a file of {expected} bytes and this one \
         has {got}: the download or copy was probably interrupted; fetch the file again",
        file.display(), ByteSize(*missing)
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// Bytes that the file must have for its last tensor to be whole.
        expected: u64,
        /// Bytes that the file has.
        got: u64,
        /// The difference.
        missing: u64,
    },
    /// The header breaks the rules of its format.
    #[error("{}: damaged header: {fault}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// The rule that is broken.
        fault: HeaderFault,
    },
    /// What the header says about one tensor cannot be used.
    #[error("{}: tensor {tensor:?}: {fault}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it.
        fault: Box<TensorFault>,
    },
    /// One metadata value cannot be read.
    #[error("{}: metadata {key:?}: {fault}", file.display())]
    Value {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
        /// What is wrong with its value.
        fault: ValueFault,
    },
    /// The parts of a checkpoint in several files do not fit together.
    #[error("{}: {fault}", file.display())]
    Shards {
        /// The file that names or numbers the parts.
        file: PathBuf,
        /// What does not fit.
        fault: ShardFault,
    },
    /// The file has another length than when it was opened.
    #[error(
        "{}: the file had {opened} bytes when it was opened and now has {now}: another program changed it while it was \
         in use; once it is whole again, queue the job again",
        file.display()
    )]
    LengthChanged {
        /// The file.
        file: PathBuf,
        /// Bytes when it was opened.
        opened: u64,
        /// Bytes now.
        now: u64,
    },
    /// The file changed while it was mapped, or parts of it could not be read.
    #[error(
        "{}: another program changed or shortened the file while it was in use, or the disk could not read it; once it \
         is whole again, queue the job again",
        file.display()
    )]
    Changed {
        /// The file.
        file: PathBuf,
    },
}

impl Error {
    /// The file that the error is about.
    pub fn file(&self) -> &Path {
        match self {
            Error::Io { file, .. }
            | Error::Refused { file, .. }
            | Error::TruncatedHeader { file, .. }
            | Error::Truncated { file, .. }
            | Error::Header { file, .. }
            | Error::Tensor { file, .. }
            | Error::Value { file, .. }
            | Error::Shards { file, .. }
            | Error::LengthChanged { file, .. }
            | Error::Changed { file } => file,
        }
    }
}

/// The part of a truncation message that says how much is missing, where that is known.
fn at_least(expected: &Option<u64>, got: u64) -> String {
    expected.map_or(String::new(), |expected| {
        let missing = expected.saturating_sub(got);
        format!(" (at least {missing} more, {}, are missing)", ByteSize(missing))
    })
}

/// A broken rule of a header.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderFault {
    /// The header is longer than any honest one.
    #[error("it has at least {bytes} bytes and the limit is {limit}")]
    TooLarge {
        /// Bytes that it claims or was found to have.
        bytes: u64,
        /// The most that is read.
        limit: u64,
    },
    /// The JSON does not have the form of a safetensors header or index.
    #[error("its JSON cannot be read: {reason}")]
    Json {
        /// What the JSON reader said, with line and column.
        reason: String,
    },
    /// More tensors than any honest file.
    #[error("it lists {count} tensors and the limit is {limit}")]
    TooManyTensors {
        /// Tensors listed.
        count: u64,
        /// The most that are read.
        limit: u64,
    },
    /// More metadata keys than any honest file.
    #[error("it lists {count} metadata keys and the limit is {limit}")]
    TooManyKeys {
        /// Keys listed.
        count: u64,
        /// The most that are read.
        limit: u64,
    },
    /// A key or a tensor name is longer than any honest one.
    #[error("the name of its {what} number {number} has {bytes} bytes and the limit is {limit}")]
    NameTooLong {
        /// `"tensor"` or `"metadata key"`.
        what: &'static str,
        /// Counted from 0.
        number: u64,
        /// Bytes of the name.
        bytes: u64,
        /// The most that are read.
        limit: u64,
    },
    /// A key or a tensor name is not text.
    #[error("the name of its {what} number {number} is not UTF-8")]
    NameNotText {
        /// `"tensor"` or `"metadata key"`.
        what: &'static str,
        /// Counted from 0.
        number: u64,
    },
    /// Safetensors data that belongs to no tensor, at the end of the file.
    #[error("{bytes} bytes at the end of the file belong to no tensor")]
    LeftoverBytes {
        /// How many.
        bytes: u64,
    },
    /// A pickle that cannot be read without calling something.
    #[error("{fault}")]
    Pickle {
        /// What it does.
        fault: PickleFault,
    },
    /// An archive without a pickle.
    #[error(
        "this zip archive has no data.pkl, so it is no PyTorch checkpoint: unpack it and name the model file in it"
    )]
    NoPickle,
    /// An archive whose list does not have the form of one.
    #[error("entry {number} of the zip archive's list cannot be read: fetch the file again")]
    ArchiveList {
        /// Counted from 0.
        number: u64,
    },
    /// An entry of an archive that is compressed or encrypted.
    #[error(
        "{name:?} is compressed or encrypted in the zip archive, which PyTorch never does: save the model again"
    )]
    Packed {
        /// Which.
        name: String,
    },
    /// A pickle for big-endian machines.
    #[error("its numbers are written in big-endian byte order: save the model on another machine")]
    PickleOrder,
    /// A GGUF version that cannot be read.
    #[error(
        "GGUF version {version} cannot be read, only 2 and 3: convert the model again with a current tool"
    )]
    GgufVersion {
        /// The file's version.
        version: u32,
    },
    /// A GGUF file for big-endian machines.
    #[error(
        "this GGUF (version {version}) is written in big-endian byte order, for machines such as IBM Z: get the \
         little-endian file, or convert it with gguf-py's gguf_convert_endian"
    )]
    BigEndian {
        /// The file's version.
        version: u32,
    },
    /// `general.alignment` that is no alignment.
    #[error("general.alignment must be a 32-bit power of two of at most {limit}, not {value}")]
    Alignment {
        /// What the file says.
        value: String,
        /// The largest that is accepted.
        limit: u64,
    },
}

/// What is wrong with one tensor's description.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorFault {
    /// Its description is not the JSON that a safetensors header has.
    #[error("its description cannot be read: {reason}")]
    Json {
        /// What the JSON reader said, with line and column.
        reason: String,
    },
    /// A safetensors dtype that is not known here.
    #[error("dtype {dtype:?} is not supported: use a file in f32, f16, bf16, fp8 (e4m3 or e5m2) or GGUF")]
    UnknownDtype {
        /// The dtype, shortened if long.
        dtype: String,
    },
    /// A GGUF tensor type that is not known here.
    #[error(
        "GGUF tensor type {id}{} is not supported: use a file with Q2_K to Q6_K, Q4_0 to Q8_0, IQ1_S to IQ4_XS \
         or plain floats", .name.map_or(String::new(), |name| format!(" ({name})"))
    )]
    UnknownType {
        /// The type's number.
        id: u32,
        /// Its name, where the number is known to mean something.
        name: Option<&'static str>,
    },
    /// More dimensions than a tensor may have.
    #[error("it has {rank} dimensions and the limit is {MAX_RANK}")]
    Rank {
        /// Dimensions it has.
        rank: u64,
    },
    /// A dimension that this machine cannot count.
    #[error("a dimension of {size} is larger than this machine can address")]
    Dimension {
        /// The dimension.
        size: u64,
    },
    /// Its shape has no byte size in its encoding.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// Its offsets hold another number of bytes than its shape.
    #[error("its offsets hold {got} bytes, but shape {shape} needs {expected}")]
    Length {
        /// The shape.
        shape: Shape,
        /// Bytes that the shape needs.
        expected: u64,
        /// Bytes between the offsets.
        got: u64,
    },
    /// Its offsets end before they begin.
    #[error("its bytes cannot begin at {begin} and end at {end}")]
    Offsets {
        /// First byte.
        begin: u64,
        /// The byte after the last.
        end: u64,
    },
    /// Its bytes are so far away that a 64-bit number cannot count to their end.
    #[error("its {len} bytes from offset {offset} on end beyond what a 64-bit number can count")]
    Beyond {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Its bytes belong to another tensor too.
    #[error("its bytes overlap those of tensor {with:?}")]
    Overlap {
        /// The other tensor.
        with: String,
    },
    /// Safetensors data that belongs to no tensor, before this one.
    #[error("{bytes} bytes before it belong to no tensor, which safetensors forbids")]
    Hole {
        /// How many.
        bytes: u64,
    },
    /// A GGUF tensor that does not begin on the file's alignment.
    #[error("it begins at offset {offset}, which is no multiple of the file's alignment of {alignment}")]
    Unaligned {
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// Two tensors have this name.
    #[error("the name is used twice{}", .also_in.as_ref().map_or(String::new(), |file| format!(", also in {}", file.display())))]
    Duplicate {
        /// The other file, where the two are in different ones.
        also_in: Option<PathBuf>,
    },
    /// The shape that the file says it had before it was reshaped for quantisation has another size.
    #[error("its stored shape {stored} and its original shape {original:?} have different sizes")]
    OriginalShape {
        /// The shape in the tensor list.
        stored: Shape,
        /// The shape in `comfy.gguf.orig_shape`.
        original: Vec<i64>,
    },
    /// Its values do not stand in order in a pickle.
    #[error("its values do not stand in order (strides {strides:?}): save it again with .contiguous()")]
    Strided {
        /// Values from one index of each dimension to the next.
        strides: Vec<u64>,
    },
    /// The storage that a pickle says it lies in is not there.
    #[error("its storage {storage:?} is not in the file: fetch the file again")]
    NoStorage {
        /// The storage's name.
        storage: String,
    },
    /// It does not lie in its storage.
    #[error(
        "its {len} bytes from value {offset} on do not lie in its storage of {storage} bytes: fetch the file again"
    )]
    OutsideStorage {
        /// Values before its first.
        offset: u64,
        /// Bytes it has.
        len: u64,
        /// Bytes of the storage.
        storage: u64,
    },
    /// It is marked as quantised, and cannot be read as such.
    #[error(transparent)]
    Mark(#[from] MarkFault),
    /// An index says that a shard holds it, but the shard does not.
    #[error(
        "the index says that {shard:?} holds it, but that file does not: the files are of different models"
    )]
    NotInShard {
        /// The shard's file name.
        shard: String,
    },
}

/// Why a layer that is marked as quantised cannot be read. The layer is named by the error around this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MarkFault {
    /// What marks it is not the JSON that it should be.
    #[error("its mark {mark} cannot be read: {reason}: fetch the file again")]
    Json {
        /// Where the mark stands.
        mark: &'static str,
        /// What the JSON reader said.
        reason: String,
    },
    /// What marks it is longer than any honest mark.
    #[error("its mark comfy_quant has {bytes} bytes and the limit is {limit}: fetch the file again")]
    TooLong {
        /// Bytes it has.
        bytes: u64,
        /// The most that are read.
        limit: u64,
    },
    /// Its mark does not say how it is stored.
    #[error(
        "its mark names no format, so that nothing says how its weight is stored: get another file of the model"
    )]
    NoFormat,
    /// A format that is not known here.
    #[error(
        "it is marked as {format:?}, which is not supported: use a file of the model in int8_tensorwise, nvfp4, mxfp8, \
         float8_e4m3fn, float8_e5m2, bf16 or GGUF"
    )]
    Format {
        /// The format.
        format: String,
    },
    /// A bank of matrices, one for each expert.
    #[error(
        "it is marked as {format:?} with {experts} experts; banks of experts are not supported: use a file of the model \
         in bf16 or GGUF"
    )]
    Experts {
        /// The format.
        format: String,
        /// How many it says it has.
        experts: u64,
    },
    /// A tensor that the format needs is not there.
    #[error("its {tensor} is missing, which its format needs: fetch the file again")]
    Missing {
        /// The tensor's name in the layer.
        tensor: &'static str,
    },
    /// A tensor is of another type than the format has it in.
    #[error(
        "its {tensor} is {got}, and its format has {expected}: the mark is of another file; get another one"
    )]
    Type {
        /// The tensor's name in the layer.
        tensor: &'static str,
        /// What the format has.
        expected: String,
        /// What the file has.
        got: &'static str,
    },
    /// A tensor has another shape than the format has it in.
    #[error(
        "its {tensor} has the shape {got}, and its format needs {expected}: fetch or convert the file again"
    )]
    Shape {
        /// The tensor's name in the layer.
        tensor: &'static str,
        /// What the format needs.
        expected: String,
        /// What the file has.
        got: String,
    },
    /// A scale that is no number.
    #[error(
        "its {tensor} is {value} in row {row}, which would make every picture black: fetch or convert the file again"
    )]
    NotFinite {
        /// The tensor's name in the layer.
        tensor: &'static str,
        /// Which of its values, counted from 0.
        row: usize,
        /// What it is.
        value: String,
    },
    /// Columns cannot be rotated in groups of this size.
    #[error(
        "its convrot_groupsize is {group}; rotations have 4, 16, 64, 256 or 1024 columns: convert the file again"
    )]
    Group {
        /// The size.
        group: u64,
    },
    /// Groups of columns do not fit its rows.
    #[error("its convrot_groupsize of {group} does not divide its {columns} columns: convert the file again")]
    GroupDoesNotDivide {
        /// The size.
        group: u64,
        /// Columns of the weight.
        columns: usize,
    },
}

/// What is wrong with one metadata value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// Two values have this key.
    #[error("the key is used twice")]
    Duplicate,
    /// A GGUF value type that does not exist.
    #[error("value type {id} does not exist in GGUF")]
    UnknownType {
        /// The type's number.
        id: u32,
    },
    /// An array of arrays.
    #[error("arrays of arrays are not supported")]
    NestedArray,
    /// A string longer than any honest one.
    #[error("a string of {bytes} bytes passes the limit of {limit}")]
    StringTooLong {
        /// Bytes of the string.
        bytes: u64,
        /// The most that are read.
        limit: u64,
    },
    /// A string that is not text.
    #[error("element {index} is not UTF-8 text")]
    NotText {
        /// Its place in the array; 0 for a single value.
        index: usize,
    },
    /// A boolean that is neither 0 nor 1.
    #[error("element {index} is {value}, which is no boolean")]
    NotBoolean {
        /// Its place in the array; 0 for a single value.
        index: usize,
        /// The byte in the file.
        value: u8,
    },
    /// There is no array under this key, though others say that there must be one.
    #[error("it is missing: the file was not converted whole; convert it again")]
    Missing,
    /// Values of another type than they must be.
    #[error("its values are no {wanted}: the file was converted for something else")]
    NotThat {
        /// What they must be.
        wanted: &'static str,
    },
    /// Marks of quantised layers that are not the JSON that they should be.
    #[error("its JSON cannot be read: {reason}: fetch the file again")]
    Marks {
        /// What the JSON reader said.
        reason: String,
    },
    /// The array no longer has the form that it had when the file was opened.
    #[error("the array ends before element {index}: another program changed the file")]
    Changed {
        /// The first element that is gone.
        index: usize,
    },
}

/// Parts of one checkpoint that do not fit together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardFault {
    /// A part of a split GGUF that is not the first one.
    #[error("this is part {number} of {count} of a split GGUF: open the first part, {}", first.display())]
    NotFirst {
        /// Which part it is, counted from 1.
        number: u64,
        /// Parts in all.
        count: u64,
        /// The file to open.
        first: PathBuf,
    },
    /// A part of a split GGUF whose name does not say where the others are.
    #[error(
        "this is part {number} of {count} of a split GGUF, but its name does not end in \
         -{number:05}-of-{count:05}.gguf, so the other parts cannot be found: give it its original name"
    )]
    PartName {
        /// Which part it is, counted from 1.
        number: u64,
        /// Parts in all.
        count: u64,
    },
    /// A part is not where it should be.
    #[error("part {name:?} is missing: put it into the same folder")]
    MissingPart {
        /// The part's file name.
        name: String,
    },
    /// A part says that it is another part, or of another whole.
    #[error("part {name:?} says that it is part {number} of {count}: the files are of different models")]
    WrongPart {
        /// The part's file name.
        name: String,
        /// Which part it says it is, counted from 1.
        number: u64,
        /// How many parts it says there are.
        count: u64,
    },
    /// A part is a whole file, or of another format.
    #[error("part {name:?} is not a part of this checkpoint: {found}")]
    NotAPart {
        /// The part's file name.
        name: String,
        /// What it is instead.
        found: &'static str,
    },
    /// An index names a file outside its own folder.
    #[error(
        "the index names {name:?}, which is no plain file name: only files in the index's own folder are opened"
    )]
    FileName {
        /// What the index names.
        name: String,
    },
    /// More parts than any honest checkpoint.
    #[error("it has {count} parts and the limit is {limit}")]
    TooMany {
        /// Parts it says it has.
        count: u64,
        /// The most that are opened.
        limit: u64,
    },
    /// The parts together have another number of tensors than the first says.
    #[error("its parts hold {got} tensors and should hold {expected}: a part is damaged or of another model")]
    TensorCount {
        /// Tensors that the first part announces.
        expected: u64,
        /// Tensors found.
        got: u64,
    },
}

/// The longest text from a file that an error repeats.
const EXCERPT_CHARS: usize = 80;

/// `text`, cut short if it is long.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(EXCERPT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
