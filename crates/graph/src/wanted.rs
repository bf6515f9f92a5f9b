//! Which job a thread works for now. Long loops deep in a node ask whether it is still wanted, without the call being
//! passed on to them.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::class::{Failure, JobContext};

thread_local! {
    static JOB: RefCell<Wanted> = const { RefCell::new(Wanted(None)) };
}

/// Fails if the job that this thread works for is to end. Work on the host that grows with a picture asks this for every
/// row or so, so that it ends well within a second at any size.
///
/// # Errors
/// [`Failure::Interrupted`].
pub fn still_wanted() -> Result<(), Failure> {
    JOB.with_borrow(Wanted::check)
}

/// The job that a thread works for, to be asked by threads that help it.
#[derive(Clone)]
pub struct Wanted(Option<Arc<JobContext>>);

impl Wanted {
    /// The job of this thread; work that is part of no job is always wanted.
    #[must_use]
    pub fn here() -> Wanted {
        JOB.with_borrow(Wanted::clone)
    }

    /// A job.
    pub(crate) fn by(job: &Arc<JobContext>) -> Wanted {
        Wanted(Some(Arc::clone(job)))
    }

    /// Fails if the job is to end.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn check(&self) -> Result<(), Failure> {
        let is_over =
            |job: &Arc<JobContext>| job.cancel.load(Ordering::Relaxed) || job.ended.load(Ordering::Relaxed);
        if self.0.as_ref().is_some_and(is_over) { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Works for the job in this thread.
    pub fn during<T>(&self, work: impl FnOnce() -> T) -> T {
        /// Puts back what was there, also if the work panics.
        struct Before(Wanted);

        impl Drop for Before {
            fn drop(&mut self) {
                JOB.replace(std::mem::replace(&mut self.0, Wanted(None)));
            }
        }

        let _before = Before(JOB.replace(self.clone()));
        work()
    }
}

impl std::fmt::Debug for Wanted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Wanted").field(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_wanted_until_its_job_is_to_end() {
        assert_eq!(still_wanted(), Ok(()));
        let job = Arc::new(JobContext::alone());
        Wanted::by(&job).during(|| {
            let here = Wanted::here();
            assert_eq!((still_wanted(), here.check()), (Ok(()), Ok(())));
            job.cancel.store(true, Ordering::Relaxed);
            assert_eq!(still_wanted(), Err(Failure::Interrupted));
            let helped = std::thread::spawn(move || (still_wanted(), here.during(still_wanted)));
            assert_eq!(helped.join().unwrap(), (Ok(()), Err(Failure::Interrupted)));
        });
        assert_eq!(still_wanted(), Ok(()));
    }
}
