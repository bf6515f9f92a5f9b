//! Classes that check their inputs themselves, each in another way.

use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Kind, Literal, NodeClass, Outcome, Schema, Validates, Verdict,
};

use super::arithmetic::{join, scaled, square};
use super::{schema, variants};
use nodes::value::Image;

const CATEGORY: &str = "Testing/Nodes";

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue) {
    catalogue.add(ChecksConstants);
    catalogue.add(ChecksLinkTypes);
    catalogue.add(ChecksVariants);
    catalogue.add(ChecksFloats);
    catalogue.add(ChecksEverything);
    catalogue.add(AsyncValidation);
    catalogue.add(AsyncValidationError);
}

fn product_schema(class: &str, input: impl Fn(&str) -> Input) -> Schema {
    let title = class.replace("TestCustomValidation", "Custom Validation ");
    schema(class, CATEGORY).title(title).input(input("input1")).input(input("input2")).output("IMAGE")
}

fn image_or_float(name: &str) -> Input {
    Input::socket(name, "IMAGE,FLOAT")
}

/// One side of a product.
enum Factor {
    Number(f64),
    Image(Arc<Image>),
}

fn factor(call: &Call, name: &str) -> Result<Factor, Failure> {
    match call.value(name)?.downcast() {
        Some(image) => Ok(Factor::Image(image)),
        None => Ok(Factor::Number(call.float(name)?)),
    }
}

/// The product of the two inputs; of two numbers, a picture of it.
fn product(call: &Call) -> Result<Outcome, Failure> {
    let image = match (factor(call, "input1")?, factor(call, "input2")?) {
        (Factor::Number(first), Factor::Number(second)) => square(first as f32 * second as f32)?,
        (Factor::Image(image), Factor::Number(number)) | (Factor::Number(number), Factor::Image(image)) => {
            scaled(&image, number)?
        }
        (Factor::Image(first), Factor::Image(second)) => {
            join(&*first, &*second, |first, second| first * second)?
        }
    };
    Ok(Outcome::object(image))
}

const BOTH: [&str; 2] = ["input1", "input2"];

/// Whether the constants among the two inputs are numbers with a point; what is linked is not known yet.
fn judge_constants(given: &Given<'_>) -> Verdict {
    for name in BOTH {
        match given.constants.get(name) {
            None | Some(Literal::Null | Literal::Float(_)) => {}
            Some(other) => {
                return Verdict::Because(format!("{name} must be a number with a point, but is {other:?}"));
            }
        }
    }
    Verdict::Good
}

/// Checks the constants of both inputs.
struct ChecksConstants;

impl NodeClass for ChecksConstants {
    fn schema(&self) -> Schema {
        product_schema("TestCustomValidation1", image_or_float)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        product(call)
    }

    fn validates(&self) -> Validates {
        Validates { inputs: BOTH.to_vec(), ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(judge_constants(given))
    }
}

/// Checks the constants, and the types of links in the executor's place.
struct ChecksLinkTypes;

impl NodeClass for ChecksLinkTypes {
    fn schema(&self) -> Schema {
        product_schema("TestCustomValidation2", image_or_float)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        product(call)
    }

    fn validates(&self) -> Validates {
        Validates { inputs: BOTH.to_vec(), types: true, ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        for name in BOTH {
            if let Some(kind) =
                given.types.get(name).filter(|kind| !matches!(kind.as_str(), "IMAGE" | "FLOAT"))
            {
                return Ok(Verdict::Because(format!("{name} takes IMAGE or FLOAT, but is linked to {kind}")));
            }
        }
        Ok(judge_constants(given))
    }
}

/// Checks the types of links only.
struct ChecksVariants;

impl NodeClass for ChecksVariants {
    fn schema(&self) -> Schema {
        product_schema("TestCustomValidation3", image_or_float)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        product(call)
    }

    fn validates(&self) -> Validates {
        variants::validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(variants::judge(&self.schema(), given))
    }
}

/// Checks constants that were converted to numbers before.
struct ChecksFloats;

impl NodeClass for ChecksFloats {
    fn schema(&self) -> Schema {
        product_schema("TestCustomValidation4", |name| Input::new(name, Kind::Float))
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        product(call)
    }

    fn validates(&self) -> Validates {
        Validates { inputs: BOTH.to_vec(), ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(judge_constants(given))
    }
}

/// Checks all its inputs, so that their ranges do not count, and refuses a 7.
struct ChecksEverything;

impl NodeClass for ChecksEverything {
    fn schema(&self) -> Schema {
        product_schema("TestCustomValidation5", |name| {
            Input::new(name, Kind::Float).with("min", 0.0).with("max", 1.0)
        })
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        product(call)
    }

    fn validates(&self) -> Validates {
        Validates { everything: true, ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        match given.constants.get("input2").and_then(Literal::as_float) {
            Some(7.0) => Ok(Verdict::Because("input2 must not be 7".to_owned())),
            _ => Ok(Verdict::Good),
        }
    }
}

/// Refuses a value over a limit. Both numbers are constants of the node.
fn judge_limit(given: &Given<'_>, limit: &str) -> Verdict {
    let number = |name: &str| given.constants.get(name).and_then(Literal::as_float);
    match (number("value"), number(limit)) {
        (Some(value), Some(most)) if value > most => Verdict::Because(format!(
            "value is {value}, but {limit} is {most}; lower the one or raise the other"
        )),
        _ => Verdict::Good,
    }
}

fn limit_schema(class: &str, limit: &str) -> Schema {
    schema(class, "_for_testing/async")
        .input(Input::new("value", Kind::Float).with("default", 5.0))
        .input(Input::new(limit, Kind::Float).with("default", 10.0))
        .output("IMAGE")
}

/// Refuses a value over its threshold. The original pretends to ask a remote service.
struct AsyncValidation;

impl NodeClass for AsyncValidation {
    fn schema(&self) -> Schema {
        limit_schema("TestAsyncValidation", "threshold")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::object(square((call.float("value")? / 10.0) as f32)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["value", "threshold"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(judge_limit(given, "threshold"))
    }
}

/// Refuses a value over its maximum.
struct AsyncValidationError;

impl NodeClass for AsyncValidationError {
    fn schema(&self) -> Schema {
        limit_schema("TestAsyncValidationError", "max_value")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        Ok(Outcome::object(square((call.float("value")? / call.float("max_value")?) as f32)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["value", "max_value"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(judge_limit(given, "max_value"))
    }
}
