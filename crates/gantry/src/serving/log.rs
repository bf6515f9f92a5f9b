//! The log: to the terminal, into the ring that the front end shows, and into a file where one is named.

use std::fs::{File, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};
use meta::Moment;
use server::files::LogRing;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::bars::Bars;
use crate::cli::Verbosity;
use crate::environment;

/// How the log of a server is kept.
pub(crate) struct LogConfig {
    pub(crate) verbosity: Verbosity,
    /// Whether only warnings and errors are told.
    pub(crate) is_quiet: bool,
    /// A file that gets the log, too.
    pub(crate) file: Option<PathBuf>,
}

/// Starts the log of this process. `RUST_LOG` says more exactly than a flag how loud each part is, and goes before it.
pub(crate) fn start_log(config: &LogConfig, ring: LogRing, bars: Bars) -> Result<()> {
    let filter = match environment::log_filter() {
        Some(text) => text
            .parse()
            .with_context(|| format!("RUST_LOG={text}: write such as debug, or info,server=debug"))?,
        None => Targets::new().with_default(level(config)),
    };
    let file = config.file.as_ref().map(|path| {
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("--log-file {}: it cannot be written", path.display()))
    });
    let file = file.transpose()?.map(Mutex::new);
    let has_colour = std::io::stderr().is_terminal() && file.is_none();
    let lines =
        tracing_subscriber::fmt::layer().with_target(false).with_ansi(has_colour).with_timer(LocalTime);
    let lines = lines.with_writer(Places { ring, bars, file });
    // A second log in one process is a slip in a test, not worth an end.
    let _ = tracing_subscriber::registry().with(lines.with_filter(filter)).try_init();
    Ok(())
}

fn level(config: &LogConfig) -> LevelFilter {
    match config.verbosity {
        Verbosity::Error | Verbosity::Critical => LevelFilter::ERROR,
        _ if config.is_quiet => LevelFilter::WARN,
        Verbosity::Debug => LevelFilter::DEBUG,
        Verbosity::Info => LevelFilter::INFO,
        Verbosity::Warning => LevelFilter::WARN,
    }
}

/// The time of day on this machine, to the second: what a person compares with the clock.
struct LocalTime;

impl FormatTime for LocalTime {
    fn format_time(&self, line: &mut Writer<'_>) -> std::fmt::Result {
        let now = Moment::local_now();
        write!(line, "{} {:02}:{:02}:{:02}", now.date(), now.hour(), now.minute(), now.second())
    }
}

/// Tells warnings as plain lines beside the output: for commands that run one prompt and keep no log.
pub(crate) fn tell_warnings() {
    let log = tracing_subscriber::fmt().with_max_level(LevelFilter::WARN).without_time().with_level(false);
    // A second log in one process is a slip in a test, not worth an end.
    let _ = log.with_target(false).with_ansi(false).with_writer(std::io::stderr).try_init();
}

/// Writes lines to the terminal, the ring and the file.
struct Places {
    ring: LogRing,
    bars: Bars,
    file: Option<Mutex<File>>,
}

/// One line, told when it is whole.
struct Line<'a> {
    places: &'a Places,
    bytes: Vec<u8>,
}

impl<'a> MakeWriter<'a> for Places {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { places: self, bytes: Vec::new() }
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
        let Places { ring, bars, file } = self.places;
        ring.push(&String::from_utf8_lossy(&self.bytes));
        if let Some(file) = file {
            // A full disk does not end the server.
            let _ = file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&self.bytes);
        }
        // Nor does a terminal that is gone.
        let _ = bars.between(|| std::io::stderr().lock().write_all(&self.bytes));
    }
}
