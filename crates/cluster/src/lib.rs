//! A queue that several machines share: jobs, claims and records in NATS JetStream, behind `engine::JobStore`.
//!
//! ```text
//! submit ── stream GANTRY_<pool> (work queue, message id = prompt id; ──> fetch ── claim ──> a worker
//!    │         a subject for each set of models that jobs load)
//!    └───── bucket gantry_<pool> (state, changed only from the revision that one knows) <── finish ──┘
//! ```
//!
//! A worker chooses among the subjects by what it holds, what loading would take and how long jobs wait (`affinity`).
//! A claim is a message that is not acknowledged; progress acknowledgements renew it, and the server delivers it again
//! when they stop. What jobs tell goes over plain NATS ([`NatsStore::tell`]), files are in its object store, named by
//! what they are ([`SharedFiles`]), and workers say every few seconds that they live ([`WorkerEntry`]). Who ends a job is decided by the state's revision, so a job ends once however often it ran. A job whose
//! workers were lost three times is recorded as failed, and the reason is kept under `dead.<prompt id>`.
#![forbid(unsafe_code)]

mod affinity;
mod claims;
mod connection;
mod error;
mod events;
mod files;
mod registry;
mod scene;
mod state;
mod store;

pub use connection::{Choosing, ClusterConfig};
pub use error::Error;
pub use events::Order;
pub use files::SharedFiles;
pub use registry::{Holdings, WorkerDevice, WorkerEntry};
pub use store::NatsStore;
