//! Values on the host: pictures, masks and latents, counted in the ledger of its memory before they are made and
//! until the last of their users drops them.
//!
//! ```text
//! Host::room(shape) ──> Room ── filled, collect, hold ──> Values     of pictures and masks
//!   refused here             └─ latent ─────────────────> Samples    of latents
//! ```
//!
//! Values know the host that they are on, so what is made of them is counted there, too.

use std::ops::Deref;
use std::sync::Arc;

use device::{Charge, Device, Ledger, OutOfMemory};
use meta::DeviceId;
use sampling::Latent;

use crate::{Error, Result};

/// Bytes of one value.
const VALUE_BYTES: u64 = 4;
/// Bytes from which on the system is asked whether it has them. What is beyond a container's limit, or beyond what
/// other programs leave, ends the process.
const LARGE_BYTES: u64 = 64 << 20;

/// The host's memory, for values.
#[derive(Clone, Debug)]
pub struct Host {
    ledger: Ledger,
    device: Option<Device>,
}

impl Host {
    /// The memory of the CPU.
    #[must_use]
    pub fn new(cpu: &Device) -> Host {
        Host { ledger: cpu.ledger().clone(), device: Some(cpu.clone()) }
    }

    /// Memory of a budget of its own, for values that are on no device of a registry.
    #[must_use]
    pub fn with_budget(bytes: u64) -> Host {
        Host { ledger: Ledger::new(DeviceId::CPU, bytes), device: None }
    }

    /// Which share of it is in use, as the ledger counts.
    #[must_use]
    pub fn used_share(&self) -> f64 {
        let report = self.ledger.report();
        report.used as f64 / report.budget.max(1) as f64
    }

    /// Room for values of a shape.
    ///
    /// # Errors
    /// There is too little memory; the error says how much it would take.
    pub fn room(&self, shape: &[usize]) -> Result<Room> {
        let length = shape.iter().try_fold(1usize, |length, axis| length.checked_mul(*axis));
        let bytes = length.and_then(|length| (length as u64).checked_mul(VALUE_BYTES));
        let (Some(length), Some(bytes)) = (length, bytes) else {
            return Err(Error::TooLarge { shape: shape.to_vec() });
        };
        let told = |short| Error::HostMemory { shape: shape.to_vec(), short };
        let charge = self.ledger.charge(bytes).map_err(told)?;
        self.check_system(bytes).map_err(told)?;
        Ok(Room { length, share: Share { charge, host: self.clone() } })
    }

    /// The ledger knows what Gantry holds; the system knows what it really has.
    fn check_system(&self, bytes: u64) -> Result<(), OutOfMemory> {
        if bytes < LARGE_BYTES {
            return Ok(());
        }
        let Some(memory) = self.device.as_ref().and_then(|device| device.memory().ok()) else {
            return Ok(());
        };
        // A system that tells nothing tells 0.
        if memory.free == 0 || bytes <= memory.free {
            return Ok(());
        }
        let report = self.ledger.report();
        Err(OutOfMemory {
            device: self.ledger.device(),
            wanted: bytes,
            available: memory.free,
            budget: report.budget,
            used: report.used.saturating_sub(bytes),
            reserved: report.reserved,
            op: None,
        })
    }
}

/// Bytes of a host's memory.
#[derive(Debug)]
struct Share {
    /// Held for what its drop does.
    #[expect(dead_code, reason = "dropping it credits the bytes")]
    charge: Charge,
    host: Host,
}

/// Room for a number of values, counted already. What is not used is given back.
#[must_use = "dropping it gives the memory back"]
#[derive(Debug)]
pub struct Room {
    length: usize,
    share: Share,
}

impl Room {
    /// The same value everywhere.
    ///
    /// # Errors
    /// The system has less memory than it says.
    pub fn filled(self, value: f32) -> Result<Values> {
        let mut values = self.vector()?;
        values.resize(self.length, value);
        Ok(self.hold(values))
    }

    /// These values, as many as there is room for.
    ///
    /// # Errors
    /// The system has less memory than it says.
    pub fn collect(self, from: impl IntoIterator<Item = f32>) -> Result<Values> {
        let mut values = self.vector()?;
        values.extend(from.into_iter().take(self.length));
        Ok(self.hold(values))
    }

    /// An empty vector that need not grow, to be given to [`Room::hold`].
    ///
    /// # Errors
    /// The system has less memory than it says.
    pub fn vector(&self) -> Result<Vec<f32>> {
        let mut values = Vec::new();
        let reserved = values.try_reserve_exact(self.length);
        reserved.map_err(|_| Error::TooLarge { shape: vec![self.length] })?;
        Ok(values)
    }

    /// Values that were made in this room.
    #[must_use]
    pub fn hold(self, mut values: Vec<f32>) -> Values {
        debug_assert_eq!(values.len(), self.length, "the room was made for these values");
        values.shrink_to_fit();
        Values(Arc::new(Counted { values, share: self.share }))
    }

    /// A latent that was made in this room.
    #[must_use]
    pub fn latent(self, latent: Latent) -> Samples {
        debug_assert_eq!(latent.values().len(), self.length, "the room was made for this latent");
        Samples { latent: Arc::new(latent), share: Arc::new(self.share) }
    }
}

/// The values of pictures or masks. A clone shares them.
#[derive(Clone)]
pub struct Values(Arc<Counted>);

/// Values, and their bytes in the ledger.
struct Counted {
    values: Vec<f32>,
    share: Share,
}

impl Values {
    /// Values that are counted once they are there, for what does not grow with a picture.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(host: &Host, values: Vec<f32>) -> Result<Values> {
        Ok(host.room(&[values.len()])?.hold(values))
    }

    /// The host that they are on.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.0.share.host
    }

    /// The values, to be changed in place. What others share is copied first.
    ///
    /// # Errors
    /// There is too little memory for a copy.
    pub fn to_mut(&mut self) -> Result<&mut [f32]> {
        if Arc::strong_count(&self.0) > 1 {
            *self = self.host().room(&[self.len()])?.collect(self.iter().copied())?;
        }
        // Nobody has a weak reference, and nobody can take another while this one is borrowed.
        let counted = Arc::get_mut(&mut self.0).expect("there is one reference only");
        Ok(&mut counted.values)
    }
}

impl Deref for Values {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.0.values
    }
}

impl<'a> IntoIterator for &'a Values {
    type Item = &'a f32;
    type IntoIter = std::slice::Iter<'a, f32>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl AsRef<[f32]> for Values {
    fn as_ref(&self) -> &[f32] {
        self
    }
}

impl<T: AsRef<[f32]>> PartialEq<T> for Values {
    fn eq(&self, other: &T) -> bool {
        **self == *other.as_ref()
    }
}

impl std::fmt::Debug for Values {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} values", self.len())
    }
}

/// The values of a latent. A clone shares them.
#[derive(Clone)]
pub struct Samples {
    latent: Arc<Latent>,
    share: Arc<Share>,
}

impl Samples {
    /// A latent that is counted once it is there.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn new(host: &Host, latent: Latent) -> Result<Samples> {
        Ok(host.room(latent.shape())?.latent(latent))
    }

    /// The host that they are on.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.share.host
    }

    /// The latent itself, which is counted for as long as these samples live.
    #[must_use]
    pub fn shared(&self) -> Arc<Latent> {
        Arc::clone(&self.latent)
    }
}

impl Deref for Samples {
    type Target = Latent;

    fn deref(&self) -> &Latent {
        &self.latent
    }
}

impl PartialEq for Samples {
    fn eq(&self, other: &Samples) -> bool {
        **self == **other
    }
}

impl std::fmt::Debug for Samples {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "a latent of {:?}", self.shape())
    }
}
