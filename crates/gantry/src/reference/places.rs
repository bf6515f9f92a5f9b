//! Which devices the cases run on. A machine with one device gets a second for what is split: a card is opened as two
//! logical ones, a CPU gets simulated accelerators.

use anyhow::{Context, Result, bail};
use device::{Device, SimSpec};
use meta::{DType, DeviceId, DeviceKind};
use serde::{Serialize, Serializer};

use crate::cli::{How, MachineArgs};
use crate::machine::{LogicalGpus, Machine};

/// What a simulated accelerator has: room for every case, and a link that nothing waits for.
const SIMULATED: &str = "16gb@1000gbps";

/// The machine, and which device computes.
pub(super) struct Places {
    machine: Machine,
    device: DeviceId,
    dtype: DType,
}

/// Where one way computes.
#[derive(Clone, Debug, Serialize)]
pub(super) struct WayPlace {
    pub(super) how: How,
    /// The device that computes.
    #[serde(serialize_with = "as_text")]
    pub(super) compute: DeviceId,
    /// The device that has the other half of what is split.
    #[serde(serialize_with = "as_optional_text")]
    pub(super) other: Option<DeviceId>,
    device: String,
    detail: String,
    simulated: bool,
}

impl Places {
    /// Opens the machine so that every way has its devices. Without a word on devices it is the first GPU, or the CPU.
    pub(super) fn open(
        args: &MachineArgs,
        wanted: Option<DeviceId>,
        dtype: DType,
        hows: &[How],
    ) -> Result<Places> {
        let machine = Machine::open(args)?;
        let first_gpu = of_kind(&machine, DeviceKind::Cuda).first().copied();
        let device = wanted.or(first_gpu).unwrap_or(DeviceId::CPU);
        machine.registry().get(device)?;
        let mut more = args.clone();
        let splits = hows.contains(&How::Split);
        match device.kind {
            DeviceKind::Cuda if splits && of_kind(&machine, DeviceKind::Cuda).len() < 2 => {
                more.logical_gpus.push(LogicalGpus { card: device.ordinal, count: 2 });
            }
            DeviceKind::Cpu
                if args.sim_device.is_empty() && (dtype != DType::F32 || hows != [How::Resident]) =>
            {
                more.sim_device = vec![simulated(dtype)?; 2];
            }
            _ => return Ok(Places { machine, device, dtype }),
        }
        // The devices of the first look have to go before the card is opened again.
        drop(machine);
        Ok(Places { machine: Machine::open(&more)?, device, dtype })
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Why there are no GPUs, if there are none and one could have been meant.
    pub(super) fn note(&self) -> Option<&str> {
        self.machine.note().filter(|_| self.device == DeviceId::CPU)
    }

    /// Where a way computes.
    pub(super) fn of(&self, how: How) -> Result<WayPlace> {
        // The CPU reads weights where they are, in f32: what is more than that is tried on simulated accelerators.
        let on_cpu = self.device == DeviceId::CPU;
        let compute = if on_cpu && (how != How::Resident || self.dtype != DType::F32) {
            let simulated = of_kind(&self.machine, DeviceKind::Sim).first().copied();
            simulated.context("there is no simulated device: give --sim-device twice, or not at all")?
        } else {
            self.device
        };
        let device = self.machine.registry().get(compute)?;
        let about = device.description();
        if !about.activations.contains(&self.dtype) {
            bail!(
                "--dtype {}: {compute} computes in {:?}; choose one of them, or another --device",
                self.dtype,
                about.activations
            );
        }
        Ok(WayPlace {
            how,
            compute,
            other: if how == How::Split { Some(self.beside(compute)?) } else { None },
            device: about.name.clone(),
            detail: about.detail.clone(),
            simulated: about.simulated,
        })
    }

    /// Another device of the same kind.
    fn beside(&self, device: DeviceId) -> Result<DeviceId> {
        let others = of_kind(&self.machine, device.kind).into_iter().find(|other| *other != device);
        others.with_context(|| {
            format!(
                "--how split needs a second device beside {device}: give --sim-device twice, or --logical-gpus {}=2",
                DeviceId::cuda(0)
            )
        })
    }
}

impl WayPlace {
    /// Where it computes, for people.
    pub(super) fn told(&self) -> String {
        let simulated = if self.simulated { " (simulated)" } else { "" };
        let other = self.other.map_or_else(String::new, |other| format!(" and {other}"));
        format!("{} on {}{other}{simulated}", self.how.name(), self.compute)
    }
}

fn of_kind(machine: &Machine, kind: DeviceKind) -> Vec<DeviceId> {
    let mut ids: Vec<DeviceId> =
        machine.registry().iter().map(Device::id).filter(|id| id.kind == kind).collect();
    ids.sort();
    ids
}

/// A simulated accelerator that has activations of a type.
fn simulated(dtype: DType) -> Result<SimSpec> {
    let text = match dtype {
        DType::F32 => SIMULATED.to_owned(),
        other => format!("{SIMULATED}@{other}"),
    };
    Ok(text.parse()?)
}

fn as_text<S: Serializer>(id: &DeviceId, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(id)
}

fn as_optional_text<S: Serializer>(id: &Option<DeviceId>, serializer: S) -> Result<S::Ok, S::Error> {
    match id {
        Some(id) => serializer.collect_str(id),
        None => serializer.serialize_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(wanted: Option<DeviceId>, dtype: DType, hows: &[How]) -> Result<Places> {
        Places::open(&MachineArgs { cpu: true, ..MachineArgs::default() }, wanted, dtype, hows)
    }

    #[test]
    fn a_cpu_gets_what_it_lacks() {
        let places = open(None, DType::F32, &How::ALL).unwrap();
        assert_eq!(places.of(How::Resident).unwrap().compute, DeviceId::CPU);
        let split = places.of(How::Split).unwrap();
        assert_eq!((split.compute, split.other), (DeviceId::sim(0), Some(DeviceId::sim(1))));
        let places = open(Some(DeviceId::CPU), DType::BF16, &[How::Resident]).unwrap();
        assert_eq!(places.of(How::Resident).unwrap().compute, DeviceId::sim(0));
    }

    #[test]
    fn what_is_not_there_is_said() {
        let error = open(Some(DeviceId::cuda(0)), DType::F32, &How::ALL).err().unwrap().to_string();
        assert!(error.contains("there is no device cuda:0"), "{error}");
        let sim_device = vec!["1gb@20gbps".parse().unwrap()];
        let args = MachineArgs { cpu: true, sim_device, ..MachineArgs::default() };
        let places = Places::open(&args, None, DType::F32, &How::ALL).unwrap();
        let error = places.of(How::Split).unwrap_err().to_string();
        assert!(error.contains("needs a second device beside sim:0"), "{error}");
        let places = Places::open(&args, Some(DeviceId::sim(0)), DType::F16, &[How::Resident]).unwrap();
        let error = places.of(How::Resident).unwrap_err().to_string();
        assert!(error.contains("--dtype f16: sim:0 computes in"), "{error}");
    }
}
