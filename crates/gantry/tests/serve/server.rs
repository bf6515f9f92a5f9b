//! The program, started in a folder, and its jobs.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::Golden;

use crate::http::{self, Answer};

/// No job of these tests takes so long, even on a machine that does much else.
const PATIENCE: Duration = Duration::from_secs(120);
const LINE: &str = "To see the GUI go to: http://";

/// A server that runs until this value goes away.
pub(crate) struct Server {
    child: Child,
    address: SocketAddr,
    folder: PathBuf,
    /// Held open: the program may print more.
    _output: BufReader<ChildStdout>,
}

/// Where a server on this folder keeps what it measures; not in the folder, whose contents tests look at.
pub(crate) fn cache_of(folder: &Path) -> PathBuf {
    let name = folder.file_name().unwrap_or_default();
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("caches").join(name)
}

impl Server {
    /// Starts one on a folder, and waits until it listens.
    pub(crate) fn start(folder: &Path, more: &[&str]) -> Server {
        Server::start_as(Command::new(env!("CARGO_BIN_EXE_gantry")), folder, more)
    }

    /// The same by a command that starts the program.
    pub(crate) fn start_as(mut command: Command, folder: &Path, more: &[&str]) -> Server {
        let log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
        command.args(["serve", "--cpu", "--port", "0", "--base-directory"]).arg(folder).args(more);
        // What is learnt of this machine while tests share it is no use to anyone else.
        command.env("GANTRY_CACHE_DIR", cache_of(folder));
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with(LINE) {
            line.clear();
            let is_end = output.read_line(&mut line).unwrap() == 0;
            assert!(!is_end, "the server ended: {}", std::fs::read_to_string(folder.join("log")).unwrap());
        }
        let address = line[LINE.len()..].trim().trim_end_matches('/').parse().unwrap();
        Server { child, address, folder: folder.to_owned(), _output: output }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Ends the process at once, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Asks the process to end, as a system that shuts down does; how long it took, and how it ended.
    #[cfg(unix)]
    pub(crate) fn terminate(mut self) -> (Duration, std::process::ExitStatus) {
        let since = Instant::now();
        let asked = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(asked.success());
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return (since.elapsed(), status);
            }
            assert!(since.elapsed() < PATIENCE, "the process does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// What the program told.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.folder.join("log")).unwrap()
    }

    pub(crate) fn ask(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = http::ask(self.address, method, path, "application/json", body);
        answer.unwrap_or_else(|error| panic!("{method} {path}: {error}\n{}", self.log()))
    }

    /// What is at a path.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Value {
        let answer = self.ask("GET", path, b"");
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.json()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, body.to_string().as_bytes())
    }

    /// Puts a picture among the inputs.
    pub(crate) fn upload(&self, name: &str, bytes: &[u8]) {
        let head = format!(
            "--edge\r\nContent-Disposition: form-data; name=\"image\"; filename=\"{name}\"\r\n\
             Content-Type: image/png\r\n\r\n"
        );
        let body = [head.as_bytes(), bytes, b"\r\n--edge--\r\n"].concat();
        let kind = "multipart/form-data; boundary=edge";
        let answer = http::ask(self.address, "POST", "/upload/image", kind, &body).unwrap();
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(answer.json()["name"], name);
    }

    /// Queues a prompt that is right in all its nodes; its id.
    #[track_caller]
    pub(crate) fn queue(&self, prompt: &Value) -> String {
        let answer = self.post("/prompt", &json!({ "prompt": prompt, "client_id": "test" }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        let accepted = answer.json();
        assert_eq!(accepted["node_errors"], json!({}));
        accepted["prompt_id"].as_str().unwrap().to_owned()
    }

    /// Waits for the end of a job.
    #[track_caller]
    pub(crate) fn wait(&self, id: &str) -> Ended {
        let since = Instant::now();
        loop {
            let mut history = self.get(&format!("/history/{id}"));
            if let Some(entry) = history.get_mut(id) {
                return Ended { entry: entry.take(), output: self.folder.join("output") };
            }
            assert!(since.elapsed() < PATIENCE, "job {id} does not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Runs a prompt to its end, which is to be a good one.
    #[track_caller]
    pub(crate) fn run(&self, prompt: &Value) -> Ended {
        let ended = self.wait(&self.queue(prompt));
        ended.expect_success();
        ended
    }

    /// Runs a prompt that is to fail; the message of the node that did.
    #[track_caller]
    pub(crate) fn run_badly(&self, prompt: &Value) -> String {
        let ended = self.wait(&self.queue(prompt));
        assert_eq!(ended.entry["status"]["status_str"], "error", "{}", ended.entry);
        ended.message("execution_error")["exception_message"].as_str().unwrap().to_owned()
    }

    /// Waits until a condition holds.
    #[track_caller]
    pub(crate) fn until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "{what} does not come about:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// The ids of the jobs that run and of those that wait.
    pub(crate) fn jobs(&self) -> (Vec<String>, Vec<String>) {
        let queue = self.get("/queue");
        let ids = |key: &str| {
            let items = queue[key].as_array().unwrap().iter();
            items.map(|item| item[1].as_str().unwrap().to_owned()).collect()
        };
        (ids("queue_running"), ids("queue_pending"))
    }

    /// Presses a memory button, and waits until the worker has done what it asks for.
    #[track_caller]
    pub(crate) fn free(&self, flags: &Value) {
        let before = self.last_snapshot().0;
        let answer = self.post("/free", flags);
        assert_eq!(answer.status, 200, "{}", answer.text());
        self.until("the end of freeing", |server| {
            let (number, label) = server.last_snapshot();
            number > before && label == "free: caches emptied"
        });
    }

    fn last_snapshot(&self) -> (u64, String) {
        let snapshots = self.get("/gantry/snapshots");
        let last = snapshots["snapshots"].as_array().unwrap().last();
        last.map_or((0, String::new()), |last| {
            (last["number"].as_u64().unwrap(), last["label"].as_str().unwrap().to_owned())
        })
    }

    /// The models that are loaded, by name; no two of them have one.
    #[track_caller]
    fn loaded(&self) -> BTreeMap<String, Value> {
        let mut models = BTreeMap::new();
        for model in self.get("/gantry/models")["models"].as_array().unwrap() {
            let name = model["name"].as_str().unwrap().to_owned();
            assert!(models.insert(name, model.clone()).is_none(), "{model} is loaded twice");
        }
        models
    }

    /// The retentions of the models that are loaded, by name.
    #[track_caller]
    pub(crate) fn models(&self) -> BTreeMap<String, String> {
        let retention = |model: Value| model["retention"].as_str().unwrap().to_owned();
        self.loaded().into_iter().map(|(name, model)| (name, retention(model))).collect()
    }

    /// What is known of a loaded model.
    #[track_caller]
    pub(crate) fn model(&self, name: &str) -> Value {
        let model = self.loaded().remove(name);
        model.unwrap_or_else(|| panic!("{name} is not loaded"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A job that ended.
pub(crate) struct Ended {
    pub(crate) entry: Value,
    output: PathBuf,
}

impl Ended {
    #[track_caller]
    pub(crate) fn expect_success(&self) {
        assert_eq!(self.entry["status"]["status_str"], "success", "{}", self.entry["status"]);
    }

    /// The data of one of its messages.
    #[track_caller]
    pub(crate) fn message(&self, name: &str) -> &Value {
        let messages = self.entry["status"]["messages"].as_array().unwrap();
        let found = messages.iter().find(|message| message[0] == name);
        &found.unwrap_or_else(|| panic!("there is no {name}: {messages:?}"))[1]
    }

    /// The files that a node saved.
    pub(crate) fn files(&self, node: &str, kind: &str) -> Vec<PathBuf> {
        let items = self.entry["outputs"][node][kind].as_array().unwrap();
        let text = |item: &Value, key: &str| item[key].as_str().unwrap().to_owned();
        let path = |item| self.output.join(text(item, "subfolder")).join(text(item, "filename"));
        items.iter().map(path).collect()
    }

    /// The values of the latent that a node saved.
    pub(crate) fn latent(&self, node: &str) -> Vec<f32> {
        let files = self.files(node, "latents");
        assert_eq!(files.len(), 1);
        Golden::open(&files[0]).unwrap().tensor("latent_tensor").unwrap().1
    }

    /// Width, height and pixels of the first picture that a node saved.
    pub(crate) fn picture(&self, node: &str) -> (u32, u32, Vec<u8>) {
        let bytes = std::fs::read(&self.files(node, "images")[0]).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut pixels).unwrap();
        (info.width, info.height, pixels)
    }
}
