//! Reads tokens into an [`Allocation`]. The grammar is in the module above.

use meta::DeviceId;

use super::error::{AllocationError, AllocationProblem as Problem, Mode, Span, quotable};
use super::lexer::{Kind, Token, tokens};
use super::{AllocationText, MAX_TEXT_BYTES, Marks};
use crate::allocation::{Allocation, Amount, Amounts, Entry, Order};
use crate::request::RemotePolicy;

/// Numbers of bytes up to here are exact in the `f64` that text is read into.
const MAX_BYTES: f64 = (1u64 << 53) as f64;

type Fault = (Span, Problem);

/// Reads a whole text.
pub(super) fn parse(text: &str, available: Option<&[DeviceId]>) -> Result<AllocationText, AllocationError> {
    let error = |(span, problem)| AllocationError { text: text.to_owned(), span, problem };
    if text.len() > MAX_TEXT_BYTES {
        let start = (0..=MAX_TEXT_BYTES).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0);
        let problem = Problem::TooLong { bytes: text.len() };
        return Err(error((Span::new(start, text.len()), problem)));
    }
    let mut available = available.map(<[DeviceId]>::to_vec).unwrap_or_default();
    available.sort_unstable();
    let tokens = tokens(text);
    let mut parser = Parser { text, tokens: &tokens, at: 0, available };
    let (allocation, marks) = parser.text().map_err(error)?;
    Ok(AllocationText { text: text.to_owned(), allocation, marks })
}

struct Parser<'a> {
    text: &'a str,
    tokens: &'a [Token],
    at: usize,
    /// The machine's devices, sorted; empty when they are not known.
    available: Vec<DeviceId>,
}

/// The entries before the `#`, while they are read.
#[derive(Default)]
struct Items {
    auto: Option<Span>,
    order: Option<Order>,
    remote: Option<RemotePolicy>,
    mode: Option<Mode>,
    entries: Vec<Entry<f64>>,
    marks: Vec<(Span, Span)>,
}

/// What follows the `#`.
#[derive(Default)]
struct Normal {
    compute: Option<(DeviceId, Span)>,
    virtual_vram: Option<(f64, Span)>,
    donors: Vec<(DeviceId, Span)>,
}

impl Parser<'_> {
    fn text(&mut self) -> Result<(Allocation, Marks), Fault> {
        let items = match self.peek() {
            None | Some(Kind::Hash) => Items::default(),
            Some(_) => self.items()?,
        };
        let normal = match self.next_if(Kind::Hash) {
            Some(_) => self.normal()?,
            None => Normal::default(),
        };
        self.expect_end()?;
        let compute = normal.compute.map(|(device, _)| device);
        let mut marks = Marks { compute: normal.compute.map(|(_, span)| span), entries: items.marks };
        let amounts = match (items.entries.is_empty(), normal.virtual_vram) {
            (false, _) => amounts(items.mode.unwrap_or(Mode::Bytes), &items.entries),
            (true, Some((gigabytes, span))) => {
                if let Some(auto) = items.auto {
                    return Err((auto, Problem::AutoWithEntries));
                }
                marks.entries = normal.donors.iter().map(|(_, donor)| (*donor, span)).collect();
                Amounts::Normal {
                    virtual_vram_bytes: gigabytes.round() as u64,
                    donors: normal.donors.into_iter().map(|(device, _)| device).collect(),
                }
            }
            (true, None) => Amounts::Automatic,
        };
        Ok((Allocation { amounts, order: items.order, remote: items.remote, compute }, marks))
    }

    fn items(&mut self) -> Result<Items, Fault> {
        let mut items = Items::default();
        loop {
            self.item(&mut items)?;
            if self.next_if(Kind::Semicolon).is_none() {
                break;
            }
        }
        if let (Some(auto), false) = (items.auto, items.entries.is_empty()) {
            return Err((auto, Problem::AutoWithEntries));
        }
        let no_remainder = items.entries.iter().all(|entry| !entry.amount.takes_remainder());
        let all_zero = items.entries.iter().all(|entry| entry.amount.number() == Some(0.0));
        if let (Some(Mode::Percent), true, true) = (items.mode, no_remainder, all_zero) {
            return Err((items.marks[0].1, Problem::NothingShared));
        }
        Ok(items)
    }

    fn item(&mut self, items: &mut Items) -> Result<(), Fault> {
        match self.peek() {
            None | Some(Kind::Semicolon | Kind::Hash) => {
                return Err((self.empty_place(), Problem::EmptyEntry));
            }
            Some(Kind::Word) => {}
            Some(_) => return Err(self.unexpected(Problem::MissingDevice)),
        }
        if self.peek_second() == Some(Kind::Equals) {
            return self.option(items);
        }
        let is_auto = self.peek_second() != Some(Kind::Comma)
            && self.tokens.get(self.at).is_some_and(|t| self.slice(t.span).eq_ignore_ascii_case("auto"));
        if is_auto {
            items.auto = self.next().map(|token| token.span);
            return self.expect_item_end();
        }
        self.entry(items)
    }

    fn option(&mut self, items: &mut Items) -> Result<(), Fault> {
        let start = self.at;
        let name = self.advance();
        self.at += 1;
        let value = self.next_if(Kind::Word).map_or(self.place(), |token| token.span);
        let whole = self.tokens[start].span.to(value);
        let lower = |span: Span| self.slice(span).to_ascii_lowercase();
        let repeated = match (lower(name).as_str(), lower(value).as_str()) {
            ("order", "interleaved") => items.order.replace(Order::Interleaved).is_some(),
            ("order", "contiguous") => items.order.replace(Order::Contiguous).is_some(),
            ("remote", "stream") => items.remote.replace(RemotePolicy::Stream).is_some(),
            ("remote", "inplace") => items.remote.replace(RemotePolicy::InPlace).is_some(),
            ("remote", "auto") => items.remote.replace(RemotePolicy::Auto).is_some(),
            _ => return Err((whole, Problem::UnknownOption { found: quotable(self.slice(whole)) })),
        };
        if repeated {
            return Err((whole, Problem::RepeatedOption));
        }
        self.expect_item_end()
    }

    fn entry(&mut self, items: &mut Items) -> Result<(), Fault> {
        let (device, device_span) = self.device()?;
        if items.entries.iter().any(|entry| entry.device == device) {
            return Err((device_span, Problem::RepeatedDevice { device }));
        }
        if self.next_if(Kind::Comma).is_none() {
            return Err(match self.peek() {
                None | Some(Kind::Semicolon | Kind::Hash) => (device_span, Problem::MissingAmount { device }),
                Some(_) => self.trailing(),
            });
        }
        if matches!(self.peek(), None | Some(Kind::Semicolon | Kind::Hash)) {
            return Err((device_span, Problem::MissingAmount { device }));
        }
        let (amount, mode, span) = self.amount()?;
        self.expect_item_end()?;
        match (items.mode, mode) {
            (Some(first), Some(found)) if first != found => {
                return Err((span, Problem::MixedModes { first, found }));
            }
            (None, Some(_)) => items.mode = mode,
            _ => {}
        }
        if amount.takes_remainder() && items.entries.iter().any(|entry| entry.amount.takes_remainder()) {
            return Err((span, Problem::TwoRemainders));
        }
        items.entries.push(Entry { device, amount });
        items.marks.push((device_span, span));
        Ok(())
    }

    fn device(&mut self) -> Result<(DeviceId, Span), Fault> {
        let Some(word) = self.next_if(Kind::Word) else {
            return Err(self.unexpected(Problem::MissingDevice));
        };
        let mut span = word.span;
        let mut name = self.slice(word.span).to_owned();
        if let Some(colon) = self.next_if(Kind::Colon) {
            let ordinal = self.next_if(Kind::Number).map_or(colon.span, |token| token.span);
            let digits = if ordinal == colon.span { "" } else { self.slice(ordinal) };
            name = format!("{name}:{digits}");
            span = span.to(ordinal);
        }
        let available = || self.available.clone();
        let Ok(device) = name.parse::<DeviceId>() else {
            return Err((span, Problem::NotADevice { name: quotable(&name), available: available() }));
        };
        if !self.available.is_empty() && !self.available.contains(&device) {
            return Err((span, Problem::UnknownDevice { device, available: available() }));
        }
        Ok((device, span))
    }

    /// An amount, its mode (`*` alone has none) and its place.
    fn amount(&mut self) -> Result<(Amount<f64>, Option<Mode>, Span), Fault> {
        if let Some(star) = self.next_if(Kind::Star) {
            return Ok((Amount::Remainder, None, star.span));
        }
        let (number, start) = self.number()?;
        let (value, mode, mut span) = match self.peek() {
            Some(Kind::Percent) => {
                let span = start.to(self.advance());
                if number > 100.0 {
                    return Err((span, Problem::PercentTooLarge));
                }
                (number, Mode::Percent, span)
            }
            Some(Kind::Word) => {
                let unit = self.advance();
                let span = start.to(unit);
                let Some(size) = unit_size(self.slice(unit)) else {
                    return Err((unit, Problem::UnknownUnit { found: quotable(self.slice(unit)) }));
                };
                (whole_bytes(number * size, span)?, Mode::Bytes, span)
            }
            _ if number > 1.0 => return Err((start, Problem::FractionTooLarge)),
            _ => (number, Mode::Fraction, start),
        };
        let Some(star) = self.next_if(Kind::Star) else {
            return Ok((Amount::Exactly(value), Some(mode), span));
        };
        if mode != Mode::Bytes {
            return Err((star.span, Problem::RemainderOfShare));
        }
        span = span.to(star.span);
        Ok((Amount::AtLeast(value), Some(mode), span))
    }

    fn number(&mut self) -> Result<(f64, Span), Fault> {
        let Some(token) = self.tokens.get(self.at).copied() else {
            return Err((self.place(), Problem::MissingNumber));
        };
        match token.kind {
            Kind::Number => self.at += 1,
            Kind::Minus => {
                let mut span = token.span;
                self.at += 1;
                while let Some(Kind::Number | Kind::Word | Kind::Percent) = self.peek() {
                    span = span.to(self.advance());
                }
                return Err((span, Problem::Negative));
            }
            Kind::Word if is_no_number(self.slice(token.span)) => {
                return Err((token.span, Problem::NotANumber { found: quotable(self.slice(token.span)) }));
            }
            _ => return Err(self.unexpected(Problem::MissingNumber)),
        }
        let digits = self.slice(token.span);
        match digits.parse::<f64>() {
            Ok(number) if number.is_finite() => Ok((number, token.span)),
            Ok(_) => Err((token.span, Problem::TooLarge)),
            Err(_) => Err((token.span, Problem::NotANumber { found: quotable(digits) })),
        }
    }

    fn normal(&mut self) -> Result<Normal, Fault> {
        let mut normal = Normal::default();
        match self.peek() {
            None => return Ok(normal),
            Some(Kind::Semicolon) => {}
            Some(_) => normal.compute = Some(self.device()?),
        }
        if self.next_if(Kind::Semicolon).is_none() {
            return Ok(normal);
        }
        if matches!(self.peek(), None | Some(Kind::Semicolon)) {
            return Err((self.empty_place(), Problem::MissingVirtualVram));
        }
        let (gigabytes, span) = self.number()?;
        normal.virtual_vram = Some((whole_bytes(gigabytes * (1u64 << 30) as f64, span)?, span));
        if self.next_if(Kind::Semicolon).is_none() || self.peek().is_none() {
            normal.donors = vec![(DeviceId::CPU, span)];
            return Ok(normal);
        }
        loop {
            let (device, span) = self.device()?;
            if normal.donors.iter().any(|(other, _)| *other == device) {
                return Err((span, Problem::RepeatedDevice { device }));
            }
            normal.donors.push((device, span));
            if self.next_if(Kind::Comma).is_none() {
                break;
            }
        }
        Ok(normal)
    }

    fn expect_item_end(&self) -> Result<(), Fault> {
        match self.peek() {
            None | Some(Kind::Semicolon | Kind::Hash) => Ok(()),
            Some(_) => Err(self.trailing()),
        }
    }

    fn expect_end(&self) -> Result<(), Fault> {
        if self.peek().is_some() { Err(self.trailing()) } else { Ok(()) }
    }

    /// Everything up to the end of this entry is too much.
    fn trailing(&self) -> Fault {
        let rest = &self.tokens[self.at..];
        let ends = |token: &&Token| !matches!(token.kind, Kind::Semicolon | Kind::Hash);
        let first = rest.first().map_or(self.place(), |token| token.span);
        let last = rest.iter().take_while(ends).last().map_or(first, |token| token.span);
        let span = first.to(last);
        (span, Problem::Trailing { found: quotable(self.slice(span)) })
    }

    /// The next token cannot stand here: say so if it can stand nowhere, else what is missing.
    fn unexpected(&self, missing: Problem) -> Fault {
        let Some(token) = self.tokens.get(self.at) else {
            return (self.place(), missing);
        };
        match (token.kind, self.slice(token.span).chars().next()) {
            (Kind::Other, Some(found)) => (token.span, Problem::UnexpectedCharacter { found }),
            _ => (token.span, missing),
        }
    }

    /// The `;` that surrounds an empty entry: the next one, or else the one before.
    fn empty_place(&self) -> Span {
        match self.tokens.get(self.at) {
            Some(token) if token.kind == Kind::Semicolon => token.span,
            _ if self.at > 0 => self.tokens[self.at - 1].span,
            _ => self.place(),
        }
    }

    /// The place of the next token, or the end of the text.
    fn place(&self) -> Span {
        let end = self.text.len();
        self.tokens.get(self.at).map_or(Span::new(end, end), |token| token.span)
    }

    fn slice(&self, span: Span) -> &str {
        &self.text[span.start..span.end]
    }

    fn peek(&self) -> Option<Kind> {
        self.tokens.get(self.at).map(|token| token.kind)
    }

    fn peek_second(&self) -> Option<Kind> {
        self.tokens.get(self.at + 1).map(|token| token.kind)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).copied();
        self.at += usize::from(token.is_some());
        token
    }

    fn next_if(&mut self, kind: Kind) -> Option<Token> {
        if self.peek() == Some(kind) { self.next() } else { None }
    }

    /// Steps over the next token and returns its place.
    fn advance(&mut self) -> Span {
        let place = self.place();
        self.at += 1;
        place
    }
}

fn unit_size(unit: &str) -> Option<f64> {
    match unit.to_ascii_lowercase().as_str() {
        "b" => Some(1.0),
        "k" | "kb" => Some(1024.0),
        "m" | "mb" => Some((1u64 << 20) as f64),
        "g" | "gb" => Some((1u64 << 30) as f64),
        _ => None,
    }
}

fn whole_bytes(bytes: f64, span: Span) -> Result<f64, Fault> {
    if bytes <= MAX_BYTES { Ok(bytes.round()) } else { Err((span, Problem::TooLarge)) }
}

fn is_no_number(word: &str) -> bool {
    ["nan", "inf", "infinity"].iter().any(|name| word.eq_ignore_ascii_case(name))
}

fn amounts(mode: Mode, entries: &[Entry<f64>]) -> Amounts {
    match mode {
        Mode::Percent => Amounts::Percent(entries.to_vec()),
        Mode::Fraction => Amounts::Fraction(entries.to_vec()),
        Mode::Bytes => Amounts::Bytes(entries.iter().map(bytes_entry).collect()),
    }
}

/// Numbers of bytes are whole and at most [`MAX_BYTES`] when they get here.
fn bytes_entry(entry: &Entry<f64>) -> Entry<u64> {
    let amount = match entry.amount {
        Amount::Exactly(n) => Amount::Exactly(n as u64),
        Amount::AtLeast(n) => Amount::AtLeast(n as u64),
        Amount::Remainder => Amount::Remainder,
    };
    Entry { device: entry.device, amount }
}
