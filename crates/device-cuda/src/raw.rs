//! The raw floor: tables of the C functions that are used, read from libraries found at run time.
//!
//! Types and constants are cudarc's. Its own loader is not used: it looks only for fixed names, ends
//! the process when a library is missing, and ties the binary to one major version of CUDA. The
//! functions here are those that every driver and toolkit since CUDA 12.0 exports under these names.
//! Status codes are plain numbers, because a newer library may return codes that an enum does not know.

use std::ffi::{c_char, c_int, c_uint, c_void};

use cudarc::cublaslt::sys::{
    cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatmulPreference_t, cublasLtMatrixLayout_t,
};
use cudarc::driver::sys::{
    CUcontext, CUdeviceptr, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream,
};
use cudarc::nvrtc::sys::nvrtcProgram;
use libloading::Library;

use crate::sensors::Utilization;

/// A table of C functions and the code that fills it from a library.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($symbol:ident($($argument:ty),* $(,)?) -> $result:ty;)* }) => {
        $(#[$doc])*
        #[allow(non_snake_case, reason = "the functions keep their C names")]
        #[derive(Clone, Copy)]
        pub(crate) struct $table {
            $(pub(crate) $symbol: unsafe extern "C" fn($($argument),*) -> $result,)*
        }

        impl $table {
            /// Reads every function; an error names the first that the library lacks.
            pub(crate) fn load(library: &Library) -> Result<$table, libloading::Error> {
                // SAFETY: the signatures are those of NVIDIA's headers, and libraries are never unloaded.
                unsafe { Ok($table { $($symbol: *library.get(stringify!($symbol))?,)* }) }
            }
        }
    };
}

functions! {
    /// The driver, `libcuda.so.1`.
    DriverFunctions {
        cuInit(c_uint) -> u32;
        cuDriverGetVersion(*mut c_int) -> u32;
        cuGetErrorName(u32, *mut *const c_char) -> u32;
        cuGetErrorString(u32, *mut *const c_char) -> u32;
        cuDeviceGetCount(*mut c_int) -> u32;
        cuDeviceGet(*mut c_int, c_int) -> u32;
        cuDeviceGetName(*mut c_char, c_int, c_int) -> u32;
        cuDeviceGetAttribute(*mut c_int, c_uint, c_int) -> u32;
        cuDeviceTotalMem_v2(*mut usize, c_int) -> u32;
        cuDeviceCanAccessPeer(*mut c_int, c_int, c_int) -> u32;
        cuDevicePrimaryCtxRetain(*mut CUcontext, c_int) -> u32;
        cuDevicePrimaryCtxRelease_v2(c_int) -> u32;
        cuCtxCreate_v2(*mut CUcontext, c_uint, c_int) -> u32;
        cuCtxDestroy_v2(CUcontext) -> u32;
        cuCtxSetCurrent(CUcontext) -> u32;
        cuCtxSynchronize() -> u32;
        cuCtxEnablePeerAccess(CUcontext, c_uint) -> u32;
        cuMemGetInfo_v2(*mut usize, *mut usize) -> u32;
        cuMemAlloc_v2(*mut CUdeviceptr, usize) -> u32;
        cuMemFree_v2(CUdeviceptr) -> u32;
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint) -> u32;
        cuMemFreeHost(*mut c_void) -> u32;
        cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> u32;
        cuMemHostUnregister(*mut c_void) -> u32;
        cuMemcpyHtoDAsync_v2(CUdeviceptr, *const c_void, usize, CUstream) -> u32;
        cuMemcpyDtoHAsync_v2(*mut c_void, CUdeviceptr, usize, CUstream) -> u32;
        cuMemcpyDtoDAsync_v2(CUdeviceptr, CUdeviceptr, usize, CUstream) -> u32;
        cuMemcpyPeerAsync(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream) -> u32;
        cuMemsetD8Async(CUdeviceptr, u8, usize, CUstream) -> u32;
        cuStreamCreate(*mut CUstream, c_uint) -> u32;
        cuStreamDestroy_v2(CUstream) -> u32;
        cuStreamSynchronize(CUstream) -> u32;
        cuStreamWaitEvent(CUstream, CUevent, c_uint) -> u32;
        cuStreamBeginCapture_v2(CUstream, c_uint) -> u32;
        cuStreamEndCapture(CUstream, *mut CUgraph) -> u32;
        cuGraphInstantiateWithFlags(*mut CUgraphExec, CUgraph, u64) -> u32;
        cuGraphLaunch(CUgraphExec, CUstream) -> u32;
        cuGraphExecDestroy(CUgraphExec) -> u32;
        cuGraphDestroy(CUgraph) -> u32;
        cuEventCreate(*mut CUevent, c_uint) -> u32;
        cuEventRecord(CUevent, CUstream) -> u32;
        cuEventQuery(CUevent) -> u32;
        cuEventSynchronize(CUevent) -> u32;
        cuEventElapsedTime(*mut f32, CUevent, CUevent) -> u32;
        cuEventDestroy_v2(CUevent) -> u32;
        cuModuleLoadData(*mut CUmodule, *const c_void) -> u32;
        cuModuleUnload(CUmodule) -> u32;
        cuModuleGetFunction(*mut CUfunction, CUmodule, *const c_char) -> u32;
        cuFuncSetAttribute(CUfunction, c_uint, c_int) -> u32;
        cuLaunchKernel(
            CUfunction,
            c_uint, c_uint, c_uint,
            c_uint, c_uint, c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> u32;
    }
}

functions! {
    /// What the driver tells of its cards, `libnvidia-ml.so.1`.
    SensorFunctions {
        nvmlInit_v2() -> u32;
        nvmlDeviceGetHandleByPciBusId_v2(*const c_char, *mut *mut c_void) -> u32;
        nvmlDeviceGetUtilizationRates(*mut c_void, *mut Utilization) -> u32;
        nvmlDeviceGetTemperature(*mut c_void, c_uint, *mut c_uint) -> u32;
    }
}

functions! {
    /// The run-time compiler, `libnvrtc.so`.
    CompilerFunctions {
        nvrtcVersion(*mut c_int, *mut c_int) -> u32;
        nvrtcGetErrorString(u32) -> *const c_char;
        nvrtcGetNumSupportedArchs(*mut c_int) -> u32;
        nvrtcGetSupportedArchs(*mut c_int) -> u32;
        nvrtcCreateProgram(
            *mut nvrtcProgram,
            *const c_char,
            *const c_char,
            c_int,
            *const *const c_char,
            *const *const c_char,
        ) -> u32;
        nvrtcDestroyProgram(*mut nvrtcProgram) -> u32;
        nvrtcCompileProgram(nvrtcProgram, c_int, *const *const c_char) -> u32;
        nvrtcGetCUBINSize(nvrtcProgram, *mut usize) -> u32;
        nvrtcGetCUBIN(nvrtcProgram, *mut c_char) -> u32;
        nvrtcGetPTXSize(nvrtcProgram, *mut usize) -> u32;
        nvrtcGetPTX(nvrtcProgram, *mut c_char) -> u32;
        nvrtcGetProgramLogSize(nvrtcProgram, *mut usize) -> u32;
        nvrtcGetProgramLog(nvrtcProgram, *mut c_char) -> u32;
    }
}

functions! {
    /// Matrix products, `libcublasLt.so`.
    BlasFunctions {
        cublasLtCreate(*mut cublasLtHandle_t) -> u32;
        cublasLtDestroy(cublasLtHandle_t) -> u32;
        cublasLtGetVersion() -> usize;
        cublasLtGetStatusString(u32) -> *const c_char;
        cublasLtMatmulDescCreate(*mut cublasLtMatmulDesc_t, c_uint, c_uint) -> u32;
        cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t) -> u32;
        cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t, c_uint, *const c_void, usize) -> u32;
        cublasLtMatrixLayoutCreate(*mut cublasLtMatrixLayout_t, c_uint, u64, u64, i64) -> u32;
        cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t) -> u32;
        cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t, c_uint, *const c_void, usize) -> u32;
        cublasLtMatmulPreferenceCreate(*mut cublasLtMatmulPreference_t) -> u32;
        cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) -> u32;
        cublasLtMatmulPreferenceSetAttribute(
            cublasLtMatmulPreference_t,
            c_uint,
            *const c_void,
            usize,
        ) -> u32;
        cublasLtMatmulAlgoGetHeuristic(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatmulPreference_t,
            c_int,
            *mut HeuristicResult,
            *mut c_int,
        ) -> u32;
        cublasLtMatmul(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *mut c_void,
            cublasLtMatrixLayout_t,
            *const Algorithm,
            *mut c_void,
            usize,
            CUstream,
        ) -> u32;
    }
}

functions! {
    /// Fused attention, `libcudnn.so.9`. Handles and descriptors are opaque pointers.
    DnnFunctions {
        cudnnGetVersion() -> usize;
        cudnnCreate(*mut *mut c_void) -> c_int;
        cudnnDestroy(*mut c_void) -> c_int;
        cudnnSetStream(*mut c_void, CUstream) -> c_int;
        cudnnBackendCreateDescriptor(c_int, *mut *mut c_void) -> c_int;
        cudnnBackendDestroyDescriptor(*mut c_void) -> c_int;
        cudnnBackendFinalize(*mut c_void) -> c_int;
        cudnnBackendSetAttribute(*mut c_void, c_int, c_int, i64, *const c_void) -> c_int;
        cudnnBackendGetAttribute(*mut c_void, c_int, c_int, i64, *mut i64, *mut c_void) -> c_int;
        cudnnBackendExecute(*mut c_void, *mut c_void, *mut c_void) -> c_int;
    }
}

/// `cublasLtMatmulAlgo_t`: opaque, plain words.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Algorithm {
    words: [u64; 8],
}

/// `cublasLtMatmulHeuristicResult_t`, with the status as a number.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HeuristicResult {
    pub(crate) algorithm: Algorithm,
    pub(crate) workspace_bytes: usize,
    pub(crate) state: u32,
    pub(crate) waves: f32,
    reserved: [c_int; 4],
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_structures_have_the_size_of_the_headers() {
        use cudarc::cublaslt::sys;
        assert_eq!(size_of::<Algorithm>(), size_of::<sys::cublasLtMatmulAlgo_t>());
        assert_eq!(size_of::<HeuristicResult>(), size_of::<sys::cublasLtMatmulHeuristicResult_t>());
    }
}
