//! Names that try to leave their folder, at every route that takes a name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use axum::http::Method;

use crate::site::{Form, Site};

const SECRET: &str = "the secret";

/// Ways up, in the spellings that servers have fallen for. Each is put before a path from the root of the site.
const WAYS: &[&str] = &[
    "../",
    "../../",
    "a/../../",
    "./../",
    "..//",
    "%2e%2e%2f",
    "%2e%2e/",
    "..%2f",
    "%252e%252e%252f",
    "..%252f",
    "%25252e%25252e%25252f",
    "..%5c",
    "%5c..%5c",
    "..%255c",
    "....//",
    "..%00/",
    "%c0%ae%c0%ae/",
    "%ff../",
    "..;/",
    "%e2%80%a5/",
    "/",
    "//",
    "%2f",
    "%252f",
    "file:///",
    "C:%5c",
    "link/../../",
    "link%2f..%2f..%2f",
];

/// What they lead to: a file beside the folders, one of another user, and the absolute path of the first.
fn goals(site: &Site) -> Vec<String> {
    let absolute = site.path("secret.txt");
    let absolute = absolute.to_str().unwrap().trim_start_matches('/').to_owned();
    ["secret.txt", "__system/secret.txt", "user/__system/secret.txt", "default/../__system/secret.txt"]
        .into_iter()
        .map(str::to_owned)
        .chain([absolute])
        .collect()
}

fn site() -> Site {
    let site = Site::with(|config, base| {
        config.front_end = Some(base.join("web"));
        config.templates = vec![base.join("templates")];
        config.docs = Some(base.join("docs"));
    });
    for path in ["secret.txt", "user/__system/secret.txt", "models/secret.txt", "secret.safetensors"] {
        site.write(path, SECRET);
    }
    for folder in ["web", "templates", "docs", "user/default", "input", "output", "temp", "models/loras"] {
        site.write(&format!("{folder}/inside.txt"), "inside");
        #[cfg(unix)]
        std::os::unix::fs::symlink(site.path("elsewhere"), site.path(&format!("{folder}/link"))).unwrap();
    }
    std::fs::create_dir(site.path("elsewhere")).unwrap();
    site
}

/// Every file of the site outside the folders that may be written, with its bytes.
fn protected(site: &Site) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap().file_type();
            if kind.is_dir() {
                files.insert(path.clone(), Vec::new());
                walk(&path, files);
            } else if kind.is_file() {
                files.insert(path.clone(), std::fs::read(&path).unwrap());
            }
        }
    }
    let mut files = BTreeMap::new();
    walk(&site.path(""), &mut files);
    let open = ["input", "output", "temp", "user/default"].map(|folder| site.path(folder));
    files.retain(|path, _| !open.iter().any(|folder| path.starts_with(folder)));
    files
}

#[tokio::test]
async fn nothing_outside_is_read() {
    let site = site();
    let mut asked = 0;
    for way in WAYS {
        for goal in goals(&site) {
            let name = format!("{way}{goal}");
            let segment = name.replace('/', "%2F");
            let paths = [
                format!("/{name}"),
                format!("/templates/{name}"),
                format!("/docs/{name}"),
                format!("/extensions/{name}"),
                format!("/view?filename={name}"),
                format!("/view?filename={name}%20[input]"),
                format!("/view?filename=secret.txt&subfolder={way}"),
                format!("/view?filename=inside.txt&subfolder={name}&preview=webp"),
                format!("/userdata/{segment}"),
                format!("/userdata/{name}"),
                format!("/userdata?dir={name}"),
                format!("/v2/userdata?path={name}"),
                format!("/view_metadata/loras?filename={name}"),
                format!("/view_metadata/{segment}?filename=secret.safetensors"),
                format!("/experiment/models/preview/loras/0/{name}"),
                format!("/models/{segment}"),
                format!("/internal/files/{segment}"),
            ];
            for path in paths {
                // What cannot even be sent need not be refused.
                if path.parse::<axum::http::Uri>().is_err() {
                    continue;
                }
                let reply = site.get(&path).await;
                asked += 1;
                assert!(!reply.text().contains(SECRET), "{path}");
                assert!((400..500).contains(&reply.status), "{path}: {} {}", reply.status, reply.text());
            }
        }
    }
    assert!(asked > 1500, "{asked}");
}

#[tokio::test]
async fn nothing_outside_is_written() {
    let site = site();
    let before = protected(&site);
    for way in WAYS {
        for goal in goals(&site) {
            let segment = format!("{way}{goal}").replace('/', "%2F");
            let paths = [
                format!("/userdata/{segment}"),
                format!("/userdata/inside.txt/move/{segment}"),
                format!("/userdata/{segment}/move/taken.txt"),
            ];
            for path in paths {
                let status = site.post(&path, "written").await.status;
                assert!(status < 500, "{path}: {status}");
                site.write("user/default/inside.txt", "inside");
            }
            let status = site.ask(Method::DELETE, &format!("/userdata/{segment}")).await.status;
            assert!(status < 500, "{segment}: {status}");
            let name = format!("{way}{goal}");
            for (name, subfolder) in [(name.as_str(), ""), ("secret.txt", name.as_str()), ("x", *way)] {
                for place in ["input", "output", "temp"] {
                    let form = Form::default().file(name, b"written").text("subfolder", subfolder);
                    let form = form.text("type", place).text("overwrite", "true");
                    let status = form.post(&site, "/upload/image").await.status;
                    assert!(status < 500, "{name} {subfolder}: {status}");
                }
            }
        }
        assert_eq!(protected(&site), before, "{way}");
    }
    assert!(site.names("elsewhere").is_empty());
}
