//! What a server says of a file before it sends it, and single requests, whose redirections are followed here: the token
//! of the hub must not go to where it sends people.

use std::io::{self, Read};

use ureq::Body;
use ureq::http::{HeaderMap, Response, Uri};

use crate::patience::Patience;
use crate::{Address, Error, Hub, Result};

/// How often a request may be sent elsewhere.
const MOST_REDIRECTIONS: usize = 10;

/// A file on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Where it is, for people.
    pub what: String,
    /// Its size, if the server says it.
    pub bytes: Option<u64>,
    /// The SHA-256 of its bytes, in hexadecimal, if the server says it.
    pub sha256: Option<String>,
    /// What changes when the file does.
    pub(crate) tag: Option<String>,
    /// Whether parts of it can be asked for.
    pub(crate) has_ranges: bool,
    /// Where its bytes are now; such addresses hold for a while.
    pub(crate) location: String,
}

/// An answer that is no redirection.
pub(crate) struct Answer {
    pub(crate) response: Response<Body>,
    /// Where it came from.
    location: String,
    /// What the redirections on the way said of the file.
    sha256: Option<String>,
}

impl Hub {
    /// What the server says of a file. Its bytes do not move.
    ///
    /// # Errors
    /// There is no such file, the server refuses, or there is no answer.
    pub fn look(&self, address: &Address) -> Result<Remote> {
        let mut patience = Patience::new();
        loop {
            match self.look_once(address) {
                Err(error) => patience.wait_after(error, || true)?,
                found => return found,
            }
        }
    }

    fn look_once(&self, address: &Address) -> Result<Remote> {
        let what = address.to_string();
        let Answer { response, location, sha256 } =
            self.request(&what, &address.url(&self.endpoint), Some((0, 0)), address.is_on_hub())?;
        let headers = response.headers();
        let (has_ranges, bytes) = match response.status().as_u16() {
            206 => (
                true,
                text(headers, "content-range").and_then(|range| range.rsplit('/').next()?.parse().ok()),
            ),
            200 => (false, text(headers, "content-length").and_then(|length| length.parse().ok())),
            // An empty file has no first byte.
            416 => (false, Some(0)),
            _ => return Err(Error::of_answer(&what, &response)),
        };
        let tag = text(headers, "etag").map(str::to_owned);
        let sha256 = sha256.or_else(|| tag.as_deref().and_then(sum_of));
        Ok(Remote { what, bytes, sha256, tag, has_ranges: has_ranges && bytes.is_some(), location })
    }

    /// The first bytes of a file, as many as are asked for.
    ///
    /// # Errors
    /// The file is shorter, the server sends no parts of files or refuses, or there is no answer.
    pub fn beginning(&self, address: &Address, remote: &Remote, bytes: u64) -> Result<Vec<u8>> {
        let mut patience = Patience::new();
        loop {
            match self.beginning_once(address, remote, bytes) {
                Err(error) => patience.wait_after(error, || true)?,
                read => return read,
            }
        }
    }

    fn beginning_once(&self, address: &Address, remote: &Remote, bytes: u64) -> Result<Vec<u8>> {
        let range = Some((0, bytes.saturating_sub(1)));
        let answer = self.request(&remote.what, &address.url(&self.endpoint), range, address.is_on_hub())?;
        if answer.response.status().as_u16() != 206 {
            return Err(Error::of_answer(&remote.what, &answer.response));
        }
        let mut read = Vec::new();
        let broken =
            |error| Error::Connection { what: remote.what.clone(), source: Box::new(ureq::Error::Io(error)) };
        answer.response.into_body().into_reader().take(bytes).read_to_end(&mut read).map_err(broken)?;
        if (read.len() as u64) < bytes {
            return Err(broken(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(read)
    }

    /// Asks for bytes of a file, from the first to the last, or for all of it.
    pub(crate) fn request(
        &self,
        what: &str,
        url: &str,
        range: Option<(u64, u64)>,
        shows_token: bool,
    ) -> Result<Answer> {
        let connection = |source| Error::Connection { what: what.to_owned(), source: Box::new(source) };
        let (mut location, mut sha256) = (url.to_owned(), None);
        for _ in 0..=MOST_REDIRECTIONS {
            let mut request = self.agent.get(&location);
            if let Some((first, last)) = range {
                request = request.header("range", format!("bytes={first}-{last}"));
            }
            let token = self.token.as_ref().filter(|_| shows_token && self.is_endpoint(&location));
            if let Some(token) = token {
                request = request.header("authorization", format!("Bearer {token}"));
            }
            let response = request.call().map_err(connection)?;
            if !response.status().is_redirection() {
                return Ok(Answer { response, location, sha256 });
            }
            sha256 = sha256.or_else(|| text(response.headers(), "x-linked-etag").and_then(sum_of));
            let next = text(response.headers(), "location").and_then(|next| joined(&location, next));
            location = next.ok_or_else(|| Error::of_answer(what, &response))?;
        }
        Err(connection(ureq::Error::TooManyRedirects))
    }

    fn is_endpoint(&self, url: &str) -> bool {
        let host = |url: &str| url.parse::<Uri>().ok().and_then(|uri| uri.authority().cloned());
        host(url).is_some() && host(url) == host(&self.endpoint)
    }
}

/// Where a redirection leads; it may leave out what stays the same.
fn joined(from: &str, to: &str) -> Option<String> {
    if to.starts_with("http://") || to.starts_with("https://") {
        return Some(to.to_owned());
    }
    let uri: Uri = from.parse().ok()?;
    to.starts_with('/').then(|| Some(format!("{}://{}{to}", uri.scheme_str()?, uri.authority()?))).flatten()
}

/// A tag that is a sum: the hub's are, for files that it keeps apart.
fn sum_of(tag: &str) -> Option<String> {
    let tag = tag.trim_start_matches("W/").trim_matches('"');
    let is_sum = tag.len() == 64 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_sum.then(|| tag.to_lowercase())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}
