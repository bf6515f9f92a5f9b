//! How soon `/gantry/now` answers while the server is busy.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use crate::bench::server::measuring::Spread;
use crate::http;

/// How long is waited between two questions.
const PAUSE: Duration = Duration::from_millis(2);
/// How long an answer may take before it counts as none.
const PATIENCE: Duration = Duration::from_secs(30);

/// The answers of one phase.
#[derive(Serialize)]
pub(super) struct Answers {
    pub(super) name: String,
    pub(super) questions: usize,
    /// How long the phase took.
    pub(super) seconds: f64,
    pub(super) ms: Spread,
}

/// Asks again and again while `work` is done.
pub(super) fn while_doing<T>(
    name: &str,
    address: &str,
    work: impl FnOnce() -> Result<T>,
) -> Result<(Answers, T)> {
    let is_done = AtomicBool::new(false);
    let begun = Instant::now();
    let (done, times) = std::thread::scope(|scope| {
        let asking = scope.spawn(|| ask_until(address, &is_done));
        let done = work();
        is_done.store(true, Ordering::Relaxed);
        (done, asking.join())
    });
    let times = times.map_err(|_| anyhow!("the thread that asks failed"))??;
    let (questions, seconds) = (times.len(), begun.elapsed().as_secs_f64());
    let ms = Spread::of(times).context("nothing was asked")?;
    Ok((Answers { name: name.to_owned(), questions, seconds, ms }, done?))
}

/// The milliseconds of every answer; there is one at least.
fn ask_until(address: &str, is_done: &AtomicBool) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    loop {
        let begun = Instant::now();
        let answer = http::get(address, "/gantry/now?jobs=1", PATIENCE)?;
        times.push(begun.elapsed().as_secs_f64() * 1e3);
        ensure!(answer.status == 200, "/gantry/now answered {}: {}", answer.status, answer.body.trim());
        if is_done.load(Ordering::Relaxed) {
            return Ok(times);
        }
        std::thread::sleep(PAUSE);
    }
}
