//! What others may know of a worker, and ask of it: values in, values out, so that it may be on another machine.

use std::path::PathBuf;
use std::sync::Arc;

use device::{Device, LedgerReport, MemoryInfo};
use meta::{DType, DeviceId};
use placement::{Plan, PlanError};
use residency::{ModelId, ModelReport, Retention, Snapshot, StreamStats};
use runtime::{ModelStats, PlanQuestion, Runtime, SaidPlacing};

/// A worker, from outside.
pub trait WorkerHandle: Send + Sync {
    /// What it has, as it is now.
    fn report(&self) -> WorkerReport;

    /// What its models did until now. Asked at the start and the end of every job, so it asks no device.
    fn activity(&self) -> Activity;

    /// Its memory over time: the snapshots with higher numbers, or all it has.
    fn snapshots(&self, after: Option<u64>) -> Vec<Snapshot>;

    /// Says whether a model stays; the model after it.
    ///
    /// # Errors
    /// It is not loaded.
    fn set_retention(&self, id: ModelId, retention: Retention) -> Result<ModelReport, WorkerFault>;

    /// Lets a model go and gives its memory back.
    ///
    /// # Errors
    /// It is not loaded, or a device fails.
    fn unload(&self, id: ModelId) -> Result<(), WorkerFault>;

    /// The model files that it finds, by kind of folder.
    fn model_files(&self, keys: &[&str]) -> Vec<ModelFolder>;

    /// Where every block of a file would go, as the job that loads it next will have it.
    ///
    /// # Errors
    /// There is no such file, or no plan for it.
    fn plan(&self, question: &FileQuestion) -> Result<Plan, PlanRefusal>;
}

/// What a worker has.
#[derive(Clone, Debug)]
pub struct WorkerReport {
    /// Where models compute unless a node says otherwise.
    pub compute: DeviceId,
    /// The devices of the workers that share all this; one that is alone has all devices.
    pub workers: Vec<DeviceId>,
    /// Its devices.
    pub devices: Vec<DeviceReport>,
    /// Its loaded models, by id.
    pub models: Vec<ModelReport>,
    /// What evaluations of its models took.
    pub runs: Vec<ModelStats>,
    /// How often a kept model was missing after a free request. It should be 0.
    pub kept_models_missing: u64,
}

/// What a worker's models did until now.
#[derive(Clone, Debug, Default)]
pub struct Activity {
    /// What streaming did, by model and where that computes, since its copies were made.
    pub streams: Vec<(ModelId, DeviceId, StreamStats)>,
    /// What evaluations took, by model and job.
    pub runs: Vec<ModelStats>,
}

/// What is known of a device.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Which.
    pub id: DeviceId,
    /// Its model name.
    pub name: String,
    /// More about it.
    pub detail: String,
    /// Whether this is a simulation.
    pub simulated: bool,
    /// Element types that activations may have, the preferred one first.
    pub activations: Vec<DType>,
    /// Its memory as it counts it, or why it does not answer.
    pub memory: Result<MemoryInfo, String>,
    /// What is used and promised of its budget.
    pub ledger: LedgerReport,
}

impl DeviceReport {
    /// What is known of a device of this machine.
    #[must_use]
    pub fn of(device: &Device) -> DeviceReport {
        let description = device.description();
        DeviceReport {
            id: device.id(),
            name: description.name.clone(),
            detail: description.detail.clone(),
            simulated: description.simulated,
            activations: description.activations.to_vec(),
            memory: device.memory().map_err(|error| error.to_string()),
            ledger: device.ledger().report(),
        }
    }
}

/// One kind of model files.
#[derive(Clone, Debug)]
pub struct ModelFolder {
    /// The name of the kind, such as `diffusion_models`.
    pub key: String,
    /// Where such files belong.
    pub places: Vec<PathBuf>,
    /// Those that are there.
    pub files: Vec<ModelFile>,
}

/// One model file.
#[derive(Clone, Debug)]
pub struct ModelFile {
    /// Its name, as loaders list it.
    pub name: String,
    /// Its bytes; none for a file that comes with the program.
    pub bytes: Option<u64>,
}

/// What is asked of a model file.
#[derive(Clone, Debug, Default)]
pub struct FileQuestion {
    /// The file's name, as loaders list it.
    pub file: String,
    /// The kind of model folder it is in; all of them are searched without it.
    pub folder: Option<String>,
    /// In the allocation language.
    pub alloc: Option<String>,
    /// Gigabytes to move off the compute device.
    pub virtual_vram_gb: Option<f64>,
    /// Where they go.
    pub donor: Option<String>,
    /// Where the model computes.
    pub compute: Option<DeviceId>,
    /// The size of a picture in pixels, such as `1024x768`; `1024x1024` without it.
    pub size: Option<String>,
    /// Frames of a video; one without it.
    pub frames: Option<usize>,
    /// Pictures at once; one without it.
    pub batch: Option<usize>,
    /// Whether every step evaluates two conditionings, as guidance does.
    pub cfg: bool,
}

/// Why something was not done.
#[derive(Clone, Debug, thiserror::Error)]
pub enum WorkerFault {
    /// The model is not loaded.
    #[error("model {id} is not loaded")]
    NoModel {
        /// Which.
        id: ModelId,
    },
    /// A device failed.
    #[error("{0}")]
    Device(String),
}

/// Why a question has no plan.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PlanRefusal {
    /// No model folder has the file.
    #[error("no model folder has a file {0:?}")]
    NoFile(String),
    /// The planner refused it.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The size is none.
    #[error("the size {0:?} is none; write width and height, such as 1024x768")]
    Size(String),
    /// The file cannot be read, or nothing in it can run.
    #[error("{0}")]
    File(String),
}

impl From<runtime::Error> for PlanRefusal {
    fn from(error: runtime::Error) -> PlanRefusal {
        match error {
            runtime::Error::Plan(error) => error.into(),
            other => PlanRefusal::File(other.to_string()),
        }
    }
}

/// The worker of this process.
pub struct LocalWorker {
    runtime: Arc<Runtime>,
}

impl LocalWorker {
    /// The worker that has a runtime.
    #[must_use]
    pub fn new(runtime: Arc<Runtime>) -> LocalWorker {
        LocalWorker { runtime }
    }

    /// The file, if it is in one of the model folders: a path from outside never is.
    fn find(&self, question: &FileQuestion) -> Option<PathBuf> {
        let folders = &self.runtime.folders;
        match &question.folder {
            Some(folder) => folders.find(folder, &question.file),
            None => folders.keys().find_map(|key| folders.find(key, &question.file)),
        }
    }
}

impl WorkerHandle for LocalWorker {
    fn report(&self) -> WorkerReport {
        let runtime = &self.runtime;
        WorkerReport {
            compute: runtime.compute,
            workers: match runtime.settings.workers.as_slice() {
                [] => vec![runtime.compute],
                workers => workers.to_vec(),
            },
            devices: runtime.devices.iter().map(DeviceReport::of).collect(),
            models: runtime.residency.models(),
            runs: runtime.stats(),
            kept_models_missing: runtime.residency.missing_kept(),
        }
    }

    fn activity(&self) -> Activity {
        Activity { streams: streams(&self.runtime.residency.models()), runs: self.runtime.stats_by_job() }
    }

    fn snapshots(&self, after: Option<u64>) -> Vec<Snapshot> {
        let mut latest = self.runtime.residency.snapshots().latest();
        latest.retain(|snapshot| after.is_none_or(|after| snapshot.number > after));
        latest
    }

    fn set_retention(&self, id: ModelId, retention: Retention) -> Result<ModelReport, WorkerFault> {
        let no_model = WorkerFault::NoModel { id };
        let residency = &self.runtime.residency;
        residency.set_retention(id, retention).map_err(|_| no_model.clone())?;
        residency.models().into_iter().find(|model| model.id == id).ok_or(no_model)
    }

    fn unload(&self, id: ModelId) -> Result<(), WorkerFault> {
        self.runtime.residency.unload(id).map_err(|_| WorkerFault::NoModel { id })?;
        // What the model had is of use to others only when it is really given back.
        self.runtime.devices.trim().map_err(|error| WorkerFault::Device(error.to_string()))
    }

    fn model_files(&self, keys: &[&str]) -> Vec<ModelFolder> {
        let folders = &self.runtime.folders;
        let bytes = |key: &str, name: &str| {
            let about = folders.find(key, name).and_then(|path| std::fs::metadata(path).ok());
            about.map(|about| about.len())
        };
        let folder = |key: &&str| ModelFolder {
            key: (*key).to_owned(),
            places: folders.places(key).to_vec(),
            files: folders
                .listing(key)
                .iter()
                .map(|name| ModelFile { name: name.clone(), bytes: bytes(key, name) })
                .collect(),
        };
        keys.iter().map(folder).collect()
    }

    fn plan(&self, question: &FileQuestion) -> Result<Plan, PlanRefusal> {
        let runtime = &self.runtime;
        let path = self.find(question).ok_or_else(|| PlanRefusal::NoFile(question.file.clone()))?;
        let file = runtime.open_file(&path)?;
        let said = SaidPlacing {
            alloc: question.alloc.as_deref(),
            virtual_vram_gb: question.virtual_vram_gb,
            donor: question.donor.as_deref(),
            compute: question.compute,
        };
        let asked = PlanQuestion {
            part: None,
            compute: question.compute,
            allocation: runtime.allocation_of(said)?,
            size: question.size.as_deref().map_or(Ok((1024, 1024)), picture_size)?,
            batch: question.batch.unwrap_or(1),
            frames: question.frames.unwrap_or(1),
            cfg: question.cfg,
            ..PlanQuestion::default()
        };
        Ok(runtime.plan_file(&file, &asked)?)
    }
}

fn streams(models: &[ModelReport]) -> Vec<(ModelId, DeviceId, StreamStats)> {
    models.iter().map(|model| (model.id, model.plan.compute, model.stats)).collect()
}

/// `1024x768`: width and height in pixels.
fn picture_size(text: &str) -> Result<(usize, usize), PlanRefusal> {
    let sides = text
        .split_once(['x', 'X'])
        .and_then(|(width, height)| Some((width.trim().parse().ok()?, height.trim().parse().ok()?)));
    sides.ok_or_else(|| PlanRefusal::Size(text.to_owned()))
}
