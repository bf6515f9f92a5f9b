//! A server from its start to its end.

use std::future::Future;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use engine::{Engine, EngineConfig, EventSink, LocalWorker};
use graph::Catalogue;
use runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::app::{self, App};
use crate::config::ServerConfig;
use crate::error::{Error, Result};
use crate::files::assets::Assets;
use crate::guard::Guard;
use crate::hub::{Audience, Hub};
use crate::listen::{self, Connections};
use crate::live::Live;

/// How long a stop waits for requests that are being answered.
const STOP_TIME: Duration = Duration::from_secs(1);
/// How long it then waits for work on other threads, which cannot be ended.
const THREADS_STOP_TIME: Duration = Duration::from_millis(300);
/// Threads for requests. Work that takes long is done on others.
const WORKERS: usize = 2;
/// Threads for work that takes long: the database, files, lists of files.
const BLOCKING_THREADS: usize = 16;
/// Pixels along the longer side of a preview, if nothing is said.
const PREVIEW_SIDE: usize = 512;

/// A server that listens.
pub struct Server {
    addresses: Vec<SocketAddr>,
    is_encrypted: bool,
    engine: Arc<Engine>,
    hub: Arc<Hub>,
    sink: Arc<dyn EventSink>,
    stop: watch::Sender<bool>,
    listeners: JoinSet<()>,
    permits: Arc<Semaphore>,
    max_connections: usize,
}

impl Server {
    /// Binds, starts the engine and answers requests from now on.
    ///
    /// # Errors
    /// An unsafe configuration, a port that cannot be had, a certificate or database that cannot be used.
    pub async fn start(
        config: ServerConfig,
        engine: EngineConfig,
        catalogue: Arc<Catalogue>,
        runtime: Arc<Runtime>,
    ) -> Result<Server> {
        let wanted = config.checked_addresses()?;
        let tls = config.tls.as_ref().map(listen::tls).transpose()?;
        let listeners = listen::bind(&wanted, config.bind_patience).await?;
        let addresses: Vec<SocketAddr> =
            listeners.iter().filter_map(|listener| listener.local_addr().ok()).collect();
        let preview_side = runtime.settings.preview_size.unwrap_or(PREVIEW_SIDE);
        let worker = Arc::new(LocalWorker::new(Arc::clone(&runtime)));
        let hub = Hub::start(worker, preview_side)?;
        let live = Arc::new(Live::before(Arc::clone(&hub)));
        let sink = Arc::clone(&live) as Arc<dyn EventSink>;
        deliver_logs(&config, &hub);
        let engine = Arc::new(Engine::start(engine, catalogue, runtime, Arc::clone(&sink))?);
        hub.roster().set_remaining(engine.remaining());
        let (stop, stopped) = watch::channel(false);
        let guard = Guard::new(&config, &wanted);
        let (is_encrypted, max_connections) = (tls.is_some(), config.max_connections.max(1));
        let app = Arc::new(App {
            engine: Arc::clone(&engine),
            hub: Arc::clone(&hub),
            live,
            assets: Assets::new(&config.files.folders),
            used_keys: Default::default(),
            withdrawn: Default::default(),
            config: Arc::new(config),
            stop: stopped.clone(),
        });
        let permits = Arc::new(Semaphore::new(max_connections));
        let router = app::router(&app, guard);
        let connections = Connections { router, tls, permits: Arc::clone(&permits), stop: stopped };
        let mut tasks = JoinSet::new();
        for listener in listeners {
            tasks.spawn(connections.clone().accept(listener));
        }
        let listeners = tasks;
        Ok(Server { addresses, is_encrypted, engine, hub, sink, stop, listeners, permits, max_connections })
    }

    /// Where it listens.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What a browser on this machine opens.
    #[must_use]
    pub fn url(&self) -> String {
        let scheme = if self.is_encrypted { "https" } else { "http" };
        let v4 = self.addresses.iter().find(|address| address.is_ipv4());
        let address = v4.or(self.addresses.first()).copied();
        let mut address = address.unwrap_or_else(|| SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0));
        match address.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
            _ => {}
        }
        format!("{scheme}://{address}")
    }

    /// The line that launchers of ComfyUI wait for.
    #[must_use]
    pub fn gui_line(&self) -> String {
        format!("To see the GUI go to: {}", self.url())
    }

    /// The engine behind it.
    #[must_use]
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Whom workers elsewhere tell what they do.
    #[must_use]
    pub fn sink(&self) -> &Arc<dyn EventSink> {
        &self.sink
    }

    /// The connected clients.
    #[must_use]
    pub fn hub(&self) -> &Arc<Hub> {
        &self.hub
    }

    /// Ends the running job, takes no more connections, lets requests end, and closes what remains after a second.
    pub async fn stop(mut self) {
        self.engine.stop();
        // Nobody may be listening any more; then there is nobody to tell.
        let _ = self.stop.send(true);
        while self.listeners.join_next().await.is_some() {}
        let all = u32::try_from(self.max_connections).unwrap_or(u32::MAX);
        // Either all connections are gone, or their time is up.
        let _ = tokio::time::timeout(STOP_TIME, self.permits.acquire_many(all)).await;
    }
}

/// Sends lines of the log to the clients that follow it, for as long as they are there.
fn deliver_logs(config: &ServerConfig, hub: &Arc<Hub>) {
    let hub = Arc::downgrade(hub);
    config.files.logs.deliver_with(move |client, entry| {
        hub.upgrade().is_some_and(|hub| {
            let is_there = hub.roster().is_connected(client);
            if is_there {
                let data = serde_json::json!({ "entries": [entry], "size": null });
                hub.send(Audience::Client(client.to_owned()), "logs", &data);
            }
            is_there
        })
    });
}

/// Serves until `until` is done, on threads of its own. `on_ready` is called once the port is bound.
///
/// # Errors
/// See [`Server::start`].
pub fn serve(
    config: ServerConfig,
    engine: EngineConfig,
    catalogue: Arc<Catalogue>,
    runtime: Arc<Runtime>,
    on_ready: impl FnOnce(&Server),
    until: impl Future<Output = ()>,
) -> Result<()> {
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("server")
        .enable_all()
        .build()
        .map_err(Error::Threads)?;
    let result = threads.block_on(async {
        let server = Server::start(config, engine, catalogue, runtime).await?;
        on_ready(&server);
        until.await;
        server.stop().await;
        Ok(())
    });
    threads.shutdown_timeout(THREADS_STOP_TIME);
    result
}

/// Calls a function when the process is asked to end, on a thread of its own: for programs that have none that waits.
pub fn when_asked_to_stop(act: impl FnOnce() + Send + 'static) {
    std::thread::spawn(|| {
        let waiting = tokio::runtime::Builder::new_current_thread().enable_all().build();
        // Without it a signal ends the process as ever.
        if let Ok(waiting) = waiting {
            waiting.block_on(stop_signal());
            act();
        }
    });
}

/// Done when the process is asked to end: by Ctrl-C, or by the system.
pub async fn stop_signal() {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        if let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
            return;
        }
    }
    if tokio::signal::ctrl_c().await.is_err() {
        // Without signals, only the end of the process ends the server.
        std::future::pending::<()>().await;
    }
}
