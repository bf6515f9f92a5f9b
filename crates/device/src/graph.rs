//! Graphs: work that was recorded once and is queued again as a whole, for a fraction of what queuing its operations
//! costs the host.

use std::fmt;
use std::sync::Arc;

use crate::backend::{GraphBackend, StreamBackend};
use crate::{Cancel, Result};

/// Recorded work of one stream. It reads and writes the very memory that it was recorded with, which stays, and stays in
/// the ledger, as long as the graph does: what is to change from one launch to the next is copied there before.
#[derive(Clone)]
pub struct Graph {
    backend: Arc<dyn GraphBackend>,
    cancel: Cancel,
}

impl Graph {
    pub(crate) fn new(backend: Arc<dyn GraphBackend>, cancel: &Cancel) -> Graph {
        Graph { backend, cancel: cancel.clone() }
    }

    /// Queues the work on the stream that it was recorded on.
    pub fn launch(&self) -> Result<()> {
        self.cancel.check()?;
        self.backend.launch()
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Graph")
    }
}

/// A recording that goes on. It is ended in any case, so that the stream works again.
pub(crate) struct Recording<'a>(Option<&'a dyn StreamBackend>);

impl<'a> Recording<'a> {
    /// None if the device cannot record.
    pub(crate) fn begin(queue: &'a dyn StreamBackend) -> Result<Option<Recording<'a>>> {
        Ok(queue.begin_capture()?.then_some(Recording(Some(queue))))
    }

    pub(crate) fn end(mut self) -> Result<Option<Arc<dyn GraphBackend>>> {
        self.0.take().map_or(Ok(None), StreamBackend::end_capture)
    }
}

impl Drop for Recording<'_> {
    fn drop(&mut self) {
        if let Some(queue) = self.0.take() {
            // What was recorded is not wanted; the error that led here is told.
            let _ = queue.end_capture();
        }
    }
}
