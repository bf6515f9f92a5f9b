//! Old group nodes: several nodes folded into one, kept in `extra.groupNodes`. They are read as subgraphs.
//!
//! A group's inputs are those of its nodes that nothing inside is linked to, in order; its outputs likewise; its
//! values are those of its nodes, one after the other. A node inside is named by the group and its position.

use std::collections::HashSet;

use graph::{Literal, Map};

use crate::document::{
    Document, Graph, INPUT_NODE, Mode, Node, OUTPUT_NODE, Values, Wire, malformed, read_node_body,
};
use crate::error::{Error, Warning};

/// How many nodes all groups together may add.
const MAX_NODES: usize = 100_000;

/// Gives every group node of a file a graph of its own.
pub(crate) fn expand_groups<'a>(document: &mut Document<'a>, root: &'a Map) -> Result<(), Error> {
    let Some(groups) = root.get("extra").and_then(|extra| extra.get("groupNodes")).and_then(Literal::as_map)
    else {
        return Ok(());
    };
    let mut added = 0;
    let mut next = 0;
    while next < document.graphs.len() {
        for at in 0..document.graphs[next].nodes.len() {
            let node = &document.graphs[next].nodes[at];
            let Some(name) = group_name(node) else { continue };
            let Some(definition) = groups.get(name).and_then(Literal::as_map) else { continue };
            let graph = read_group(name, definition, node, &mut document.warnings)?;
            added += graph.nodes.len() + 1;
            if added > MAX_NODES {
                let node = node.id.clone();
                return Err(Error::TooLarge { node, limit: MAX_NODES, what: "nodes in groups" });
            }
            let inner = document.graphs.len();
            document.graphs.push(graph);
            document.graphs[next].nodes[at].inner = Some(inner);
        }
        next += 1;
    }
    Ok(())
}

/// The name of the group that a node is.
fn group_name<'a>(node: &Node<'a>) -> Option<&'a str> {
    let is_new = node.inner.is_none() && node.mode != Mode::Muted;
    let name = node.class.strip_prefix("workflow/").or_else(|| node.class.strip_prefix("workflow>"));
    name.filter(|_| is_new)
}

fn read_group<'a>(
    name: &str,
    definition: &'a Map,
    host: &Node<'a>,
    warnings: &mut Vec<Warning>,
) -> Result<Graph<'a>, Error> {
    let place = format!("node {}, group \"{name}\"", host.id);
    let nodes = definition.get("nodes").and_then(Literal::as_list);
    let nodes = nodes.ok_or_else(|| malformed(&place, "it has no list of `nodes`"))?;
    let mut graph = Graph {
        name: name.to_owned(),
        input_node: INPUT_NODE.to_owned(),
        output_node: OUTPUT_NODE.to_owned(),
        ..Graph::default()
    };
    for (at, node) in nodes.iter().enumerate() {
        let map =
            node.as_map().ok_or_else(|| malformed(&place, &format!("nodes[{at}] must be an object")))?;
        let mut node = read_node_body(map, at.to_string())?;
        node.inputs.iter_mut().for_each(|slot| slot.link = None);
        graph.add(node, warnings);
    }
    let linked = add_links(&mut graph, definition);
    add_inputs(&mut graph, definition, host);
    add_outputs(&mut graph, definition, &linked);
    if !give_values(&mut graph, host) {
        let what = format!("its values do not fit the nodes of group \"{name}\"; the group's own are used");
        warnings.push(Warning::Unsupported { node: host.id.clone(), what });
    }
    graph.index();
    Ok(graph)
}

/// Adds the links inside, and says which outputs they start at.
fn add_links(graph: &mut Graph<'_>, definition: &Map) -> HashSet<(usize, usize)> {
    let mut linked = HashSet::new();
    let links = definition.get("links").and_then(Literal::as_list).unwrap_or_default();
    for (number, link) in links.iter().enumerate() {
        let part = |at: usize| usize::try_from(link.as_list()?.get(at)?.as_int()?).ok();
        // Links from outside have no start.
        let (Some(from), Some(from_slot), Some(to), Some(to_slot)) = (part(0), part(1), part(2), part(3))
        else {
            continue;
        };
        let Some(slot) = graph.nodes.get_mut(to).and_then(|node| node.inputs.get_mut(to_slot)) else {
            continue;
        };
        let id = format!("inside {number}");
        slot.link = Some(id.clone());
        graph.links.insert(id, Wire { from: from.to_string(), from_slot, to: to.to_string(), to_slot });
        linked.insert((from, from_slot));
    }
    linked
}

/// Adds the group's own inputs, named as its node names them.
fn add_inputs(graph: &mut Graph<'_>, definition: &Map, host: &Node<'_>) {
    let mut free = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        let slots = node.inputs.iter().enumerate().filter(|(_, slot)| slot.link.is_none());
        let shown = slots.filter(|(_, slot)| is_shown(definition, at, "input", slot.name));
        free.extend(shown.map(|(slot, input)| (at, slot, input.is_widget)));
    }
    // Newer editors list every widget as an input; the node has those that something is linked to.
    if free.len() != host.inputs.len() {
        free.retain(|(_, _, is_widget)| !is_widget);
    }
    for (port, ((at, slot, _), outside)) in free.into_iter().zip(&host.inputs).enumerate() {
        let id = format!("in {port}");
        graph.inputs.push(outside.name.to_owned());
        graph.nodes[at].inputs[slot].link = Some(id.clone());
        let wire = Wire { from: INPUT_NODE.to_owned(), from_slot: port, to: at.to_string(), to_slot: slot };
        graph.links.insert(id, wire);
    }
}

/// Adds the group's own outputs: those that lead out, and those that nothing inside takes.
fn add_outputs(graph: &mut Graph<'_>, definition: &Map, linked: &HashSet<(usize, usize)>) {
    let leads_out = external(definition);
    let mut port = 0;
    for at in 0..graph.nodes.len() {
        for slot in 0..graph.nodes[at].outputs.len() {
            let is_inside = linked.contains(&(at, slot)) && !leads_out.contains(&(at, slot));
            if is_inside || !is_shown(definition, at, "output", &slot.to_string()) {
                continue;
            }
            let wire =
                Wire { from: at.to_string(), from_slot: slot, to: OUTPUT_NODE.to_owned(), to_slot: port };
            graph.links.insert(format!("out {port}"), wire);
            port += 1;
        }
    }
}

/// The outputs that were linked to something outside when the group was made.
fn external(definition: &Map) -> HashSet<(usize, usize)> {
    let entries = definition.get("external").and_then(Literal::as_list).unwrap_or_default();
    let place = |entry: &Literal| {
        let [node, slot, ..] = entry.as_list()? else { return None };
        // The first editors wrote the whole node where later ones write its position.
        let node = node.get("index").unwrap_or(node).as_int()?;
        Some((usize::try_from(node).ok()?, usize::try_from(slot.as_int()?).ok()?))
    };
    entries.iter().filter_map(place).collect()
}

/// Whether a person has left an input or output of the group visible.
fn is_shown(definition: &Map, node: usize, side: &str, name: &str) -> bool {
    let node = definition.get("config").and_then(|config| config.get(&node.to_string()));
    let entry = node.and_then(|node| node.get(side)).and_then(|side| side.get(name));
    entry.and_then(|entry| entry.get("visible")).and_then(Literal::as_bool).unwrap_or(true)
}

/// Hands the group's values to its nodes, if their number fits.
fn give_values<'a>(graph: &mut Graph<'a>, host: &Node<'a>) -> bool {
    let Some(values) = host.values.list else { return true };
    let count = |node: &Node<'_>| node.values.list.map_or(0, <[Literal]>::len);
    if graph.nodes.iter().map(count).sum::<usize>() != values.len() {
        return values.is_empty();
    }
    let mut rest = values;
    for node in &mut graph.nodes {
        let (own, others) = rest.split_at(count(node));
        if !own.is_empty() {
            node.values = Values { list: Some(own), named: None };
        }
        rest = others;
    }
    true
}
