//! What goes over HTTP: bodies that are read, and answers that are written. JSON is known here and in the hub.

pub(crate) mod body;
pub(crate) mod job;
pub(crate) mod message;
pub(crate) mod object_info;
pub(crate) mod problem;
pub(crate) mod query;
pub(crate) mod rejection;
pub(crate) mod reply;
pub(crate) mod tooltips;
pub(crate) mod v2;

/// Whole numbers are written as such.
pub(crate) use crate::hub::number;
