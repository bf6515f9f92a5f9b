//! Workflow files: the form that editors store, turned into a prompt.
//!
//! ```text
//! Literal ── detect ──> Api ─────────────────────────────────────────────> Prompt
//!                 └──> Ui ── Document ── Expansion ── values and links ──> Prompt, warnings
//!                            (checked)   (subgraphs     (widgets, bypass,
//!                                         in place)      reroutes, primitives)
//! ```
//!
//! An editor's file has what people see: nodes with the values of their widgets by position, and links by
//! number. A prompt has what runs: classes with inputs by name. Names and positions meet in the schemas of
//! a [`graph::Catalogue`]. Nothing here reads files, knows JSON text, or runs anything.
#![forbid(unsafe_code)]

mod convert;
mod coverage;
mod document;
mod error;
mod expansion;
mod group;
mod models;
mod naming;
mod promotion;
mod resolve;
mod virtual_node;
mod widgets;
mod wildcard;

pub use convert::{Converted, Format, detect, to_prompt};
pub use coverage::{Coverage, FamilyCoverage, FileCoverage, classes, coverage};
pub use error::{Error, Warning};
pub use models::{WantedModel, wanted_models};
