//! What a node class does: the one trait that nodes implement, and what a call gives and takes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indexmap::IndexMap;

use crate::event::{Identity, Observer, Picture, RunEvent};
use crate::literal::{Literal, Map};
use crate::prompt::Prompt;
use crate::schema::Schema;
use crate::value::{Link, NodeId, Object, Value};

/// A class of nodes. One value serves all nodes of the class, so it holds no state of a run.
pub trait NodeClass: Send + Sync {
    /// The declaration, as of now: lists of files are read when it is asked for.
    fn schema(&self) -> Schema;

    /// Runs one node once.
    ///
    /// # Errors
    /// What went wrong; it ends the prompt.
    fn run(&self, call: &Call) -> Result<Outcome, Failure>;

    /// Which of the lazy inputs it needs, given those that are known. Only asked if the schema has lazy ones.
    ///
    /// # Errors
    /// What went wrong; it ends the prompt.
    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        Ok(call.lazy_inputs().map(str::to_owned).collect())
    }

    /// Something that differs when the same inputs would give another output, such as the date of a
    /// file. `NaN` never equals itself: the node runs every time. Only constants are given; linked inputs
    /// are absent.
    ///
    /// # Errors
    /// What went wrong; the node then counts as changed.
    fn fingerprint(&self, _call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(None)
    }

    /// What of its validation it does itself.
    fn validates(&self) -> Validates {
        Validates::default()
    }

    /// Checks the inputs named by [`NodeClass::validates`]; linked ones are absent.
    ///
    /// # Errors
    /// What went wrong while checking.
    fn validate(&self, _given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(Verdict::Good)
    }

    /// Whether it spends its time waiting, so that others may run meanwhile. It then runs on a thread of
    /// its own.
    fn is_concurrent(&self) -> bool {
        false
    }
}

/// What of its validation a class does itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Validates {
    /// The inputs that it checks: ranges and lists are not checked for them.
    pub inputs: Vec<&'static str>,
    /// Whether it checks all that are given.
    pub everything: bool,
    /// Whether it checks the types of links.
    pub types: bool,
}

/// What a class's own validation sees.
#[derive(Debug)]
pub struct Given<'a> {
    /// The constants, converted to their declared types; a linked input is [`Literal::Null`].
    pub constants: &'a Map,
    /// The type of the output behind each link.
    pub types: &'a IndexMap<String, String>,
}

/// What a class says of its inputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They are good.
    Good,
    /// They are not, with no more to say.
    Bad,
    /// They are not, and why.
    Because(String),
}

/// One call of a node: its inputs and its surroundings.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which node it is.
    pub identity: Arc<Identity>,
    /// Its inputs.
    pub inputs: Inputs,
    /// Which of the declared inputs are lazy and linked and not known yet.
    pub unknown: Vec<String>,
    /// Which of the node's calls it is: a node that gets lists is called once per item.
    pub index: usize,
    /// The job it is part of.
    pub job: Arc<JobContext>,
}

/// What all calls of one job share.
pub struct JobContext {
    /// The job's id.
    pub prompt_id: String,
    /// The prompt as it was sent and validated.
    pub prompt: Arc<Prompt>,
    /// `extra_data` as it was sent, less its secrets.
    pub extra: Map,
    /// What was set aside: tokens and keys.
    pub secrets: Map,
    /// Set when the job is to end.
    pub cancel: Arc<AtomicBool>,
    /// Who runs it, in the words that its nodes understand; none where there is one only.
    pub worker: Option<Arc<str>>,
    /// Set when the run is over, so that nodes which still run on threads of their own stop.
    pub ended: AtomicBool,
    /// Who is told of progress.
    pub observer: Arc<dyn Observer>,
    /// The graph as it stands, with everything that was expanded.
    pub graph: Arc<dyn GraphView>,
}

impl JobContext {
    /// The surroundings of a call that is part of no job.
    #[must_use]
    pub fn alone() -> JobContext {
        JobContext {
            prompt_id: String::new(),
            prompt: Arc::default(),
            extra: Map::new(),
            secrets: Map::new(),
            cancel: Arc::default(),
            worker: None,
            ended: AtomicBool::new(false),
            observer: Arc::new(|_: RunEvent| {}),
            graph: Arc::new(NoGraph),
        }
    }
}

impl std::fmt::Debug for JobContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobContext").field("prompt_id", &self.prompt_id).finish_non_exhaustive()
    }
}

/// The graph of a running job, as nodes that expand themselves look at it.
pub trait GraphView: Send + Sync {
    /// A node's class and inputs.
    fn node(&self, id: &str) -> Option<GraphNode>;
    /// All ids, those of expanded nodes included.
    fn ids(&self) -> Vec<NodeId>;
    /// The id that is shown for a node: its own, unless it was expanded.
    fn display_of(&self, id: &str) -> NodeId;
}

/// The graph of a call that is part of no job.
struct NoGraph;

impl GraphView for NoGraph {
    fn node(&self, _id: &str) -> Option<GraphNode> {
        None
    }

    fn ids(&self) -> Vec<NodeId> {
        Vec::new()
    }

    fn display_of(&self, id: &str) -> NodeId {
        NodeId::from(id)
    }
}

/// A node of a graph that runs, or of an expansion.
#[derive(Clone, Debug)]
pub struct GraphNode {
    /// Its class.
    pub class: String,
    /// Its inputs.
    pub inputs: IndexMap<String, GraphInput>,
    /// The id that events show in its place.
    pub display: Option<NodeId>,
}

/// An input of a node of a graph.
#[derive(Clone, Debug)]
pub enum GraphInput {
    /// A constant.
    Literal(Literal),
    /// Another node's output.
    Link(Link),
    /// Something in memory; a node that has one is not cached.
    Value(Value),
}

/// The inputs of a call, by name. An input that is absent or unknown is not in it.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// One value per input, or a list of them for a class that takes lists. What a growing input or a
    /// choice brings is under its key in the prompt, such as `images.image0`.
    pub values: IndexMap<String, Vec<Value>>,
    /// The links of inputs that are declared to pass them as they are.
    pub raw_links: IndexMap<String, Link>,
}

impl Call {
    /// A call that is part of no job: nobody is told of anything. For trying a class by hand.
    #[must_use]
    pub fn alone(class: &str, inputs: Inputs) -> Call {
        let node = NodeId::from("1");
        let identity = Identity {
            node: Arc::clone(&node),
            display: Arc::clone(&node),
            parent: None,
            real: node,
            class: class.to_owned(),
        };
        let job = Arc::new(JobContext::alone());
        Call { identity: Arc::new(identity), inputs, unknown: Vec::new(), index: 0, job }
    }

    /// The id of a node that this call expands into: no other call has it.
    #[must_use]
    pub fn child(&self, name: &str) -> NodeId {
        NodeId::from(format!("{}.{}.0.{name}", self.identity.node, self.index))
    }

    /// Fails if the job is to end. Long work calls it often.
    ///
    /// # Errors
    /// [`Failure::Interrupted`].
    pub fn check(&self) -> Result<(), Failure> {
        let is_over = self.job.cancel.load(Ordering::Relaxed) || self.job.ended.load(Ordering::Relaxed);
        if is_over { Err(Failure::Interrupted) } else { Ok(()) }
    }

    /// Tells how far the node is, with a picture of what it has so far.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] if the job is to end.
    pub fn progress(&self, value: f64, max: f64, picture: Option<Picture>) -> Result<(), Failure> {
        self.tell_progress(value, max, picture, false)
    }

    /// Tells how far the node is, only in the snapshot of all nodes.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] if the job is to end.
    pub fn plain_progress(&self, value: f64, max: f64) -> Result<(), Failure> {
        self.tell_progress(value, max, None, true)
    }

    fn tell_progress(
        &self,
        value: f64,
        max: f64,
        picture: Option<Picture>,
        is_plain: bool,
    ) -> Result<(), Failure> {
        self.check()?;
        let identity = Arc::clone(&self.identity);
        self.job.observer.event(RunEvent::Progress { identity, value, max, picture, is_plain });
        self.check()
    }

    /// Shows a line of text on the node.
    pub fn show_text(&self, text: impl Into<String>) {
        let identity = Arc::clone(&self.identity);
        self.job.observer.event(RunEvent::Text { identity, text: text.into() });
    }

    /// The lazy inputs that are linked and not known yet.
    pub fn lazy_inputs(&self) -> impl Iterator<Item = &str> {
        self.unknown.iter().map(String::as_str)
    }

    /// What clients want to be written into files.
    #[must_use]
    pub fn extra_png_info(&self) -> Option<&Map> {
        self.job.extra.get("extra_pnginfo")?.as_map()
    }

    /// The input as an object of type `T`.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn object<T: Object>(&self, name: &str) -> Result<Arc<T>, Failure> {
        let value = self.value(name)?;
        value.downcast().ok_or_else(|| self.unexpected(name, std::any::type_name::<T>(), value))
    }

    /// The input as an object of type `T`, if it is given.
    ///
    /// # Errors
    /// It is something else.
    pub fn object_if_given<T: Object>(&self, name: &str) -> Result<Option<Arc<T>>, Failure> {
        match self.inputs.first(name) {
            None => Ok(None),
            Some(value) if value.is_none() => Ok(None),
            Some(_) => self.object(name).map(Some),
        }
    }

    /// The input as text.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn text(&self, name: &str) -> Result<&str, Failure> {
        let value = self.value(name)?;
        let text = value.literal().and_then(Literal::as_text);
        text.ok_or_else(|| self.unexpected(name, "text", value))
    }

    /// The input as a whole number; a number without a fraction counts.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn int(&self, name: &str) -> Result<i64, Failure> {
        let value = self.value(name)?;
        let number = match value.literal() {
            Some(Literal::Int(number)) => i64::try_from(*number).ok(),
            Some(Literal::Float(number)) if number.fract() == 0.0 => Some(*number as i64),
            Some(Literal::Bool(flag)) => Some((*flag).into()),
            _ => None,
        };
        number.ok_or_else(|| self.unexpected(name, "a whole number", value))
    }

    /// The input as a size or count.
    ///
    /// # Errors
    /// It is absent, negative, or something else.
    pub fn size(&self, name: &str) -> Result<usize, Failure> {
        let number = self.int(name)?;
        usize::try_from(number)
            .map_err(|_| Failure::error("ValueError", format!("{name} is {number}; it must not be negative")))
    }

    /// The input as a seed.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn seed(&self, name: &str) -> Result<u64, Failure> {
        let value = self.value(name)?;
        let number = value.literal().and_then(Literal::as_int);
        // Python's seeds wrap, too: only their low 64 bits reach the generator.
        number.map(|number| number as u64).ok_or_else(|| self.unexpected(name, "a seed", value))
    }

    /// The input as a number.
    ///
    /// # Errors
    /// It is absent, or something else.
    pub fn float(&self, name: &str) -> Result<f64, Failure> {
        let value = self.value(name)?;
        let number = match value.literal() {
            Some(Literal::Bool(flag)) => Some(f64::from(u8::from(*flag))),
            Some(literal) => literal.as_float(),
            None => None,
        };
        number.ok_or_else(|| self.unexpected(name, "a number", value))
    }

    /// The input as Python would judge it in an `if`.
    ///
    /// # Errors
    /// It is absent, or an object.
    pub fn boolean(&self, name: &str) -> Result<bool, Failure> {
        let value = self.value(name)?;
        value.literal().map(Literal::is_truthy).ok_or_else(|| self.unexpected(name, "true or false", value))
    }

    /// The input's value.
    ///
    /// # Errors
    /// It is absent.
    pub fn value(&self, name: &str) -> Result<&Value, Failure> {
        self.inputs.first(name).ok_or_else(|| {
            Failure::error(
                "TypeError",
                format!("the input \"{name}\" is missing; link it or give it a value"),
            )
        })
    }

    fn unexpected(&self, name: &str, wanted: &str, value: &Value) -> Failure {
        let wanted = wanted.rsplit("::").next().unwrap_or(wanted);
        let text = format!("the input \"{name}\" must be {wanted}, but is {}", value.describe());
        Failure::error("TypeError", text)
    }
}

impl Inputs {
    /// The value of an input that is no list.
    #[must_use]
    pub fn first(&self, name: &str) -> Option<&Value> {
        self.values.get(name)?.first()
    }

    /// All values of an input, for a class that takes lists.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Value] {
        self.values.get(name).map_or(&[], Vec::as_slice)
    }

    /// Sets an input.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Inputs {
        self.values.insert(name.to_owned(), vec![value.into()]);
        self
    }
}

/// What a call gave.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The outputs, in slot order; fewer than declared only if they are all blocked.
    pub outputs: Outputs,
    /// What clients show: `images`, `text` and so on, each a list.
    pub ui: Option<Map>,
    /// A graph to run in this node's place, by id.
    pub expansion: Option<IndexMap<NodeId, GraphNode>>,
}

/// The outputs of a call.
#[derive(Clone, Debug)]
pub enum Outputs {
    /// One per slot.
    Slots(Vec<Slot>),
    /// Every slot is blocked; with a message, the user is told.
    Blocked(Option<Arc<str>>),
}

impl Default for Outputs {
    fn default() -> Outputs {
        Outputs::Slots(Vec::new())
    }
}

/// One output of a call.
#[derive(Clone, Debug)]
pub enum Slot {
    /// A value.
    One(Value),
    /// The items of a list output.
    Many(Vec<Value>),
    /// What an output of the expansion gives.
    Link(Link),
}

impl Outcome {
    /// Values, one per slot.
    pub fn values(values: impl IntoIterator<Item = Value>) -> Outcome {
        Outcome::slots(values.into_iter().map(Slot::One))
    }

    /// One value.
    pub fn one(value: impl Into<Value>) -> Outcome {
        Outcome::values([value.into()])
    }

    /// One object.
    pub fn object(object: impl Object) -> Outcome {
        Outcome::values([Value::object(object)])
    }

    /// Outputs, one per slot.
    pub fn slots(slots: impl IntoIterator<Item = Slot>) -> Outcome {
        Outcome { outputs: Outputs::Slots(slots.into_iter().collect()), ..Outcome::default() }
    }

    /// Adds what clients show.
    #[must_use]
    pub fn with_ui(mut self, ui: Map) -> Outcome {
        self.ui = Some(ui);
        self
    }

    /// Adds a graph to run in this node's place.
    #[must_use]
    pub fn expanding(mut self, nodes: IndexMap<NodeId, GraphNode>) -> Outcome {
        self.expansion = Some(nodes);
        self
    }
}

/// Why a call did not end well.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Failure {
    /// The job was to end.
    #[error("interrupted")]
    Interrupted,
    /// A device has too little memory; the text has the numbers.
    #[error("{0}")]
    OutOfMemory(String),
    /// Anything else.
    #[error("{message}")]
    Error {
        /// What clients know such errors by: Python's name for it, such as `ValueError`.
        kind: String,
        /// What, where and what to do.
        message: String,
    },
}

impl Failure {
    /// An error of a kind.
    pub fn error(kind: &str, message: impl Into<String>) -> Failure {
        Failure::Error { kind: kind.to_owned(), message: message.into() }
    }

    /// A value that cannot be used.
    pub fn value(message: impl Into<String>) -> Failure {
        Failure::error("ValueError", message)
    }
}
