//! Prompts from anywhere: validation never panics, and what it lets pass runs every needed node once.

use std::collections::{HashMap, HashSet};

use graph::{CacheMode, Literal, Map, Prompt, PromptNode, RunEnd, map, validate};
use proptest::prelude::*;

use crate::stage::{Stage, toys};

fn constants() -> impl Strategy<Value = Literal> {
    let leaf = prop_oneof![
        Just(Literal::Null),
        any::<bool>().prop_map(Literal::Bool),
        any::<i128>().prop_map(Literal::Int),
        any::<f64>().prop_map(Literal::Float),
        "[ -~]{0,6}".prop_map(Literal::Text),
        (0..8_u32, -2..3_i64)
            .prop_map(|(node, slot)| Literal::List(vec![node.to_string().into(), slot.into()])),
    ];
    leaf.prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Literal::List),
            inner.clone().prop_map(|value| Literal::Map(map([("__value__", value)]))),
            prop::collection::vec(("[a-c]", inner), 0..3)
                .prop_map(|entries| Literal::Map(entries.into_iter().collect())),
        ]
    })
}

fn nodes() -> impl Strategy<Value = PromptNode> {
    let classes: Vec<Option<String>> = toys()
        .iter()
        .map(|(name, _)| Some(name.to_owned()))
        .filter(|name| name.as_deref() != Some("Sleep"))
        .collect();
    let names =
        ["value", "a", "b", "text", "count", "values", "condition", "yes", "no", "how", "times", "extra"];
    let input = (prop::sample::select(names.to_vec()), constants());
    let inputs = prop::collection::vec(input, 0..6).prop_map(map);
    let classes =
        prop_oneof![60 => prop::sample::select(classes), 1 => Just(None), 1 => Just(Some("?".to_owned()))];
    (classes, prop::option::weighted(0.95, inputs)).prop_map(|(class_type, inputs)| PromptNode {
        class_type,
        inputs,
        rest: Map::new(),
    })
}

/// By node, the earlier nodes that its inputs are linked to.
fn graphs() -> impl Strategy<Value = Vec<(usize, usize)>> {
    prop::collection::vec((any::<usize>(), any::<usize>()), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn validation_never_panics_and_what_passes_ends(nodes in prop::collection::vec(nodes(), 0..8)) {
        let nodes = nodes.into_iter().enumerate().map(|(id, node)| (id.to_string().into(), node)).collect();
        let mut prompt = Prompt { nodes };
        match validate(&toys(), &mut prompt, None) {
            Ok(accepted) => {
                prop_assert!(!accepted.outputs.is_empty());
                // What was converted stays as it is.
                let mut again = prompt.clone();
                let same = validate(&toys(), &mut again, None).unwrap();
                prop_assert_eq!(same.outputs, accepted.outputs);
                Stage::new(CacheMode::Classic).run_prompt(prompt);
            }
            Err(rejected) => prop_assert!(!rejected.error.kind.is_empty()),
        }
    }

    #[test]
    fn every_needed_node_runs_once(links in graphs(), mode in 0..3) {
        let mode = [CacheMode::Classic, CacheMode::Lru(5), CacheMode::None][mode as usize];
        let mut nodes = indexmap::IndexMap::new();
        let mut needed = HashSet::new();
        // Every seventh node is shown. The values differ, so no two nodes are equal.
        for (at, (a, b)) in links.iter().enumerate().rev() {
            if at % 7 == 0 {
                needed.insert(at);
                let show = map([("value", Literal::from(vec![Literal::from(at.to_string()), 0_i64.into()]))]);
                nodes.insert(format!("show{at}").into(), PromptNode::new("Show", show));
            }
            let link = |to: usize| Literal::from(vec![Literal::from((to % at.max(1)).to_string()), 0_i64.into()]);
            let number = Literal::from(at);
            let mut inputs = map([("value1", number)]);
            if at > 0 {
                inputs.insert("value2".to_owned(), link(*a));
                inputs.insert("value3".to_owned(), link(*b));
                if needed.contains(&at) {
                    needed.extend([a % at, b % at]);
                }
            }
            nodes.insert(at.to_string().into(), PromptNode::new("AddAll", inputs));
        }
        let prompt = Prompt { nodes };
        let mut stage = Stage::new(mode);
        let ran = stage.run_prompt(prompt.clone());
        // The same again runs nothing, or everything if nothing is kept.
        let runs_again = if mode == CacheMode::None { ran.started().len() } else { 0 };
        prop_assert_eq!(stage.run_prompt(prompt).started().len(), runs_again);
        prop_assert!(matches!(ran.report.end, RunEnd::Succeeded));
        let mut counts: HashMap<&str, usize> = HashMap::new();
        for id in ran.started() {
            *counts.entry(id).or_default() += 1;
        }
        prop_assert!(counts.values().all(|count| *count == 1));
        let shows = links.len().div_ceil(7);
        prop_assert_eq!(counts.len(), needed.len() + shows);
        prop_assert!(needed.iter().all(|at| counts.contains_key(at.to_string().as_str())));
        // The sums are those of a plain walk.
        let mut sums: Vec<i128> = Vec::new();
        for (at, (a, b)) in links.iter().enumerate() {
            let more = if at == 0 { 0 } else { sums[a % at].saturating_add(sums[b % at]) };
            sums.push((at as i128).saturating_add(more));
            if at % 7 == 0 {
                prop_assert_eq!(ran.shown(&format!("show{at}")), format!("[{}]", sums[at]));
            }
        }
    }
}
