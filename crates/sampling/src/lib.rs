//! Noise, schedules, samplers and guidance.
#![forbid(unsafe_code)]
