//! The devices of this machine.

use meta::DeviceId;

use crate::{Device, Error, Result};

/// All devices, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Registry {
    devices: Vec<Device>,
}

impl Registry {
    /// A registry of these devices. A later device with the id of an earlier one replaces it.
    pub fn new(devices: impl IntoIterator<Item = Device>) -> Registry {
        let mut registry = Registry::default();
        for device in devices {
            registry.devices.retain(|d| d.id() != device.id());
            registry.devices.push(device);
        }
        registry
    }

    /// The device with this id.
    pub fn get(&self, id: DeviceId) -> Result<&Device> {
        self.devices.iter().find(|d| d.id() == id).ok_or_else(|| Error::UnknownDevice {
            wanted: id,
            available: self.devices.iter().map(|d| d.id().to_string()).collect::<Vec<_>>().join(", "),
        })
    }

    /// All devices.
    pub fn iter(&self) -> impl Iterator<Item = &Device> {
        self.devices.iter()
    }

    /// Gives cached memory back on every device; all are tried, the first error is returned.
    pub fn trim(&self) -> Result<()> {
        self.devices.iter().map(Device::trim).fold(Ok(()), Result::and)
    }
}
