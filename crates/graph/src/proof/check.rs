//! The checks of one input.

use std::cmp::Ordering;

use crate::coercion::{compare, is_equal, to_float, to_int, to_text};
use crate::declared::Declared;
use crate::literal::Literal;
use crate::prompt::{WRAPPER, constant_of};
use crate::proof::ErrorDetail;
use crate::proof::detail;
use crate::schema::Kind;

/// Whether an output of one type may be linked to an input of another. Each may name several.
pub(super) fn types_match(received: &str, wanted: &str) -> bool {
    const ANY: [&str; 2] = ["*", "COMFY_MATCHTYPE_V3"];
    if received == wanted || ANY.contains(&received) || ANY.contains(&wanted) {
        return true;
    }
    let wanted: Vec<&str> = wanted.split(',').map(str::trim).collect();
    wanted.contains(&"*")
        || received.split(',').map(str::trim).any(|received| received == "*" || wanted.contains(&received))
}

/// Whether a list in the prompt is the input's own value, and no link.
pub(super) fn takes_list(input: &Declared<'_>, value: &Literal) -> bool {
    matches!(input.input.kind, Kind::Choice(_))
        && is_multiple(input)
        && value.as_list().is_some_and(|list| list.iter().all(|item| matches!(item, Literal::Text(_))))
}

fn is_multiple(input: &Declared<'_>) -> bool {
    input.input.is_set("multiselect") || input.input.is_set("multi_select")
}

/// Converts a constant to its declared type, in place.
pub(super) fn convert(input: &Declared<'_>, value: &mut Literal) -> Result<(), Box<ErrorDetail>> {
    unwrap(value);
    let plain = constant_of(value);
    let converted = match input.input.kind {
        Kind::Int => to_int(plain),
        Kind::Float => to_float(plain),
        Kind::Text if plain.as_text().is_some() => return Ok(()),
        Kind::Text => Ok(Literal::Text(to_text(plain))),
        Kind::Boolean => Ok(Literal::Bool(plain.is_truthy())),
        _ => return Ok(()),
    };
    let failed = |reason| Box::new(detail::invalid_input_type(input, plain, reason));
    *value = converted.map_err(failed)?;
    Ok(())
}

/// Takes a constant out of its wrapper. A list stays in it, or it would be taken for a link.
fn unwrap(value: &mut Literal) {
    while let Some(inner) = value.get(WRAPPER)
        && inner.as_list().is_none()
    {
        *value = inner.clone();
    }
}

/// Checks a constant's range, or that it is one of a list.
pub(super) fn check_value(input: &Declared<'_>, value: &Literal) -> Result<(), Box<ErrorDetail>> {
    let options = &input.input.options;
    if let Some(min) = options.get("min")
        && compare(value, min) == Some(Ordering::Less)
    {
        return Err(detail::value_too_small(input, value, min).into());
    }
    if let Some(max) = options.get("max")
        && compare(value, max) == Some(Ordering::Greater)
    {
        return Err(detail::value_too_big(input, value, max).into());
    }
    match &input.input.kind {
        // What a server elsewhere lists is not known here.
        Kind::Choice(_) if input.input.is_set("remote") || input.input.is_set("remote_combo") => Ok(()),
        Kind::Choice(values) => check_choice(input, value, values),
        _ => Ok(()),
    }
}

fn check_choice(input: &Declared<'_>, value: &Literal, values: &[Literal]) -> Result<(), Box<ErrorDetail>> {
    let is_listed = |value: &Literal| values.iter().any(|listed| is_equal(listed, value));
    let missing = match value {
        Literal::List(chosen) if is_multiple(input) => chosen.iter().find(|value| !is_listed(value)),
        _ => Some(value).filter(|value| !is_listed(value)),
    };
    missing.map_or(Ok(()), |missing| Err(detail::value_not_in_list(input, missing, values).into()))
}

/// Checks the key of a choice that brings inputs of its own.
pub(super) fn check_dynamic_choice(input: &Declared<'_>, value: &Literal) -> Result<(), Box<ErrorDetail>> {
    let Kind::DynamicChoice(options) = &input.input.kind else {
        return Ok(());
    };
    if options.iter().any(|(name, _)| Some(name.as_str()) == value.as_text()) {
        return Ok(());
    }
    let names: Vec<&str> = options.iter().map(|(name, _)| name.as_str()).collect();
    Err(detail::unknown_choice(input, value, &names).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_match_if_they_share_one() {
        assert!(types_match("IMAGE", "IMAGE"));
        assert!(!types_match("IMAGE", "MASK"));
        assert!(types_match("*", "MASK"));
        assert!(types_match("IMAGE", "*"));
        assert!(types_match("IMAGE", "COMFY_MATCHTYPE_V3"));
        assert!(types_match("FLOAT", "IMAGE, FLOAT"));
        assert!(types_match("INT,IMAGE", "IMAGE,FLOAT"));
        assert!(!types_match("INT,STRING", "IMAGE,FLOAT"));
        assert!(types_match("INT", "IMAGE,*"));
        assert!(types_match("INT,*", "IMAGE"));
    }
}
