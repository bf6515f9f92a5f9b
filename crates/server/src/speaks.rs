//! Which ComfyUI's protocol this is: said here, and to clients by `/system_stats`.

/// The version of ComfyUI whose routes, fields and feature flags are spoken: the newest that they were compared with.
/// (Numbers are compared with those of 0.7.0, on which the reference values were computed.)
pub(crate) const COMFYUI_VERSION: &str = "0.45.2";

/// The version of Comfy's API under `/api/v2`, which its SDKs speak.
pub(crate) const API_VERSION: &str = "2.0.0";
