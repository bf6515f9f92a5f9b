//! What must be refused, and what must not.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::classes::{catalogue, config, runtime, start, start_with};
use super::client::{get, post, raw, read, request};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_sites_cannot_use_a_local_server() {
    let server = start().await;
    let host = server.addresses()[0].to_string();
    let origin = format!("http://{host}");
    let ask = async |headers: &[(&str, &str)]| request(&server, "GET /prompt", headers, b"").await.status;
    assert_eq!(ask(&[("host", &host), ("origin", &origin)]).await, 200);
    assert_eq!(ask(&[("host", &host), ("origin", "http://evil.example")]).await, 403);
    assert_eq!(ask(&[("host", &host)]).await, 200, "programs have no origin");
    assert_eq!(ask(&[("host", &host), ("origin", "null")]).await, 403);
    assert_eq!(ask(&[("host", "evil.example")]).await, 403, "a name that leads here");
    assert_eq!(ask(&[("host", &host), ("origin", "null"), ("sec-fetch-site", "cross-site")]).await, 403);
    let upgrade = [
        ("host", host.as_str()),
        ("origin", "http://evil.example"),
        ("connection", "upgrade"),
        ("upgrade", "websocket"),
        ("sec-websocket-version", "13"),
        ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
    ];
    assert_eq!(request(&server, "GET /ws", &upgrade, b"").await.status, 403);
    assert_eq!(request(&server, "OPTIONS /anything", &[("host", &host)], b"").await.status, 200);
    assert_eq!(request(&server, "GET /interrupt", &[("host", &host)], b"").await.status, 404);
    assert_eq!(request(&server, "PUT /prompt", &[("host", &host)], b"").await.status, 405);
    server.stop().await;
}

/// The headers that ask for a WebSocket.
const UPGRADE: &str = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                       sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_without_a_server_of_their_own_are_foreign() {
    let server = start().await;
    let host = server.addresses()[0].to_string();
    for origin in ["null", "file://", "file:///home/a/page.html", "file://localhost", "data:text/html,x"] {
        let head = format!("host: {host}\r\norigin: {origin}\r\n");
        for start in [
            "GET /prompt",
            "POST /free",
            "POST /prompt",
            "POST /upload/image",
            "DELETE /userdata/a",
            "OPTIONS /free",
        ] {
            let text =
                format!("{start} HTTP/1.1\r\n{head}connection: close\r\ncontent-length: 2\r\n\r\n{{}}");
            assert_eq!(raw(&server, &text).await.status, 403, "{start} from {origin}");
        }
        let text = format!("GET /ws HTTP/1.1\r\n{head}{UPGRADE}\r\n");
        let mut stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        stream.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 403", "a socket from {origin}");
    }
    let free =
        format!("POST /free HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{{}}");
    assert_eq!(raw(&server, &free).await.status, 200, "a program without an origin is let in");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_names_one_host() {
    let server = start().await;
    let host = server.addresses()[0].to_string();
    let named = format!("host: {host}\r\n");
    let whole = format!("GET http://{host}/prompt HTTP/1.1\r\n");
    let cases = [
        ("GET /prompt HTTP/1.1\r\n".to_owned(), String::new(), 400),
        ("GET /prompt HTTP/1.1\r\n".to_owned(), named.repeat(2), 400),
        ("GET /prompt HTTP/1.1\r\n".to_owned(), format!("{named}host: evil.example\r\n"), 400),
        ("GET /prompt HTTP/1.0\r\n".to_owned(), named.repeat(2), 400),
        ("GET /prompt HTTP/1.1\r\n".to_owned(), "host: \u{fc}\r\n".to_owned(), 400),
        ("GET /prompt HTTP/1.1\r\n".to_owned(), "host: \r\n".to_owned(), 403),
        ("GET /prompt HTTP/1.1\r\n".to_owned(), named.clone(), 200),
        // HTTP/1.0 knows no Host header, so it may be missing, but then no page of any site may be asking.
        ("GET /prompt HTTP/1.0\r\n".to_owned(), String::new(), 200),
        ("GET /prompt HTTP/1.0\r\n".to_owned(), format!("origin: http://{host}\r\n"), 403),
        (whole.clone(), named.clone(), 200),
        (whole.clone(), String::new(), 400),
        (whole, "host: localhost\r\n".to_owned(), 400),
        ("GET http://evil.example/prompt HTTP/1.1\r\n".to_owned(), named, 400),
        ("GET http://evil.example/prompt HTTP/1.1\r\n".to_owned(), "host: evil.example\r\n".to_owned(), 403),
        ("GET http://evil.example/prompt HTTP/1.0\r\n".to_owned(), String::new(), 403),
    ];
    for (line, headers, status) in cases {
        let answer = raw(&server, &format!("{line}{headers}connection: close\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{line}{headers}");
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_allowed_origin_replaces_the_check() {
    let mut allowing = config();
    allowing.cors_origin = Some("https://runtime.example".to_owned());
    let server = start_with(allowing).await;
    let host = server.addresses()[0].to_string();
    let headers = [("host", host.as_str()), ("origin", "http://other.example")];
    let answer = request(&server, "OPTIONS /prompt", &headers, b"").await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("access-control-allow-origin"), Some("https://runtime.example"));
    assert_eq!(answer.header("access-control-allow-headers"), Some("Content-Type, Authorization"));
    assert_eq!(answer.header("access-control-allow-methods"), Some("POST, GET, DELETE, PUT, OPTIONS, PATCH"));
    assert_eq!(request(&server, "GET /prompt", &headers, b"").await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_asked_for_everywhere() {
    let mut guarded = config();
    guarded.token = Some("s3cret".to_owned());
    let server = start_with(guarded).await;
    for path in ["/", "/prompt", "/api/jobs", "/ws", "/view?filename=a", "/gantry/models", "/internal/logs"] {
        assert_eq!(get(&server, path).await.status, 401, "{path}");
    }
    let headers = [("host", "localhost"), ("authorization", "Bearer s3cret")];
    assert_eq!(request(&server, "GET /prompt", &headers, b"").await.status, 200);
    let page = [("host", "localhost"), ("accept", "text/html")];
    let answer = request(&server, "GET /?token=s3cret", &page, b"").await;
    assert_eq!((answer.status, answer.header("location")), (303, Some("/")));
    let cookie = answer.header("set-cookie").unwrap().split(';').next().unwrap().to_owned();
    let headers = [("host", "localhost"), ("cookie", cookie.as_str())];
    assert_eq!(request(&server, "GET /prompt", &headers, b"").await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_open_server_without_a_token_does_not_start() {
    let mut open = config();
    open.listen = vec!["0.0.0.0".to_owned()];
    let refused =
        server::Server::start(open.clone(), engine::EngineConfig::default(), catalogue(), runtime()).await;
    assert!(matches!(refused, Err(server::Error::TokenNeeded { .. })));
    open.allow_without_token = true;
    open.listen = vec!["0.0.0.0,::".to_owned()];
    let server = start_with(open).await;
    assert!(server.url().starts_with("http://127.0.0.1:") || server.url().starts_with("http://[::1]:"));
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_are_refused_before_and_while_they_come() {
    let mut small = config();
    small.max_upload_bytes = 1000;
    let server = start_with(small).await;
    let answer = request(&server, "POST /prompt", &[("host", "localhost")], &vec![b' '; 300_000]).await;
    assert_eq!(answer.status, 413);
    let mut stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
    stream
        .write_all(b"POST /prompt HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n")
        .await
        .unwrap();
    for _ in 0..3 {
        stream.write_all(format!("1f4\r\n{}\r\n", " ".repeat(500)).as_bytes()).await.unwrap();
    }
    stream.write_all(b"0\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream).await.status, 413);
    assert_eq!(post(&server, "/free", &json!({ "force": true, "unload_models": true })).await.status, 200);
    server.stop().await;
}
