//! The engine with small classes of its own: order, events, history, restarts and memory.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod claims;
mod classes;
mod events;
mod history;
mod jobs;
mod memory;
mod models;
mod queue;
mod restart;
mod support;
mod workers;
