//! The place where the guides' commands run: a folder with the files that guides name, two simulated devices
//! in place of GPUs, and a server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::ScratchDir;

use crate::demo_files;
use crate::shell::Line;

/// What stands in for `cuda:0` and `cuda:1`.
const DEVICES: [&str; 2] = ["16gb@25gbps@150tflops", "8gb@12gbps@60tflops"];
/// Small files for commands that draw, under the names that people's files have.
const FILES: [(&str, &str); 7] = [
    ("flux1-schnell.safetensors", "demo-flux.safetensors"),
    ("flux1-schnell-Q8_0.gguf", "demo-flux-Q8_0.gguf"),
    ("clip_l.safetensors", "demo-clip-l.safetensors"),
    ("t5xxl_fp16.safetensors", "demo-t5.safetensors"),
    ("ae.safetensors", "demo-ae.safetensors"),
    ("outline.safetensors", "demo-outline-lora.safetensors"),
    ("home/ComfyUI/models/loras/outline.safetensors", "demo-outline-lora.safetensors"),
];
/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder, and a server that has it as its base.
pub(crate) struct World {
    folder: ScratchDir,
    server: Server,
}

impl World {
    pub(crate) fn make() -> World {
        let folder = ScratchDir::new().unwrap();
        for (name, demo) in FILES {
            let path = folder.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::copy(demo_files::demo_file(demo), path).unwrap();
        }
        demo_files::write_flux_header(&folder.join("flux1-dev.safetensors"), "BF16");
        demo_files::write_flux_header(&folder.join("flux1-dev-fp8.safetensors"), "F8_E4M3");
        let checkpoint = folder.join("models/checkpoints/demo-checkpoint.safetensors");
        demo_files::write_checkpoint(&checkpoint);
        copy_folder(&demo_files::root().join("examples"), &folder.join("examples"));
        copy_folder(&demo_files::root().join("examples/input"), &folder.join("input"));
        std::fs::create_dir_all(folder.join("docs/pictures")).unwrap();
        let pulled = folder.join("models/checkpoints/flux1-schnell-fp8.safetensors");
        demo_files::write_checkpoint(&pulled);
        std::fs::write(folder.join("token.txt"), "SECRET\n").unwrap();
        let own = folder.join("home/ComfyUI/user/default/workflows");
        copy_folder(&demo_files::root().join("examples/editor"), &own);
        let words = ["serve", "--port", "0"].map(str::to_owned);
        let server = Server::start(&words, folder.path());
        World { folder, server }
    }

    /// Where commands run.
    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The port of the server.
    pub(crate) fn port(&self) -> u16 {
        self.server.port
    }

    /// A text with the address of this server in place of the usual one.
    pub(crate) fn here(&self, text: &str) -> String {
        text.replace("127.0.0.1:8188", &format!("127.0.0.1:{}", self.port()))
    }

    /// Runs a command of a guide, without its first word; all that it prints, or why it failed.
    pub(crate) fn gantry(&self, line: &Line, words: &[String]) -> Result<String, String> {
        if words.iter().any(|word| word == "serve") {
            let port = words.iter().position(|word| word == "--port");
            let mut words = words.to_vec();
            if let Some(at) = port {
                words.drain(at..at + 2);
            }
            words.extend(["--port", "0"].map(str::to_owned));
            Server::start(&words, self.path());
            return Ok(String::new());
        }
        let mut words = words.to_vec();
        if words.first().is_some_and(|word| ["free", "ps", "stop"].contains(&word.as_str())) {
            words.extend(["--server".to_owned(), format!("http://127.0.0.1:{}", self.port())]);
        }
        let mut command = command(&words, self.path());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        // A command that does not read its input may be gone.
        let _ = input.write_all(line.input.as_deref().unwrap_or_default().as_bytes());
        drop(input);
        let output = child.wait_with_output().unwrap();
        let told = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
        // What stands in for cuda:0 is called so again.
        let told = if words_name_cuda(&line.words) { told.replace("sim:", "cuda:") } else { told };
        if let Some(file) = &line.output {
            std::fs::write(self.path().join(file), &output.stdout).unwrap();
        }
        if output.status.success() { Ok(told) } else { Err(told) }
    }

    /// The status of an answer of the server.
    pub(crate) fn status(&self, method: &str, path: &str) -> u16 {
        self.ask(method, path).0
    }

    /// The body of an answer.
    pub(crate) fn get(&self, path: &str) -> String {
        let (status, body) = self.ask("GET", path);
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    fn ask(&self, method: &str, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port())).unwrap();
        let host = format!("127.0.0.1:{}", self.port());
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }
}

fn words_name_cuda(words: &[String]) -> bool {
    words.iter().any(|word| word.contains("cuda:"))
}

/// The program with its devices, in a folder.
fn command(words: &[String], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    let home = folder.join("home");
    command.current_dir(folder).env("HOME", &home);
    let home = home.display().to_string();
    command.args(words.iter().map(|word| match word.strip_prefix("~/") {
        Some(rest) => format!("{home}/{rest}"),
        None => word.replace("cuda:", "sim:"),
    }));
    if !words.iter().any(|word| word == "--cpu") {
        command.arg("--cpu");
    }
    if !words.iter().any(|word| word == "--sim-device") {
        command.args(DEVICES.iter().flat_map(|device| ["--sim-device", device]));
    }
    command
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy_folder(&path, &target);
        } else {
            std::fs::copy(&path, target).unwrap();
        }
    }
}

/// A server that ends with its owner.
struct Server {
    child: Child,
    port: u16,
    _queue: ScratchDir,
}

impl Server {
    fn start(words: &[String], folder: &Path) -> Server {
        let mut command = command(words, folder);
        // Two servers may not share a queue.
        let queue = ScratchDir::new().unwrap();
        command.arg("--database").arg(queue.join("queue.db"));
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let start = Instant::now();
        for line in lines.map_while(Result::ok) {
            let port = line.rsplit(':').next().and_then(|port| port.trim_end_matches('/').parse().ok());
            if let (true, Some(port)) = (line.contains("http"), port) {
                return Server { child, port, _queue: queue };
            }
            assert!(start.elapsed() < PATIENCE, "{words:?}: the server does not listen");
        }
        let status = child.wait().unwrap();
        panic!("gantry {words:?} ended with {status} instead of serving");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
