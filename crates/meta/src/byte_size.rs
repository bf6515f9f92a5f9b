//! Byte sizes as people write them: powers of 1024, any case, `8gb`, `512 MB`, `1.5g`.

use std::fmt;
use std::str::FromStr;

/// A number of bytes that prints and reads in human units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

/// Units, largest first, with the letters that name them.
const UNITS: [(u64, &str, &str); 4] =
    [(1 << 40, "TB", "t"), (1 << 30, "GB", "g"), (1 << 20, "MB", "m"), (1 << 10, "KB", "k")];

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (size, name, _) in UNITS {
            if self.0 >= size {
                return f.pad(&format!("{:.2} {name}", self.0 as f64 / size as f64));
            }
        }
        f.pad(&format!("{} B", self.0))
    }
}

/// Text that is no byte size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not a size: write a number and a unit, such as 8gb, 512mb or 65536b")]
pub struct ParseByteSizeError {
    /// What was written.
    pub text: String,
}

impl FromStr for ByteSize {
    type Err = ParseByteSizeError;

    fn from_str(text: &str) -> Result<ByteSize, ParseByteSizeError> {
        let error = || ParseByteSizeError { text: text.to_owned() };
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit = unit.trim().to_ascii_lowercase();
        let size = match unit.strip_suffix('b').unwrap_or(&unit) {
            "" => 1,
            letter => UNITS.iter().find(|(_, _, l)| *l == letter).ok_or_else(error)?.0,
        };
        let bytes = number * size as f64;
        if bytes.is_finite() && bytes < u64::MAX as f64 {
            Ok(ByteSize(bytes.round() as u64))
        } else {
            Err(error())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_units_of_1024() {
        for (text, bytes) in [
            ("8gb", 8u64 << 30),
            ("1.5G", 3 << 29),
            (" 512 MB ", 512 << 20),
            ("64k", 65536),
            ("7b", 7),
            ("12", 12),
            ("2tb", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "gb", "1..2gb", "-1gb", "5 parsecs", "1e400", "99999999999999tb"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn prints_two_decimals() {
        assert_eq!(ByteSize(24_576_000_000).to_string(), "22.89 GB");
        assert_eq!(ByteSize(17).to_string(), "17 B");
    }
}
