//! A line of arithmetic over linked numbers, with Python's operators and meanings.
//!
//! ```text
//! "max(4, int(a) // 16 * 16)" ── parse ──> Term ── value(names) ──> Number
//! ```
//!
//! Only what is here can be said: there are no attributes, no loops and no way to anything outside.

mod number;
mod parse;

use std::sync::Arc;

use graph::{Autogrow, Catalogue, Failure, GrowingNames, Input, Kind, Literal, Outcome, Value};

use self::number::{Number, Operand};
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(ComfyMathExpression(Arc::clone(runtime)));
}

class! {
    ComfyMathExpression in "logic";
    |schema| {
        let names = GrowingNames::Listed(('a'..='z').map(String::from).collect());
        let growing = Autogrow { input: Input::socket("value", "FLOAT,INT,BOOLEAN"), names, min: 1 };
        schema
            .title("Math Expression")
            .about("Calculates with the numbers a, b, c and so on. Knows + - * / // % **, comparisons, and, or, not, \
                    x if c else y, and functions such as min, max, round, floor, ceil, sqrt, int.")
            .input(Input::multiline("expression", "a + b"))
            .input(Input::new("values", Kind::Autogrow(Box::new(growing))))
            .named_output("FLOAT", "FLOAT")
            .named_output("INT", "INT")
            .named_output("BOOLEAN", "BOOL")
    };
    |runtime, call| {
        let mut names = Vec::new();
        for (key, values) in &call.inputs.values {
            if let (Some(name), Some(value)) = (key.strip_prefix("values."), values.first())
                && !value.is_none()
            {
                names.push((name.to_owned(), number_of(name, value)?));
            }
        }
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        let text = call.text("expression")?;
        let result = evaluate(text, &names)
            .map_err(|what| Failure::value(format!("the expression \"{text}\" cannot be calculated: {what}")))?;
        let whole = match result {
            Number::Int(value) => value,
            Number::Bool(flag) => flag.into(),
            Number::Float(value) => value.trunc() as i128,
        };
        let is_true = result.is_true();
        Ok(Outcome::values([result.float().into(), whole.into(), is_true.into()]))
    }
}

fn number_of(name: &str, value: &Value) -> Result<Number, Failure> {
    match value.literal() {
        Some(Literal::Int(value)) => Ok(Number::Int(*value)),
        Some(Literal::Float(value)) => Ok(Number::Float(*value)),
        Some(Literal::Bool(value)) => Ok(Number::Bool(*value)),
        _ => {
            Err(Failure::error("TypeError", format!("{name} must be a number, but is {}", value.describe())))
        }
    }
}

/// The value of an expression over names; the text says what is wrong with it.
fn evaluate(text: &str, names: &[(String, Number)]) -> Result<Number, String> {
    let term = parse::parse(text)?;
    let result = match term.value(names)? {
        Operand::Number(number) => number,
        Operand::List(_) => return Err("it gives a list; say which of the values is wanted".to_owned()),
    };
    if result.float().is_finite() { Ok(result) } else { Err("the result is not finite".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::{Number, evaluate};

    fn names() -> Vec<(String, Number)> {
        let values = [("a", Number::Int(7)), ("b", Number::Float(2.5)), ("c", Number::Bool(true))];
        values.map(|(name, value)| (name.to_owned(), value)).to_vec()
    }

    fn value(text: &str) -> Number {
        evaluate(text, &names()).unwrap()
    }

    #[test]
    fn operators_bind_and_round_as_in_python() {
        let cases: [(&str, Number); 30] = [
            ("a + 2 * 3", Number::Int(13)),
            ("(a + 2) * 3", Number::Int(27)),
            ("a / 2", Number::Float(3.5)),
            ("a // 2", Number::Int(3)),
            ("-a // 2", Number::Int(-4)),
            ("-a % 4", Number::Int(1)),
            ("a % -4", Number::Int(-1)),
            ("-7.5 // 2", Number::Float(-4.0)),
            ("2 ** 3 ** 2", Number::Int(512)),
            ("-2 ** 2", Number::Int(-4)),
            ("2 ** -1", Number::Float(0.5)),
            ("round(2.5)", Number::Int(2)),
            ("round(1.23456, 2)", Number::Float(1.23)),
            ("floor (b)", Number::Int(2)),
            ("ceil(b)", Number::Int(3)),
            ("int(-2.9)", Number::Int(-2)),
            ("float(a)", Number::Float(7.0)),
            ("max(4, int(a) // 16 * 16)", Number::Int(4)),
            ("min(values)", Number::Bool(true)),
            ("sum(a, b)", Number::Float(9.5)),
            ("values[0] + values[-2]", Number::Float(9.5)),
            ("a > 3 and b < 3", Number::Bool(true)),
            ("0 or a", Number::Int(7)),
            ("not c", Number::Bool(false)),
            ("1 < 2 < 2", Number::Bool(false)),
            ("a if b > 2 else 1 / 0", Number::Int(7)),
            ("c + 1", Number::Int(2)),
            ("6 & 3 | 8", Number::Int(10)),
            ("1 << 4", Number::Int(16)),
            ("log(8, 2)", Number::Float(3.0)),
        ];
        for (text, expected) in cases {
            assert_eq!(value(text), expected, "{text}");
        }
        assert_eq!(value("sqrt(16) + 1e1"), Number::Float(14.0));
        assert_eq!(value("True != False"), Number::Bool(true));
    }

    #[test]
    fn what_cannot_be_calculated_is_said() {
        let text = |text: &str| evaluate(text, &names()).unwrap_err();
        assert!(text("a / 0").contains("zero"));
        assert!(text("a +").contains("end"));
        assert!(text("d + 1").contains('d'));
        assert!(text("a.real").contains('.'));
        assert!(text("open(1)").contains("open"));
        assert!(text("9 ** 9 ** 9").contains("large"));
        assert!(text("pow(2, 5000)").contains("large"));
        assert!(text("1 << 100000").contains("large"));
        assert!(text("sqrt(-1)").contains("sqrt"));
        assert!(text("values").contains("list"));
        assert!(text("").contains("empty"));
        assert!(text("1e308 * 10").contains("finite"));
        assert!(text("min()").contains("min"));
    }

    #[test]
    fn deep_nesting_ends_with_an_error_and_not_with_the_stack() {
        for part in ["(", "-", "2**", "1 if 1 else ", "max(", "not(", "values["] {
            let text = part.repeat(700) + "1";
            assert!(evaluate(&text, &names()).unwrap_err().contains("deep"), "{part}");
        }
        assert!(evaluate(&"(".repeat(20_000), &names()).unwrap_err().contains("long"));
        let sum = "1+".repeat(1_000) + "1";
        assert_eq!(evaluate(&sum, &names()).unwrap(), Number::Int(1001));
    }
}
