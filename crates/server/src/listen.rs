//! Sockets: bound, encrypted, counted, and closed in time.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig as TlsConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::TlsFiles;
use crate::error::{Error, Result};

/// How long a client may take for the head of a request, and how long a connection may idle between two.
const HEAD_TIME: Duration = Duration::from_secs(75);
/// How long a client may take to agree on encryption.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// How long after a failure to accept, such as no more file descriptors, the next try is.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long between two tries to bind.
const BIND_PAUSE: Duration = Duration::from_millis(50);

/// Binds all addresses. One that another process still holds is tried again for a while: whoever restarts a
/// server does not wait for the old one to be gone.
pub(crate) async fn bind(addresses: &[SocketAddr], patience: Duration) -> Result<Vec<TcpListener>> {
    let deadline = Instant::now() + patience;
    let mut listeners: Vec<TcpListener> = Vec::new();
    let mut port = None;
    // `::` may take IPv4 along, which then cannot be bound again; so it comes first.
    let mut ordered = addresses.to_vec();
    ordered.sort_by_key(|address| !is_everything(address.ip()));
    for mut address in ordered {
        if address.port() == 0 {
            address.set_port(port.unwrap_or(0));
        }
        let has_both =
            listeners.iter().any(|bound| bound.local_addr().is_ok_and(|at| is_everything(at.ip())));
        match bind_one(address, deadline, has_both && address.is_ipv4()).await {
            Ok(Some(listener)) => {
                port = listener.local_addr().ok().map(|at| at.port());
                listeners.push(listener);
            }
            Ok(None) => {}
            Err(source) => return Err(Error::Bind { address, source }),
        }
    }
    Ok(listeners)
}

fn is_everything(address: IpAddr) -> bool {
    address.is_ipv6() && address.is_unspecified()
}

/// `None` if the address is in use and may be, because another listener takes its connections.
async fn bind_one(
    address: SocketAddr,
    deadline: Instant,
    may_be_taken: bool,
) -> io::Result<Option<TcpListener>> {
    let mut is_first = true;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() != io::ErrorKind::AddrInUse => return Err(error),
            Err(_) if may_be_taken => return Ok(None),
            Err(error) if Instant::now() >= deadline => return Err(error),
            Err(_) => {
                if is_first {
                    tracing::warn!("{address} is in use; waiting for it");
                }
                is_first = false;
                tokio::time::sleep(BIND_PAUSE).await;
            }
        }
    }
}

/// Reads a certificate and its key.
pub(crate) fn tls(files: &TlsFiles) -> Result<TlsAcceptor> {
    let unreadable =
        |path: &std::path::Path, reason: String| Error::TlsFile { path: path.to_owned(), reason };
    let read =
        |path: &std::path::Path| std::fs::read(path).map_err(|error| unreadable(path, error.to_string()));
    let certificates = CertificateDer::pem_slice_iter(&read(&files.certificate)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| unreadable(&files.certificate, error.to_string()))?;
    let key = PrivateKeyDer::from_pem_slice(&read(&files.key)?)
        .map_err(|error| unreadable(&files.key, error.to_string()))?;
    let mut config = TlsConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Waits until the server stops.
pub(crate) async fn stopped(stop: &mut watch::Receiver<bool>) {
    // Without anybody who could stop it, the server is gone, too.
    let _ = stop.wait_for(|stop| *stop).await;
}

/// What all connections share.
#[derive(Clone)]
pub(crate) struct Connections {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    /// As many permits as there may be connections.
    pub(crate) permits: Arc<Semaphore>,
    /// Becomes true when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
}

impl Connections {
    /// Takes connections until the server stops.
    pub(crate) async fn accept(mut self, listener: TcpListener) {
        let mut stop = self.stop.clone();
        loop {
            let next = async {
                // The permit comes first: a connection that has to wait waits in the system's queue.
                let permit = Arc::clone(&self.permits).acquire_owned().await;
                (listener.accept().await, permit)
            };
            let (accepted, permit) = tokio::select! {
                next = next => next,
                () = stopped(&mut stop) => return,
            };
            match (accepted, permit) {
                (Ok((stream, _)), Ok(permit)) => self.spawn(stream, permit),
                (Err(error), _) => {
                    tracing::debug!("a connection was not accepted: {error}");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                (_, Err(_)) => return,
            }
        }
    }

    fn spawn(&mut self, stream: TcpStream, permit: OwnedSemaphorePermit) {
        let connections = self.clone();
        tokio::spawn(async move {
            // Events are small and must not wait for each other.
            let _ = stream.set_nodelay(true);
            match &connections.tls {
                None => connections.serve(stream).await,
                Some(tls) => match tokio::time::timeout(HANDSHAKE_TIME, tls.accept(stream)).await {
                    Ok(Ok(stream)) => connections.serve(stream).await,
                    Ok(Err(error)) => tracing::debug!("no agreement on encryption: {error}"),
                    Err(_) => tracing::debug!("a client took too long to agree on encryption"),
                },
            }
            drop(permit);
        });
    }

    /// Answers the requests of one connection. A WebSocket lives on after it.
    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let service = TowerToHyperService::new(self.router.clone());
        let connection = hyper::server::conn::http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIME)
            .max_buf_size(256 << 10)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let mut stop = self.stop.clone();
        let result = tokio::select! {
            result = connection.as_mut() => result,
            () = stopped(&mut stop) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = result {
            tracing::debug!("a connection ended: {error}");
        }
    }
}
