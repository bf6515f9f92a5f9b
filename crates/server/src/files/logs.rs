//! The last lines of the log, for the front end's terminal.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use meta::Moment;
use serde::Serialize;

/// How many entries are kept.
const CAPACITY: usize = 300;

/// One entry of the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    /// When, in UTC.
    #[serde(rename = "t")]
    pub time: String,
    /// What, usually with the end of the line.
    #[serde(rename = "m")]
    pub message: String,
}

/// Takes an entry to a client; says whether the client is still there.
type Delivery = Box<dyn Fn(&str, &LogEntry) -> bool + Send + Sync>;

/// The last entries of the log, and the clients that follow it. Clones share them.
///
/// It is fed as a writer: `tracing_subscriber`'s `fmt` layer takes `move || logs.clone()` and writes one event
/// at a time. It is read by the routes under `/internal/logs`.
#[derive(Clone, Default)]
pub struct LogRing(Arc<Inner>);

#[derive(Default)]
struct Inner {
    entries: Mutex<VecDeque<LogEntry>>,
    followers: Mutex<BTreeSet<String>>,
    delivery: OnceLock<Delivery>,
}

impl LogRing {
    /// Adds a message. One that begins with a carriage return replaces an unfinished line, as in a terminal.
    pub fn push(&self, message: &str) {
        let entry = LogEntry { time: utc(SystemTime::now()), message: message.to_owned() };
        {
            let mut entries = locked(&self.0.entries);
            let is_rewritten =
                message.starts_with('\r') && entries.back().is_some_and(|last| !last.message.ends_with('\n'));
            if is_rewritten || entries.len() == CAPACITY {
                if is_rewritten {
                    entries.pop_back()
                } else {
                    entries.pop_front()
                };
            }
            entries.push_back(entry.clone());
        }
        self.deliver(&entry);
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<LogEntry> {
        locked(&self.0.entries).iter().cloned().collect()
    }

    /// Says how entries reach the clients that follow: called with the client's id and the entry, it returns
    /// whether the client is still connected. It must not write to the log itself. Only the first call counts.
    pub fn deliver_with(&self, delivery: impl Fn(&str, &LogEntry) -> bool + Send + Sync + 'static) {
        if self.0.delivery.set(Box::new(delivery)).is_err() {
            tracing::warn!("the log has a way to its followers already");
        }
    }

    /// Lets a client follow, or no longer.
    pub fn follow(&self, client: &str, is_following: bool) {
        let mut followers = locked(&self.0.followers);
        if is_following {
            followers.insert(client.to_owned());
        } else {
            followers.remove(client);
        }
    }

    /// No lock is held while a client is told, so that telling may take its time and may itself be logged.
    fn deliver(&self, entry: &LogEntry) {
        let Some(delivery) = self.0.delivery.get() else { return };
        let followers: Vec<String> = locked(&self.0.followers).iter().cloned().collect();
        for client in followers {
            if !delivery(&client, entry) {
                self.follow(&client, false);
            }
        }
    }
}

impl io::Write for LogRing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for LogRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = locked(&self.0.entries).len();
        f.debug_struct("LogRing").field("entries", &entries).finish_non_exhaustive()
    }
}

/// A thread that panicked while it held the lock left a whole list behind: nothing here can fail half way.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A time as `2026-01-31T23:59:59.123456+00:00`.
fn utc(time: SystemTime) -> String {
    format!("{}+00:00", Moment::utc(time).to_text(6))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    #[test]
    fn only_the_last_entries_are_kept() {
        let ring = LogRing::default();
        for number in 0..CAPACITY + 5 {
            ring.push(&format!("{number}\n"));
        }
        let entries = ring.entries();
        assert_eq!(entries.len(), CAPACITY);
        assert_eq!(entries[0].message, "5\n");
        assert_eq!(entries[CAPACITY - 1].message, format!("{}\n", CAPACITY + 4));
    }

    #[test]
    fn a_carriage_return_rewrites_an_unfinished_line() {
        let ring = LogRing::default();
        for message in ["start\n", "\r10%", "\r20%", "\r30%\n", "\r1%"] {
            ring.push(message);
        }
        let messages: Vec<String> = ring.entries().into_iter().map(|entry| entry.message).collect();
        assert_eq!(messages, ["start\n", "\r30%\n", "\r1%"]);
    }

    #[test]
    fn followers_are_told_until_they_are_gone() {
        let ring = LogRing::default();
        let told = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&told);
        ring.deliver_with(move |client, entry| {
            seen.lock().unwrap().push(format!("{client}:{}", entry.message));
            client != "gone"
        });
        ring.push("a");
        ring.follow("here", true);
        ring.follow("gone", true);
        ring.push("b");
        ring.push("c");
        ring.follow("here", false);
        ring.push("d");
        assert_eq!(*told.lock().unwrap(), ["gone:b", "here:b", "here:c"]);
    }

    #[test]
    fn times_are_told_in_utc() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000000+00:00");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.000000+00:00");
    }
}
