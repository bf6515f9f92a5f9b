//! Who may ask: hosts, origins, tokens and sizes are looked at before any route.
//!
//! A page of another site must not use a server on this machine, neither by name (a name of its own that leads to
//! 127.0.0.1) nor by address (a form or script that posts there).

mod origin;
mod token;

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, CONNECTION, CONTENT_LENGTH, HOST, ORIGIN, VARY,
};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Version};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::sync::Arc;

use crate::config::{ServerConfig, is_loopback};
use crate::headers;
use crate::wire::reply;

use origin::HostName;
use token::Token;

/// How long what is left of a refused body is read, so that the client gets to read the answer.
const DRAIN_TIME: Duration = Duration::from_secs(5);

/// The rules of one server.
pub(crate) struct Guard {
    /// Only names and addresses of this machine are hosts, but for `allowed_hosts`.
    is_local: bool,
    allowed_hosts: Vec<String>,
    cors_origin: Option<HeaderValue>,
    token: Option<Token>,
    max_body_bytes: u64,
    self_only: bool,
}

impl Guard {
    pub(crate) fn new(config: &ServerConfig, addresses: &[SocketAddr]) -> Guard {
        Guard {
            is_local: addresses.iter().all(|address| is_loopback(address.ip())),
            allowed_hosts: config.allowed_hosts.iter().map(|host| host.to_ascii_lowercase()).collect(),
            cors_origin: config.cors_origin.as_deref().and_then(|origin| HeaderValue::from_str(origin).ok()),
            token: config.token.as_deref().map(Token::new),
            max_body_bytes: config.max_upload_bytes as u64,
            self_only: config.self_only,
        }
    }

    /// Whether a request may go on; else its answer.
    fn refusal(&self, request: &Request) -> Option<Response> {
        let host = match named_host(request) {
            Ok(host) => host,
            Err(text) => return Some((StatusCode::BAD_REQUEST, format!("{text}\n")).into_response()),
        };
        if let Some(host) = host
            && !self.allows_host(host)
        {
            let text = format!(
                "the host {host} is not known here; start the server with --allow-host to allow it\n"
            );
            return Some((StatusCode::FORBIDDEN, text).into_response());
        }
        if self.cors_origin.is_none() && self.is_foreign(host, request) {
            let text = "pages of other sites and of files may not use this server; open its own address, or start it \
                        with --enable-cors-header ORIGIN\n";
            return Some((StatusCode::FORBIDDEN, text).into_response());
        }
        None
    }

    /// Whether a page that is not this server's asks. Without a host there is nothing that an origin could equal.
    fn is_foreign(&self, host: Option<&str>, request: &Request) -> bool {
        match host {
            Some(host) => origin::is_foreign(host, request.method(), request.headers()),
            None => self.is_local && request.headers().contains_key(ORIGIN),
        }
    }

    /// Whether requests may name this host.
    fn allows_host(&self, host: &str) -> bool {
        let Some(host) = HostName::parse(host) else { return false };
        let is_named = |allowed: &String| *allowed == "*" || *allowed == host.name;
        if self.allowed_hosts.iter().any(is_named) {
            return true;
        }
        match self.is_local {
            true => host.is_loopback(),
            // An address cannot be rebound; names can, so a list of names is taken at its word.
            false => self.allowed_hosts.is_empty() || host.is_address(),
        }
    }

    fn is_too_large(&self, headers: &HeaderMap) -> bool {
        let length = header(headers, CONTENT_LENGTH.as_str()).and_then(|text| text.parse::<u64>().ok());
        length.is_some_and(|length| length > self.max_body_bytes)
    }

    fn add_cors(&self, headers: &mut HeaderMap) {
        let Some(origin) = &self.cors_origin else { return };
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        let methods = HeaderValue::from_static("POST, GET, DELETE, PUT, OPTIONS, PATCH");
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, methods);
        headers.insert(ACCESS_CONTROL_ALLOW_HEADERS, HeaderValue::from_static("Content-Type, Authorization"));
        headers.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        headers.append(VARY, HeaderValue::from_static("Origin"));
    }
}

/// The guard as a layer around all routes.
pub(crate) async fn watch(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    if let Some(refusal) = guard.refusal(&request) {
        return refusal;
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let mut response = match method {
        Method::OPTIONS => StatusCode::OK.into_response(),
        _ => answer(&guard, request, next).await,
    };
    // ComfyUI's front-end files take every GET that no route takes, so a wrong GET is not found.
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && (method == Method::GET || method == Method::HEAD)
    {
        response = StatusCode::NOT_FOUND.into_response();
    }
    let status = response.status();
    headers::add_caching(&path, status, response.headers_mut());
    if guard.self_only {
        headers::add_self_only(response.headers_mut());
    }
    guard.add_cors(response.headers_mut());
    response
}

async fn answer(guard: &Guard, request: Request, next: Next) -> Response {
    if let Some(token) = &guard.token {
        match token.check(&request) {
            token::Shown::No => return token::refusal(),
            token::Shown::InAddress(response) => return *response,
            token::Shown::Yes => {}
        }
    }
    if guard.is_too_large(request.headers()) {
        tokio::spawn(drain(request.into_body()));
        let text = format!("the request is larger than {} bytes", guard.max_body_bytes);
        let mut response = reply::error(StatusCode::PAYLOAD_TOO_LARGE, &text);
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        return response;
    }
    next.run(request).await
}

/// Reads and forgets a body for a while: a client that is still sending when the connection is cut never sees why.
async fn drain(mut body: Body) {
    let forget = async {
        let mut body = std::pin::Pin::new(&mut body);
        while let Some(Ok(_)) = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await {}
    };
    // Time is up or the body is over: both end it.
    let _ = tokio::time::timeout(DRAIN_TIME, forget).await;
}

/// The host that a request names. Only HTTP/1.0 may name none.
///
/// # Errors
/// Why it is not clear which host is meant: two readers of such a request could each take another.
fn named_host(request: &Request) -> Result<Option<&str>, &'static str> {
    let mut headers = request.headers().get_all(HOST).iter();
    let (header, another) = (headers.next(), headers.next());
    if another.is_some() {
        return Err("a request may have one Host header only");
    }
    let target = request.uri().authority().map(Authority::as_str);
    let Some(header) = header else {
        return match request.version() {
            Version::HTTP_11 => Err("a request of HTTP/1.1 needs a Host header"),
            _ => Ok(target),
        };
    };
    let header = header.to_str().map_err(|_| "the Host header is not plain text")?;
    if target.is_some_and(|target| HostName::parse(target) != HostName::parse(header)) {
        return Err("the address in the first line and the Host header name different hosts");
    }
    Ok(Some(header))
}

/// A header as text.
fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::FilesConfig;

    fn guard(listen: &str, allowed: &[&str]) -> Guard {
        let mut config = ServerConfig::new(Arc::new(FilesConfig::default()));
        config.allowed_hosts = allowed.iter().map(|&host| host.to_owned()).collect();
        Guard::new(&config, &[listen.parse().unwrap()])
    }

    #[test]
    fn a_local_server_knows_only_local_hosts() {
        let local = guard("127.0.0.1:8188", &[]);
        for host in
            ["localhost", "LOCALHOST:8188", "127.0.0.1:8188", "127.3.2.1", "[::1]:8188", "a.localhost"]
        {
            assert!(local.allows_host(host), "{host}");
        }
        for host in
            ["evil.example", "evil.example:8188", "192.168.1.2", "localhost.evil.example", "", "[::1", "a@b"]
        {
            assert!(!local.allows_host(host), "{host}");
        }
        let named = guard("127.0.0.1:8188", &["Runtime.lan"]);
        assert!(named.allows_host("runtime.lan:80") && named.allows_host("localhost"));
        assert!(!named.allows_host("other.lan"));
        assert!(guard("127.0.0.1:8188", &["*"]).allows_host("anything"));
    }

    #[test]
    fn an_open_server_knows_all_hosts_unless_some_are_named() {
        assert!(guard("0.0.0.0:8188", &[]).allows_host("evil.example"));
        let named = guard("0.0.0.0:8188", &["runtime.lan"]);
        assert!(named.allows_host("runtime.lan") && named.allows_host("192.168.1.2:8188"));
        assert!(!named.allows_host("evil.example"));
    }
}
