//! What nodes share: folders, devices, loaded models and settings.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use checkpoint::Checkpoint;
use device::{Device, Registry};
use meta::{DType, DeviceId};
use placement::CodingPolicy;
use residency::{FreeSpace, Products, Residency, SideCars};

use crate::host::Host;
use crate::upcoming::Upcoming;
use crate::{Error, Folders, KeptPictures, ModelStats, OutputStore, Result};
use crate::{footprint, loading, planning, profiling, stats, turns};

/// The surroundings of all nodes of one server or command.
pub struct Runtime {
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
    pub(crate) loaded: Mutex<loading::LoadedModels>,
    /// What was registered and is to be opened soon.
    pub(crate) upcoming: Upcoming,
    pub(crate) stats: stats::StatsTable,
    /// Who works with which device.
    pub(crate) turns: turns::Turns,
    /// What is known of the machine.
    pub(crate) profile: profiling::ProfileStore,
    /// What rehearsals told.
    pub(crate) footprints: Mutex<HashMap<planning::FootprintKey, Arc<footprint::Footprint>>>,
    /// What coding makes of the blocks of networks.
    pub(crate) coded_bytes: Mutex<HashMap<loading::Identity, Arc<[Option<u64>]>>>,
    /// Opened files, for as long as something uses them.
    files: Mutex<HashMap<PathBuf, OpenFile>>,
    /// Files that come with the program, by the paths they are offered under.
    embedded: HashMap<PathBuf, &'static [u8]>,
    /// Where files of workflows are instead of the folders.
    outputs: Option<Arc<dyn OutputStore>>,
}

/// The memory for values in a runtime without a CPU, which only tests have.
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
    /// The element type of activations, for networks that may have it; their own choice if it is not said.
    pub activations: Option<DType>,
    /// The devices of workers, if there are several: what one computes takes nothing of another's device unless the user
    /// names it.
    pub workers: Vec<DeviceId>,
    /// Which of the blocks that stream from host memory travel losslessly coded.
    pub coding: CodingPolicy,
    /// Which products of diffusion models are of 8 bits, where loaders say nothing else.
    pub products: Products,
    /// Where coded blocks are kept between starts, if they are.
    pub coded_cache: Option<CodedCache>,
}

/// A folder for coded blocks.
#[derive(Clone, Debug)]
pub struct CodedCache {
    /// The folder, which is made when there is something to keep.
    pub folder: PathBuf,
    /// The most bytes that it may have.
    pub limit_bytes: u64,
    /// Tells what is free of the disk that it is on.
    pub free_space: FreeSpace,
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

impl Runtime {
    /// A runtime with nothing loaded.
    #[must_use]
    pub fn new(folders: Folders, devices: Registry, compute: DeviceId, settings: Settings) -> Runtime {
        let residency = Residency::new(devices.clone());
        let residency = Arc::new(match settings.coded_cache.clone() {
            Some(CodedCache { folder, limit_bytes, free_space }) => {
                residency.keeping_coded(SideCars::new(folder, limit_bytes).leaving_free(free_space))
            }
            None => residency,
        });
        let host = devices.get(DeviceId::CPU).map_or_else(|_| Host::with_budget(USUAL_HOST_BYTES), Host::new);
        Runtime {
            folders,
            devices,
            host,
            compute,
            residency,
            loaded: Mutex::default(),
            upcoming: Upcoming::default(),
            stats: stats::StatsTable::default(),
            turns: turns::Turns::default(),
            profile: profiling::ProfileStore::new(settings.profile_file.clone()),
            footprints: Mutex::default(),
            coded_bytes: Mutex::default(),
            settings,
            files: Mutex::default(),
            embedded: HashMap::new(),
            outputs: None,
        }
    }

    /// From now on, what a workflow saves is kept in memory instead of the output folder.
    pub fn keep_pictures(&mut self) -> KeptPictures {
        let kept = KeptPictures::new(self.folders.clone());
        self.set_outputs(Arc::new(kept.clone()));
        kept
    }

    /// From now on, workflows save to and load from a store instead of the folders.
    pub fn set_outputs(&mut self, outputs: Arc<dyn OutputStore>) {
        self.outputs = Some(outputs);
    }

    /// Where workflows save their files and find those that they load.
    pub fn outputs(&self) -> &dyn OutputStore {
        self.outputs.as_deref().unwrap_or(&self.folders)
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

    /// Which products of a diffusion model are of 8 bits, whose loader asks for them or does not.
    #[must_use]
    pub fn products(&self, asked: bool) -> Products {
        match self.settings.products {
            Products::ByFile if asked => Products::EightBits,
            said => said,
        }
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

    /// The same with what the steps of jobs took that ran before or run beside the last one of a model.
    #[must_use]
    pub fn stats_by_job(&self) -> Vec<ModelStats> {
        self.stats.list_by_job()
    }

    /// Bytes of models whose copies are made in a second, as it was lately; none before the first.
    #[must_use]
    pub fn load_bytes_per_s(&self) -> Option<f64> {
        self.stats.load_bytes_per_s()
    }
}

/// When a file was last changed, as far as the system says.
pub(crate) fn modified(path: &Path) -> Option<SystemTime> {
    std::fs::metadata(path).and_then(|about| about.modified()).ok()
}
