//! Which job a thread works for now. Every loop over tasks looks at that job's flag, so that one huge operation ends soon
//! after it is cancelled, and no kernel has to pass the flag on.

use std::cell::RefCell;

use device::Cancel;

thread_local! {
    static JOB: RefCell<Cancel> = const { RefCell::new(Cancel::NEVER) };
}

/// Does work for a job: the loops in it stop when the job is cancelled, and what they compute is undefined then.
pub(crate) fn work_for<T>(job: &Cancel, work: impl FnOnce() -> T) -> T {
    /// Puts back what was there, also if the work panics: a thread that waits takes up tasks of others meanwhile.
    struct Before(Cancel);

    impl Drop for Before {
        fn drop(&mut self) {
            JOB.replace(std::mem::replace(&mut self.0, Cancel::NEVER));
        }
    }

    let _before = Before(JOB.replace(job.clone()));
    work()
}

/// The tasks of one loop, which other threads may take up.
pub(crate) struct Tasks(Cancel);

impl Tasks {
    /// Tasks for the job that this thread works for.
    pub(crate) fn of_this_job() -> Tasks {
        Tasks(JOB.with_borrow(Cancel::clone))
    }

    /// Does one of them, in whatever thread; leaves it out if the job was cancelled.
    pub(crate) fn run(&self, task: impl FnOnce()) {
        if !self.is_cancelled() {
            work_for(&self.0, task);
        }
    }

    /// Whether the rest can be left out.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_of_a_cancelled_job_are_left_out_and_others_are_not() {
        let done = |job: &Cancel| {
            work_for(job, || {
                let (tasks, mut count) = (Tasks::of_this_job(), 0);
                (0..10).for_each(|task| {
                    tasks.run(|| {
                        count += 1;
                        if task == 3 {
                            job.cancel();
                        }
                    });
                });
                count
            })
        };
        assert_eq!(done(&Cancel::default()), 4);
        assert_eq!(done(&Cancel::NEVER), 10);
        assert!(!Tasks::of_this_job().is_cancelled());
    }

    #[test]
    fn work_within_work_is_for_its_own_job() {
        let (outer, inner) = (Cancel::default(), Cancel::default());
        work_for(&outer, || {
            inner.cancel();
            work_for(&inner, || assert!(Tasks::of_this_job().is_cancelled()));
            assert!(!Tasks::of_this_job().is_cancelled());
        });
    }
}
