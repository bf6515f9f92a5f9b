//! `/upload/image` and `/upload/mask`.

use axum::body::{Body, Bytes};
use axum::http::Request;
use futures_util::stream;
use nodes::picture::{decode_pixels, png_text};
use serde_json::json;
use tower_http::limit::RequestBodyLimitLayer;

use crate::site::{Form, Site, png, png_with_text};

#[tokio::test]
async fn a_file_is_stored_where_the_form_says() {
    let site = Site::new();
    let reply = Form::default().file("a.png", b"one").post(&site, "/upload/image").await;
    assert_eq!(reply.json(), json!({ "name": "a.png", "subfolder": "", "type": "input" }));
    assert_eq!(site.read("input/a.png"), b"one");
    let form = Form::default().file("b.mp4", b"two").text("subfolder", "deep/er").text("type", "output");
    let reply = form.post(&site, "/api/upload/image").await;
    assert_eq!(reply.json(), json!({ "name": "b.mp4", "subfolder": "deep/er", "type": "output" }));
    assert_eq!(site.read("output/deep/er/b.mp4"), b"two");
    let form = Form::default().text("type", "temp").text("subfolder", "s").file("c.bin", b"");
    assert_eq!(form.post(&site, "/upload/image").await.json()["type"], "temp");
    assert_eq!(site.read("temp/s/c.bin"), b"");
    assert_eq!(site.names("temp"), ["s"], "nothing hidden is left behind");
}

#[tokio::test]
async fn the_same_bytes_are_stored_once_and_others_get_a_number() {
    let site = Site::new();
    let upload = async |bytes: &[u8], overwrite: &str| {
        let form = Form::default().file("a.b.png", bytes).text("overwrite", overwrite);
        form.post(&site, "/upload/image").await.json()["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(upload(b"one", "").await, "a.b.png");
    assert_eq!(upload(b"one", "false").await, "a.b.png");
    assert_eq!(upload(b"two", "").await, "a.b (1).png");
    assert_eq!(upload(b"twO", "").await, "a.b (2).png");
    assert_eq!(upload(b"two", "").await, "a.b (1).png");
    assert_eq!(site.names("input"), ["a.b (1).png", "a.b (2).png", "a.b.png"]);
    assert_eq!(upload(b"new", "true").await, "a.b.png");
    assert_eq!(site.read("input/a.b.png"), b"new");
    assert_eq!(upload(b"newer", "1").await, "a.b.png");
    assert_eq!(site.read("input/a.b.png"), b"newer");
    assert_eq!(site.names("input").len(), 3);
    assert!(site.names("temp").is_empty());
}

#[tokio::test]
async fn uploads_at_the_same_time_do_not_lose_each_other() {
    let site = Site::new();
    let uploads = (0..16).map(|number| {
        Form::default().file("a.png", format!("bytes {number}").as_bytes()).post(&site, "/upload/image")
    });
    let replies = futures_util::future::join_all(uploads).await;
    let mut names: Vec<String> =
        replies.iter().map(|reply| reply.json()["name"].as_str().unwrap().to_owned()).collect();
    for (number, name) in names.iter().enumerate() {
        assert_eq!(site.read(&format!("input/{name}")), format!("bytes {number}").as_bytes());
    }
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 16);
}

#[tokio::test]
async fn what_is_refused() {
    let site = Site::new();
    site.write("input/folder/x", b"x");
    let long = "a".repeat(300);
    let names = [
        "",
        "..",
        "../a.png",
        "a/../../b.png",
        "/etc/x.png",
        "a\\\\b.png",
        "..\\\\a.png",
        "NUL",
        "con.png",
        "a\u{1}b",
        "folder",
        long.as_str(),
    ];
    for name in names {
        let reply = Form::default().file(name, b"x").post(&site, "/upload/image").await;
        assert_eq!(reply.status, 400, "{name:?}");
    }
    for subfolder in ["..", "../output", "/", "/tmp", "a/../../b", "a\\b", "a\0b"] {
        let form = Form::default().file("a.png", b"x").text("subfolder", subfolder);
        assert_eq!(form.post(&site, "/upload/image").await.status, 400, "{subfolder:?}");
    }
    let form = Form::default().file("a.png", b"x").text("type", "user");
    assert_eq!(form.post(&site, "/upload/image").await.status, 400);
    assert_eq!(Form::default().text("type", "input").post(&site, "/upload/image").await.status, 400);
    assert_eq!(Form::default().text("image", "no file").post(&site, "/upload/image").await.status, 400);
    assert_eq!(site.post("/upload/image", "no form").await.status, 400);
    let broken = Request::post("/upload/image").header("content-type", Form::KIND);
    let broken = broken.body(Body::from(Form::file_start("a.png") + "half")).unwrap();
    assert_eq!(site.send(broken).await.status, 400);
    assert_eq!(site.names("input"), ["folder"]);
    assert!(site.names("temp").is_empty());
    assert_eq!(site.get("/upload/image").await.status, 404);
}

#[tokio::test]
async fn a_body_over_the_limit_is_refused_and_leaves_nothing() {
    let site = Site::with(|config, _| config.max_upload_bytes = 10_000);
    let reply = Form::default().file("a.png", &[7; 20_000]).post(&site, "/upload/image").await;
    assert_eq!(reply.status, 413);
    assert_eq!(Form::default().file("a.png", &[7; 9_000]).post(&site, "/upload/image").await.status, 200);
    assert_eq!(site.post("/userdata/a.json", vec![b'x'; 20_000]).await.status, 413);
    assert_eq!(site.post("/userdata/a.json", vec![b'x'; 10_000]).await.status, 200);
    assert_eq!(site.post("/settings", vec![b' '; 20_000]).await.status, 413);
    assert_eq!(site.names("input"), ["a.png"]);
    assert!(site.names("temp").is_empty());
    assert_eq!(site.names("user/default"), ["a.json"]);
}

/// A limit further out is told apart from a client that goes away, also where no length was announced.
#[tokio::test]
async fn a_limit_of_the_whole_server_is_recognised() {
    let mut site = Site::new();
    site.router = site.router.clone().layer(RequestBodyLimitLayer::new(10_000));
    let body = |start: String, ending: Result<Bytes, std::io::Error>| {
        let pieces = (0..20).map(|_| Ok(Bytes::from_static(&[7; 1000])));
        Body::from_stream(stream::iter(std::iter::once(Ok(Bytes::from(start))).chain(pieces).chain([ending])))
    };
    let send = async |path: &str, body: Body| {
        let request = Request::post(path).header("content-type", Form::KIND);
        site.send(request.body(body).unwrap()).await.status
    };
    let end = || Ok(Bytes::from_static(b"\r\n--edge--\r\n"));
    assert_eq!(send("/upload/image", body(Form::file_start("a.png"), end())).await, 413);
    assert_eq!(send("/userdata/a.json", body(String::new(), end())).await, 413);
    let short = |start: String| {
        let gone = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
        Body::from_stream(stream::iter([Ok(Bytes::from(start)), gone]))
    };
    assert_eq!(send("/upload/image", short(Form::file_start("a.png"))).await, 400);
    assert_eq!(send("/userdata/a.json", short("half".to_owned())).await, 400);
    assert!(site.names("input").is_empty() && site.names("temp").is_empty());
    assert!(site.names("user/default").is_empty());
}

/// The file on the disk grows while the body is still coming: no more than a little of it is in memory.
#[tokio::test]
async fn a_large_upload_goes_to_the_disk_as_it_comes() {
    const PIECES: usize = 64;
    const PIECE_BYTES: usize = 1 << 20;
    let site = Site::new();
    let temp = site.path("temp");
    let start = Bytes::from(Form::file_start("big.bin"));
    let pieces = (0..PIECES).map(move |number| {
        let stored: u64 =
            std::fs::read_dir(&temp).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        let sent = (number * PIECE_BYTES) as u64;
        assert!(stored + 4 * PIECE_BYTES as u64 >= sent, "{sent} bytes were sent and {stored} stored");
        Bytes::from(vec![number as u8; PIECE_BYTES])
    });
    let end = Bytes::from_static(b"\r\n--edge--\r\n");
    let body = std::iter::once(start).chain(pieces).chain([end]).map(Ok::<_, std::io::Error>);
    let request = Request::post("/upload/image").header("content-type", Form::KIND);
    let reply = site.send(request.body(Body::from_stream(stream::iter(body))).unwrap()).await;
    assert_eq!(reply.json()["name"], "big.bin");
    let stored = site.read("input/big.bin");
    assert_eq!(stored.len(), PIECES * PIECE_BYTES);
    assert!(
        stored
            .chunks(PIECE_BYTES)
            .enumerate()
            .all(|(number, piece)| piece.iter().all(|b| *b == number as u8))
    );
}

#[cfg(unix)]
#[tokio::test]
async fn links_are_not_written_through() {
    let site = Site::new();
    site.write("elsewhere/kept.png", b"kept");
    std::os::unix::fs::symlink(site.path("elsewhere"), site.path("input/link")).unwrap();
    std::os::unix::fs::symlink(site.path("elsewhere/kept.png"), site.path("input/file.png")).unwrap();
    let form = Form::default().file("a.png", b"x").text("subfolder", "link");
    assert_eq!(form.post(&site, "/upload/image").await.status, 400);
    let form = Form::default().file("a.png", b"x").text("subfolder", "link/deep");
    assert_eq!(form.post(&site, "/upload/image").await.status, 400);
    let form = Form::default().file("file.png", b"new").text("overwrite", "true");
    assert_eq!(form.post(&site, "/upload/image").await.status, 200);
    std::os::unix::fs::symlink(site.path("nowhere"), site.path("input/lost.png")).unwrap();
    let reply = Form::default().file("lost.png", b"x").post(&site, "/upload/image").await;
    assert_eq!(reply.json()["name"], "lost (1).png");
    assert_eq!(site.names("elsewhere"), ["kept.png"]);
    assert_eq!(site.read("elsewhere/kept.png"), b"kept");
    assert_eq!(site.read("input/file.png"), b"new");
}

#[tokio::test]
async fn a_mask_becomes_the_transparency_of_a_picture() {
    let site = Site::new();
    let text = [("prompt".to_owned(), "{}".to_owned()), ("workflow".to_owned(), "{\"id\": 1}".to_owned())];
    site.write("output/sub/a.png", png_with_text(3, 2, &[10, 20, 30], &text));
    let form = Form::default()
        .file("masked.png", &png(3, 2, &[0, 0, 0, 99]))
        .text("original_ref", r#"{"filename": "a.png", "subfolder": "sub", "type": "output"}"#)
        .text("subfolder", "clipspace");
    let reply = form.post(&site, "/upload/mask").await;
    assert_eq!(reply.json(), json!({ "name": "masked.png", "subfolder": "clipspace", "type": "input" }));
    let stored = site.read("input/clipspace/masked.png");
    let pixels = decode_pixels(&stored).unwrap();
    assert_eq!((pixels.channels, &pixels.bytes[..4]), (4, &[10, 20, 30, 99][..]));
    assert_eq!(png_text(&stored), text);
    assert!(site.names("temp").is_empty());
    for (original, status) in [
        (r#"{"filename": "b.png"}"#, 404),
        (r#"{"filename": "../input/b.png"}"#, 400),
        (r#"{"filename": "a.png", "subfolder": "../user"}"#, 403),
        (r#"{"filename": "a.png", "type": "user"}"#, 400),
        ("no json", 400),
    ] {
        let form = Form::default().file("m.png", &png(3, 2, &[0, 0, 0, 1])).text("original_ref", original);
        assert_eq!(form.post(&site, "/upload/mask").await.status, status, "{original}");
    }
    let form = Form::default().file("m.png", &png(5, 5, &[0, 0, 0, 1]));
    let form = form.text("original_ref", r#"{"filename": "a.png", "subfolder": "sub"}"#);
    assert_eq!(form.post(&site, "/upload/mask").await.status, 400, "sizes differ");
    assert_eq!(site.names("input"), ["clipspace"]);
}
