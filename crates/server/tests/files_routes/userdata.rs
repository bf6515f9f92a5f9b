//! `/userdata` and `/v2/userdata`.

use axum::http::Method;
use serde_json::{Value, json};

use crate::site::Site;

#[tokio::test]
async fn a_file_is_stored_read_and_removed() {
    let site = Site::new();
    assert_eq!(site.get("/userdata/workflows%2Fa.json").await.status, 404);
    let reply = site.post("/api/userdata/workflows%2Fa.json", "{\"x\": 1}").await;
    assert_eq!(reply.json(), json!("workflows/a.json"));
    assert_eq!(site.read("user/default/workflows/a.json"), b"{\"x\": 1}");
    let reply = site.get("/userdata/workflows%2Fa.json").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "{\"x\": 1}"));
    assert_eq!(reply.header("content-type"), "application/json");
    assert_eq!(site.get("/userdata/workflows%252Fa.json").await.status, 200, "encoded twice");
    let deleted = site.ask(Method::DELETE, "/userdata/workflows%2Fa.json").await;
    assert_eq!((deleted.status, deleted.body.len()), (204, 0));
    assert_eq!(site.ask(Method::DELETE, "/userdata/workflows%2Fa.json").await.status, 404);
    assert_eq!(site.ask(Method::DELETE, "/userdata/workflows").await.status, 400);
    assert_eq!(site.get("/userdata/workflows").await.status, 404, "a folder is no file");
    assert_eq!(site.post("/userdata/workflows", "x").await.status, 400);
}

#[tokio::test]
async fn bytes_are_kept_as_they_are() {
    let site = Site::new();
    let bytes: Vec<u8> = (0..=255).cycle().take(200_000).collect();
    assert_eq!(site.post("/userdata/%C3%A9%20100%25.bin", bytes.clone()).await.json(), json!("é 100%.bin"));
    assert_eq!(site.get("/userdata/%C3%A9%20100%25.bin").await.body, bytes);
    assert_eq!(site.post("/userdata/.index.json", "").await.json(), json!(".index.json"));
    assert_eq!(site.names("user/default"), [".index.json", "é 100%.bin"]);
}

#[tokio::test]
async fn an_existing_file_is_kept_if_asked() {
    let site = Site::new();
    let path = "/userdata/a.json";
    assert_eq!(site.post(&format!("{path}?overwrite=false"), "one").await.status, 200);
    assert_eq!(site.post(&format!("{path}?overwrite=false"), "two").await.status, 409);
    assert_eq!(site.read("user/default/a.json"), b"one");
    assert_eq!(site.post(&format!("{path}?overwrite=true"), "two").await.status, 200);
    assert_eq!(site.post(path, "three").await.status, 200);
    assert_eq!(site.read("user/default/a.json"), b"three");
    let writes = (0..8).map(|number| site.post("/userdata/race?overwrite=false", number.to_string()));
    let replies = futures_util::future::join_all(writes).await;
    let stored: Vec<usize> = (0..8).filter(|number| replies[*number].status == 200).collect();
    assert_eq!(stored.len(), 1, "one is first");
    assert!(replies.iter().all(|reply| matches!(reply.status, 200 | 409)));
    assert_eq!(site.read("user/default/race"), stored[0].to_string().as_bytes());
    assert_eq!(site.names("user/default"), ["a.json", "race"]);
}

#[tokio::test]
async fn all_that_is_known_about_a_file() {
    let site = Site::new();
    let info = site.post("/userdata/workflows%2Fa.json?full_info=true", "12345").await.json();
    assert_eq!((&info["path"], &info["size"]), (&json!("workflows/a.json"), &json!(5)));
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    for key in ["modified", "created"] {
        assert!((now - info[key].as_f64().unwrap()).abs() < 60.0, "{info}");
    }
}

#[tokio::test]
async fn listings() {
    let site = Site::new();
    for path in
        ["workflows/b.json", "workflows/a.json", "workflows/sub/c.json", "workflows/.index.json", "x.css"]
    {
        site.write(&format!("user/default/{path}"), "12");
    }
    site.write("user/default/workflows/.hidden/d.json", "");
    let get = async |query: &str| site.get(&format!("/userdata?{query}")).await.json();
    assert_eq!(get("dir=workflows").await, json!(["a.json", "b.json"]));
    assert_eq!(get("dir=workflows&recurse=true").await, json!(["a.json", "b.json", "sub/c.json"]));
    assert_eq!(get("dir=workflows/sub&recurse=True").await, json!(["c.json"]));
    assert_eq!(get("dir=.&recurse=false").await, json!(["x.css"]));
    let split = json!([["a.json", "a.json"], ["b.json", "b.json"], ["sub/c.json", "sub", "c.json"]]);
    assert_eq!(get("dir=workflows&recurse=true&split=true").await, split);
    let full = get("dir=workflows&recurse=true&split=true&full_info=true").await;
    assert_eq!(full[2]["path"], "sub/c.json");
    assert_eq!(full[2]["size"], 2);
    assert!(full[2]["modified"].is_f64() && full[2]["created"].is_f64());
    assert_eq!(get("dir=x.css").await, json!([]));
    for (query, status) in [
        ("", 400),
        ("dir=", 400),
        ("dir=missing", 404),
        ("dir=..", 403),
        ("dir=../default", 403),
        ("dir=/", 403),
        ("dir=%252e%252e", 403),
        ("dir=a%00", 400),
    ] {
        assert_eq!(site.get(&format!("/userdata?{query}")).await.status, status, "{query}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn a_link_in_a_circle_ends() {
    let site = Site::new();
    site.write("user/default/workflows/a.json", "");
    std::os::unix::fs::symlink(
        site.path("user/default/workflows"),
        site.path("user/default/workflows/again"),
    )
    .unwrap();
    let listed = site.get("/userdata?dir=workflows&recurse=true").await.json();
    assert_eq!(listed, json!(["a.json"]));
}

#[tokio::test]
async fn the_tree_of_everything() {
    let site = Site::new();
    assert_eq!(site.get("/v2/userdata").await.json(), json!([]), "a new user");
    site.write("user/default/workflows/B.json", "12");
    site.write("user/default/workflows/sub/a.json", "");
    let tree = site.get("/api/v2/userdata?path=workflows").await.json();
    let rows: Vec<(&Value, &Value)> =
        tree.as_array().unwrap().iter().map(|entry| (&entry["type"], &entry["path"])).collect();
    let expected = [
        (&json!("directory"), &json!("workflows/sub")),
        (&json!("file"), &json!("workflows/sub/a.json")),
        (&json!("file"), &json!("workflows/B.json")),
    ];
    assert_eq!(rows, expected);
    assert_eq!((&tree[2]["name"], &tree[2]["size"]), (&json!("B.json"), &json!(2)));
    assert!(tree[0].get("size").is_none());
    for (path, status) in [("missing", 404), ("..", 400), ("workflows/B.json", 400)] {
        assert_eq!(site.get(&format!("/v2/userdata?path={path}")).await.status, status, "{path}");
    }
}

#[tokio::test]
async fn moves() {
    let site = Site::new();
    site.write("user/default/workflows/a.json", "a");
    site.write("user/default/workflows/b.json", "b");
    let from = "/api/userdata/workflows%2Fa.json/move";
    assert_eq!(site.post(&format!("{from}/workflows%2Fb.json?overwrite=false"), "").await.status, 409);
    assert_eq!(site.read("user/default/workflows/b.json"), b"b");
    let reply = site.post(&format!("{from}/new%2Fdeep%2Fc.json?overwrite=false"), "").await;
    assert_eq!(reply.json(), json!("new/deep/c.json"));
    assert_eq!(site.read("user/default/new/deep/c.json"), b"a");
    assert_eq!(site.post(&format!("{from}/d.json"), "").await.status, 404, "it has gone");
    let info =
        site.post("/userdata/new%2Fdeep%2Fc.json/move/workflows%2Fb.json?full_info=true", "").await.json();
    assert_eq!((&info["path"], &info["size"]), (&json!("workflows/b.json"), &json!(1)));
    assert_eq!(site.read("user/default/workflows/b.json"), b"a");
    let back = "/userdata/workflows%2Fb.json/move";
    assert_eq!(site.post(&format!("{back}/..%2Fb.json"), "").await.status, 403);
    assert_eq!(site.post("/userdata/..%2Fx/move/b.json", "").await.status, 403);
    assert_eq!(site.post(&format!("{back}/new"), "").await.status, 400, "a folder has that name");
    assert_eq!(site.names("user/default/workflows"), ["b.json"]);
}

#[tokio::test]
async fn what_a_browser_could_run_is_not_shown() {
    let site = Site::new();
    site.write("user/default/user.css", "a {}");
    site.write("user/default/a.html", "<script>");
    site.write("user/default/a.js", "x");
    assert_eq!(site.get("/api/userdata/user.css").await.header("content-type"), "text/css; charset=utf-8");
    for path in ["/userdata/a.html", "/userdata/a.js"] {
        let reply = site.get(path).await;
        assert_eq!(reply.header("content-type"), "application/octet-stream");
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_read_but_not_written_through() {
    let site = Site::new();
    site.write("elsewhere/a.json", "far");
    std::fs::create_dir(site.path("user/default")).unwrap();
    std::os::unix::fs::symlink(site.path("elsewhere"), site.path("user/default/link")).unwrap();
    assert_eq!(site.get("/userdata/link%2Fa.json").await.text(), "far");
    assert_eq!(site.post("/userdata/link%2Fa.json", "new").await.status, 403);
    assert_eq!(site.post("/userdata/link%2Fdeep%2Fb.json", "new").await.status, 403);
    assert_eq!(site.ask(Method::DELETE, "/userdata/link%2Fa.json").await.status, 403);
    assert_eq!(site.post("/userdata/link%2Fa.json/move/b.json", "").await.status, 403);
    assert_eq!(site.get("/userdata/link%2F..%2F..%2F..%2Felsewhere%2Fa.json").await.status, 403);
    assert_eq!(site.names("elsewhere"), ["a.json"]);
    assert_eq!(site.read("elsewhere/a.json"), b"far");
}
