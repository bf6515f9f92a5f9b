//! Model families: what a file is, what it needs, and how it computes. Nothing here names a kind of
//! device, a storage type or a file format: weights come as leases of blocks, whatever they are stored as.
//!
//! ```text
//! Checkpoint ── detect ──> Detected ── read by a family ──> dyn Diffusion, TextModel, dyn Autoencoder, …
//!                                                              │ manifest ──> plan, load, open ──> Session
//!                                                              └──── start and forward, encode, decode <──┘
//! ```
//!
//! A family is one folder and one line in the list of its kind: [`diffusion::FAMILIES`], [`text::ARCHITECTURES`],
//! [`vae::FAMILIES`], [`vision::FAMILIES`], [`control::FAMILIES`], [`diffusion::model_patches::FAMILIES`],
//! [`upscale::FAMILIES`], [`audio::FAMILIES`].
#![forbid(unsafe_code)]

pub mod audio;
mod claims;
mod clip_layers;
pub mod conditioning;
pub mod control;
pub mod detect;
pub mod diffusion;
pub mod downloads;
mod error;
mod file_config;
pub mod latent_upscale;
mod module;
mod probe;
pub mod rehearsal;
mod residual;
pub mod text;
pub mod upscale;
pub mod vae;
pub mod vision;
pub mod workflow;

pub use detect::{Detected, detect};
pub use error::{Error, Result};
pub use module::Module;
pub use probe::Probe;
