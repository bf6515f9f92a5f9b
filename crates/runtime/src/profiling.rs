//! What is known of the machine: measured when it is first asked for, kept in a file between starts, and refined by
//! every run.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use device::{Device, Registry};
use meta::DeviceId;
use placement::{DeviceProfile, MachineProfile};

use crate::Result;
use crate::measuring;

/// The machine's profile and the file that keeps it.
#[derive(Debug, Default)]
pub(crate) struct ProfileStore {
    file: Option<PathBuf>,
    state: Mutex<State>,
    /// Held while devices are measured: two measurements would disturb each other.
    measuring: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    profile: MachineProfile,
    is_read: bool,
}

impl ProfileStore {
    /// A profile that is kept in this file, or only while the program runs.
    pub(crate) fn new(file: Option<PathBuf>) -> ProfileStore {
        ProfileStore { file, ..ProfileStore::default() }
    }

    /// The profile with every device measured. What is not known yet is measured now.
    pub(crate) fn measured(&self, devices: &Registry) -> Result<MachineProfile> {
        let _alone = self.measuring.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.read();
        let stale = |device: &&Device| {
            let entry = known.devices.get(&device.id().to_string());
            entry.is_none_or(|entry| entry.identity != measuring::identity(device))
        };
        let missing: Vec<&Device> = devices.iter().filter(stale).collect();
        if missing.is_empty() {
            return Ok(known);
        }
        let host = devices.get(DeviceId::CPU)?;
        for device in &missing {
            let profile = measuring::profile(device, host)?;
            tracing::debug!("measured {}: {profile:?}", device.id());
            self.lock().profile.devices.insert(device.id().to_string(), profile);
        }
        self.measure_peers(devices, &missing)?;
        self.save();
        Ok(self.lock().profile.clone())
    }

    /// Bytes per second that a disk reads; measured now if that is not known.
    pub(crate) fn disk(&self, name: &str, measure: impl FnOnce() -> Option<f64>) -> Option<f64> {
        let _alone = self.measuring.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.read().disk(name);
        if known.is_some() {
            return known;
        }
        let measured = measure()?;
        tracing::debug!("measured the disk {name}: {measured} bytes per second");
        self.lock().profile.disks.insert(name.to_owned(), measured);
        self.save();
        Some(measured)
    }

    /// Lets a run's times change what is known, and keeps it.
    pub(crate) fn learn(&self, change: impl FnOnce(&mut MachineProfile)) {
        change(&mut self.lock().profile);
        self.save();
    }

    /// Links between accelerators that reach each other, where one of them was just measured.
    fn measure_peers(&self, devices: &Registry, new: &[&Device]) -> Result<()> {
        let accelerators: Vec<&Device> =
            devices.iter().filter(|device| device.id() != DeviceId::CPU).collect();
        for (index, a) in accelerators.iter().enumerate() {
            for b in &accelerators[index + 1..] {
                let concerned = new.iter().any(|device| [a.id(), b.id()].contains(&device.id()));
                if !concerned || !(a.reaches(b.id()) || b.reaches(a.id())) {
                    continue;
                }
                let (there, back) = match (a.said(), b.said()) {
                    // Copies between simulated devices pass the link of the one that they go to.
                    (Some(a), Some(b)) => (b.link_bytes_per_s, a.link_bytes_per_s),
                    _ => {
                        let both = measuring::bandwidth_between(a, b)?;
                        (both, both)
                    }
                };
                let mut state = self.lock();
                state.profile.set_peer(a.id(), b.id(), there);
                state.profile.set_peer(b.id(), a.id(), back);
            }
        }
        Ok(())
    }

    /// What is known, with what the file keeps. A file that cannot be read is as good as none: all of it can be
    /// measured again.
    fn read(&self) -> MachineProfile {
        let mut state = self.lock();
        if !state.is_read {
            state.is_read = true;
            if let Some(kept) = self.file.as_deref().and_then(read_file) {
                state.profile = kept;
            }
        }
        state.profile.clone()
    }

    fn save(&self) {
        let Some(file) = &self.file else { return };
        let profile = self.lock().profile.clone();
        if let Err(error) = write_file(file, &profile) {
            tracing::warn!(
                "what was measured of this machine cannot be kept in {}: {error}; it will be measured at every start",
                file.display()
            );
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_file(file: &Path) -> Option<MachineProfile> {
    let text = std::fs::read_to_string(file).ok()?;
    serde_json::from_str(&text).inspect_err(|error| tracing::warn!("{}: {error}", file.display())).ok()
}

fn write_file(file: &Path, profile: &MachineProfile) -> std::io::Result<()> {
    if let Some(folder) = file.parent() {
        std::fs::create_dir_all(folder)?;
    }
    disk::write(file, serde_json::to_string_pretty(profile)?.as_bytes())
}

/// What is known of a device; nothing if it was never measured.
pub(crate) fn of(profile: &MachineProfile, id: DeviceId) -> DeviceProfile {
    profile.devices.get(&id.to_string()).cloned().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use device::Backend;
    use device_cpu::CpuBackend;

    use super::*;

    #[test]
    fn a_disk_is_measured_once() {
        let dir = testkit::ScratchDir::new().unwrap();
        let store = || ProfileStore::new(Some(dir.path().join("profile.json")));
        assert_eq!(store().disk("fe00", || None), None, "what cannot be measured is asked for again");
        assert_eq!(store().disk("fe00", || Some(2e9)), Some(2e9));
        assert_eq!(store().disk("fe00", || panic!("it is known")), Some(2e9));
        assert_eq!(store().disk("fe01", || Some(1e9)), Some(1e9));
    }

    #[test]
    fn what_was_measured_survives_a_restart() {
        let dir = testkit::ScratchDir::new().unwrap();
        let file = dir.path().join("profile.json");
        let backend = Arc::new(CpuBackend::new());
        let devices = Registry::new([Device::new(backend as Arc<dyn Backend>, 1 << 30)]);
        let first = ProfileStore::new(Some(file.clone()));
        let measured = first.measured(&devices).unwrap();
        first.learn(|profile| profile.devices.get_mut("cpu").unwrap().learn("x", 1.0, 3.0));
        let cpu = &measured.devices["cpu"];
        assert!(!cpu.speeds.is_empty() && cpu.memory_bytes_per_s.is_some() && cpu.launch_s.is_some());
        let again = ProfileStore::new(Some(file.clone())).measured(&devices).unwrap();
        assert_eq!(again.devices["cpu"].speeds, cpu.speeds, "nothing was measured anew");
        assert_eq!(again.devices["cpu"].correction("x", "x"), 3.0);
        // Another processor is another machine, and a damaged file is none.
        std::fs::write(
            &file,
            std::fs::read_to_string(&file).unwrap().replace("\"identity\": \"", "\"identity\": \"no "),
        )
        .unwrap();
        let other = ProfileStore::new(Some(file.clone())).measured(&devices).unwrap();
        assert_eq!(other.devices["cpu"].identity, cpu.identity);
        assert!(other.devices["cpu"].learnt.is_empty());
        std::fs::write(&file, "{").unwrap();
        assert!(ProfileStore::new(Some(file)).measured(&devices).is_ok());
    }
}
