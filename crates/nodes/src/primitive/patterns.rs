//! Patterns in text, written and understood as Python's `re` does.

use std::sync::Arc;

use fancy_regex::{Captures, Regex, RegexBuilder};
use graph::{Call, Catalogue, Failure, Input, Outcome};

use super::lines;
use crate::Runtime;
use crate::class::class;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(RegexMatch(Arc::clone(runtime)));
    catalogue.add(RegexExtract(Arc::clone(runtime)));
    catalogue.add(RegexReplace(Arc::clone(runtime)));
}

/// How often a search may try another way before it gives up: some patterns would take years.
const MAX_TRIES: usize = 1_000_000;

class! {
    RegexMatch in "utils/string";
    |schema| schema
        .title("Regex Match")
        .about("Whether a pattern is found in a text.")
        .input(lines("string"))
        .input(lines("regex_pattern"))
        .input(Input::boolean("case_insensitive", true))
        .input(Input::boolean("multiline", false))
        .input(Input::boolean("dotall", false))
        .named_output("BOOLEAN", "matches");
    |runtime, call| {
        let found = match pattern(call)? {
            Ok(pattern) => pattern.is_match(call.text("string")?).map_err(|error| gave_up(&error))?,
            Err(_) => false,
        };
        Ok(Outcome::one(found))
    }
}

class! {
    RegexExtract in "utils/string";
    |schema| schema
        .title("Regex Extract")
        .about("What a pattern finds in a text, one find on each line.")
        .input(lines("string"))
        .input(lines("regex_pattern"))
        .input(Input::choice("mode", ["First Match", "All Matches", "First Group", "All Groups"]))
        .input(Input::boolean("case_insensitive", true))
        .input(Input::boolean("multiline", false))
        .input(Input::boolean("dotall", false))
        .input(Input::int("group_index", 1, 0, 100))
        .output("STRING");
    |runtime, call| {
        let Ok(pattern) = pattern(call)? else { return Ok(Outcome::one("")) };
        Ok(Outcome::one(extracted(&pattern, call.text("string")?, call.text("mode")?, call.size("group_index")?)?))
    }
}

fn extracted(pattern: &Regex, text: &str, mode: &str, group: usize) -> Result<String, Failure> {
    // Python counts the groups without the whole match.
    let groups = pattern.captures_len() - 1;
    let (wanted, is_first) = match mode {
        "First Match" => (Some(0), true),
        "All Matches" => (Some(groups.min(1)), false),
        "First Group" => (Some(group), true),
        "All Groups" => ((groups > 0).then_some(group), false),
        _ => (None, true),
    };
    let Some(wanted) = wanted.filter(|wanted| *wanted <= groups) else { return Ok(String::new()) };
    let mut finds = Vec::new();
    for captures in pattern.captures_iter(text) {
        let captures = captures.map_err(|error| gave_up(&error))?;
        finds.push(captures.get(wanted).map_or("", |found| found.as_str()).to_owned());
        if is_first {
            break;
        }
    }
    Ok(finds.join("\n"))
}

class! {
    RegexReplace in "utils/string";
    |schema| schema
        .title("Regex Replace")
        .about("Replaces what a pattern finds. \\1 stands for the first group, \\g<name> for one with a name.")
        .input(lines("string"))
        .input(lines("regex_pattern"))
        .input(lines("replace"))
        .input(Input::boolean("case_insensitive", true).optional())
        .input(Input::boolean("multiline", false).optional())
        .input(Input::boolean("dotall", false).optional())
        .input(Input::int("count", 0, 0, 100).tooltip("How many finds are replaced; 0 for all.").optional())
        .output("STRING");
    |runtime, call| {
        let pattern = pattern(call)?.map_err(Failure::value)?;
        let count = if call.inputs.first("count").is_some() { call.size("count")? } else { 0 };
        let parts = template(call.text("replace")?, &pattern)?;
        Ok(Outcome::one(replaced(&pattern, call.text("string")?, &parts, count)?))
    }
}

fn replaced(pattern: &Regex, text: &str, parts: &[Part], count: usize) -> Result<String, Failure> {
    let mut out = String::new();
    let mut done = 0;
    for (number, captures) in pattern.captures_iter(text).enumerate() {
        if count > 0 && number >= count {
            break;
        }
        let captures = captures.map_err(|error| gave_up(&error))?;
        let Some(whole) = captures.get(0) else { continue };
        out.push_str(&text[done..whole.start()]);
        parts.iter().for_each(|part| part.write(&captures, &mut out));
        done = whole.end();
    }
    Ok(out + &text[done..])
}

/// The call's pattern; inside, what is wrong with it.
fn pattern(call: &Call) -> Result<Result<Regex, String>, Failure> {
    let flag = |name: &str, default: bool| match call.inputs.first(name) {
        Some(_) => call.boolean(name),
        None => Ok(default),
    };
    let is_multiline = flag("multiline", false)?;
    let source = call.text("regex_pattern")?;
    let mut builder = RegexBuilder::new(&translated(source, is_multiline));
    builder.case_insensitive(flag("case_insensitive", true)?);
    builder.multi_line(is_multiline).dot_matches_new_line(flag("dotall", false)?).backtrack_limit(MAX_TRIES);
    Ok(builder.build().map_err(|error| format!("the pattern \"{source}\" cannot be used: {error}")))
}

fn gave_up(error: &fancy_regex::Error) -> Failure {
    Failure::error("RuntimeError", format!("the search took too long: {error}; choose a simpler pattern"))
}

/// Python's pattern in the words of the library: there, `$` does not stand before a last line break, and `\Z` does.
fn translated(pattern: &str, is_multiline: bool) -> String {
    let mut out = String::new();
    let mut letters = pattern.chars();
    let mut in_class = false;
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => match letters.next() {
                Some('Z') if !in_class => out.push_str("\\z"),
                Some(next) => out.extend([letter, next]),
                None => out.push(letter),
            },
            '$' if !in_class && !is_multiline => out.push_str("(?=\\n?\\z)"),
            _ => {
                in_class = match letter {
                    '[' => true,
                    ']' => false,
                    _ => in_class,
                };
                out.push(letter);
            }
        }
    }
    out
}

/// A part of what is put in a find's place.
enum Part {
    Text(String),
    Group(usize),
}

impl Part {
    fn write(&self, captures: &Captures<'_, str>, out: &mut String) {
        match self {
            Part::Text(text) => out.push_str(text),
            Part::Group(group) => out.push_str(captures.get(*group).map_or("", |found| found.as_str())),
        }
    }
}

/// Reads a replacement: `\1`, `\g<1>` and `\g<name>` are groups, `\n` and the like single letters.
fn template(text: &str, pattern: &Regex) -> Result<Vec<Part>, Failure> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('\\') {
        parts.push(Part::Text(rest[..start].to_owned()));
        let after = &rest[start + 1..];
        let (part, length) = escape(after, pattern)?;
        parts.push(part);
        rest = &after[length..];
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// What follows a backslash in a replacement, and how many bytes of it.
fn escape(after: &str, pattern: &Regex) -> Result<(Part, usize), Failure> {
    let bad = |what: &str| Failure::value(format!("in the replacement, \"\\{what}\" means nothing"));
    let group = |group: usize| {
        if group < pattern.captures_len() { Ok(Part::Group(group)) } else { Err(bad(&group.to_string())) }
    };
    if let Some(name) = after.strip_prefix("g<") {
        let Some((name, _)) = name.split_once('>') else { return Err(bad("g<")) };
        let index =
            name.parse().ok().or_else(|| pattern.capture_names().position(|known| known == Some(name)));
        return Ok((group(index.ok_or_else(|| bad(&format!("g<{name}>")))?)?, name.len() + 3));
    }
    let digits = after.bytes().take(2).take_while(u8::is_ascii_digit).count();
    if let Ok(index) = after[..digits].parse::<usize>() {
        return Ok((group(index)?, digits));
    }
    let letter = after.chars().next().ok_or_else(|| bad(""))?;
    let text = match letter {
        'n' => '\n',
        'r' => '\r',
        't' => '\t',
        'a' => '\u{7}',
        'b' => '\u{8}',
        'f' => '\u{c}',
        'v' => '\u{b}',
        '\\' => '\\',
        letter if letter.is_ascii_alphabetic() => return Err(bad(&letter.to_string())),
        // Before anything else a backslash stands for itself.
        letter => return Ok((Part::Text(format!("\\{letter}")), letter.len_utf8())),
    };
    Ok((Part::Text(text.to_string()), 1))
}
