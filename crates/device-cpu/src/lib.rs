//! The CPU: the reference for every operation, in f32 from whatever the weights are stored as.
//!
//! Weights are read straight from where they lie, such as a mapped file, and unpacked a panel at a
//! time, so running a model does not double its memory. Work is cut into pieces by size, never by the
//! number of threads, and each piece is summed in one order, so results do not depend on the threads.
#![allow(unsafe_code, reason = "SIMD kernels, and memory that other threads and mapped files own")]

mod access;
mod backend;
mod groups;
mod memory;
mod ops;
mod spare;
mod stop;
mod tiles;

pub use backend::CpuBackend;
pub use groups::{GroupMemory, Groups};
pub use memory::use_few_arenas;
pub use tiles::{decoder, encoder, tile_coders};
