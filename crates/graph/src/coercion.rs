//! Python's conversions of constants: stored workflows hold `"32"` where a number is declared, and rely on
//! them.

use std::cmp::Ordering;
use std::fmt::Write as _;

use crate::literal::Literal;

/// `int(value)`.
pub(crate) fn to_int(value: &Literal) -> Result<Literal, String> {
    match value {
        Literal::Bool(flag) => Ok(Literal::Int((*flag).into())),
        Literal::Int(_) => Ok(value.clone()),
        // A number that is too large even for this is out of any declared range, too.
        Literal::Float(number) if number.is_finite() => Ok(Literal::Int(number.trunc() as i128)),
        Literal::Text(text) => {
            int_of(text).map(Literal::Int).ok_or_else(|| format!("{text:?} is no whole number"))
        }
        other => Err(format!("{} cannot be made a whole number", repr(other))),
    }
}

/// `float(value)`.
pub(crate) fn to_float(value: &Literal) -> Result<Literal, String> {
    match value {
        Literal::Bool(flag) => Ok(Literal::Float(f64::from(u8::from(*flag)))),
        Literal::Int(number) => Ok(Literal::Float(*number as f64)),
        Literal::Float(_) => Ok(value.clone()),
        Literal::Text(text) => {
            let number = without_underscores(text.trim()).and_then(|text| text.parse().ok());
            number.map(Literal::Float).ok_or_else(|| format!("{text:?} is no number"))
        }
        other => Err(format!("{} cannot be made a number", repr(other))),
    }
}

/// `str(value)`.
pub(crate) fn to_text(value: &Literal) -> String {
    match value {
        Literal::Text(text) => text.clone(),
        other => repr(other),
    }
}

/// `a == b`: numbers and booleans compare by value.
pub(crate) fn is_equal(a: &Literal, b: &Literal) -> bool {
    match (number_of(a), number_of(b)) {
        (Some(a), Some(b)) => compare_numbers(&a, &b) == Some(Ordering::Equal),
        _ => a == b,
    }
}

/// The order of two numbers; `None` if one is none.
pub(crate) fn compare(a: &Literal, b: &Literal) -> Option<Ordering> {
    compare_numbers(&number_of(a)?, &number_of(b)?)
}

fn compare_numbers(a: &Literal, b: &Literal) -> Option<Ordering> {
    match (a, b) {
        (Literal::Int(a), Literal::Int(b)) => Some(a.cmp(b)),
        _ => a.as_float()?.partial_cmp(&b.as_float()?),
    }
}

fn number_of(value: &Literal) -> Option<Literal> {
    match value {
        Literal::Bool(flag) => Some(Literal::Int((*flag).into())),
        Literal::Int(_) | Literal::Float(_) => Some(value.clone()),
        _ => None,
    }
}

/// Python lets an underscore stand between two digits.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    for (at, _) in text.match_indices('_') {
        let before = at.checked_sub(1).and_then(|before| bytes.get(before));
        let after = bytes.get(at + 1);
        if ![before, after].iter().all(|byte| byte.is_some_and(u8::is_ascii_digit)) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

fn int_of(text: &str) -> Option<i128> {
    let text = without_underscores(text.trim())?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(&text);
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // More digits than fit: out of any declared range, and that is what the user should hear.
    let beyond = if text.starts_with('-') { i128::MIN } else { i128::MAX };
    Some(text.parse().unwrap_or(beyond))
}

/// `repr(value)`.
pub(crate) fn repr(value: &Literal) -> String {
    let mut text = String::new();
    write_repr(value, &mut text);
    text
}

fn write_repr(value: &Literal, into: &mut String) {
    match value {
        Literal::Null => into.push_str("None"),
        Literal::Bool(true) => into.push_str("True"),
        Literal::Bool(false) => into.push_str("False"),
        Literal::Int(number) => into.push_str(&number.to_string()),
        Literal::Float(number) => into.push_str(&float_repr(*number)),
        Literal::Text(text) => write_quoted(text, into),
        Literal::List(list) => {
            into.push('[');
            for (index, item) in list.iter().enumerate() {
                into.push_str(if index == 0 { "" } else { ", " });
                write_repr(item, into);
            }
            into.push(']');
        }
        Literal::Map(map) => {
            into.push('{');
            for (index, (key, item)) in map.iter().enumerate() {
                into.push_str(if index == 0 { "" } else { ", " });
                write_quoted(key, into);
                into.push_str(": ");
                write_repr(item, into);
            }
            into.push('}');
        }
    }
}

/// Python takes single quotes unless the text has some and no double ones.
fn write_quoted(text: &str, into: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    into.push(quote);
    for letter in text.chars() {
        match letter {
            '\n' => into.push_str("\\n"),
            '\r' => into.push_str("\\r"),
            '\t' => into.push_str("\\t"),
            '\\' => into.push_str("\\\\"),
            _ if letter == quote => into.extend(['\\', quote]),
            _ if letter.is_ascii_control() => {
                // Writing to a String cannot fail.
                let _ = write!(into, "\\x{:02x}", u32::from(letter));
            }
            _ => into.push(letter),
        }
    }
    into.push(quote);
}

/// The shortest digits that read back as the number, with an exponent below 1e-4 and from 1e16 on.
fn float_repr(number: f64) -> String {
    if number.is_nan() {
        return "nan".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{number:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if number != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{number}");
    if plain.contains('.') { plain } else { plain + ".0" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::literal::{Map, map};

    #[test]
    fn whole_numbers_are_read_as_python_reads_them() {
        let int = |value: Literal| to_int(&value).ok().and_then(|value| value.as_int());
        assert_eq!(int("32".into()), Some(32));
        assert_eq!(int(" -1_000 ".into()), Some(-1000));
        assert_eq!(int(5.7.into()), Some(5));
        assert_eq!(int((-5.7).into()), Some(-5));
        assert_eq!(int(true.into()), Some(1));
        assert_eq!(int(u64::MAX.into()), Some(i128::from(u64::MAX)));
        assert_eq!(int("9".repeat(60).into()), Some(i128::MAX));
        for bad in ["5.7", "", "-", "1__0", "_1", "0x10", "one"] {
            assert_eq!(int(bad.into()), None, "{bad:?}");
        }
        assert_eq!(int(f64::NAN.into()), None);
        assert_eq!(int(Literal::Null), None);
        assert_eq!(int(Literal::List(Vec::new())), None);
    }

    #[test]
    fn numbers_are_read_as_python_reads_them() {
        let float = |value: Literal| to_float(&value).ok().and_then(|value| value.as_float());
        assert_eq!(float(" 1_0.5e1 ".into()), Some(105.0));
        assert_eq!(float(3_i64.into()), Some(3.0));
        assert_eq!(float(false.into()), Some(0.0));
        assert_eq!(float("inf".into()), Some(f64::INFINITY));
        assert_eq!(float("".into()), None);
        assert_eq!(float(Map::new().into()), None);
    }

    #[test]
    fn text_is_what_python_prints() {
        let text = |value: Literal| to_text(&value);
        assert_eq!(text(true.into()), "True");
        assert_eq!(text(Literal::Null), "None");
        assert_eq!(text(1.0.into()), "1.0");
        assert_eq!(text(0.1.into()), "0.1");
        assert_eq!(text((-0.0).into()), "-0.0");
        assert_eq!(text(1e16.into()), "1e+16");
        assert_eq!(text(1e15.into()), "1000000000000000.0");
        assert_eq!(text(1.5e-5.into()), "1.5e-05");
        assert_eq!(text(0.0001.into()), "0.0001");
        assert_eq!(text(1e300.into()), "1e+300");
        assert_eq!(text("as it is".into()), "as it is");
        let map = map([("a", Literal::from(vec!["it's", "b\n"])), ("c", Literal::Null)]);
        assert_eq!(text(map.into()), "{'a': [\"it's\", 'b\\n'], 'c': None}");
    }

    #[test]
    fn equality_and_order_are_those_of_numbers() {
        assert!(is_equal(&1_i64.into(), &1.0.into()));
        assert!(is_equal(&true.into(), &1_i64.into()));
        assert!(!is_equal(&"1".into(), &1_i64.into()));
        assert!(is_equal(&"a".into(), &"a".into()));
        assert_eq!(compare(&u64::MAX.into(), &(u64::MAX - 1).into()), Some(Ordering::Greater));
        assert_eq!(compare(&f64::NAN.into(), &1_i64.into()), None);
        assert_eq!(compare(&"2".into(), &1_i64.into()), None);
    }
}
