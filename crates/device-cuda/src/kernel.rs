//! Launching kernels: what an operation needs to find its kernel, its memory and its stream.

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::driver::sys::{CUfunction, CUfunction_attribute, CUmodule};
use device::{Buffer, Cancel, Error, Ledger, Operand, Result};

use crate::compile::Compiler;
use crate::context::{Context, Properties, lock};
use crate::fast_hash::FastMap;
use crate::graph::{Capture, TemporaryBlock};
use crate::memory::DeviceMemory;
use crate::pool::{self, Pool};
use crate::runtime::Runtime;
use crate::stream::Queue;

/// The device and stream that an operation is launched on.
pub(crate) struct Launch<'a> {
    pub(crate) runtime: &'a Arc<Runtime>,
    pub(crate) queue: &'a Arc<Queue>,
    /// What is charged for temporary memory.
    pub(crate) ledger: &'a Ledger,
    /// The operation's name.
    pub(crate) op: &'static str,
    /// What ends the parts of an operation that the host does.
    pub(crate) cancel: &'a Cancel,
    /// Where temporary memory stays, if the operation is captured.
    pub(crate) capture: Option<&'a Arc<Capture>>,
}

impl Launch<'_> {
    /// A kernel of a file, compiled with these definitions on first use and kept.
    ///
    /// Two definitions steer the compiler itself: [`FAST_MATH`] and [`ARCH_SPECIFIC`].
    pub(crate) fn kernel(
        &self,
        file: KernelFile,
        name: &'static str,
        defines: &[Definition],
    ) -> Result<Kernel> {
        self.runtime.kernels.get(file, name, defines)
    }

    /// Temporary device memory in the order of the stream: it may be dropped as soon as the last kernel
    /// that uses it has been launched. The ledger has the bytes first, and has them back with the drop: whoever gets
    /// the memory next waits for this stream on the card. What a captured kernel uses stays for its graph.
    pub(crate) fn scratch(&self, bytes: usize) -> Result<Scratch> {
        let known = self.capture.and_then(|capture| capture.take(bytes));
        let block = known.map_or_else(|| self.temporary_block(bytes), Ok)?;
        let address = block.0.address();
        Ok(Scratch { address, bytes, block: Some(block), capture: self.capture.cloned() })
    }

    /// The same for views of it as an operand.
    pub(crate) fn scratch_buffer(&self, bytes: usize) -> Result<Buffer> {
        let (memory, charge) = self.temporary_block(bytes)?;
        let buffer = Buffer::new(self.runtime.context.id(), Arc::new(memory), Some(charge));
        if let Some(capture) = self.capture {
            capture.keep(&buffer);
        }
        Ok(buffer)
    }

    fn temporary_block(&self, bytes: usize) -> Result<TemporaryBlock> {
        let charge = self.ledger.charge(pool::taken(bytes)).map_err(|short| short.during(self.op))?;
        let memory = Pool::allocate(&self.runtime.pool, bytes).map_err(|error| match error {
            Error::OutOfMemory(short) => Error::OutOfMemory(short.during(self.op)),
            other => other,
        })?;
        memory.touch(self.queue)?;
        Ok((memory, charge))
    }

    /// The device address of an operand's first value.
    pub(crate) fn pointer(&self, operand: &Operand) -> Result<u64> {
        let memory = operand.buffer().memory();
        let own = memory.as_any().downcast_ref::<DeviceMemory>();
        own.map(|own| own.address() + operand.offset() as u64).ok_or_else(|| Error::Device {
            device: self.runtime.context.id(),
            action: format!("reading {operand:?}"),
            reason: "its memory is not of a CUDA device".into(),
        })
    }

    /// What the card is: multiprocessors, shared memory, compute capability.
    pub(crate) fn properties(&self) -> &Properties {
        self.runtime.context.properties()
    }
}

/// Define this (to anything) to compile with `--use_fast_math`.
pub(crate) const FAST_MATH: &str = "GANTRY_FAST_MATH";
/// Define this (to anything) to compile for the architecture with its own instructions, such as `sm_90a`.
pub(crate) const ARCH_SPECIFIC: &str = "GANTRY_ARCH_SPECIFIC";

/// Temporary device memory.
pub(crate) struct Scratch {
    address: u64,
    bytes: usize,
    /// There until it is dropped. The ledger is credited only once the memory is back.
    block: Option<TemporaryBlock>,
    /// Where it goes then, if it is captured.
    capture: Option<Arc<Capture>>,
}

impl Scratch {
    /// Its device address, a multiple of 256.
    pub(crate) fn pointer(&self) -> u64 {
        self.address
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let (Some(block), Some(capture)) = (self.block.take(), &self.capture) {
            capture.give(self.bytes, block);
        }
    }
}

/// The source files of kernels. Each is compiled after the prelude.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum KernelFile {
    /// Values by themselves.
    Elementwise,
    /// Normalisations.
    Norm,
    /// Rotary position embeddings.
    Rope,
    /// Sums, extremes, softmax.
    Reduction,
    /// Conversions, permutations, embeddings, borders.
    Layout,
    /// Image sizes.
    Resample,
    /// Weights in other encodings to floats.
    Unpack,
    /// Codes with scales beside them to floats.
    Scaled,
    /// Activations as 8-bit codes, and what products of them leave to do.
    Quantised,
    /// Losslessly coded weights to floats.
    Coding,
    /// Scaled dot-product attention.
    Attention,
    /// Convolution windows as matrices.
    Convolution,
    /// What masks ask for beside the kernels of libraries.
    Mask,
}

impl KernelFile {
    /// The file's name, for messages.
    pub const fn name(self) -> &'static str {
        match self {
            KernelFile::Elementwise => "elementwise.cu",
            KernelFile::Norm => "norm.cu",
            KernelFile::Rope => "rope.cu",
            KernelFile::Reduction => "reduction.cu",
            KernelFile::Layout => "layout.cu",
            KernelFile::Resample => "resample.cu",
            KernelFile::Unpack => "unpack.cu",
            KernelFile::Scaled => "scaled.cu",
            KernelFile::Quantised => "quantised.cu",
            KernelFile::Coding => "coding.cu",
            KernelFile::Attention => "attention.cu",
            KernelFile::Convolution => "convolution.cu",
            KernelFile::Mask => "mask.cu",
        }
    }

    /// The whole source: prelude and file.
    pub(crate) fn source(self) -> String {
        let own = match self {
            KernelFile::Elementwise => include_str!("../kernels/elementwise.cu"),
            KernelFile::Norm => include_str!("../kernels/norm.cu"),
            KernelFile::Rope => include_str!("../kernels/rope.cu"),
            KernelFile::Reduction => include_str!("../kernels/reduction.cu"),
            KernelFile::Layout => include_str!("../kernels/layout.cu"),
            KernelFile::Resample => include_str!("../kernels/resample.cu"),
            KernelFile::Unpack => include_str!("../kernels/unpack.cu"),
            KernelFile::Scaled => include_str!("../kernels/scaled.cu"),
            KernelFile::Quantised => include_str!("../kernels/quantised.cu"),
            KernelFile::Coding => include_str!("../kernels/coding.cu"),
            KernelFile::Attention => include_str!("../kernels/attention.cu"),
            KernelFile::Convolution => include_str!("../kernels/convolution.cu"),
            KernelFile::Mask => include_str!("../kernels/mask.cu"),
        };
        // The line directive makes messages of the compiler point into the file itself.
        format!("{}\n#line 1 \"{}\"\n{own}", include_str!("../kernels/prelude.cuh"), self.name())
    }
}

/// One kernel with one set of definitions, so that all can be compiled and checked ahead.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    /// The source file.
    pub file: KernelFile,
    /// The kernel's name, `extern "C"`.
    pub name: &'static str,
    /// Preprocessor definitions.
    pub defines: &'static [(&'static str, &'static str)],
}

/// A preprocessor definition: its name and what it stands for.
pub(crate) type Definition = (&'static str, &'static str);

/// A word of the program's own text, known by its place in the program: one place always has one text. Two places may
/// have the same text, which then is two names for one thing.
#[derive(Clone, Copy, Debug)]
struct Name(&'static str);

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        std::ptr::eq(self.0.as_ptr(), other.0.as_ptr()) && self.0.len() == other.0.len()
    }
}

impl Eq for Name {}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.0.as_ptr().addr());
    }
}

/// What a compiled kernel is found by when it is launched: no text is made, read or compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KernelKey {
    file: KernelFile,
    name: Name,
    count: u8,
    /// The definitions, filled up with empty ones.
    defines: [(Name, Name); MOST_DEFINES],
}

/// Definitions that a key has room for.
const MOST_DEFINES: usize = 9;

impl KernelKey {
    /// None if there are more definitions than it has room for.
    fn new(file: KernelFile, name: &'static str, defines: &[Definition]) -> Option<KernelKey> {
        const NOTHING: Name = Name("");
        let mut own = [(NOTHING, NOTHING); MOST_DEFINES];
        let filled = own.get_mut(..defines.len())?;
        for (to, (define, value)) in filled.iter_mut().zip(defines) {
            *to = (Name(define), Name(value));
        }
        Some(KernelKey { file, name: Name(name), count: defines.len() as u8, defines: own })
    }
}

/// The kernels of one device: compiled on first use, then kept.
pub(crate) struct Kernels {
    context: Arc<Context>,
    compiler: Compiler,
    modules: Mutex<HashMap<(KernelFile, String), Arc<Module>>>,
    entries: RwLock<FastMap<KernelKey, Kernel>>,
}

impl Kernels {
    pub(crate) fn new(context: Arc<Context>, compiler: Compiler) -> Kernels {
        Kernels { context, compiler, modules: Mutex::default(), entries: RwLock::default() }
    }

    pub(crate) fn get(&self, file: KernelFile, name: &'static str, defines: &[Definition]) -> Result<Kernel> {
        let key = KernelKey::new(file, name, defines);
        if let Some(key) = &key
            && let Some(kernel) = self.entries.read().unwrap_or_else(PoisonError::into_inner).get(key)
        {
            return Ok(kernel.clone());
        }
        let definitions = defines.iter().map(|(key, value)| format!("-D{key}={value}\n")).collect::<String>();
        let kernel = Kernel(Arc::new(self.module(file, defines, definitions)?.entry(name)?));
        if let Some(key) = key {
            let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            entries.insert(key, kernel.clone());
        }
        Ok(kernel)
    }

    /// The compiled file. No lock is held while compiling, so that several threads compile several files;
    /// two that want the same one may both compile it, and one result is used.
    fn module(&self, file: KernelFile, defines: &[(&str, &str)], definitions: String) -> Result<Arc<Module>> {
        let key = (file, definitions);
        let known = lock(&self.modules).get(&key).cloned();
        if let Some(module) = known {
            return Ok(module);
        }
        let capability = self.context.properties().capability;
        let image = self.compiler.image(file, defines, capability).map_err(|error| Error::Device {
            device: self.context.id(),
            action: format!("compiling the kernels of {}", file.name()),
            reason: error.to_string(),
        })?;
        let module = Arc::new(Module::load(&self.context, &image)?);
        Ok(Arc::clone(lock(&self.modules).entry(key).or_insert(module)))
    }

    /// Compiles and loads everything that is not there yet, in as many threads as the machine has.
    pub(crate) fn get_all(&self, variants: &[&Variant]) -> Result<()> {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(variant) = variants.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.get(variant.file, variant.name, variant.defines)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            workers.into_iter().try_for_each(|worker| {
                // A panic has been printed by its thread; here it is an error like others.
                worker.join().unwrap_or_else(|_| Err(self.panicked()))
            })
        })
    }

    fn panicked(&self) -> Error {
        Error::Device {
            device: self.context.id(),
            action: "compiling kernels".into(),
            reason: "a thread ended early".into(),
        }
    }
}

/// Compiled code in a context.
struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

// SAFETY: a module is a handle that the driver lets any thread use.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    fn load(context: &Arc<Context>, image: &[u8]) -> Result<Module> {
        context.enter()?;
        let raw = context.check("loading compiled kernels", context.driver().load_module(image))?;
        Ok(Module { context: Arc::clone(context), raw })
    }

    fn entry(self: Arc<Module>, name: &'static str) -> Result<Entry> {
        let missing = |reason: String| Error::Device {
            device: self.context.id(),
            action: format!("looking for the kernel {name}"),
            reason,
        };
        let symbol = CString::new(name).map_err(|error| missing(error.to_string()))?;
        self.context.enter()?;
        let found = self.context.driver().function(self.raw, &symbol);
        let function = found.map_err(|fault| missing(fault.to_string()))?;
        let dynamic_shared = AtomicU32::new(STATIC_SHARED_LIMIT);
        Ok(Entry { function, name, dynamic_shared, _module: self })
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        self.context.leave("unloading kernels", |driver| driver.unload_module(self.raw));
    }
}

/// Shared memory that a kernel may have without being asked for specially.
const STATIC_SHARED_LIMIT: u32 = 48 << 10;

struct Entry {
    function: CUfunction,
    name: &'static str,
    /// The largest dynamic shared memory that the function has been allowed so far.
    dynamic_shared: AtomicU32,
    /// What the function is of.
    _module: Arc<Module>,
}

// SAFETY: a function is a handle that the driver lets any thread use; its module outlives it.
unsafe impl Send for Entry {}
// SAFETY: as above.
unsafe impl Sync for Entry {}

/// A kernel ready to launch.
#[derive(Clone)]
pub(crate) struct Kernel(Arc<Entry>);

impl Kernel {
    /// Queues one block of the kernel, with no more than the driver's own call. The context is the current one.
    pub(crate) fn launch_alone(&self, context: &Context, queue: &Queue, args: &mut Args) -> Result<()> {
        let (sizes, mut pointers) = ([[1; 3], [32, 1, 1]], args.pointers());
        let launched = context.driver().launch(self.0.function, sizes, 0, queue.raw(), &mut pointers);
        context.check("launching a kernel", launched)
    }

    /// Queues the kernel. The arguments must be those of the kernel, in its order and types.
    pub(crate) fn launch(
        &self,
        on: &Launch<'_>,
        grid: [u32; 3],
        block: [u32; 3],
        shared_bytes: u32,
        args: &mut Args,
    ) -> Result<()> {
        if grid.contains(&0) || block.contains(&0) {
            return Ok(());
        }
        let context = &on.runtime.context;
        context.enter()?;
        let entry = &*self.0;
        let most = context.properties().shared_per_block;
        if shared_bytes > most {
            return Err(Error::Device {
                device: context.id(),
                action: format!("launching {}", entry.name),
                reason: format!("it needs {shared_bytes} bytes of shared memory; this card has {most}"),
            });
        }
        if shared_bytes > entry.dynamic_shared.load(Ordering::Relaxed) {
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as u32;
            let set = context.driver().set_function_attribute(entry.function, attribute, shared_bytes as i32);
            context.check(
                &format!("asking for {shared_bytes} bytes of shared memory for {}", entry.name),
                set,
            )?;
            entry.dynamic_shared.store(shared_bytes, Ordering::Relaxed);
        }
        let mut pointers = args.pointers();
        let launched = context.driver().launch(
            entry.function,
            [grid, block],
            shared_bytes,
            on.queue.raw(),
            &mut pointers,
        );
        launched.map_err(|fault| {
            context.error(&format!("launching {} on grid {grid:?} block {block:?}", entry.name), &fault)
        })
    }
}

/// The arguments of a kernel, by value, in order.
pub(crate) struct Args {
    words: Vec<u64>,
    starts: Vec<usize>,
}

impl Args {
    /// No arguments yet, with room for those of every kernel.
    pub(crate) fn new() -> Args {
        Args { words: Vec::with_capacity(64), starts: Vec::with_capacity(16) }
    }

    /// A device address.
    pub(crate) fn ptr(self, value: u64) -> Args {
        self.bytes(&value.to_ne_bytes())
    }

    /// An `int`.
    pub(crate) fn i32(self, value: i32) -> Args {
        self.bytes(&value.to_ne_bytes())
    }

    /// An `unsigned`.
    pub(crate) fn u32(self, value: u32) -> Args {
        self.bytes(&value.to_ne_bytes())
    }

    /// A `long long`.
    pub(crate) fn i64(self, value: i64) -> Args {
        self.bytes(&value.to_ne_bytes())
    }

    /// A `float`.
    pub(crate) fn f32(self, value: f32) -> Args {
        self.bytes(&value.to_ne_bytes())
    }

    /// A structure: its bytes as the kernel's `struct` lays them out.
    pub(crate) fn bytes(mut self, value: &[u8]) -> Args {
        self.starts.push(self.words.len());
        for chunk in value.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.words.push(u64::from_ne_bytes(word));
        }
        self
    }

    /// Where each argument stands; valid until the arguments change.
    fn pointers(&mut self) -> Vec<*mut c_void> {
        let base = self.words.as_mut_ptr();
        // SAFETY: every start is an index that was inside or at the end of the words when it was taken,
        // and the words have only grown since.
        self.starts.iter().map(|&start| unsafe { base.add(start) }.cast()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_the_kernel_with_all_its_definitions() {
        let key = |name, defines: &[Definition]| KernelKey::new(KernelFile::Norm, name, defines).unwrap();
        let (name, defines): (_, [Definition; 2]) = ("norm_rows", [("T", "bf16"), ("W", "none")]);
        let base = key(name, &defines);
        assert_eq!(base, key(name, &defines));
        assert_ne!(base, key(name, &defines[..1]), "fewer definitions");
        assert_ne!(base, key(name, &[defines[0], ("W", "f32")]), "another value");
        assert_ne!(base, key(name, &[defines[0], ("B", defines[1].1)]), "another name");
        assert_ne!(base, key("norm_long_rows", &defines), "another kernel");
        let other = KernelKey::new(KernelFile::Rope, name, &defines);
        assert_ne!(Some(base), other, "another file");
        // A part of a longer text begins at the same place.
        assert_ne!(base, key(&name[..4], &defines));
        assert!(KernelKey::new(KernelFile::Norm, "a", &[("T", "f32"); MOST_DEFINES + 1]).is_none());
    }

    #[test]
    fn every_kernel_fits_a_key() {
        let fits = |v: &Variant| KernelKey::new(v.file, v.name, v.defines).is_some();
        assert!(crate::ops::variants().all(fits));
    }

    #[test]
    fn arguments_stand_aligned_and_in_order() {
        let mut args = Args::new().ptr(0x1122_3344_5566_7788).i32(-2).f32(1.5).bytes(&[7; 20]).i64(-9);
        let at = args.pointers();
        assert_eq!(at.len(), 5);
        assert!(at.iter().all(|p| p.cast::<u64>().is_aligned()));
        // SAFETY: each pointer is to at least the bytes that were put there.
        unsafe {
            assert_eq!(*at[0].cast::<u64>(), 0x1122_3344_5566_7788);
            assert_eq!(*at[1].cast::<i32>(), -2);
            assert_eq!(*at[2].cast::<f32>(), 1.5);
            assert_eq!(*at[3].cast::<[u8; 20]>(), [7; 20]);
            assert_eq!(*at[4].cast::<i64>(), -9);
        }
    }
}
