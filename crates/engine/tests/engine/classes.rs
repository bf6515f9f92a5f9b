//! Small node classes whose behaviour a test can steer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use graph::{Call, Catalogue, Failure, Input, Literal, NodeClass, Outcome, Schema, map};

/// What the tests' nodes share.
#[derive(Default)]
pub(crate) struct Props {
    /// How many `Wait` nodes may still go on.
    permits: Mutex<usize>,
    changed: Condvar,
    /// How many `Wait` nodes have started.
    pub(crate) waiting: AtomicUsize,
    /// How many `Count` nodes have run.
    pub(crate) counted: AtomicUsize,
}

impl Props {
    /// Lets `Wait` nodes go on.
    pub(crate) fn permit(&self, count: usize) {
        *self.permits.lock().unwrap() += count;
        self.changed.notify_all();
    }

    /// Waits until so many `Wait` nodes have started.
    pub(crate) fn until_waiting(&self, count: usize) {
        super::support::until("a node waits", || self.waiting.load(Ordering::SeqCst) >= count);
    }

    fn wait(&self, call: &Call) -> Result<(), Failure> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut permits = self.permits.lock().unwrap();
        while *permits == 0 {
            call.check()?;
            permits = self.changed.wait_timeout(permits, Duration::from_millis(1)).unwrap().0;
        }
        *permits -= 1;
        Ok(())
    }
}

/// All classes of the tests.
pub(crate) fn catalogue(props: &Arc<Props>) -> Catalogue {
    let mut catalogue = Catalogue::default();
    catalogue.add(Show);
    catalogue.add(Echo);
    catalogue.add(Steps);
    catalogue.add(Fail);
    catalogue.add(Tattle);
    catalogue.add(Wait(Arc::clone(props)));
    catalogue.add(Count(Arc::clone(props)));
    catalogue
}

fn shown(text: &str) -> Outcome {
    Outcome::default().with_ui(map([("text", vec![text].into())]))
}

/// Shows a text.
struct Show;

impl NodeClass for Show {
    fn schema(&self) -> Schema {
        Schema::new("Show", "test").input(Input::text("text", "")).output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(shown(call.text("text")?))
    }
}

/// Passes a text on.
struct Echo;

impl NodeClass for Echo {
    fn schema(&self) -> Schema {
        Schema::new("Echo", "test").input(Input::text("text", "")).output("STRING")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.text("text")?))
    }
}

/// Tells so many steps.
struct Steps;

impl NodeClass for Steps {
    fn schema(&self) -> Schema {
        Schema::new("Steps", "test").input(Input::int("steps", 2, 0, 1000)).output("STRING")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let steps = call.int("steps")?;
        for step in 1..=steps {
            call.progress(step as f64, steps as f64, None)?;
        }
        Ok(Outcome::one("done"))
    }
}

/// Fails in one of several ways.
struct Fail;

impl NodeClass for Fail {
    fn schema(&self) -> Schema {
        let how = Input::choice("how", ["value", "memory", "panic"]);
        Schema::new("Fail", "test").input(how).output("STRING").output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        match call.text("how")? {
            "memory" => Err(Failure::OutOfMemory("null:0 has 1 byte and 2 are wanted".to_owned())),
            "panic" => panic!("a node panics"),
            _ => Err(Failure::value("this value cannot be")),
        }
    }
}

/// Shows the secrets it was given, and fails with them.
struct Tattle;

impl NodeClass for Tattle {
    fn schema(&self) -> Schema {
        Schema::new("Tattle", "test").input(Input::boolean("fails", false)).output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let secrets: Vec<&str> = call.job.secrets.values().filter_map(Literal::as_text).collect();
        let text = format!("known: {}", secrets.join(" "));
        if call.boolean("fails")? { Err(Failure::value(text)) } else { Ok(shown(&text)) }
    }
}

/// Waits for a permit. It runs every time.
struct Wait(Arc<Props>);

impl NodeClass for Wait {
    fn schema(&self) -> Schema {
        Schema::new("Wait", "test").input(Input::text("name", "")).output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        self.0.wait(call)?;
        Ok(shown(call.text("name")?))
    }

    fn fingerprint(&self, _: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(Literal::Float(f64::NAN)))
    }
}

/// Counts how often it runs.
struct Count(Arc<Props>);

impl NodeClass for Count {
    fn schema(&self) -> Schema {
        Schema::new("Count", "test").output_node()
    }

    fn run(&self, _: &Call) -> Result<Outcome, Failure> {
        let count = self.0.counted.fetch_add(1, Ordering::SeqCst);
        Ok(shown(&count.to_string()))
    }
}
