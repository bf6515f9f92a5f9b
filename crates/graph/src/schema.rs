//! What a node class declares: its inputs in order, its outputs, and how it is listed.
//!
//! The order of the inputs is the order of the widgets on a node, and stored workflows rely on it.

use crate::literal::{Literal, Map};

/// The declaration of a node class.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// The name in prompts (`class_type`).
    pub class: String,
    /// The title that people see; the class name if it is empty.
    pub display_name: String,
    /// Where it is listed, such as `sampling/custom_sampling`.
    pub category: String,
    /// What it does, for people.
    pub description: String,
    /// The Python module that clients group nodes by: `nodes` for ComfyUI's own, else a pack's name.
    pub module: String,
    /// Required and optional inputs, each group in widget order.
    pub inputs: Vec<Input>,
    /// What it asks the executor for besides: the name and what it is.
    pub hidden: Vec<(String, Hidden)>,
    /// The outputs, in slot order.
    pub outputs: Vec<Output>,
    /// Whether it is a reason to run: it saves or shows something.
    pub is_output: bool,
    /// Whether it takes whole lists in one call.
    pub takes_lists: bool,
    /// Whether clients hide it from new workflows.
    pub is_deprecated: bool,
    /// Whether clients mark it as experimental.
    pub is_experimental: bool,
    /// Whether two nodes with equal inputs may give different outputs, so that neither takes the other's.
    pub is_per_node: bool,
    /// Other words that people look for it by.
    pub search_aliases: Vec<String>,
}

impl Schema {
    /// A class of a name in a category; the rest is filled in by the methods below.
    pub fn new(class: impl Into<String>, category: impl Into<String>) -> Schema {
        Schema {
            class: class.into(),
            category: category.into(),
            module: "nodes".to_owned(),
            ..Schema::default()
        }
    }

    /// Sets the title that people see.
    #[must_use]
    pub fn title(mut self, title: impl Into<String>) -> Schema {
        self.display_name = title.into();
        self
    }

    /// Sets what it does, for people.
    #[must_use]
    pub fn about(mut self, text: impl Into<String>) -> Schema {
        self.description = text.into();
        self
    }

    /// Sets the module that clients group nodes by.
    #[must_use]
    pub fn module(mut self, module: impl Into<String>) -> Schema {
        self.module = module.into();
        self
    }

    /// Adds an input after those that are there.
    #[must_use]
    pub fn input(mut self, input: Input) -> Schema {
        self.inputs.push(input);
        self
    }

    /// Adds an output named after its type.
    #[must_use]
    pub fn output(self, kind: &str) -> Schema {
        self.named_output(kind, kind)
    }

    /// Adds an output with a name of its own.
    #[must_use]
    pub fn named_output(mut self, kind: &str, name: &str) -> Schema {
        self.outputs.push(Output { kind: kind.to_owned(), name: name.to_owned(), ..Output::default() });
        self
    }

    /// Adds an output that gives a list, item by item, to what follows.
    #[must_use]
    pub fn list_output(mut self, kind: &str, name: &str) -> Schema {
        self.outputs.push(Output {
            kind: kind.to_owned(),
            name: name.to_owned(),
            is_list: true,
            ..Output::default()
        });
        self
    }

    /// Asks the executor for a hidden input.
    #[must_use]
    pub fn hidden(mut self, name: &str, hidden: Hidden) -> Schema {
        self.hidden.push((name.to_owned(), hidden));
        self
    }

    /// Makes it an output node.
    #[must_use]
    pub fn output_node(mut self) -> Schema {
        self.is_output = true;
        self
    }

    /// Makes it take whole lists.
    #[must_use]
    pub fn takes_lists(mut self) -> Schema {
        self.takes_lists = true;
        self
    }

    /// The declaration of an input.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Input> {
        self.inputs.iter().find(|input| input.name == name)
    }
}

/// A declared input.
#[derive(Clone, Debug)]
pub struct Input {
    /// Its name in prompts.
    pub name: String,
    /// Whether it may be left out.
    pub is_optional: bool,
    /// What it takes.
    pub kind: Kind,
    /// `default`, `min`, `max`, `step`, `tooltip`, `lazy`, `rawLink` and what else clients know; in order.
    pub options: Map,
}

/// What an input takes.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// A whole number: `INT`.
    Int,
    /// A number: `FLOAT`.
    Float,
    /// Text: `STRING`.
    Text,
    /// `BOOLEAN`.
    Boolean,
    /// One of a list, which is sent in the type's place.
    Choice(Vec<Literal>),
    /// A link of a type; `A,B` takes both and `*` takes anything.
    Socket(String),
    /// `COMFY_DYNAMICCOMBO_V3`: a choice that brings inputs of its own. Their keys in a prompt are
    /// `name.inner`.
    DynamicChoice(Vec<(String, Vec<Input>)>),
    /// `COMFY_AUTOGROW_V3`: as many copies of one input as are linked. Their keys in a prompt are
    /// `name.key`.
    Autogrow(Box<Autogrow>),
    /// `COMFY_MATCHTYPE_V3`: any type, the same for all inputs and outputs of one template.
    MatchType {
        /// The template's name.
        template: String,
        /// The types that it takes, `*` for all.
        allowed: String,
    },
}

/// The shape of an input that grows.
#[derive(Clone, Debug, PartialEq)]
pub struct Autogrow {
    /// One copy.
    pub input: Input,
    /// The names of the copies, in order. `prefix` and a number if they were declared so.
    pub names: GrowingNames,
    /// How many must be given.
    pub min: usize,
}

/// The names of the copies of a growing input.
#[derive(Clone, Debug, PartialEq)]
pub enum GrowingNames {
    /// `prefix0`, `prefix1` and so on.
    Counted {
        /// What stands before the number.
        prefix: String,
        /// How many there can be.
        max: usize,
    },
    /// The names themselves.
    Listed(Vec<String>),
}

impl PartialEq for Input {
    fn eq(&self, other: &Input) -> bool {
        self.name == other.name && self.is_optional == other.is_optional && self.kind == other.kind
    }
}

impl Input {
    /// A required input of a kind.
    pub fn new(name: impl Into<String>, kind: Kind) -> Input {
        Input { name: name.into(), is_optional: false, kind, options: Map::new() }
    }

    /// A whole number with its default and range.
    pub fn int(name: &str, default: i64, min: i64, max: u64) -> Input {
        Input::new(name, Kind::Int).with("default", default).with("min", min).with("max", max)
    }

    /// A seed: 64 bits, with the client's control for what follows a run.
    pub fn seed(name: &str) -> Input {
        Input::int(name, 0, 0, u64::MAX).with("control_after_generate", true)
    }

    /// A number with its default, range and step.
    pub fn float(name: &str, default: f64, min: f64, max: f64, step: f64) -> Input {
        let input = Input::new(name, Kind::Float).with("default", default);
        input.with("min", min).with("max", max).with("step", step)
    }

    /// A line of text.
    pub fn text(name: &str, default: &str) -> Input {
        Input::new(name, Kind::Text).with("default", default)
    }

    /// A field of text.
    pub fn multiline(name: &str, default: &str) -> Input {
        Input::text(name, default).with("multiline", true)
    }

    /// A switch.
    pub fn boolean(name: &str, default: bool) -> Input {
        Input::new(name, Kind::Boolean).with("default", default)
    }

    /// One of a list.
    pub fn choice<T: Into<Literal>>(name: &str, values: impl IntoIterator<Item = T>) -> Input {
        Input::new(name, Kind::Choice(values.into_iter().map(Into::into).collect()))
    }

    /// A link.
    pub fn socket(name: &str, kind: &str) -> Input {
        Input::new(name, Kind::Socket(kind.to_owned()))
    }

    /// Sets an option.
    #[must_use]
    pub fn with(mut self, option: &str, value: impl Into<Literal>) -> Input {
        self.options.insert(option.to_owned(), value.into());
        self
    }

    /// Lets it be left out.
    #[must_use]
    pub fn optional(mut self) -> Input {
        self.is_optional = true;
        self
    }

    /// Says what it is for.
    #[must_use]
    pub fn tooltip(self, text: &str) -> Input {
        self.with("tooltip", text)
    }

    /// Whether an option is set and true.
    #[must_use]
    pub fn is_set(&self, option: &str) -> bool {
        self.options.get(option).is_some_and(Literal::is_truthy)
    }

    /// Whether it is evaluated only when the node asks for it.
    #[must_use]
    pub fn is_lazy(&self) -> bool {
        self.is_set("lazy")
    }

    /// Whether the node gets the link itself and not its value.
    #[must_use]
    pub fn is_raw_link(&self) -> bool {
        self.is_set("rawLink")
    }

    /// The name of its type on the wire.
    #[must_use]
    pub fn type_name(&self) -> &str {
        match &self.kind {
            Kind::Int => "INT",
            Kind::Float => "FLOAT",
            Kind::Text => "STRING",
            Kind::Boolean => "BOOLEAN",
            Kind::Choice(_) => "COMBO",
            Kind::Socket(kind) => kind,
            Kind::DynamicChoice(_) => "COMFY_DYNAMICCOMBO_V3",
            Kind::Autogrow(_) => "COMFY_AUTOGROW_V3",
            Kind::MatchType { .. } => "COMFY_MATCHTYPE_V3",
        }
    }
}

/// A declared output.
#[derive(Clone, Debug, Default)]
pub struct Output {
    /// Its type.
    pub kind: String,
    /// Its name, for people.
    pub name: String,
    /// Whether it gives a list, item by item.
    pub is_list: bool,
    /// What it is, for people.
    pub tooltip: String,
    /// The template whose type it has, for `COMFY_MATCHTYPE_V3`.
    pub match_template: Option<String>,
}

/// What a node asks the executor for. All but [`Hidden::Input`] are read from the
/// [`Call`](crate::Call): its identity and its job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// The prompt as it was sent.
    Prompt,
    /// What clients want to be written into files.
    ExtraPngInfo,
    /// The node's own id.
    UniqueId,
    /// The graph with everything that was expanded.
    DynamicPrompt,
    /// A token of the user's account.
    AuthToken,
    /// A key of the user's account.
    ApiKey,
    /// An input of a type that clients do not show, set only by other nodes.
    Input(String),
}
