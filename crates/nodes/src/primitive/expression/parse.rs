//! Expressions read into terms.

use super::number::{Number, Operand, called, compared, computed};

/// Parentheses, signs and powers within each other that are read; more is a mistake or an attack.
const MAX_DEPTH: usize = 128;
/// Characters that are read.
const MAX_LENGTH: usize = 10_000;

/// A part of an expression.
pub(super) enum Term {
    Number(Number),
    Name(String),
    Call(String, Vec<Term>),
    At(Box<Term>, Box<Term>),
    Negative(Box<Term>),
    Positive(Box<Term>),
    Inverted(Box<Term>),
    Not(Box<Term>),
    /// A first operand, and others with the operators before them, from left to right.
    Chain(Box<Term>, Vec<(&'static str, Term)>),
    /// The same for comparisons: all must hold.
    Compared(Box<Term>, Vec<(&'static str, Term)>),
    All(Vec<Term>),
    Any(Vec<Term>),
    /// Value, condition, other value.
    Choice(Box<[Term; 3]>),
}

impl Term {
    /// What it comes to.
    pub(super) fn value(&self, names: &[(String, Number)]) -> Result<Operand, String> {
        let number = |term: &Term| term.value(names)?.number();
        Ok(Operand::Number(match self {
            Term::Number(value) => *value,
            Term::Name(name) if name == "values" => {
                return Ok(Operand::List(names.iter().map(|(_, value)| *value).collect()));
            }
            Term::Name(name) => {
                let known = names.iter().find(|(known, _)| known == name);
                known.ok_or_else(|| format!("nothing is linked to {name}"))?.1
            }
            Term::Call(name, terms) => {
                let operands = terms.iter().map(|term| term.value(names)).collect::<Result<Vec<_>, _>>()?;
                called(name, operands)?
            }
            Term::At(list, index) => list.value(names)?.at(number(index)?)?,
            Term::Negative(term) => {
                computed("-", Number::Int(0), number(term)?)?.with_sign_of_zero(number(term)?)
            }
            Term::Positive(term) => computed("+", Number::Int(0), number(term)?)?,
            Term::Inverted(term) => computed("-", Number::Int(-1), Number::Int(number(term)?.whole()?))?,
            Term::Not(term) => Number::Bool(!number(term)?.is_true()),
            Term::Chain(first, rest) => {
                let mut value = number(first)?;
                for (operator, term) in rest {
                    value = computed(operator, value, number(term)?)?;
                }
                value
            }
            Term::Compared(first, rest) => {
                let mut left = number(first)?;
                for (operator, term) in rest {
                    let right = number(term)?;
                    if !compared(operator, left, right) {
                        return Ok(Operand::Number(Number::Bool(false)));
                    }
                    left = right;
                }
                Number::Bool(true)
            }
            Term::All(terms) => decided(terms, names, false)?,
            Term::Any(terms) => decided(terms, names, true)?,
            Term::Choice(parts) => {
                let [value, condition, other] = &**parts;
                if number(condition)?.is_true() { number(value)? } else { number(other)? }
            }
        }))
    }
}

/// The first operand that decides an `and` or `or`, or the last.
fn decided(terms: &[Term], names: &[(String, Number)], decides: bool) -> Result<Number, String> {
    let mut value = Number::Bool(!decides);
    for term in terms {
        value = term.value(names)?.number()?;
        if value.is_true() == decides {
            break;
        }
    }
    Ok(value)
}

/// Reads an expression.
pub(super) fn parse(text: &str) -> Result<Term, String> {
    if text.trim().is_empty() {
        return Err("it is empty".to_owned());
    }
    if text.len() > MAX_LENGTH {
        return Err(format!("it is too long; at most {MAX_LENGTH} characters are read"));
    }
    let mut reader = Reader { rest: text, depth: 0 };
    let term = reader.choice()?;
    reader.skip_space();
    match reader.rest.chars().next() {
        None => Ok(term),
        Some(letter) => Err(format!("\"{letter}\" is not understood there")),
    }
}

struct Reader<'a> {
    rest: &'a str,
    depth: usize,
}

impl Reader<'_> {
    /// `value if condition else other`, the weakest of all.
    fn choice(&mut self) -> Result<Term, String> {
        self.go_deeper()?;
        let mut term = self.either()?;
        if self.take_word("if") {
            let condition = self.either()?;
            if !self.take_word("else") {
                return Err("after \"if\" there must be \"else\"".to_owned());
            }
            let other = self.choice()?;
            term = Term::Choice(Box::new([term, condition, other]));
        }
        self.depth -= 1;
        Ok(term)
    }

    fn go_deeper(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth <= MAX_DEPTH {
            return Ok(());
        }
        Err(format!("it is too deep; at most {MAX_DEPTH} parts may lie within each other"))
    }

    fn either(&mut self) -> Result<Term, String> {
        let mut terms = vec![self.both()?];
        while self.take_word("or") {
            terms.push(self.both()?);
        }
        Ok(single(terms, Term::Any))
    }

    fn both(&mut self) -> Result<Term, String> {
        let mut terms = vec![self.negation()?];
        while self.take_word("and") {
            terms.push(self.negation()?);
        }
        Ok(single(terms, Term::All))
    }

    fn negation(&mut self) -> Result<Term, String> {
        let mut count = 0;
        while self.take_word("not") {
            count += 1;
        }
        let term = self.comparison()?;
        Ok(match count {
            0 => term,
            count if count % 2 == 1 => Term::Not(Box::new(term)),
            _ => Term::Not(Box::new(Term::Not(Box::new(term)))),
        })
    }

    fn comparison(&mut self) -> Result<Term, String> {
        let first = self.chain(0)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.take_operator(&["==", "!=", "<=", ">=", "<", ">"]) {
            rest.push((operator, self.chain(0)?));
        }
        Ok(if rest.is_empty() { first } else { Term::Compared(Box::new(first), rest) })
    }

    /// Operators from the weakest level to the strongest.
    fn chain(&mut self, level: usize) -> Result<Term, String> {
        const LEVELS: [&[&str]; 6] =
            [&["|"], &["^"], &["&"], &["<<", ">>"], &["+", "-"], &["*", "//", "/", "%"]];
        let Some(operators) = LEVELS.get(level) else { return self.sign() };
        let first = self.chain(level + 1)?;
        let mut rest = Vec::new();
        while let Some(operator) = self.take_operator(operators) {
            rest.push((operator, self.chain(level + 1)?));
        }
        Ok(if rest.is_empty() { first } else { Term::Chain(Box::new(first), rest) })
    }

    fn sign(&mut self) -> Result<Term, String> {
        self.go_deeper()?;
        let term = match self.take_operator(&["-", "+", "~"]) {
            Some("-") => Term::Negative(Box::new(self.sign()?)),
            Some("+") => Term::Positive(Box::new(self.sign()?)),
            Some(_) => Term::Inverted(Box::new(self.sign()?)),
            None => {
                let base = self.indexed()?;
                if self.take_operator(&["**"]).is_some() {
                    Term::Chain(Box::new(base), vec![("**", self.sign()?)])
                } else {
                    base
                }
            }
        };
        self.depth -= 1;
        Ok(term)
    }

    fn indexed(&mut self) -> Result<Term, String> {
        let mut term = self.atom()?;
        while self.take("[") {
            let index = self.choice()?;
            self.expect("]")?;
            term = Term::At(Box::new(term), Box::new(index));
        }
        Ok(term)
    }

    fn atom(&mut self) -> Result<Term, String> {
        if self.take("(") {
            let term = self.choice()?;
            self.expect(")")?;
            return Ok(term);
        }
        let first = self.rest.chars().next().ok_or("something is missing at the end")?;
        if first.is_ascii_digit() || first == '.' {
            return self.number();
        }
        let name = self.word();
        if name.is_empty() {
            return Err(format!("\"{first}\" is not understood there"));
        }
        let name = name.to_owned();
        self.rest = &self.rest[name.len()..];
        match name.as_str() {
            "True" => return Ok(Term::Number(Number::Bool(true))),
            "False" => return Ok(Term::Number(Number::Bool(false))),
            _ => {}
        }
        if !self.take("(") {
            return Ok(Term::Name(name));
        }
        let mut terms = Vec::new();
        while !self.take(")") {
            terms.push(self.choice()?);
            if !self.take(",") {
                self.expect(")")?;
                break;
            }
        }
        Ok(Term::Call(name, terms))
    }

    fn number(&mut self) -> Result<Term, String> {
        let bytes = self.rest.as_bytes();
        let digits =
            |from: usize| from + bytes[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut end = digits(0);
        let mut is_whole = true;
        if bytes.get(end) == Some(&b'.') {
            is_whole = false;
            end = digits(end + 1);
        }
        if matches!(bytes.get(end), Some(b'e' | b'E')) {
            let signed = end + 1 + usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
            if digits(signed) > signed {
                is_whole = false;
                end = digits(signed);
            }
        }
        let (text, rest) = self.rest.split_at(end);
        self.rest = rest;
        let bad = || format!("\"{text}\" is no number, or too large");
        Ok(Term::Number(if is_whole {
            Number::Int(text.parse().map_err(|_| bad())?)
        } else {
            Number::Float(text.parse().map_err(|_| bad())?)
        }))
    }

    /// The name that comes next, if one does.
    fn word(&self) -> &str {
        let end = self.rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
        &self.rest[..end.unwrap_or(self.rest.len())]
    }

    fn take_word(&mut self, word: &str) -> bool {
        self.skip_space();
        let is_next = self.word() == word;
        if is_next {
            self.rest = &self.rest[word.len()..];
            self.skip_space();
        }
        is_next
    }

    /// One of the operators, if it is next and not the start of a longer one.
    fn take_operator(&mut self, operators: &[&'static str]) -> Option<&'static str> {
        self.skip_space();
        let found = operators.iter().find(|operator| self.rest.starts_with(**operator))?;
        let after = &self.rest[found.len()..];
        if *found == "*" && after.starts_with('*') || matches!(*found, "<" | ">") && after.starts_with(*found)
        {
            return None;
        }
        self.rest = after;
        self.skip_space();
        Some(found)
    }

    fn take(&mut self, text: &str) -> bool {
        self.skip_space();
        let Some(rest) = self.rest.strip_prefix(text) else { return false };
        self.rest = rest;
        self.skip_space();
        true
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        if self.take(text) { Ok(()) } else { Err(format!("a \"{text}\" is missing")) }
    }

    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }
}

fn single(mut terms: Vec<Term>, many: impl Fn(Vec<Term>) -> Term) -> Term {
    if terms.len() == 1 { terms.remove(0) } else { many(terms) }
}
