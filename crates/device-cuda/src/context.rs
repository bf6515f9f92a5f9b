//! A context on a card: where everything of one device lives, with its properties and its events.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{CUcontext, CUdevice_attribute as Attribute, CUevent, CUstream};
use device::{Cancel, Error, Result};
use meta::DeviceId;

use crate::driver::{Checked, Driver, Fault};

/// What a card is.
#[derive(Clone, Debug)]
pub(crate) struct Properties {
    /// The model name.
    pub(crate) name: String,
    /// Compute capability, major and minor.
    pub(crate) capability: (u32, u32),
    /// Number of multiprocessors.
    pub(crate) multiprocessors: u32,
    /// The most shared memory that a block may ask for.
    pub(crate) shared_per_block: u32,
    /// All memory of the card in bytes.
    pub(crate) memory_bytes: u64,
    /// The newest CUDA that the driver supports: 1000 · major + 10 · minor.
    pub(crate) driver_version: i32,
    /// Whether memory that is only read can be pinned where it lies.
    pub(crate) pins_read_only: bool,
}

impl Properties {
    /// Asks the driver about a card.
    pub(crate) fn of(driver: &Driver, card: i32) -> Checked<Properties> {
        let attribute = |which| driver.attribute(card, which).map(|value| value.max(0) as u32);
        Ok(Properties {
            name: driver.card_name(card)?,
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?,
            memory_bytes: driver.card_memory(card)? as u64,
            driver_version: driver.version()?,
            // Drivers that do not know the question cannot do it.
            pins_read_only: attribute(Attribute::CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)
                .is_ok_and(|value| value == 1),
        })
    }
}

/// A context: the card's primary one, which logical devices share, or one of its own for a logical device.
pub(crate) struct Context {
    driver: Arc<Driver>,
    id: DeviceId,
    card: i32,
    raw: CUcontext,
    primary: bool,
    properties: Properties,
    /// The first error of a drop, returned by the next call.
    failure: Mutex<Option<Error>>,
    /// Events kept for reuse.
    events: Mutex<Vec<Spare>>,
    /// The same, of those that know when they were reached.
    timed_events: Mutex<Vec<Spare>>,
}

struct Spare(CUevent);

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for Spare {}
// SAFETY: a context is a handle; each call makes it current in its own thread first.
unsafe impl Send for Context {}
// SAFETY: as above, and the fields that change are behind locks.
unsafe impl Sync for Context {}

impl Context {
    /// Opens the card's primary context, or a new one.
    pub(crate) fn open(driver: Arc<Driver>, id: DeviceId, card: i32, primary: bool) -> Checked<Context> {
        let properties = Properties::of(&driver, card)?;
        let raw = if primary { driver.retain_primary(card)? } else { driver.create_context(card)? };
        driver.set_current(raw)?;
        Ok(Context {
            driver,
            id,
            card,
            raw,
            primary,
            properties,
            failure: Mutex::default(),
            events: Mutex::default(),
            timed_events: Mutex::default(),
        })
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.driver
    }

    pub(crate) fn id(&self) -> DeviceId {
        self.id
    }

    pub(crate) fn card(&self) -> i32 {
        self.card
    }

    pub(crate) fn raw(&self) -> CUcontext {
        self.raw
    }

    pub(crate) fn properties(&self) -> &Properties {
        &self.properties
    }

    /// Makes the context current in this thread. An error that a drop left behind comes out here.
    pub(crate) fn enter(&self) -> Result<()> {
        if let Some(error) = lock(&self.failure).take() {
            return Err(error);
        }
        self.check("entering its context", self.driver.set_current(self.raw))
    }

    /// Makes the context current in this thread, and leaves errors of drops to those who can tell them.
    pub(crate) fn make_current(&self) -> Checked<()> {
        self.driver.set_current(self.raw)
    }

    /// Runs a call that a drop makes: its error is kept for the next call.
    pub(crate) fn leave(&self, action: &str, call: impl FnOnce(&Driver) -> Checked<()>) {
        let done = self.driver.set_current(self.raw).and_then(|()| call(&self.driver));
        if let Err(fault) = done {
            self.keep(self.error(action, &fault));
        }
    }

    /// Keeps the first error until the next call.
    pub(crate) fn keep(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
    }

    /// A driver's fault as this device's error.
    pub(crate) fn error(&self, action: &str, fault: &Fault) -> Error {
        Error::Device { device: self.id, action: action.to_owned(), reason: fault.to_string() }
    }

    /// A checked result as this device's result.
    pub(crate) fn check<T>(&self, action: &str, result: Checked<T>) -> Result<T> {
        result.map_err(|fault| self.error(action, &fault))
    }

    /// Records an event at the end of a stream of this context, which must be current.
    pub(crate) fn record(self: &Arc<Context>, stream: CUstream, kind: EventKind) -> Result<EventHandle> {
        let spare = lock(self.spare(kind)).pop();
        let raw = match spare {
            Some(Spare(raw)) => raw,
            None => self.check("creating an event", self.driver.create_event(kind == EventKind::Timed))?,
        };
        let handle = EventHandle { context: Arc::clone(self), raw, kind };
        self.check("recording an event", self.driver.record(raw, stream))?;
        Ok(handle)
    }

    fn spare(&self, kind: EventKind) -> &Mutex<Vec<Spare>> {
        match kind {
            EventKind::Plain => &self.events,
            EventKind::Timed => &self.timed_events,
        }
    }
}

/// Whether an event knows when it was reached, which costs the card a little.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum EventKind {
    Plain,
    Timed,
}

impl Drop for Context {
    fn drop(&mut self) {
        // Nobody is left to be told about an error here.
        let _ = self.driver.set_current(self.raw);
        let spare = [&self.events, &self.timed_events];
        for Spare(event) in spare.into_iter().flat_map(|list| std::mem::take(&mut *lock(list))) {
            let _ = self.driver.destroy_event(event);
        }
        let _ = if self.primary {
            self.driver.release_primary(self.card)
        } else {
            self.driver.destroy_context(self.raw)
        };
    }
}

/// A recorded event. It goes back to its context for reuse when dropped.
pub(crate) struct EventHandle {
    context: Arc<Context>,
    raw: CUevent,
    kind: EventKind,
}

// SAFETY: an event is a handle that the driver lets any thread use.
unsafe impl Send for EventHandle {}
// SAFETY: as above.
unsafe impl Sync for EventHandle {}

impl EventHandle {
    pub(crate) fn raw(&self) -> CUevent {
        self.raw
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        self.context.enter()?;
        self.context.check("the work before an event", self.context.driver.event_done(self.raw))
    }

    /// Seconds from another event to this one, if both know their time and are of one context of the card.
    pub(crate) fn seconds_since(&self, earlier: &EventHandle) -> Result<Option<f64>> {
        let timed = self.kind == EventKind::Timed && earlier.kind == EventKind::Timed;
        let same = self.context.raw == earlier.context.raw;
        if !timed || !same || !earlier.is_done()? || !self.is_done()? {
            return Ok(None);
        }
        let elapsed = self.context.driver.elapsed_ms(earlier.raw, self.raw);
        Ok(Some(f64::from(self.context.check("timing work", elapsed)?) / 1e3))
    }

    pub(crate) fn wait(&self) -> Result<()> {
        self.context.enter()?;
        self.context.check("the work before an event", self.context.driver.event_wait(self.raw))
    }

    /// The same, unless it is cancelled before. The driver cannot be told to give up waiting, so it is asked again and
    /// again; the work itself goes on.
    pub(crate) fn wait_unless(&self, cancel: &Cancel) -> Result<()> {
        if !cancel.is_possible() {
            return self.wait();
        }
        let start = Instant::now();
        while !self.is_done()? {
            cancel.check()?;
            if start.elapsed() < SPIN {
                std::thread::yield_now();
            } else {
                std::thread::sleep(NAP);
            }
        }
        Ok(())
    }
}

/// Waits that are no longer than this end without delay.
const SPIN: Duration = Duration::from_millis(2);
/// Between two questions of a longer one: little beside the wait so far, and beside a step of a model.
const NAP: Duration = Duration::from_micros(50);

impl Drop for EventHandle {
    fn drop(&mut self) {
        lock(self.context.spare(self.kind)).push(Spare(self.raw));
    }
}

/// A lock that a panic elsewhere does not close.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
