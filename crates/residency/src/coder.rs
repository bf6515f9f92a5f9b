//! Coding beside steps: the load does not wait for it, and neither does a step. A thread codes one block after the other
//! with the host's spare processors; when all are coded, the next step takes them.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use checkpoint::EntryBytes;
use device::{Buffer, Cancel, Device, Registry, Reservation, Stream, StreamKind};
use meta::DeviceId;
use placement::Plan;

use crate::coding::CodedBlock;
use crate::host::HostBlock;
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::needs::HostSource;
use crate::patching::Reserved;
use crate::ring::Source;
use crate::{Error, Result};

/// How a model's blocks are kept that its plan wants coded.
#[derive(Clone, Debug, PartialEq)]
pub struct CodingReport {
    /// Which of the three it is.
    pub state: CodingState,
    /// Blocks that are coded by now.
    pub done: usize,
    /// Blocks that the plan wants coded.
    pub blocks: usize,
    /// How long coding took, or has taken so far.
    pub seconds: f64,
    /// Why they stay plain, if they do.
    pub reason: Option<String>,
}

/// How steps run that are to run with coded blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodingState {
    /// Plain, because coding failed.
    Plain,
    /// Plain while coding goes on, and until the next step begins.
    Coding,
    /// With coded blocks.
    Coded,
}

impl CodingState {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            CodingState::Plain => "plain",
            CodingState::Coding => "coding",
            CodingState::Coded => "coded",
        }
    }
}

/// When blocks are coded that a plan wants coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodingTime {
    /// Before the first step, which the load waits for.
    #[default]
    First,
    /// While steps run plain.
    Beside,
}

/// A block that is to be coded.
pub(crate) struct Task {
    /// Its position among the blocks of the ring.
    pub(crate) position: usize,
    pub(crate) specs: Vec<WeightSpec>,
    pub(crate) layout: BlockLayout,
    /// The bytes that it was planned to have.
    pub(crate) bytes: usize,
    /// Whether it stays on the device that computes.
    pub(crate) stays: bool,
}

/// Where coded blocks go, and what was promised for them there.
pub(crate) struct Homes {
    pub(crate) host: Device,
    pub(crate) compute: Device,
    pub(crate) on_host: Option<Reservation>,
    pub(crate) on_compute: Option<Reservation>,
}

/// What was promised for blocks that are coded later, and what is not needed any more then.
pub(crate) struct Late {
    on_host: Option<Reservation>,
    on_compute: Option<Reservation>,
}

impl Late {
    /// Sets the bytes of a plan's coded blocks apart from those that are reserved; none if it has no such blocks, or if the
    /// host has no room for what they travel from until then, where that is no file.
    pub(crate) fn promised(
        (manifest, plan): (&Manifest, &Plan),
        (devices, source): (&Registry, HostSource),
        reserved: &mut Reserved,
    ) -> Result<Option<Late>> {
        let (mut on_host, mut on_compute, mut packed) = (0, 0, 0);
        let compute = devices.get(plan.compute)?;
        for (index, block) in plan.blocks.iter().enumerate() {
            let Some(coded) = block.coded_bytes else { continue };
            match block.is_kept_coded() {
                true => on_compute += compute.allocation_bytes(coded as usize),
                false => on_host += coded,
            }
            if source == HostSource::Copy || manifest.is_cast(index) {
                packed += BlockLayout::new(manifest, index).len() as u64;
            }
        }
        if on_host + on_compute == 0 {
            return Ok(None);
        }
        let ledger = devices.get(DeviceId::CPU)?.ledger();
        let mut part = |device: DeviceId, bytes: u64| reserved.get_mut(&device).map(|all| all.split(bytes));
        if packed == 0 {
            let (on_host, on_compute) = (part(DeviceId::CPU, on_host), part(compute.id(), on_compute));
            return Ok(Some(Late { on_host, on_compute }));
        }
        let Ok(packed) = ledger.reserve(packed) else { return Ok(None) };
        let (on_host, on_compute) = (part(DeviceId::CPU, on_host), part(compute.id(), on_compute));
        match reserved.get_mut(&DeviceId::CPU) {
            Some(all) => all.join(packed),
            None => drop(reserved.insert(DeviceId::CPU, packed)),
        }
        Ok(Some(Late { on_host, on_compute }))
    }

    pub(crate) fn homes(self, host: Device, compute: Device) -> Homes {
        Homes { host, compute, on_host: self.on_host, on_compute: self.on_compute }
    }
}

/// The thread that codes. It ends with this.
pub(crate) struct Coder {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    blocks: usize,
    progress: Mutex<Progress>,
    changed: Condvar,
    /// The copies of the model go, and nobody wants coded ones any more.
    gone: Cancel,
}

struct Progress {
    done: usize,
    began: Instant,
    seconds: Option<f64>,
    /// The job for which steps run: while it is cancelled, its user wants the machine quiet.
    job: Cancel,
    outcome: Outcome,
    /// What the ring does not need any more.
    left: Vec<Source>,
}

enum Outcome {
    Coding,
    /// They wait for a step to begin.
    Ready(Vec<(usize, Source)>),
    /// Steps run with them.
    Taken,
    Failed(String),
}

/// How often the thread looks whether a cancelled job has been followed by another.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

impl Coder {
    /// Starts coding.
    pub(crate) fn start(tasks: Vec<Task>, homes: Homes, job: &Cancel) -> Coder {
        let progress = Progress {
            done: 0,
            began: Instant::now(),
            seconds: None,
            job: job.clone(),
            outcome: Outcome::Coding,
            left: Vec::new(),
        };
        let shared = Arc::new(Shared {
            blocks: tasks.len(),
            progress: Mutex::new(progress),
            changed: Condvar::new(),
            gone: Cancel::default(),
        });
        let own = Arc::clone(&shared);
        let thread = Builder::new().name("coder".into()).spawn(move || own.work(tasks, homes));
        if let Err(error) = &thread {
            shared.lock().outcome = Outcome::Failed(format!("there is no thread for it: {error}"));
        }
        Coder { shared, thread: thread.ok() }
    }

    /// A session of another job begins.
    pub(crate) fn begin_session(&self, job: &Cancel) {
        self.shared.lock().job = job.clone();
        self.shared.changed.notify_all();
    }

    /// The coded blocks by their positions, once all are coded and if nobody has taken them.
    pub(crate) fn take(&self) -> Option<Vec<(usize, Source)>> {
        let mut progress = self.shared.lock();
        match std::mem::replace(&mut progress.outcome, Outcome::Taken) {
            Outcome::Ready(coded) => Some(coded),
            other => {
                progress.outcome = other;
                None
            }
        }
    }

    /// Takes what the coded blocks are instead of, to let it go where no step waits for that.
    pub(crate) fn let_go(&self, left: Vec<Source>) {
        self.shared.lock().left = left;
        self.shared.changed.notify_all();
    }

    /// Steps stay as they are.
    pub(crate) fn give_up(&self, reason: String) {
        self.shared.lock().outcome = Outcome::Failed(reason);
        self.shared.changed.notify_all();
    }

    pub(crate) fn report(&self) -> CodingReport {
        let progress = self.shared.lock();
        let (state, reason) = match &progress.outcome {
            Outcome::Coding | Outcome::Ready(_) => (CodingState::Coding, None),
            Outcome::Taken => (CodingState::Coded, None),
            Outcome::Failed(reason) => (CodingState::Plain, Some(reason.clone())),
        };
        let seconds = progress.seconds.unwrap_or_else(|| progress.began.elapsed().as_secs_f64());
        CodingReport { state, done: progress.done, blocks: self.shared.blocks, seconds, reason }
    }
}

impl Drop for Coder {
    fn drop(&mut self) {
        self.shared.gone.cancel();
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of its own has left its work undone, which nobody wants any more.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self, tasks: Vec<Task>, homes: Homes) {
        let host = homes.host.clone();
        let coded = self.code(&tasks, homes);
        let mut progress = self.lock();
        progress.seconds = Some(progress.began.elapsed().as_secs_f64());
        progress.outcome = match coded {
            Ok(coded) => Outcome::Ready(coded),
            Err(error) => Outcome::Failed(error.to_string()),
        };
        let left = loop {
            if self.gone.is_cancelled() || matches!(progress.outcome, Outcome::Failed(_)) {
                return;
            }
            if matches!(progress.outcome, Outcome::Taken) {
                break std::mem::take(&mut progress.left);
            }
            progress = self.changed.wait(progress).unwrap_or_else(PoisonError::into_inner);
        };
        drop(progress);
        drop((left, tasks));
        // What casting and coding took for a moment goes back to the system, too. A host that cannot give back keeps it.
        let _ = host.trim();
    }

    /// Codes the blocks, each into memory that another thread gets meanwhile: to pin it takes as long as to fill it.
    fn code(&self, tasks: &[Task], homes: Homes) -> Result<Vec<(usize, Source)>> {
        let Homes { host, compute, mut on_host, mut on_compute } = homes;
        let stream = host.open_stream(StreamKind::Background)?.with_cancel(&self.gone);
        let copies = compute.open_stream(StreamKind::Copy)?.with_cancel(&self.gone);
        let (sender, rooms) = sync_channel(1);
        let coded = std::thread::scope(|scope| {
            let rooms: Receiver<device::Result<Buffer>> = rooms;
            let host = &host;
            let get = |bytes: usize| match &mut on_host {
                Some(reserved) => compute.allocate_pinned_from(reserved, bytes),
                None => compute.allocate_pinned(host, bytes),
            };
            scope.spawn(move || get_rooms(tasks, &sender, get));
            let mut coded = Vec::new();
            for task in tasks {
                self.wait_for_a_job()?;
                let room = match task.stays {
                    // Parts that do not shrink are as long as they were, so this is always enough.
                    true => host.allocate(task.layout.len())?,
                    false => rooms.recv().map_err(|_| device::Error::Cancelled)??,
                };
                // One that shrinks less than some of its values told stays plain.
                if let Some(block) = CodedBlock::new((host, &stream), &task.specs, &task.layout, room)? {
                    let source = match task.stays {
                        true => Source::Here(stay((&compute, &copies), block, on_compute.as_mut())?),
                        false => Source::Host(HostBlock::Coded(block)),
                    };
                    coded.push((task.position, source));
                }
                self.lock().done += 1;
            }
            Ok::<_, Error>(coded)
        })?;
        // Coded bytes of a file that changed meanwhile are worth nothing.
        let weights = tasks.iter().flat_map(|task| &task.specs).map(|spec| &spec.bytes);
        for bytes in EntryBytes::one_of_each_file(weights) {
            let name = || "a file that is coded".to_owned();
            bytes.verify().map_err(|source| Error::File { name: name(), source })?;
        }
        Ok(coded)
    }

    /// Waits while the job is cancelled for which the model was opened last; an error once the model goes.
    fn wait_for_a_job(&self) -> Result<()> {
        let mut progress = self.lock();
        loop {
            self.gone.check()?;
            if !progress.job.is_cancelled() {
                return Ok(());
            }
            let waited = self.changed.wait_timeout(progress, LOOK_INTERVAL);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Gets memory for the blocks that travel, until nobody wants it any more.
fn get_rooms(
    tasks: &[Task],
    rooms: &SyncSender<device::Result<Buffer>>,
    mut get: impl FnMut(usize) -> device::Result<Buffer>,
) {
    for task in tasks.iter().filter(|task| !task.stays) {
        if rooms.send(get(task.bytes)).is_err() {
            return;
        }
    }
}

/// Moves a coded block to where it stays.
fn stay(
    (device, copies): (&Device, &Stream),
    block: CodedBlock,
    reserved: Option<&mut Reservation>,
) -> Result<CodedBlock> {
    let bytes = block.travelling_bytes();
    let there = match reserved {
        Some(reserved) if reserved.bytes() >= device.allocation_bytes(bytes) => {
            device.allocate_from(reserved, bytes)?
        }
        _ => device.allocate(bytes)?,
    };
    let block = block.moved_to(copies, there)?;
    copies.synchronize()?;
    Ok(block)
}
