//! Names of files that are filled in when a prompt is sent: `%date:yyyy-MM-dd%` and `%KSampler.seed%`.
//!
//! Editors do this, so a server never sees these marks. Others, such as `%width%`, are for the node that saves.

use std::time::{SystemTime, UNIX_EPOCH};

use graph::Literal;

/// The input that names files.
pub(crate) const NAME_INPUT: &str = "filename_prefix";

/// How much of a value goes into a name.
const MAX_CHARACTERS: usize = 200;

/// A point in time, in UTC.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    year: i64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Moment {
    /// Now.
    pub(crate) fn now() -> Moment {
        let elapsed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment::from_seconds(elapsed.as_secs())
    }

    /// The moment that many seconds after the start of 1970.
    fn from_seconds(seconds: u64) -> Moment {
        let (days, in_day) = (seconds / 86_400, seconds % 86_400);
        // Days since 1 March of year 0, in eras of 400 years: the leap day is then the last of its year.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_of_year + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        Moment {
            year: i64::try_from(year).unwrap_or(i64::MAX),
            month,
            day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
            hour: in_day / 3_600,
            minute: in_day / 60 % 60,
            second: in_day % 60,
        }
    }

    /// The moment in a format of `yyyy`, `yy`, and `M`, `d`, `h`, `m`, `s`, each once or twice.
    fn format(self, format: &str) -> String {
        let mut text = String::new();
        let mut rest = format;
        while let Some(mark) = rest.chars().next() {
            let most = if mark == 'y' { 4 } else { 2 };
            let run = rest.chars().take(most).take_while(|character| *character == mark).count();
            let part = match mark {
                'M' => self.month,
                'd' => self.day,
                'h' => self.hour,
                'm' => self.minute,
                's' => self.second,
                'y' if run == 4 || run == 2 => {
                    let year = self.year.to_string();
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
            (Some(format), _) => Some(now.format(format)),
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
    use super::*;

    #[test]
    fn moments_are_calendar_dates() {
        let format = |seconds| Moment::from_seconds(seconds).format("yyyy-MM-dd hh:mm:ss");
        assert_eq!(format(0), "1970-01-01 00:00:00");
        assert_eq!(format(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(format(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(format(4_107_542_400), "2100-03-01 00:00:00");
        assert_eq!(Moment::from_seconds(951_782_400).format("yy/M/d h é yyy"), "00/2/29 0 é yyy");
    }

    #[test]
    fn marks_are_filled_in() {
        let value = |node: &str, widget: &str| match (node, widget) {
            ("KSampler", "seed") => Some(Literal::Int(7)),
            ("KSampler", "cfg") => Some(Literal::Float(8.0)),
            ("Text", "text") => Some(Literal::from("a/b: c")),
            _ => None,
        };
        let fill = |name: &str| fill(name, Moment::from_seconds(0), value);
        assert_eq!(fill("x/%date:yyyyMMdd%_%KSampler.seed%_%KSampler.cfg%"), "x/19700101_7_8");
        assert_eq!(fill("%Text.text%"), "a_b_ c");
        assert_eq!(
            fill("%width% %KSampler.steps% %a.b.c% 100% %%"),
            "%width% %KSampler.steps% %a.b.c% 100% %%"
        );
    }
}
