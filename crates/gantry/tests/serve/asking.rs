//! `gantry ps`, `stop` and `free` ask a running server; what the server tells of its start and its end.

use std::process::{Command, Output};
use std::time::Duration;

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::AUTOENCODER;
use crate::server::Server;

/// A decode that takes minutes on a CPU.
fn endless() -> Value {
    json!({
        "1": { "class_type": "VAELoader", "inputs": { "vae_name": AUTOENCODER } },
        "2": { "class_type": "EmptySD3LatentImage",
            "inputs": { "width": 4096, "height": 4096, "batch_size": 1 } },
        "3": { "class_type": "VAEDecode", "inputs": { "samples": ["2", 0], "vae": ["1", 0] } },
        "4": { "class_type": "PreviewImage", "inputs": { "images": ["3", 0] } },
    })
}

fn ask(server: &Server, words: &[&str], token: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(words).args(["--server", &format!("http://{}", server.address())]);
    command.env("GANTRY_CONFIG", "").env_remove("GANTRY_TOKEN");
    command.envs(token.map(|token| ("GANTRY_TOKEN", token)));
    command.output().unwrap()
}

#[track_caller]
fn json_of(server: &Server, words: &[&str]) -> Value {
    let output = ask(server, &[words, &["--json"]].concat(), None);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {told}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn jobs_are_shown_and_stopped() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    assert_eq!(json_of(&server, &["ps"])["jobs"], json!([]));
    assert_eq!(json_of(&server, &["stop"])["stopped"], json!([]));
    let mut second = endless();
    second["2"]["inputs"]["width"] = json!(4080);
    let (first, second) = (server.queue(&endless()), server.queue(&second));
    server.until("the job", |server| server.jobs().0 == [first.as_str()]);
    let shown = json_of(&server, &["ps"]);
    let ids: Vec<&Value> = shown["jobs"].as_array().unwrap().iter().map(|job| &job["id"]).collect();
    assert!(ids.contains(&&json!(first)) && ids.contains(&&json!(second)), "{shown}");
    let text = String::from_utf8(ask(&server, &["ps"], None).stdout).unwrap();
    assert!(text.contains(&format!("{first}  runs")) && text.contains(&format!("{second}  waits")), "{text}");

    assert_eq!(json_of(&server, &["stop"])["stopped"], json!([first]));
    server.until("the next job", |server| server.jobs().0 == [second.as_str()]);
    let unknown = ask(&server, &["stop", "00000000-0000-0000-0000-000000000000"], None);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("`gantry ps` shows those that do"));
    assert_eq!(json_of(&server, &["stop", "--all"])["stopped"], json!([second]));
    server.until("an empty queue", |server| server.jobs().0.is_empty());
    assert_eq!(json_of(&server, &["free", "--free-memory"])["asked"]["free_memory"], json!(true));
}

#[test]
fn a_token_is_taken_from_its_variable_and_shown_nowhere() {
    let folder = ScratchDir::new().unwrap();
    let file = folder.path().join("token");
    std::fs::write(&file, "s3cret\n").unwrap();
    let server = Server::start(folder.path(), &["--token-file", file.to_str().unwrap()]);
    let refused = ask(&server, &["ps"], None);
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("GANTRY_TOKEN"), "{told}");
    assert!(ask(&server, &["ps"], Some("s3cret")).status.success());
    assert!(!ask(&server, &["ps"], Some("wrong")).status.success());
    let log = server.log();
    assert!(log.contains("?token=TOKEN") && !log.contains("s3cret"), "{log}");
}

#[cfg(unix)]
#[test]
fn a_stop_says_what_becomes_of_the_queue_and_the_file_has_the_log() {
    let folder = ScratchDir::new().unwrap();
    let file = folder.path().join("server.log");
    let server =
        Server::start(folder.path(), &["--log-file", file.to_str().unwrap(), "--quiet", "--verbose", "INFO"]);
    server.terminate();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "", "a quiet server tells warnings only");

    let server = Server::start(folder.path(), &["--log-file", file.to_str().unwrap()]);
    let first = server.queue(&endless());
    server.queue(&endless());
    server.until("the job", |server| server.jobs().0 == [first.as_str()]);
    std::thread::sleep(Duration::from_millis(300));
    server.terminate();
    let log = std::fs::read_to_string(&file).unwrap();
    assert!(log.contains("stopping: the running job and 1 that wait go on at the next start"), "{log}");
    assert!(log.contains("got prompt"), "{log}");
    // The day and the time of day, to the second.
    let first = log.lines().next().unwrap();
    let stamp: String = first.chars().take(19).map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    assert_eq!(stamp, "0000-00-00 00:00:00", "{first}");
}

#[test]
fn rust_log_goes_before_the_flags_and_programs_learn_where_it_listens() {
    let folder = ScratchDir::new().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["serve", "--cpu", "--port", "0", "--json", "--base-directory"]).arg(folder.path());
    command.env("RUST_LOG", "nonsense=[").stdin(std::process::Stdio::null());
    let output = command.output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("RUST_LOG=nonsense=["), "{told}");
    command
        .env("RUST_LOG", "error")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut line).unwrap();
    child.kill().unwrap();
    let ended = child.wait_with_output().unwrap();
    let told: Value = serde_json::from_str(&line).unwrap();
    assert!(told["url"].as_str().unwrap().starts_with("http://127.0.0.1:"), "{told}");
    assert!(ended.stderr.is_empty(), "{}", String::from_utf8_lossy(&ended.stderr));
}
