//! Autoencoders.
