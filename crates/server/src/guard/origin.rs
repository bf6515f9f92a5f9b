//! Hosts and origins: which page a request comes from, and whether that page is ours.

use std::net::IpAddr;

use axum::http::header::ORIGIN;
use axum::http::{HeaderMap, Method};

use super::header;
use crate::config::is_loopback;

/// A host with its port, lower-cased.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct HostName {
    pub(super) name: String,
    pub(super) port: Option<u16>,
}

impl HostName {
    /// `name`, `name:80`, `[::1]:80`; nothing else.
    pub(super) fn parse(text: &str) -> Option<HostName> {
        let text = text.trim().to_ascii_lowercase();
        let (name, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (name, port) = rest.split_once(']')?;
                (name, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
            }
            None => text.split_once(':').map_or((text.as_str(), None), |(name, port)| (name, Some(port))),
        };
        let port = match port {
            None | Some("") => None,
            Some(port) => Some(port.parse().ok()?),
        };
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-._:%".contains(c);
        (!name.is_empty() && name.chars().all(is_plain)).then(|| HostName { name: name.to_owned(), port })
    }

    fn address(&self) -> Option<IpAddr> {
        self.name.parse().ok()
    }

    pub(super) fn is_address(&self) -> bool {
        self.address().is_some()
    }

    /// Whether it is this machine whoever asks: names below `localhost` never leave it.
    pub(super) fn is_loopback(&self) -> bool {
        let name = self.name.strip_suffix('.').unwrap_or(&self.name);
        name == "localhost" || name.ends_with(".localhost") || self.address().is_some_and(is_loopback)
    }
}

/// Whether a page of another site asks a server on this machine.
pub(super) fn is_foreign(host: &str, method: &Method, headers: &HeaderMap) -> bool {
    let Some(host) = HostName::parse(host) else { return true };
    if !host.is_loopback() {
        return false;
    }
    if is_cross_site(method, headers) {
        return true;
    }
    if !headers.contains_key(ORIGIN) {
        return false;
    }
    // Sandboxed frames, files and `data:` addresses say `null` or `file://`: any site can make such a page.
    let Some(origin) = header(headers, ORIGIN.as_str()).and_then(served_from) else { return true };
    let differs_in_port = matches!((host.port, origin.port), (Some(a), Some(b)) if a != b);
    host.name != origin.name || differs_in_port
}

/// The host of an origin that a server has.
fn served_from(origin: &str) -> Option<HostName> {
    let (scheme, rest) = origin.split_once("://")?;
    let is_served = scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https");
    HostName::parse(rest.split(['/', '?', '#']).next()?).filter(|_| is_served)
}

/// Whether the browser itself says that another site asks. It does so where there is no origin to compare,
/// such as for a sandboxed frame. Following a link is no such thing.
fn is_cross_site(method: &Method, headers: &HeaderMap) -> bool {
    let is_cross = header(headers, "sec-fetch-site") == Some("cross-site");
    let is_link = header(headers, "sec-fetch-mode") == Some("navigate") && *method == Method::GET;
    is_cross && !is_link
}

#[cfg(test)]
mod tests {
    use super::*;

    fn foreign(host: &str, origin: &str) -> bool {
        let headers = [("origin", origin)].into_iter();
        let headers = headers.map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        is_foreign(host, &Method::POST, &headers)
    }

    #[test]
    fn origins_are_compared_by_name_and_port() {
        assert!(!foreign("127.0.0.1:8188", "http://127.0.0.1:8188"));
        assert!(foreign("127.0.0.1:8188", "http://localhost:8188"), "another name is another origin");
        assert!(foreign("127.0.0.1:8188", "http://evil.example"));
        assert!(foreign("127.0.0.1:8188", "http://evil.example:8188"));
        assert!(foreign("127.0.0.1:8188", "http://127.0.0.1:3000"));
        assert!(!foreign("127.0.0.1:8188", "http://127.0.0.1"), "without a port only the names count");
        assert!(!foreign("LOCALHOST:8188", "http://localhost:8188"));
        assert!(!foreign("[::1]:8188", "http://[::1]:8188"));
        assert!(foreign("[::1]:8188", "http://[::2]:8188"));
        assert!(!foreign("runtime.lan:8188", "http://evil.example"), "only this machine is guarded");
        assert!(foreign("127.0.0.1:8188", "http://user@127.0.0.1:8188"));
    }

    #[test]
    fn what_no_server_sent_is_foreign() {
        for origin in
            ["null", "NULL", "", "file://", "file:///home/a/page.html", "file:", "data:", "blob:null"]
        {
            assert!(foreign("127.0.0.1:8188", origin), "{origin}");
        }
        for origin in
            ["file://localhost", "app://localhost:8188", "http://", "http:localhost", "localhost:8188"]
        {
            assert!(foreign("localhost:8188", origin), "{origin}");
        }
        assert!(!is_foreign("127.0.0.1:8188", &Method::POST, &HeaderMap::new()), "programs have no origin");
    }

    #[test]
    fn a_sandboxed_page_of_another_site_is_foreign() {
        let headers = |mode: &str| -> HeaderMap {
            let list = [("origin", "null"), ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", mode)];
            list.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
        };
        assert!(is_foreign("127.0.0.1:8188", &Method::POST, &headers("no-cors")));
        assert!(is_foreign("127.0.0.1:8188", &Method::POST, &headers("navigate")));
        assert!(is_foreign("127.0.0.1:8188", &Method::GET, &headers("websocket")));
        assert!(is_foreign("127.0.0.1:8188", &Method::GET, &headers("navigate")));
    }
}
