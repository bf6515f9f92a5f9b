//! What is known of jobs and workers, as the numbers by which a worker chooses.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::{Duration, Instant};

use graph::Literal;

use crate::affinity::{HORIZON, ModelNumber, Scene, Seat, Waiting};
use crate::connection::WORKER_LIFE;
use crate::registry::{Holdings, WorkerEntry, bare};
use crate::state::{Known, Mirror, Phase, worker_of};

/// How long jobs are thought to compute before one has ended.
const UNKNOWN_S: f64 = 1.0;
/// How fast workers are thought to load that have not said it.
const UNKNOWN_BYTES_PER_S: f64 = 1e9;

/// Workers that said something lately.
#[derive(Default)]
pub(crate) struct Workers {
    entries: BTreeMap<String, Entry>,
    /// Bytes of all model files that somebody has.
    sizes: HashMap<String, u64>,
}

struct Entry {
    said: WorkerEntry,
    heard: Instant,
    files: HashSet<String>,
}

impl Workers {
    pub(crate) fn note(&mut self, said: WorkerEntry) {
        let files = said.model_files().map(|(name, _)| name.to_owned()).collect();
        for (name, bytes) in said.model_files() {
            // What comes with the program has no size, and others may have it as a file.
            let known = self.sizes.entry(name.to_owned()).or_default();
            *known = bytes.max(*known);
        }
        self.entries.insert(said.name.clone(), Entry { said, heard: Instant::now(), files });
    }

    pub(crate) fn forget(&mut self, name: &str) {
        self.entries.remove(name);
    }

    fn living(&self) -> impl Iterator<Item = &Entry> {
        self.entries.values().filter(|entry| entry.heard.elapsed() < WORKER_LIFE)
    }

    /// The model files that a prompt names, sorted.
    pub(crate) fn models_of(&self, prompt: &graph::Prompt) -> Vec<String> {
        if self.sizes.is_empty() {
            return Vec::new();
        }
        let inputs = prompt.nodes.values().filter_map(|node| node.inputs.as_ref());
        let texts = inputs.flat_map(|inputs| inputs.values()).filter_map(Literal::as_text).map(bare);
        let mut models: Vec<String> =
            texts.filter(|text| self.sizes.contains_key(*text)).map(str::to_owned).collect();
        models.sort();
        models.dedup();
        models
    }
}

/// Who looks for a job, if it is a worker that said something.
pub(crate) struct Viewer<'a> {
    pub(crate) name: &'a str,
    pub(crate) holdings: Holdings,
}

/// A scene, and whose place is whose in it.
pub(crate) struct View {
    pub(crate) scene: Scene,
    /// Ids of the jobs.
    pub(crate) ids: Vec<String>,
    /// The seat of who looks.
    pub(crate) own: Option<usize>,
}

/// Numbers of models.
#[derive(Default)]
struct Numbers<'a> {
    by_name: HashMap<&'a str, ModelNumber>,
    sizes: Vec<u64>,
}

impl<'a> Numbers<'a> {
    fn of(&mut self, name: &'a str, workers: &Workers) -> ModelNumber {
        let next = self.sizes.len();
        let number = *self.by_name.entry(name).or_insert(next);
        if number == next {
            self.sizes.push(workers.sizes.get(name).copied().unwrap_or(0));
        }
        number
    }

    fn of_all(&mut self, names: impl IntoIterator<Item = &'a String>, workers: &Workers) -> Vec<ModelNumber> {
        names.into_iter().map(|name| self.of(name, workers)).collect()
    }
}

/// What a scene is made of.
struct Builder<'a> {
    mirror: &'a Mirror,
    workers: &'a Workers,
    numbers: Numbers<'a>,
}

impl View {
    /// What a worker sees.
    pub(crate) fn of(mirror: &Mirror, workers: &Workers, viewer: &Viewer<'_>, grace: Duration) -> View {
        Builder { mirror, workers, numbers: Numbers::default() }.view(Some(viewer), None, grace)
    }
}

impl<'a> Builder<'a> {
    /// The scene, with a job behind all others if there is a newcomer.
    fn view(
        mut self,
        viewer: Option<&'a Viewer<'_>>,
        newcomer: Option<&'a [String]>,
        grace: Duration,
    ) -> View {
        let waiting: Vec<&Known> = self.mirror.waiting().take(HORIZON).collect();
        let mut jobs: Vec<Waiting> = waiting.iter().map(|known| self.job(known)).collect();
        let newcomer = newcomer.map(|models| Waiting {
            models: self.numbers.of_all(models, self.workers),
            seconds: self.seconds(models),
            ..Waiting::default()
        });
        jobs.extend(newcomer);
        let ids = waiting.iter().map(|known| known.job.prompt_id.clone()).collect();
        let (mut seats, mut own) = (Vec::new(), None);
        for entry in self.workers.living() {
            let viewer = viewer.filter(|viewer| viewer.name == entry.said.name);
            if entry.said.is_draining && viewer.is_none() {
                continue;
            }
            if viewer.is_some() {
                own = Some(seats.len());
            }
            self.add_seats(entry, viewer, &mut seats);
        }
        let scene = Scene { sizes: self.numbers.sizes, seats, jobs, grace_s: grace.as_secs_f64() };
        View { scene, ids, own }
    }

    fn job(&mut self, known: &'a Known) -> Waiting {
        Waiting {
            models: self.numbers.of_all(&known.state.models, self.workers),
            age_s: known.came.elapsed().as_secs_f64(),
            promise_s: known.state.first_come_s.unwrap_or(f64::INFINITY),
            seconds: self.seconds(&known.state.models),
        }
    }

    fn seconds(&self, models: &[String]) -> f64 {
        self.mirror.seconds_of(models).unwrap_or(UNKNOWN_S)
    }

    /// One seat for each job that a worker runs at the same time.
    fn add_seats(&mut self, entry: &'a Entry, viewer: Option<&'a Viewer<'_>>, seats: &mut Vec<Seat>) {
        let (said, workers) = (&entry.said, self.workers);
        let running: Vec<&'a Known> =
            self.mirror.claimed().filter(|known| is_of(known, &said.name)).collect();
        let holdings = viewer.map(|viewer| &viewer.holdings);
        let held = holdings.map_or(&said.models, |holdings| &holdings.models);
        let rate = holdings.map_or(said.load_bytes_per_s, |holdings| holdings.load_bytes_per_s);
        let mut seat = Seat {
            held: self.numbers.of_all(held, workers),
            lacking: Vec::new(),
            free_in_s: 0.0,
            load_bytes_per_s: if rate > 0.0 { rate } else { UNKNOWN_BYTES_PER_S },
            capacity_bytes: said.capacity_bytes,
        };
        // It has not said yet what its latest job loaded.
        if viewer.is_none() {
            let loaded = self.mirror.loaded_since(&said.name, entry.heard);
            let models = self.numbers.of_all(loaded, workers);
            seat.hold(&models, &self.numbers.sizes);
        }
        for known in &running {
            let models = self.numbers.of_all(&known.state.models, workers);
            seat.hold(&models, &self.numbers.sizes);
        }
        let lacking = self.numbers.by_name.iter().filter(|(name, _)| !entry.files.contains(**name));
        seat.lacking = lacking.map(|(_, number)| *number).collect();
        let mut left: Vec<f64> =
            running.iter().map(|known| left_s(known, self.seconds(&known.state.models))).collect();
        left.resize(said.seats.max(left.len()).max(1), 0.0);
        left.sort_by(f64::total_cmp);
        // The one that looks is free now, whatever the copy says.
        if let Some(first) = left.first_mut().filter(|_| viewer.is_some()) {
            *first = 0.0;
        }
        let free = left.into_iter().take(said.seats.max(1));
        seats.extend(free.map(|free_in_s| Seat { free_in_s, ..seat.clone() }));
    }
}

/// How long a job will wait that comes now, behind all others, first come, first served.
pub(crate) fn first_come_s(mirror: &Mirror, workers: &Workers, models: &[String]) -> Option<f64> {
    let builder = Builder { mirror, workers, numbers: Numbers::default() };
    let view = builder.view(None, Some(models), Duration::ZERO);
    let (ahead, seen) = (mirror.waiting_len(), view.ids.len());
    let wait_s = view.scene.first_come_s().last().copied().filter(|wait_s| wait_s.is_finite())?;
    // What is beyond the horizon takes as long as what is before it.
    Some(if ahead > seen && seen > 0 { wait_s * ahead as f64 / seen as f64 } else { wait_s })
}

/// Whether a worker has a job.
fn is_of(known: &Known, worker: &str) -> bool {
    let name = known.state.worker.as_deref().unwrap_or_default();
    known.state.phase == Phase::Claimed && worker_of(name) == worker
}

/// How long a job that runs will go on.
fn left_s(known: &Known, seconds: f64) -> f64 {
    let load_s = known.state.dispatch.as_ref().map_or(0.0, |dispatch| dispatch.load_s);
    (seconds + load_s - known.seen.elapsed().as_secs_f64()).max(0.0)
}
