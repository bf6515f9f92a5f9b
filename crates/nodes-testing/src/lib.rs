//! The classes that ComfyUI's own tests of its executor use; off unless asked for.
//!
//! They make plain pictures, wait, fail, check their inputs in odd ways, and expand into other nodes: what a
//! workflow can ask of the executor and the server, without any model.
#![forbid(unsafe_code)]

mod arithmetic;
mod expansion;
mod logic;
mod loops;
mod pictures;
mod stubs;
mod variants;
mod verdicts;
mod waiting;

use graph::{Catalogue, Schema};

use runtime::host::Host;

/// Adds every class of this crate to those that users see.
pub fn add(catalogue: &mut Catalogue, host: &Host) {
    stubs::add(catalogue, host);
    pictures::add(catalogue);
    verdicts::add(catalogue);
    logic::add(catalogue);
    loops::add(catalogue);
    waiting::add(catalogue);
}

/// A class of the test pack.
fn schema(class: &str, category: &str) -> Schema {
    Schema::new(class, category).module("custom_nodes.testing-pack")
}

#[cfg(test)]
mod tests;
