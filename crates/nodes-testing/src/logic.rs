//! Numbers, truth, lists, and nodes that block what follows.

use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Kind, Literal, NodeClass, Outcome, Schema, Slot, Validates,
    Value, Verdict,
};

use super::{schema, variants};
use nodes::value::{Image, Mask};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue) {
    catalogue.add(IntConditions);
    catalogue.add(IntMath);
    catalogue.add(ToBool);
    catalogue.add(MakeList);
    catalogue.add(Blocker);
}

/// A whole number of any sign with 64 bits.
fn wide_int(name: &str) -> Input {
    let most = i128::from(u64::MAX);
    Input::new(name, Kind::Int).with("default", 0).with("min", -most).with("max", most).with("step", 1)
}

fn operands(call: &Call) -> Result<(i128, i128), Failure> {
    let number = |name: &str| match call.value(name)?.literal() {
        Some(Literal::Int(number)) => Ok(*number),
        _ => call.int(name).map(i128::from),
    };
    Ok((number("a")?, number("b")?))
}

fn no_operation(name: &str) -> Failure {
    Failure::value(format!("there is no operation {name:?}; take one that /object_info lists"))
}

/// Compares two whole numbers.
struct IntConditions;

impl NodeClass for IntConditions {
    fn schema(&self) -> Schema {
        schema("TestIntConditions", "Testing/Logic")
            .title("Int Condition")
            .input(wide_int("a"))
            .input(wide_int("b"))
            .input(Input::choice("operation", ["==", "!=", "<", ">", "<=", ">="]))
            .output("BOOLEAN")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (a, b) = operands(call)?;
        Ok(Outcome::one(match call.text("operation")? {
            "==" => a == b,
            "!=" => a != b,
            "<" => a < b,
            ">" => a > b,
            "<=" => a <= b,
            ">=" => a >= b,
            other => return Err(no_operation(other)),
        }))
    }
}

/// Arithmetic on two whole numbers, as Python does it.
struct IntMath;

impl NodeClass for IntMath {
    fn schema(&self) -> Schema {
        schema("TestIntMathOperation", "Testing/Logic")
            .title("Int Math Operation")
            .input(wide_int("a"))
            .input(wide_int("b"))
            .input(Input::choice("operation", ["add", "subtract", "multiply", "divide", "modulo", "power"]))
            .output("INT")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let (a, b) = operands(call)?;
        let operation = call.text("operation")?;
        if b == 0 && matches!(operation, "divide" | "modulo") {
            return Err(Failure::error("ZeroDivisionError", format!("{a} cannot be divided by 0")));
        }
        let result = match operation {
            "add" => a.checked_add(b),
            "subtract" => a.checked_sub(b),
            "multiply" => a.checked_mul(b),
            "divide" => a.checked_div(b).map(|quotient| quotient - i128::from(is_rounded_up(a, b))),
            "modulo" => a.checked_rem(b).map(|rest| if is_rounded_up(a, b) { rest + b } else { rest }),
            "power" if b < 0 => return Ok(Outcome::one((a as f64).powf(b as f64))),
            "power" => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            other => return Err(no_operation(other)),
        };
        let result = result.ok_or_else(|| {
            Failure::error(
                "OverflowError",
                format!("the result of {operation} on {a} and {b} has more than 127 bits"),
            )
        });
        Ok(Outcome::one(result?))
    }
}

/// Whether cutting off a quotient's fraction gives more than Python's rounding down.
fn is_rounded_up(a: i128, b: i128) -> bool {
    (a < 0) != (b < 0) && a % b != 0
}

/// Tells whether anything is true.
struct ToBool;

impl NodeClass for ToBool {
    fn schema(&self) -> Schema {
        schema("TestToBoolNode", "Testing/Logic")
            .title("To Bool")
            .input(Input::socket("value", "*"))
            .input(Input::boolean("invert", false).optional())
            .output("BOOLEAN")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let value = call.value("value")?;
        let truth = match value {
            Value::Literal(literal) => literal.is_truthy(),
            Value::Object(_) => !is_all_zero(value),
            Value::Blocker(_) => true,
        };
        let invert = call.inputs.first("invert").is_some() && call.boolean("invert")?;
        Ok(Outcome::one(truth != invert))
    }
}

fn is_all_zero(value: &Value) -> bool {
    let zero = |values: &[f32]| values.iter().all(|value| *value == 0.0);
    value.downcast::<Image>().is_some_and(|image| zero(&image.values))
        || value.downcast::<Mask>().is_some_and(|mask| zero(&mask.values))
}

/// Makes a list of what it is given.
struct MakeList;

impl MakeList {
    const MOST: usize = 9;
}

impl NodeClass for MakeList {
    fn schema(&self) -> Schema {
        let start = schema("TestMakeListNode", "Testing/Lists")
            .title("Make List")
            .input(Input::socket("value1", "*"));
        let rest =
            (2..=MakeList::MOST).map(|number| Input::socket(&format!("value{number}"), "*").optional());
        rest.fold(start, Schema::input).list_output("*", "*")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let names = (1..=MakeList::MOST).map(|number| format!("value{number}"));
        let values = names.filter_map(|name| call.inputs.first(&name).cloned()).collect();
        Ok(Outcome::slots([Slot::Many(values)]))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

/// Passes a value on, or keeps what follows from running.
struct Blocker;

impl NodeClass for Blocker {
    fn schema(&self) -> Schema {
        schema("TestExecutionBlocker", "Testing/Flow")
            .title("Execution Blocker")
            .input(Input::socket("input", "*"))
            .input(Input::new("block", Kind::Boolean))
            .input(Input::boolean("verbose", false))
            .named_output("*", "output")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        if !call.boolean("block")? {
            return Ok(Outcome::one(call.value("input")?.clone()));
        }
        let message = call.boolean("verbose")?.then(|| Arc::from("blocked, as was asked for"));
        Ok(Outcome::values([Value::Blocker(message)]))
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}
