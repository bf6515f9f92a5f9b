//! Names of files that are filled in when a prompt is sent: `%date:yyyy-MM-dd%` and `%KSampler.seed%`.
//!
//! Editors do this, so a server never sees these marks. Others, such as `%width%`, are for the node that saves.

use graph::Literal;
use meta::Moment;

/// The input that names files.
pub(crate) const NAME_INPUT: &str = "filename_prefix";

/// How much of a value goes into a name.
const MAX_CHARACTERS: usize = 200;

/// A moment in a format of `yyyy`, `yy`, and `M`, `d`, `h`, `m`, `s`, each once or twice.
fn formatted(moment: Moment, format: &str) -> String {
    let mut text = String::new();
    let mut rest = format;
    while let Some(mark) = rest.chars().next() {
        let most = if mark == 'y' { 4 } else { 2 };
        let run = rest.chars().take(most).take_while(|character| *character == mark).count();
        let part = match mark {
            'M' => moment.month(),
            'd' => moment.day(),
            'h' => moment.hour(),
            'm' => moment.minute(),
            's' => moment.second(),
            'y' if run == 4 || run == 2 => {
                let year = moment.year().to_string();
                text.push_str(if run == 2 { year.get(2..).unwrap_or(&year) } else { &year });
                rest = &rest[run..];
                continue;
            }
            _ => {
                let length = run * mark.len_utf8();
                text.push_str(&rest[..length]);
                rest = &rest[length..];
                continue;
            }
        };
        text.push_str(&format!("{part:0run$}"));
        rest = &rest[run..];
    }
    text
}

/// A name with its marks filled in; `value` is that of a widget of a node, by their names. What is not known
/// stays as it is.
pub(crate) fn fill(name: &str, now: Moment, value: impl Fn(&str, &str) -> Option<Literal>) -> String {
    let mut filled = String::with_capacity(name.len());
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('%') {
        filled.push_str(before);
        let Some((mark, behind)) = after.split_once('%').filter(|(mark, _)| !mark.is_empty()) else {
            filled.push('%');
            rest = after;
            continue;
        };
        let known = match (mark.strip_prefix("date:"), mark.split_once('.')) {
            (_, Some((node, widget))) if !widget.contains('.') => {
                value(node, widget).map(|value| safe(&value))
            }
            (Some(format), _) => Some(formatted(now, format)),
            _ => None,
        };
        match known {
            Some(text) => filled.push_str(&text),
            None => filled.extend(["%", mark, "%"]),
        }
        rest = behind;
    }
    filled.push_str(rest);
    filled
}

/// A value as a part of a file's name, which has no use for more than its beginning.
fn safe(value: &Literal) -> String {
    let text = match value {
        Literal::Text(text) => text.clone(),
        Literal::Int(number) => number.to_string(),
        Literal::Float(number) => number.to_string(),
        Literal::Bool(value) => value.to_string(),
        _ => String::new(),
    };
    let text: String = text.chars().take(MAX_CHARACTERS).collect();
    text.replace(|character: char| character.is_ascii_control() || "/?<>\\:*|\"".contains(character), "_")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::utc(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn moments_are_calendar_dates() {
        let format = |seconds| formatted(at(seconds), "yyyy-MM-dd hh:mm:ss");
        assert_eq!(format(0), "1970-01-01 00:00:00");
        assert_eq!(format(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(format(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(format(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(formatted(at(951_782_400), "yy/M/d h é yyy"), "00/2/29 0 é yyy");
    }

    #[test]
    fn marks_are_filled_in() {
        let value = |node: &str, widget: &str| match (node, widget) {
            ("KSampler", "seed") => Some(Literal::Int(7)),
            ("KSampler", "cfg") => Some(Literal::Float(8.0)),
            ("Text", "text") => Some(Literal::from("a/b: c")),
            _ => None,
        };
        let fill = |name: &str| fill(name, at(0), value);
        assert_eq!(fill("x/%date:yyyyMMdd%_%KSampler.seed%_%KSampler.cfg%"), "x/19700101_7_8");
        assert_eq!(fill("%Text.text%"), "a_b_ c");
        assert_eq!(
            fill("%width% %KSampler.steps% %a.b.c% 100% %%"),
            "%width% %KSampler.steps% %a.b.c% 100% %%"
        );
    }
}
