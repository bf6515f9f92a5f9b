//! Loops, and other nodes that expand into a graph.
//!
//! A loop is a pair of nodes. The closing one, as long as its condition holds, makes a copy of everything between
//! the two, itself included, and gives what the copy gives.

use std::collections::{HashMap, HashSet};

use graph::{
    Call, Catalogue, Failure, Given, GraphInput, GraphNode, Hidden, Input, Kind, Link, Literal, NodeClass,
    NodeId, Outcome, Schema, Slot, Validates, Value, Verdict,
};
use indexmap::IndexSet;

use super::arithmetic::square;
use super::expansion::{Expansion, constant, known, link, linked_slot};
use super::{schema, variants};

const CATEGORY: &str = "Testing/Flow";

/// How many values a loop carries.
const VALUES: usize = 5;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue) {
    catalogue.add(WhileOpen);
    catalogue.add(WhileClose);
    catalogue.add(ForOpen);
    catalogue.add(ForClose);
    catalogue.add(DependencyCycle);
    catalogue.add(MixedReturns);
}

fn initial(number: usize) -> String {
    format!("initial_value{number}")
}

/// Optional inputs for the values that a loop carries, from a number on.
fn carried(schema: Schema, from: usize, input: impl Fn(Input) -> Input) -> Schema {
    (from..VALUES)
        .fold(schema, |schema, number| schema.input(input(Input::socket(&initial(number), "*")).optional()))
}

fn carried_outputs(schema: Schema, from: usize) -> Schema {
    (from..VALUES).fold(schema, |schema, number| schema.named_output("*", &format!("value{number}")))
}

fn value_or_none(call: &Call, number: usize) -> Value {
    call.inputs.first(&initial(number)).cloned().unwrap_or(Value::Literal(Literal::Null))
}

fn flow_control(call: &Call) -> Result<&Link, Failure> {
    let link = call.inputs.raw_links.get("flow_control");
    link.ok_or_else(|| {
        Failure::error("TypeError", "flow_control must be a link to the node that opens the loop")
    })
}

/// The start of a loop: passes its values on.
struct WhileOpen;

impl NodeClass for WhileOpen {
    fn schema(&self) -> Schema {
        let schema = schema("TestWhileLoopOpen", CATEGORY).title("While Loop Open");
        let schema = carried(schema.input(Input::boolean("condition", true)), 0, |input| input);
        carried_outputs(schema.output("FLOW_CONTROL"), 0)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let values = (0..VALUES).map(|number| value_or_none(call, number));
        Ok(Outcome::values(std::iter::once("stub".into()).chain(values)))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

/// The end of a loop: gives its values, or runs the loop once more.
struct WhileClose;

impl NodeClass for WhileClose {
    fn schema(&self) -> Schema {
        let schema = schema("TestWhileLoopClose", CATEGORY)
            .title("While Loop Close")
            .input(Input::socket("flow_control", "FLOW_CONTROL").with("rawLink", true))
            .input(Input::new("condition", Kind::Boolean).with("forceInput", true))
            .hidden("dynprompt", Hidden::DynamicPrompt)
            .hidden("unique_id", Hidden::UniqueId);
        carried_outputs(carried(schema, 0, |input| input), 0)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        if !call.boolean("condition")? {
            return Ok(Outcome::values((0..VALUES).map(|number| value_or_none(call, number))));
        }
        let open = &flow_control(call)?.node;
        let mut copy = LoopCopy { call, expansion: Expansion::new(call), inside: nodes_between(call, open)? };
        copy.make()?;
        let new_open = copy.id_of(open);
        for number in 0..VALUES {
            let value = value_or_none(call, number);
            // A value of the round before must not stay where this round has none.
            copy.expansion.set(&new_open, &initial(number), known(&value));
        }
        let new_close = copy.id_of(&call.identity.node);
        Ok(copy.expansion.giving((0..VALUES).map(|slot| linked_slot(&new_close, slot))))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

fn find(call: &Call, id: &str) -> Result<GraphNode, Failure> {
    call.job.graph.node(id).ok_or_else(|| {
        Failure::error(
            "NodeNotFoundError",
            format!("the loop is linked to the node {id}, which is not there"),
        )
    })
}

/// All nodes on ways from the opening node to the closing one that is called, both included.
fn nodes_between(call: &Call, open: &NodeId) -> Result<IndexSet<NodeId>, Failure> {
    let close = &call.identity.node;
    let mut users: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    let mut to_visit = vec![close.clone()];
    let mut seen: HashSet<NodeId> = to_visit.iter().cloned().collect();
    while let Some(id) = to_visit.pop() {
        for input in find(call, &id)?.inputs.values() {
            let GraphInput::Link(link) = input else { continue };
            users.entry(link.node.clone()).or_default().push(id.clone());
            if seen.insert(link.node.clone()) {
                to_visit.push(link.node.clone());
            }
        }
    }
    let mut inside: IndexSet<NodeId> = [open.clone(), close.clone()].into();
    let mut to_follow = vec![open.clone()];
    while let Some(id) = to_follow.pop() {
        for user in users.get(&id).into_iter().flatten() {
            if inside.insert(user.clone()) {
                to_follow.push(user.clone());
            }
        }
    }
    Ok(inside)
}

/// A copy of a loop's nodes, in the making.
struct LoopCopy<'a> {
    call: &'a Call,
    expansion: Expansion<'a>,
    inside: IndexSet<NodeId>,
}

impl LoopCopy<'_> {
    fn make(&mut self) -> Result<(), Failure> {
        for id in &self.inside {
            let mut node = find(self.call, id)?;
            for input in node.inputs.values_mut() {
                if let GraphInput::Link(link) = input
                    && self.inside.contains(&link.node)
                {
                    link.node = self.id_of(&link.node);
                }
            }
            node.display = Some(id.clone());
            self.expansion.named(&self.name_of(id), node);
        }
        Ok(())
    }

    /// The copy of the closing node has a fixed name: its id would double with every round else.
    fn name_of(&self, id: &NodeId) -> String {
        if *id == self.call.identity.node { "Recurse".to_owned() } else { id.to_string() }
    }

    fn id_of(&self, id: &NodeId) -> NodeId {
        self.expansion.id(&self.name_of(id))
    }
}

/// The start of a loop that counts down.
struct ForOpen;

impl NodeClass for ForOpen {
    fn schema(&self) -> Schema {
        let schema = schema("TestForLoopOpen", CATEGORY)
            .title("For Loop Open")
            .input(Input::int("remaining", 1, 0, 100_000).with("step", 1))
            .hidden("initial_value0", Hidden::Input("*".to_owned()));
        let schema = carried(schema, 1, |input| input);
        carried_outputs(
            schema.named_output("FLOW_CONTROL", "flow_control").named_output("INT", "remaining"),
            1,
        )
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let remaining = match call.inputs.first(&initial(0)) {
            Some(value) if !value.is_none() => value,
            _ => call.value("remaining")?,
        };
        let values: Vec<Value> = (1..VALUES).map(|number| value_or_none(call, number)).collect();
        let mut expansion = Expansion::new(call);
        let open = expansion.node(
            "TestWhileLoopOpen",
            [("condition", known(remaining)), ("initial_value0", known(remaining))],
        );
        for (number, value) in (1..).zip(&values) {
            expansion.set(&open, &initial(number), known(value));
        }
        let outputs = [Value::from("stub"), remaining.clone()].into_iter().chain(values);
        Ok(expansion.giving(outputs.map(Slot::One)))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

/// The end of a loop that counts down.
struct ForClose;

impl NodeClass for ForClose {
    fn schema(&self) -> Schema {
        let schema = schema("TestForLoopClose", CATEGORY)
            .title("For Loop Close")
            .input(Input::socket("flow_control", "FLOW_CONTROL").with("rawLink", true));
        carried_outputs(carried(schema, 1, |input| input.with("rawLink", true)), 1)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let flow = flow_control(call)?;
        let mut expansion = Expansion::new(call);
        let rest = expansion.node(
            "TestIntMathOperation",
            [("operation", constant("subtract")), ("a", link(&flow.node, 1)), ("b", constant(1))],
        );
        let goes_on = expansion.node("TestToBoolNode", [("value", link(&rest, 0))]);
        let close = expansion.node(
            "TestWhileLoopClose",
            [
                ("flow_control", GraphInput::Link(flow.clone())),
                ("condition", link(&goes_on, 0)),
                ("initial_value0", link(&rest, 0)),
            ],
        );
        for number in 1..VALUES {
            let name = initial(number);
            if let Some(link) = call.inputs.raw_links.get(&name) {
                expansion.set(&close, &name, GraphInput::Link(link.clone()));
            } else if let Some(value) = call.inputs.first(&name) {
                expansion.set(&close, &name, known(value));
            }
        }
        Ok(expansion.giving((1..VALUES).map(|slot| linked_slot(&close, slot))))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

/// A mask of 512 by 512 in an expansion.
fn add_mask(expansion: &mut Expansion<'_>, value: f64) -> NodeId {
    let size = [("height", constant(512)), ("width", constant(512)), ("batch_size", constant(1))];
    expansion.node("StubMask", [("value", constant(value))].into_iter().chain(size))
}

/// A picture of 512 by 512 in an expansion.
fn add_image(expansion: &mut Expansion<'_>, content: &str) -> NodeId {
    let size = [("height", constant(512)), ("width", constant(512)), ("batch_size", constant(1))];
    expansion.node("StubImage", [("content", constant(content))].into_iter().chain(size))
}

/// Expands into two nodes that wait for each other.
struct DependencyCycle;

impl NodeClass for DependencyCycle {
    fn schema(&self) -> Schema {
        schema("TestDynamicDependencyCycle", "Testing/Nodes")
            .title("Dynamic Dependency Cycle")
            .input(Input::socket("input1", "IMAGE"))
            .input(Input::socket("input2", "IMAGE"))
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (first, second) = (known(call.value("input1")?), known(call.value("input2")?));
        let mut expansion = Expansion::new(call);
        let mask = add_mask(&mut expansion, 0.5);
        let mix1 = expansion.node("TestLazyMixImages", [("image1", first), ("mask", link(&mask, 0))]);
        let inputs = [("image1", link(&mix1, 0)), ("image2", second), ("mask", link(&mask, 0))];
        let mix2 = expansion.node("TestLazyMixImages", inputs);
        expansion.set(&mix1, "image2", link(&mix2, 0));
        Ok(expansion.giving([linked_slot(&mix2, 0)]))
    }
}

/// Gives values in some calls and an expansion in others.
struct MixedReturns;

impl NodeClass for MixedReturns {
    fn schema(&self) -> Schema {
        schema("TestMixedExpansionReturns", "Testing/Nodes")
            .title("Mixed Expansion Returns")
            .input(Input::new("input1", Kind::Float))
            .output("IMAGE")
            .output("IMAGE")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let white = Value::object(square(1.0)?);
        let level = call.float("input1")?;
        if level <= 0.1 {
            return Ok(Outcome::values([Value::object(square(0.1)?), white]));
        }
        if level <= 0.2 {
            return Ok(Outcome::values([Value::object(square(0.2)?), white]));
        }
        let mut expansion = Expansion::new(call);
        let mask = add_mask(&mut expansion, 0.3);
        let (black, full) = (add_image(&mut expansion, "BLACK"), add_image(&mut expansion, "WHITE"));
        let inputs = [("image1", link(&black, 0)), ("image2", link(&full, 0)), ("mask", link(&mask, 0))];
        let mix = expansion.node("TestLazyMixImages", inputs);
        Ok(expansion.giving([linked_slot(&mix, 0), Slot::One(white)]))
    }
}
