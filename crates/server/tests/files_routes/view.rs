//! `/view`.

use axum::http::Method;
use nodes::picture::decode_pixels;

use crate::site::{Site, png};

#[tokio::test]
async fn every_status() {
    let site = Site::new();
    site.write("output/a.png", b"out");
    site.write("input/a.png", b"in");
    site.write("temp/sub/a.png", b"temp");
    site.write("output/folder/b.png", b"x");
    let cases = [
        ("/view", 404),
        ("/view?filename=", 400),
        ("/view?filename=a.png", 200),
        ("/api/view?filename=a.png&rand=0.5&t=1", 200),
        ("/view?filename=a.png&type=input", 200),
        ("/view?filename=a.png&type=temp", 404),
        ("/view?filename=a.png&type=temp&subfolder=sub", 200),
        ("/view?filename=a.png&type=models", 400),
        ("/view?filename=a.png&type=", 400),
        ("/view?filename=/a.png", 400),
        ("/view?filename=../a.png", 400),
        ("/view?filename=a..png", 400),
        ("/view?filename=a.png&subfolder=..", 403),
        ("/view?filename=a.png&subfolder=../input", 403),
        ("/view?filename=a.png&subfolder=/", 403),
        ("/view?filename=a.png&subfolder=folder/..", 200),
        ("/view?filename=folder", 404),
        ("/view?filename=missing.png", 404),
        ("/view?filename=a.png&subfolder=missing", 404),
        ("/view?filename=%00", 400),
        ("/view?filename=a%5Cb.png", 400),
        ("/view?filename=CON", 400),
    ];
    for (path, status) in cases {
        assert_eq!(site.get(path).await.status, status, "{path}");
    }
    let long = format!("/view?filename={}", "a".repeat(5000));
    assert_eq!(site.get(&long).await.status, 400);
    assert_eq!(site.ask(Method::POST, "/view").await.status, 405);
}

#[tokio::test]
async fn files_that_are_being_written_are_not_shown() {
    let site = Site::new();
    let draft = ".gantry-AbC123.part";
    for folder in ["input", "output", "user/default", "user/default/workflows"] {
        site.write(&format!("{folder}/{draft}"), b"half");
    }
    for place in ["input", "output"] {
        assert_eq!(site.get(&format!("/view?filename={draft}&type={place}")).await.status, 400);
        assert_eq!(site.get(&format!("/internal/files/{place}")).await.json(), serde_json::json!([]));
    }
    assert_eq!(site.get(&format!("/userdata/{draft}")).await.status, 400);
    for path in ["/userdata?dir=workflows&recurse=true", "/v2/userdata?path=workflows"] {
        assert_eq!(site.get(path).await.json(), serde_json::json!([]), "{path}");
    }
    assert_eq!(site.post(&format!("/userdata/{draft}"), "x").await.status, 400);
}

#[tokio::test]
async fn a_note_in_the_name_chooses_the_folder() {
    let site = Site::new();
    site.write("output/a.png", b"out");
    site.write("input/a.png", b"in");
    site.write("temp/a.png", b"temp");
    assert_eq!(site.get("/view?filename=a.png").await.text(), "out");
    assert_eq!(site.get("/view?filename=a.png&type=input").await.text(), "in");
    assert_eq!(site.get("/view?filename=a.png%20[temp]").await.text(), "temp");
    assert_eq!(site.get("/view?filename=a.png+%5Binput%5D&type=output").await.text(), "in");
    assert_eq!(site.get("/view?filename=a.png%20[output]&type=nonsense").await.text(), "out");
}

#[tokio::test]
async fn only_the_last_part_of_a_name_counts() {
    let site = Site::new();
    site.write("output/a.png", b"out");
    site.write("output/sub/a.png", b"sub");
    assert_eq!(site.get("/view?filename=sub/a.png").await.text(), "out");
    assert_eq!(site.get("/view?filename=a.png&subfolder=sub").await.text(), "sub");
}

#[tokio::test]
async fn files_say_what_they_are() {
    let site = Site::new();
    site.write("output/a b.png", b"0123456789");
    site.write("output/写.mp4", b"x");
    let reply = site.get("/view?filename=a%20b.png").await;
    assert_eq!(reply.header("content-type"), "image/png");
    assert_eq!(reply.header("content-disposition"), "filename=\"a b.png\"");
    assert_eq!(reply.header("content-length"), "10");
    assert_eq!(reply.header("accept-ranges"), "bytes");
    assert!(reply.header("last-modified").ends_with(" GMT"));
    let reply = site.get("/view?filename=%E5%86%99.mp4").await;
    assert_eq!(reply.header("content-type"), "video/mp4");
    assert_eq!(reply.header("content-disposition"), "filename=\"写.mp4\"; filename*=UTF-8''%E5%86%99.mp4");
    let head = site.ask(Method::HEAD, "/view?filename=a%20b.png").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), "10");
}

#[tokio::test]
async fn parts_of_a_file() {
    let site = Site::new();
    site.write("output/a.mp4", b"0123456789");
    let path = "/view?filename=a.mp4";
    for (range, body, header) in [
        ("bytes=0-3", "0123", "bytes 0-3/10"),
        ("bytes=7-", "789", "bytes 7-9/10"),
        ("bytes=-2", "89", "bytes 8-9/10"),
        ("bytes=5-500", "56789", "bytes 5-9/10"),
    ] {
        let reply = site.get_with(path, &[("range", range)]).await;
        assert_eq!((reply.status, reply.text().as_str()), (206, body), "{range}");
        assert_eq!(reply.header("content-range"), header);
        assert_eq!(reply.header("content-length"), body.len().to_string());
    }
    let reply = site.get_with(path, &[("range", "bytes=10-")]).await;
    assert_eq!((reply.status, reply.header("content-range").as_str()), (416, "bytes */10"));
    let tag = site.get(path).await.header("etag");
    let reply = site.get_with(path, &[("range", "bytes=0-3"), ("if-range", &tag)]).await;
    assert_eq!(reply.status, 206);
    let reply = site.get_with(path, &[("range", "bytes=0-3"), ("if-range", "\"other\"")]).await;
    assert_eq!((reply.status, reply.body.len()), (200, 10), "another version is sent whole");
}

#[tokio::test]
async fn what_the_client_has_is_not_sent_again() {
    let site = Site::new();
    site.write("output/a.png", png(2, 2, &[1, 2, 3]));
    for path in
        ["/view?filename=a.png", "/view?filename=a.png&preview=webp;90", "/view?filename=a.png&channel=a"]
    {
        let first = site.get(path).await;
        let (tag, date) = (first.header("etag"), first.header("last-modified"));
        assert_eq!(first.status, 200);
        for (name, value) in [
            ("if-none-match", tag.clone()),
            ("if-none-match", format!("\"x\", W/{tag}")),
            ("if-none-match", "*".to_owned()),
            ("if-modified-since", date),
        ] {
            let reply = site.get_with(path, &[(name, &value)]).await;
            assert_eq!((reply.status, reply.body.len()), (304, 0), "{path} {name}: {value}");
        }
        assert_eq!(site.get_with(path, &[("if-none-match", "\"x\"")]).await.status, 200);
    }
    let tags = [
        site.get("/view?filename=a.png").await.header("etag"),
        site.get("/view?filename=a.png&channel=a").await.header("etag"),
        site.get("/view?filename=a.png&channel=rgb").await.header("etag"),
    ];
    assert!(tags[0] != tags[1] && tags[1] != tags[2] && tags[0] != tags[2]);
}

#[tokio::test]
async fn what_a_browser_could_run_is_only_handed_over() {
    let site = Site::new();
    for name in ["a.html", "a.js", "a.css", "a.svg", "a.xml", "a.xhtml"] {
        site.write(&format!("output/{name}"), b"<script>");
        let reply = site.get(&format!("/view?filename={name}")).await;
        assert_eq!(reply.header("content-type"), "application/octet-stream", "{name}");
        assert_eq!(reply.header("content-disposition"), format!("attachment; filename=\"{name}\""));
        assert_eq!(reply.header("x-content-type-options"), "nosniff");
    }
    let painted = site.get_with("/view?filename=a.svg", &[("sec-fetch-dest", "image")]).await;
    assert_eq!(painted.header("content-type"), "image/svg+xml");
    assert_eq!(painted.header("content-disposition"), "filename=\"a.svg\"");
    let opened = site.get_with("/view?filename=a.svg", &[("sec-fetch-dest", "document")]).await;
    assert_eq!(opened.header("content-type"), "application/octet-stream");
}

#[tokio::test]
async fn pictures_in_other_shapes() {
    let site = Site::new();
    site.write("output/a.png", png(4, 3, &[10, 20, 30, 77]));
    site.write("output/opaque.png", png(4, 3, &[10, 20, 30]));
    let colours = site.get("/view?filename=a.png&channel=rgb").await;
    assert_eq!(colours.header("content-type"), "image/png");
    assert_eq!(colours.header("content-disposition"), "filename=\"a.png\"");
    let pixels = decode_pixels(&colours.body).unwrap();
    assert_eq!((pixels.channels, &pixels.bytes[..3]), (3, &[10, 20, 30][..]));
    let alpha = decode_pixels(&site.get("/view?filename=a.png&channel=a").await.body).unwrap();
    assert_eq!((alpha.channels, &alpha.bytes[..4]), (4, &[0, 0, 0, 77][..]));
    let alpha = decode_pixels(&site.get("/view?filename=opaque.png&channel=a").await.body).unwrap();
    assert_eq!(&alpha.bytes[..4], &[0, 0, 0, 255]);
    let stored = site.get("/view?filename=a.png&channel=rgba").await;
    assert_eq!(stored.body, site.read("output/a.png"));
    for (query, kind) in [
        ("preview=webp;90", "image/webp"),
        ("preview=jpeg;80", "image/jpeg"),
        ("preview=jpeg", "image/jpeg"),
        ("preview=gif;80", "image/webp"),
        ("preview=jpeg;80&channel=rgba", "image/webp"),
    ] {
        let reply = site.get(&format!("/view?filename=a.png&{query}")).await;
        assert_eq!((reply.status, reply.header("content-type").as_str()), (200, kind), "{query}");
        let pixels = decode_pixels(&reply.body).unwrap();
        assert_eq!((pixels.width, pixels.height), (4, 3));
    }
}

#[tokio::test]
async fn what_is_no_picture_stays_as_it_is() {
    let site = Site::new();
    site.write("output/a.mp4", b"no picture");
    let reply = site.get("/view?filename=a.mp4&preview=webp;75").await;
    assert_eq!((reply.status, reply.text().as_str()), (200, "no picture"));
    assert_eq!(reply.header("content-type"), "video/mp4");
    assert_eq!(site.get("/view?filename=a.mp4&channel=rgb").await.status, 400);
}
