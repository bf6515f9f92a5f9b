//! The web front end's own files, and the small routes that it asks while it starts.

use std::path::PathBuf;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::names::{NameFault, relative};
use super::reply::{Answer, Refusal, blocking, json};
use super::{Files, Shared, content_type, serving, templates};

/// What `/` shows where there is no front end.
const NO_FRONT_END: &str = include_str!("no_front_end.html");

const PICTURE_ENDINGS: &[&str] = &[".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Our part of the front end: a tab for memory and models, and plans on loaders.
const EXTENSION: &str = include_str!("extension/gantry.js");
/// Where the front end loads it from.
const EXTENSION_PATH: &str = "/extensions/gantry/gantry.js";

/// There are no packs that would bring scripts, translations, templates or subgraphs: the only script is
/// ours.
pub(super) fn api_routes() -> Router<Shared> {
    let empty_map = || get(async || json(&Map::new()));
    Router::new()
        .route("/extensions", get(async || json(&[EXTENSION_PATH])))
        .route(
            EXTENSION_PATH,
            get(async || {
                ([(header::CONTENT_TYPE, "text/javascript; charset=utf-8")], EXTENSION).into_response()
            }),
        )
        .route("/i18n", empty_map())
        .route("/workflow_templates", empty_map())
        .route("/global_subgraphs", empty_map())
        .route("/global_subgraphs/{id}", get(async || json(&Value::Null)))
}

/// A file of the front end, of its templates or of its documentation.
pub(super) async fn page(State(files): State<Shared>, uri: Uri, headers: HeaderMap) -> Answer {
    let path = decoded(uri.path())?;
    if path == "/" {
        return index(&files, &headers).await;
    }
    let own = files.config.own_templates;
    if let Some(name) = path.strip_prefix("/templates/") {
        if let Some((kind, bytes)) = templates::file(own, name) {
            return Ok(([(header::CONTENT_TYPE, kind)], bytes).into_response());
        }
        if is_list(name) && !own.is_empty() {
            let installed = match page_file(files, &path).await? {
                Some(file) => blocking(move || Ok(std::fs::read(file).ok())).await?,
                None => None,
            };
            let installed = installed.and_then(|bytes| serde_json::from_slice(&bytes).ok());
            return Ok(json(&templates::list(own, installed)));
        }
    }
    match page_file(files, &path).await? {
        Some(file) => serving::serve(&file, content_type::by_name(&file), &headers).await,
        // The page asks for it, and browsers complain aloud about a style sheet that is missing.
        None if path == "/user.css" => {
            Ok(([(header::CONTENT_TYPE, "text/css; charset=utf-8")], "").into_response())
        }
        None => no_templates(&path).ok_or(Refusal::Missing),
    }
}

/// The lists of templates where none are installed. The page asks for them on its first visit and takes a missing list
/// for an error.
fn no_templates(path: &str) -> Option<Response> {
    let name = path.strip_prefix("/templates/")?;
    if name == "index_logo.json" {
        return Some(json(&Map::new()));
    }
    is_list(name).then(|| json(&[(); 0]))
}

/// Whether a name is that of a list of templates, in some language.
fn is_list(name: &str) -> bool {
    let rest = name.strip_prefix("index").and_then(|rest| rest.strip_suffix(".json"));
    rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !rest.contains('/')))
}

/// Anything but reading: 405 where there is something to read, else 404.
pub(super) async fn no_page(State(files): State<Shared>, uri: Uri) -> Answer {
    let path = decoded(uri.path())?;
    let exists = path == "/" || page_file(files, &path).await?.is_some();
    Ok(if exists { StatusCode::METHOD_NOT_ALLOWED } else { StatusCode::NOT_FOUND }.into_response())
}

async fn index(files: &Files, headers: &HeaderMap) -> Answer {
    let no_front_end = || Html(NO_FRONT_END).into_response();
    let mut response = match files.config.front_end.as_ref().map(|root| root.join("index.html")) {
        Some(file) => match serving::serve(&file, content_type::by_name(&file), headers).await {
            Err(Refusal::Missing) => no_front_end(),
            answer => answer?,
        },
        None => no_front_end(),
    };
    // Its name stays while the names of its parts change: an old copy would ask for parts that are gone.
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store, must-revalidate"));
    headers.insert(header::PRAGMA, HeaderValue::from_static("no-cache"));
    headers.insert(header::EXPIRES, HeaderValue::from_static("0"));
    Ok(response)
}

/// The file that a path from `/` stands for, if there is one.
async fn page_file(files: Shared, path: &str) -> Answer<Option<PathBuf>> {
    let name = path.strip_prefix('/').unwrap_or(path);
    let config = &files.config;
    let (roots, name) = if let Some(name) = name.strip_prefix("templates/") {
        (config.templates.clone(), name)
    } else if let Some(name) = name.strip_prefix("docs/") {
        (config.docs.iter().cloned().collect(), name)
    } else {
        (config.front_end.iter().cloned().collect(), name)
    };
    let below = relative(name)?;
    blocking(move || Ok(roots.iter().map(|root| root.join(&below)).find(|file| file.is_file()))).await
}

fn decoded(path: &str) -> Result<String, NameFault> {
    let decoded = percent_decode_str(path).decode_utf8().map_err(|_| NameFault::Unusable)?;
    Ok(decoded.into_owned())
}

/// Says how long answers may be kept, by the ending of the path, unless they say so themselves.
pub(super) async fn cache_headers(request: Request, next: Next) -> Response {
    let path = request.uri().path().to_owned();
    let mut response = next.run(request).await;
    if let Some(value) = cache_control(&path, response.status()) {
        let entry = response.headers_mut().entry(header::CACHE_CONTROL);
        entry.or_insert(HeaderValue::from_static(value));
    }
    response
}

fn cache_control(path: &str, status: StatusCode) -> Option<&'static str> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_entry = name.starts_with("index") && name.ends_with(".json");
    if path.ends_with(".js") || path.ends_with(".css") || is_entry {
        return Some("no-cache");
    }
    let path = path.to_lowercase();
    if !PICTURE_ENDINGS.iter().any(|ending| path.ends_with(ending)) {
        return None;
    }
    match status.as_u16() {
        404 => Some("public, max-age=3600"),
        200..=206 | 301 | 308 => Some("public, max-age=86400"),
        302 | 303 | 307 => Some("no-cache"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_answers_are_kept() {
        let cases = [
            ("/assets/a.js", 200, Some("no-cache")),
            ("/assets/a.css", 404, Some("no-cache")),
            ("/templates/index.json", 200, Some("no-cache")),
            ("/templates/index.de.json", 200, Some("no-cache")),
            ("/templates/other.json", 200, None),
            ("/a.PNG", 200, Some("public, max-age=86400")),
            ("/a.webp", 206, Some("public, max-age=86400")),
            ("/a.png", 404, Some("public, max-age=3600")),
            ("/a.png", 307, Some("no-cache")),
            ("/a.png", 304, None),
            ("/view", 200, None),
        ];
        for (path, status, expected) in cases {
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(cache_control(path, status), expected, "{path} {status}");
        }
    }
}
