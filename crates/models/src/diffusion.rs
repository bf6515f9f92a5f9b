//! Diffusion models.
