//! The devices of this machine, opened as the command line asks.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use device::{Backend, Device, Registry, SimBackend, SimSpec};
use device_cpu::{CpuBackend, Groups};
use device_cuda::{CudaBackend, CudaConfig};
use meta::{ByteSize, DeviceId, DeviceKind};
use placement::CodingPolicy;
use residency::Products;
use runtime::CodedCache;

use crate::cli::MachineArgs;
use crate::{environment, host};

/// All opened devices.
pub(crate) struct Machine {
    registry: Registry,
    cpu: Device,
    groups: Groups,
    cuda: Vec<Arc<CudaBackend>>,
    simulated: Vec<SimSpec>,
    note: Option<String>,
    logical: Vec<LogicalGpus>,
    coding: CodingPolicy,
    products: Products,
    coded_cache: ByteSize,
}

/// `cuda:0=2`: one card opened as several logical devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogicalGpus {
    /// The card, by its ordinal.
    pub(crate) card: u16,
    /// How many devices it becomes.
    pub(crate) count: u16,
}

impl FromStr for LogicalGpus {
    type Err = String;

    fn from_str(text: &str) -> Result<LogicalGpus, String> {
        let error = || format!("'{text}' does not split a card: write a card and a number, such as cuda:0=2");
        let (device, count) = text.split_once('=').ok_or_else(error)?;
        let id: DeviceId = device.parse().map_err(|_| error())?;
        let count: u16 = count.parse().map_err(|_| error())?;
        if id.kind != DeviceKind::Cuda || !(1..=16).contains(&count) {
            return Err(error());
        }
        Ok(LogicalGpus { card: id.ordinal, count })
    }
}

impl fmt::Display for LogicalGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", DeviceId::cuda(self.card), self.count)
    }
}

impl Machine {
    /// Opens the CPU, the GPUs unless they are not wanted, and the simulated devices that were asked for.
    pub(crate) fn open(args: &MachineArgs) -> Result<Machine> {
        let host = Arc::new(CpuBackend::new());
        let most = args.host_memory.map_or(u64::MAX, |most| most.0);
        let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, host.total_memory().min(most));
        let (cuda, note) = if args.cpu { (Vec::new(), None) } else { open_cuda(args) };
        let mut devices = vec![cpu.clone()];
        for backend in &cuda {
            // What other programs hold at the start is theirs.
            let budget = backend.memory()?.free;
            devices.push(Device::new(Arc::clone(backend) as Arc<dyn Backend>, budget));
        }
        for (ordinal, spec) in args.sim_device.iter().enumerate() {
            let ordinal = u16::try_from(ordinal).context("too many simulated devices")?;
            let memory = Arc::clone(&host) as Arc<dyn Backend>;
            let backend = SimBackend::new(ordinal, *spec, memory, host.executor());
            devices.push(Device::new(Arc::new(backend), spec.memory));
        }
        if cuda.is_empty() && !args.logical_gpus.is_empty() {
            bail!("--logical-gpus: {}", note.as_deref().unwrap_or("GPUs are switched off by --cpu"));
        }
        let simulated = args.sim_device.clone();
        let groups = host.groups().clone();
        let (coding, products, coded_cache) = (args.coded.policy(), args.products(), args.coded_cache);
        Ok(Machine {
            registry: Registry::new(devices),
            cpu,
            groups,
            cuda,
            simulated,
            logical: args.logical_gpus.clone(),
            note,
            coding,
            products,
            coded_cache,
        })
    }

    /// The CPU and two simulated devices.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Machine {
        let sim_device = vec!["1gb@20gbps".parse().unwrap(), "2gb@10gbps".parse().unwrap()];
        Machine::open(&MachineArgs { sim_device, cpu: true, ..MachineArgs::default() }).unwrap()
    }

    /// Which weights travel to its devices losslessly coded.
    pub(crate) fn coding(&self) -> CodingPolicy {
        self.coding
    }

    /// Which products of diffusion models are of 8 bits, where loaders say nothing else.
    pub(crate) fn products(&self) -> Products {
        self.products
    }

    /// Where coded weights are kept for the next start, if they are.
    pub(crate) fn coded_cache(&self) -> Option<CodedCache> {
        let folder = environment::coded_cache_dir().filter(|_| self.coded_cache.0 > 0)?;
        Some(CodedCache { folder, limit_bytes: self.coded_cache.0, free_space: host::free_space })
    }

    /// All devices.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The CPU.
    pub(crate) fn cpu(&self) -> &Device {
        &self.cpu
    }

    /// The groups of this process, whose limits are the CPU's.
    pub(crate) fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Reads how busy and how warm cards are, for as long as somebody asks.
    pub(crate) fn sensors(&self) -> server::SensorReader {
        let cuda = self.cuda.clone();
        Arc::new(move |id| {
            let sensors = cuda.iter().find(|backend| backend.id() == id)?.sensors()?;
            Some(server::Reading { busy_percent: sensors.busy_percent, celsius: sensors.celsius })
        })
    }

    /// The backend of a GPU, for measurements that go past the common interface.
    pub(crate) fn cuda(&self, id: DeviceId) -> Option<&CudaBackend> {
        self.cuda.iter().map(|backend| &**backend).find(|backend| backend.describe().id == id)
    }

    /// What all simulated devices were said to have, in their order.
    pub(crate) fn all_simulated(&self) -> &[SimSpec] {
        &self.simulated
    }

    /// The cards that are opened as several devices.
    pub(crate) fn logical(&self) -> &[LogicalGpus] {
        &self.logical
    }

    /// Why there are no GPUs, if there are none.
    pub(crate) fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}

/// GPUs are used where they are; a machine without them is no error.
fn open_cuda(args: &MachineArgs) -> (Vec<Arc<CudaBackend>>, Option<String>) {
    let config = CudaConfig {
        search_roots: environment::cuda_search_roots(),
        kernel_cache_dir: environment::kernel_cache_dir(),
        logical: args.logical_gpus.iter().map(|split| (split.card, split.count)).collect(),
        own_contexts: args.own_contexts,
    };
    match device_cuda::discover(&config) {
        Ok(backends) => (backends.into_iter().map(Arc::new).collect(), None),
        Err(unavailable) => (Vec::new(), Some(unavailable.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_are_read() {
        assert_eq!("cuda:0=2".parse(), Ok(LogicalGpus { card: 0, count: 2 }));
        for text in ["", "cuda:0", "cpu=2", "cuda:0=0", "cuda:0=99", "cuda:0=x"] {
            assert!(text.parse::<LogicalGpus>().is_err(), "{text}");
        }
    }

    #[test]
    fn simulated_devices_have_their_own_ids_and_budgets() {
        let machine = Machine::for_tests();
        let ids: Vec<String> = machine.registry().iter().map(|d| d.id().to_string()).collect();
        assert_eq!(ids, ["cpu", "sim:0", "sim:1"]);
        assert_eq!(machine.registry().get(DeviceId::sim(1)).unwrap().ledger().report().budget, 2 << 30);
        let error = machine.registry().get(DeviceId::cuda(0)).unwrap_err().to_string();
        assert_eq!(error, "there is no device cuda:0 here; available: cpu, sim:0, sim:1");
    }
}
