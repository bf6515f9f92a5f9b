//! Device ids: kind and ordinal in one value, always compared whole.

use std::fmt;
use std::str::FromStr;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DeviceKind {
    /// The host's processors and memory.
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
    /// A simulated accelerator: computes on the host, with its own budget and metered copies.
    Sim,
    /// Allocates and computes nothing; for testing order and accounting.
    Null,
}

impl DeviceKind {
    const ALL: [DeviceKind; 4] = [DeviceKind::Cpu, DeviceKind::Cuda, DeviceKind::Sim, DeviceKind::Null];

    /// The name before the colon.
    pub const fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Cuda => "cuda",
            DeviceKind::Sim => "sim",
            DeviceKind::Null => "null",
        }
    }
}

/// One device of this machine: `cpu`, `cuda:0`, `sim:1`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// What it is.
    pub kind: DeviceKind,
    /// Which of its kind; always 0 for the CPU.
    pub ordinal: u16,
}

impl DeviceId {
    /// The host.
    pub const CPU: DeviceId = DeviceId { kind: DeviceKind::Cpu, ordinal: 0 };

    /// The GPU with this ordinal.
    pub const fn cuda(ordinal: u16) -> DeviceId {
        DeviceId { kind: DeviceKind::Cuda, ordinal }
    }

    /// The simulated device with this ordinal.
    pub const fn sim(ordinal: u16) -> DeviceId {
        DeviceId { kind: DeviceKind::Sim, ordinal }
    }

    /// The null device with this ordinal.
    pub const fn null(ordinal: u16) -> DeviceId {
        DeviceId { kind: DeviceKind::Null, ordinal }
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            DeviceKind::Cpu => f.pad("cpu"),
            kind => f.pad(&format!("{}:{}", kind.name(), self.ordinal)),
        }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Text that names no device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a device: write cpu, cuda:0, sim:0 or null:0")]
pub struct ParseDeviceIdError {
    /// What was written.
    pub text: String,
}

impl FromStr for DeviceId {
    type Err = ParseDeviceIdError;

    /// Reads `cpu`, `cuda:1`, `CUDA` (ordinal 0). Case does not matter.
    fn from_str(text: &str) -> Result<DeviceId, ParseDeviceIdError> {
        let error = || ParseDeviceIdError { text: text.to_owned() };
        let (name, ordinal) = match text.split_once(':') {
            Some((name, ordinal)) if ordinal.bytes().all(|b| b.is_ascii_digit()) => {
                (name, ordinal.parse::<u16>().map_err(|_| error())?)
            }
            Some(_) => return Err(error()),
            None => (text, 0),
        };
        let kind =
            DeviceKind::ALL.into_iter().find(|k| name.eq_ignore_ascii_case(k.name())).ok_or_else(error)?;
        if kind == DeviceKind::Cpu && ordinal != 0 {
            return Err(error());
        }
        Ok(DeviceId { kind, ordinal })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes() {
        for (text, id) in [("cpu", DeviceId::CPU), ("cuda:3", DeviceId::cuda(3)), ("sim:0", DeviceId::sim(0))]
        {
            assert_eq!(text.parse(), Ok(id));
            assert_eq!(id.to_string(), text);
        }
        assert_eq!("CUDA".parse(), Ok(DeviceId::cuda(0)));
    }

    #[test]
    fn refuses_what_is_no_device() {
        for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:99999", "cpu:1", "cuda:0:0", "sim:+1"] {
            assert!(text.parse::<DeviceId>().is_err(), "{text}");
        }
    }

    #[test]
    fn devices_of_one_kind_differ() {
        assert_ne!(DeviceId::cuda(0), DeviceId::cuda(1));
    }
}
