//! What nodes share: folders, devices, loaded models and settings.
//!
//! ```text
//! loader node ──> Model, Clip, Vae (handles: file, family, placing, patches)
//!                      │ used by a node
//!                      └──> Studio::session ── plan, load, patch, open ──> residency::Session
//! ```
//!
//! A handle holds all that is needed to load its model again, so outputs of loader nodes stay good after a
//! free request; the registry alone decides what is in memory.

mod changed_files;
mod class;
mod footprint;
mod handles;
mod host;
mod kept;
mod loading;
mod measuring;
mod network;
mod planning;
mod profiling;
mod questions;
mod stats;
mod work;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use checkpoint::Checkpoint;
use device::{Device, Registry};
use meta::DeviceId;
use residency::Residency;

use crate::host::Host;
use crate::{Error, Folders, Result};

pub(crate) use class::class;
pub use handles::{Clip, Model, Vae};
pub(crate) use handles::{ClipKind, Lora};
pub(crate) use handles::{kind_of, patch_set};
pub(crate) use host::decode_values;
pub use kept::KeptPictures;
pub(crate) use loading::{Opened, Wanted};
pub use measuring::{Bandwidth, bandwidth, bandwidth_between};
pub(crate) use network::{Captioner, Network, Placing, Source};
pub use questions::{PlanQuestion, Role, SaidPlacing};
pub use stats::ModelStats;
pub(crate) use work::{CodedSize, EvaluationShape, Work};

/// The surroundings of all nodes of one server or command.
pub struct Studio {
    /// Where files are.
    pub folders: Folders,
    /// The machine's devices.
    pub devices: Registry,
    /// The memory for pictures, masks and latents.
    pub host: Host,
    /// Where models compute unless a node says otherwise.
    pub compute: DeviceId,
    /// Loaded models.
    pub residency: Arc<Residency>,
    /// What is said at start.
    pub settings: Settings,
    /// What is loaded, by what it was loaded from and how.
    loaded: Mutex<loading::LoadedModels>,
    stats: stats::StatsTable,
    /// What is known of the machine.
    profile: profiling::ProfileStore,
    /// What rehearsals told.
    footprints: Mutex<HashMap<planning::FootprintKey, Arc<footprint::Footprint>>>,
    /// Opened files, for as long as something uses them.
    files: Mutex<HashMap<PathBuf, OpenFile>>,
    /// Files that come with the program, by the paths they are offered under.
    embedded: HashMap<PathBuf, &'static [u8]>,
    /// Who gets saved pictures instead of the output folder.
    kept: Option<KeptPictures>,
}

/// The memory for values in a studio without a CPU, which only tests have.
const USUAL_HOST_BYTES: u64 = 1 << 30;

/// A file that was opened, and when it had last been changed then.
struct OpenFile {
    modified: Option<SystemTime>,
    file: Weak<Checkpoint>,
}

/// Settings that reach the nodes.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Saved pictures do not say how they were made.
    pub no_metadata: bool,
    /// Pixels along the longer side of a preview; 512 if it is not said.
    pub preview_size: Option<usize>,
    /// Whether steps send previews.
    pub preview: PreviewMethod,
    /// Where what is measured of the machine is kept between starts, if it is.
    pub profile_file: Option<PathBuf>,
}

/// How previews are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PreviewMethod {
    /// Not at all.
    #[default]
    None,
    /// By a linear map from latent values to colours.
    LatentToRgb,
}

impl Studio {
    /// A studio with nothing loaded.
    #[must_use]
    pub fn new(folders: Folders, devices: Registry, compute: DeviceId, settings: Settings) -> Studio {
        let residency = Arc::new(Residency::new(devices.clone()));
        let host = devices.get(DeviceId::CPU).map_or_else(|_| Host::with_budget(USUAL_HOST_BYTES), Host::new);
        Studio {
            folders,
            devices,
            host,
            compute,
            residency,
            loaded: Mutex::default(),
            stats: stats::StatsTable::default(),
            profile: profiling::ProfileStore::new(settings.profile_file.clone()),
            footprints: Mutex::default(),
            settings,
            files: Mutex::default(),
            embedded: HashMap::new(),
            kept: None,
        }
    }

    /// From now on, pictures that a workflow saves are kept in memory instead of the output folder.
    pub fn keep_pictures(&mut self) -> KeptPictures {
        self.kept.get_or_insert_default().clone()
    }

    /// Who gets saved pictures instead of the output folder, if anybody does.
    pub(crate) fn kept_pictures(&self) -> Option<&KeptPictures> {
        self.kept.as_ref()
    }

    /// Offers a file that comes with the program in the same way.
    pub fn offer_embedded(&mut self, key: &str, name: &str, bytes: &'static [u8]) {
        let path = Path::new("embedded").join(name);
        self.offer(key, name, &path);
        self.embedded.insert(path, bytes);
    }

    /// Offers a file under a folder's key (`diffusion_models`, `text_encoders`, `vae`, …) by a name of its
    /// own, as if it lay there; a file of that name in the folder wins.
    pub fn offer(&mut self, key: &str, name: &str, path: &Path) {
        self.folders.add_file(key, name, path);
    }

    /// The names under a folder's key, as loaders list them.
    #[must_use]
    pub fn names(&self, key: &str) -> Vec<String> {
        self.folders.list(key)
    }

    /// The file of a name under a folder's key.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&self, key: &str, name: &str) -> Result<PathBuf> {
        self.folders.find(key, name).ok_or_else(|| {
            Error::Told(format!("there is no file {name:?} in the folder {key}; it may have been moved"))
        })
    }

    /// Opens a file. A file that is in use is opened once, unless it has changed since.
    ///
    /// # Errors
    /// It cannot be read as a checkpoint.
    pub fn open_file(&self, path: &Path) -> Result<Arc<Checkpoint>> {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|_, open| open.file.strong_count() > 0);
        let now = modified(path);
        let known = files.get(path).filter(|open| open.modified == now).and_then(|open| open.file.upgrade());
        if let Some(file) = known.filter(|file| file.verify().is_ok()) {
            return Ok(file);
        }
        let file = Arc::new(match self.embedded.get(path) {
            Some(bytes) => Checkpoint::from_static(&path.to_string_lossy(), bytes)?,
            None => Checkpoint::open(path)?,
        });
        files.insert(path.to_owned(), OpenFile { modified: now, file: Arc::downgrade(&file) });
        Ok(file)
    }

    /// The names of the machine's devices, `cpu` first.
    #[must_use]
    pub fn device_names(&self) -> Vec<String> {
        let mut ids: Vec<DeviceId> = self.devices.iter().map(Device::id).collect();
        ids.sort_by_key(|id| (*id != DeviceId::CPU, *id));
        ids.iter().map(ToString::to_string).collect()
    }

    /// What steps took so far, by model.
    #[must_use]
    pub fn stats(&self) -> Vec<ModelStats> {
        self.stats.list()
    }
}

/// When a file was last changed, as far as the system says.
fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|about| about.modified()).ok()
}
