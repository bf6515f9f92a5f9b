//! Prompts of small made-up nodes: what validation says of them, and how they run.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod caching;
mod concurrency;
mod dynamic;
mod expansion;
mod random;
mod running;
mod scale;
mod stage;
mod validation;
