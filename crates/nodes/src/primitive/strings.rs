//! Text: joined, cut, searched and changed, as Python's strings are.

use std::sync::Arc;

use graph::{Catalogue, Input, Kind, Outcome};

use super::lines;
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(StringConcatenate(Arc::clone(runtime)));
    catalogue.add(StringSubstring(Arc::clone(runtime)));
    catalogue.add(StringLength(Arc::clone(runtime)));
    catalogue.add(CaseConverter(Arc::clone(runtime)));
    catalogue.add(StringTrim(Arc::clone(runtime)));
    catalogue.add(StringReplace(Arc::clone(runtime)));
    catalogue.add(StringContains(Arc::clone(runtime)));
    catalogue.add(StringCompare(Arc::clone(runtime)));
}

class! {
    StringConcatenate in "utils/string";
    |schema| schema
        .title("Concatenate")
        .about("Joins two texts with something between them.")
        .input(lines("string_a"))
        .input(lines("string_b"))
        .input(Input::text("delimiter", "").with("multiline", false))
        .output("STRING");
    |runtime, call| {
        let (a, b, delimiter) = (call.text("string_a")?, call.text("string_b")?, call.text("delimiter")?);
        Ok(Outcome::one(format!("{a}{delimiter}{b}")))
    }
}

class! {
    StringSubstring in "utils/string";
    |schema| schema
        .title("Substring")
        .about("A part of a text. Numbers below 0 count from the end.")
        .input(lines("string"))
        .input(Input::new("start", Kind::Int))
        .input(Input::new("end", Kind::Int))
        .output("STRING");
    |runtime, call| {
        let text: Vec<char> = call.text("string")?.chars().collect();
        let place = |index: i64| {
            let from_end = if index < 0 { index.saturating_add(text.len() as i64) } else { index };
            usize::try_from(from_end).unwrap_or(0).min(text.len())
        };
        let (start, end) = (place(call.int("start")?), place(call.int("end")?));
        Ok(Outcome::one(text.get(start..end).unwrap_or_default().iter().collect::<String>()))
    }
}

class! {
    StringLength in "utils/string";
    |schema| schema
        .title("Length")
        .about("How many characters a text has.")
        .input(lines("string"))
        .named_output("INT", "length");
    |runtime, call| Ok(Outcome::one(call.text("string")?.chars().count()))
}

class! {
    CaseConverter in "utils/string";
    |schema| schema
        .title("Case Converter")
        .about("Writes a text in large or small letters.")
        .input(lines("string"))
        .input(Input::choice("mode", ["UPPERCASE", "lowercase", "Capitalize", "Title Case"]))
        .output("STRING");
    |runtime, call| {
        let text = call.text("string")?;
        Ok(Outcome::one(match call.text("mode")? {
            "UPPERCASE" => text.to_uppercase(),
            "lowercase" => text.to_lowercase(),
            "Capitalize" => {
                let mut rest = text.chars();
                let first: String = rest.next().into_iter().flat_map(char::to_uppercase).collect();
                first + &rest.as_str().to_lowercase()
            }
            "Title Case" => titled(text),
            _ => text.to_owned(),
        }))
    }
}

/// Every letter after something that is no letter is large, all others small.
fn titled(text: &str) -> String {
    let mut out = String::new();
    let mut after_letter = false;
    for letter in text.chars() {
        if after_letter {
            out.extend(letter.to_lowercase());
        } else {
            out.extend(letter.to_uppercase());
        }
        after_letter = letter.is_uppercase() || letter.is_lowercase();
    }
    out
}

class! {
    StringTrim in "utils/string";
    |schema| schema
        .title("Trim")
        .about("Takes the white space away around a text.")
        .input(lines("string"))
        .input(Input::choice("mode", ["Both", "Left", "Right"]))
        .output("STRING");
    |runtime, call| {
        let text = call.text("string")?;
        // Python counts the four separators of ASCII as white space.
        let is_space = |letter: char| letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter);
        Ok(Outcome::one(match call.text("mode")? {
            "Both" => text.trim_matches(is_space),
            "Left" => text.trim_start_matches(is_space),
            "Right" => text.trim_end_matches(is_space),
            _ => text,
        }))
    }
}

class! {
    StringReplace in "utils/string";
    |schema| schema
        .title("Replace")
        .about("Replaces a text wherever it stands.")
        .input(lines("string"))
        .input(lines("find"))
        .input(lines("replace"))
        .output("STRING");
    |runtime, call| Ok(Outcome::one(call.text("string")?.replace(call.text("find")?, call.text("replace")?)))
}

class! {
    StringContains in "utils/string";
    |schema| schema
        .title("Contains")
        .about("Whether a text stands in another.")
        .input(lines("string"))
        .input(lines("substring"))
        .input(Input::boolean("case_sensitive", true))
        .named_output("BOOLEAN", "contains");
    |runtime, call| {
        let is_sensitive = call.boolean("case_sensitive")?;
        let (text, part) = (cased(call.text("string")?, is_sensitive), cased(call.text("substring")?, is_sensitive));
        Ok(Outcome::one(text.contains(&part)))
    }
}

class! {
    StringCompare in "utils/string";
    |schema| schema
        .title("Compare")
        .about("Whether a text is another, or begins or ends with it.")
        .input(lines("string_a"))
        .input(lines("string_b"))
        .input(Input::choice("mode", ["Starts With", "Ends With", "Equal"]))
        .input(Input::boolean("case_sensitive", true))
        .output("BOOLEAN");
    |runtime, call| {
        let is_sensitive = call.boolean("case_sensitive")?;
        let (a, b) = (cased(call.text("string_a")?, is_sensitive), cased(call.text("string_b")?, is_sensitive));
        Ok(Outcome::one(match call.text("mode")? {
            "Starts With" => a.starts_with(&b),
            "Ends With" => a.ends_with(&b),
            _ => a == b,
        }))
    }
}

fn cased(text: &str, is_sensitive: bool) -> String {
    if is_sensitive { text.to_owned() } else { text.to_lowercase() }
}
