//! Finding the cards and opening them as devices.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use device::{
    Backend, Capabilities, Description, Error, Ledger, Memory, MemoryInfo, OpCall, Result, SharedBytes,
    StreamBackend, StreamKind,
};
use meta::{DType, DeviceId};

use crate::blas::{Blas, WORKSPACE_BYTES};
use crate::compile::{CompileError, Compiler, Nvrtc};
use crate::context::Context;
use crate::cudnn::{Dnn, LazyDnn};
use crate::driver::Driver;
use crate::kernel::{Kernels, Variant};
use crate::library::{self, SearchPath, Unavailable};
use crate::memory::{DeviceMemory, PinnedMemory};
use crate::ops::{self, Way};
use crate::pinning;
use crate::pool::{self, Pool, Siblings};
use crate::raw::BlasFunctions;
use crate::runtime::Runtime;
use crate::sensors::{CardSensors, Sensors};
use crate::stream::CudaStream;

/// How CUDA is to be used. Only the program itself reads the environment; it passes on what it found.
#[derive(Clone, Debug, Default)]
pub struct CudaConfig {
    /// Folders to look for libraries in: toolkits, Python environments, site-packages, or the folders of
    /// the libraries themselves. The loader's own paths come before, the usual places after.
    pub search_roots: Vec<PathBuf>,
    /// Where compiled kernels are kept; nowhere if none.
    pub kernel_cache_dir: Option<PathBuf>,
    /// Cards, by ordinal, that are opened as several devices, each with its own streams and share of the memory.
    pub logical: BTreeMap<u16, u16>,
    /// Whether each of those has a context of its own, as cards have. A card switches between contexts, which takes
    /// time that several cards do not take, so this is for trying what only contexts show.
    pub own_contexts: bool,
}

/// Opens every card. The reason why there is none is one line.
pub fn discover(config: &CudaConfig) -> Result<Vec<CudaBackend>, Unavailable> {
    let path = SearchPath::new(&config.search_roots);
    let driver = Arc::new(library::load_driver(&path)?);
    let fault = |what: &'static str| {
        move |fault: crate::driver::Fault| Unavailable::new(format!("no CUDA: {what}: {fault}"))
    };
    let version = driver.version().map_err(fault("asking the driver for its version"))?;
    let count = driver.card_count().map_err(fault("counting the cards"))?;
    if count <= 0 {
        return Err(Unavailable::new("no CUDA: the driver found no card"));
    }
    let newest = (version / 1000).max(0) as u32;
    let libraries = Libraries {
        nvrtc: library::load_compiler(&path, newest)?,
        blas: library::load_blas(&path, newest)?,
        dnn: Arc::new(LazyDnn::new(path.clone(), newest)),
        driver,
    };
    let mut devices = open_cards(&libraries, config, count)?;
    let cards: Arc<[(DeviceId, i32)]> =
        devices.iter().map(|device| (device.id(), device.runtime.context.card())).collect();
    devices.iter_mut().for_each(|device| device.cards = Arc::clone(&cards));
    Ok(devices)
}

/// Opens the cards that can be opened. One that cannot does not take the others with it: its number
/// stays unused, and the description of the first device says why.
fn open_cards(
    libraries: &Libraries,
    config: &CudaConfig,
    count: i32,
) -> Result<Vec<CudaBackend>, Unavailable> {
    let (mut devices, mut failures) = (Vec::new(), Vec::new());
    let mut ordinal = 0;
    for card in 0..count {
        let share = config.logical.get(&(card as u16)).copied().unwrap_or(1).max(1);
        let siblings = Siblings::default();
        for _ in 0..share {
            let id = DeviceId::cuda(ordinal);
            ordinal += 1;
            match CudaBackend::open(libraries, config, &Place { id, card, share, siblings: &siblings }) {
                Ok(device) => devices.push(device),
                Err(error) => failures.push(error.to_string()),
            }
        }
    }
    match devices.first_mut() {
        Some(first) => first.note = failures.iter().map(|failure| format!("; {failure}")).collect(),
        None => return Err(Unavailable::new(format!("no CUDA: {}", failures.join("; ")))),
    }
    Ok(devices)
}

/// Every kernel with every set of definitions it is used with.
pub fn kernel_sources() -> impl Iterator<Item = &'static Variant> {
    ops::variants()
}

/// The run-time compiler by itself: compiles kernels for any card, without one.
pub struct KernelCompiler {
    compiler: Compiler,
}

impl KernelCompiler {
    /// Finds NVRTC.
    pub fn open(config: &CudaConfig) -> Result<KernelCompiler, Unavailable> {
        let path = SearchPath::new(&config.search_roots);
        let nvrtc = library::load_compiler(&path, library::NEWEST_MAJOR)?;
        Ok(KernelCompiler { compiler: Compiler::new(nvrtc, config.kernel_cache_dir.clone()) })
    }

    /// The compiler's version.
    pub fn version(&self) -> (i32, i32) {
        self.compiler.nvrtc().version()
    }

    /// The architectures it knows, such as 90.
    pub fn architectures(&self) -> &[u32] {
        self.compiler.nvrtc().architectures()
    }

    /// The code of a kernel file with these definitions, for a card of this compute capability.
    pub fn compile(&self, variant: &Variant, capability: (u32, u32)) -> Result<Vec<u8>, CompileError> {
        self.compiler.image(variant.file, variant.defines, capability)
    }
}

/// What was loaded.
struct Libraries {
    driver: Arc<Driver>,
    nvrtc: Arc<Nvrtc>,
    blas: BlasFunctions,
    dnn: Arc<LazyDnn>,
}

/// Where a device is opened.
struct Place<'a> {
    id: DeviceId,
    /// The card's number.
    card: i32,
    share: u16,
    siblings: &'a Siblings,
}

/// One card, or one of several devices on a card.
pub struct CudaBackend {
    pub(crate) runtime: Arc<Runtime>,
    /// On how many devices the card is shared out.
    share: u16,
    /// The card of every CUDA device.
    cards: Arc<[(DeviceId, i32)]>,
    nvrtc_version: (i32, i32),
    /// What else is to be said about the cards.
    note: String,
    /// Looked for when somebody asks.
    sensors: OnceLock<Option<CardSensors>>,
}

impl CudaBackend {
    fn open(libraries: &Libraries, config: &CudaConfig, place: &Place<'_>) -> Result<CudaBackend> {
        let driver = Arc::clone(&libraries.driver);
        let primary = place.share == 1 || !config.own_contexts;
        let opened = driver
            .card(place.card)
            .and_then(|card| Context::open(Arc::clone(&driver), place.id, card, primary));
        let context = Arc::new(opened.map_err(|fault| Error::Device {
            device: place.id,
            action: "opening the card".into(),
            reason: fault.to_string(),
        })?);
        let compiler = Compiler::new(Arc::clone(&libraries.nvrtc), config.kernel_cache_dir.clone());
        let runtime = Runtime::new(
            Arc::clone(&context),
            Pool::new(Arc::clone(&context), place.siblings),
            Kernels::new(Arc::clone(&context), compiler),
            Blas::new(Arc::clone(&context), libraries.blas)?,
            Dnn::new(context, Arc::clone(&libraries.dnn)),
        );
        Ok(CudaBackend {
            runtime: Arc::new(runtime),
            share: place.share,
            cards: Arc::new([]),
            nvrtc_version: libraries.nvrtc.version(),
            note: String::new(),
            sensors: OnceLock::new(),
        })
    }

    /// Its id.
    pub fn id(&self) -> DeviceId {
        self.runtime.context.id()
    }

    /// How busy and how warm its card is; nothing where the machine does not tell.
    pub fn sensors(&self) -> Option<Sensors> {
        let context = &self.runtime.context;
        let sensors = self.sensors.get_or_init(|| CardSensors::open(context.driver(), context.card()));
        sensors.as_ref().map(CardSensors::read)
    }

    /// Bytes of blocks that are in use now.
    pub fn used_bytes(&self) -> u64 {
        self.runtime.pool.used()
    }

    /// The most bytes that were in use at a time since this was asked last: weights, activations, and what
    /// operations took for a moment.
    pub fn take_peak_bytes(&self) -> u64 {
        self.runtime.pool.take_peak()
    }

    /// Compiles and loads all kernels that it does not have yet; says how many there are.
    pub fn compile_kernels(&self) -> Result<usize> {
        let variants: Vec<_> = kernel_sources().collect();
        self.runtime.kernels.get_all(&variants)?;
        Ok(variants.len())
    }
}

impl Backend for CudaBackend {
    fn describe(&self) -> Description {
        let properties = self.runtime.context.properties();
        let (major, minor) = properties.capability;
        let shared = match self.share {
            1 => String::new(),
            share => format!(", one of {share} devices on this card"),
        };
        let driver = properties.driver_version;
        // Ada and later.
        let fp8_products: &[DType] = if (major, minor) >= (8, 9) { &[DType::BF16, DType::F16] } else { &[] };
        let products = if fp8_products.is_empty() { "" } else { ", 8-bit products" };
        let blas = self.runtime.blas.version().map(|part| part.to_string()).join(".");
        Description {
            id: self.id(),
            name: properties.name.clone(),
            detail: format!(
                "compute capability {major}.{minor}, {} multiprocessors, driver for CUDA {}.{}, NVRTC {}.{}, cuBLASLt \
                 {blas}{products}{shared}{}",
                properties.multiprocessors,
                driver / 1000,
                driver % 1000 / 10,
                self.nvrtc_version.0,
                self.nvrtc_version.1,
                self.note,
            ),
            // Cards before Ampere have no bf16 products.
            activations: if major >= 8 {
                &[DType::BF16, DType::F16, DType::F32]
            } else {
                &[DType::F16, DType::F32]
            },
            simulated: false,
            capabilities: Capabilities {
                copies_fast_from_pinned_only: true,
                pins_in_place: properties.pins_read_only,
                fp8_products,
            },
        }
    }

    fn memory(&self) -> Result<MemoryInfo> {
        let (context, pool) = (&self.runtime.context, &self.runtime.pool);
        context.enter()?;
        let (free, total) = context.check("asking for free memory", context.driver().memory_info())?;
        let (total, cached) = (total as u64 / u64::from(self.share), pool.cached());
        // A logical device has its share; what its neighbours use beyond theirs is still missing.
        let left = if self.share == 1 { u64::MAX } else { total.saturating_sub(pool.used() + cached) };
        Ok(MemoryInfo { total, free: (free as u64).min(left), cached })
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(Pool::allocate(&self.runtime.pool, bytes)?))
    }

    fn allocation_bytes(&self, bytes: usize) -> u64 {
        pool::taken(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> Result<Arc<dyn Memory>> {
        Ok(Arc::new(PinnedMemory::allocate(&self.runtime.context, bytes)?))
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> Result<Option<Vec<Arc<dyn Memory>>>> {
        Ok(if self.runtime.context.properties().pins_read_only {
            pinning::pin(&self.runtime.context, regions)
        } else {
            None
        })
    }

    fn open_stream(&self, _kind: StreamKind, ledger: &Ledger) -> Result<Arc<dyn StreamBackend>> {
        Ok(Arc::new(CudaStream::open(&self.runtime, ledger)?))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        ops::supports(call)
    }

    fn trim(&self) -> Result<()> {
        self.runtime.uploader.trim();
        self.runtime.pool.trim()
    }

    fn scratch_bytes(&self, call: &OpCall) -> u64 {
        ops::scratch_bytes(call, &self.runtime, Way::Fastest)
    }

    fn least_scratch_bytes(&self, call: &OpCall) -> u64 {
        let [fastest, own] = [Way::Fastest, Way::Own].map(|way| ops::scratch_bytes(call, &self.runtime, way));
        fastest.min(own)
    }

    fn workspace_bytes(&self) -> u64 {
        WORKSPACE_BYTES as u64
    }

    fn addresses(&self, memory: &dyn Memory) -> bool {
        memory.as_any().is::<DeviceMemory>() || memory.host_pointer().is_some()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        let context = &self.runtime.context;
        let card = self.cards.iter().find(|(id, _)| *id == other).map(|(_, card)| *card);
        card.is_some_and(|card| {
            card == context.card() || context.driver().can_access_peer(context.card(), card).unwrap_or(false)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_cuda_gets_one_calm_line() {
        // Where there is a card this opens it; where not, it must say so and never end the process.
        match discover(&CudaConfig::default()) {
            Ok(devices) => assert!(!devices.is_empty()),
            Err(unavailable) => {
                let text = unavailable.to_string();
                assert!(text.starts_with("no CUDA: ") && !text.contains('\n') && text.len() < 600, "{text}");
            }
        }
    }

    #[test]
    fn opening_the_compiler_never_ends_the_process() {
        let config = CudaConfig { search_roots: vec!["/no/such/folder".into()], ..CudaConfig::default() };
        match KernelCompiler::open(&config) {
            Ok(compiler) => assert!(compiler.version().0 >= 12),
            Err(unavailable) => assert!(unavailable.to_string().contains("NVRTC"), "{unavailable}"),
        }
    }
}
