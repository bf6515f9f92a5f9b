//! The token: no route tells it, whoever asks and however.

use std::path::Path;
use std::sync::Arc;

use runtime::Folders;
use server::FilesConfig;

use super::classes::{config, start_with};
use super::client::request;

const TOKEN: &str = "tell-nobody-8e1f";
const METHODS: [&str; 6] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"];

/// Every path that the sources give a route, with something in the place of what varies.
fn paths() -> Vec<String> {
    let mut texts = Vec::new();
    read_below(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut texts);
    let mut paths = Vec::new();
    for text in &texts {
        for call in text.split(".route(").skip(1).chain(text.split(".add(MethodFilter::").skip(1)) {
            let path = call.split('"').nth(1).filter(|path| path.starts_with('/'));
            paths.extend(path.map(|path| {
                let parts = path.split('/').map(|part| if part.starts_with('{') { "7" } else { part });
                parts.collect::<Vec<_>>().join("/")
            }));
        }
    }
    paths.sort();
    paths.dedup();
    paths
}

fn read_below(folder: &Path, texts: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            read_below(&path, texts);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            texts.push(std::fs::read_to_string(path).unwrap());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_answer_holds_the_token() {
    let mut config = config();
    config.token = Some(TOKEN.to_owned());
    // As somebody gave it who did not know better.
    config.process.argv =
        ["gantry", "serve", "--token", TOKEN, &format!("--token={TOKEN}")].map(str::to_owned).to_vec();
    // Some of the routes write.
    let base = tempfile::tempdir().unwrap();
    let folders = Folders::at(base.path());
    config.files = Arc::new(FilesConfig { folders, ..FilesConfig::default() });
    let logs = config.files.logs.clone();
    let server = start_with(config).await;
    let paths = paths();
    for known in
        ["/api/v2/jobs/7/events", "/gantry/openapi.json", "/system_stats", "/ws", "/view", "/userdata/7"]
    {
        assert!(paths.iter().any(|path| path == known), "{known} is not among {paths:?}");
    }
    let bearer = format!("Bearer {TOKEN}");
    let page = [("host", "localhost"), ("accept", "text/html")];
    let ways: [(&str, Vec<(&str, &str)>); 3] = [
        ("", vec![("host", "localhost"), ("authorization", &bearer)]),
        (&format!("?token={TOKEN}"), page.to_vec()),
        ("?token=wrong", page.to_vec()),
    ];
    let mut answers = 0;
    for path in paths.iter().flat_map(|path| [path.clone(), format!("/api{path}")]) {
        for method in METHODS {
            for (query, headers) in &ways {
                let answer = request(&server, &format!("{method} {path}{query}"), headers, b"{}").await;
                let told =
                    answer.head.contains(TOKEN) || String::from_utf8_lossy(&answer.body).contains(TOKEN);
                assert!(!told, "{method} {path}{query}: {}", answer.head);
                answers += 1;
            }
        }
    }
    assert!(answers > 1000, "{answers}");
    let log = serde_json::to_string(&logs.entries()).unwrap();
    assert!(!log.contains(TOKEN));
    // A browser that showed it once has what lets it in, and that is not the token.
    let first = request(&server, &format!("GET /queue?token={TOKEN}"), &page, b"").await;
    assert_eq!(first.status, 303);
    let cookie = first.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let second = request(&server, "GET /queue", &[("host", "localhost"), ("cookie", &cookie)], b"").await;
    assert_eq!(second.status, 200);
    let argv =
        request(&server, "GET /system_stats", &ways[0].1, b"").await.json()["system"]["argv"].to_string();
    assert!(argv.contains("--token") && !argv.contains(TOKEN), "{argv}");
    server.stop().await;
}
