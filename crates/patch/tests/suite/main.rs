//! Patch files against golden data, against PyTorch and against plain arithmetic.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod beside;
mod files;
mod fixture;
mod formats;
mod golden;
mod merge;
mod reference;
mod robustness;
mod sets;
mod stored;
