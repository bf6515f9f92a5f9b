//! `/users` and `/settings`.

use serde_json::{Value, json};

use crate::site::Site;

#[tokio::test]
async fn there_is_one_user_who_becomes_known_by_storing() {
    let site = Site::new();
    assert_eq!(site.get("/users").await.json(), json!({ "storage": "server", "migrated": false }));
    assert_eq!(site.post("/settings", "{}").await.status, 200);
    assert_eq!(site.get("/api/users").await.json(), json!({ "storage": "server", "migrated": true }));
}

#[tokio::test]
async fn settings_are_merged() {
    let site = Site::new();
    assert_eq!(site.get("/settings").await.json(), json!({}));
    assert_eq!(site.get("/settings/Comfy.Locale").await.json(), Value::Null);
    let reply = site.post("/api/settings", r#"{"a": 1, "b": {"c": [true, null, 2.5]}}"#).await;
    assert_eq!((reply.status, reply.body.len()), (200, 0));
    assert_eq!(site.post("/api/settings/Comfy.Locale", "\"de\"").await.status, 200);
    assert_eq!(site.post("/settings", r#"{"a": 2}"#).await.status, 200);
    assert_eq!(site.post("/settings/null", "null").await.status, 200);
    assert_eq!(site.post("/settings/with%2Fslash%20%25", "3").await.status, 200);
    let all =
        json!({"a": 2, "b": {"c": [true, null, 2.5]}, "Comfy.Locale": "de", "null": null, "with/slash %": 3});
    assert_eq!(site.get("/settings").await.json(), all);
    assert_eq!(site.get("/settings/Comfy.Locale").await.json(), json!("de"));
    assert_eq!(site.get("/settings/with%2Fslash%20%25").await.json(), json!(3));
    let stored: Value = serde_json::from_slice(&site.read("user/default/comfy.settings.json")).unwrap();
    assert_eq!(stored, all);
    assert_eq!(site.names("user/default"), ["comfy.settings.json"]);
}

#[tokio::test]
async fn what_is_no_json_is_refused_and_changes_nothing() {
    let site = Site::new();
    site.post("/settings", r#"{"a": 1}"#).await;
    for body in ["", "{", "[1]", "3", "null", "\"text\""] {
        assert_eq!(site.post("/settings", body).await.status, 400, "{body}");
    }
    assert_eq!(site.post("/settings/a", "{").await.status, 400);
    assert_eq!(site.get("/settings").await.json(), json!({ "a": 1 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn changes_at_the_same_time_lose_nothing() {
    let site = Site::new();
    let changes = (0..64).map(|number| {
        let (site, key) = (&site, format!("key{number}"));
        async move {
            let reply = if number % 2 == 0 {
                site.post(&format!("/settings/{key}"), number.to_string()).await
            } else {
                site.post("/settings", format!("{{\"{key}\": {number}}}")).await
            };
            assert_eq!(reply.status, 200);
            // Readers never see half a file.
            assert_eq!(site.get(&format!("/settings/{key}")).await.json(), json!(number));
        }
    });
    futures_util::future::join_all(changes).await;
    let stored = site.get("/settings").await.json();
    assert_eq!(stored.as_object().unwrap().len(), 64);
    assert!((0..64).all(|number| stored[format!("key{number}")] == number));
}

#[tokio::test]
async fn broken_settings_are_kept_for_repair() {
    let site = Site::new();
    site.write("user/default/comfy.settings.json", "{\"a\": 1,");
    assert_eq!(site.get("/settings").await.json(), json!({}));
    assert_eq!(site.post("/settings/b", "2").await.status, 200);
    assert_eq!(site.get("/settings").await.json(), json!({ "b": 2 }));
    assert_eq!(site.read("user/default/comfy.settings.json.broken"), b"{\"a\": 1,");
}
