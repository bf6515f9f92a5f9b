//! Diffusion models.

pub mod flux;
