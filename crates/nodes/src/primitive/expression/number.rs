//! Python's numbers and what can be done with them.

use std::cmp::Ordering;

/// The largest power that is raised to.
const MAX_EXPONENT: f64 = 4000.0;

/// A number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
    Bool(bool),
}

/// What a part of an expression comes to: a number, or all that are linked.
pub(super) enum Operand {
    Number(Number),
    List(Vec<Number>),
}

impl Operand {
    /// The number.
    pub(super) fn number(self) -> Result<Number, String> {
        match self {
            Operand::Number(number) => Ok(number),
            Operand::List(_) => Err("a list stands where a number is needed".to_owned()),
        }
    }

    /// One of the list; below 0 from the end.
    pub(super) fn at(self, index: Number) -> Result<Number, String> {
        let Operand::List(list) = self else { return Err("only values can be taken from".to_owned()) };
        let index = index.whole()?;
        let place = if index < 0 { index + list.len() as i128 } else { index };
        let found = usize::try_from(place).ok().and_then(|place| list.get(place));
        found.copied().ok_or_else(|| format!("there are {} values, none has the number {index}", list.len()))
    }
}

impl Number {
    /// As a float.
    pub(super) fn float(self) -> f64 {
        match self {
            Number::Int(value) => value as f64,
            Number::Float(value) => value,
            Number::Bool(flag) => f64::from(u8::from(flag)),
        }
    }

    /// Whether it is other than zero.
    pub(super) fn is_true(self) -> bool {
        self.float() != 0.0
    }

    /// The whole number, if it is one.
    pub(super) fn whole(self) -> Result<i128, String> {
        self.int().ok_or_else(|| format!("{} is no whole number", self.float()))
    }

    /// Zero keeps the sign that a minus before it gives, as a float.
    pub(super) fn with_sign_of_zero(self, negated: Number) -> Number {
        match (self, negated) {
            (Number::Float(_), Number::Float(value)) => Number::Float(-value),
            _ => self,
        }
    }

    fn int(self) -> Option<i128> {
        match self {
            Number::Int(value) => Some(value),
            Number::Bool(flag) => Some(flag.into()),
            Number::Float(_) => None,
        }
    }

    fn from_float(value: f64) -> Result<Number, String> {
        // Beyond this, a float has no digits after the point and may not fit.
        if value.is_finite() && value.abs() < 1e38 {
            return Ok(Number::Int(value as i128));
        }
        Err(format!("{value} is too large for a whole number"))
    }
}

/// Whether a comparison holds.
pub(super) fn compared(operator: &str, left: Number, right: Number) -> bool {
    let order = match (left.int(), right.int()) {
        (Some(left), Some(right)) => Some(left.cmp(&right)),
        _ => left.float().partial_cmp(&right.float()),
    };
    match operator {
        "==" => order == Some(Ordering::Equal),
        "!=" => order != Some(Ordering::Equal),
        "<" => order == Some(Ordering::Less),
        ">" => order == Some(Ordering::Greater),
        "<=" => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        _ => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    }
}

/// An operator between two numbers.
pub(super) fn computed(operator: &str, left: Number, right: Number) -> Result<Number, String> {
    if matches!(operator, "/" | "//" | "%") && !right.is_true() {
        return Err("it divides by zero".to_owned());
    }
    match operator {
        "/" => return Ok(Number::Float(left.float() / right.float())),
        "**" => return power(left, right),
        _ => {}
    }
    if let (Some(a), Some(b)) = (left.int(), right.int()) {
        return whole(operator, a, b).map(Number::Int).ok_or_else(|| "a number becomes too large".to_owned());
    }
    let (a, b) = (left.float(), right.float());
    Ok(Number::Float(match operator {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "//" => (a / b).floor(),
        "%" => {
            let rest = a % b;
            if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }
        }
        _ => return Err(format!("{operator} needs whole numbers")),
    }))
}

/// Whole numbers; nothing if the result is too large.
fn whole(operator: &str, a: i128, b: i128) -> Option<i128> {
    let quotient = || {
        let quotient = a.checked_div(b)?;
        // Python rounds down, also below zero.
        Some(if a % b != 0 && (a < 0) != (b < 0) { quotient - 1 } else { quotient })
    };
    match operator {
        "+" => a.checked_add(b),
        "-" => a.checked_sub(b),
        "*" => a.checked_mul(b),
        "//" => quotient(),
        "%" => a.checked_sub(quotient()?.checked_mul(b)?),
        "&" => Some(a & b),
        "|" => Some(a | b),
        "^" => Some(a ^ b),
        "<<" => {
            let factor = 2i128.checked_pow(u32::try_from(b).ok()?)?;
            a.checked_mul(factor)
        }
        _ => Some(a >> u32::try_from(b).ok()?.min(127)),
    }
}

fn power(base: Number, exponent: Number) -> Result<Number, String> {
    if exponent.float().abs() > MAX_EXPONENT {
        return Err(format!("the power is too large; at most {MAX_EXPONENT} is possible"));
    }
    if let (Some(a), Some(b)) = (base.int(), exponent.int())
        && let Ok(b) = u32::try_from(b)
    {
        return a.checked_pow(b).map(Number::Int).ok_or_else(|| "a number becomes too large".to_owned());
    }
    if !base.is_true() && exponent.float() < 0.0 {
        return Err("zero to a negative power divides by zero".to_owned());
    }
    let value = base.float().powf(exponent.float());
    if value.is_nan() {
        Err("a negative number has no such power".to_owned())
    } else {
        Ok(Number::Float(value))
    }
}

/// A function of some numbers, or of all that are linked.
pub(super) fn called(name: &str, operands: Vec<Operand>) -> Result<Number, String> {
    let numbers: Vec<Number> = operands
        .into_iter()
        .flat_map(|operand| match operand {
            Operand::Number(number) => vec![number],
            Operand::List(list) => list,
        })
        .collect();
    let picked = |wanted: &str| {
        let better =
            |best: Number, other: &Number| if compared(wanted, *other, best) { *other } else { best };
        numbers.split_first().map(|(first, rest)| rest.iter().fold(*first, better))
    };
    match (name, numbers.as_slice()) {
        ("sum", numbers) => {
            numbers.iter().try_fold(Number::Int(0), |sum, number| computed("+", sum, *number))
        }
        ("min", [_, ..]) => picked("<").ok_or_else(String::new),
        ("max", [_, ..]) => picked(">").ok_or_else(String::new),
        ("pow", [base, exponent]) => power(*base, *exponent),
        ("round", [number, digits]) => {
            let factor = 10f64.powi(i32::try_from(digits.whole()?.clamp(-300, 300)).unwrap_or(0));
            Ok(Number::Float((number.float() * factor).round_ties_even() / factor))
        }
        ("log", [number, base]) => logarithm(number.float(), base.float()),
        (name, [number]) => called_with_one(name, *number),
        (name, numbers) => Err(format!("there is no function \"{name}\" of {} numbers", numbers.len())),
    }
}

fn called_with_one(name: &str, number: Number) -> Result<Number, String> {
    let value = number.float();
    let checked = |result: f64| {
        if result.is_nan() {
            Err(format!("{name} has no value for {value}"))
        } else {
            Ok(Number::Float(result))
        }
    };
    let whole =
        |rounded: f64| number.int().map_or_else(|| Number::from_float(rounded), |int| Ok(Number::Int(int)));
    match name {
        "abs" if number.int().is_some() => {
            Ok(Number::Int(number.whole()?.checked_abs().ok_or("a number is too large")?))
        }
        "abs" => Ok(Number::Float(value.abs())),
        "round" => whole(value.round_ties_even()),
        "ceil" => whole(value.ceil()),
        "floor" => whole(value.floor()),
        "int" => whole(value.trunc()),
        "float" => Ok(Number::Float(value)),
        "sqrt" => checked(value.sqrt()),
        "log" => logarithm(value, std::f64::consts::E),
        "log2" => logarithm(value, 2.0),
        "log10" => logarithm(value, 10.0),
        "sin" => checked(value.sin()),
        "cos" => checked(value.cos()),
        "tan" => checked(value.tan()),
        name => Err(format!("there is no function \"{name}\" of one number")),
    }
}

fn logarithm(value: f64, base: f64) -> Result<Number, String> {
    if value <= 0.0 || base <= 0.0 || base == 1.0 {
        return Err(format!("there is no logarithm of {value} to the base {base}"));
    }
    Ok(Number::Float(match base {
        2.0 => value.log2(),
        10.0 => value.log10(),
        std::f64::consts::E => value.ln(),
        base => value.ln() / base.ln(),
    }))
}
