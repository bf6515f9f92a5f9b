//! Switches between two inputs, and menus that users write themselves.

use graph::{
    Call, Catalogue, Failure, Given, Input, Kind, Literal, NodeClass, Outcome, Schema, Validates, Verdict,
};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue) {
    catalogue.add(ComfySwitchNode);
    catalogue.add(ComfySoftSwitchNode);
    catalogue.add(CustomCombo);
}

const TEMPLATE: &str = "switch";

fn schema(class: &str, title: &str, branch: impl Fn(Input) -> Input) -> Schema {
    let kind = || Kind::MatchType { template: TEMPLATE.to_owned(), allowed: "*".to_owned() };
    let mut schema = Schema::new(class, "logic")
        .title(title)
        .input(Input::new("switch", Kind::Boolean))
        .input(branch(Input::new("on_false", kind()).with("lazy", true)))
        .input(branch(Input::new("on_true", kind()).with("lazy", true)))
        .named_output("COMFY_MATCHTYPE_V3", "output");
    schema.outputs[0].match_template = Some(TEMPLATE.to_owned());
    schema.is_experimental = true;
    schema
}

fn wanted(call: &Call) -> Result<&'static str, Failure> {
    Ok(if call.boolean("switch")? { "on_true" } else { "on_false" })
}

/// Asks for one input, if it is linked and not known yet.
fn asked(call: &Call, name: &str) -> Vec<String> {
    call.lazy_inputs().filter(|lazy| *lazy == name).map(str::to_owned).collect()
}

struct ComfySwitchNode;

impl NodeClass for ComfySwitchNode {
    fn schema(&self) -> Schema {
        schema("ComfySwitchNode", "Switch", |input| input)
            .about("Passes one of two inputs. The other is not run.")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.value(wanted(call)?)?.clone()))
    }

    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        Ok(asked(call, wanted(call)?))
    }
}

struct ComfySoftSwitchNode;

impl ComfySoftSwitchNode {
    /// The input that is passed: if only one is linked, that one.
    fn chosen(call: &Call) -> Result<&'static str, Failure> {
        let is_given =
            |name: &str| call.inputs.first(name).is_some() || call.unknown.iter().any(|lazy| lazy == name);
        match (is_given("on_false"), is_given("on_true")) {
            (false, true) => Ok("on_true"),
            (true, false) => Ok("on_false"),
            _ => wanted(call),
        }
    }
}

impl NodeClass for ComfySoftSwitchNode {
    fn schema(&self) -> Schema {
        schema("ComfySoftSwitchNode", "Soft Switch", Input::optional)
            .about("Passes one of two inputs, or the only one that is linked. The other is not run.")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::one(call.value(Self::chosen(call)?)?.clone()))
    }

    fn needs(&self, call: &Call) -> Result<Vec<String>, Failure> {
        Ok(asked(call, Self::chosen(call)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["on_false", "on_true"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        let is_given = |name: &str| given.constants.contains_key(name) || given.types.contains_key(name);
        if is_given("on_false") || is_given("on_true") {
            return Ok(Verdict::Good);
        }
        Ok(Verdict::Because("link on_false or on_true: the switch has nothing to pass".to_owned()))
    }
}

/// A menu whose entries the user writes. Clients draw it; here only what was chosen counts.
struct CustomCombo;

impl NodeClass for CustomCombo {
    fn schema(&self) -> Schema {
        let mut schema = Schema::new("CustomCombo", "utils")
            .title("Custom Combo")
            .about("A menu with entries of your own.")
            .input(Input::choice("choice", Vec::<&str>::new()))
            .named_output("STRING", "STRING")
            .named_output("INT", "INDEX");
        schema.is_experimental = true;
        schema
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        // The number is a widget that only clients declare, so it is read from the prompt if it was not passed.
        let sent = || call.job.prompt.nodes.get(&call.identity.node)?.inputs.as_ref()?.get("index")?.as_int();
        let index = match call.inputs.first("index") {
            Some(_) => call.int("index")?.into(),
            None => sent().unwrap_or(0),
        };
        Ok(Outcome::values([call.value("choice")?.clone(), Literal::Int(index).into()]))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["choice"], ..Validates::default() }
    }
}
