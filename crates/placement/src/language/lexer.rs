//! Splits an allocation text into words, numbers and marks, each with its place.

use crate::language::error::Span;

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A letter or underscore and what follows: a device name, a unit, an option.
    Word,
    /// Digits and points; whether they make a number is the parser's question.
    Number,
    Comma,
    Semicolon,
    Colon,
    Percent,
    Star,
    Hash,
    Equals,
    Minus,
    /// Any other character.
    Other,
}

/// One token and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) span: Span,
}

/// Splits a text. Every character that is not white space is in exactly one token.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text.char_indices().peekable();
    while let Some((start, first)) = rest.next() {
        if first.is_whitespace() {
            continue;
        }
        let kind = kind_of(first);
        let mut end = start + first.len_utf8();
        while let Some((at, next)) = rest.next_if(|(_, c)| continues(kind, *c)) {
            end = at + next.len_utf8();
        }
        tokens.push(Token { kind, span: Span::new(start, end) });
    }
    tokens
}

fn kind_of(first: char) -> Kind {
    match first {
        ',' => Kind::Comma,
        ';' => Kind::Semicolon,
        ':' => Kind::Colon,
        '%' => Kind::Percent,
        '*' => Kind::Star,
        '#' => Kind::Hash,
        '=' => Kind::Equals,
        '-' | '−' => Kind::Minus,
        '0'..='9' | '.' => Kind::Number,
        '_' => Kind::Word,
        c if c.is_alphabetic() => Kind::Word,
        _ => Kind::Other,
    }
}

fn continues(kind: Kind, next: char) -> bool {
    match kind {
        Kind::Word => next.is_alphanumeric() || next == '_',
        Kind::Number => next.is_ascii_digit() || next == '.',
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_where_the_kind_changes() {
        let text = "cuda:0, 2.5gb*;é%";
        let parts: Vec<&str> = tokens(text).iter().map(|t| &text[t.span.start..t.span.end]).collect();
        assert_eq!(parts, ["cuda", ":", "0", ",", "2.5", "gb", "*", ";", "é", "%"]);
    }
}
