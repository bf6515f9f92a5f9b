//! Coding beside steps: the load does not wait for it, and neither does a step. A thread codes one block after the other
//! with the host's spare processors; when all are coded, the next step takes them.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use checkpoint::EntryBytes;
use device::{Buffer, Cancel, Device, Registry, Reservation, Stream, StreamKind};
use meta::DeviceId;
use placement::Plan;

use crate::coding::{CodedBlock, Part};
use crate::host::HostBlock;
use crate::layout::BlockLayout;
use crate::manifest::{Manifest, WeightSpec};
use crate::needs::HostSource;
use crate::patching::Reserved;
use crate::ring::Source;
use crate::sidecar::{self, SideCars, Take, Written};
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
    /// Whether they were coded at an earlier start and only read.
    pub is_read: bool,
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
    pub(crate) name: String,
    /// Its position among the blocks of the ring.
    pub(crate) position: usize,
    pub(crate) specs: Vec<WeightSpec>,
    pub(crate) layout: BlockLayout,
    /// The bytes that it was planned to have.
    pub(crate) bytes: usize,
    /// Whether it stays on the device that computes.
    pub(crate) stays: bool,
}

/// Where coded blocks are kept for the next start.
pub(crate) struct Keeping {
    pub(crate) cars: Arc<SideCars>,
    pub(crate) manifest: Manifest,
}

/// A block that is to be kept: its bytes in host memory, or none where it is coded anew for that.
struct Kept {
    task: usize,
    bytes: usize,
    parts: Vec<Part>,
    block: Option<CodedBlock>,
}

/// Where coded blocks go, and what was promised for them there.
pub(crate) struct Homes {
    pub(crate) host: Device,
    pub(crate) compute: Device,
    pub(crate) on_host: Option<Reservation>,
    pub(crate) on_compute: Option<Reservation>,
    pub(crate) keeping: Option<Keeping>,
}

/// What was promised for blocks that are coded later, and what is not needed any more then.
pub(crate) struct Late {
    on_host: Option<Reservation>,
    on_compute: Option<Reservation>,
}

impl Late {
    /// Sets the bytes of a plan's coded blocks apart from those that are reserved; none if it has no such blocks, or if the
    /// host has no room for them together with what they travel from until then, which is pinned or no file.
    pub(crate) fn promised(
        (manifest, plan): (&Manifest, &Plan),
        (devices, source): (&Registry, HostSource),
        reserved: &mut Reserved,
    ) -> Result<Option<Late>> {
        let (mut on_host, mut on_compute, mut packed, mut pinned) = (0, 0, 0, 0);
        let compute = devices.get(plan.compute)?;
        for (index, block) in plan.blocks.iter().enumerate() {
            let Some(coded) = block.coded_bytes else { continue };
            match block.is_kept_coded() {
                true => on_compute += compute.allocation_bytes(coded as usize),
                false => on_host += coded,
            }
            let plain = BlockLayout::new(manifest, index).len() as u64;
            if source == HostSource::Copy || manifest.is_cast(index) {
                packed += plain;
            }
            if compute.copies_fast_from_pinned_only() {
                pinned += plain;
            }
        }
        if on_host + on_compute == 0 {
            return Ok(None);
        }
        let host = devices.get(DeviceId::CPU)?;
        // Files that are pinned are in no ledger, and cannot make room for others as files that are only mapped do.
        if host.memory()?.free < on_host + packed.max(pinned) {
            return Ok(None);
        }
        let mut part = |device: DeviceId, bytes: u64| reserved.get_mut(&device).map(|all| all.split(bytes));
        if packed == 0 {
            let (on_host, on_compute) = (part(DeviceId::CPU, on_host), part(compute.id(), on_compute));
            return Ok(Some(Late { on_host, on_compute }));
        }
        let Ok(packed) = host.ledger().reserve(packed) else { return Ok(None) };
        let (on_host, on_compute) = (part(DeviceId::CPU, on_host), part(compute.id(), on_compute));
        match reserved.get_mut(&DeviceId::CPU) {
            Some(all) => all.join(packed),
            None => drop(reserved.insert(DeviceId::CPU, packed)),
        }
        Ok(Some(Late { on_host, on_compute }))
    }

    pub(crate) fn homes(self, host: Device, compute: Device, keeping: Option<Keeping>) -> Homes {
        Homes { host, compute, on_host: self.on_host, on_compute: self.on_compute, keeping }
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
        let thread = Builder::new().name("coder".into()).spawn(move || own.work(&tasks, homes));
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

    /// Waits until all blocks are coded, or cannot be.
    pub(crate) fn wait(&self, cancel: &Cancel) -> Result<()> {
        let mut progress = self.shared.lock();
        while matches!(progress.outcome, Outcome::Coding) {
            cancel.check()?;
            let waited = self.shared.changed.wait_timeout(progress, LOOK_INTERVAL);
            progress = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
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
        // The last one counts once all of them can be taken.
        let most = match progress.outcome {
            Outcome::Coding => self.shared.blocks.saturating_sub(1),
            _ => self.shared.blocks,
        };
        CodingReport {
            state,
            done: progress.done.min(most),
            blocks: self.shared.blocks,
            seconds,
            is_read: false,
            reason,
        }
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

    fn work(&self, tasks: &[Task], mut homes: Homes) {
        let (host, keeping) = (homes.host.clone(), homes.keeping.take());
        let coded = self.code(tasks, homes);
        let mut progress = self.lock();
        progress.seconds = Some(progress.began.elapsed().as_secs_f64());
        let mut kept = Vec::new();
        progress.outcome = match coded {
            Ok(coded) => {
                if keeping.is_some() {
                    kept = coded.iter().filter_map(|(task, source)| Kept::of(*task, source)).collect();
                }
                let placed = |(task, source): (usize, Source)| (tasks[task].position, source);
                Outcome::Ready(coded.into_iter().map(placed).collect())
            }
            Err(error) => Outcome::Failed(error.to_string()),
        };
        self.changed.notify_all();
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
        drop(left);
        if let Some(keeping) = keeping {
            self.keep(&host, tasks, &kept, &keeping);
        }
        // What casting and coding took for a moment goes back to the system, too. A host that cannot give back keeps it.
        let _ = host.trim();
    }

    /// Writes the coded blocks to where the next start finds them.
    fn keep(&self, host: &Device, tasks: &[Task], kept: &[Kept], keeping: &Keeping) {
        let Keeping { cars, manifest } = keeping;
        let blocks: Vec<Written<'_>> = kept.iter().map(|kept| kept.written(&tasks[kept.task])).collect();
        let mut give = |index: usize, take: &mut Take<'_>| {
            let kept: &Kept = &kept[index];
            let coded = match &kept.block {
                Some(block) => block.clone(),
                None => kept.coded_again((host, &self.gone), &tasks[kept.task]).map_err(io::Error::other)?,
            };
            // What was coded anew of a file that changed meanwhile is not that of the file's name.
            manifest.verify().map_err(io::Error::other)?;
            let stream = host.compute_stream().map_err(io::Error::other)?.with_cancel(&self.gone);
            sidecar::give_block(&coded, &stream, take)
        };
        let done = cars.write(manifest, &blocks, &mut give);
        if let Err(error) = done.and_then(|()| self.gone.check().map_err(io::Error::other))
            && !self.gone.is_cancelled()
        {
            cars.tell(format!("the coded blocks of {} are not kept: {error}", manifest.name()));
        }
    }

    /// Codes the blocks, each into memory that another thread gets meanwhile: to pin it takes as long as to fill it. Answers
    /// them by the places of their tasks.
    fn code(&self, tasks: &[Task], homes: Homes) -> Result<Vec<(usize, Source)>> {
        let Homes { host, compute, mut on_host, mut on_compute, keeping: _ } = homes;
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
            for (at, task) in tasks.iter().enumerate() {
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
                    coded.push((at, source));
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

impl Kept {
    /// A block as it is to be kept, if it is coded.
    fn of(task: usize, source: &Source) -> Option<Kept> {
        let coded = source.coded()?;
        let block = matches!(source, Source::Host(_)).then(|| coded.clone());
        Some(Kept { task, bytes: coded.travelling_bytes(), parts: coded.parts().to_vec(), block })
    }

    fn written<'a>(&self, task: &'a Task) -> Written<'a> {
        Written { name: &task.name, bytes: self.bytes, parts: self.parts.clone(), len: task.layout.len() }
    }

    /// The block once more, of one that stays on a device: nothing is read back from there.
    fn coded_again(&self, (host, gone): (&Device, &Cancel), task: &Task) -> Result<CodedBlock> {
        let stream = host.open_stream(StreamKind::Background)?.with_cancel(gone);
        let room = host.allocate(task.layout.len())?;
        let coded = CodedBlock::new((host, &stream), &task.specs, &task.layout, room)?;
        coded.filter(|coded| coded.parts() == self.parts).ok_or_else(|| {
            let reason = format!("{} was coded differently a moment ago", task.name);
            device::Error::Device { device: host.id(), action: "coding weights".into(), reason }.into()
        })
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
    let block = block.moved_to(copies, &there)?;
    copies.synchronize()?;
    Ok(block)
}
