//! The bearer token. Programs send it as a header. A browser cannot, for pictures and sockets, so it shows it once in
//! the address and then has it in a cookie that other sites' pages cannot use.

use axum::extract::Request;
use axum::http::header::{AUTHORIZATION, COOKIE, LOCATION, REFERRER_POLICY, SET_COOKIE, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::header;

const COOKIE_NAME: &str = "gantry_token";

/// What requests must show.
pub(super) struct Token {
    text: String,
    /// What browsers show in its place: made from it, so that no answer holds the token itself.
    cookie: String,
}

/// What the cookie is made for, so that it fits nothing else.
const COOKIE_PURPOSE: &str = "gantry 2026-11 the cookie that stands for the token";

/// Whether a request showed it.
pub(super) enum Shown {
    /// It did not, or another one.
    No,
    /// It did.
    Yes,
    /// A browser did, in the address: it is sent to the address without it, with a cookie.
    InAddress(Box<Response>),
}

impl Token {
    pub(super) fn new(text: &str) -> Token {
        let cookie = blake3::Hash::from(blake3::derive_key(COOKIE_PURPOSE, text.as_bytes())).to_hex();
        Token { text: text.to_owned(), cookie: cookie.to_string() }
    }

    pub(super) fn check(&self, request: &Request) -> Shown {
        let headers = request.headers();
        let bearer = header(headers, AUTHORIZATION.as_str()).and_then(|text| {
            let (scheme, token) = text.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
        });
        let cookies = headers.get_all(COOKIE).iter().filter_map(|cookies| cookies.to_str().ok());
        let mut pairs =
            cookies.flat_map(|cookies| cookies.split(';')).filter_map(|pair| pair.trim().split_once('='));
        let is_in_cookie = pairs.any(|(name, token)| name == COOKIE_NAME && is_same(&self.cookie, token));
        if is_in_cookie || bearer.is_some_and(|token| self.is(token)) {
            return Shown::Yes;
        }
        let in_address = query_pairs(request.uri()).find(|(name, _)| *name == "token");
        match in_address {
            Some((_, token)) if self.is(token) => {
                let is_page = header(headers, "accept").is_some_and(|accept| accept.contains("text/html"));
                match is_page && request.method() == Method::GET {
                    true => {
                        self.cookie(request.uri()).map_or(Shown::Yes, |to| Shown::InAddress(Box::new(to)))
                    }
                    false => Shown::Yes,
                }
            }
            _ => Shown::No,
        }
    }

    /// Sends a browser on, with a cookie that stands for the token.
    fn cookie(&self, uri: &Uri) -> Option<Response> {
        let rest: Vec<String> = query_pairs(uri)
            .filter(|(name, _)| *name != "token")
            .map(|(name, value)| if value.is_empty() { name.to_owned() } else { format!("{name}={value}") })
            .collect();
        // Two slashes at the start would lead to another host.
        let path = format!("/{}", uri.path().trim_start_matches('/'));
        let to = if rest.is_empty() { path } else { format!("{path}?{}", rest.join("&")) };
        let cookie = format!("{COOKIE_NAME}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie);
        let mut response = StatusCode::SEE_OTHER.into_response();
        let headers = response.headers_mut();
        headers.insert(LOCATION, HeaderValue::from_str(&to).ok()?);
        headers.insert(SET_COOKIE, HeaderValue::from_str(&cookie).ok()?);
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        Some(response)
    }

    fn is(&self, other: &str) -> bool {
        is_same(&self.text, other)
    }
}

/// Compares without telling by its time how much was right.
fn is_same(secret: &str, other: &str) -> bool {
    let differences = secret.bytes().zip(other.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b));
    secret.len() == other.len() && differences == 0
}

/// 401, with what to do.
pub(super) fn refusal() -> Response {
    let text = "This server wants its token: send the header \"Authorization: Bearer TOKEN\", or open the address with \
                ?token=TOKEN in a browser.\n";
    let mut response = (StatusCode::UNAUTHORIZED, text).into_response();
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    response
}

fn query_pairs(uri: &Uri) -> impl Iterator<Item = (&str, &str)> {
    let query = uri.query().unwrap_or_default();
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, "")))
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn check(uri: &str, headers: &[(&str, &str)]) -> Shown {
        let mut request = Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        Token::new("s3cret").check(&request.body(Body::empty()).unwrap())
    }

    #[test]
    fn a_token_is_shown_in_a_header_a_cookie_or_the_address() {
        assert!(matches!(check("/", &[("authorization", "Bearer s3cret")]), Shown::Yes));
        assert!(matches!(check("/", &[("authorization", "bearer s3cret")]), Shown::Yes));
        let cookie = format!("a=b; gantry_token={}", Token::new("s3cret").cookie);
        assert!(matches!(check("/", &[("cookie", &cookie)]), Shown::Yes));
        assert!(matches!(check("/ws?clientId=a&token=s3cret", &[]), Shown::Yes));
        for (uri, name, value) in [
            ("/", "authorization", "Bearer s3cre"),
            ("/", "authorization", "Basic s3cret"),
            ("/", "cookie", "gantry_token=s3cret"),
            ("/?token=", "accept", "*/*"),
            ("/?tokens=s3cret", "accept", "*/*"),
        ] {
            assert!(matches!(check(uri, &[(name, value)]), Shown::No), "{uri} {value}");
        }
    }

    #[test]
    fn a_browser_is_sent_on_with_a_cookie() {
        let Shown::InAddress(response) = check("//evil/x?a=1&token=s3cret&b", &[("accept", "text/html,*/*")])
        else {
            panic!("a page is sent on");
        };
        assert_eq!(response.headers()[LOCATION], "/evil/x?a=1&b");
        let cookie = response.headers()[SET_COOKIE].to_str().unwrap();
        assert!(
            cookie.ends_with("; Path=/; HttpOnly; SameSite=Strict") && !cookie.contains("s3cret"),
            "{cookie}"
        );
    }
}
