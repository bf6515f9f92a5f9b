//! A nats-server for tests, and what they ask of it.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "shared by tests, which end where something is not as it should be"
)]

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cluster::{ClusterConfig, NatsStore};
use engine::{JobStatus, Record};
use testkit::ScratchDir;

/// A server of its own, on loopback, with its files in a scratch folder.
pub(crate) struct Server {
    port: u16,
    folder: ScratchDir,
    extra: Vec<String>,
    child: Child,
}

impl Server {
    pub(crate) fn start(extra: &[&str]) -> Option<Server> {
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
        Some(Server { port, folder, extra, child })
    }

    pub(crate) fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.port, &self.folder, &self.extra);
    }

    pub(crate) fn config(&self, pool: &str, lease: Duration) -> ClusterConfig {
        let address = format!("nats://127.0.0.1:{}", self.port);
        ClusterConfig { lease, ..ClusterConfig::new(&address, pool) }
    }

    pub(crate) fn open(&self, pool: &str, lease: Duration) -> NatsStore {
        NatsStore::open(&self.config(pool, lease)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(port: u16, folder: &ScratchDir, extra: &[String]) -> Child {
    let mut command = Command::new("nats-server");
    command.args(["-a", "127.0.0.1", "-js", "-p", &port.to_string(), "-sd"]).arg(folder.path()).args(extra);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < until, "nats-server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    child
}

pub(crate) fn record() -> Record {
    let (outputs, identities) = Default::default();
    Record { status: JobStatus::Completed, outputs, identities, messages: Vec::new(), worker: None }
}

/// Asks until there is an answer.
#[track_caller]
pub(crate) fn soon<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + Duration::from_secs(15);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
