//! The front end's files and the small routes it asks at start.

use axum::http::Method;
use serde_json::{Value, json};
use server::files::Template;

use crate::site::Site;

const DRAW: Template =
    Template { name: "draw", title: "Draw", description: "", workflow: b"{}", picture: b"png", pull: None };
const OWN: [Template; 2] =
    [Template { name: "large", description: "A large one.", pull: Some("large-model"), ..DRAW }, DRAW];

fn site_with_front_end() -> Site {
    let site = Site::with(|config, base| {
        config.front_end = Some(base.join("web"));
        config.templates = vec![base.join("templates-a"), base.join("templates-b")];
        config.docs = Some(base.join("docs"));
    });
    site.write("web/index.html", "<!doctype html>front end");
    site.write("web/assets/index-abc.js", "code");
    site.write("web/assets/logo.png", "png");
    site.write("web/extensions/core/a.js", "core");
    site.write("templates-a/index.json", "[1]");
    site.write("templates-b/index.json", "[2]");
    site.write("templates-b/only.webp", "b");
    site.write("docs/Canny/en.md", "# Canny");
    site
}

#[tokio::test]
async fn without_a_front_end_a_page_says_how_to_get_it() {
    let site = Site::new();
    let reply = site.get("/").await;
    assert_eq!((reply.status, reply.header("content-type").as_str()), (200, "text/html; charset=utf-8"));
    for words in ["pip install comfyui-frontend-package", "--front-end-root"] {
        assert!(reply.text().contains(words), "{words}");
    }
    assert_eq!(site.get("/index.html").await.status, 404);
    let site = Site::with(|config, base| config.front_end = Some(base.join("nowhere")));
    assert!(site.get("/").await.text().contains("--front-end-root"));
}

#[tokio::test]
async fn the_files_of_the_front_end() {
    let site = site_with_front_end();
    let reply = site.get("/").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "<!doctype html>front end"));
    assert_eq!(reply.header("content-type"), "text/html; charset=utf-8");
    assert_eq!(reply.header("cache-control"), "no-store, must-revalidate");
    assert_eq!((reply.header("pragma").as_str(), reply.header("expires").as_str()), ("no-cache", "0"));
    let reply = site.get("/assets/index-abc.js?v=1").await;
    assert_eq!(reply.header("content-type"), "text/javascript; charset=utf-8");
    assert_eq!(reply.header("cache-control"), "no-cache");
    let tag = reply.header("etag");
    assert_eq!(site.get_with("/assets/index-abc.js", &[("if-none-match", &tag)]).await.status, 304);
    let reply = site.get_with("/assets/logo.png", &[("range", "bytes=1-1")]).await;
    assert_eq!((reply.status, reply.text().as_str()), (206, "n"));
    assert_eq!(reply.header("cache-control"), "public, max-age=86400");
    assert_eq!(site.get("/assets/none.png").await.header("cache-control"), "public, max-age=3600");
    assert_eq!(site.get("/extensions/core/a.js").await.text(), "core");
    assert_eq!(site.get("/assets").await.status, 404);
    assert_eq!(site.get("/assets/").await.status, 404);
    assert_eq!(site.get("/nothing").await.status, 404);
    assert_eq!(site.get("/api/nothing").await.status, 404);
    let head = site.ask(Method::HEAD, "/assets/logo.png").await;
    assert_eq!((head.status, head.header("content-length").as_str()), (200, "3"));
}

#[tokio::test]
async fn templates_and_documentation() {
    let site = site_with_front_end();
    let reply = site.get("/templates/index.json").await;
    assert_eq!((reply.text().as_str(), reply.header("content-type").as_str()), ("[1]", "application/json"));
    assert_eq!(reply.header("cache-control"), "no-cache");
    assert_eq!(site.get("/templates/only.webp").await.text(), "b");
    assert_eq!(site.get("/templates/none.json").await.status, 404);
    assert_eq!(site.get("/docs/Canny/en.md").await.text(), "# Canny");
    assert_eq!(site.get("/docs/Canny").await.status, 404);
    // Without templates the lists are empty, not missing: the page takes a missing one for an error.
    let without = Site::new();
    for (name, empty) in [("index.json", "[]"), ("index.de.json", "[]"), ("index_logo.json", "{}")] {
        let reply = without.get(&format!("/templates/{name}")).await;
        assert_eq!((reply.status, reply.text().as_str()), (200, empty), "{name}");
        assert!(reply.header("content-type").starts_with("application/json"), "{name}");
    }
    // Workflows that come with the program stand before those that are installed.
    let own = Site::with(|config, base| {
        config.own_templates = &OWN;
        config.templates = vec![base.join("templates-a")];
    });
    own.write("templates-a/index.json", r#"[{"title": "installed"}]"#);
    let list: Value = serde_json::from_str(&own.get("/templates/index.json").await.text()).unwrap();
    // Those that run at once are the first, those whose files are to be downloaded the second.
    assert_eq!(list[0]["templates"].as_array().unwrap().len(), 1);
    assert_eq!(list[0]["templates"][0]["name"], "draw");
    assert_eq!(list[1]["templates"][0]["description"], "A large one. Its files: gantry pull large-model.");
    assert_eq!(list[2]["title"], "installed");
    let reply = own.get("/templates/draw-1.png").await;
    assert_eq!((reply.text().as_str(), reply.header("content-type").as_str()), ("png", "image/png"));
    assert_eq!(own.get("/templates/draw.json").await.text(), "{}");
    assert_eq!(own.get("/templates/draw.exe").await.status, 404);
    assert_eq!(without.get("/templates/other.json").await.status, 404);
    assert_eq!(without.get("/templates/index/a.json").await.status, 404);
}

#[tokio::test]
async fn a_style_sheet_of_the_user_is_never_missing() {
    let site = site_with_front_end();
    let reply = site.get("/user.css").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, ""));
    assert_eq!(reply.header("content-type"), "text/css; charset=utf-8");
    site.write("web/user.css", "a {}");
    assert_eq!(site.get("/user.css").await.text(), "a {}");
}

#[tokio::test]
async fn small_routes_tell_of_our_script_alone() {
    let site = Site::new();
    for prefix in ["", "/api"] {
        let scripts = site.get(&format!("{prefix}/extensions")).await.json();
        assert_eq!(scripts, json!(["/extensions/gantry/gantry.js"]));
        let reply = site.get(&format!("{prefix}/extensions/gantry/gantry.js")).await;
        assert_eq!(reply.header("content-type"), "text/javascript; charset=utf-8");
        assert!(reply.text().contains("registerExtension"));
        for path in ["i18n", "workflow_templates", "global_subgraphs"] {
            assert_eq!(site.get(&format!("{prefix}/{path}")).await.json(), json!({}), "{path}");
        }
        assert_eq!(site.get(&format!("{prefix}/global_subgraphs/abc")).await.json(), Value::Null);
    }
}

#[tokio::test]
async fn wrong_methods() {
    let site = site_with_front_end();
    for (method, path, status) in [
        (Method::POST, "/", 405),
        (Method::POST, "/assets/logo.png", 405),
        (Method::DELETE, "/assets/none.png", 404),
        (Method::POST, "/nothing", 404),
        (Method::POST, "/i18n", 405),
        (Method::GET, "/upload/mask", 404),
        (Method::GET, "/userdata/a/move/b", 404),
        (Method::GET, "/internal/logs/subscribe", 404),
        (Method::POST, "/internal/logs", 405),
    ] {
        assert_eq!(site.ask(method.clone(), path).await.status, status, "{method} {path}");
    }
}
