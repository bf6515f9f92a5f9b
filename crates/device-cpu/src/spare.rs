//! Threads for work that nobody waits for, such as coding weights while steps run: one fewer than there are processors, of
//! the lowest priority, so that whatever else wants a processor gets it first.

use std::sync::Arc;

use device::{Cancel, HostExecutor, OpCall, Result, Span};
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::backend::CpuExecutor;

/// The threads; none where the system gives no more, and then the caller's do the work.
pub(crate) struct SpareThreads(Option<ThreadPool>);

impl SpareThreads {
    /// Starts them.
    pub(crate) fn start() -> Arc<SpareThreads> {
        let count = rayon::current_num_threads().saturating_sub(1).max(1);
        let builder =
            ThreadPoolBuilder::new().num_threads(count).thread_name(|index| format!("spare-{index}"));
        Arc::new(SpareThreads(builder.start_handler(|_| yield_to_others()).build().ok()))
    }

    fn install<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        match &self.0 {
            Some(pool) => pool.install(work),
            None => work(),
        }
    }
}

/// Gives the calling thread the lowest priority. A system that refuses leaves it as it is.
#[cfg(target_os = "linux")]
fn yield_to_others() {
    const LOWEST: libc::c_int = 19;
    // SAFETY: the call takes plain numbers. Here a process of 0 is the calling thread, which may always give way.
    let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, LOWEST) };
}

/// Elsewhere priorities are those of whole processes.
#[cfg(not(target_os = "linux"))]
fn yield_to_others() {}

/// Runs kernels in spare threads; whoever calls waits.
pub(crate) struct SpareExecutor {
    pub(crate) threads: Arc<SpareThreads>,
}

impl HostExecutor for SpareExecutor {
    fn run(&self, call: &OpCall, cancel: &Cancel) -> Result<()> {
        self.threads.install(|| CpuExecutor.run(call, cancel))
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> Result<()> {
        self.threads.install(|| CpuExecutor.copy(to, from, cancel))
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> Result<()> {
        self.threads.install(|| CpuExecutor.read(from, to, cancel))
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> Result<()> {
        self.threads.install(|| CpuExecutor.write(to, from, cancel))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Work runs in threads of its own, and on Linux these give way to all others.
    #[test]
    fn spare_threads_give_way() {
        let threads = SpareThreads::start();
        let name = threads.install(|| std::thread::current().name().unwrap_or_default().to_owned());
        assert!(name.starts_with("spare-"), "{name}");
        #[cfg(target_os = "linux")]
        {
            // The nineteenth field of a thread's line is its niceness; the name before may have spaces in it.
            let line = threads.install(|| std::fs::read_to_string("/proc/thread-self/stat").unwrap());
            let after_name = line.rsplit_once(')').unwrap().1;
            assert_eq!(after_name.split_whitespace().nth(16), Some("19"), "{line}");
        }
    }
}
