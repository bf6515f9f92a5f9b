//! Prompts: proved, ordered, thinned to what changed, and run over abstract nodes.
//!
//! ```text
//! Prompt ── validate(Catalogue) ──> Accepted (outputs) ── Executor::run ──> RunReport
//!                │                                            │
//!                └── Rejected: which node, which input, why   └── RunEvent, one by one, to an Observer
//! ```
//!
//! Nothing here knows tensors, devices or HTTP. A node class is a [`NodeClass`]; what travels along links is a
//! [`Value`]: a constant, or an [`Object`] that only the nodes understand.
#![forbid(unsafe_code)]

mod catalogue;
mod class;
mod coercion;
mod declared;
mod event;
mod executor;
mod guard;
mod literal;
mod prompt;
mod proof;
mod schema;
mod value;
mod wanted;

pub use catalogue::Catalogue;
pub use class::{
    Call, Failure, Given, GraphInput, GraphNode, GraphView, Inputs, JobContext, NodeClass, Outcome, Outputs,
    Slot, Validates, Verdict,
};
pub use event::{Identity, NodeFailure, Observer, Picture, RunEnd, RunEvent, RunReport};
pub use executor::{CacheMode, Executor, RunRequest};
pub use literal::{Literal, Map, map};
pub use prompt::{Prompt, PromptNode, link_of};
pub use proof::{Accepted, ErrorDetail, Fact, Facts, NodeErrors, NodeProblems, Rejected, validate};
pub use schema::{Autogrow, GrowingNames, Hidden, Input, Kind, Output, Schema};
pub use value::{Link, NodeId, Object, Value};
pub use wanted::{Wanted, still_wanted};
