//! The log: to the terminal, and into the ring that the front end shows.

use std::io::{IsTerminal, Write};

use server::files::LogRing;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::cli::Verbosity;

/// Starts the log of this process.
pub(crate) fn start_log(verbosity: Verbosity, ring: LogRing) {
    let level = match verbosity {
        Verbosity::Debug => LevelFilter::DEBUG,
        Verbosity::Info => LevelFilter::INFO,
        Verbosity::Warning => LevelFilter::WARN,
        Verbosity::Error | Verbosity::Critical => LevelFilter::ERROR,
    };
    let log = tracing_subscriber::fmt().with_max_level(level).with_target(false);
    // A second log in one process is a slip in a test, not worth an end.
    let _ = log.with_ansi(std::io::stderr().is_terminal()).with_writer(Both(ring)).try_init();
}

/// Tells warnings as plain lines beside the output: for commands that run one prompt and keep no log.
pub(crate) fn tell_warnings() {
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).without_time().with_level(false);
    // A second log in one process is a slip in a test, not worth an end.
    let _ = log.with_target(false).with_ansi(false).with_writer(std::io::stderr).try_init();
}

/// Writes lines to the terminal and the ring.
struct Both(LogRing);

/// One line, told when it is whole.
struct Line<'a> {
    ring: &'a LogRing,
    bytes: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Both {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { ring: &self.0, bytes: Vec::new() }
    }
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Drop for Line<'_> {
    fn drop(&mut self) {
        self.ring.push(&String::from_utf8_lossy(&self.bytes));
        // A terminal that is gone does not end the server.
        let _ = std::io::stderr().lock().write_all(&self.bytes);
    }
}
