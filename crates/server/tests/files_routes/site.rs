//! A server's file routes over folders of their own, and requests to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, Method, Request};
use nodes::picture::Pixels;
use runtime::Folders;
use serde_json::Value;
use server::files::{FilesConfig, routes};
use tempfile::TempDir;
use tower::ServiceExt;

/// The folders `input`, `output`, `temp`, `user`, `models`, and `web` for the front end, in one that goes away.
pub(crate) struct Site {
    folder: TempDir,
    pub(crate) config: Arc<FilesConfig>,
    pub(crate) router: Router,
}

impl Site {
    pub(crate) fn new() -> Site {
        Site::with(|_, _| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut FilesConfig, &Path)) -> Site {
        let folder = tempfile::tempdir().unwrap();
        let base = folder.path().canonicalize().unwrap();
        let mut config = FilesConfig { folders: Folders::at(&base), ..FilesConfig::default() };
        for name in ["input", "output", "temp", "user", "models"] {
            std::fs::create_dir(base.join(name)).unwrap();
        }
        change(&mut config, &base);
        let config = Arc::new(config);
        let router = routes(&config);
        Site { folder, config, router }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.folder.path().canonicalize().unwrap().join(path)
    }

    pub(crate) fn write(&self, path: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    pub(crate) fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.path(path)).unwrap()
    }

    /// The names in a folder, sorted; hidden ones too.
    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(path)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) async fn send(&self, request: Request<Body>) -> Reply {
        let response = self.router.clone().oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, usize::MAX).await.unwrap().to_vec();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body }
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Reply {
        let mut request = Request::get(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(Body::empty()).unwrap()).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl Into<Body>) -> Reply {
        self.send(Request::post(path).header("content-type", "text/plain").body(body.into()).unwrap()).await
    }

    pub(crate) async fn ask(&self, method: Method, path: &str) -> Reply {
        self.send(Request::builder().method(method).uri(path).body(Body::empty()).unwrap()).await
    }
}

/// An answer with all its bytes.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn json(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text());
        assert_eq!(self.header("content-type"), "application/json; charset=utf-8");
        serde_json::from_slice(&self.body).unwrap()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's text; empty if it is not there.
    pub(crate) fn header(&self, name: &str) -> String {
        self.headers
            .get(name)
            .map_or_else(String::new, |value| String::from_utf8_lossy(value.as_bytes()).into_owned())
    }
}

/// A form with texts and, after them or before, a file in `image`.
#[derive(Default)]
pub(crate) struct Form {
    body: Vec<u8>,
}

impl Form {
    pub(crate) const KIND: &str = "multipart/form-data; boundary=edge";

    pub(crate) fn text(mut self, name: &str, text: &str) -> Form {
        let part = format!("--edge\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{text}\r\n");
        self.body.extend_from_slice(part.as_bytes());
        self
    }

    pub(crate) fn file(mut self, name: &str, bytes: &[u8]) -> Form {
        self.body.extend_from_slice(Form::file_start(name).as_bytes());
        self.body.extend_from_slice(bytes);
        self.body.extend_from_slice(b"\r\n");
        self
    }

    pub(crate) fn file_start(name: &str) -> String {
        let kind = "Content-Type: application/octet-stream";
        format!(
            "--edge\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n{kind}\r\n\r\n"
        )
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.body.extend_from_slice(b"--edge--\r\n");
        self.body
    }

    pub(crate) async fn post(self, site: &Site, path: &str) -> Reply {
        let request = Request::post(path).header("content-type", Form::KIND);
        site.send(request.body(Body::from(self.end())).unwrap()).await
    }
}

/// A picture of one colour, 3 or 4 channels.
pub(crate) fn png(width: usize, height: usize, colour: &[u8]) -> Vec<u8> {
    png_with_text(width, height, colour, &[])
}

pub(crate) fn png_with_text(
    width: usize,
    height: usize,
    colour: &[u8],
    text: &[(String, String)],
) -> Vec<u8> {
    let pixels = Pixels { width, height, channels: colour.len(), bytes: colour.repeat(width * height) };
    nodes::picture::png_of(&pixels, 1, text).unwrap()
}
