//! Nodes that need no model, and the files and folders under them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod folders;
mod golden;
mod images;
mod latents;
mod masks;
mod memory;
mod picture_files;
mod primitives;
mod saving;
mod upscale;
mod workbench;
