//! The ledger of a device: every byte is counted before it reaches the device.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use meta::DeviceId;

use crate::OutOfMemory;

/// Bytes reserved and used on one device, held under its budget.
#[derive(Clone)]
pub struct Ledger {
    account: Arc<Account>,
}

struct Account {
    device: DeviceId,
    balance: Mutex<LedgerReport>,
}

/// The numbers of a ledger at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LedgerReport {
    /// The most that may be used and reserved together.
    pub budget: u64,
    /// Bytes allocated.
    pub used: u64,
    /// Bytes promised but not allocated.
    pub reserved: u64,
    /// The most that was used at a time since [`Ledger::take_peak`] was last asked.
    pub peak: u64,
}

impl LedgerReport {
    /// Bytes that are neither used nor promised.
    pub fn available(&self) -> u64 {
        self.budget.saturating_sub(self.used).saturating_sub(self.reserved)
    }
}

impl Ledger {
    /// An empty ledger with this budget in bytes.
    pub fn new(device: DeviceId, budget: u64) -> Ledger {
        let balance = Mutex::new(LedgerReport { budget, ..LedgerReport::default() });
        Ledger { account: Arc::new(Account { device, balance }) }
    }

    /// The device it counts for.
    pub fn device(&self) -> DeviceId {
        self.account.device
    }

    /// The numbers now.
    pub fn report(&self) -> LedgerReport {
        *self.account.lock()
    }

    /// Sets the budget. What is in use stays, even above it.
    pub fn set_budget(&self, budget: u64) {
        self.account.lock().budget = budget;
    }

    /// The most that was used at a time since [`Ledger::take_peak`] was last asked, or ever.
    pub fn peak(&self) -> u64 {
        self.account.lock().peak
    }

    /// The same, and a new peak starts at what is in use now.
    pub fn take_peak(&self) -> u64 {
        let mut balance = self.account.lock();
        let used = balance.used;
        std::mem::replace(&mut balance.peak, used)
    }

    /// Promises bytes to a later allocation.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, OutOfMemory> {
        let mut balance = self.account.lock();
        self.account.admit(&balance, bytes)?;
        balance.reserved += bytes;
        Ok(Reservation { account: Arc::clone(&self.account), bytes })
    }

    /// Counts bytes as used; they are credited when the charge is dropped.
    pub fn charge(&self, bytes: u64) -> Result<Charge, OutOfMemory> {
        let mut balance = self.account.lock();
        self.account.admit(&balance, bytes)?;
        Ok(self.account.take(&mut balance, bytes))
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("device", &self.device()).field("report", &self.report()).finish()
    }
}

impl Account {
    /// The numbers are plain integers that are valid after every statement, so a panic elsewhere
    /// while the lock was held cannot have left them half changed.
    fn lock(&self) -> MutexGuard<'_, LedgerReport> {
        self.balance.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, balance: &LedgerReport, bytes: u64) -> Result<(), OutOfMemory> {
        if bytes <= balance.available() {
            return Ok(());
        }
        Err(OutOfMemory {
            device: self.device,
            wanted: bytes,
            available: balance.available(),
            budget: balance.budget,
            used: balance.used,
            reserved: balance.reserved,
            op: None,
        })
    }

    fn take(self: &Arc<Self>, balance: &mut LedgerReport, bytes: u64) -> Charge {
        balance.used += bytes;
        balance.peak = balance.peak.max(balance.used);
        Charge { account: Arc::clone(self), bytes }
    }
}

/// Bytes in use. Dropping it credits them.
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.lock().used -= self.bytes;
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({}, {} bytes)", self.account.device, self.bytes)
    }
}

/// Bytes promised. Dropping it gives back what was not taken.
pub struct Reservation {
    account: Arc<Account>,
    bytes: u64,
}

impl Reservation {
    /// What is left of the promise.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Part of the promise, as one of its own: so many bytes, or what is left.
    #[must_use]
    pub fn split(&mut self, bytes: u64) -> Reservation {
        let taken = bytes.min(self.bytes);
        self.bytes -= taken;
        Reservation { account: Arc::clone(&self.account), bytes: taken }
    }

    /// One promise for the bytes of both, if they are of the same ledger; another's is given back.
    pub fn join(&mut self, mut other: Reservation) {
        if Arc::ptr_eq(&self.account, &other.account) {
            self.bytes += std::mem::take(&mut other.bytes);
        }
    }

    /// Turns part of the promise into bytes in use. Asking for more than is left of it is answered as
    /// if only the rest of the promise were available.
    pub fn charge(&mut self, bytes: u64) -> Result<Charge, OutOfMemory> {
        let mut balance = self.account.lock();
        if bytes > self.bytes {
            return Err(OutOfMemory {
                device: self.account.device,
                wanted: bytes,
                available: self.bytes,
                budget: balance.budget,
                used: balance.used,
                reserved: balance.reserved,
                op: None,
            });
        }
        self.bytes -= bytes;
        balance.reserved -= bytes;
        Ok(self.account.take(&mut balance, bytes))
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.account.lock().reserved -= self.bytes;
    }
}

impl fmt::Debug for Reservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reservation({}, {} bytes)", self.account.device, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn running_out_is_a_value_with_the_numbers() {
        let ledger = Ledger::new(DeviceId::sim(0), 100);
        let _used = ledger.charge(60).unwrap();
        let _promised = ledger.reserve(30).unwrap();
        let error = ledger.charge(11).unwrap_err();
        assert_eq!((error.wanted, error.available, error.used, error.reserved), (11, 10, 60, 30));
        assert!(error.to_string().starts_with("sim:0 is out of memory: wanted 11 B"), "{error}");
    }

    #[test]
    fn a_reservation_is_spent_then_returned() {
        let ledger = Ledger::new(DeviceId::CPU, 100);
        let mut promised = ledger.reserve(80).unwrap();
        let charge = promised.charge(50).unwrap();
        assert!(promised.charge(31).is_err());
        assert_eq!(ledger.report(), LedgerReport { budget: 100, used: 50, reserved: 30, peak: 50 });
        drop(promised);
        drop(charge);
        assert_eq!(ledger.report(), LedgerReport { budget: 100, used: 0, reserved: 0, peak: 50 });
    }

    proptest! {
        #[test]
        fn never_above_budget_and_exact_at_the_end(steps in prop::collection::vec((0u8..4, 0u64..60), 1..80)) {
            let ledger = Ledger::new(DeviceId::CPU, 100);
            let (mut charges, mut promises) = (Vec::new(), Vec::new());
            for (kind, bytes) in steps {
                match kind {
                    0 => charges.extend(ledger.charge(bytes)),
                    1 => promises.extend(ledger.reserve(bytes)),
                    2 => drop(charges.pop()),
                    _ => {
                        if let Some(mut promise) = promises.pop() {
                            charges.extend(promise.charge(bytes));
                        }
                    }
                }
                let now = ledger.report();
                prop_assert!(now.used + now.reserved <= now.budget);
                prop_assert_eq!(now.used, charges.iter().map(Charge::bytes).sum::<u64>());
                prop_assert_eq!(now.reserved, promises.iter().map(Reservation::bytes).sum::<u64>());
            }
        }
    }
}
