//! Models that look at pictures and say what they see.

pub mod florence2;
