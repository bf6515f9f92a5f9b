//! Model families: what a file is, what it needs, and how it computes. Nothing here names a kind of
//! device, a storage type or a file format: weights come as leases of blocks, whatever they are stored as.
//!
//! ```text
//! Checkpoint ── detect ──> Detected ── Flux::read, Kl::read, … ──> model ── manifest ──> plan, load, open
//!                                                                    │                          │
//!                                                                    └──── forward, decode <── Session
//! ```
#![forbid(unsafe_code)]

mod claims;
pub mod detect;
pub mod diffusion;
mod error;
mod probe;
pub mod text;
pub mod vae;
pub mod vision;

pub use detect::{Detected, detect};
pub use error::{Error, Result};
pub use probe::Probe;
