//! Assets: the files of the input, output and temp folders as records with an id, a hash and tags.
//!
//! A file *is* its asset: the id is made from where the file lies, so that everything that nodes save and people upload
//! has one without a scan. What cannot be read off a file (its hash, tags and the words of its owner) is noted in one
//! JSON file of the user's folder.

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use runtime::Folders;
use runtime::folders::Place;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::names::{place_to_write, relative, wire_path};
use super::reply::{Answer, Refusal};
use super::storing::Received;
use super::upload::{keep_numbered, numbered};
use super::walk::Walk;
use super::{USER, content_type};

/// The file of notes, in the user's folder.
const NOTES: &str = "gantry.assets.json";
/// Files up to this size are hashed when somebody asks for one.
const HASHED_BYTES: u64 = 1 << 30;
/// What a hash begins with.
const HASH_PREFIX: &str = "blake3:";

/// The assets of one server.
pub(crate) struct Assets {
    folders: Folders,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    /// Where ids lead, as far as anybody asked.
    places: HashMap<String, (Place, String)>,
    /// By id; read from the disk when it is first needed.
    notes: Option<BTreeMap<String, Note>>,
}

/// What cannot be read off a file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Note {
    place: String,
    path: String,
    hash: Option<String>,
    /// The size and time of the bytes that were hashed.
    version: (u64, u64),
    tags: Vec<String>,
    name: Option<String>,
    user_metadata: Map<String, Value>,
    preview_id: Option<String>,
}

/// One asset as it is now.
#[derive(Clone, Debug)]
pub(crate) struct Asset {
    pub(crate) id: String,
    pub(crate) place: Place,
    /// Below the folder of its place, with `/` between the parts.
    pub(crate) path: String,
    pub(crate) bytes: u64,
    pub(crate) modified: SystemTime,
    pub(crate) content_type: String,
    /// `blake3:…`, if it was computed for the bytes that are there now.
    pub(crate) hash: Option<String>,
    /// The word of its place first.
    pub(crate) tags: Vec<String>,
    pub(crate) name: String,
    pub(crate) user_metadata: Map<String, Value>,
    pub(crate) preview_id: Option<String>,
}

/// What a new asset is to be called and marked with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// A file name, perhaps with folders before it.
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
    pub(crate) user_metadata: Map<String, Value>,
    /// What the bytes must hash to.
    pub(crate) hash: Option<String>,
}

/// Why there is no new asset.
#[derive(Debug)]
pub(crate) enum AssetFault {
    /// The bytes are not those that were announced.
    OtherHash {
        /// What they hash to.
        found: String,
    },
    /// No file with that hash is known.
    UnknownHash,
    /// A name or a file that cannot be used.
    File(Refusal),
}

impl<T: Into<Refusal>> From<T> for AssetFault {
    fn from(why: T) -> AssetFault {
        AssetFault::File(why.into())
    }
}

impl Asset {
    /// What a loader's input holds for it: `x.png`, or `x.png [output]`.
    pub(crate) fn annotated(&self) -> String {
        match self.place {
            Place::Input => self.path.clone(),
            place => format!("{} [{}]", self.path, place.name()),
        }
    }
}

/// Whether a text is a hash as it is written here.
pub(crate) fn is_hash(text: &str) -> bool {
    let digits = text.strip_prefix(HASH_PREFIX).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

impl Assets {
    pub(crate) fn new(folders: &Folders) -> Assets {
        Assets { folders: folders.clone(), known: Mutex::default() }
    }

    /// The file behind an asset.
    pub(crate) fn file(&self, asset: &Asset) -> PathBuf {
        self.folders.directory(asset.place).join(&asset.path)
    }

    /// The asset that a file is; none if there is no such file, or its name leads elsewhere.
    pub(crate) fn at(&self, place: Place, path: &str) -> Option<Asset> {
        let below = relative(path).ok()?;
        let metadata = self.folders.directory(place).join(&below).metadata().ok()?;
        metadata.is_file().then(|| self.asset(place, wire_path(&below), &metadata))
    }

    /// The asset with an id.
    pub(crate) fn find(&self, id: &str) -> Option<Asset> {
        let id = id.to_ascii_lowercase();
        let known = self.lock().places.get(&id).cloned();
        let found = known.and_then(|(place, path)| self.at(place, &path));
        found.or_else(|| self.all().into_iter().find(|asset| asset.id == id))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Asset> {
        let mut all = Vec::new();
        for place in [Place::Input, Place::Output, Place::Temp] {
            let walk = Walk { recurse: true, hidden: false };
            let Ok(found) = walk.below(self.folders.directory(place)) else { continue };
            let files = found.iter().filter(|found| found.metadata.is_file());
            all.extend(files.map(|found| self.asset(place, wire_path(&found.path), &found.metadata)));
        }
        all
    }

    /// An asset with a hash that was computed before.
    pub(crate) fn with_hash(&self, hash: &str) -> Option<Asset> {
        let places: Vec<(String, String)> = {
            let mut known = self.lock();
            let notes = self.notes(&mut known).values();
            let of_hash = notes.filter(|note| note.hash.as_deref() == Some(hash));
            of_hash.map(|note| (note.place.clone(), note.path.clone())).collect()
        };
        let mut found = places.iter().filter_map(|(place, path)| self.at(Place::named(place)?, path));
        found.find(|asset| asset.hash.as_deref() == Some(hash))
    }

    /// The same asset with its hash, which is computed now if it never was and the file is not huge.
    pub(crate) fn hashed(&self, asset: Asset) -> Asset {
        if asset.hash.is_some() || asset.bytes > HASHED_BYTES {
            return asset;
        }
        match hash_of(&self.file(&asset)) {
            Ok(hash) => {
                self.change(&asset, |note| note.hash = Some(hash.clone()));
                Asset { hash: Some(hash), ..asset }
            }
            Err(_) => asset,
        }
    }

    /// Stores bytes in the input folder. Whether they are new: a file of that name with just these bytes is it already.
    pub(crate) fn add(&self, received: Received, wanted: &Wanted) -> Result<(Asset, bool), AssetFault> {
        let hash = hash_of(received.path())?;
        if wanted.hash.as_ref().is_some_and(|wanted| *wanted != hash) {
            return Err(AssetFault::OtherHash { found: hash });
        }
        let is_new = self.with_hash(&hash).is_none();
        let name = relative(&wanted.name)?;
        let root = self.folders.directory(Place::Input);
        let path = place_to_write(root, &name)?;
        let number = keep_numbered(received, &path)?;
        let path = wire_path(&numbered(&name, number));
        let asset = self.at(Place::Input, &path).ok_or(Refusal::Missing)?;
        self.change(&asset, |note| {
            note.hash = Some(hash.clone());
            note.add_tags(&wanted.tags);
            note.user_metadata.extend(wanted.user_metadata.clone());
        });
        Ok((self.at(Place::Input, &path).unwrap_or(asset), is_new))
    }

    /// Another name in the input folder for bytes that are here. Whether the name is new.
    pub(crate) fn add_known(&self, hash: &str, wanted: &Wanted) -> Result<(Asset, bool), AssetFault> {
        let known = self.with_hash(hash).ok_or(AssetFault::UnknownHash)?;
        let named_so = wanted.name.is_empty() || wanted.name == known.path;
        if known.place == Place::Input && named_so {
            self.change(&known, |note| note.add_tags(&wanted.tags));
            return Ok((self.at(known.place, &known.path).unwrap_or(known), false));
        }
        let name = if wanted.name.is_empty() { known.path.clone() } else { wanted.name.clone() };
        std::fs::create_dir_all(&self.folders.temp)?;
        let draft = Received::copy_of(&self.file(&known), &self.folders.temp)?;
        let wanted = Wanted { name, hash: Some(hash.to_owned()), ..wanted.clone() };
        Ok((self.add(draft, &wanted)?.0, true))
    }

    /// Removes an asset and its file.
    pub(crate) fn remove(&self, asset: &Asset) -> Answer<()> {
        std::fs::remove_file(self.file(asset))?;
        let mut known = self.lock();
        known.places.remove(&asset.id);
        if self.notes(&mut known).remove(&asset.id).is_some() {
            self.write(&known);
        }
        Ok(())
    }

    /// Changes the owner's words; the asset as it is then.
    pub(crate) fn describe(&self, asset: &Asset, words: Words) -> Asset {
        self.change(asset, |note| {
            note.name = words.name.or(note.name.take());
            note.preview_id = words.preview_id.or(note.preview_id.take());
            if let Some(user_metadata) = words.user_metadata {
                note.user_metadata = user_metadata;
            }
        });
        self.at(asset.place, &asset.path).unwrap_or_else(|| asset.clone())
    }

    /// Adds tags, or takes them away; the asset as it is then.
    pub(crate) fn tag(&self, asset: &Asset, tags: &[String], is_added: bool) -> Asset {
        self.change(asset, |note| match is_added {
            true => note.add_tags(tags),
            false => note.tags.retain(|tag| !tags.contains(tag)),
        });
        self.at(asset.place, &asset.path).unwrap_or_else(|| asset.clone())
    }

    fn asset(&self, place: Place, path: String, metadata: &Metadata) -> Asset {
        let id = id_of(place, &path);
        let mut known = self.lock();
        known.places.entry(id.clone()).or_insert_with(|| (place, path.clone()));
        let note = self.notes(&mut known).get(&id).cloned().unwrap_or_default();
        let mut tags = vec![place.name().to_owned()];
        tags.extend(note.tags);
        Asset {
            id,
            place,
            bytes: metadata.len(),
            modified: metadata.modified().unwrap_or(UNIX_EPOCH),
            content_type: content_type::bare(Path::new(&path)),
            hash: note.hash.filter(|_| note.version == version_of(metadata)),
            tags,
            name: note.name.unwrap_or_else(|| path.rsplit('/').next().unwrap_or(&path).to_owned()),
            user_metadata: note.user_metadata,
            preview_id: note.preview_id,
            path,
        }
    }

    fn change(&self, asset: &Asset, change: impl FnOnce(&mut Note)) {
        let Ok(metadata) = self.file(asset).metadata() else { return };
        let mut known = self.lock();
        let note = self.notes(&mut known).entry(asset.id.clone()).or_default();
        (note.place, note.path) = (asset.place.name().to_owned(), asset.path.clone());
        if note.version != version_of(&metadata) {
            note.hash = None;
            note.version = version_of(&metadata);
        }
        change(note);
        self.write(&known);
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes<'a>(&self, known: &'a mut Known) -> &'a mut BTreeMap<String, Note> {
        known.notes.get_or_insert_with(|| {
            let text = std::fs::read(self.notes_file()).unwrap_or_default();
            if text.is_empty() {
                return BTreeMap::new();
            }
            serde_json::from_slice(&text).unwrap_or_else(|error| {
                tracing::warn!("the notes on assets cannot be read and are begun anew: {error}");
                BTreeMap::new()
            })
        })
    }

    /// Writes the notes. Files are worth more than words on them, so that a failure is told and no more.
    fn write(&self, known: &Known) {
        let path = self.notes_file();
        let write = || -> io::Result<()> {
            std::fs::create_dir_all(path.parent().unwrap_or(&self.folders.user))?;
            disk::write(&path, &serde_json::to_vec(&known.notes)?)
        };
        if let Err(error) = write() {
            tracing::warn!("the notes on assets cannot be written: {error}");
        }
    }

    fn notes_file(&self) -> PathBuf {
        self.folders.user.join(USER).join(NOTES)
    }
}

/// What an owner says of an asset; what is absent stays as it is.
#[derive(Clone, Debug, Default)]
pub(crate) struct Words {
    pub(crate) name: Option<String>,
    pub(crate) user_metadata: Option<Map<String, Value>>,
    pub(crate) preview_id: Option<String>,
}

impl Note {
    fn add_tags(&mut self, tags: &[String]) {
        for tag in tags {
            // The word of the place is there without being noted.
            if *tag != self.place && !self.tags.contains(tag) {
                self.tags.push(tag.clone());
            }
        }
    }
}

/// A UUID of a place and a path: the first bits of their hash, in the version for ids of one's own making.
fn id_of(place: Place, path: &str) -> String {
    let hash = blake3::hash(format!("{}/{path}", place.name()).as_bytes());
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash.as_bytes()[..16]);
    bytes[6] = (bytes[6] & 0x0f) | 0x80;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

fn version_of(metadata: &Metadata) -> (u64, u64) {
    let modified = metadata.modified().unwrap_or(UNIX_EPOCH).duration_since(UNIX_EPOCH).unwrap_or_default();
    (metadata.len(), u64::try_from(modified.as_nanos()).unwrap_or(u64::MAX))
}

fn hash_of(path: &Path) -> io::Result<String> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(format!("{HASH_PREFIX}{}", hasher.finalize().to_hex()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_of_places() {
        let id = id_of(Place::Output, "a/b.png");
        assert_eq!(id, id_of(Place::Output, "a/b.png"));
        assert_ne!(id, id_of(Place::Input, "a/b.png"));
        assert_eq!(id.len(), 36);
        assert_eq!((&id[8..9], &id[14..15]), ("-", "8"));
    }

    #[test]
    fn a_hash_is_forgotten_when_the_bytes_change() {
        let base = tempfile::tempdir().unwrap();
        let assets = Assets::new(&Folders::at(base.path()));
        std::fs::create_dir_all(&assets.folders.input).unwrap();
        std::fs::create_dir_all(&assets.folders.temp).unwrap();
        let received = Received::of(b"one", &assets.folders.temp).unwrap();
        let wanted = Wanted { name: "x.txt".to_owned(), tags: vec!["mine".to_owned()], ..Wanted::default() };
        let (asset, is_new) = assets.add(received, &wanted).unwrap();
        let hash = asset.hash.clone().unwrap();
        assert!(is_new && is_hash(&hash) && asset.tags == ["input", "mine"]);
        // Another server over the same folders knows it.
        let again = Assets::new(&assets.folders);
        assert_eq!(again.with_hash(&hash).unwrap().id, asset.id);
        std::fs::write(assets.file(&asset), b"three").unwrap();
        assert!(again.with_hash(&hash).is_none());
        assert!(again.find(&asset.id).unwrap().hash.is_none());
        assert_ne!(again.hashed(again.find(&asset.id).unwrap()).hash.unwrap(), hash);
    }
}
