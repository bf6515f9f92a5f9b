//! How soon the server answers, and what it takes while it does nothing.

use std::time::{Duration, Instant};

use testkit::ScratchDir;

use crate::server::Server;

/// Bounds that only a fault passes: a build without optimisation on a busy machine is far below.
const LONGEST_START: Duration = Duration::from_secs(1);
const MOST_IDLE_KIB: u64 = 80 << 10;

#[test]
fn the_server_answers_soon_and_is_small() {
    let folder = ScratchDir::new().unwrap();
    let start = Instant::now();
    let server = Server::start(folder.path(), &[]);
    let stats = server.get("/system_stats");
    let took = start.elapsed();
    assert_eq!(stats["devices"][0]["type"], "cpu", "{stats}");
    println!("start to the first answer: {:.0} ms", took.as_secs_f64() * 1e3);
    assert!(took < LONGEST_START, "{took:?}");
    if cfg!(target_os = "linux") {
        let status = std::fs::read_to_string(format!("/proc/{}/status", server.process())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
        println!("idle: {:.1} MB", kib as f64 * 1024.0 / 1e6);
        assert!(kib < MOST_IDLE_KIB, "{kib} KiB");
    }
}
