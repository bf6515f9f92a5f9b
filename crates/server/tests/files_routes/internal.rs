//! `/internal`.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::body::Body;
use axum::http::Request;
use serde_json::json;

use crate::site::Site;

#[tokio::test]
async fn the_log() {
    let site = Site::new();
    let mut log = site.config.logs.clone();
    log.write_all(b"first\n").unwrap();
    log.write_all(b"second \xff\n").unwrap();
    let raw = site.get("/internal/logs/raw").await.json();
    assert_eq!(raw["size"], json!({ "cols": 80, "rows": 24 }));
    assert_eq!(raw["entries"][0]["m"], "first\n");
    let time = raw["entries"][0]["t"].as_str().unwrap().to_owned();
    assert_eq!(raw["entries"][1]["m"], "second \u{fffd}\n");
    let text = site.get("/internal/logs").await.json();
    assert!(text.as_str().unwrap().starts_with(&format!("{time} - first\n")));
    assert_eq!(site.get("/api/internal/logs").await.status, 404);
}

#[tokio::test]
async fn following_the_log() {
    let site = Site::new();
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    site.config.logs.deliver_with(move |client, entry| {
        seen.lock().unwrap().push((client.to_owned(), entry.message.clone()));
        true
    });
    let subscribe = async |body: &str| {
        let request = Request::patch("/internal/logs/subscribe").body(Body::from(body.to_owned())).unwrap();
        site.send(request).await.status
    };
    assert_eq!(subscribe(r#"{"clientId": "abc", "enabled": true}"#).await, 200);
    site.config.logs.push("heard");
    assert_eq!(subscribe(r#"{"clientId": "abc", "enabled": false}"#).await, 200);
    site.config.logs.push("unheard");
    assert_eq!(*told.lock().unwrap(), [("abc".to_owned(), "heard".to_owned())]);
    for body in ["", "{}", r#"{"clientId": 1, "enabled": true}"#] {
        assert_eq!(subscribe(body).await, 400, "{body}");
    }
}

#[tokio::test]
async fn folders_and_recent_files() {
    let site = Site::new();
    let paths = site.get("/internal/folder_paths").await.json();
    assert_eq!(paths["vae"][0], json!(site.path("models/vae")));
    for (age, name) in [(30, "old.png"), (10, "new.png"), (20, "middle.mp4"), (5, ".hidden")] {
        site.write(&format!("output/{name}"), "x");
        let file = std::fs::File::options().write(true).open(site.path(&format!("output/{name}"))).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).unwrap();
    }
    site.write("output/folder/x", "x");
    assert_eq!(site.get("/internal/files/output").await.json(), json!(["new.png", "middle.mp4", "old.png"]));
    assert_eq!(site.get("/internal/files/temp").await.json(), json!([]));
    let reply = site.get("/internal/files/user").await;
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("\"error\""));
}
