//! The prompt language that ComfyUI's users write: `(text)` weighs 1.1, `(text:1.3)` weighs 1.3,
//! parentheses nest, `\(` and `\)` stand for themselves, and `embedding:name` names learned vectors.

/// The weight of one pair of parentheses without a number.
const EMPHASIS: f64 = 1.1;
/// Groups within more groups than this are plain text, so that no prompt can exhaust the stack.
const MAX_DEPTH: usize = 200;
/// What names an embedding.
const EMBEDDING: &str = "embedding:";
/// Stand-ins for escaped parentheses while groups are found. They cannot be typed.
const ESCAPED_OPEN: &str = "\0\u{2}";
const ESCAPED_CLOSE: &str = "\0\u{1}";

/// A part of a prompt with one weight.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// What it says.
    pub text: String,
    /// How much it counts; 1 is plain.
    pub weight: f64,
}

/// What a segment is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Part<'a> {
    /// Words for the tokenizer.
    Text(&'a str),
    /// An embedding.
    Embedding(EmbeddingText<'a>),
}

/// The text from one embedding to the next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct EmbeddingText<'a> {
    /// All of it.
    pub(crate) whole: &'a str,
    /// The name of the embedding.
    pub(crate) name: &'a str,
    /// What follows the name.
    pub(crate) rest: &'a str,
}

/// The weighted parts of a prompt, in order.
pub fn segments(prompt: &str) -> Vec<Segment> {
    let escaped = prompt.replace("\\)", ESCAPED_CLOSE).replace("\\(", ESCAPED_OPEN);
    let mut found = Vec::new();
    weigh(&escaped, 1.0, 0, &mut found);
    for segment in &mut found {
        segment.text = segment.text.replace(ESCAPED_CLOSE, ")").replace(ESCAPED_OPEN, "(");
    }
    found
}

/// The prompt as one part, whatever its parentheses.
pub fn unweighted(prompt: &str) -> Vec<Segment> {
    let text = prompt.replace("\\)", ")").replace("\\(", "(");
    vec![Segment { text, weight: 1.0 }]
}

/// Splits text at its outermost groups and weighs each; a number after the last colon of a group
/// replaces whatever weight the groups around it gave.
fn weigh(text: &str, weight: f64, depth: usize, found: &mut Vec<Segment>) {
    for piece in outermost(text) {
        let group = Some(piece.as_str()).filter(|_| depth < MAX_DEPTH);
        let inner = group.and_then(|piece| piece.strip_prefix('(')?.strip_suffix(')'));
        let Some(inner) = inner else {
            found.push(Segment { text: piece, weight });
            continue;
        };
        let number = inner.rfind(':').filter(|&at| at > 0).and_then(|at| {
            let value = inner[at + 1..].trim().parse::<f64>().ok()?;
            Some((&inner[..at], value))
        });
        match number {
            Some((inner, value)) => weigh(inner, value, depth + 1, found),
            None => weigh(inner, weight * EMPHASIS, depth + 1, found),
        }
    }
}

/// The outermost groups, parentheses and all, and what stands between them. A parenthesis too many is
/// plain text.
fn outermost(text: &str) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut piece = String::new();
    let mut depth = 0i64;
    for c in text.chars() {
        match c {
            '(' => {
                if depth == 0 && !piece.is_empty() {
                    pieces.push(std::mem::take(&mut piece));
                }
                piece.push(c);
                depth += 1;
            }
            ')' => {
                piece.push(c);
                depth -= 1;
                if depth == 0 {
                    pieces.push(std::mem::take(&mut piece));
                }
            }
            c => piece.push(c),
        }
    }
    if !piece.is_empty() {
        pieces.push(piece);
    }
    pieces
}

/// A segment's words and the embeddings that it names. An embedding begins the segment or follows a space
/// or a line break, which parts it from the words and says nothing itself; its name ends at white space.
pub(crate) fn parts(text: &str) -> Vec<Part<'_>> {
    let begins = |at: &usize| *at == 0 || text[..*at].ends_with([' ', '\n']);
    let starts: Vec<usize> = text.match_indices(EMBEDDING).map(|(at, _)| at).filter(begins).collect();
    let first = starts.first().copied().unwrap_or(text.len() + 1);
    let mut parts: Vec<Part<'_>> = Vec::new();
    let words = &text[..first.saturating_sub(1)];
    if !words.is_empty() {
        parts.push(Part::Text(words));
    }
    for (i, start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).map_or(text.len(), |next| next - 1);
        let whole = &text[*start..end];
        let after = &whole[EMBEDDING.len()..];
        let (name, rest) = after.split_once(char::is_whitespace).unwrap_or((after, ""));
        parts.push(Part::Embedding(EmbeddingText { whole, name, rest: rest.trim() }));
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weights(prompt: &str) -> Vec<(String, f64)> {
        segments(prompt).into_iter().map(|s| (s.text, (s.weight * 1e6).round() / 1e6)).collect()
    }

    #[test]
    fn weights_nest_and_numbers_replace() {
        for (prompt, expected) in [
            ("a (b) c", vec![("a ", 1.0), ("b", 1.1), (" c", 1.0)]),
            ("((a))", vec![("a", 1.21)]),
            ("(a (b:1.5) c)", vec![("a ", 1.1), ("b", 1.5), (" c", 1.1)]),
            ("((a:1.2) b:0.5)", vec![("a", 1.2), (" b", 0.5)]),
            ("((a) b:0.5)", vec![("a", 0.55), (" b", 0.5)]),
            ("(a: 1.3 )", vec![("a", 1.3)]),
            ("(a:b)", vec![("a:b", 1.1)]),
            ("(:2)", vec![(":2", 1.1)]),
            ("()", vec![]),
            ("(a:1.2", vec![("(a:1.2", 1.0)]),
            ("a:1.2)", vec![("a:1.2)", 1.0)]),
            ("\\(a\\) (b \\(c\\):2)", vec![("(a) ", 1.0), ("b (c)", 2.0)]),
            ("", vec![]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(t, w)| (t.to_owned(), w)).collect();
            assert_eq!(weights(prompt), expected, "{prompt}");
        }
        assert_eq!(unweighted("(a:2) \\(b"), vec![Segment { text: "(a:2) (b".into(), weight: 1.0 }]);
    }

    #[test]
    fn no_prompt_is_too_deep() {
        let deep = format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000));
        let found = segments(&deep);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text.len(), deep.len() - 2 * MAX_DEPTH);
        assert_eq!(segments(&"(".repeat(20_000)).len(), 1);
    }

    #[test]
    fn embeddings_are_parted_from_words() {
        let embedding = |whole, name, rest| Part::Embedding(EmbeddingText { whole, name, rest });
        assert_eq!(parts("a cat"), [Part::Text("a cat")]);
        assert_eq!(parts("embedding:x"), [embedding("embedding:x", "x", "")]);
        assert_eq!(
            parts("a embedding:x, b c"),
            [Part::Text("a"), embedding("embedding:x, b c", "x,", "b c")]
        );
        assert_eq!(
            parts("embedding:x embedding:y\nembedding:z w"),
            [
                embedding("embedding:x", "x", ""),
                embedding("embedding:y", "y", ""),
                embedding("embedding:z w", "z", "w")
            ]
        );
        assert_eq!(parts("noembedding:x"), [Part::Text("noembedding:x")]);
        assert_eq!(parts(" embedding:"), [embedding("embedding:", "", "")]);
        assert_eq!(parts(""), []);
    }
}
