//! Headers of all answers: what may be kept, and what a page may talk to.

use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, EXPIRES, PRAGMA};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

const PICTURES: [&str; 9] = [".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"];

/// Says how long an answer may be kept, unless it says so itself.
pub(crate) fn add_caching(path: &str, status: StatusCode, headers: &mut HeaderMap) {
    if path == "/" {
        set(headers, CACHE_CONTROL, "no-store, must-revalidate");
        set(headers, PRAGMA, "no-cache");
        set(headers, EXPIRES, "0");
        return;
    }
    let name = path.rsplit('/').next().unwrap_or_default();
    let is_index = name.starts_with("index") && name.ends_with(".json");
    if path.ends_with(".js") || path.ends_with(".css") || is_index {
        set(headers, CACHE_CONTROL, "no-cache");
        return;
    }
    let path = path.to_ascii_lowercase();
    if !PICTURES.iter().any(|ending| path.ends_with(ending)) {
        return;
    }
    match status.as_u16() {
        404 => set(headers, CACHE_CONTROL, "public, max-age=3600"),
        200..=206 | 301 | 308 => set(headers, CACHE_CONTROL, "public, max-age=86400"),
        302 | 303 | 307 => set(headers, CACHE_CONTROL, "no-cache"),
        _ => {}
    }
}

/// Lets a page talk to this server alone.
pub(crate) fn add_self_only(headers: &mut HeaderMap) {
    const POLICY: &str = "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; \
                          style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; media-src 'self' data: blob:; \
                          font-src 'self'; connect-src 'self' data: blob:; worker-src 'self' blob:; frame-src 'self'; \
                          object-src 'self'";
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
}

fn set(headers: &mut HeaderMap, name: HeaderName, value: &'static str) {
    headers.entry(name).or_insert(HeaderValue::from_static(value));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cached(path: &str, status: u16) -> Option<String> {
        let mut headers = HeaderMap::new();
        add_caching(path, StatusCode::from_u16(status).unwrap(), &mut headers);
        headers.get(CACHE_CONTROL).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn caching_follows_the_name_and_the_status() {
        assert_eq!(cached("/assets/index-1.js", 200).as_deref(), Some("no-cache"));
        assert_eq!(cached("/user.css", 404).as_deref(), Some("no-cache"));
        assert_eq!(cached("/templates/index_logo.json", 200).as_deref(), Some("no-cache"));
        assert_eq!(cached("/api/prompt", 200), None);
        assert_eq!(cached("/a.PNG", 200).as_deref(), Some("public, max-age=86400"));
        assert_eq!(cached("/a.png", 404).as_deref(), Some("public, max-age=3600"));
        assert_eq!(cached("/a.png", 307).as_deref(), Some("no-cache"));
        assert_eq!(cached("/a.png", 304), None);
        assert_eq!(cached("/", 200).as_deref(), Some("no-store, must-revalidate"));
    }

    #[test]
    fn what_an_answer_says_itself_stays() {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        add_caching("/a.png", StatusCode::OK, &mut headers);
        assert_eq!(headers[CACHE_CONTROL], "no-store");
    }
}
