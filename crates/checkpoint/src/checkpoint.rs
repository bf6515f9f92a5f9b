//! The opened checkpoint: files, entries and metadata together, from one file or from several parts.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::index::{Index, IndexedTensor};
use crate::marks::Marked;
use crate::metadata::Metadata;
use crate::name_index::NameIndex;
use crate::refusal::{Kind, recognise};
use crate::shard_name::ShardName;
use crate::siblings::Siblings;
use crate::source::Source;
use crate::{Advice, Entry, EntryBytes, Error, HeaderFault, ShardFault, TensorFault};
use crate::{gguf, index, pickle, quantisation, safetensors};

/// The most tensors of a checkpoint, over all its parts.
pub const MAX_ENTRIES: u64 = 1 << 20;
/// The most parts of a checkpoint. Each keeps a file open.
pub const MAX_SHARDS: u64 = 1024;

/// The format of a checkpoint's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Safetensors, in one file or in shards with an index.
    Safetensors,
    /// GGUF, in one file or in split parts.
    Gguf,
    /// A pickle that PyTorch wrote.
    Pickle,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Format::Safetensors => "safetensors",
            Format::Gguf => "GGUF",
            Format::Pickle => "PyTorch",
        })
    }
}

/// Says that an opened file is only one part of a sharded checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which part it is, counted from 1.
    pub number: u64,
    /// Parts in all.
    pub count: u64,
    /// The index that would open all of them, if it is there.
    pub index: PathBuf,
}

/// An opened checkpoint: its tensors by name, and their bytes straight from the mapped files.
pub struct Checkpoint {
    format: Format,
    path: PathBuf,
    sources: Vec<Arc<Source>>,
    entries: Vec<Entry>,
    names: NameIndex,
    metadata: Metadata,
    warnings: Vec<String>,
}

/// What a parser finds in one file.
pub(crate) struct Parsed {
    pub(crate) entries: Vec<Entry>,
    pub(crate) metadata: Metadata,
}

impl Checkpoint {
    /// Opens a safetensors file, a GGUF file, a PyTorch checkpoint, a `*.safetensors.index.json` with all its shards, or the
    /// first part of a split GGUF with all its parts. What it is, its content says, not its name.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint, Error> {
        let path = path.as_ref();
        let checkpoint = Checkpoint::load(Source::open(path)?, Siblings::of(path))?;
        // A header that was read while its file changed says nothing.
        checkpoint.verify()?;
        Ok(checkpoint)
    }

    /// Opens a checkpoint that is part of the program; `name` stands for its path.
    pub fn from_static(name: &str, bytes: &'static [u8]) -> Result<Checkpoint, Error> {
        Checkpoint::load(Source::memory(name, Cow::Borrowed(bytes)), Siblings::Memory(Vec::new()))
    }

    /// Opens a checkpoint from memory. `main` is what [`Checkpoint::open`] would be given; `parts` are
    /// the files beside it, by name, if it is an index or the first part of several.
    pub fn from_memory(
        main: (&str, Cow<'static, [u8]>),
        parts: Vec<(&str, Cow<'static, [u8]>)>,
    ) -> Result<Checkpoint, Error> {
        let parts = parts.into_iter().map(|(name, bytes)| Source::memory(name, bytes)).collect();
        Checkpoint::load(Source::memory(main.0, main.1), Siblings::Memory(parts))
    }

    /// What [`Checkpoint::open`] was given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The format of the files.
    pub fn format(&self) -> Format {
        self.format
    }

    /// The files with tensors and their lengths in bytes. [`Entry::file`] counts in this order.
    pub fn files(&self) -> impl ExactSizeIterator<Item = (&Path, u64)> {
        self.sources.iter().map(|source| (source.path(), source.len()))
    }

    /// If this is one safetensors shard that was opened by itself, which one it is. Only its name says so.
    pub fn shard(&self) -> Option<Shard> {
        let name = self.path.file_name()?.to_str()?;
        let ShardName { prefix, number, count, extension } = ShardName::parse(name)?;
        let alone = self.format == Format::Safetensors && self.sources.len() == 1 && count > 1;
        let index = self.path.with_file_name(format!("{prefix}.{extension}.index.json"));
        alone.then_some(Shard { number, count, index })
    }

    /// Every tensor, in the order of the headers.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The tensor with this name.
    pub fn entry(&self, name: &str) -> Option<&Entry> {
        self.names.find(&self.entries, name).map(|at| &self.entries[at])
    }

    /// Bytes of all tensors together.
    pub fn tensor_bytes(&self) -> u64 {
        self.entries.iter().map(Entry::len).sum()
    }

    /// What the file says about itself; of several parts, what the first one says.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What is strange about the file though it can be read, as sentences about it.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The bytes of one of this checkpoint's entries, straight from the map. Nothing is read from disk
    /// until they are touched. They begin wherever the file has them, which need not be a multiple of the
    /// element's size. Panics if the entry is of another checkpoint and its place does not exist here.
    pub fn bytes(&self, entry: &Entry) -> &[u8] {
        &self.sources[entry.file()].bytes()[entry.range()]
    }

    /// The same bytes as [`Checkpoint::bytes`] as an owned share in the map, which may outlive this value.
    pub fn entry_bytes(&self, entry: &Entry) -> EntryBytes {
        EntryBytes::new(Arc::clone(&self.sources[entry.file()]), entry.range())
    }

    /// Tells the operating system how all files will be used. For one entry: [`EntryBytes::advise`].
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        self.sources.iter().try_for_each(|source| source.advise(0..source.bytes().len(), advice))
    }

    /// An error if a file is not as it was when it was opened; see the crate's page. It costs one question to the
    /// operating system per file.
    pub fn verify(&self) -> Result<(), Error> {
        self.sources.iter().try_for_each(|source| source.verify())
    }

    /// Whether nobody found one of its files changed or damaged so far. Asks no system; what it does not see,
    /// [`Checkpoint::verify`] does.
    pub fn is_intact(&self) -> bool {
        self.sources.iter().all(|source| source.is_intact())
    }

    /// Gives the weights of marked layers the encodings that their marks say.
    fn read_marks(&mut self) -> Result<(), Error> {
        let marked = Marked {
            metadata: &self.metadata,
            entries: &self.entries,
            find: &|name| self.entry(name),
            bytes: &|entry| self.bytes(entry),
        };
        let fault = |layer: &str, fault| self.sources[0].tensor_error(layer, TensorFault::Mark(fault));
        let quantisation::Quantised { weights, products, warnings } = quantisation::read(&marked, &fault)?;
        for (name, (encoding, shape)) in weights {
            if let Some(at) = self.names.find(&self.entries, &name) {
                self.entries[at].quantise(encoding, shape);
            }
        }
        for (name, product) in products {
            if let Some(at) = self.names.find(&self.entries, &name) {
                self.entries[at].mark_product(product);
            }
        }
        self.warnings = warnings;
        Ok(())
    }

    fn load(source: Source, siblings: Siblings) -> Result<Checkpoint, Error> {
        let kind = recognise(source.bytes());
        match kind.map_err(|reason| Error::Refused { file: source.path().to_owned(), reason })? {
            Kind::Safetensors => {
                let source = Arc::new(source);
                let parsed = safetensors::parse(&source, 0)?;
                assemble(Format::Safetensors, source.path().to_owned(), vec![source], parsed)
            }
            Kind::Gguf => open_gguf(source, siblings),
            Kind::Json => open_index(&source, siblings),
            Kind::TorchZip => open_pickle(source, pickle::parse_archive),
            Kind::TorchLegacy => open_pickle(source, pickle::parse_legacy),
        }
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checkpoint({}, {}, {} entries)", self.path.display(), self.format, self.entries.len())
    }
}

/// Makes the checkpoint from parts whose entries have been put together.
fn assemble(
    format: Format,
    path: PathBuf,
    sources: Vec<Arc<Source>>,
    parsed: Parsed,
) -> Result<Checkpoint, Error> {
    let Parsed { mut entries, metadata } = parsed;
    let names = NameIndex::new(&entries).map_err(|(first, second)| {
        let (first, second) = (&entries[first], &entries[second]);
        let also_in = (first.file() != second.file()).then(|| sources[first.file()].path().to_owned());
        sources[second.file()].tensor_error(second.name(), TensorFault::Duplicate { also_in })
    })?;
    if let (Format::Gguf, Some(first)) = (format, sources.first()) {
        gguf::restore_shapes(first, &metadata, &mut entries, &names)?;
    }
    let mut checkpoint = Checkpoint { format, path, sources, entries, names, metadata, warnings: Vec::new() };
    if format == Format::Safetensors {
        checkpoint.read_marks()?;
    }
    Ok(checkpoint)
}

/// Adds the entries of one more part.
fn append(entries: &mut Vec<Entry>, more: Vec<Entry>, source: &Source) -> Result<(), Error> {
    let (count, limit) = ((entries.len() + more.len()) as u64, MAX_ENTRIES);
    if count > limit {
        return Err(source.header_error(HeaderFault::TooManyTensors { count, limit }));
    }
    entries.extend(more);
    Ok(())
}

/// Opens the shards that an index names and checks that each tensor is where the index says.
fn open_index(source: &Source, mut siblings: Siblings) -> Result<Checkpoint, Error> {
    let Index { shards, tensors } = index::parse(source)?;
    let (mut sources, mut entries, mut metadata) = (Vec::new(), Vec::new(), None);
    for (number, name) in shards.iter().enumerate() {
        let shard = Arc::new(siblings.open(name, source.path())?);
        if let Some(found) = not_a_part(&shard, Kind::Safetensors)? {
            let fault = ShardFault::NotAPart { name: name.to_string(), found };
            return Err(Error::Shards { file: source.path().to_owned(), fault });
        }
        let parsed = safetensors::parse(&shard, number as u32)?;
        append(&mut entries, parsed.entries, &shard)?;
        metadata.get_or_insert(parsed.metadata);
        sources.push(shard);
    }
    let Some(metadata) = metadata else {
        return Err(Error::Refused { file: source.path().to_owned(), reason: crate::Refusal::Json });
    };
    let parsed = Parsed { entries, metadata };
    let checkpoint = assemble(Format::Safetensors, source.path().to_owned(), sources, parsed)?;
    for IndexedTensor { name, shard } in &tensors {
        let shard = *shard as usize;
        if checkpoint.entry(name).is_none_or(|entry| entry.file() != shard) {
            return Err(
                source.tensor_error(name, TensorFault::NotInShard { shard: shards[shard].to_string() })
            );
        }
    }
    Ok(checkpoint)
}

/// Opens a GGUF file and, if it is the first part of several, the others.
fn open_gguf(source: Source, mut siblings: Siblings) -> Result<Checkpoint, Error> {
    let source = Arc::new(source);
    let path = source.path().to_owned();
    let mut whole = gguf::parse(&source, 0)?;
    let (number, count) = split_place(&whole.metadata);
    let error = |fault| Error::Shards { file: path.clone(), fault };
    if count <= 1 {
        return assemble(Format::Gguf, path, vec![source], whole);
    }
    if count > MAX_SHARDS {
        return Err(error(ShardFault::TooMany { count, limit: MAX_SHARDS }));
    }
    let file_name = source.file_name();
    let name = ShardName::parse(&file_name).filter(|name| (name.number, name.count) == (number, count));
    let Some(name) = name else { return Err(error(ShardFault::PartName { number, count })) };
    if number != 1 {
        return Err(error(ShardFault::NotFirst { number, count, first: siblings.path(&name.part(1)) }));
    }
    let mut sources = vec![source];
    for next in 2..=count {
        let part_name = name.part(next);
        let part = Arc::new(siblings.open(&part_name, &path)?);
        if let Some(found) = not_a_part(&part, Kind::Gguf)? {
            return Err(error(ShardFault::NotAPart { name: part_name, found }));
        }
        let parsed = gguf::parse(&part, next as u32 - 1)?;
        let (number, part_count) = split_place(&parsed.metadata);
        if (number, part_count) != (next, count) {
            return Err(error(ShardFault::WrongPart { name: part_name, number, count: part_count }));
        }
        append(&mut whole.entries, parsed.entries, &part)?;
        sources.push(part);
    }
    let got = whole.entries.len() as u64;
    match whole.metadata.u64("split.tensors.count") {
        Some(expected) if expected != got => Err(error(ShardFault::TensorCount { expected, got })),
        _ => assemble(Format::Gguf, path, sources, whole),
    }
}

/// Opens a file that PyTorch wrote, in one of its forms.
fn open_pickle(
    source: Source,
    parse: fn(&Arc<Source>) -> Result<Parsed, Error>,
) -> Result<Checkpoint, Error> {
    let source = Arc::new(source);
    let parsed = parse(&source)?;
    assemble(Format::Pickle, source.path().to_owned(), vec![source], parsed)
}

/// Which part of a split GGUF a file says it is, counted from 1, and of how many.
fn split_place(metadata: &Metadata) -> (u64, u64) {
    let number = metadata.u64("split.no").unwrap_or(0).saturating_add(1);
    (number, metadata.u64("split.count").unwrap_or(1))
}

/// What a part is, if it is not of the kind `wanted`.
fn not_a_part(part: &Source, wanted: Kind) -> Result<Option<&'static str>, Error> {
    match recognise(part.bytes()) {
        Ok(kind) if kind == wanted => Ok(None),
        Ok(Kind::Safetensors) => Ok(Some("it is a safetensors file")),
        Ok(Kind::Gguf) => Ok(Some("it is a GGUF file")),
        Ok(Kind::Json) => Ok(Some("it is a JSON file")),
        Ok(Kind::TorchZip | Kind::TorchLegacy) => Ok(Some("it is a PyTorch checkpoint")),
        Err(reason) => Err(Error::Refused { file: part.path().to_owned(), reason }),
    }
}
