//! Where a model's bytes go: the allocation language, the planner and the time predictor.
//!
//! ```text
//! text ──parse──> AllocationText ──┐
//!                                  ├─ plan ──> Plan (home, where it runs, resident or streamed,
//! blocks, devices, bandwidths ─────┘           per block; ring; bytes per device; seconds per step)
//! ```
//!
//! Everything here is a pure function of its arguments: no I/O, no device is asked, no clock, no
//! randomness. The caller measures devices and blocks and hands the numbers in a [`PlanRequest`]; the
//! answer is a [`Plan`] whose bytes fit, or a [`PlanError`] that says what would.
#![forbid(unsafe_code)]

mod allocation;
mod error;
mod language;
mod plan;
mod planner;
mod predictor;
mod profile;
mod request;
mod resolve;
mod table;

pub use allocation::{Allocation, Amount, Amounts, Entry, Order};
pub use error::PlanError;
pub use language::{AllocationError, AllocationProblem, AllocationText, MAX_TEXT_BYTES, Mode, Span};
pub use plan::{BlockMode, BlockPlan, DeviceUse, Plan, Reading, Ring};
pub use planner::{plan, predict};
pub use predictor::{BetweenSteps, BlockTime, Prediction, StepBlock, simulate};
pub use profile::{DeviceProfile, Learnt, MachineProfile, OpCost, PeerProfile, SpeedPoint, WorkKind};
pub use request::{
    BlockSpec, Coding, CodingPolicy, DeviceSpec, Disk, HostRoom, Outside, Overfull, PeerLink, PlanRequest,
    RemotePolicy, RingLimits, is_tiny,
};
pub use table::seconds;
