//! The programs of a cluster on one machine: nats-server, a front, workers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::http::{self, Answer};
use crate::prompts;

const PATIENCE: Duration = Duration::from_secs(60);
const LINE: &str = "To see the GUI go to: http://";
/// Seconds after which a job of a dead worker runs elsewhere.
const LEASE: &str = "2";

/// The program.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.env("GANTRY_CACHE_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches").join("cluster"));
    command.stdin(Stdio::null());
    command
}

/// Waits until a condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let since = Instant::now();
    while !holds() {
        assert!(since.elapsed() < PATIENCE, "{what} does not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A nats-server with its files in a scratch folder.
pub(crate) struct Nats {
    port: u16,
    child: Child,
    folder: ScratchDir,
    extra: Vec<String>,
}

impl Nats {
    pub(crate) fn start(extra: &[&str]) -> Option<Nats> {
        if Command::new("nats-server").arg("--version").output().is_err() {
            let needed = std::env::var_os("GANTRY_NEED_NATS").is_some_and(|said| said == "1");
            assert!(
                !needed,
                "nats-server is not installed (apt-get install nats-server), and GANTRY_NEED_NATS=1 needs it"
            );
            eprintln!(
                "SKIPPED: nats-server is not installed (apt-get install nats-server): nothing was tested"
            );
            return None;
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = ScratchDir::new().unwrap();
        let extra: Vec<String> = extra.iter().map(|word| (*word).to_owned()).collect();
        let child = spawn(port, &folder, &extra);
        Some(Nats { port, child, folder, extra })
    }

    /// Kills it, as `kill -9` does.
    pub(crate) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Kills it, as `kill -9` does, if it is there, and starts it anew on its files.
    pub(crate) fn restart(&mut self) {
        self.stop();
        self.child = spawn(self.port, &self.folder, &self.extra);
    }

    pub(crate) fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port)
    }
}

impl Drop for Nats {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, folder: &ScratchDir, extra: &[String]) -> Child {
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-js", "-p", &port.to_string(), "-sd"]).arg(folder.path());
    let child = command.args(extra).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    until("nats-server listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    child
}

/// A front and its workers, each with folders of its own.
pub(crate) struct Machines {
    queue: String,
    folder: ScratchDir,
    front: Option<(Child, SocketAddr)>,
    workers: HashMap<String, Child>,
}

impl Machines {
    pub(crate) fn new(nats: &Nats) -> Machines {
        let folder = ScratchDir::new().unwrap();
        Machines { queue: nats.address(), folder, front: None, workers: HashMap::new() }
    }

    fn start(&self, command: &str, folder: &str, more: &[&str]) -> (Child, String) {
        self.start_as(program(), command, folder, more)
    }

    fn start_as(&self, mut starting: Command, command: &str, folder: &str, more: &[&str]) -> (Child, String) {
        let base = self.folder.join(folder);
        std::fs::create_dir_all(&base).unwrap();
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(format!("{folder}.log")))
            .unwrap();
        starting.args([command, "--cpu", "--testing-nodes", "--queue", &self.queue, "--queue-lease", LEASE]);
        starting.arg("--base-directory").arg(&base).args(more);
        let mut child = starting.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "{command} ended: {}", self.log(folder));
        (child, line)
    }

    pub(crate) fn log(&self, folder: &str) -> String {
        std::fs::read_to_string(self.folder.join(format!("{folder}.log"))).unwrap_or_default()
    }

    pub(crate) fn start_front(&mut self) {
        let (child, line) = self.start("serve", "front", &["--port", "0"]);
        let address = line[LINE.len()..].trim().parse().unwrap();
        self.front = Some((child, address));
    }

    /// Kills the front, as `kill -9` does, and starts one with empty folders.
    pub(crate) fn restart_front(&mut self) {
        self.kill_front();
        std::fs::remove_dir_all(self.folder.join("front")).unwrap();
        self.start_front();
    }

    pub(crate) fn kill_front(&mut self) {
        let (mut child, _) = self.front.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    pub(crate) fn front_address(&self) -> Option<SocketAddr> {
        self.front.as_ref().map(|(_, address)| *address)
    }

    /// Kills the worker that was started under this name.
    pub(crate) fn kill_worker_called(&mut self, name: &str) {
        let own = |told: &&String| told.rsplit_once('-').is_some_and(|(own, _)| own == name);
        let told = self.workers.keys().find(own).unwrap().clone();
        self.kill_worker(&told);
    }

    /// The last lines of all logs.
    pub(crate) fn end_of_logs(&self) -> String {
        let logs = ["front", "one", "two", "three"].map(|name| {
            let log = self.log(name);
            let lines: Vec<&str> = log.lines().collect();
            format!("--- {name}\n{}\n", lines[lines.len().saturating_sub(15)..].join("\n"))
        });
        logs.concat()
    }

    /// Puts the model that comes with the program into the folders of a worker that will be started, as its own.
    pub(crate) fn put_demo_model(&self, name: &str) {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo");
        let files = [
            ("diffusion_models", prompts::FLUX),
            ("text_encoders", prompts::CLIP_L),
            ("text_encoders", prompts::T5),
            ("vae", prompts::AUTOENCODER),
        ];
        for (kind, file) in files {
            let folder = self.folder.join(name).join("models").join(kind);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(demo.join(file), folder.join(file.replace("demo-", "own-"))).unwrap();
        }
    }

    pub(crate) fn start_worker(&mut self, name: &str) {
        self.start_worker_of(name, "default");
    }

    pub(crate) fn start_worker_of(&mut self, name: &str, pool: &str) {
        let (child, line) = self.start("worker", name, &["--name", name, "--pool", pool, "--json"]);
        let told: Value = serde_json::from_str(&line).unwrap();
        self.workers.insert(told["worker"].as_str().unwrap().to_owned(), child);
    }

    /// A worker that can write files of so many bytes and none that is larger, as on a disk that is nearly full.
    pub(crate) fn start_worker_with_room(&mut self, name: &str, bytes: usize) {
        let mut command = Command::new("sh");
        let limited = format!("trap '' XFSZ; ulimit -f {}; exec \"$@\"", bytes / 512);
        command.args(["-c", &limited, "sh", env!("CARGO_BIN_EXE_gantry")]);
        command.envs(program().get_envs().filter_map(|(key, value)| Some((key, value?))));
        command.stdin(Stdio::null());
        let (child, line) = self.start_as(command, "worker", name, &["--name", name, "--json"]);
        let told: Value = serde_json::from_str(&line).unwrap();
        self.workers.insert(told["worker"].as_str().unwrap().to_owned(), child);
    }

    /// Sends a signal to a worker.
    pub(crate) fn signal(&self, name: &str, signal: &str) {
        let id = self.workers[name].id().to_string();
        assert!(Command::new("kill").args([&format!("-{signal}"), &id]).status().unwrap().success());
    }

    pub(crate) fn kill_worker(&mut self, name: &str) {
        let mut child = self.workers.remove(name).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Asks a worker to end, and waits until it has.
    pub(crate) fn drain_worker(&mut self, name: &str) {
        let mut child = self.workers.remove(name).unwrap();
        assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
        let mut status = None;
        until("the worker ends", || {
            status = child.try_wait().unwrap();
            status.is_some()
        });
        assert!(status.unwrap().success());
    }

    /// The workers as `gantry workers --json` tells them.
    pub(crate) fn workers(&self) -> Vec<Value> {
        let output = program().args(["workers", "--json", "--queue", &self.queue]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).unwrap();
        told["workers"].as_array().unwrap().clone()
    }

    /// Waits until a worker says that it runs a job; which.
    #[track_caller]
    pub(crate) fn until_somebody_runs(&self, id: &str) -> String {
        let mut found = None;
        until("somebody runs the job", || {
            // A queue that was just cut off from a worker may leave the list without an end; the front says so.
            let answer = self.ask("GET", "/gantry/workers", b"");
            if answer.status == 503 {
                return false;
            }
            assert_eq!(answer.status, 200, "{}", answer.text());
            let told = answer.json();
            let busy =
                told["workers"].as_array().unwrap().iter().find(|worker| worker["running"] == json!([id]));
            found = busy.map(|worker| worker["name"].as_str().unwrap().to_owned());
            found.is_some()
        });
        found.unwrap()
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let address = self.front.as_ref().unwrap().1;
        let answer = http::ask(address, method, path, "application/json", body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.log("front")))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    #[track_caller]
    pub(crate) fn queue(&self, prompt: &Value) -> String {
        let answer = self.ask("POST", "/prompt", json!({ "prompt": prompt }).to_string().as_bytes());
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["prompt_id"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of a job; what the history has of it.
    #[track_caller]
    pub(crate) fn wait(&self, id: &str) -> Value {
        let mut entry = Value::Null;
        until(&format!("the end of job {id}\n{}", self.log("front")), || {
            entry = self.get(&format!("/history/{id}"))[id].take();
            !entry.is_null()
        });
        entry
    }

    /// Runs a prompt to a good end.
    #[track_caller]
    pub(crate) fn run(&self, prompt: &Value) -> Value {
        let entry = self.wait(&self.queue(prompt));
        assert_eq!(entry["status"]["status_str"], "success", "{entry}");
        entry
    }

    pub(crate) fn upload(&self, name: &str, bytes: &[u8]) {
        let head = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\
             Content-Type: image/png\r\n\r\n"
        );
        let body = [head.as_bytes(), bytes, b"\r\n--edge--\r\n"].concat();
        let address = self.front.as_ref().unwrap().1;
        let kind = "multipart/form-data; boundary=edge";
        let answer = http::ask(address, "POST", "/upload/image", kind, &body).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        let front = self.front.iter_mut().map(|(child, _)| child);
        for child in front.chain(self.workers.values_mut()) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
