//! `gantry bench queue`: a queue that several machines share, on this one: nats-server, a front and workers as programs, and
//! small jobs: how many are done in a second, and how long `POST /prompt` takes under a steady load.

use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail, ensure};
use meta::Moment;
use serde::Serialize;
use serde_json::json;
use testkit::ScratchDir;

use super::server::measuring::{Spread, wait_until_idle};
use super::server::program::{Program, Running};
use crate::bench::show;
use crate::cli::BenchArgs;
use crate::machine::Machine;
use crate::table::Table;
use crate::{environment, http};

/// How many workers run the jobs.
const WORKERS: usize = 2;
/// Prompts in a second while the front's answers are timed.
const STEADY_PER_S: usize = 500;
/// How long jobs may take, and programs to start.
const PATIENCE: Duration = Duration::from_secs(300);

#[derive(Serialize)]
struct Report {
    version: &'static str,
    date: String,
    device: String,
    device_name: String,
    detail: String,
    cores: usize,
    /// Whether the program that was measured is an optimised one.
    is_release: bool,
    nats_server: String,
    workers: usize,
    clients: usize,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    name: String,
    prompts: usize,
    /// Prompts that were posted in a second.
    posted_per_s: f64,
    /// Jobs that were done in a second, from the first prompt to the end of the last job.
    jobs_per_s: f64,
    /// As clients see it, a connection for each.
    post_prompt_ms: Spread,
}

pub(super) fn run(machine: &Machine, args: &BenchArgs) -> Result<ExitCode> {
    ensure!(args.clients > 0 && args.prompts > 0, "--clients and --prompts: give numbers from 1");
    let cluster = Cluster::start()?;
    // What is needed once is not what is measured.
    cluster.row("warm", args.clients, 50, None)?;
    let rows = vec![
        cluster.row("as fast as it goes", args.clients, args.prompts, None)?,
        cluster.row("steady", args.clients, args.prompts, Some(STEADY_PER_S))?,
    ];
    let description = machine.cpu().description();
    let report = Report {
        version: env!("CARGO_PKG_VERSION"),
        date: Moment::utc(SystemTime::now()).date(),
        device: description.id.to_string(),
        device_name: description.name.clone(),
        detail: description.detail.clone(),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        is_release: !cfg!(debug_assertions),
        nats_server: cluster.version.clone(),
        workers: WORKERS,
        clients: args.clients,
        rows,
    };
    show(args, &report, Report::to_text)
}

/// The programs, which end with this value.
struct Cluster {
    front: Running,
    /// Workers, and then the server.
    children: Vec<Child>,
    version: String,
    _folder: ScratchDir,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Cluster {
    fn start() -> Result<Cluster> {
        let folder = ScratchDir::new()?;
        let version = Command::new("nats-server").arg("--version").output().context(
            "nats-server cannot be started; install it, it is a package of that name in most distributions",
        )?;
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let mut server = Command::new("nats-server");
        server
            .args(["-a", "127.0.0.1", "-js", "-p", &port.to_string(), "-sd"])
            .arg(folder.path().join("queue"));
        let mut children = vec![server.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?];
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            ensure!(begun.elapsed() < PATIENCE, "nats-server does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        let queue = format!("nats://127.0.0.1:{port}");
        for number in 0..WORKERS {
            let worker = start_worker(&queue, &folder.path().join(format!("worker-{number}")));
            children.insert(0, worker?);
        }
        let base = folder.path().join("front");
        let front =
            Program::serving(&base, vec!["--cpu".to_owned(), "--queue".to_owned(), queue])?.start()?;
        let version = String::from_utf8_lossy(&version.stdout).trim().to_owned();
        Ok(Cluster { front, children, version, _folder: folder })
    }

    /// Posts prompts from all clients at once, as fast as they are answered or so many in a second.
    fn row(&self, name: &str, clients: usize, prompts: usize, per_s: Option<usize>) -> Result<Row> {
        let clients = clients.min(prompts);
        let begun = Instant::now();
        let post = |client: usize| -> Result<Vec<f64>> {
            let own = (client..prompts).step_by(clients);
            own.map(|number| {
                if let Some(per_s) = per_s {
                    let due = Duration::from_secs_f64(number as f64 / per_s as f64);
                    std::thread::sleep(due.saturating_sub(begun.elapsed()));
                }
                self.post(number)
            })
            .collect()
        };
        let results = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients).map(|client| scope.spawn(move || post(client))).collect();
            threads.into_iter().map(std::thread::ScopedJoinHandle::join).collect::<Vec<_>>()
        });
        let posted_s = begun.elapsed().as_secs_f64();
        let mut times = Vec::new();
        for result in results {
            match result {
                Ok(result) => times.extend(result?),
                Err(_) => bail!("a client failed"),
            }
        }
        wait_until_idle(&self.front)?;
        let whole_s = begun.elapsed().as_secs_f64();
        Ok(Row {
            name: name.to_owned(),
            prompts,
            posted_per_s: prompts as f64 / posted_s,
            jobs_per_s: prompts as f64 / whole_s,
            post_prompt_ms: Spread::of(times).context("no prompt was posted")?,
        })
    }

    fn post(&self, number: usize) -> Result<f64> {
        let prompt = json!({
            "1": { "class_type": "PrimitiveInt", "inputs": { "value": number } },
            "2": { "class_type": "PreviewAny", "inputs": { "source": ["1", 0] } },
        });
        let body = json!({ "prompt": prompt, "client_id": "bench" }).to_string();
        let begun = Instant::now();
        let answer = http::post(&self.front.address, "/prompt", None, &body)?;
        ensure!(answer.status == 200, "POST /prompt answered {}: {}", answer.status, answer.body.trim());
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }
}

/// Starts a worker and waits until it takes jobs.
fn start_worker(queue: &str, base: &Path) -> Result<Child> {
    std::fs::create_dir_all(base)?;
    let mut command = Command::new(environment::own_program().context("finding this program")?);
    command.args(["worker", "--cpu", "--json", "--verbose", "WARNING", "--queue", queue]);
    command.arg("--base-directory").arg(base);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let stdout = child.stdout.take().context("a worker says nothing")?;
    let mut line = String::new();
    BufReader::new(stdout).read_line(&mut line)?;
    ensure!(!line.is_empty(), "a worker ended before it took a job");
    Ok(child)
}

impl Report {
    fn to_text(&self) -> String {
        let mut table =
            Table::new(&["prompts", "count", "posted/s", "jobs/s", "prompt p50 ms", "p90 ms", "p99 ms"]);
        for row in &self.rows {
            table.row(&[
                &row.name,
                &row.prompts.to_string(),
                &format!("{:.0}", row.posted_per_s),
                &format!("{:.0}", row.jobs_per_s),
                &format!("{:.2}", row.post_prompt_ms.p50),
                &format!("{:.2}", row.post_prompt_ms.p90),
                &format!("{:.2}", row.post_prompt_ms.p99),
            ]);
        }
        format!(
            "{}: {}, {} cores; {}, a front and {} workers; {} clients\n\n{table}",
            self.device_name, self.detail, self.cores, self.nats_server, self.workers, self.clients
        )
    }
}
