//! Residency: which weights are where, and who may use them now.
//!
//! ```text
//! Manifest ── load ──> registry owns the model (Keep, Eject or Default)
//!     │                     │
//!     └── Plan ── open ──> ledger ── stage ── patch ──> Session ── lease ──> weights on a lane
//!                             │                                      │
//!                             └── short: device copies of others go  └── dropped: the slot is free again
//! ```
//!
//! A model may have several stagings at once: copies on another device, under a plan for it, or with another patch set, each
//! with its ring ([`Residency::open_as`]). The file is the one source of every weight. What a device holds is a copy that can be forgotten at
//! any time; nothing is ever written back, and nothing is read back. A model leaves the registry only by
//! [`Residency::unload`], by a [free request](Residency::free), or when another took its place
//! ([`Residency::supersede`]) and nothing refers to it any more; never because memory is short.
#![forbid(unsafe_code)]

mod ahead;
mod blocks;
mod cast;
mod checker;
mod claim;
mod coder;
mod coding;
mod companion;
mod error;
mod free;
mod host;
mod layout;
mod manifest;
mod model;
mod moving_in;
mod needs;
mod patching;
mod pressure;
mod profile;
mod reading;
mod retention;
mod ring;
mod session;
mod sidecar;
mod snapshot;
mod staged;
mod staging;
mod store;
mod streaming;
mod tables;

pub use ahead::ReadingAhead;
pub use blocks::BlockNames;
pub use claim::ModelClaim;
pub use coder::{CodingReport, CodingState, CodingTime};
pub use companion::{Companion, Companions};
pub use device::Cancel;
pub use error::{Error, Result};
pub use free::{FreeFlags, FreeReport, FreeRequest, ModelNote};
pub use manifest::{BlockSpec, Manifest, ManifestBuilder, Products, WeightSpec};
pub use model::{ModelId, ModelReport};
pub use pressure::HostPressure;
pub use profile::{BlockProfile, CopyProfile, StepProfile};
pub use retention::Retention;
pub use ring::StreamStats;
pub use session::{Lease, LinearPart, Session};
pub use sidecar::{FreeSpace, SideCar, SideCars};
pub use snapshot::{Snapshot, SnapshotSeries};
pub use store::{LoadOptions, Opening, Residency};
