//! Who works: every worker says what it has and does, every few seconds; who says nothing is forgotten.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::store::NatsStore;

/// The largest entry. What lists of files take beyond it is left out.
const LARGEST: usize = 900_000;
/// How long the list of all workers may take.
const LIST_PATIENCE: Duration = Duration::from_secs(10);
/// What is asked of the queue for that list.
const TELL_WORKERS: &str = "tell its workers";

/// What a worker has and does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerEntry {
    /// Its name.
    pub name: String,
    /// Whose jobs it takes.
    pub pool: String,
    /// Its version.
    pub version: String,
    /// How many node classes it has.
    pub classes: usize,
    /// Its devices.
    pub devices: Vec<WorkerDevice>,
    /// The models that it holds, by their files' names.
    pub models: Vec<String>,
    /// The jobs that it runs.
    pub running: Vec<String>,
    /// Jobs that it has ended.
    pub jobs_done: u64,
    /// What one of them took, on average; 0 before the first.
    pub seconds_per_job: f64,
    /// Whether it ends after its job.
    pub is_draining: bool,
    /// When it began, in milliseconds since 1970 by its clock.
    pub since_ms: u64,
    /// Bytes of models that it loads in a second.
    pub load_bytes_per_s: f64,
    /// Bytes of models that it can hold.
    pub capacity_bytes: u64,
    /// How many jobs it runs at the same time.
    pub seats: usize,
    /// The model files that it can load with their bytes, by kind of folder.
    pub files: BTreeMap<String, BTreeMap<String, u64>>,
}

/// What a worker holds at the moment in which it looks for a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Holdings {
    /// The models, by their files' names.
    pub models: Vec<String>,
    /// Bytes of models that it loads in a second.
    pub load_bytes_per_s: f64,
}

/// Kinds of files that no model is made of, or that are small beside one.
const NO_MODELS: &[&str] = &["loras", "embeddings", "configs", "vae_approx", "hypernetworks"];

impl WorkerEntry {
    /// The files of models, less their folders, with their bytes.
    pub(crate) fn model_files(&self) -> impl Iterator<Item = (&str, u64)> {
        let kinds = self.files.iter().filter(|(kind, _)| !NO_MODELS.contains(&kind.as_str()));
        kinds.flat_map(|(_, files)| files.iter().map(|(name, bytes)| (bare(name), *bytes)))
    }
}

/// A file's name less its folders, as loaded models are called.
pub(crate) fn bare(name: &str) -> &str {
    name.rsplit(['/', '\\']).next().unwrap_or(name)
}

/// A device of a worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WorkerDevice {
    /// Its id.
    pub id: String,
    /// Its model name.
    pub name: String,
    /// Its memory.
    pub total_bytes: u64,
    /// What is free of it.
    pub free_bytes: u64,
}

impl NatsStore {
    /// Says what a worker has and does.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn announce(&self, entry: &WorkerEntry) -> Result<(), Error> {
        let failed = |why: String| Error::Request { what: "take what a worker says of itself", why };
        let mut bytes = serde_json::to_vec(entry).map_err(|error| failed(error.to_string()))?;
        if bytes.len() > LARGEST {
            tracing::warn!(
                "the names of the model files are too many to be told: fronts list their own only"
            );
            let short = WorkerEntry { files: BTreeMap::new(), ..entry.clone() };
            bytes = serde_json::to_vec(&short).map_err(|error| failed(error.to_string()))?;
        }
        *self.own() = Some(entry.name.clone());
        self.shared.workers().note(entry.clone());
        let put = self.connection.workers.put(format!("worker.{}", entry.name), bytes.into());
        self.threads.block_on(put).map_err(|error| failed(error.to_string()))?;
        Ok(())
    }

    /// Asks what this worker holds whenever it looks for a job, from now on.
    pub fn set_holdings(&self, ask: impl Fn() -> Holdings + Send + Sync + 'static) {
        *self.holdings.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(ask));
    }

    /// Says that a worker is gone.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn withdraw(&self, name: &str) -> Result<(), Error> {
        let gone = self.connection.workers.delete(format!("worker.{name}"));
        self.threads.block_on(gone).map_err(|error| Error::request("forget a worker", error))
    }

    /// The workers that said something lately, by name.
    ///
    /// # Errors
    /// The server does not answer.
    pub fn workers(&self) -> Result<Vec<WorkerEntry>, Error> {
        let told = async { tokio::time::timeout(LIST_PATIENCE, self.read_workers()).await };
        // A server that goes away in the middle of a list never says that it ends.
        self.threads.block_on(told).unwrap_or_else(|_| {
            let why = format!("no answer in {} s", LIST_PATIENCE.as_secs());
            Err(Error::Request { what: TELL_WORKERS, why })
        })
    }

    async fn read_workers(&self) -> Result<Vec<WorkerEntry>, Error> {
        let failed = |why: String| Error::Request { what: TELL_WORKERS, why };
        let mut keys = self.connection.workers.keys().await.map_err(|error| failed(error.to_string()))?;
        let mut workers = Vec::new();
        while let Some(key) = keys.next().await {
            let key = key.map_err(|error| failed(error.to_string()))?;
            let found = self.connection.workers.get(key).await.map_err(|error| failed(error.to_string()))?;
            workers.extend(found.and_then(|bytes| serde_json::from_slice::<WorkerEntry>(&bytes).ok()));
        }
        workers.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(workers)
    }
}
