//! The errors of all devices.

use meta::{ByteSize, DeviceId, Encoding, Shape, SizeError};

/// A device's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong on a device. Variants carry the facts; the text says what to do.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// The ledger or the device itself has too few bytes left.
    #[error(transparent)]
    OutOfMemory(#[from] OutOfMemory),
    /// An operation was called with operands that do not fit each other.
    #[error("{op}: {operand} is {got}, expected {expected}")]
    Operand {
        /// The operation.
        op: &'static str,
        /// Which operand or parameter.
        operand: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        got: String,
    },
    /// A view that reaches outside its buffer or that its layout does not allow.
    #[error("a view of shape {shape} in {encoding}: {reason}")]
    View {
        /// Shape of the view.
        shape: Shape,
        /// Encoding of the view.
        encoding: Encoding,
        /// What is wrong with it.
        reason: String,
    },
    /// This device has no implementation for a valid call.
    #[error("{device} cannot run {op}: {reason}")]
    Unsupported {
        /// The device.
        device: DeviceId,
        /// The operation.
        op: &'static str,
        /// What about the call is not covered.
        reason: String,
    },
    /// The device, its driver or one of its libraries failed.
    #[error("{device}: {action} failed: {reason}")]
    Device {
        /// The device.
        device: DeviceId,
        /// What was being done.
        action: String,
        /// What the device said.
        reason: String,
    },
    /// Memory that another call is using right now, or that may not be written.
    #[error("{device}: {action}: the buffer of {bytes} bytes is {state}")]
    Access {
        /// The device.
        device: DeviceId,
        /// What was being done.
        action: &'static str,
        /// Size of the buffer.
        bytes: usize,
        /// Why it cannot be used so.
        state: &'static str,
    },
    /// No device with this id.
    #[error("there is no device {wanted} here; available: {available}")]
    UnknownDevice {
        /// The id asked for.
        wanted: DeviceId,
        /// The ids there are.
        available: String,
    },
    /// A shape without a byte size.
    #[error(transparent)]
    Size(#[from] SizeError),
    /// The job that the work is for was asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// Too little memory, with every number needed to do something about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfMemory {
    /// The device that is short.
    pub device: DeviceId,
    /// Bytes asked for.
    pub wanted: u64,
    /// Bytes that could have been had.
    pub available: u64,
    /// The device's budget.
    pub budget: u64,
    /// Bytes in use by Gantry.
    pub used: u64,
    /// Bytes promised to others.
    pub reserved: u64,
    /// The operation that wanted them beside its operands, if one did.
    pub op: Option<&'static str>,
}

impl OutOfMemory {
    /// The same for what an operation wanted beside its operands.
    pub fn during(self, op: &'static str) -> OutOfMemory {
        OutOfMemory { op: Some(op), ..self }
    }
}

impl std::error::Error for OutOfMemory {}

impl std::fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let what = |op| format!(" for what the operation '{op}' needs beside its operands");
        write!(
            f,
            "{} is out of memory{}: wanted {} ({} bytes), available {} of a budget of {} ({} in use, {} reserved); \
             at most {} would fit now: move more of the model elsewhere or free a loaded model",
            self.device,
            self.op.map(what).unwrap_or_default(),
            ByteSize(self.wanted),
            self.wanted,
            ByteSize(self.available),
            ByteSize(self.budget),
            ByteSize(self.used),
            ByteSize(self.reserved),
            ByteSize(self.available),
        )
    }
}
