//! The made-up nodes, and a stage that runs prompts of them and writes down what is told.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use graph::{
    Accepted, CacheMode, Call, Catalogue, ErrorDetail, Executor, Fact, Failure, Given, GraphInput, GraphNode,
    Hidden, Input, Link, Literal, Map, NodeClass, Object, Outcome, Outputs, Prompt, Rejected, RunEnd,
    RunEvent, RunReport, RunRequest, Schema, Slot, Validates, Value, Verdict, map, validate,
};
use serde_json::Value as Json;

type Run = dyn Fn(&Call) -> Result<Outcome, Failure> + Send + Sync;
type Needs = dyn Fn(&Call) -> Vec<String> + Send + Sync;
type Print = dyn Fn(&Call) -> Result<Option<Literal>, Failure> + Send + Sync;
type Check = dyn Fn(&Given<'_>) -> Result<Verdict, Failure> + Send + Sync;

/// A class made of closures.
pub(crate) struct Toy {
    pub(crate) schema: Schema,
    run: Box<Run>,
    needs: Option<Box<Needs>>,
    fingerprint: Option<Box<Print>>,
    check: Option<(Validates, Box<Check>)>,
    is_concurrent: bool,
}

impl Toy {
    pub(crate) fn new(
        schema: Schema,
        run: impl Fn(&Call) -> Result<Outcome, Failure> + Send + Sync + 'static,
    ) -> Toy {
        Toy { schema, run: Box::new(run), needs: None, fingerprint: None, check: None, is_concurrent: false }
    }

    pub(crate) fn needing(mut self, needs: impl Fn(&Call) -> Vec<String> + Send + Sync + 'static) -> Toy {
        self.needs = Some(Box::new(needs));
        self
    }

    pub(crate) fn fingerprinted(
        mut self,
        print: impl Fn(&Call) -> Result<Option<Literal>, Failure> + Send + Sync + 'static,
    ) -> Toy {
        self.fingerprint = Some(Box::new(print));
        self
    }

    pub(crate) fn checking(
        mut self,
        validates: Validates,
        check: impl Fn(&Given<'_>) -> Result<Verdict, Failure> + Send + Sync + 'static,
    ) -> Toy {
        self.check = Some((validates, Box::new(check)));
        self
    }

    pub(crate) fn concurrent(mut self) -> Toy {
        self.is_concurrent = true;
        self
    }
}

impl NodeClass for Toy {
    fn schema(&self) -> Schema {
        self.schema.clone()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        (self.run)(call)
    }

    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        match &self.needs {
            Some(needs) => Ok(needs(call)),
            None => Ok(call.lazy_inputs().map(str::to_owned).collect()),
        }
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        self.fingerprint.as_ref().map_or(Ok(None), |print| print(call))
    }

    fn validates(&self) -> Validates {
        self.check.as_ref().map(|(validates, _)| validates.clone()).unwrap_or_default()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        self.check.as_ref().map_or(Ok(Verdict::Good), |(_, check)| check(given))
    }

    fn is_concurrent(&self) -> bool {
        self.is_concurrent
    }
}

/// Something in memory.
#[derive(Debug)]
pub(crate) struct Thing(pub i64);

impl Object for Thing {
    fn describe(&self) -> String {
        format!("thing {}", self.0)
    }
}

/// A node of an expansion.
pub(crate) fn node(class: &str, inputs: impl IntoIterator<Item = (&'static str, GraphInput)>) -> GraphNode {
    let inputs = inputs.into_iter().map(|(name, input)| (name.to_owned(), input)).collect();
    GraphNode { class: class.to_owned(), inputs, display: None }
}

/// A constant of an expansion's node.
pub(crate) fn constant(value: impl Into<Literal>) -> GraphInput {
    GraphInput::Literal(value.into())
}

fn basics(catalogue: &mut Catalogue) {
    let number = Schema::new("Number", "toys").input(Input::int("value", 0, -1000, 1000)).output("INT");
    catalogue.add(Toy::new(number, |call| Ok(Outcome::one(call.int("value")?))));
    let add = Schema::new("Add", "toys")
        .input(Input::int("a", 0, -1000, 1000))
        .input(Input::int("b", 0, -1000, 1000))
        .output("INT");
    catalogue.add(Toy::new(add, |call| Ok(Outcome::one(call.int("a")? + call.int("b")?))));
    let show = Schema::new("Show", "toys").input(Input::socket("value", "*")).output_node();
    catalogue.add(Toy::new(show, |call| {
        let value = call.value("value")?;
        let shown = value.literal().cloned().unwrap_or_else(|| value.describe().into());
        let ui = map([("value", Literal::List(vec![shown]))]);
        Ok(Outcome::default().with_ui(ui))
    }));
    let text = Schema::new("Text", "toys").input(Input::text("text", "")).output("STRING");
    catalogue.add(Toy::new(text, |call| Ok(Outcome::one(call.text("text")?))));
    let truth = Schema::new("Truth", "toys").input(Input::socket("value", "*")).output("BOOLEAN");
    catalogue.add(Toy::new(truth, |call| Ok(Outcome::one(call.boolean("value")?))));
    let thing = Schema::new("Thing", "toys").input(Input::int("value", 0, -1000, 1000)).output("THING");
    catalogue.add(Toy::new(thing, |call| Ok(Outcome::object(Thing(call.int("value")?)))));
    let all = Schema::new("AddAll", "toys").input(Input::int("value1", 0, -1000, 1000)).output("INT");
    catalogue.add(Toy::new(all, |call| {
        let sum: Result<i64, Failure> = call.inputs.values.keys().map(|name| call.int(name)).sum();
        Ok(Outcome::one(sum?))
    }));
}

fn lists_and_lazy(catalogue: &mut Catalogue) {
    let list = Schema::new("List", "toys").input(Input::int("count", 1, 0, 1000)).list_output("INT", "items");
    catalogue.add(Toy::new(list, |call| {
        Ok(Outcome::slots([Slot::Many((0..call.int("count")?).map(Value::from).collect())]))
    }));
    let sum = Schema::new("Sum", "toys").input(Input::socket("values", "INT")).output("INT").takes_lists();
    catalogue.add(Toy::new(sum, |call| {
        let values = call.inputs.list("values");
        let sum: i128 = values.iter().filter_map(|value| value.literal()?.as_int()).sum();
        Ok(Outcome::one(sum))
    }));
    let switch = Schema::new("Switch", "toys")
        .input(Input::boolean("condition", true))
        .input(Input::socket("yes", "*").with("lazy", true))
        .input(Input::socket("no", "*").with("lazy", true).optional())
        .output("*");
    let wanted = |call: &Call| if call.boolean("condition").unwrap() { "yes" } else { "no" };
    let toy = Toy::new(switch, move |call| Ok(Outcome::one_value(call.value(wanted(call))?)));
    catalogue.add(toy.needing(move |call| vec![wanted(call).to_owned()]));
    let stop = Schema::new("Stop", "toys")
        .input(Input::socket("value", "*"))
        .input(Input::boolean("stop", true))
        .input(Input::text("message", ""))
        .output("*");
    catalogue.add(Toy::new(stop, |call| {
        let message = Some(call.text("message")?).filter(|text| !text.is_empty()).map(Arc::from);
        if call.boolean("stop")? {
            return Ok(Outcome { outputs: Outputs::Blocked(message), ..Outcome::default() });
        }
        Ok(Outcome::one_value(call.value("value")?))
    }));
}

fn faults_and_time(catalogue: &mut Catalogue) {
    let fail = Schema::new("Fail", "toys")
        .input(Input::socket("value", "*"))
        .input(Input::choice("how", ["error", "memory", "panic", "interrupt"]))
        .output("*");
    catalogue.add(Toy::new(fail, |call| match call.text("how")? {
        "memory" => Err(Failure::OutOfMemory("cuda:0 has 1 GB, 2 GB are wanted".to_owned())),
        "panic" => panic!("a bug"),
        "interrupt" => Err(Failure::Interrupted),
        _ => Err(Failure::value("it is broken")),
    }));
    let sleep = Schema::new("Sleep", "toys")
        .input(Input::socket("value", "*"))
        .input(Input::int("ms", 1, 0, 60_000))
        .hidden("unique_id", Hidden::UniqueId)
        .output("*");
    let toy = Toy::new(sleep, |call| {
        for _ in 0..call.int("ms")? {
            std::thread::sleep(Duration::from_millis(1));
            call.check()?;
        }
        Ok(Outcome::one_value(call.value("value")?))
    });
    catalogue.add(toy.concurrent());
    let changing = Schema::new("Changing", "toys")
        .input(Input::choice("how", ["never", "always", "broken"]))
        .output("INT");
    let toy = Toy::new(changing, |_| Ok(Outcome::one(7_i64)));
    catalogue.add(toy.fingerprinted(|call| match call.text("how")? {
        "always" => Ok(Some(Literal::Float(f64::NAN))),
        "broken" => Err(Failure::value("no fingerprint")),
        _ => Ok(Some(Literal::Bool(false))),
    }));
}

fn expanding(catalogue: &mut Catalogue) {
    let triple = Schema::new("Triple", "toys").input(Input::int("value", 0, -1000, 1000)).output("INT");
    catalogue.add(Toy::new(triple, |call| {
        let value = || constant(call.int("value").unwrap());
        let (twice, thrice) = (call.child("twice"), call.child("thrice"));
        let nodes = [
            (Arc::clone(&twice), node("Add", [("a", value()), ("b", value())])),
            (
                Arc::clone(&thrice),
                node("Add", [("a", GraphInput::Link(Link::new(twice, 0))), ("b", value())]),
            ),
        ];
        Ok(Outcome::slots([Slot::Link(Link::new(thrice, 0))]).expanding(nodes.into_iter().collect()))
    }));
    let repeat = Schema::new("Repeat", "toys")
        .input(Input::int("times", 0, 0, 100_000))
        .input(Input::int("value", 0, -1000, 100_000))
        .output("INT");
    catalogue.add(Toy::new(repeat, |call| {
        let (times, value) = (call.int("times")?, call.int("value")?);
        if times == 0 {
            return Ok(Outcome::one(value));
        }
        let (more, again) = (call.child("more"), call.child("again"));
        let next = GraphInput::Link(Link::new(Arc::clone(&more), 0));
        let mut recursion = node("Repeat", [("times", constant(times - 1)), ("value", next)]);
        recursion.display = Some("shown".into());
        let nodes = [
            (more, node("Add", [("a", constant(value)), ("b", constant(1_i64))])),
            (Arc::clone(&again), recursion),
        ];
        Ok(Outcome::slots([Slot::Link(Link::new(again, 0))]).expanding(nodes.into_iter().collect()))
    }));
    let ring = Schema::new("Ring", "toys").input(Input::int("value", 0, 0, 9)).output("INT");
    catalogue.add(Toy::new(ring, |call| {
        let (one, two) = (call.child("one"), call.child("two"));
        let link = |id: &Arc<str>| GraphInput::Link(Link::new(Arc::clone(id), 0));
        let nodes = [
            (Arc::clone(&one), node("Add", [("a", link(&two)), ("b", constant(1_i64))])),
            (Arc::clone(&two), node("Add", [("a", link(&one)), ("b", constant(1_i64))])),
        ];
        Ok(Outcome::slots([Slot::Link(Link::new(two, 0))]).expanding(nodes.into_iter().collect()))
    }));
}

/// A value passed on as it is.
pub(crate) trait PassOn {
    fn one_value(value: &Value) -> Outcome;
}

impl PassOn for Outcome {
    fn one_value(value: &Value) -> Outcome {
        Outcome::values([value.clone()])
    }
}

pub(crate) fn toys() -> Catalogue {
    let mut catalogue = Catalogue::default();
    basics(&mut catalogue);
    lists_and_lazy(&mut catalogue);
    faults_and_time(&mut catalogue);
    expanding(&mut catalogue);
    catalogue
}

/// The facts of an error by the names that clients have for them.
pub(crate) fn facts_of(error: &ErrorDetail) -> Map {
    let name = |fact: Fact| match fact {
        Fact::InputName => "input_name",
        Fact::InputConfig => "input_config",
        Fact::ReceivedValue => "received_value",
        Fact::ReceivedType => "received_type",
        Fact::LinkedNode => "linked_node",
        Fact::ExceptionMessage => "exception_message",
        Fact::ExceptionType => "exception_type",
        Fact::Traceback => "traceback",
        Fact::NodeId => "node_id",
        Fact::ClassType => "class_type",
        Fact::NodeTitle => "node_title",
        Fact::CycleNodes => "cycle_nodes",
    };
    error.facts.iter().map(|(fact, value)| (name(*fact).to_owned(), value.clone())).collect()
}

pub(crate) fn literal(json: Json) -> Literal {
    serde_json::from_value(json).unwrap()
}

pub(crate) fn prompt(json: Json) -> Prompt {
    Prompt::from_literal(&literal(json)).unwrap()
}

pub(crate) fn check(json: Json) -> Result<Accepted, Box<Rejected>> {
    validate(&toys(), &mut prompt(json), None).map_err(Box::new)
}

/// The stage.
pub(crate) struct Stage {
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) executor: Executor,
    pub(crate) cancel: Arc<AtomicBool>,
}

/// What a run told and left.
pub(crate) struct Ran {
    /// `cached a,b`, `start a`, `show a {…}`, `done a`, `blocked a why`, in order.
    pub(crate) log: Vec<String>,
    pub(crate) report: RunReport,
}

impl Stage {
    pub(crate) fn new(mode: CacheMode) -> Stage {
        Stage::with(toys(), mode)
    }

    pub(crate) fn with(catalogue: Catalogue, mode: CacheMode) -> Stage {
        let catalogue = Arc::new(catalogue);
        let executor = Executor::new(Arc::clone(&catalogue), mode);
        Stage { catalogue, executor, cancel: Arc::default() }
    }

    /// A stage that runs prompts at the same time and shares what is kept.
    pub(crate) fn beside(&self) -> Stage {
        let (catalogue, executor) = (Arc::clone(&self.catalogue), self.executor.beside());
        Stage { catalogue, executor, cancel: Arc::default() }
    }

    pub(crate) fn run(&mut self, json: Json) -> Ran {
        self.run_prompt(prompt(json))
    }

    pub(crate) fn run_prompt(&mut self, mut prompt: Prompt) -> Ran {
        let accepted = validate(&self.catalogue, &mut prompt, None).unwrap();
        let log = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&log);
        let report = self.executor.run(RunRequest {
            prompt_id: "job".to_owned(),
            prompt: Arc::new(prompt),
            outputs: accepted.outputs,
            extra: Map::new(),
            secrets: Map::new(),
            cancel: Arc::clone(&self.cancel),
            worker: None,
            observer: Arc::new(move |event: RunEvent| written.lock().unwrap().extend(line(&event))),
        });
        let log = std::mem::take(&mut *log.lock().unwrap());
        Ran { log, report }
    }
}

fn line(event: &RunEvent) -> Option<String> {
    Some(match event {
        RunEvent::Cached { nodes } => format!("cached {}", nodes.join(",")),
        RunEvent::Started { identity } => format!("start {}", identity.node),
        RunEvent::Executed { identity, ui } => {
            format!("show {} {}", identity.node, serde_json::to_string(ui).unwrap())
        }
        RunEvent::Finished { identity } => format!("done {}", identity.node),
        RunEvent::Blocked(failure) => format!("blocked {} {}", failure.identity.node, failure.message),
        RunEvent::Progress { .. } | RunEvent::Text { .. } => return None,
    })
}

impl Ran {
    /// The nodes that were started, in order.
    pub(crate) fn started(&self) -> Vec<&str> {
        self.log.iter().filter_map(|line| line.strip_prefix("start ")).collect()
    }

    /// The nodes that were known at the start.
    pub(crate) fn cached(&self) -> Vec<&str> {
        let first = self.log[0].strip_prefix("cached ").unwrap();
        first.split(',').filter(|id| !id.is_empty()).collect()
    }

    /// What a `Show` node showed.
    pub(crate) fn shown(&self, id: &str) -> String {
        serde_json::to_string(&self.report.outputs[id]["value"]).unwrap()
    }

    pub(crate) fn assert_succeeded(&self) {
        assert!(matches!(self.report.end, RunEnd::Succeeded), "{:?}", self.report.end);
    }

    pub(crate) fn failure(&self) -> &graph::NodeFailure {
        match &self.report.end {
            RunEnd::Failed(failure) => failure,
            other => panic!("it did not fail: {other:?}"),
        }
    }
}
