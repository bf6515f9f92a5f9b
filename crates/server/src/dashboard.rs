//! `/gantry/`: the dashboard, a page that is part of the program. Its sources are in the folder `dashboard` of the
//! repository; what is here was built from them.

use std::hash::{DefaultHasher, Hasher};

use axum::Router;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Redirect, Response};
use axum::routing::get;
use tower_http::compression::CompressionLayer;

/// The page may load its own parts and ask this server, and nothing else.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                      connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'";

/// One file of the page.
#[derive(Clone, Copy)]
struct Part {
    path: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
}

const PARTS: [Part; 3] = [
    Part {
        path: "/gantry/",
        kind: "text/html; charset=utf-8",
        bytes: include_bytes!("dashboard/index.html"),
    },
    Part {
        path: "/gantry/dashboard.js",
        kind: "text/javascript; charset=utf-8",
        bytes: include_bytes!("dashboard/dashboard.js"),
    },
    Part {
        path: "/gantry/dashboard.css",
        kind: "text/css; charset=utf-8",
        bytes: include_bytes!("dashboard/dashboard.css"),
    },
];

/// The page, always compressed for clients that take it so, whatever other answers are.
pub(crate) fn routes() -> Router {
    // The address is a relative one, so that it holds behind a proxy that adds a path.
    let mut router = Router::new().route("/gantry", get(async || Redirect::permanent("gantry/")));
    for part in PARTS {
        router = router.route(part.path, get(async move |headers: HeaderMap| part.answer(&headers)));
    }
    router.layer(CompressionLayer::new())
}

impl Part {
    fn answer(self, asked: &HeaderMap) -> Response {
        let tag = self.tag();
        let is_known = tag.is_some() && asked.get(IF_NONE_MATCH) == tag.as_ref();
        let mut response =
            if is_known { StatusCode::NOT_MODIFIED.into_response() } else { self.bytes.into_response() };
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.kind));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
        headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
        headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        if let Some(tag) = tag {
            headers.insert(ETAG, tag);
        }
        response
    }

    /// A weak tag: it is the same for the file and its compressed form.
    fn tag(self) -> Option<HeaderValue> {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.bytes);
        HeaderValue::from_str(&format!("W/\"{:016x}\"", hasher.finish())).ok()
    }
}
