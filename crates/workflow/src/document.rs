//! An editor's file, checked and borrowed: graphs of nodes with slots, stored values and links.
//!
//! Graph 0 is what the editor shows first. The others are subgraphs, which nodes name by id in place of a
//! class, and the contents of old group nodes.

use std::collections::HashMap;

use graph::{Literal, Map};

use crate::error::{Error, Warning};
use crate::group;
use crate::virtual_node::{VirtualNode, shared_name};

/// The ids that editors give to the two ends of a subgraph.
pub(crate) const INPUT_NODE: &str = "-10";
pub(crate) const OUTPUT_NODE: &str = "-20";

/// A whole file.
pub(crate) struct Document<'a> {
    /// The graphs; the first is the outermost.
    pub(crate) graphs: Vec<Graph<'a>>,
    /// What was noticed while reading.
    pub(crate) warnings: Vec<Warning>,
}

/// Nodes and the links between them.
#[derive(Default)]
pub(crate) struct Graph<'a> {
    /// The name that people see, or the id.
    pub(crate) name: String,
    /// The nodes, in the order of the file.
    pub(crate) nodes: Vec<Node<'a>>,
    /// Where each node is, by id.
    pub(crate) places: HashMap<String, usize>,
    /// The links, by id.
    pub(crate) links: HashMap<String, Wire>,
    /// The node and the slot that each link ends at, by the link's id.
    pub(crate) ends: HashMap<String, (usize, usize)>,
    /// The links that start at a subgraph's own inputs, by input, oldest first.
    pub(crate) input_links: HashMap<usize, Vec<String>>,
    /// The link that ends at each of a subgraph's own outputs.
    pub(crate) output_links: HashMap<usize, String>,
    /// Where nodes are that give a name to what is linked to them.
    pub(crate) setters: HashMap<&'a str, usize>,
    /// The names of a subgraph's own inputs.
    pub(crate) inputs: Vec<String>,
    /// The id that links from a subgraph's own inputs start at.
    pub(crate) input_node: String,
    /// The id that links to a subgraph's own outputs end at.
    pub(crate) output_node: String,
}

/// One node.
pub(crate) struct Node<'a> {
    pub(crate) id: String,
    /// Its class, or the id of a subgraph.
    pub(crate) class: &'a str,
    pub(crate) title: Option<&'a str>,
    pub(crate) mode: Mode,
    /// Where the editor put it in the order of execution.
    pub(crate) order: i128,
    pub(crate) inputs: Vec<Slot<'a>>,
    /// The types of its outputs.
    pub(crate) outputs: Vec<String>,
    pub(crate) values: Values<'a>,
    pub(crate) properties: Option<&'a Map>,
    /// The graph that it stands for, if it is a subgraph.
    pub(crate) inner: Option<usize>,
}

/// Whether a node takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Active,
    /// It and all links to it are left out.
    Muted,
    /// What comes in goes out, by type.
    Bypassed,
}

/// An input of a node.
#[derive(Clone)]
pub(crate) struct Slot<'a> {
    pub(crate) name: &'a str,
    pub(crate) kind: String,
    /// The id of the link that ends here.
    pub(crate) link: Option<String>,
    /// Whether it belongs to a widget.
    pub(crate) is_widget: bool,
}

/// A link: where it starts and where it ends.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wire {
    pub(crate) from: String,
    pub(crate) from_slot: usize,
    pub(crate) to: String,
    pub(crate) to_slot: usize,
}

/// The stored values of a node's widgets.
#[derive(Clone, Copy, Default)]
pub(crate) struct Values<'a> {
    /// By position.
    pub(crate) list: Option<&'a [Literal]>,
    /// By name.
    pub(crate) named: Option<&'a Map>,
}

impl<'a> Document<'a> {
    /// Reads a file.
    pub(crate) fn read(file: &'a Literal) -> Result<Document<'a>, Error> {
        let root = file.as_map().ok_or(Error::NotAWorkflow)?;
        let mut document = Document { graphs: Vec::new(), warnings: Vec::new() };
        let mut root_graph = read_graph(root, "the workflow", &mut document.warnings)?;
        root_graph.add_sent_everywhere(root);
        root_graph.index();
        document.graphs.push(root_graph);
        let ids = document.read_subgraphs(root)?;
        for node in document.graphs.iter_mut().flat_map(|graph| &mut graph.nodes) {
            node.inner = ids.get(node.class).copied();
        }
        group::expand_groups(&mut document, root)?;
        Ok(document)
    }

    /// Reads all subgraphs, those defined inside others included, and says where each is.
    fn read_subgraphs(&mut self, root: &'a Map) -> Result<HashMap<&'a str, usize>, Error> {
        let mut ids = HashMap::new();
        let mut waiting = vec![root];
        while let Some(owner) = waiting.pop() {
            let Some(list) = owner.get("definitions").and_then(|definitions| definitions.get("subgraphs"))
            else {
                continue;
            };
            for (at, definition) in list_of(list, "definitions.subgraphs")?.iter().enumerate() {
                let place = format!("definitions.subgraphs[{at}]");
                let map =
                    definition.as_map().ok_or_else(|| malformed(&place, "a subgraph must be an object"))?;
                let id = map.get("id").and_then(Literal::as_text);
                let id = id.ok_or_else(|| malformed(&place, "it has no `id`"))?;
                let name = map.get("name").and_then(Literal::as_text).unwrap_or(id);
                let mut graph = read_graph(map, &format!("subgraph \"{name}\""), &mut self.warnings)?;
                graph.index();
                ids.entry(id).or_insert(self.graphs.len());
                self.graphs.push(Graph { name: name.to_owned(), ..graph });
                waiting.push(map);
            }
        }
        Ok(ids)
    }
}

/// Reads one graph; `place` names it in errors.
fn read_graph<'a>(map: &'a Map, place: &str, warnings: &mut Vec<Warning>) -> Result<Graph<'a>, Error> {
    let mut graph = Graph {
        links: read_links(map, place)?,
        input_node: boundary_id(map, "inputNode", INPUT_NODE),
        output_node: boundary_id(map, "outputNode", OUTPUT_NODE),
        inputs: port_names(map, place)?,
        ..Graph::default()
    };
    let nodes = map.get("nodes").ok_or_else(|| malformed(place, "it has no list of `nodes`"))?;
    for (at, node) in list_of(nodes, place)?.iter().enumerate() {
        let node = read_node(node, &format!("{place}, nodes[{at}]"))?;
        graph.add(node, warnings);
    }
    Ok(graph)
}

impl<'a> Graph<'a> {
    /// Adds a node unless its id is taken.
    pub(crate) fn add(&mut self, node: Node<'a>, warnings: &mut Vec<Warning>) {
        if self.places.contains_key(&node.id) {
            warnings.push(Warning::DuplicateNode { node: node.id });
            return;
        }
        self.places.insert(node.id.clone(), self.nodes.len());
        self.nodes.push(node);
    }

    /// Adds the links of nodes that send a value to every open input of its type. Such a node chooses them while
    /// the editor runs, and the file has what it chose last.
    fn add_sent_everywhere(&mut self, root: &Map) {
        let links = root.get("extra").and_then(|extra| extra.get("ue_links")).and_then(Literal::as_list);
        for (number, link) in links.unwrap_or_default().iter().enumerate() {
            let id = |key: &str| link.get(key).and_then(id_text);
            let slot = |key: &str| usize::try_from(link.get(key)?.as_int()?).ok();
            let (Some(to), Some(to_slot)) = (id("downstream"), slot("downstream_slot")) else { continue };
            let (Some(from), Some(from_slot)) = (id("upstream"), slot("upstream_slot")) else { continue };
            let node = self.places.get(&to).map(|at| &mut self.nodes[*at]);
            let Some(input) = node.and_then(|node| node.inputs.get_mut(to_slot)) else { continue };
            if input.link.is_none() && input.kind == type_text(link.get("type")) {
                let id = format!("everywhere {number}");
                input.link = Some(id.clone());
                self.links.insert(id, Wire { from, from_slot, to, to_slot });
            }
        }
    }

    /// Notes where links and names lead; nothing is added afterwards. The ids of links are numbers that grow, so
    /// the oldest comes first.
    pub(crate) fn index(&mut self) {
        for (at, node) in self.nodes.iter().enumerate() {
            for (slot, input) in node.inputs.iter().enumerate() {
                if let Some(id) = &input.link {
                    self.ends.entry(id.clone()).or_insert((at, slot));
                }
            }
            if VirtualNode::of(node.class) == Some(VirtualNode::Set)
                && let Some(name) = shared_name(node)
            {
                self.setters.entry(name).or_insert(at);
            }
        }
        let mut ids: Vec<&String> = self.links.keys().collect();
        ids.sort_by_key(|id| (id.len(), id.as_str()));
        for id in ids {
            let wire = &self.links[id];
            if wire.from == self.input_node {
                self.input_links.entry(wire.from_slot).or_default().push(id.clone());
            }
            if wire.to == self.output_node {
                self.output_links.entry(wire.to_slot).or_insert_with(|| id.clone());
            }
        }
    }

    /// The nodes and slots that one of a subgraph's own inputs leads to, nodes that never run apart.
    pub(crate) fn targets(&self, port: usize) -> impl Iterator<Item = (usize, &Slot<'a>)> {
        let ids = self.input_links.get(&port).into_iter().flatten();
        let ends = ids.filter_map(|id| self.ends.get(id).copied());
        let running = ends.filter(|(node, _)| VirtualNode::of(self.nodes[*node].class).is_none());
        running.map(|(node, slot)| (node, &self.nodes[node].inputs[slot]))
    }

    /// The link that ends at one of a subgraph's own outputs.
    pub(crate) fn link_to_output(&self, port: usize) -> Option<&Wire> {
        self.links.get(self.output_links.get(&port)?)
    }
}

impl Node<'_> {
    /// A property's value.
    pub(crate) fn property(&self, name: &str) -> Option<&Literal> {
        self.properties?.get(name)
    }

    /// Where an input is, by name.
    pub(crate) fn input_named(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|slot| slot.name == name)
    }
}

/// Reads one node; `place` names it until its id is known.
pub(crate) fn read_node<'a>(literal: &'a Literal, place: &str) -> Result<Node<'a>, Error> {
    let map = literal.as_map().ok_or_else(|| malformed(place, "a node must be an object"))?;
    let id = map.get("id").and_then(id_text).ok_or_else(|| malformed(place, "the node has no `id`"))?;
    read_node_body(map, id)
}

/// Reads a node whose id is known.
pub(crate) fn read_node_body<'a>(map: &'a Map, id: String) -> Result<Node<'a>, Error> {
    let place = format!("node {id}");
    let class = map.get("type").and_then(Literal::as_text);
    let class = class.ok_or_else(|| malformed(&place, "it has no `type`"))?;
    let values = match map.get("widgets_values") {
        Some(Literal::List(list)) => Values { list: Some(list), named: None },
        Some(Literal::Map(named)) => Values { list: None, named: Some(named) },
        None | Some(Literal::Null) => Values::default(),
        Some(_) => return Err(malformed(&place, "its `widgets_values` must be a list or an object")),
    };
    let named = values.named.or_else(|| map.get("widgets_values_named").and_then(Literal::as_map));
    Ok(Node {
        class,
        title: map.get("title").and_then(Literal::as_text),
        mode: match map.get("mode").and_then(Literal::as_int) {
            Some(2) => Mode::Muted,
            Some(4) => Mode::Bypassed,
            _ => Mode::Active,
        },
        order: map.get("order").and_then(Literal::as_int).unwrap_or_default(),
        inputs: read_slots(map, &place)?,
        outputs: read_outputs(map, &place)?,
        values: Values { named, ..values },
        properties: map.get("properties").and_then(Literal::as_map),
        inner: None,
        id,
    })
}

fn read_slots<'a>(node: &'a Map, place: &str) -> Result<Vec<Slot<'a>>, Error> {
    let mut slots = Vec::new();
    for (at, slot) in optional_list(node, "inputs", place)?.iter().enumerate() {
        let map =
            slot.as_map().ok_or_else(|| malformed(place, &format!("inputs[{at}] must be an object")))?;
        let link = match map.get("link") {
            None | Some(Literal::Null) => None,
            Some(link) => Some(id_text(link).ok_or_else(|| {
                malformed(place, &format!("the `link` of inputs[{at}] must be a number or null"))
            })?),
        };
        slots.push(Slot {
            // Reroutes have one input without a name.
            name: map.get("name").and_then(Literal::as_text).unwrap_or_default(),
            kind: type_text(map.get("type")),
            link,
            is_widget: map.get("widget").is_some_and(|widget| widget.as_map().is_some()),
        });
    }
    Ok(slots)
}

fn read_outputs(node: &Map, place: &str) -> Result<Vec<String>, Error> {
    Ok(optional_list(node, "outputs", place)?.iter().map(|output| type_text(output.get("type"))).collect())
}

/// Reads the links of a graph, in any of the forms that editors have used.
fn read_links(graph: &Map, place: &str) -> Result<HashMap<String, Wire>, Error> {
    let mut links = HashMap::new();
    let stored: Vec<&Literal> = match graph.get("links") {
        None | Some(Literal::Null) => Vec::new(),
        Some(Literal::List(list)) => list.iter().collect(),
        Some(Literal::Map(map)) => map.values().collect(),
        Some(_) => return Err(malformed(place, "its `links` must be a list")),
    };
    for (at, link) in stored.into_iter().enumerate() {
        let parts = match link {
            // Editors leave a hole where a link was removed.
            Literal::Null => continue,
            Literal::List(parts) => read_wire(|position, _| parts.get(position)),
            Literal::Map(map) => read_wire(|_, name| map.get(name)),
            _ => None,
        };
        let (id, wire) = parts.ok_or_else(|| {
            malformed(&format!("{place}, links[{at}]"), "a link must have an id, a start and an end")
        })?;
        links.insert(id, wire);
    }
    Ok(links)
}

/// Reads one link whose parts have positions or names.
fn read_wire<'a>(part: impl Fn(usize, &str) -> Option<&'a Literal>) -> Option<(String, Wire)> {
    let slot = |position, name| usize::try_from(part(position, name)?.as_int()?).ok();
    let wire = Wire {
        from: id_text(part(1, "origin_id")?)?,
        from_slot: slot(2, "origin_slot")?,
        to: id_text(part(3, "target_id")?)?,
        // Links to an end that was being dragged have none.
        to_slot: slot(4, "target_slot").unwrap_or_default(),
    };
    Some((id_text(part(0, "id")?)?, wire))
}

fn port_names(graph: &Map, place: &str) -> Result<Vec<String>, Error> {
    let ports = optional_list(graph, "inputs", place)?.iter();
    Ok(ports.map(|port| port.get("name").and_then(Literal::as_text).unwrap_or_default().to_owned()).collect())
}

fn boundary_id(graph: &Map, key: &str, usual: &str) -> String {
    let stored = graph.get(key).and_then(|node| node.get("id")).and_then(id_text);
    stored.unwrap_or_else(|| usual.to_owned())
}

/// An id as text: files write numbers, prompts write text.
pub(crate) fn id_text(literal: &Literal) -> Option<String> {
    match literal {
        Literal::Text(text) => Some(text.clone()),
        Literal::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

/// A slot's type as text. Old files list the choices in its place.
fn type_text(literal: Option<&Literal>) -> String {
    match literal {
        Some(Literal::Text(text)) => text.clone(),
        Some(Literal::List(_)) => "COMBO".to_owned(),
        _ => "*".to_owned(),
    }
}

fn optional_list<'a>(map: &'a Map, key: &str, place: &str) -> Result<&'a [Literal], Error> {
    match map.get(key) {
        None | Some(Literal::Null) => Ok(&[]),
        Some(list) => list.as_list().ok_or_else(|| malformed(place, &format!("its `{key}` must be a list"))),
    }
}

fn list_of<'a>(literal: &'a Literal, place: &str) -> Result<&'a [Literal], Error> {
    literal.as_list().ok_or_else(|| malformed(place, "it must be a list"))
}

/// The error of a part with the wrong form.
pub(crate) fn malformed(place: &str, what: &str) -> Error {
    Error::Malformed { place: place.to_owned(), what: what.to_owned() }
}
