//! Side-cars: coded blocks in a folder, so that the next start has them at once and reads fewer bytes from the disk. They
//! can be made again at any time, so whatever is wrong with one, it is thrown away.
//!
//! ```text
//! CONTENT.coded      the blocks of one model, a safetensors file with a tensor of bytes for each; the texts of its header
//!                    say what is in them and have a checksum of each
//! IDENTITY.source    which content a model file has that was seen before; its date is that of the last use
//! ```
//!
//! The content is a sum over the coded blocks, which have checksums of the weights in them; the identity one over names,
//! places, lengths, dates and some of the values, so that a start need not read a file to know its content.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Seek, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use checkpoint::{Checkpoint, EntryBytes, NewTensor, SafetensorsHead};
use device::Stream;
use disk::Draft;
use meta::{ByteSize, DType, Shape};

use crate::checker::{BlockCheck, Checker};
use crate::coding::{CodedBlock, Part};
use crate::manifest::{Manifest, WeightSpec};

/// How the names of side-cars end.
const CODED: &str = "coded";
/// How the names of notes end that say which side-car a file has.
const SOURCE: &str = "source";
/// The version of the texts in a side-car's header.
const VERSION: &str = "1";
/// Their names.
const VERSION_KEY: &str = "gantry.coded";
const MODEL_KEY: &str = "gantry.model";
const BLOCK_KEY: &str = "gantry.block.";
/// What is read and written at a time.
const AT_A_TIME: usize = 8 << 20;
/// Bytes that wait to be on the disk at most.
const SYNCED_BYTES: usize = 256 << 20;
/// Bytes of each block that are looked at to tell a file from another.
const SAMPLE_BYTES: usize = 4096;

/// Bytes that are free on the disk of a folder; none if nobody knows.
pub type FreeSpace = fn(&Path) -> Option<u64>;

/// What side-cars leave free of a disk: they are a convenience, and a full disk is none.
const LEFT_FREE_BYTES: u64 = 10 << 30;

/// The folder of side-cars.
#[derive(Debug)]
pub struct SideCars {
    folder: PathBuf,
    limit_bytes: u64,
    free_space: Option<FreeSpace>,
    /// What was thrown away, for the log.
    told: Mutex<Vec<String>>,
}

/// A side-car, as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SideCar {
    /// Its file.
    pub path: PathBuf,
    /// The model that it is of; none if it cannot be read.
    pub model: Option<String>,
    /// Bytes of the file.
    pub bytes: u64,
    /// When it was last used.
    pub last_used: SystemTime,
}

/// Blocks of a side-car, whose bytes are being read and compared with their checksums.
pub(crate) struct Found {
    pub(crate) blocks: Vec<FoundBlock>,
    pub(crate) checker: Arc<Checker>,
}

/// A coded block in a side-car.
pub(crate) struct FoundBlock {
    pub(crate) index: usize,
    pub(crate) bytes: EntryBytes,
    pub(crate) parts: Vec<Part>,
    pub(crate) len: usize,
    pub(crate) check: BlockCheck,
}

/// A block that is to be written.
pub(crate) struct Written<'a> {
    pub(crate) name: &'a str,
    pub(crate) bytes: usize,
    pub(crate) parts: Vec<Part>,
    pub(crate) len: usize,
}

/// Gives the bytes of a block that is to be written, from front to back.
pub(crate) type Give<'a> = dyn FnMut(usize, &mut Take<'_>) -> io::Result<()> + 'a;
/// Takes bytes.
pub(crate) type Take<'a> = dyn FnMut(&[u8]) -> io::Result<()> + 'a;

impl SideCars {
    /// Side-cars in a folder, which together have no more than so many bytes. The folder is made when the first is written.
    #[must_use]
    pub fn new(folder: PathBuf, limit_bytes: u64) -> SideCars {
        SideCars { folder, limit_bytes, free_space: None, told: Mutex::default() }
    }

    /// The same, which leave some of their disk free.
    #[must_use]
    pub fn leaving_free(self, free_space: FreeSpace) -> SideCars {
        SideCars { free_space: Some(free_space), ..self }
    }

    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The most bytes that they may have together.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// What was found damaged since this was last asked, or could not be written: sentences for the log.
    pub fn take_notes(&self) -> Vec<String> {
        std::mem::take(&mut *self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    pub(crate) fn tell(&self, note: String) {
        self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(note);
    }

    /// All side-cars, the least recently used first. A folder that is not there has none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> io::Result<Vec<SideCar>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let (mut cars, mut uses) = (Vec::new(), Vec::new());
        for entry in entries {
            let (path, about) = match entry.and_then(|entry| Ok((entry.path(), entry.metadata()?))) {
                Ok(known) => known,
                // Another program may have removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            let modified = about.modified().unwrap_or(UNIX_EPOCH);
            match path.extension().and_then(|ending| ending.to_str()) {
                Some(CODED) => cars.push((path, about.len(), modified)),
                Some(SOURCE) => uses.push((fs::read_to_string(&path).unwrap_or_default(), modified)),
                _ => {}
            }
        }
        let car = |(path, bytes, made): (PathBuf, u64, SystemTime)| {
            let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            let used = uses.iter().filter(|(content, _)| content.trim() == stem).map(|(_, used)| *used);
            let last_used = used.chain([made]).max().unwrap_or(made);
            SideCar { model: model_of(&path), path, bytes, last_used }
        };
        let mut cars: Vec<SideCar> = cars.into_iter().map(car).collect();
        cars.sort_by(|a, b| (a.last_used, &a.path).cmp(&(b.last_used, &b.path)));
        Ok(cars)
    }

    /// Removes all of them, with the notes about them and what programs that were killed left; the bytes of the side-cars.
    /// A model that runs with one keeps it until it is unloaded.
    ///
    /// # Errors
    /// One cannot be removed.
    pub fn clear(&self) -> io::Result<u64> {
        let cars = self.list()?;
        cars.iter().try_for_each(|car| remove(&car.path))?;
        self.remove_notes(|_| true)?;
        disk::remove_stale(&self.folder);
        Ok(cars.iter().map(|car| car.bytes).sum())
    }

    fn remove_notes(&self, goes: impl Fn(&str) -> bool) -> io::Result<()> {
        let Ok(entries) = fs::read_dir(&self.folder) else { return Ok(()) };
        for path in entries.flatten().map(|entry| entry.path()) {
            let is_note = path.extension().is_some_and(|ending| ending == SOURCE);
            if is_note && goes(fs::read_to_string(&path).unwrap_or_default().trim()) {
                remove(&path)?;
            }
        }
        Ok(())
    }

    /// The bytes of the blocks that a model has in a side-car, by their names; none if it has no such file, or a damaged one.
    /// Only its header is read.
    pub(crate) fn sizes(&self, manifest: &Manifest) -> Option<HashMap<String, u64>> {
        let identity = identity(manifest)?;
        let content = fs::read_to_string(self.folder.join(format!("{identity}.{SOURCE}"))).ok()?;
        let file = Checkpoint::open(self.folder.join(format!("{}.{CODED}", content.trim()))).ok()?;
        Some(file.entries().iter().map(|entry| (entry.name().to_owned(), entry.len())).collect())
    }

    /// The coded blocks of these numbers, if a side-car of the model has them all. One whose header is damaged is thrown away
    /// at once, one whose blocks are when they are read.
    pub(crate) fn find(self: &Arc<SideCars>, manifest: &Manifest, lens: &[(usize, usize)]) -> Option<Found> {
        let identity = identity(manifest)?;
        let note = self.folder.join(format!("{identity}.{SOURCE}"));
        let content = fs::read_to_string(&note).ok()?;
        let path = self.folder.join(format!("{}.{CODED}", content.trim()));
        if !path.is_file() {
            return None;
        }
        let damaged = Damaged { cars: Arc::clone(self), path, note, model: manifest.name().to_owned() };
        match read(&damaged.path, manifest, lens) {
            Ok(blocks) => {
                // The date of the note is when it was used. A folder that is only read stays as it is.
                let _ = disk::write(&damaged.note, content.as_bytes());
                blocks.map(|blocks| found(blocks, damaged))
            }
            Err(reason) => {
                damaged.throw_away(&reason);
                None
            }
        }
    }

    /// Writes a model's coded blocks, unless they would have no room. `give` is asked for each block once, in order.
    pub(crate) fn write(
        &self,
        manifest: &Manifest,
        blocks: &[Written<'_>],
        give: &mut Give<'_>,
    ) -> io::Result<()> {
        let Some(identity) = identity(manifest) else { return Ok(()) };
        // Sums that are not known yet are as long as those that are.
        let head = head(&self.folder, manifest.name(), blocks, &vec![0; blocks.len()])?;
        let wanted = head.file_bytes();
        if wanted > self.limit_bytes {
            let limit = ByteSize(self.limit_bytes);
            return Err(io::Error::other(format!(
                "they have {}, and all that are kept may have {limit}; --coded-cache says how much they may have",
                ByteSize(wanted)
            )));
        }
        fs::create_dir_all(&self.folder)?;
        disk::remove_stale(&self.folder);
        self.make_room(wanted)?;
        self.check_space(wanted)?;
        let mut draft = Draft::new(&self.folder)?;
        draft.write_all(head.bytes())?;
        let (mut sums, mut waiting) = (Vec::new(), 0);
        for index in 0..blocks.len() {
            let mut sum = Sum::default();
            give(index, &mut |bytes| {
                sum.add(bytes);
                draft.write_all(bytes)?;
                waiting += bytes.len();
                if waiting >= SYNCED_BYTES {
                    // The last wait is short then, so that a model can be unloaded soon.
                    waiting = 0;
                    draft.file().sync_data()?;
                }
                Ok(())
            })?;
            sums.push(sum.finish());
        }
        let head = self::head(&self.folder, manifest.name(), blocks, &sums)?;
        let mut file = draft.file();
        file.seek(SeekFrom::Start(0))?;
        file.write_all(head.bytes())?;
        draft.sync()?;
        let content = format!("{:032x}", content(blocks, &sums));
        draft.replace(&self.folder.join(format!("{content}.{CODED}")))?;
        disk::write(&self.folder.join(format!("{identity}.{SOURCE}")), content.as_bytes())
    }

    /// An error if so many bytes more would leave too little of the disk free.
    fn check_space(&self, wanted: u64) -> io::Result<()> {
        let Some(free) = self.free_space.and_then(|free_space| free_space(&self.folder)) else {
            return Ok(());
        };
        if free >= wanted.saturating_add(LEFT_FREE_BYTES) {
            return Ok(());
        }
        let (wanted, free, left) = (ByteSize(wanted), ByteSize(free), ByteSize(LEFT_FREE_BYTES));
        Err(io::Error::other(format!(
            "they have {wanted}, the disk of {} has {free} free, and {left} of it are left to others; free some, name \
             another folder with GANTRY_CACHE_DIR, or keep none with --coded-cache 0gb",
            self.folder.display()
        )))
    }

    /// Removes the least recently used until there is room for so many bytes more.
    fn make_room(&self, wanted: u64) -> io::Result<()> {
        let cars = self.list()?;
        let mut held: u64 = cars.iter().map(|car| car.bytes).sum();
        for car in cars {
            if held.saturating_add(wanted) <= self.limit_bytes {
                break;
            }
            remove(&car.path)?;
            let content = car.path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default().to_owned();
            self.remove_notes(|noted| noted == content)?;
            held -= car.bytes;
        }
        Ok(())
    }
}

/// What tells a model's files from others; none if some of its weights are in no file.
fn identity(manifest: &Manifest) -> Option<String> {
    let files = Manifest::files_of(manifest.weights());
    let mut text = format!("{VERSION}\n");
    for file in &files {
        let (bytes, modified) = file.file_stamp()?;
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let _ = writeln!(text, "{bytes} {}", since.as_nanos());
    }
    for (block, weights) in manifest.blocks().iter().map(|block| (&block.name, &block.weights)) {
        for spec in &manifest.weights()[weights.clone()] {
            let file = files.iter().position(|file| file.same_file(&spec.bytes))?;
            let WeightSpec { name, encoding, kept_as, shape, .. } = spec;
            let _ = write!(text, "{block} {name} {encoding:?} {kept_as:?} {shape} {file} ");
            let _ = writeln!(text, "{:?}", spec.bytes.place());
        }
        // A look at one place of each block: more of a file that is on the disk would take long.
        if let Some(spec) = manifest.weights()[weights.clone()].first() {
            let values: &[u8] = spec.bytes.as_ref();
            let _ = writeln!(text, "{:x}", codec::checksum(&values[..values.len().min(SAMPLE_BYTES)]));
        }
    }
    Some(format!("{:032x}", wide_sum(text.as_bytes())))
}

/// What tells the weights of these blocks from all others: their coded bytes, which have checksums of the weights in them.
fn content(blocks: &[Written<'_>], sums: &[u64]) -> u128 {
    let mut text = format!("{VERSION}\n");
    for (block, sum) in blocks.iter().zip(sums) {
        let _ = writeln!(text, "{} {sum:016x} {}", block.name, describe(block.len, &block.parts));
    }
    wide_sum(text.as_bytes())
}

/// A checksum of twice the length, so that no two of all files that there are have the same.
fn wide_sum(bytes: &[u8]) -> u128 {
    let first = codec::checksum(bytes);
    let second = codec::checksum(&[bytes, &first.to_le_bytes()].concat());
    u128::from(first) << 64 | u128::from(second)
}

/// A checksum of bytes that come in parts, all but the last of the same length.
#[derive(Default)]
struct Sum(Vec<u8>);

impl Sum {
    fn add(&mut self, bytes: &[u8]) {
        self.0.extend(codec::checksum(bytes).to_le_bytes());
    }

    fn finish(&self) -> u64 {
        codec::checksum(&self.0)
    }
}

/// What is read and written at a time, and summed: parts of a block have this length.
pub(crate) const PART_BYTES: usize = AT_A_TIME;

fn head(path: &Path, model: &str, blocks: &[Written<'_>], sums: &[u64]) -> io::Result<SafetensorsHead> {
    let mut texts =
        vec![(VERSION_KEY.to_owned(), VERSION.to_owned()), (MODEL_KEY.to_owned(), model.to_owned())];
    for (block, sum) in blocks.iter().zip(sums) {
        let described = describe(block.len, &block.parts);
        // The description is part of what is summed.
        let whole = codec::checksum(format!("{sum:016x} {described}").as_bytes());
        let text = format!("{sum:016x} {whole:016x} {described}");
        texts.push((format!("{BLOCK_KEY}{}", block.name), text));
    }
    let tensor = |block: &Written<'_>| NewTensor {
        name: block.name.to_owned(),
        dtype: DType::U8,
        shape: Shape::from([block.bytes]),
    };
    let tensors: Vec<NewTensor> = blocks.iter().map(tensor).collect();
    SafetensorsHead::new(path, &texts, &tensors).map_err(io::Error::other)
}

/// A block's length and its parts, as a text: `len from,bytes,to from,bytes,to,type,count`.
fn describe(len: usize, parts: &[Part]) -> String {
    let mut text = len.to_string();
    for Part { from, bytes, to, coded } in parts {
        let _ = write!(text, " {from},{bytes},{to}");
        if let Some((dtype, count)) = coded {
            let _ = write!(text, ",{dtype},{count}");
        }
    }
    text
}

fn dtype_of(name: &str) -> Option<DType> {
    DType::ALL.into_iter().find(|dtype| dtype.name() == name)
}

/// The parts that a text describes, if they lie within a block of so many bytes and its coded form.
fn parts_of(text: &str, len: usize, coded_bytes: usize) -> Option<Vec<Part>> {
    let mut words = text.split(' ');
    if words.next()?.parse() != Ok(len) {
        return None;
    }
    let part = |word: &str| {
        let mut fields = word.split(',');
        let mut number = || fields.next()?.parse::<usize>().ok();
        let (from, bytes, to) = (number()?, number()?, number()?);
        let coded = match fields.next() {
            None => None,
            Some(dtype) => Some((dtype_of(dtype)?, fields.next()?.parse::<usize>().ok()?)),
        };
        let there = coded.map_or(Some(bytes), |(dtype, count)| dtype.bytes().checked_mul(count))?;
        let fits = from.checked_add(bytes)? <= coded_bytes && to.checked_add(there)? <= len;
        fits.then_some(Part { from, bytes, to, coded })
    };
    words.map(part).collect()
}

/// A block of a side-car as its header describes it.
struct Described {
    index: usize,
    name: String,
    bytes: EntryBytes,
    parts: Vec<Part>,
    len: usize,
    sum: u64,
}

/// The blocks of a side-car that are asked for, each with the length that it has when it is decoded; none if it has not
/// all of them. What is wrong with its header, if something is.
fn read(path: &Path, manifest: &Manifest, lens: &[(usize, usize)]) -> Result<Option<Vec<Described>>, String> {
    let file = Checkpoint::open(path).map_err(|error| error.to_string())?;
    if file.metadata().str(VERSION_KEY) != Some(VERSION) {
        return Err("it is of another version".into());
    }
    let mut blocks = Vec::new();
    for (index, len) in lens {
        let name = &manifest.blocks()[*index].name;
        let Some(entry) = file.entry(name) else { return Ok(None) };
        let wrong = |what: &str| format!("{what} of block {name}");
        let text = file.metadata().str(&format!("{BLOCK_KEY}{name}"));
        let text = text.ok_or_else(|| wrong("there is no text"))?;
        let mut words = text.splitn(3, ' ');
        let sum = words.next().unwrap_or_default();
        let (whole, described) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        if format!("{:016x}", codec::checksum(format!("{sum} {described}").as_bytes())) != whole {
            return Err(wrong("the text has not the checksum"));
        }
        let bytes = file.entry_bytes(entry);
        let parts = parts_of(described, *len, bytes.len());
        let parts = parts.ok_or_else(|| wrong("the text does not fit the model"))?;
        let sum = u64::from_str_radix(sum, 16).map_err(|_| wrong("there is no checksum"))?;
        blocks.push(Described { index: *index, name: name.clone(), bytes, parts, len: *len, sum });
    }
    Ok(Some(blocks))
}

/// Begins to check blocks.
fn found(described: Vec<Described>, damaged: Damaged) -> Found {
    let checked = |block: &Described| (block.name.clone(), block.bytes.clone(), block.sum);
    let checker = Arc::new(Checker::start(described.iter().map(checked).collect(), damaged));
    let block = |(at, block): (usize, Described)| {
        let Described { index, bytes, parts, len, .. } = block;
        FoundBlock { index, bytes, parts, len, check: BlockCheck::new(&checker, at) }
    };
    Found { blocks: described.into_iter().enumerate().map(block).collect(), checker }
}

/// A side-car that may turn out to be damaged.
pub(crate) struct Damaged {
    cars: Arc<SideCars>,
    path: PathBuf,
    note: PathBuf,
    model: String,
}

impl Damaged {
    /// Throws it away and tells why.
    pub(crate) fn throw_away(&self, reason: &str) {
        let Damaged { cars, path, note, model } = self;
        let path_shown = path.display();
        cars.tell(format!(
            "{path_shown} is damaged ({reason}): it is thrown away, and {model} is coded again"
        ));
        // One that cannot be removed is found damaged again.
        let _ = remove(path);
        let _ = remove(note);
    }
}

/// The model that a side-car is of.
fn model_of(path: &Path) -> Option<String> {
    let file = Checkpoint::open(path).ok()?;
    file.metadata().str(MODEL_KEY).map(str::to_owned)
}

/// Removes a file that may be gone already.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The bytes of a coded block in host memory, for a side-car.
pub(crate) fn give_block(block: &CodedBlock, stream: &Stream, take: &mut Take<'_>) -> io::Result<()> {
    let told = |error: GiveError| match error {
        GiveError::Device(error) => io::Error::other(error),
        GiveError::Io(error) => error,
    };
    block.read(stream, PART_BYTES, |bytes| take(bytes).map_err(GiveError::Io)).map_err(told)
}

enum GiveError {
    Device(device::Error),
    Io(io::Error),
}

impl From<device::Error> for GiveError {
    fn from(error: device::Error) -> GiveError {
        GiveError::Device(error)
    }
}
