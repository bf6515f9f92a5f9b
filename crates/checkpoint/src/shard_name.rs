//! The names by which the parts of a checkpoint find each other: `model-00001-of-00003.safetensors`.

/// A file name that numbers its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardName<'a> {
    /// What stands before the numbers.
    pub(crate) prefix: &'a str,
    /// Which part it is, counted from 1.
    pub(crate) number: u64,
    /// Parts in all.
    pub(crate) count: u64,
    /// `gguf` or `safetensors`.
    pub(crate) extension: &'a str,
}

/// Digits of each number in a part's name.
const DIGITS: usize = 5;

impl<'a> ShardName<'a> {
    /// Takes a file name apart, if it numbers its part.
    pub(crate) fn parse(file_name: &'a str) -> Option<ShardName<'a>> {
        let (stem, extension) = file_name.rsplit_once('.')?;
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let (number, count) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then_some(ShardName { prefix, number, count, extension })
    }

    /// The file name of another part.
    pub(crate) fn part(&self, number: u64) -> String {
        format!("{}-{number:0DIGITS$}-of-{:0DIGITS$}.{}", self.prefix, self.count, self.extension)
    }
}

fn digits(text: &str) -> Option<u64> {
    let all_digits = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
    if all_digits { text.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_names_apart_and_builds_others() {
        let name = ShardName::parse("a-b-of-c-00002-of-00010.gguf").unwrap();
        assert_eq!((name.prefix, name.number, name.count, name.extension), ("a-b-of-c", 2, 10, "gguf"));
        assert_eq!(name.part(1), "a-b-of-c-00001-of-00010.gguf");
        for other in [
            "model.gguf",
            "a-00000-of-00002.gguf",
            "a-00003-of-00002.gguf",
            "a-1-of-2.gguf",
            "a-+0001-of-00002.x",
        ] {
            assert_eq!(ShardName::parse(other), None, "{other}");
        }
    }
}
