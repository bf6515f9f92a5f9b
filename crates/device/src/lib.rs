//! Devices: memory that a ledger counts, streams and events, and the closed list of operations.
//!
//! A [`Device`] is a [`Backend`] behind a [`Ledger`]. The backend seam is narrow on purpose: a few
//! memory verbs, streams, and one `launch` over [`OpCall`], so a new operation is a compile error in
//! every backend until it is handled. This crate has no kernels; it has the two devices that need
//! none: [`null`](NullBackend), which allocates and computes nothing but can count as another device would,
//! and [`sim`](SimBackend), which gives another backend a budget of its own and meters its copies.
#![allow(
    unsafe_code,
    reason = "what memory promises to kernels is an unsafe trait; the one pointer that is used is in host_buffer.rs"
)]

mod backend;
mod buffer;
mod cancel;
mod device;
mod error;
mod graph;
mod host_buffer;
mod host_stream;
mod ledger;
pub mod noise;
mod null;
pub mod op;
mod operand;
mod registry;
mod sim;
mod stream;
mod timed;

pub use backend::{
    Backend, Capabilities, Description, EventBackend, GraphBackend, Memory, MemoryInfo, SharedBytes,
    StreamBackend, StreamKind,
};
pub use buffer::{Buffer, ReadGuard, Span, WriteGuard};
pub use cancel::Cancel;
pub use device::Device;
pub use error::{Error, OutOfMemory, Result};
pub use graph::Graph;
pub use host_buffer::HostBuffer;
pub use host_stream::{HostExecutor, HostStream};
pub use ledger::{Charge, Ledger, LedgerReport, Reservation};
pub use null::{NullBackend, OpSeconds};
pub use op::{OpCall, OpCost, WorkKind};
pub use operand::Operand;
pub use registry::Registry;
pub use sim::{ParseSimSpecError, SimBackend, SimSpec};
pub use stream::{Event, Stream};
pub use timed::{OperationTime, OperationTimes};
