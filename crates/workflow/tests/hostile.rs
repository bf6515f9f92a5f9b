//! Files that nobody draws: they end in an error that says where, never in a panic or without end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod declared;

use declared::literal;
use graph::{Catalogue, Literal, Map};
use proptest::prelude::*;
use workflow::{Error, to_prompt};

const FILES: [&str; 8] = [
    include_str!("data/bypassed_and_muted.workflow.json"),
    include_str!("data/bypassed_subgraph.workflow.json"),
    include_str!("data/dynamic_inputs.workflow.json"),
    include_str!("data/group_node.workflow.json"),
    include_str!("data/image_to_image.workflow.json"),
    include_str!("data/primitives_and_names.workflow.json"),
    include_str!("data/proxy_widgets.workflow.json"),
    include_str!("data/subgraphs.workflow.json"),
];

fn catalogue() -> Catalogue {
    declared::catalogue(include_str!("data/classes.json"))
}

fn error_of(json: &str) -> Error {
    to_prompt(&literal(json), &catalogue()).unwrap_err()
}

#[test]
fn wrong_forms_say_where() {
    for (json, part) in [
        (r#"{"nodes": [5]}"#, "nodes[0]: a node must be an object"),
        (r#"{"nodes": [{"type": "A"}]}"#, "nodes[0]: the node has no `id`"),
        (r#"{"nodes": [{"id": [], "type": "A"}]}"#, "nodes[0]: the node has no `id`"),
        (r#"{"nodes": [{"id": 4}]}"#, "node 4: it has no `type`"),
        (r#"{"nodes": [{"id": 4, "type": "A", "inputs": 3}]}"#, "node 4: its `inputs` must be a list"),
        (r#"{"nodes": [{"id": 4, "type": "A", "inputs": [3]}]}"#, "node 4: inputs[0] must be an object"),
        (
            r#"{"nodes": [{"id": 4, "type": "A", "inputs": [{"link": {}}]}]}"#,
            "node 4: the `link` of inputs[0]",
        ),
        (r#"{"nodes": [{"id": 4, "type": "A", "widgets_values": 3}]}"#, "node 4: its `widgets_values`"),
        (r#"{"nodes": [], "links": 3}"#, "its `links` must be a list"),
        (r#"{"nodes": [], "links": [[1, 2]]}"#, "links[0]: a link must have"),
        (r#"{"nodes": [], "links": [[1, 2, -3, 4, 5]]}"#, "links[0]: a link must have"),
        (r#"{"nodes": [], "definitions": {"subgraphs": [{"nodes": []}]}}"#, "subgraphs[0]: it has no `id`"),
        (r#"{"nodes": [], "definitions": {"subgraphs": [{"id": "s"}]}}"#, "subgraph \"s\": it has no list"),
    ] {
        let text = error_of(json).to_string();
        assert!(text.contains(part), "{json}: {text}");
    }
}

/// A subgraph of an id, with nodes of some types.
fn subgraph(id: &str, types: &[&str]) -> String {
    let nodes: Vec<String> =
        types.iter().enumerate().map(|(at, kind)| format!(r#"{{"id": {at}, "type": "{kind}"}}"#)).collect();
    format!(r#"{{"id": "{id}", "name": "graph {id}", "nodes": [{}]}}"#, nodes.join(","))
}

fn with_subgraphs(first: &str, subgraphs: &[String]) -> String {
    let subgraphs = subgraphs.join(",");
    format!(r#"{{"nodes": [{{"id": 9, "type": "{first}"}}], "definitions": {{"subgraphs": [{subgraphs}]}}}}"#)
}

#[test]
fn subgraphs_that_contain_themselves_are_refused() {
    let itself = with_subgraphs("a", &[subgraph("a", &["KSampler", "a"])]);
    let expected = Error::SubgraphCycle { node: "9:1".to_owned(), subgraph: "graph a".to_owned() };
    assert_eq!(error_of(&itself), expected);
    let each_other = with_subgraphs("a", &[subgraph("a", &["b"]), subgraph("b", &["a"])]);
    let expected = Error::SubgraphCycle { node: "9:0:0".to_owned(), subgraph: "graph a".to_owned() };
    assert_eq!(error_of(&each_other), expected);
    // Unused ones do no harm.
    let unused = with_subgraphs("VAELoader", &[subgraph("a", &["a"])]);
    assert_eq!(to_prompt(&literal(&unused), &catalogue()).unwrap().prompt.nodes.len(), 1);
}

#[test]
fn subgraphs_that_multiply_are_refused() {
    let doubling: Vec<String> = (0..30)
        .map(|level| {
            let next = format!("level {}", level + 1);
            subgraph(&format!("level {level}"), &[&next, &next])
        })
        .collect();
    assert!(matches!(error_of(&with_subgraphs("level 0", &doubling)), Error::TooLarge { .. }));
    let nested: Vec<String> = (0..1000)
        .map(|level| subgraph(&format!("level {level}"), &[&format!("level {}", level + 1)]))
        .collect();
    assert!(matches!(error_of(&with_subgraphs("level 0", &nested)), Error::TooLarge { what: "levels", .. }));
    let text = "x".repeat(1_000_000);
    let group = format!(
        r#"{{"nodes": [{}], "extra": {{"groupNodes": {{"g": {{"nodes": [{}]}}}}}}}}"#,
        r#"{"id": 1, "type": "workflow>g"}"#,
        format_args!(r#"{{"type": "workflow>g"}}, {{"type": "Note", "widgets_values": ["{text}"]}}"#),
    );
    assert!(matches!(error_of(&group), Error::TooLarge { what: "nodes in groups", .. }));
}

#[test]
fn links_in_circles_are_refused() {
    let reroutes = r#"{"nodes": [
        {"id": 1, "type": "Reroute", "inputs": [{"name": "", "type": "*", "link": 1}], "outputs": [{"type": "*"}]},
        {"id": 2, "type": "Reroute", "inputs": [{"name": "", "type": "*", "link": 2}], "outputs": [{"type": "*"}]},
        {"id": 3, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 3}]}],
      "links": [[1, 2, 0, 1, 0, "*"], [2, 1, 0, 2, 0, "*"], [3, 1, 0, 3, 0, "*"]]}"#;
    assert_eq!(error_of(reroutes), Error::LinkCycle { node: "3".to_owned(), input: "vae".to_owned() });
    // Nodes that run may be linked in a circle: proving the prompt finds that.
    let running = reroutes.replace("\"Reroute\"", "\"VAEDecode\"");
    assert_eq!(to_prompt(&literal(&running), &catalogue()).unwrap().prompt.nodes.len(), 3);
    let setter = r#"{"nodes": [
        {"id": 1, "type": "SetNode", "inputs": [{"name": "x", "type": "*", "link": 1}], "widgets_values": ["x"]},
        {"id": 2, "type": "GetNode", "widgets_values": ["x"]},
        {"id": 3, "type": "VAEDecode", "inputs": [{"name": "vae", "type": "VAE", "link": 2}]}],
      "links": [[1, 2, 0, 1, 0, "*"], [2, 2, 0, 3, 0, "*"]]}"#;
    assert!(matches!(error_of(setter), Error::LinkCycle { .. }));
}

#[test]
fn endless_chains_are_refused() {
    let nodes: Vec<String> = (0..5000)
        .map(|at| {
            let class = if at == 4999 { "VAEDecode" } else { "Reroute" };
            format!(r#"{{"id": {at}, "type": "{class}", "inputs": [{{"name": "vae", "type": "*", "link": {at}}}]}}"#)
        })
        .collect();
    let links: Vec<String> = (1..5000).map(|at| format!(r#"[{at}, {}, 0, {at}, 0, "*"]"#, at - 1)).collect();
    let file = format!(r#"{{"nodes": [{}], "links": [{}]}}"#, nodes.join(","), links.join(","));
    assert!(matches!(error_of(&file), Error::TooLarge { limit: 1000, .. }));
}

#[test]
fn values_that_multiply_are_refused() {
    let text = "x".repeat(4_000_000);
    let nodes: Vec<String> = (1..100)
        .map(|at| {
            let inputs = format!(r#"[{{"name": "text", "type": "STRING", "link": {at}}}]"#);
            format!(r#"{{"id": {at}, "type": "CLIPTextEncode", "inputs": {inputs}, "widgets_values": [""]}}"#)
        })
        .collect();
    let links: Vec<String> = (1..100).map(|at| format!(r#"[{at}, 0, 0, {at}, 0, "STRING"]"#)).collect();
    let file = format!(
        r#"{{"nodes": [{{"id": 0, "type": "PrimitiveNode", "widgets_values": ["{text}"]}}, {}], "links": [{}]}}"#,
        nodes.join(","),
        links.join(",")
    );
    assert!(matches!(error_of(&file), Error::TooLarge { what: "bytes of values", .. }));
}

/// A change to a file: where, counted over all its parts, and what is put there.
#[derive(Clone, Debug)]
enum Change {
    Replace(usize, Literal),
    Remove(usize),
    /// A part is put in the place of another one.
    Copy(usize, usize),
}

fn any_literal() -> impl Strategy<Value = Literal> {
    let leaf = prop_oneof![
        Just(Literal::Null),
        any::<bool>().prop_map(Literal::from),
        (-30_i64..30).prop_map(Literal::from),
        any::<i64>().prop_map(Literal::from),
        any::<f64>().prop_map(Literal::Float),
        prop_oneof![
            Just("aaaa"),
            Just("bbbb"),
            Just("Reroute"),
            Just("-10"),
            Just("workflow>Finish"),
            Just("")
        ]
        .prop_map(Literal::from),
        ".{0,8}".prop_map(Literal::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Literal::List),
            prop::collection::vec(
                (prop_oneof![Just("id"), Just("nodes"), Just("link"), Just("x")], inner),
                0..4
            )
            .prop_map(|entries| Literal::Map(graph::map(entries))),
        ]
    })
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any::<usize>(), any_literal()).prop_map(|(at, value)| Change::Replace(at, value)),
        any::<usize>().prop_map(Change::Remove),
        (any::<usize>(), any::<usize>()).prop_map(|(from, to)| Change::Copy(from, to)),
    ]
}

/// How many parts a constant has, itself included.
fn size(literal: &Literal) -> usize {
    match literal {
        Literal::List(list) => 1 + list.iter().map(size).sum::<usize>(),
        Literal::Map(map) => 1 + map.values().map(size).sum::<usize>(),
        _ => 1,
    }
}

/// The part of a number, and whether it was removed by `change`, which may put something in its place.
fn visit(literal: &mut Literal, at: &mut usize, change: &mut dyn FnMut(&mut Literal) -> bool) -> bool {
    if *at == 0 {
        *at = usize::MAX;
        return change(literal);
    }
    *at -= 1;
    match literal {
        Literal::List(list) => list.retain_mut(|item| *at == usize::MAX || !visit(item, at, change)),
        Literal::Map(map) => map.retain(|_, value| *at == usize::MAX || !visit(value, at, change)),
        _ => {}
    }
    false
}

fn apply(file: &mut Literal, change: &Change) {
    let parts = size(file);
    let mut edit = |at: usize, act: &mut dyn FnMut(&mut Literal) -> bool| visit(file, &mut (at % parts), act);
    match change {
        Change::Replace(at, value) => edit(*at, &mut |part| {
            *part = value.clone();
            false
        }),
        Change::Remove(at) => edit(*at, &mut |_| true),
        Change::Copy(from, to) => {
            let mut copied = Literal::Null;
            edit(*from, &mut |part| {
                copied = part.clone();
                false
            });
            edit(*to, &mut |part| {
                *part = copied.clone();
                false
            })
        }
    };
}

/// Every link of a prompt leads to one of its nodes.
fn links_lead_somewhere(file: &Literal, catalogue: &Catalogue) -> Result<(), TestCaseError> {
    let _ = workflow::classes(file);
    if workflow::detect(file) != workflow::Format::Ui {
        return Ok(());
    }
    let Ok(converted) = to_prompt(file, catalogue) else { return Ok(()) };
    let nodes = &converted.prompt.nodes;
    let inputs = nodes.values().filter_map(|node| node.inputs.as_ref()).flat_map(Map::values);
    for link in inputs.filter_map(graph::link_of) {
        prop_assert!(nodes.contains_key(&link.node), "{link:?} leads nowhere");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn damaged_files_never_panic(
        which in 0..FILES.len(),
        changes in prop::collection::vec(any_change(), 1..8),
    ) {
        let mut file = literal(FILES[which]);
        for change in &changes {
            apply(&mut file, change);
        }
        links_lead_somewhere(&file, &catalogue())?;
    }

    #[test]
    fn anything_at_all_never_panics(nodes in any_literal(), links in any_literal(), extra in any_literal()) {
        let file = graph::map([("nodes", nodes), ("links", links), ("definitions", extra.clone()), ("extra", extra)]);
        links_lead_somewhere(&Literal::Map(file), &catalogue())?;
    }
}
