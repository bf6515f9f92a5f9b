//! Addresses of files: on the hub (`hf:owner/repository/path/file`, or its pages' addresses), or anywhere on the web.

use std::fmt;
use std::str::FromStr;

use crate::{ENDPOINT, Error};

/// Where a file is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// In a repository of the hub.
    Hub {
        /// `owner/name`.
        repository: String,
        /// The branch, tag or commit.
        revision: String,
        /// The file's path in it.
        path: String,
    },
    /// Anywhere else.
    Web(String),
}

impl Address {
    /// The name of the file that it leads to; nothing if the address does not say it.
    #[must_use]
    pub fn file_name(&self) -> Option<&str> {
        let path = match self {
            Address::Hub { path, .. } => path.as_str(),
            Address::Web(url) => {
                let without_query = url.split(['?', '#']).next().unwrap_or_default();
                without_query.split_once("://").and_then(|(_, rest)| rest.split_once('/'))?.1
            }
        };
        path.rsplit('/').next().filter(|name| name.contains('.') && !name.starts_with('.'))
    }

    /// What is asked for.
    pub(crate) fn url(&self, endpoint: &str) -> String {
        match self {
            Address::Hub { repository, revision, path } => {
                format!("{endpoint}/{repository}/resolve/{revision}/{path}")
            }
            Address::Web(url) => url.clone(),
        }
    }

    /// Whether it is on the hub, which may see the token.
    pub(crate) fn is_on_hub(&self) -> bool {
        matches!(self, Address::Hub { .. })
    }

    fn on_hub(repository: &[&str], revision: &str, path: &[&str]) -> Option<Address> {
        let is_plain = |part: &&str| !part.is_empty() && *part != "." && *part != "..";
        let all_plain = repository.iter().chain(path).all(is_plain) && !revision.is_empty();
        (repository.len() == 2 && !path.is_empty() && all_plain).then(|| Address::Hub {
            repository: repository.join("/"),
            revision: revision.to_owned(),
            path: path.join("/"),
        })
    }
}

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Address, Error> {
        let wrong = || Error::Address { text: text.to_owned() };
        if let Some(short) = text.strip_prefix("hf:") {
            let (place, revision) = short.split_once('@').unwrap_or((short, "main"));
            let parts: Vec<&str> = place.trim_matches('/').split('/').collect();
            let (repository, path) = parts.split_at_checked(2).ok_or_else(wrong)?;
            return Address::on_hub(repository, revision, path).ok_or_else(wrong);
        }
        if let Some(page) = text.strip_prefix(ENDPOINT).and_then(|rest| rest.strip_prefix('/')) {
            let without_query = page.split(['?', '#']).next().unwrap_or_default();
            let parts: Vec<&str> = without_query.split('/').collect();
            if let [owner, name, "resolve" | "blob", revision, path @ ..] = parts.as_slice() {
                return Address::on_hub(&[owner, name], revision, path).ok_or_else(wrong);
            }
            return Err(wrong());
        }
        let is_web = text.starts_with("https://") || text.starts_with("http://");
        if is_web { Ok(Address::Web(text.to_owned())) } else { Err(wrong()) }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Hub { repository, revision, path } if revision == "main" => {
                write!(f, "hf:{repository}/{path}")
            }
            Address::Hub { repository, revision, path } => write!(f, "hf:{repository}/{path}@{revision}"),
            Address::Web(url) => f.write_str(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_the_hub_are_one_however_they_are_written() {
        let want = "hf:Comfy-Org/z_image/split_files/vae/ae.safetensors";
        for text in [
            want,
            "https://huggingface.co/Comfy-Org/z_image/resolve/main/split_files/vae/ae.safetensors?download=true",
            "https://huggingface.co/Comfy-Org/z_image/blob/main/split_files/vae/ae.safetensors",
        ] {
            let address: Address = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.file_name()), (want, Some("ae.safetensors")));
        }
        let tagged: Address = "hf:a/b/c.gguf@v2".parse().unwrap();
        assert_eq!(tagged.url("http://hub"), "http://hub/a/b/resolve/v2/c.gguf");
        let web: Address = "https://civitai.com/api/download/models/1?fp=fp16".parse().unwrap();
        assert!(web.file_name().is_none() && !web.is_on_hub());
    }

    #[test]
    fn what_leads_to_no_file_is_refused() {
        for text in [
            "hf:a/b",
            "hf:a/b/../c",
            "hf:a//b/c",
            "ftp://x/y",
            "x",
            "https://huggingface.co/a/b",
            "hf:a/b/c@",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
