//! A scanner for Rust source that tells code from comments and literals, which is all the checks
//! need. It keeps every character's place: code, comments and literals are three texts of the source's
//! own shape, in which whatever is not theirs is blank.

/// Stands for each character inside a string or character literal, so that a line inside a long
/// literal still counts as code while its words do not.
const INSIDE_LITERAL: char = '~';

/// Rust source with its comments and literals told apart.
pub(crate) struct Scan {
    code: Vec<char>,
    comments: Vec<char>,
    /// The insides of strings and characters, between blanks; white space within them is kept as it is.
    literals: Vec<Option<char>>,
    line_starts: Vec<usize>,
    in_test: Vec<bool>,
}

/// An identifier or keyword in the code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Word {
    /// Offset of its first character.
    pub(crate) start: usize,
    /// Offset after its last character.
    pub(crate) end: usize,
    /// The word itself.
    pub(crate) text: String,
}

impl Scan {
    /// Reads a whole file. Source that does not parse gives some answer, never a failure: the
    /// compiler is the one to complain about it.
    pub(crate) fn new(source: &str) -> Scan {
        let Splitter { code, comments, literals, .. } = Splitter::new(source).split();
        let mut line_starts = vec![0];
        line_starts.extend(code.iter().enumerate().filter(|(_, c)| **c == '\n').map(|(at, _)| at + 1));
        if code.last() == Some(&'\n') {
            line_starts.pop();
        }
        let in_test = vec![false; line_starts.len()];
        let mut scan = Scan { code, comments, literals, line_starts, in_test };
        scan.mark_tests();
        scan
    }

    /// How many lines there are.
    pub(crate) fn line_count(&self) -> usize {
        self.line_starts.len()
    }

    /// The code of a line (counted from 0), comments blanked and literals filled.
    pub(crate) fn code_line(&self, line: usize) -> String {
        self.line_of(&self.code, line)
    }

    /// The comments of a line (counted from 0), with their slashes.
    pub(crate) fn comment_line(&self, line: usize) -> String {
        self.line_of(&self.comments, line)
    }

    /// The line (counted from 0) that holds the character at `offset`.
    pub(crate) fn line_at(&self, offset: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= offset) - 1
    }

    /// Whether a line (counted from 0) belongs to an item under `#[cfg(test)]` or `#[test]`.
    pub(crate) fn is_test_line(&self, line: usize) -> bool {
        self.in_test[line]
    }

    /// How many lines lie outside test items.
    pub(crate) fn non_test_line_count(&self) -> usize {
        self.in_test.iter().filter(|test| !**test).count()
    }

    /// Every word of the code, in order.
    pub(crate) fn words(&self) -> Vec<Word> {
        let mut words = Vec::new();
        let mut at = 0;
        while at < self.code.len() {
            if !is_word_char(self.code[at]) {
                at += 1;
                continue;
            }
            let end = self.word_end(at);
            words.push(Word { start: at, end, text: self.code[at..end].iter().collect() });
            at = end;
        }
        words
    }

    /// Every string and character literal as it is written, escapes and all, with the offset of its first character.
    /// Empty ones have none and are left out.
    pub(crate) fn literals(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut is_inside = false;
        for (at, literal) in self.literals.iter().enumerate() {
            match (literal, is_inside) {
                (Some(c), false) => found.push((at, c.to_string())),
                (Some(c), true) => found.iter_mut().last().into_iter().for_each(|(_, text)| text.push(*c)),
                (None, _) => {}
            }
            is_inside = literal.is_some();
        }
        found
    }

    /// The first character at or after `offset` that is not white space, with its place.
    pub(crate) fn next_code(&self, offset: usize) -> Option<(usize, char)> {
        (offset..self.code.len()).map(|at| (at, self.code[at])).find(|(_, c)| !c.is_whitespace())
    }

    /// The last character before `offset` that is not white space, with its place.
    pub(crate) fn code_before(&self, offset: usize) -> Option<(usize, char)> {
        (0..offset.min(self.code.len())).rev().map(|at| (at, self.code[at])).find(|(_, c)| !c.is_whitespace())
    }

    /// The word whose last character is at `last`, if there is one.
    pub(crate) fn word_ending_at(&self, last: usize) -> Option<String> {
        let letters = (0..=last).rev().take_while(|at| is_word_char(self.code[*at])).count();
        (letters > 0).then(|| self.code[last + 1 - letters..=last].iter().collect())
    }

    /// The place of the bracket that the one at `close` closes, or the start of the file.
    pub(crate) fn opening(&self, close: usize) -> usize {
        let mut depth = 0_usize;
        for at in (0..=close).rev() {
            match self.code[at] {
                ')' | ']' | '}' => depth += 1,
                '(' | '[' | '{' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return at;
                    }
                }
                _ => {}
            }
        }
        0
    }

    /// The word that starts at the next code character, if one does.
    pub(crate) fn next_word(&self, offset: usize) -> Option<Word> {
        let (start, first) = self.next_code(offset)?;
        let end = self.word_end(start);
        is_word_char(first).then(|| Word { start, end, text: self.code[start..end].iter().collect() })
    }

    /// The offset after the string literal that comes next, or `offset` when none does.
    pub(crate) fn after_string(&self, offset: usize) -> usize {
        let Some((open, '"')) = self.next_code(offset) else { return offset };
        let close = (open + 1..self.code.len()).find(|at| self.code[*at] == '"');
        close.map_or(self.code.len(), |close| close + 1)
    }

    /// The code between two offsets.
    pub(crate) fn code_between(&self, start: usize, end: usize) -> String {
        self.code[start..end.min(self.code.len())].iter().collect()
    }

    /// The place of the bracket that closes the one at `open`, or the end of the file.
    pub(crate) fn closing(&self, open: usize) -> usize {
        let mut depth = 0_usize;
        for at in open..self.code.len() {
            match self.code[at] {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' => {
                    depth = depth.saturating_sub(1);
                    if depth == 0 {
                        return at;
                    }
                }
                _ => {}
            }
        }
        self.code.len().saturating_sub(1)
    }

    /// Where the body of the item whose header contains `offset` opens: the place of its `{`, or
    /// `None` when a `;` ends the item first. Brackets in the header, array lengths and constant
    /// arguments such as `Grid<{ N + 1 }>` are stepped over.
    pub(crate) fn body_open(&self, offset: usize) -> Option<usize> {
        let mut at = offset;
        let mut angles = 0_usize;
        while at < self.code.len() {
            match self.code[at] {
                '<' => angles += 1,
                '>' if !self.ends_arrow(at) => angles = angles.saturating_sub(1),
                '{' if angles > 0 => at = self.closing(at),
                '{' => return Some(at),
                '(' | '[' => at = self.closing(at),
                ';' | '}' => return None,
                _ => {}
            }
            at += 1;
        }
        None
    }

    /// Whether the `>` at `at` belongs to `->` or `=>`.
    fn ends_arrow(&self, at: usize) -> bool {
        at > 0 && matches!(self.code[at - 1], '-' | '=')
    }

    /// Where the type of a declaration ends: at the `=` or `;` outside all brackets.
    pub(crate) fn declared_type_end(&self, offset: usize) -> usize {
        let mut at = offset;
        while at < self.code.len() && !matches!(self.code[at], '=' | ';') {
            at = if matches!(self.code[at], '(' | '[' | '{') { self.closing(at) + 1 } else { at + 1 };
        }
        at.min(self.code.len())
    }

    fn line_of(&self, text: &[char], line: usize) -> String {
        let start = self.line_starts[line];
        let end = self.line_starts.get(line + 1).copied().unwrap_or(text.len());
        text[start..end].iter().filter(|c| **c != '\n' && **c != '\r').collect()
    }

    fn word_end(&self, start: usize) -> usize {
        (start..self.code.len()).find(|at| !is_word_char(self.code[*at])).unwrap_or(self.code.len())
    }

    /// Marks the lines of every item that only exists in tests, from its attribute to its end.
    fn mark_tests(&mut self) {
        let mut at = 0;
        while at < self.code.len() {
            let Some((open, inner)) = self.attribute_open(at) else {
                at += 1;
                continue;
            };
            let close = self.closing(open);
            if is_test_attribute(&self.code_between(open + 1, close)) {
                let last = if inner { self.code.len() - 1 } else { self.item_end(close + 1) };
                let (first_line, last_line) = (self.line_at(at), self.line_at(last));
                self.in_test[first_line..=last_line].fill(true);
                at = last + 1;
            } else {
                at = close + 1;
            }
        }
    }

    /// When an attribute starts at `at`: the place of its `[`, and whether it is an inner one.
    fn attribute_open(&self, at: usize) -> Option<(usize, bool)> {
        if self.code[at] != '#' {
            return None;
        }
        match self.next_code(at + 1)? {
            (open, '[') => Some((open, false)),
            (bang, '!') => self.next_code(bang + 1).filter(|(_, c)| *c == '[').map(|(open, _)| (open, true)),
            _ => None,
        }
    }

    /// The last character of the item that starts at `offset`, its own attributes included.
    fn item_end(&self, offset: usize) -> usize {
        let mut start = offset;
        while let Some((at, '#')) = self.next_code(start) {
            match self.attribute_open(at) {
                Some((open, _)) => start = self.closing(open) + 1,
                None => break,
            }
        }
        match self.body_open(start) {
            Some(open) => self.closing(open),
            None => (start..self.code.len())
                .find(|at| self.code[*at] == ';')
                .unwrap_or(self.code.len().saturating_sub(1)),
        }
    }
}

fn is_test_attribute(attribute: &str) -> bool {
    let compact: String = attribute.chars().filter(|c| !c.is_whitespace()).collect();
    if compact == "test" {
        return true;
    }
    let Some(condition) = compact.strip_prefix("cfg(") else { return false };
    !condition.contains("not(test") && condition.split(|c| !is_word_char(c)).any(|word| word == "test")
}

fn is_word_char(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// Walks the source once and deals each character out to code, comments or nothing.
struct Splitter {
    source: Vec<char>,
    at: usize,
    code: Vec<char>,
    comments: Vec<char>,
    literals: Vec<Option<char>>,
}

impl Splitter {
    fn new(source: &str) -> Splitter {
        let source: Vec<char> = source.chars().collect();
        let length = source.len();
        Splitter {
            source,
            at: 0,
            code: Vec::with_capacity(length),
            comments: Vec::with_capacity(length),
            literals: Vec::with_capacity(length),
        }
    }

    fn split(mut self) -> Splitter {
        while let Some(c) = self.peek(0) {
            match (c, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(),
                ('\'', _) => self.character_or_lifetime(),
                _ if is_word_char(c) => self.word_or_raw_string(),
                _ => self.take_code(1),
            }
        }
        self
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.source.get(self.at + ahead).copied()
    }

    fn take_code(&mut self, count: usize) {
        for _ in 0..count {
            let Some(c) = self.peek(0) else { return };
            self.push(c, blank(c), None);
        }
    }

    fn take_comment(&mut self, count: usize) {
        for _ in 0..count {
            let Some(c) = self.peek(0) else { return };
            self.push(blank(c), c, None);
        }
    }

    fn take_literal(&mut self, count: usize) {
        for _ in 0..count {
            let Some(c) = self.peek(0) else { return };
            self.push(if c == '\n' || c == '\r' { c } else { INSIDE_LITERAL }, blank(c), Some(c));
        }
    }

    fn push(&mut self, code: char, comment: char, literal: Option<char>) {
        self.code.push(code);
        self.comments.push(comment);
        self.literals.push(literal);
        self.at += 1;
    }

    fn line_comment(&mut self) {
        while self.peek(0).is_some_and(|c| c != '\n') {
            self.take_comment(1);
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0_usize;
        loop {
            match (self.peek(0), self.peek(1)) {
                (Some('/'), Some('*')) => {
                    depth += 1;
                    self.take_comment(2);
                }
                (Some('*'), Some('/')) => {
                    depth -= 1;
                    self.take_comment(2);
                    if depth == 0 {
                        return;
                    }
                }
                (Some(_), _) => self.take_comment(1),
                (None, _) => return,
            }
        }
    }

    fn string(&mut self) {
        self.take_code(1);
        while let Some(c) = self.peek(0) {
            match c {
                '"' => return self.take_code(1),
                '\\' => self.take_literal(2),
                _ => self.take_literal(1),
            }
        }
    }

    /// `'x'` and `'\n'` are literals; `'a` alone is a lifetime or a label.
    fn character_or_lifetime(&mut self) {
        match (self.peek(1), self.peek(2)) {
            (Some('\\'), _) => {
                self.take_code(1);
                self.take_literal(2);
                while self.peek(0).is_some_and(|c| c != '\'' && c != '\n') {
                    self.take_literal(1);
                }
                self.take_code(1);
            }
            (Some(_), Some('\'')) => {
                self.take_code(1);
                self.take_literal(1);
                self.take_code(1);
            }
            _ => self.take_code(1),
        }
    }

    /// Words are taken whole, so that the `r` of `for` is not read as the start of a raw string.
    fn word_or_raw_string(&mut self) {
        let length = (0..).take_while(|ahead| self.peek(*ahead).is_some_and(is_word_char)).count();
        let word: String = self.source[self.at..self.at + length].iter().collect();
        self.take_code(length);
        if ["r", "br", "cr"].contains(&word.as_str()) {
            let hashes = (0..).take_while(|ahead| self.peek(*ahead) == Some('#')).count();
            if self.peek(hashes) == Some('"') {
                self.raw_string(hashes);
            }
        }
    }

    fn raw_string(&mut self, hashes: usize) {
        self.take_code(hashes + 1);
        while let Some(c) = self.peek(0) {
            if c == '"' && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#')) {
                return self.take_code(hashes + 1);
            }
            self.take_literal(1);
        }
    }
}

fn blank(c: char) -> char {
    if c == '\n' || c == '\r' { c } else { ' ' }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(source: &str) -> String {
        Scan::new(source).code.iter().collect()
    }

    fn words(source: &str) -> Vec<String> {
        Scan::new(source).words().into_iter().map(|word| word.text).collect()
    }

    fn test_lines(source: &str) -> Vec<usize> {
        let scan = Scan::new(source);
        (0..scan.line_count()).filter(|line| scan.is_test_line(*line)).collect()
    }

    #[test]
    fn comments_leave_the_code() {
        assert_eq!(code("a // unsafe {\nb"), "a            \nb");
        assert_eq!(code("a /* x /* nested */ y */ b"), "a                        b");
        assert_eq!(code("a /* never closed"), "a                ");
        assert_eq!(code("a / b"), "a / b");
    }

    #[test]
    fn comments_keep_their_text_and_place() {
        let scan = Scan::new("let a = 1; // SAFETY: why\n/// # Safety\nb");
        assert_eq!(scan.comment_line(0), "           // SAFETY: why");
        assert_eq!(scan.comment_line(1), "/// # Safety");
        assert_eq!(scan.comment_line(2), " ");
    }

    #[test]
    fn strings_hide_their_words() {
        assert_eq!(words(r#"a("unsafe // b", c)"#), ["a", "c"]);
        assert_eq!(words(r#"a("quote \" unsafe", b"bytes", c"c", d)"#), ["a", "b", "c", "d"]);
        assert_eq!(words(r#"a("ends in a backslash \\", b)"#), ["a", "b"]);
        assert_eq!(words("a(\"two\nlines { \", b)"), ["a", "b"]);
    }

    #[test]
    fn literals_keep_their_text_and_place() {
        let source = "f(\"a \\\" b\", 'c', \"\", r#\"{\"k\"}\"#); // \"no\"\ng(b\"two\nlines\")";
        let scan = Scan::new(source);
        let texts: Vec<String> = scan.literals().into_iter().map(|(_, text)| text).collect();
        assert_eq!(texts, ["a \\\" b", "c", "{\"k\"}", "two\nlines"]);
        let last = scan.literals().pop().unwrap();
        assert_eq!(last.0, source.find("two").unwrap());
        assert_eq!(scan.line_at(last.0), 1);
    }

    #[test]
    fn what_stands_before_is_found() {
        let source = "lane . stream(a, (b)) .read(c)";
        let scan = Scan::new(source);
        let dot = scan.code_before(source.find("read").unwrap()).unwrap();
        assert_eq!(dot.1, '.');
        let (close, bracket) = scan.code_before(dot.0).unwrap();
        assert_eq!((bracket, scan.opening(close)), (')', source.find('(').unwrap()));
        assert_eq!(scan.word_ending_at(source.find('(').unwrap() - 1).as_deref(), Some("stream"));
        assert_eq!(scan.word_ending_at(close), None);
        assert_eq!(scan.code_before(0), None);
    }

    #[test]
    fn raw_strings_end_only_at_their_own_hashes() {
        assert_eq!(words("a(r\"back\\\", b)"), ["a", "r", "b"]);
        assert_eq!(words("a(r#\"x \" unsafe \"#, b)"), ["a", "r", "b"]);
        assert_eq!(words("a(br##\"x \"# unsafe \"##, b)"), ["a", "br", "b"]);
        assert_eq!(words("r#type for\"x\""), ["r", "type", "for"]);
    }

    #[test]
    fn character_literals_are_told_from_lifetimes() {
        assert_eq!(words("a('{', 'b', '\\'', '\\u{7b}', c)"), ["a", "c"]);
        assert_eq!(code("f('\"', '/')"), "f('~', '~')");
        assert_eq!(words("fn f<'a, 'b>(x: &'a str)"), ["fn", "f", "a", "b", "x", "a", "str"]);
        assert_eq!(words("'outer: loop { break 'outer }"), ["outer", "loop", "break", "outer"]);
        assert_eq!(words("b'\"' + 'é'"), ["b"]);
    }

    #[test]
    fn the_shape_of_the_source_is_kept() {
        let source = "let s = \"a\nb\"; /* c\nd */ 'x'\n";
        let scan = Scan::new(source);
        assert_eq!(scan.line_count(), 3);
        assert_eq!(code(source).chars().count(), source.chars().count());
        assert_eq!(scan.line_at(0), 0);
        assert_eq!(scan.line_at(source.find("b\"").unwrap()), 1);
    }

    #[test]
    fn closing_ignores_brackets_in_literals_and_comments() {
        let source = "{ '}'; \"}\"; /* } */ { } // }\n }";
        let scan = Scan::new(source);
        assert_eq!(scan.closing(0), source.len() - 1);
    }

    #[test]
    fn a_body_opens_after_the_whole_header() {
        let open = |source: &str| Scan::new(source).body_open(0);
        assert_eq!(open("fn f(a: [u8; 4]) -> [f32; 2] { }"), Some(29));
        assert_eq!(open("fn f() -> Grid<{ N + 1 }> { }"), Some(26));
        assert_eq!(open("fn f() -> Grid<u8, { N + 1 }> { }"), Some(30));
        assert_eq!(open("fn f<F>(g: F) where F: Fn(u8) -> u8, { }"), Some(37));
        assert_eq!(open("fn f<F: Fn() -> Vec<u8>>(g: F) -> bool { }"), Some(39));
        assert_eq!(open("fn f(a: [u8; 4]); struct S { }"), None);
    }

    #[test]
    fn test_items_are_marked_to_their_end() {
        let source = "fn a() {}\n#[cfg(test)]\nmod tests {\n    fn b() { \"}\"; }\n}\nfn c() {}\n";
        assert_eq!(test_lines(source), [1, 2, 3, 4]);
        assert_eq!(Scan::new(source).non_test_line_count(), 2);
    }

    #[test]
    fn test_attributes_come_in_several_forms() {
        assert_eq!(test_lines("#[test]\n#[ignore]\nfn a() {\n}\nfn b() {}"), [0, 1, 2, 3]);
        assert_eq!(test_lines("#[cfg(all(test, unix))]\nmod tests;\nfn b() {}"), [0, 1]);
        assert_eq!(test_lines("#![cfg(test)]\nfn a() {}"), [0, 1]);
        assert_eq!(test_lines("#[cfg(test)]\nuse a::{b, c};\nfn d() {}"), [0, 1]);
    }

    #[test]
    fn other_conditions_are_not_tests() {
        assert!(test_lines("#[cfg(not(test))]\nfn a() {}").is_empty());
        assert!(test_lines("#[cfg(feature = \"test\")]\nfn a() {}").is_empty());
        assert!(test_lines("#[derive(Debug)]\nstruct S;").is_empty());
        assert!(test_lines("// #[cfg(test)]\nfn a() {}").is_empty());
    }
}
