//! SHA-256 sums of the checkpoints that manifests describe.

use std::fs;
use std::io::Write;

use sha2::{Digest, Sha256};

use crate::{Error, data_path};

/// The sums of a `SHA256SUMS` file.
#[derive(Clone, Debug)]
pub struct Sums {
    entries: Vec<(String, String)>,
}

impl Sums {
    /// Reads lines of the form `<64 hex digits>  <path>`.
    pub fn parse(text: &str) -> Result<Sums, Error> {
        let entry = |(i, line): (usize, &str)| {
            let (sum, file) = line.split_once("  ").ok_or(Error::SumsLine { line: i + 1 })?;
            let is_sum = sum.len() == 64 && sum.bytes().all(|b| b.is_ascii_hexdigit());
            if is_sum {
                Ok((file.to_owned(), sum.to_ascii_lowercase()))
            } else {
                Err(Error::SumsLine { line: i + 1 })
            }
        };
        Ok(Sums { entries: text.lines().enumerate().map(entry).collect::<Result<_, _>>()? })
    }

    /// The sums of the manifests that come with this crate.
    pub fn bundled() -> Result<Sums, Error> {
        let path = data_path("manifests/SHA256SUMS");
        let text = fs::read_to_string(&path).map_err(|source| Error::Io { action: "read", path, source })?;
        Sums::parse(&text)
    }

    /// The sum of a file, in lower-case hex.
    pub fn get(&self, file: &str) -> Option<&str> {
        self.entries.iter().find(|(name, _)| name == file).map(|(_, sum)| sum.as_str())
    }

    /// The files that have sums, in the order of the list.
    pub fn files(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|(file, _)| file.as_str())
    }
}

/// A receiver of bytes that keeps only their SHA-256.
#[derive(Clone, Default)]
pub struct Sha256Sink {
    state: Sha256,
}

impl Sha256Sink {
    /// A sink that has received nothing.
    pub fn new() -> Sha256Sink {
        Sha256Sink::default()
    }

    /// The sum of what was received, in lower-case hex.
    pub fn finish(self) -> String {
        self.state.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Write for Sha256Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.state.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_the_standard_vector() {
        let mut sink = Sha256Sink::new();
        sink.write_all(b"a").and_then(|()| sink.write_all(b"bc")).unwrap();
        let sum = sink.finish();
        assert_eq!(sum, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        let sums = Sums::parse(&format!("{}  a/b.gguf\n", sum.to_uppercase())).unwrap();
        assert_eq!(sums.get("a/b.gguf"), Some(sum.as_str()));
        assert_eq!(sums.get("b.gguf"), None);
    }

    #[test]
    fn says_which_line_is_wrong() {
        let good = format!("{:064}  x", 1);
        for bad in ["", "abc  x", &format!("{:064} x", 1), &format!("{:>064}  x", "g")] {
            let result = Sums::parse(&format!("{good}\n{bad}\n{good}"));
            assert!(matches!(result, Err(Error::SumsLine { line: 2 })), "{bad}: {result:?}");
        }
    }
}
