//! The dashboard's files.

use super::classes::{config, start, start_with};
use super::client::{get, request};

/// Names in quotation marks that follow this, such as addresses.
fn quoted<'a>(text: &'a str, before: &str) -> Vec<&'a str> {
    text.split(before).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_and_its_parts_are_there() {
    let server = start().await;
    let away = get(&server, "/gantry").await;
    assert_eq!((away.status, away.header("location")), (308, Some("gantry/")));
    let page = get(&server, "/gantry/").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let text = String::from_utf8(page.body).unwrap();
    let mut parts = quoted(&text, "src=\"");
    parts.extend(quoted(&text, "href=\"").iter().filter(|address| !address.starts_with("data:")));
    parts.sort_unstable();
    assert_eq!(parts, ["dashboard.css", "dashboard.js"], "the page asks for these and nothing else");
    for (part, kind) in parts.iter().zip(["text/css; charset=utf-8", "text/javascript; charset=utf-8"]) {
        let answer = get(&server, &format!("/gantry/{part}")).await;
        assert_eq!((answer.status, answer.header("content-type")), (200, Some(kind)), "{part}");
        let text = String::from_utf8(answer.body).unwrap();
        assert!(text.len() > 1000, "{part} is there");
        let outside = quoted(&text, "\"http").into_iter().find(|rest| !rest.starts_with("://www.w3.org/"));
        assert_eq!(outside, None, "{part} names no other host but those of XML names");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_small_and_kept_by_its_tag() {
    let server = start().await;
    let mut all = 0;
    for path in ["/gantry/", "/gantry/dashboard.js", "/gantry/dashboard.css"] {
        let start = format!("GET {path}");
        let packed = [("host", "localhost"), ("accept-encoding", "gzip")];
        let answer = request(&server, &start, &packed, b"").await;
        assert_eq!(answer.header("content-encoding"), Some("gzip"), "{path}");
        all += answer.body.len();
        let tag = answer.header("etag").unwrap();
        let known = [("host", "localhost"), ("if-none-match", tag)];
        let again = request(&server, &start, &known, b"").await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        assert_eq!(again.header("cache-control"), Some("no-cache"));
        assert_eq!(request(&server, &format!("POST {path}"), &known, b"").await.status, 405);
    }
    assert!(all < 40_000, "{all} bytes compressed");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_is_behind_the_token() {
    let mut guarded = config();
    guarded.token = Some("s3cret".to_owned());
    let server = start_with(guarded).await;
    assert_eq!(get(&server, "/gantry/").await.status, 401);
    let browser = [("host", "localhost"), ("accept", "text/html")];
    let shown = request(&server, "GET /gantry/?token=s3cret", &browser, b"").await;
    assert_eq!((shown.status, shown.header("location")), (303, Some("/gantry/")));
    let cookie = shown.header("set-cookie").unwrap().split(';').next().unwrap();
    let with_cookie = [("host", "localhost"), ("cookie", cookie)];
    for path in ["/gantry/", "/gantry/dashboard.js", "/gantry/devices"] {
        assert_eq!(request(&server, &format!("GET {path}"), &with_cookie, b"").await.status, 200, "{path}");
    }
    server.stop().await;
}
