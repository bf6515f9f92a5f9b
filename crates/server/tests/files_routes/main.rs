//! The file routes, asked over HTTP as clients ask: each status of the protocol, names that try to leave their
//! folder, ranges, uploads, settings and stored workflows.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod front_end;
mod internal;
mod models;
mod settings;
mod site;
mod traversal;
mod upload;
mod userdata;
mod view;
