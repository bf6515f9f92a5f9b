//! The connection: where the queue is, who we are, and whether both sides speak the same protocol.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::kv::Store;
use async_nats::jetstream::object_store::ObjectStore;
use async_nats::jetstream::stream::Stream;
use async_nats::jetstream::{self, stream};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions};

use crate::error::Error;

/// What the stream and the states look like. Raised when they change.
const PROTOCOL: u32 = 3;
/// How long a worker is known that says nothing.
pub(crate) const WORKER_LIFE: Duration = Duration::from_secs(15);
/// How long a consumer is kept that nobody asks for jobs.
const CONSUMER_LIFE: Duration = Duration::from_secs(24 * 3600);
/// How long a connection may take to be made, and a request to be answered.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the queue is, and who we are.
#[derive(Clone, Debug)]
pub struct ClusterConfig {
    /// `nats://host:port`, or `tls://…`.
    pub address: String,
    /// Whose jobs: workers take those of their pool alone.
    pub pool: String,
    /// How long a claim is good without a sign of life.
    pub lease: Duration,
    /// User and password.
    pub user: Option<(String, String)>,
    /// A file of credentials (JWT and seed).
    pub credentials: Option<PathBuf>,
    /// Certificates of those who may vouch for the server.
    pub root_certificates: Option<PathBuf>,
    /// Our own certificate and its key, for a server that asks who we are.
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// How workers choose among the jobs that wait.
    pub choosing: Choosing,
    /// How many jobs that ended are remembered; workers drop older ones.
    pub history: usize,
}

/// How workers choose among the jobs that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choosing {
    /// The one that came first.
    FirstCome,
    /// One whose models they hold, as long as none waits much longer for it. A job whose worker is free may wait for that
    /// worker for the time given, before another loads its models.
    Affinity(Duration),
}

impl ClusterConfig {
    /// Without credentials, with leases of 30 s.
    #[must_use]
    pub fn new(address: &str, pool: &str) -> ClusterConfig {
        ClusterConfig {
            address: address.to_owned(),
            pool: pool.to_owned(),
            lease: Duration::from_secs(30),
            user: None,
            credentials: None,
            root_certificates: None,
            certificate: None,
            choosing: Choosing::Affinity(Duration::from_secs(1)),
            history: 10_000,
        }
    }
}

/// What is open on the server.
pub(crate) struct Connection {
    pub(crate) client: Client,
    pub(crate) jetstream: jetstream::Context,
    /// The jobs that wait.
    stream: Stream,
    /// Those who deliver jobs, by the key of what the jobs load.
    consumers: Mutex<HashMap<String, PullConsumer>>,
    lease: Duration,
    pub(crate) states: Store,
    /// The files that machines share, by their names.
    pub(crate) files: Store,
    /// Their bytes, by what they are.
    pub(crate) objects: ObjectStore,
    /// Who works, for as long as it says so.
    pub(crate) workers: Store,
    pub(crate) pool: String,
}

impl Connection {
    pub(crate) async fn open(config: &ClusterConfig) -> Result<Connection, Error> {
        let pool = &config.pool;
        if pool.is_empty() || !pool.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
        {
            return Err(Error::Pool(pool.clone()));
        }
        let client = connect(config).await?;
        let jetstream = jetstream::new(client.clone());
        let stream = stream::Config {
            name: format!("GANTRY_{pool}"),
            subjects: vec![format!("gantry.{pool}.jobs.>")],
            retention: stream::RetentionPolicy::WorkQueue,
            duplicate_window: Duration::from_secs(120),
            ..stream::Config::default()
        };
        let stream = jetstream.get_or_create_stream(stream).await;
        let stream = stream.map_err(|error| Error::request("open the stream of jobs", error))?;
        let states = open_bucket(&jetstream, &format!("gantry_{pool}"), Duration::ZERO).await?;
        let files = open_bucket(&jetstream, &format!("gantry_{pool}_files"), Duration::ZERO).await?;
        let workers = open_bucket(&jetstream, &format!("gantry_{pool}_workers"), WORKER_LIFE).await?;
        let objects = open_objects(&jetstream, &format!("gantry_{pool}")).await?;
        let pool = pool.clone();
        let (consumers, lease) = (Mutex::default(), config.lease);
        let connection =
            Connection { client, jetstream, stream, consumers, lease, states, files, objects, workers, pool };
        connection.check_protocol(&config.pool).await?;
        Ok(connection)
    }

    /// The subject of jobs that load the same.
    pub(crate) fn subject(&self, key: &str) -> String {
        format!("gantry.{}.jobs.{key}", self.pool)
    }

    /// Who delivers jobs that load the same; made when it is asked for first, and by the server forgotten when nobody
    /// asks any more.
    pub(crate) async fn consumer(&self, key: &str) -> Result<PullConsumer, Error> {
        let known = self.consumers().get(key).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let name = format!("workers-{key}");
        let config = pull::Config {
            durable_name: Some(name.clone()),
            filter_subject: self.subject(key),
            ack_wait: self.lease,
            max_deliver: -1, // losses are counted in the state: an orderly release is none
            max_ack_pending: -1,
            inactive_threshold: CONSUMER_LIFE.max(4 * self.lease),
            ..pull::Config::default()
        };
        let consumer = self.stream.get_or_create_consumer(&name, config).await;
        let consumer = consumer.map_err(|error| Error::request("open a consumer of jobs", error))?;
        self.consumers().insert(key.to_owned(), consumer.clone());
        Ok(consumer)
    }

    /// The next time somebody asks, the server is asked for it.
    pub(crate) fn forget_consumer(&self, key: &str) {
        self.consumers().remove(key);
    }

    fn consumers(&self) -> MutexGuard<'_, HashMap<String, PullConsumer>> {
        self.consumers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first who comes writes the version down; later ones must have the same.
    async fn check_protocol(&self, pool: &str) -> Result<(), Error> {
        let failed = |why: String| Error::Request { what: "tell its protocol", why };
        let own = PROTOCOL.to_string();
        // Whether it was there is seen below.
        let _ = self.states.create("protocol", own.clone().into()).await;
        let found = self.states.get("protocol").await.map_err(|error| failed(error.to_string()))?;
        let found = found.ok_or_else(|| failed("it is not there".to_owned()))?;
        if found == own.as_bytes() {
            return Ok(());
        }
        let found = String::from_utf8_lossy(&found).into_owned();
        Err(Error::Protocol { pool: pool.to_owned(), found, known: PROTOCOL })
    }
}

/// Opens a bucket, which is made if it is new. Its stream is described here: the client (0.51) cannot read what
/// nats-server 2.9.10 answers to its own call that makes buckets.
async fn open_bucket(jetstream: &jetstream::Context, name: &str, max_age: Duration) -> Result<Store, Error> {
    let stream = stream::Config {
        name: format!("KV_{name}"),
        subjects: vec![format!("$KV.{name}.>")],
        max_messages_per_subject: 1,
        allow_rollup: true,
        allow_direct: true,
        max_age,
        ..stream::Config::default()
    };
    let failed = |why: String| Error::Request { what: "open the bucket of states", why };
    jetstream.get_or_create_stream(stream).await.map_err(|error| failed(error.to_string()))?;
    jetstream.get_key_value(name).await.map_err(|error| failed(error.to_string()))
}

/// Opens the store of files' bytes, which is made if it is new; for the same reason by its stream.
async fn open_objects(jetstream: &jetstream::Context, name: &str) -> Result<ObjectStore, Error> {
    let stream = stream::Config {
        name: format!("OBJ_{name}"),
        subjects: vec![format!("$O.{name}.C.>"), format!("$O.{name}.M.>")],
        allow_rollup: true,
        allow_direct: true,
        discard: stream::DiscardPolicy::New,
        ..stream::Config::default()
    };
    let failed = |why: String| Error::Request { what: "open the store of files", why };
    jetstream.get_or_create_stream(stream).await.map_err(|error| failed(error.to_string()))?;
    jetstream.get_object_store(name).await.map_err(|error| failed(error.to_string()))
}

async fn connect(config: &ClusterConfig) -> Result<Client, Error> {
    let mut options = ConnectOptions::new().connection_timeout(PATIENCE).request_timeout(Some(PATIENCE));
    options = options.reconnect_delay_callback(|_| Duration::from_millis(250)).name("gantry");
    if let Some((user, password)) = &config.user {
        options = options.user_and_password(user.clone(), password.clone());
    }
    if let Some(path) = &config.credentials {
        let failed = |source| Error::CredentialsFile { path: path.display().to_string(), source };
        let text = tokio::fs::read_to_string(path).await.map_err(failed)?;
        options = options.credentials(&text).map_err(failed)?;
    }
    if let Some(path) = &config.root_certificates {
        can_be_read(path).await?;
        options = options.add_root_certificates(path.clone()).require_tls(true);
    }
    if let Some((certificate, key)) = &config.certificate {
        can_be_read(certificate).await?;
        can_be_read(key).await?;
        options = options.add_client_certificate(certificate.clone(), key.clone()).require_tls(true);
    }
    options.connect(&config.address).await.map_err(|error| {
        let (address, why) = (config.address.clone(), error.to_string());
        match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                Error::Credentials { address, why }
            }
            ConnectErrorKind::Tls => Error::Trust { address, why },
            ConnectErrorKind::Io if is_about_trust(&error) => Error::Trust { address, why },
            _ => Error::Unreachable { address, why },
        }
    })
}

/// The client says of a file that is not there only that it is not there.
async fn can_be_read(path: &Path) -> Result<(), Error> {
    let failed = |source| Error::CertificateFile { path: path.display().to_string(), source };
    tokio::fs::read(path).await.map(drop).map_err(failed)
}

/// Whether both sides could speak and did not agree on who they are: TLS tells that as data that is no good.
fn is_about_trust(error: &ConnectError) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<std::io::Error>());
    source.is_some_and(|source| source.kind() == std::io::ErrorKind::InvalidData)
}
