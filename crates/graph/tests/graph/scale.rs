//! Large prompts: time in proportion to their size, and no stack that their depth could overflow.

use std::time::{Duration, Instant};

use graph::{CacheMode, Literal, Map, Prompt, PromptNode, map, validate};

use crate::stage::{Stage, facts_of, toys};

fn link(to: &str) -> Literal {
    Literal::List(vec![to.into(), 0_i64.into()])
}

fn show(of: &str) -> PromptNode {
    PromptNode::new("Show", map([("value", link(of))]))
}

/// Node 0 is a number, each other one adds to the one before; the last is shown.
fn chain(length: usize) -> Prompt {
    let mut prompt = Prompt::default();
    prompt.nodes.insert("0".into(), PromptNode::new("Number", map([("value", Literal::from(1_i64))])));
    for at in 1..length {
        let inputs = map([("a", link(&(at - 1).to_string())), ("b", Literal::from(at % 2))]);
        prompt.nodes.insert(at.to_string().into(), PromptNode::new("Add", inputs));
    }
    prompt.nodes.insert("out".into(), show(&(length - 1).to_string()));
    prompt
}

#[test]
fn a_deep_chain_does_not_overflow_the_stack() {
    let ran = Stage::new(CacheMode::Classic).run_prompt(chain(20_000));
    ran.assert_succeeded();
    assert_eq!(ran.started().len(), 20_001);
    let ran = Stage::new(CacheMode::None).run_prompt(chain(20_000));
    assert_eq!(ran.shown("out"), "[10001]");
}

#[test]
fn cached_nodes_cost_little() {
    let nodes = 1000_u32;
    let mut stage = Stage::new(CacheMode::Classic);
    stage.run_prompt(chain(nodes as usize));
    let start = Instant::now();
    let rounds = 10;
    for _ in 0..rounds {
        assert!(stage.run_prompt(chain(nodes as usize)).started().is_empty());
    }
    let each = start.elapsed() / (nodes * rounds);
    println!("{each:?} per cached node, validation included");
    assert!(each < Duration::from_micros(500), "{each:?}");
}

#[test]
fn a_long_cycle_is_told_in_time() {
    let mut prompt = chain(20_000);
    prompt.nodes.insert("0".into(), PromptNode::new("Number", map([("value", link("19999"))])));
    let rejected = validate(&toys(), &mut prompt, None).unwrap_err();
    assert_eq!(rejected.node_errors.len(), 20_000);
    let error = &rejected.node_errors["0"].errors[0];
    assert_eq!(error.kind, "dependency_cycle");
    assert!(facts_of(error)["cycle_nodes"].as_list().unwrap().len() < 100);
}

#[test]
fn many_keys_and_wide_graphs_take_no_longer_than_their_size() {
    let start = Instant::now();
    // One node with a hundred thousand links, all to one node with as many readers.
    let mut prompt = chain(2);
    let mut inputs = map([("value1", Literal::from(1_i64))]);
    for at in 0..100_000 {
        inputs.insert(format!("link{at}"), link("0"));
    }
    prompt.nodes.insert("wide".into(), PromptNode::new("AddAll", inputs));
    prompt.nodes.insert("wide out".into(), show("wide"));
    for at in 0..20_000 {
        let inputs = map([("a", link("0")), ("b", Literal::from(at % 100))]);
        prompt.nodes.insert(format!("reader{at}").into(), PromptNode::new("Add", inputs));
        prompt.nodes.insert(format!("shown{at}").into(), show(&format!("reader{at}")));
    }
    let ran = Stage::new(CacheMode::None).run_prompt(prompt);
    assert_eq!(ran.shown("wide out"), "[100001]");
    assert_eq!(ran.report.outputs.len(), 20_002);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}

#[test]
fn many_faults_under_many_outputs_are_told_in_time() {
    let start = Instant::now();
    let mut prompt = Prompt::default();
    for at in 0..10_000_usize {
        let above = if at == 0 { Literal::from(1_i64) } else { link(&(at - 1).to_string()) };
        let inputs = map([("a", above), ("b", Literal::from("no number"))]);
        prompt.nodes.insert(at.to_string().into(), PromptNode::new("Add", inputs));
        prompt.nodes.insert(format!("out{at}").into(), show("9999"));
    }
    prompt.nodes.insert("empty".into(), PromptNode::new("Show", Map::new()));
    let rejected = validate(&toys(), &mut prompt, None).unwrap_err();
    assert_eq!(rejected.node_errors.len(), 10_001);
    assert!(rejected.node_errors["0"].dependent_outputs.len() >= 64);
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
