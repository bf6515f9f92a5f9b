//! A workflow file to a prompt.

use std::collections::HashMap;
use std::time::SystemTime;

use graph::{Catalogue, Input, Literal, Map, Prompt, PromptNode, Schema, map};
use meta::Moment;

use crate::document::{Document, Mode, Node};
use crate::error::{Error, Warning};
use crate::expansion::{Expansion, Place, byte_size};
use crate::naming;
use crate::promotion::Promotions;
use crate::resolve::{Resolved, Resolver};
use crate::virtual_node::VirtualNode;
use crate::widgets::{self, WidgetValues, sendable};
use crate::wildcard;

/// How much the values of a prompt may take: one value can be linked to very many nodes.
const MAX_BYTES: usize = 256 << 20;

/// How a workflow is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// As the API takes it: nodes by id with a class and inputs, maybe wrapped in `prompt`.
    Api,
    /// As editors save it: a list of nodes, links by number, values by position.
    Ui,
    /// Neither.
    Unknown,
}

/// What a workflow file became.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Converted {
    /// What runs.
    pub prompt: Prompt,
    /// The editor's file, for `extra_pnginfo`, so that a saved picture can be opened in an editor.
    pub workflow: Option<Literal>,
    /// What was left out, guessed or does not fit.
    pub warnings: Vec<Warning>,
}

/// How a workflow is written.
#[must_use]
pub fn detect(file: &Literal) -> Format {
    if prompt_of(file).is_some() {
        Format::Api
    } else if workflow_of(file).is_some() {
        Format::Ui
    } else {
        Format::Unknown
    }
}

/// Turns a workflow file into a prompt. One that is a prompt already stays as it is.
///
/// # Errors
/// It is no workflow, a part of it has the wrong form, or subgraphs or links go in circles.
pub fn to_prompt(file: &Literal, catalogue: &Catalogue) -> Result<Converted, Error> {
    if let Some(prompt) = prompt_of(file).and_then(Prompt::from_literal) {
        return Ok(Converted { prompt, workflow: workflow_of(file).cloned(), warnings: Vec::new() });
    }
    let workflow = workflow_of(file).ok_or(Error::NotAWorkflow)?;
    let document = Document::read(workflow)?;
    let schemas = schemas(&document, catalogue);
    let stored = stored_values(&document, &schemas);
    let expansion = Expansion::new(&document)?;
    let promotions = Promotions::new(&expansion, &stored);
    let mut conversion = Conversion {
        resolver: Resolver { expansion: &expansion, promotions: &promotions },
        schemas: &schemas,
        stored: &stored,
        prompt: Prompt::default(),
        bytes: 0,
        warnings: document.warnings.clone(),
    };
    for place in expansion.in_order() {
        conversion.add(place)?;
    }
    conversion.name_files();
    let Conversion { prompt, warnings, .. } = conversion;
    Ok(Converted { prompt, workflow: Some(workflow.clone()), warnings })
}

/// The prompt in a file: the file itself, or a part of it.
pub(crate) fn prompt_of(file: &Literal) -> Option<&Literal> {
    let is_prompt = |literal: &&Literal| {
        let nodes = literal.as_map().into_iter().flat_map(|nodes| nodes.values());
        nodes.filter_map(|node| node.get("class_type")).any(|class| class.as_text().is_some())
    };
    [Some(file), file.get("prompt"), file.get("output")].into_iter().flatten().find(is_prompt)
}

/// The editor's file in a file: the file itself, or a part of it.
pub(crate) fn workflow_of(file: &Literal) -> Option<&Literal> {
    let is_workflow =
        |literal: &&Literal| literal.get("nodes").is_some_and(|nodes| nodes.as_list().is_some());
    let posted = file.get("extra_data").and_then(|extra| extra.get("extra_pnginfo"));
    let posted = posted.and_then(|info| info.get("workflow"));
    [Some(file), file.get("workflow"), posted].into_iter().flatten().find(is_workflow)
}

/// The declarations of all classes in a file, each read once: some of them list folders.
fn schemas<'a>(document: &Document<'a>, catalogue: &Catalogue) -> HashMap<&'a str, Schema> {
    let mut schemas = HashMap::new();
    for node in document.graphs.iter().flat_map(|graph| &graph.nodes) {
        if let (None, Some(class)) = (schemas.get(node.class), catalogue.get(node.class)) {
            schemas.insert(node.class, class.schema());
        }
    }
    schemas
}

/// What all nodes store, by graph and position.
fn stored_values(document: &Document<'_>, schemas: &HashMap<&str, Schema>) -> Vec<Vec<WidgetValues>> {
    let of_node = |node: &Node<'_>| {
        if node.inner.is_some() {
            return WidgetValues::default();
        }
        match (VirtualNode::of(node.class), schemas.get(node.class)) {
            (Some(VirtualNode::Primitive), _) => {
                let value = node.values.list.and_then(<[Literal]>::first);
                let value = value.filter(|value| **value != Literal::Null).cloned();
                let values = map(value.map(|value| ("value", sendable(value))));
                WidgetValues { values, ..WidgetValues::default() }
            }
            (Some(_), _) => WidgetValues::default(),
            (None, Some(schema)) => widgets::read(schema, node),
            (None, None) => widgets::guess(node),
        }
    };
    document.graphs.iter().map(|graph| graph.nodes.iter().map(of_node).collect()).collect()
}

/// A prompt in the making.
struct Conversion<'e, 'd, 'a> {
    resolver: Resolver<'e, 'd, 'a>,
    schemas: &'e HashMap<&'a str, Schema>,
    stored: &'e [Vec<WidgetValues>],
    prompt: Prompt,
    /// How much its values take.
    bytes: usize,
    warnings: Vec<Warning>,
}

impl<'d, 'a> Conversion<'_, 'd, 'a> {
    /// Adds a node, if it runs.
    fn add(&mut self, place: Place) -> Result<(), Error> {
        let expansion = self.resolver.expansion;
        let node: &'d Node<'a> = expansion.node(place);
        if node.mode != Mode::Active || node.inner.is_some() || VirtualNode::of(node.class).is_some() {
            return Ok(());
        }
        let id = expansion.name(place);
        let schema = self.schemas.get(node.class);
        let stored = &self.stored[expansion.scopes[place.scope].graph][place.node];
        self.warn_of_values(&id, node, schema.is_some(), stored);
        let mut inputs = Map::new();
        for (name, value) in &stored.values {
            let shown = self.resolver.promotions.overridden(place, name);
            inputs.insert(name.clone(), shown.unwrap_or(value).clone());
        }
        self.add_links(place, &mut inputs)?;
        for input in schema.into_iter().flat_map(|schema| &schema.inputs) {
            draw_choices(input, &mut inputs);
        }
        self.bytes += inputs.values().map(byte_size).sum::<usize>();
        if self.bytes > MAX_BYTES {
            return Err(Error::TooLarge { node: id, limit: MAX_BYTES, what: "bytes of values" });
        }
        let mut prompt_node = PromptNode::new(node.class, inputs);
        let display_name = schema.map(|schema| schema.display_name.as_str()).filter(|name| !name.is_empty());
        let title = node.title.or(display_name).unwrap_or(node.class);
        prompt_node.rest = map([("_meta", Literal::Map(map([("title", title.into())])))]);
        self.prompt.nodes.insert(id.into(), prompt_node);
        Ok(())
    }

    /// Puts what is linked in the place of the widgets' own values.
    fn add_links(&mut self, place: Place, inputs: &mut Map) -> Result<(), Error> {
        let node = self.resolver.expansion.node(place);
        for (slot, input) in node.inputs.iter().enumerate() {
            if input.link.is_none() {
                continue;
            }
            match self.resolver.resolve(place, slot)? {
                Resolved::Output(link) => {
                    let link = vec![Literal::from(&*link.node), Literal::from(link.slot)];
                    inputs.insert(input.name.to_owned(), Literal::List(link));
                }
                Resolved::Value(value) => {
                    inputs.insert(input.name.to_owned(), value);
                }
                Resolved::Nothing(Some(why)) if !inputs.contains_key(input.name) => {
                    self.warnings.push(self.resolver.dropped(place, slot, why));
                }
                Resolved::Nothing(_) => {}
            }
        }
        Ok(())
    }

    /// Fills in the names of files.
    fn name_files(&mut self) {
        let now = Moment::utc(SystemTime::now());
        let names = NodeNames::of(self.resolver.expansion.document);
        let stored = self.stored;
        let value = |node: &str, widget: &str| {
            let (graph, at) = names.find(node)?;
            stored[graph][at].values.get(widget).cloned()
        };
        for node in self.prompt.nodes.values_mut() {
            let name = node.inputs.as_mut().and_then(|inputs| inputs.get_mut(naming::NAME_INPUT));
            if let Some(Literal::Text(name)) = name
                && name.contains('%')
            {
                *name = naming::fill(name, now, value);
            }
        }
    }

    fn warn_of_values(&mut self, id: &str, node: &Node<'_>, is_known: bool, stored: &WidgetValues) {
        let class = node.class.to_owned();
        if !is_known {
            self.warnings.push(Warning::MissingClass { node: id.to_owned(), class });
            return;
        }
        let is_linked =
            |name: &String| node.inputs.iter().any(|slot| slot.name == name && slot.link.is_some());
        let names: Vec<String> = stored.missing.iter().filter(|name| !is_linked(name)).cloned().collect();
        if !names.is_empty() {
            self.warnings.push(Warning::MissingValues { node: id.to_owned(), class: class.clone(), names });
        }
        if stored.extra > 0 {
            self.warnings.push(Warning::ExtraValues { node: id.to_owned(), class, extra: stored.extra });
        }
    }
}

/// The first node of each name that people use: an alias, or else a title.
struct NodeNames<'a> {
    aliases: HashMap<&'a str, (usize, usize)>,
    titles: HashMap<&'a str, (usize, usize)>,
}

impl<'a> NodeNames<'a> {
    fn of(document: &'a Document<'_>) -> NodeNames<'a> {
        let mut names = NodeNames { aliases: HashMap::new(), titles: HashMap::new() };
        for (graph_at, graph) in document.graphs.iter().enumerate() {
            for (at, node) in graph.nodes.iter().enumerate() {
                if let Some(alias) = node.property("Node name for S&R").and_then(Literal::as_text) {
                    names.aliases.entry(alias).or_insert((graph_at, at));
                }
                if let Some(title) = node.title {
                    names.titles.entry(title).or_insert((graph_at, at));
                }
            }
        }
        names
    }

    fn find(&self, name: &str) -> Option<(usize, usize)> {
        self.aliases.get(name).or_else(|| self.titles.get(name)).copied()
    }
}

/// Takes one of each group of choices in a text, if the class wants that.
fn draw_choices(input: &Input, inputs: &mut Map) {
    if !input.is_set("dynamicPrompts") {
        return;
    }
    if let Some(Literal::Text(text)) = inputs.get_mut(&input.name)
        && text.contains(['{', '/', '\\'])
    {
        *text = wildcard::draw(text);
    }
}
