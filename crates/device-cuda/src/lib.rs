//! CUDA devices: driver, compiler and matrix products are found and loaded at run time, so one binary
//! runs with and without them.
//!
//! Three floors: `raw` has the C functions, `driver`, `compile` and `blas` turn every status into a
//! result, and everything above is safe. Kernels are source text, compiled for the card on first use
//! and kept in a folder.
#![allow(unsafe_code, reason = "calls of C libraries, and memory that a card works on")]

mod backend;
mod blas;
mod compile;
mod context;
mod copy;
mod cudnn;
mod driver;
mod fast_hash;
mod graph;
mod kernel;
mod library;
mod measure;
mod memory;
mod ops;
mod pinning;
mod pool;
mod raw;
mod runtime;
mod sensors;
mod slab;
mod stream;
mod upload;

pub use backend::{CudaBackend, CudaConfig, KernelCompiler, discover, kernel_sources};
pub use compile::CompileError;
pub use kernel::{KernelFile, Variant};
pub use library::Unavailable;
pub use measure::Bandwidths;
pub use sensors::Sensors;
