//! Constants, switches, arithmetic, text and notes.

mod camera;
mod expression;
mod patterns;
mod strings;
mod switches;

use std::sync::Arc;

use graph::{Catalogue, Failure, Input, Kind, Literal, Outcome, Value};

use crate::Runtime;
use crate::class::class;
use crate::picture::{python_float, python_json};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(PrimitiveInt(Arc::clone(runtime)));
    catalogue.add(PrimitiveFloat(Arc::clone(runtime)));
    catalogue.add(PrimitiveString(Arc::clone(runtime)));
    catalogue.add(PrimitiveStringMultiline(Arc::clone(runtime)));
    catalogue.add(PrimitiveBoolean(Arc::clone(runtime)));
    catalogue.add(PreviewAny(Arc::clone(runtime)));
    catalogue.add(ResolutionSelector(Arc::clone(runtime)));
    camera::add(catalogue, runtime);
    switches::add(catalogue);
    strings::add(catalogue, runtime);
    patterns::add(catalogue, runtime);
    expression::add(catalogue, runtime);
}

/// A text of several lines, without a default.
fn lines(name: &str) -> Input {
    Input::new(name, Kind::Text).with("multiline", true)
}

class! {
    PrimitiveInt in "utils/primitive";
    |schema| schema
        .title("Int")
        .about("A whole number.")
        .input(Input::new("value", Kind::Int)
            .with("min", -i64::MAX)
            .with("max", i64::MAX)
            .with("control_after_generate", true))
        .output("INT");
    |runtime, call| Ok(Outcome::one(call.value("value")?.clone()))
}

class! {
    PrimitiveFloat in "utils/primitive";
    |schema| schema
        .title("Float")
        .about("A number.")
        .input(Input::new("value", Kind::Float).with("min", -i64::MAX).with("max", i64::MAX))
        .output("FLOAT");
    |runtime, call| Ok(Outcome::one(call.value("value")?.clone()))
}

class! {
    PrimitiveString in "utils/primitive";
    |schema| schema
        .title("String")
        .about("A text.")
        .input(Input::new("value", Kind::Text).with("multiline", false))
        .output("STRING");
    |runtime, call| Ok(Outcome::one(call.value("value")?.clone()))
}

class! {
    PrimitiveStringMultiline in "utils/primitive";
    |schema| schema.title("String (Multiline)").about("A text of several lines.").input(lines("value")).output("STRING");
    |runtime, call| Ok(Outcome::one(call.value("value")?.clone()))
}

class! {
    PrimitiveBoolean in "utils/primitive";
    |schema| schema
        .title("Boolean")
        .about("True or false.")
        .input(Input::new("value", Kind::Boolean))
        .output("BOOLEAN");
    |runtime, call| Ok(Outcome::one(call.value("value")?.clone()))
}

class! {
    PreviewAny in "utils";
    |schema| schema
        .title("Preview as Text")
        .about("Shows anything as text.")
        .input(Input::socket("source", "*"))
        .output("STRING")
        .output_node();
    |runtime, call| {
        let text = shown(call.value("source")?);
        let ui = graph::map([("text", Literal::List(vec![text.as_str().into()]))]);
        Ok(Outcome::one(text).with_ui(ui))
    }
}

/// A value as Python would print it; objects in a few words.
fn shown(value: &Value) -> String {
    match value {
        Value::Literal(Literal::Null) => "None".to_owned(),
        Value::Literal(Literal::Text(text)) => text.clone(),
        Value::Literal(Literal::Bool(flag)) => if *flag { "True" } else { "False" }.to_owned(),
        Value::Literal(Literal::Float(number)) if number.is_nan() => "nan".to_owned(),
        Value::Literal(Literal::Float(number)) if number.is_infinite() => {
            if *number > 0.0 { "inf" } else { "-inf" }.to_owned()
        }
        Value::Literal(Literal::Float(number)) => python_float(*number),
        Value::Literal(literal @ (Literal::List(_) | Literal::Map(_))) => indented(literal, 0),
        Value::Literal(literal) => python_json(literal),
        other => other.describe(),
    }
}

/// JSON with one entry on each line.
fn indented(literal: &Literal, depth: usize) -> String {
    let entries: Vec<String> = match literal {
        Literal::List(items) => items.iter().map(|item| indented(item, depth + 1)).collect(),
        Literal::Map(map) => {
            let entry = |(key, value): (&String, &Literal)| {
                format!("{}: {}", python_json(&key.as_str().into()), indented(value, depth + 1))
            };
            map.iter().map(entry).collect()
        }
        other => return python_json(other),
    };
    let (open, close) = if matches!(literal, Literal::List(_)) { ('[', ']') } else { ('{', '}') };
    if entries.is_empty() {
        return format!("{open}{close}");
    }
    let (inner, outer) = ("    ".repeat(depth + 1), "    ".repeat(depth));
    format!("{open}\n{inner}{}\n{outer}{close}", entries.join(&format!(",\n{inner}")))
}

/// The proportions that the menu offers, and their two numbers.
const PROPORTIONS: [(&str, f64, f64); 8] = [
    ("1:1 (Square)", 1.0, 1.0),
    ("2:3 (Portrait Photo)", 2.0, 3.0),
    ("3:2 (Photo)", 3.0, 2.0),
    ("3:4 (Portrait Standard)", 3.0, 4.0),
    ("4:3 (Standard)", 4.0, 3.0),
    ("9:16 (Portrait Widescreen)", 9.0, 16.0),
    ("16:9 (Widescreen)", 16.0, 9.0),
    ("21:9 (Ultrawide)", 21.0, 9.0),
];

class! {
    ResolutionSelector in "utilities";
    |schema| schema
        .title("Resolution Selector")
        .about("A width and a height for proportions and a number of pixels.")
        .input(Input::choice("aspect_ratio", PROPORTIONS.map(|(name, ..)| name)).with("default", PROPORTIONS[0].0))
        .input(Input::float("megapixels", 1.0, 0.1, 16.0, 0.1))
        .input(Input::int("multiple", 8, 8, 128).with("step", 4).optional())
        .named_output("INT", "width")
        .named_output("INT", "height");
    |runtime, call| {
        let name = call.text("aspect_ratio")?;
        let Some((_, wide, high)) = PROPORTIONS.iter().find(|(known, ..)| *known == name) else {
            return Err(Failure::value(format!("there are no proportions called \"{name}\"; choose one of the menu")));
        };
        let multiple = if call.inputs.first("multiple").is_some() { call.size("multiple")?.max(1) } else { 8 } as f64;
        let scale = (call.float("megapixels")? * 1024.0 * 1024.0 / (wide * high)).sqrt();
        let side = |share: f64| ((share * scale / multiple).round_ties_even() * multiple) as i64;
        Ok(Outcome::values([side(*wide).into(), side(*high).into()]))
    }
}
