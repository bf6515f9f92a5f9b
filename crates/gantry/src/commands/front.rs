//! `gantry serve --queue`: a server whose jobs run on other machines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use cluster::{NatsStore, SharedFiles, WorkerEntry};
use engine::{EngineConfig, EventSink};
use meta::DeviceId;
use runtime::{Folders, Runtime, Settings};
use server::ServerConfig;

use crate::machine::Machine;
use crate::serving;

/// Between two looks at who works.
const LOOK: Duration = Duration::from_secs(2);

/// What a front has that a server of one machine has not.
pub(super) struct Front {
    store: Arc<NatsStore>,
    files: Arc<SharedFiles>,
}

impl Front {
    pub(super) fn new(store: Arc<NatsStore>, folders: &Folders) -> Front {
        let files = SharedFiles::new(Arc::clone(&store), folders.clone(), None);
        Front { store, files: Arc::new(files) }
    }

    /// A runtime whose files are those that all machines share.
    pub(super) fn runtime(
        &self,
        machine: &Machine,
        folders: Folders,
        compute: Option<DeviceId>,
        settings: Settings,
    ) -> Result<Arc<Runtime>> {
        let mut runtime = serving::open_runtime(machine, folders, compute, settings)?;
        runtime.set_outputs(Arc::clone(&self.files) as _);
        Ok(Arc::new(runtime))
    }

    /// Jobs, files and workers are those of the queue.
    pub(super) fn join(&self, config: &mut ServerConfig, engine: &mut EngineConfig) {
        Arc::make_mut(&mut config.files).exchange = Some(Arc::clone(&self.files) as _);
        let store = Arc::clone(&self.store);
        config.workers = Some(Arc::new(move || {
            let workers = store.workers().map_err(|error| error.to_string())?;
            let told = workers.into_iter().map(|worker| WorkerEntry { files: BTreeMap::new(), ..worker });
            serde_json::to_value(told.collect::<Vec<_>>()).map_err(|error| error.to_string())
        }));
        engine.store = Some(Arc::clone(&self.store) as _);
        engine.remote = Some(Arc::clone(&self.store) as _);
    }

    /// Tells clients what workers tell, and lists what they have, from now on.
    pub(super) fn follow(&self, sink: &Arc<dyn EventSink>, folders: Folders) -> Result<()> {
        let (store, sink) = (Arc::clone(&self.store), Arc::clone(sink));
        // On a thread of its own: who asks the queue waits for it.
        let look = move || {
            if let Err(error) = store.relay(sink) {
                tracing::error!("clients are told nothing of what workers do: {error}");
            }
            let mut known = BTreeSet::new();
            loop {
                match store.workers() {
                    Ok(workers) => note_workers(&workers, &mut known, &folders),
                    Err(error) => tracing::warn!("{error}"),
                }
                std::thread::sleep(LOOK);
            }
        };
        std::thread::Builder::new().name("workers".to_owned()).spawn(look)?;
        Ok(())
    }
}

/// Lists the union of the files that workers have, and tells who came and who went.
fn note_workers(workers: &[WorkerEntry], known: &mut BTreeSet<String>, folders: &Folders) {
    let mut files: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (key, names) in workers.iter().flat_map(|worker| &worker.files) {
        files.entry(key.clone()).or_default().extend(names.keys().cloned());
    }
    folders.set_elsewhere(files.into_iter().map(|(key, names)| (key, names.into_iter().collect())).collect());
    let here: BTreeSet<String> = workers.iter().map(|worker| worker.name.clone()).collect();
    for name in here.difference(known) {
        tracing::info!("worker {name} is there");
    }
    for name in known.difference(&here) {
        tracing::info!("worker {name} is gone");
    }
    *known = here;
}
