//! ComfyUI's HTTP and WebSocket protocol, and our own routes.
//!
//! ```text
//! socket ── listen (bind, TLS, limits) ── guard (Host, Origin, token, size) ── app (routes)
//!                                                                              │     │
//!                              hub ── one ordered thread ── one queue per client ┘   └── engine, files
//! ```
//!
//! Only this crate knows wire JSON. What an engine tells is turned into frames in [`hub`], once, in order.
#![forbid(unsafe_code)]

pub mod app;
pub mod config;
pub mod files;
pub mod hub;
pub mod plan;
pub mod shapes;

mod dashboard;
mod error;
mod guard;
mod headers;
mod listen;
mod live;
mod replacements;
mod routes;
mod serving;
mod speaks;
mod stats;
mod wire;

pub use config::{ProcessInfo, Reading, SensorReader, ServerConfig, TlsFiles, WorkerReader};
pub use error::{Error, Result};
pub use files::FilesConfig;
pub use hub::{Audience, Hub};
pub use plan::{PlanFault, PlanQuestion};
pub use serving::{Server, serve, stop_signal, when_asked_to_stop};
