//! The thread that nodes run on, one call after the other. A call whose job is to end is waited for only a moment: the job
//! ends, and what comes of the call is nobody's. The next call waits until the thread is free.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use crate::class::{Call, Failure, NodeClass, Outcome};
use crate::guard::guarded;
use crate::wanted::Wanted;

/// How long a node may take to see that its job is to end.
const PATIENCE: Duration = Duration::from_millis(600);
/// Time between two looks at whether the job is to end; an answer is taken at once.
const LOOK_INTERVAL: Duration = Duration::from_millis(25);

/// The thread; it starts with the first call and ends after the last.
#[derive(Default)]
pub(super) struct Runner {
    orders: Option<Sender<Order>>,
}

struct Order {
    class: Arc<dyn NodeClass>,
    call: Call,
    answer: Sender<Result<Outcome, Failure>>,
}

impl Runner {
    /// Runs a node once.
    pub(super) fn run(&mut self, class: &Arc<dyn NodeClass>, call: Call) -> Result<Outcome, Failure> {
        let job = Arc::clone(&call.job);
        let (answer, answered) = channel();
        let mut order = Order { class: Arc::clone(class), call, answer };
        if let Some(orders) = &self.orders {
            match orders.send(order) {
                Ok(()) => return wait(&answered, || job.cancel.load(Ordering::Relaxed)),
                // The thread ended, which only an abort of it could do; another takes its place.
                Err(unsent) => order = unsent.0,
            }
        }
        let orders = self.orders.insert(start()?);
        orders.send(order).map_err(|_| gone())?;
        wait(&answered, || job.cancel.load(Ordering::Relaxed))
    }
}

fn start() -> Result<Sender<Order>, Failure> {
    let (orders, taken) = channel::<Order>();
    let work = move || {
        for Order { class, call, answer } in taken {
            let result =
                call.check().and_then(|()| Wanted::by(&call.job).during(|| guarded(|| class.run(&call))));
            // What the call holds goes before its answer comes, so that nothing of a node is left when it is done.
            drop((class, call));
            // Nobody listens any more if the job has ended.
            let _ = answer.send(result);
        }
    };
    let thread = std::thread::Builder::new().name("nodes".to_owned()).spawn(work);
    thread.map_err(|error| Failure::error("RuntimeError", format!("no thread for nodes: {error}")))?;
    Ok(orders)
}

/// Waits for an answer, and no longer than a moment if the job is to end.
fn wait(
    answered: &Receiver<Result<Outcome, Failure>>,
    is_cancelled: impl Fn() -> bool,
) -> Result<Outcome, Failure> {
    let mut since: Option<Instant> = None;
    loop {
        match answered.recv_timeout(LOOK_INTERVAL) {
            Ok(result) => return result,
            Err(RecvTimeoutError::Disconnected) => return Err(gone()),
            Err(RecvTimeoutError::Timeout) if !is_cancelled() => {}
            Err(RecvTimeoutError::Timeout) => {
                if since.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(Failure::Interrupted);
                }
            }
        }
    }
}

fn gone() -> Failure {
    Failure::error("RuntimeError", "the thread of the node ended before the node did")
}
