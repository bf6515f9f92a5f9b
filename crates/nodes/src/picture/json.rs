//! JSON as Python's `json.dumps` writes it: programs compare the text in pictures byte by byte.

use std::fmt::Write;

use graph::Literal;

/// A constant as JSON: `", "` and `": "` between, nothing but ASCII, numbers as Python prints them.
#[must_use]
pub fn python_json(literal: &Literal) -> String {
    let mut out = String::new();
    write(literal, &mut out);
    out
}

fn write(literal: &Literal, out: &mut String) {
    match literal {
        Literal::Null => out.push_str("null"),
        Literal::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
        Literal::Int(value) => out.push_str(&value.to_string()),
        Literal::Float(value) => out.push_str(&python_float(*value)),
        Literal::Text(text) => write_text(text, out),
        Literal::List(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write(item, out);
            }
            out.push(']');
        }
        Literal::Map(entries) => {
            out.push('{');
            for (index, (key, value)) in entries.iter().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_text(key, out);
                out.push_str(": ");
                write(value, out);
            }
            out.push('}');
        }
    }
}

fn write_text(text: &str, out: &mut String) {
    out.push('"');
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(b'"') => out.push_str("\\\""),
            Ok(b'\\') => out.push_str("\\\\"),
            Ok(b'\n') => out.push_str("\\n"),
            Ok(b'\r') => out.push_str("\\r"),
            Ok(b'\t') => out.push_str("\\t"),
            Ok(8) => out.push_str("\\b"),
            Ok(12) => out.push_str("\\f"),
            Ok(byte @ 0x20..0x80) => out.push(char::from(byte)),
            _ => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{unit:04x}");
            }
        }
    }
    out.push('"');
}

/// A float as Python prints it: the shortest digits that give it back, with an exponent below 1e-4 and from 1e16 on.
pub(crate) fn python_float(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    let text = format!("{value:e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
