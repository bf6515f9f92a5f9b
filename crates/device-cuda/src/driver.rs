//! The result floor over the driver: every call's status becomes a value.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};

use cudarc::driver::sys::{
    CUcontext, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUfunction, CUgraph, CUgraphExec,
    CUmodule, CUstream, CUstream_flags,
};

use crate::raw::DriverFunctions;

/// What the driver says when memory is short.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// What the driver says when an event has not happened yet.
const NOT_READY: u32 = 600;
/// What the driver says when peer access was already on.
const PEER_ALREADY_ON: u32 = 704;
/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
const HOST_ALLOC_PORTABLE: c_uint = 1;
const HOST_REGISTER_READ_ONLY: c_uint = 8;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: other calls, such as those for memory, go on as usual meanwhile.
const CAPTURE_RELAXED: c_uint = 2;

/// A call of a library that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} said {name} ({code}): {text}")]
pub(crate) struct Fault {
    /// The function.
    pub(crate) call: &'static str,
    /// Its status.
    pub(crate) code: u32,
    /// The status by name.
    pub(crate) name: String,
    /// What the library says about it.
    pub(crate) text: String,
}

/// A result of the driver.
pub(crate) type Checked<T> = Result<T, Fault>;

/// The driver's functions with checked results. All but the first few need a current context.
pub(crate) struct Driver {
    raw: DriverFunctions,
}

/// Calls a function of the driver and checks its status.
macro_rules! call {
    ($self:ident.$function:ident($($argument:expr),* $(,)?)) => {
        // SAFETY: pointers passed are to locals or to memory that the caller of this method vouches for;
        // handles are those the driver gave. The driver checks the rest and answers with a status.
        $self.check(stringify!($function), unsafe { ($self.raw.$function)($($argument),*) })
    };
}

impl Driver {
    pub(crate) fn new(raw: DriverFunctions) -> Driver {
        Driver { raw }
    }

    fn check(&self, call: &'static str, code: u32) -> Checked<()> {
        if code == 0 { Ok(()) } else { Err(self.fault(call, code)) }
    }

    fn fault(&self, call: &'static str, code: u32) -> Fault {
        let text = |find: unsafe extern "C" fn(u32, *mut *const c_char) -> u32| {
            let mut text: *const c_char = std::ptr::null();
            // SAFETY: the driver sets the pointer to a static string, or to null for unknown codes.
            unsafe {
                find(code, &mut text);
                (!text.is_null()).then(|| CStr::from_ptr(text).to_string_lossy().into_owned())
            }
        };
        let name = text(self.raw.cuGetErrorName).unwrap_or_else(|| "an unknown code".into());
        Fault { call, code, name, text: text(self.raw.cuGetErrorString).unwrap_or_default() }
    }

    pub(crate) fn init(&self) -> Checked<()> {
        call!(self.cuInit(0))
    }

    /// The newest CUDA that the driver supports: 1000 · major + 10 · minor.
    pub(crate) fn version(&self) -> Checked<c_int> {
        let mut version = 0;
        call!(self.cuDriverGetVersion(&mut version))?;
        Ok(version)
    }

    pub(crate) fn card_count(&self) -> Checked<c_int> {
        let mut count = 0;
        call!(self.cuDeviceGetCount(&mut count))?;
        Ok(count)
    }

    pub(crate) fn card(&self, ordinal: c_int) -> Checked<c_int> {
        let mut card = 0;
        call!(self.cuDeviceGet(&mut card, ordinal))?;
        Ok(card)
    }

    pub(crate) fn card_name(&self, card: c_int) -> Checked<String> {
        let mut name = [0u8; 256];
        call!(self.cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as c_int - 1, card))?;
        let end = name.iter().position(|b| *b == 0).unwrap_or(name.len());
        Ok(String::from_utf8_lossy(&name[..end]).into_owned())
    }

    pub(crate) fn attribute(&self, card: c_int, attribute: CUdevice_attribute) -> Checked<c_int> {
        let mut value = 0;
        call!(self.cuDeviceGetAttribute(&mut value, attribute as c_uint, card))?;
        Ok(value)
    }

    pub(crate) fn card_memory(&self, card: c_int) -> Checked<usize> {
        let mut bytes = 0;
        call!(self.cuDeviceTotalMem_v2(&mut bytes, card))?;
        Ok(bytes)
    }

    pub(crate) fn can_access_peer(&self, card: c_int, peer: c_int) -> Checked<bool> {
        let mut can = 0;
        call!(self.cuDeviceCanAccessPeer(&mut can, card, peer))?;
        Ok(can != 0)
    }

    pub(crate) fn retain_primary(&self, card: c_int) -> Checked<CUcontext> {
        let mut context = null_mut();
        call!(self.cuDevicePrimaryCtxRetain(&mut context, card))?;
        Ok(context)
    }

    pub(crate) fn release_primary(&self, card: c_int) -> Checked<()> {
        call!(self.cuDevicePrimaryCtxRelease_v2(card))
    }

    /// A context of its own on the card; it is current in this thread afterwards.
    pub(crate) fn create_context(&self, card: c_int) -> Checked<CUcontext> {
        let mut context = null_mut();
        call!(self.cuCtxCreate_v2(&mut context, 0, card))?;
        Ok(context)
    }

    pub(crate) fn destroy_context(&self, context: CUcontext) -> Checked<()> {
        call!(self.cuCtxDestroy_v2(context))
    }

    pub(crate) fn set_current(&self, context: CUcontext) -> Checked<()> {
        call!(self.cuCtxSetCurrent(context))
    }

    pub(crate) fn synchronize_context(&self) -> Checked<()> {
        call!(self.cuCtxSynchronize())
    }

    /// Lets the current context read and write the peer's memory. Being allowed already is no error.
    pub(crate) fn enable_peer(&self, peer: CUcontext) -> Checked<()> {
        match call!(self.cuCtxEnablePeerAccess(peer, 0)) {
            Err(fault) if fault.code == PEER_ALREADY_ON => Ok(()),
            other => other,
        }
    }

    /// Free and total bytes of the current context's card.
    pub(crate) fn memory_info(&self) -> Checked<(usize, usize)> {
        let (mut free, mut total) = (0, 0);
        call!(self.cuMemGetInfo_v2(&mut free, &mut total))?;
        Ok((free, total))
    }

    pub(crate) fn allocate(&self, bytes: usize) -> Checked<CUdeviceptr> {
        let mut address = 0;
        call!(self.cuMemAlloc_v2(&mut address, bytes))?;
        Ok(address)
    }

    pub(crate) fn free(&self, address: CUdeviceptr) -> Checked<()> {
        call!(self.cuMemFree_v2(address))
    }

    pub(crate) fn allocate_pinned(&self, bytes: usize) -> Checked<NonNull<u8>> {
        let mut start: *mut c_void = null_mut();
        call!(self.cuMemHostAlloc(&mut start, bytes, HOST_ALLOC_PORTABLE))?;
        NonNull::new(start.cast()).ok_or_else(|| self.fault("cuMemHostAlloc", OUT_OF_MEMORY))
    }

    pub(crate) fn free_pinned(&self, start: NonNull<u8>) -> Checked<()> {
        call!(self.cuMemFreeHost(start.as_ptr().cast()))
    }

    /// # Safety
    /// The memory must stay mapped until it is unpinned.
    pub(crate) unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Checked<()> {
        call!(self.cuMemHostRegister_v2(start.as_ptr().cast(), bytes, HOST_ALLOC_PORTABLE))
    }

    /// The same for memory that is only read.
    ///
    /// # Safety
    /// The memory must stay mapped until it is unpinned.
    pub(crate) unsafe fn pin_read_only(&self, start: NonNull<u8>, bytes: usize) -> Checked<()> {
        let flags = HOST_ALLOC_PORTABLE | HOST_REGISTER_READ_ONLY;
        call!(self.cuMemHostRegister_v2(start.as_ptr().cast(), bytes, flags))
    }

    pub(crate) fn unpin(&self, start: NonNull<u8>) -> Checked<()> {
        call!(self.cuMemHostUnregister(start.as_ptr().cast()))
    }

    /// # Safety
    /// `from` must be readable for `bytes` bytes until the copy is done, `to` device memory of that size.
    pub(crate) unsafe fn copy_up(
        &self,
        to: CUdeviceptr,
        from: *const u8,
        bytes: usize,
        stream: CUstream,
    ) -> Checked<()> {
        call!(self.cuMemcpyHtoDAsync_v2(to, from.cast(), bytes, stream))
    }

    /// # Safety
    /// `to` must be writable for `bytes` bytes until the copy is done, `from` device memory of that size.
    pub(crate) unsafe fn copy_down(
        &self,
        to: *mut u8,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Checked<()> {
        call!(self.cuMemcpyDtoHAsync_v2(to.cast(), from, bytes, stream))
    }

    /// Copies within the current context.
    pub(crate) fn copy_across(
        &self,
        to: CUdeviceptr,
        from: CUdeviceptr,
        bytes: usize,
        stream: CUstream,
    ) -> Checked<()> {
        call!(self.cuMemcpyDtoDAsync_v2(to, from, bytes, stream))
    }

    /// Copies between contexts.
    pub(crate) fn copy_peer(
        &self,
        to: (CUdeviceptr, CUcontext),
        from: (CUdeviceptr, CUcontext),
        bytes: usize,
        stream: CUstream,
    ) -> Checked<()> {
        call!(self.cuMemcpyPeerAsync(to.0, to.1, from.0, from.1, bytes, stream))
    }

    pub(crate) fn fill(&self, to: CUdeviceptr, value: u8, bytes: usize, stream: CUstream) -> Checked<()> {
        call!(self.cuMemsetD8Async(to, value, bytes, stream))
    }

    /// A stream that does not wait for the default one.
    pub(crate) fn create_stream(&self) -> Checked<CUstream> {
        let mut stream = null_mut();
        call!(self.cuStreamCreate(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint))?;
        Ok(stream)
    }

    pub(crate) fn destroy_stream(&self, stream: CUstream) -> Checked<()> {
        call!(self.cuStreamDestroy_v2(stream))
    }

    pub(crate) fn synchronize_stream(&self, stream: CUstream) -> Checked<()> {
        call!(self.cuStreamSynchronize(stream))
    }

    pub(crate) fn stream_wait(&self, stream: CUstream, event: CUevent) -> Checked<()> {
        call!(self.cuStreamWaitEvent(stream, event, 0))
    }

    /// Begins to capture what is queued on a stream.
    pub(crate) fn begin_capture(&self, stream: CUstream) -> Checked<()> {
        call!(self.cuStreamBeginCapture_v2(stream, CAPTURE_RELAXED))
    }

    /// Ends that; the graph is null if something could not be captured.
    pub(crate) fn end_capture(&self, stream: CUstream) -> Checked<CUgraph> {
        let mut graph = null_mut();
        call!(self.cuStreamEndCapture(stream, &mut graph))?;
        Ok(graph)
    }

    /// A graph made ready to be launched.
    pub(crate) fn instantiate(&self, graph: CUgraph) -> Checked<CUgraphExec> {
        let mut exec = null_mut();
        call!(self.cuGraphInstantiateWithFlags(&mut exec, graph, 0))?;
        Ok(exec)
    }

    pub(crate) fn launch_graph(&self, exec: CUgraphExec, stream: CUstream) -> Checked<()> {
        call!(self.cuGraphLaunch(exec, stream))
    }

    pub(crate) fn destroy_graph_exec(&self, exec: CUgraphExec) -> Checked<()> {
        call!(self.cuGraphExecDestroy(exec))
    }

    pub(crate) fn destroy_graph(&self, graph: CUgraph) -> Checked<()> {
        call!(self.cuGraphDestroy(graph))
    }

    /// An event; without timing it is cheaper.
    pub(crate) fn create_event(&self, timing: bool) -> Checked<CUevent> {
        let flags =
            if timing { CUevent_flags::CU_EVENT_DEFAULT } else { CUevent_flags::CU_EVENT_DISABLE_TIMING };
        let mut event = null_mut();
        call!(self.cuEventCreate(&mut event, flags as c_uint))?;
        Ok(event)
    }

    pub(crate) fn record(&self, event: CUevent, stream: CUstream) -> Checked<()> {
        call!(self.cuEventRecord(event, stream))
    }

    pub(crate) fn event_done(&self, event: CUevent) -> Checked<bool> {
        match call!(self.cuEventQuery(event)) {
            Ok(()) => Ok(true),
            Err(fault) if fault.code == NOT_READY => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    pub(crate) fn event_wait(&self, event: CUevent) -> Checked<()> {
        call!(self.cuEventSynchronize(event))
    }

    pub(crate) fn elapsed_ms(&self, start: CUevent, end: CUevent) -> Checked<f32> {
        let mut elapsed = 0.0;
        call!(self.cuEventElapsedTime(&mut elapsed, start, end))?;
        Ok(elapsed)
    }

    pub(crate) fn destroy_event(&self, event: CUevent) -> Checked<()> {
        call!(self.cuEventDestroy_v2(event))
    }

    pub(crate) fn load_module(&self, image: &[u8]) -> Checked<CUmodule> {
        let mut module = null_mut();
        call!(self.cuModuleLoadData(&mut module, image.as_ptr().cast()))?;
        Ok(module)
    }

    pub(crate) fn unload_module(&self, module: CUmodule) -> Checked<()> {
        call!(self.cuModuleUnload(module))
    }

    pub(crate) fn function(&self, module: CUmodule, name: &CStr) -> Checked<CUfunction> {
        let mut function = null_mut();
        call!(self.cuModuleGetFunction(&mut function, module, name.as_ptr()))?;
        Ok(function)
    }

    pub(crate) fn set_function_attribute(
        &self,
        function: CUfunction,
        attribute: c_uint,
        value: c_int,
    ) -> Checked<()> {
        call!(self.cuFuncSetAttribute(function, attribute, value))
    }

    /// Queues a kernel on `[grid, block]`. The arguments must be those that the function was compiled
    /// with; the driver copies them before it returns.
    pub(crate) fn launch(
        &self,
        function: CUfunction,
        [grid, block]: [[u32; 3]; 2],
        shared_bytes: u32,
        stream: CUstream,
        arguments: &mut [*mut c_void],
    ) -> Checked<()> {
        let (list, none) = (arguments.as_mut_ptr(), null_mut());
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        call!(self.cuLaunchKernel(function, gx, gy, gz, bx, by, bz, shared_bytes, stream, list, none))
    }
}
