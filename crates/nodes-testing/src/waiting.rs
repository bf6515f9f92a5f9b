//! Nodes that wait: side by side, with progress, or until they fail.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use graph::{Call, Catalogue, Failure, Hidden, Input, Kind, NodeClass, Outcome, RunEvent, Schema};

use super::arithmetic::square;
use super::expansion::{Expansion, constant, known, link, linked_slot};
use super::schema;

const CATEGORY: &str = "_for_testing/async";

/// How often a node that waits tells how far it is and looks whether it is to end.
const TICK: Duration = Duration::from_millis(10);

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue) {
    catalogue.add(Sleep);
    catalogue.add(ParallelSleep);
    catalogue.add(DynamicSleep);
    catalogue.add(AsyncError);
    catalogue.add(SyncError);
    catalogue.add(AsyncTimeout);
    catalogue.add(AsyncLazyCheck);
    catalogue.add(ResourceUser::default());
    catalogue.add(AsyncProgress);
    catalogue.add(SyncProgress);
}

/// Waits, and tells at each tick for how long it has waited.
fn wait(seconds: f64, mut tell: impl FnMut(f64) -> Result<(), Failure>) -> Result<(), Failure> {
    let start = Instant::now();
    let mut elapsed = 0.0;
    while elapsed < seconds {
        tell(elapsed)?;
        std::thread::sleep(TICK.min(Duration::from_secs_f64((seconds - elapsed).min(1.0))));
        elapsed = start.elapsed().as_secs_f64();
    }
    Ok(())
}

fn seconds(name: &str, default: f64, min: f64, max: f64) -> Input {
    Input::new(name, Kind::Float).with("default", default).with("min", min).with("max", max)
}

fn passing(class: &str) -> Schema {
    schema(class, CATEGORY).input(Input::socket("value", "*"))
}

fn pass(call: &Call) -> Result<Outcome, Failure> {
    Ok(Outcome::one(call.value("value")?.clone()))
}

/// Waits beside others and passes a value on.
struct Sleep;

impl NodeClass for Sleep {
    fn schema(&self) -> Schema {
        schema("TestSleep", "_for_testing")
            .title("Test Sleep")
            .input(Input::socket("value", "*"))
            .input(seconds("seconds", 1.0, 0.0, 9999.0).with("step", 0.01).tooltip("How long it waits."))
            .hidden("unique_id", Hidden::UniqueId)
            .output("*")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let seconds = call.float("seconds")?;
        wait(seconds, |elapsed| call.progress(elapsed, seconds, None))?;
        pass(call)
    }

    fn is_concurrent(&self) -> bool {
        true
    }
}

/// Expands into nodes that wait, and averages what they pass on.
fn average_of_sleeps(call: &Call, sleeps: &[(&str, f64)]) -> Result<Outcome, Failure> {
    let mut expansion = Expansion::new(call);
    let mut waiting = Vec::new();
    for (image, seconds) in sleeps {
        let inputs = [("value", known(call.value(image)?)), ("seconds", constant(*seconds))];
        waiting.push(expansion.node("TestSleep", inputs));
    }
    if let [only] = waiting.as_slice() {
        let slot = linked_slot(only, 0);
        return Ok(expansion.giving([slot]));
    }
    let average = expansion.node("TestVariadicAverage", []);
    for (number, node) in (1..).zip(&waiting) {
        expansion.set(&average, &format!("input{number}"), link(node, 0));
    }
    Ok(expansion.giving([linked_slot(&average, 0)]))
}

/// Expands into three nodes that wait, each for a time of its own.
struct ParallelSleep;

impl NodeClass for ParallelSleep {
    fn schema(&self) -> Schema {
        let images = ["image1", "image2", "image3"].map(|name| Input::socket(name, "IMAGE"));
        let times =
            ["sleep1", "sleep2", "sleep3"].map(|name| seconds(name, 0.5, 0.0, 10.0).with("step", 0.01));
        let start = schema("TestParallelSleep", "_for_testing").title("Test Parallel Sleep");
        let schema = images.into_iter().chain(times).fold(start, Schema::input);
        schema.hidden("unique_id", Hidden::UniqueId).output("IMAGE").output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let sleeps = [
            ("image1", call.float("sleep1")?),
            ("image2", call.float("sleep2")?),
            ("image3", call.float("sleep3")?),
        ];
        average_of_sleeps(call, &sleeps)
    }
}

/// Expands into as many nodes that wait as it is told.
struct DynamicSleep;

impl NodeClass for DynamicSleep {
    fn schema(&self) -> Schema {
        schema("TestDynamicAsyncGeneration", CATEGORY)
            .input(Input::socket("image1", "IMAGE"))
            .input(Input::socket("image2", "IMAGE"))
            .input(Input::int("num_async_nodes", 3, 1, 10))
            .input(seconds("sleep_duration", 0.2, 0.1, 1.0))
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let seconds = call.float("sleep_duration")?;
        // A linked count was not checked against its range.
        let count = call.size("num_async_nodes")?.clamp(1, 10);
        let sleeps: Vec<_> =
            ["image1", "image2"].into_iter().cycle().take(count).map(|name| (name, seconds)).collect();
        average_of_sleeps(call, &sleeps)
    }
}

fn meant_to_fail() -> Failure {
    Failure::error("RuntimeError", "this node fails on purpose; take it out of the workflow")
}

/// Fails after a while.
struct AsyncError;

impl NodeClass for AsyncError {
    fn schema(&self) -> Schema {
        passing("TestAsyncError").input(seconds("error_after", 0.1, 0.0, 10.0)).output("*")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        wait(call.float("error_after")?, |_| call.check())?;
        Err(meant_to_fail())
    }

    fn is_concurrent(&self) -> bool {
        true
    }
}

/// Fails at once.
struct SyncError;

impl NodeClass for SyncError {
    fn schema(&self) -> Schema {
        passing("TestSyncError").output("*")
    }

    fn run(&self, _call: &Call) -> Result<Outcome, Failure> {
        Err(meant_to_fail())
    }
}

/// Fails if its operation takes longer than it may.
struct AsyncTimeout;

impl NodeClass for AsyncTimeout {
    fn schema(&self) -> Schema {
        passing("TestAsyncTimeout")
            .input(seconds("timeout", 1.0, 0.1, 10.0))
            .input(seconds("operation_time", 2.0, 0.1, 10.0))
            .output("*")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (timeout, operation) = (call.float("timeout")?, call.float("operation_time")?);
        wait(operation.min(timeout), |_| call.check())?;
        if operation > timeout {
            let text = format!(
                "the operation takes {operation} s, more than its timeout of {timeout} s; raise the timeout"
            );
            return Err(Failure::error("RuntimeError", text));
        }
        pass(call)
    }

    fn is_concurrent(&self) -> bool {
        true
    }
}

/// Asks for one of two inputs, by a condition.
struct AsyncLazyCheck;

impl NodeClass for AsyncLazyCheck {
    fn schema(&self) -> Schema {
        schema("TestAsyncLazyCheck", CATEGORY)
            .input(Input::socket("input1", "*").with("lazy", true))
            .input(Input::socket("input2", "*").with("lazy", true))
            .input(Input::boolean("condition", true))
            .output("IMAGE")
    }

    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        let wanted = if call.boolean("condition")? { "input1" } else { "input2" };
        Ok(call.lazy_inputs().filter(|name| *name == wanted).map(str::to_owned).collect())
    }

    fn run(&self, _call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::object(square(1.0)?))
    }
}

/// Holds a resource for a while; two nodes must not hold the same one.
#[derive(Default)]
struct ResourceUser {
    held: Mutex<HashSet<String>>,
}

/// A resource that is held until this is dropped, also by a failure.
struct Hold<'a> {
    held: &'a Mutex<HashSet<String>>,
    name: &'a str,
}

impl Drop for Hold<'_> {
    fn drop(&mut self) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(self.name);
    }
}

impl NodeClass for ResourceUser {
    fn schema(&self) -> Schema {
        passing("TestAsyncResourceUser")
            .input(Input::text("resource_id", "resource_0"))
            .input(seconds("duration", 0.1, 0.0, 1.0))
            .output("*")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let name = call.text("resource_id")?;
        if !self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned()) {
            return Err(Failure::error(
                "RuntimeError",
                format!("the resource {name:?} is in use; take another one"),
            ));
        }
        let _hold = Hold { held: &self.held, name };
        wait(call.float("duration")?, |_| call.check())?;
        pass(call)
    }

    fn is_concurrent(&self) -> bool {
        true
    }
}

/// Waits and tells the share that has passed, by the newer way that sends no `progress` event of its own.
fn wait_with_shares(call: &Call) -> Result<Outcome, Failure> {
    let seconds = call.float("sleep_seconds")?;
    wait(seconds, |elapsed| {
        call.job.observer.event(RunEvent::Progress {
            identity: Arc::clone(&call.identity),
            value: elapsed / seconds,
            max: 1.0,
            picture: None,
            is_plain: true,
        });
        call.check()
    })?;
    pass(call)
}

fn progress_schema(class: &str) -> Schema {
    passing(class).input(Input::new("sleep_seconds", Kind::Float).with("default", 1.0)).output("*")
}

/// Tells its progress and lets others run meanwhile.
struct AsyncProgress;

impl NodeClass for AsyncProgress {
    fn schema(&self) -> Schema {
        progress_schema("TestAsyncProgressUpdate").title("Async Progress Update Test Node")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        wait_with_shares(call)
    }

    fn is_concurrent(&self) -> bool {
        true
    }
}

/// Tells its progress and lets nothing else run meanwhile.
struct SyncProgress;

impl NodeClass for SyncProgress {
    fn schema(&self) -> Schema {
        progress_schema("TestSyncProgressUpdate").title("Sync Progress Update Test Node")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        wait_with_shares(call)
    }
}
