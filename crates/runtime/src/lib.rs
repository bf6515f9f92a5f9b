//! What stands between nodes and models: files are found, recognised, planned, loaded, patched and run, and what a run
//! took is learnt from. It knows no node classes.
//!
//! ```text
//! loader node ──> Model, Clip, Vae (handles: file, family, placing, patches)
//!                      │ used by a node
//!                      └──> Runtime::with_session ── plan, load, patch, open ──> residency::Session
//! ```
//!
//! A handle holds all that is needed to load its model again, so outputs of loader nodes stay good after a
//! free request; the registry alone decides what is in memory.
#![forbid(unsafe_code)]

pub mod folders;
pub mod host;

mod caller;
mod changed_files;
mod error;
mod footprint;
mod guidance;
mod handles;
mod kept;
mod loading;
mod measuring;
mod network;
mod outputs;
mod planning;
mod profiling;
mod questions;
mod runtime;
mod stats;
mod stored_values;
mod turns;
mod upcoming;
mod weight_patches;
mod work;

pub use caller::Caller;
pub use error::{Error, Result};
pub use folders::Folders;
pub use guidance::{After, Altered, AwayFromAltered, Guidance, Instead, Levels, Reusing};
pub use handles::{Clip, ControlNet, Model, ModelPatch, Patching, Pixels, Vae};
pub use kept::KeptPictures;
pub use loading::{Opened, Wanted};
pub use measuring::{Bandwidth, bandwidth, bandwidth_between};
pub use network::{Network, Placing, Source, runnable};
pub use outputs::{FileExchange, OutputStore, SavedFile, Saving};
pub use planning::HOST_SHARE;
pub use questions::{PlanQuestion, Role, SaidPlacing};
pub use runtime::{CodedCache, PreviewMethod, Runtime, Settings};
pub use stats::{ModelStats, StepKind};
pub use stored_values::decode_values;
pub use weight_patches::{Lora, Merging, ScaleRule, Share, Shares, WeightPatch, patch_set};
pub use work::{EvaluationShape, PictureSize, StepShape, Work};
