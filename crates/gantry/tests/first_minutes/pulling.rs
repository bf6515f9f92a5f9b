//! `gantry pull` against a hub on this machine: what would come, how it would fit, what comes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::Value;
use testkit::ScratchDir;

use crate::{demo, program};

/// Published workflows, beside the checkout.
const WORKFLOWS: &str = "../../../shared/workflows";

/// A hub on which every file is the demo model. It ends with the process.
struct LocalHub {
    endpoint: String,
    sent: Arc<AtomicU64>,
}

impl LocalHub {
    fn start() -> LocalHub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let bytes = Arc::new(fs::read(demo("demo-flux.safetensors")).unwrap());
        let sent = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&sent);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (bytes, sent) = (Arc::clone(&bytes), Arc::clone(&counted));
                // A client that hangs up is none of the server's business.
                std::thread::spawn(move || answer(&stream, &bytes, &sent));
            }
        });
        LocalHub { endpoint, sent }
    }

    fn pull(&self, folder: &Path, arguments: &[&str]) -> Output {
        let devices = ["--cpu", "--sim-device", "64mb@1gbps@1tflops"];
        let mut command = program(folder, &[&["pull"], arguments, &devices].concat());
        command.env("HF_ENDPOINT", &self.endpoint).env_remove("HF_TOKEN").output().unwrap()
    }
}

fn answer(mut stream: &TcpStream, bytes: &[u8], sent: &AtomicU64) -> std::io::Result<()> {
    let mut range = None;
    for line in BufReader::new(stream).lines() {
        let line = line?.to_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some((first, last)) =
            line.strip_prefix("range: bytes=").and_then(|range| range.split_once('-'))
        {
            range = Some((first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap()));
        }
    }
    let (first, last) = range.unwrap_or((0, bytes.len() - 1));
    let part = &bytes[first..=last.min(bytes.len() - 1)];
    sent.fetch_add(part.len() as u64, Ordering::Relaxed);
    write!(
        stream,
        "HTTP/1.1 206 Partial Content\r\ncontent-range: bytes {first}-{}/{}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        first + part.len() - 1,
        bytes.len(),
        part.len()
    )?;
    stream.write_all(part)
}

fn told(output: &Output) -> String {
    [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat()
}

#[test]
fn how_a_model_would_fit_is_told_before_it_is_fetched() {
    let (dir, hub) = (ScratchDir::new().unwrap(), LocalHub::start());
    let address = "hf:someone/something/split_files/diffusion_models/model.safetensors";
    let dry = hub.pull(dir.path(), &[address, "--dry-run"]);
    assert!(dry.status.success(), "{}", told(&dry));
    assert!(
        told(&dry).contains("missing: ") && told(&dry).contains("fits whole on sim:0, "),
        "{}",
        told(&dry)
    );
    let size = fs::metadata(demo("demo-flux.safetensors")).unwrap().len();
    let before = hub.sent.load(Ordering::Relaxed);
    assert!(before < size / 4, "{before} of {size} bytes moved for an answer");
    assert!(!dir.join("models").exists(), "a dry run made a folder");

    let whole = hub.pull(dir.path(), &[address, "--json"]);
    let rows: Value = serde_json::from_slice(&whole.stdout).unwrap_or_else(|_| panic!("{}", told(&whole)));
    assert_eq!(rows[0]["state"], "fetched");
    assert!(rows[0]["fits"].as_str().unwrap().contains("per step"), "{rows}");
    let path = rows[0]["path"].as_str().unwrap();
    assert_eq!(fs::read(path).unwrap(), fs::read(demo("demo-flux.safetensors")).unwrap());
}

#[test]
fn what_is_no_model_is_fetched_without_a_word_about_fitting() {
    let (dir, hub) = (ScratchDir::new().unwrap(), LocalHub::start());
    let output = hub.pull(dir.path(), &["hf:someone/something/x.safetensors", "--into", "loras", "--json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
    assert_eq!((&rows[0]["state"], &rows[0]["fits"]), (&Value::from("fetched"), &Value::Null));
}

/// Every published workflow that names its models, with the names of their files. Those that name files elsewhere than on
/// the hub, which would be asked for from here, are left out.
fn templates() -> BTreeMap<PathBuf, BTreeSet<String>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(WORKFLOWS)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|ending| ending == "json") {
                let file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
                let mut urls = BTreeSet::new();
                collect(&file, &mut urls);
                if !urls.is_empty() && urls.iter().all(|url| url.starts_with("https://huggingface.co/")) {
                    let name =
                        |url: &String| url.split('?').next().unwrap().rsplit('/').next().unwrap().to_owned();
                    found.insert(path, urls.iter().map(name).collect());
                }
            }
        }
    }
    found
}

fn collect(value: &Value, urls: &mut BTreeSet<String>) {
    let models = value["properties"]["models"].as_array().into_iter().flatten();
    urls.extend(models.filter_map(|model| model["url"].as_str().map(str::to_owned)));
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, urls)),
        Value::Object(values) => values.values().for_each(|value| collect(value, urls)),
        _ => {}
    }
}

#[test]
fn published_templates_list_their_models() {
    let (dir, hub) = (ScratchDir::new().unwrap(), LocalHub::start());
    let templates = templates();
    if templates.is_empty() {
        println!("not run: there are no published workflows beside the checkout");
        return;
    }
    let paths: Vec<&str> = templates.keys().map(|path| path.to_str().unwrap()).collect();
    let output = hub.pull(dir.path(), &[&paths[..], &["--dry-run", "--json"]].concat());
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", told(&output)));
    let listed: Vec<&str> = rows
        .as_array()
        .unwrap()
        .iter()
        .filter(|row| row["state"] == "missing")
        .map(|row| row["address"].as_str().unwrap())
        .collect();
    for (path, names) in &templates {
        for name in names {
            assert!(listed.iter().any(|row| row.ends_with(name)), "{}: {name} in {listed:?}", path.display());
        }
    }
    println!("{} workflows name {} files", templates.len(), listed.len());
}
