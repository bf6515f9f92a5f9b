//! The server as a program, spoken to over HTTP: what it computes, what stays loaded, what it survives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod asking;
mod bad_input;
mod first_run;
mod free_while_running;
mod golden;
mod http;
mod limits;
mod model_files;
mod one_picture_on_two;
mod plans;
mod prompts;
mod restart;
mod retention;
mod retention_on_two;
mod server;
mod stages;
mod start;
mod stopping;
mod stored_videos;
mod stored_workflows;
mod superseding;
#[cfg(any(target_os = "linux", target_os = "macos"))]
mod truncated_file;
mod workers;
mod workflows;
