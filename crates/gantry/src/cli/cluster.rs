//! The arguments of `worker` and `workers`, and those of `serve` for a queue that machines share.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::Args;
use cluster::{ClusterConfig, NatsStore};

use super::Output;
use super::serving::{CacheArgs, FolderArgs, JobArgs};

/// The queue that machines share.
#[derive(Args, Clone, Debug)]
pub(crate) struct QueueArgs {
    /// A queue that several machines share, such as nats://10.0.0.5:4222
    #[arg(long, value_name = "URL", help_heading = "Several machines")]
    pub(crate) queue: Option<String>,
    /// Whose jobs: workers take those of their pool alone
    #[arg(long, value_name = "NAME", default_value = "default", help_heading = "Several machines")]
    pub(crate) pool: String,
    /// The user at the queue
    #[arg(long, value_name = "NAME", requires = "queue_password", help_heading = "Several machines")]
    pub(crate) queue_user: Option<String>,
    /// The password; others see it in the list of processes, so better use the variable GANTRY_QUEUE_PASSWORD
    #[arg(long, value_name = "PASSWORD", requires = "queue_user", help_heading = "Several machines")]
    pub(crate) queue_password: Option<String>,
    /// A file of credentials for the queue, in the place of user and password
    #[arg(long, value_name = "FILE", conflicts_with = "queue_user", help_heading = "Several machines")]
    pub(crate) queue_creds: Option<PathBuf>,
    /// The certificates of those who may vouch for the queue; it then speaks TLS
    #[arg(long, value_name = "FILE", help_heading = "Several machines")]
    pub(crate) queue_ca: Option<PathBuf>,
    /// Our own certificate, for a queue that asks who we are
    #[arg(long, value_name = "FILE", requires = "queue_key", help_heading = "Several machines")]
    pub(crate) queue_cert: Option<PathBuf>,
    /// The key of that certificate
    #[arg(long, value_name = "FILE", requires = "queue_cert", help_heading = "Several machines")]
    pub(crate) queue_key: Option<PathBuf>,
    /// Seconds after which a job of a worker that gives no sign of life runs elsewhere; the first who opens a pool says it
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, help_heading = "Several machines")]
    pub(crate) queue_lease: f64,
}

impl QueueArgs {
    /// Opens the queue, if there is one.
    pub(crate) fn open(&self) -> Result<Option<Arc<NatsStore>>> {
        let Some(address) = &self.queue else { return Ok(None) };
        ensure!(
            (1.0..=3600.0).contains(&self.queue_lease),
            "--queue-lease {}: give seconds from 1 to 3600",
            self.queue_lease
        );
        let config = ClusterConfig {
            lease: self.lease(),
            user: self.queue_user.clone().zip(self.queue_password.clone()),
            credentials: self.queue_creds.clone(),
            root_certificates: self.queue_ca.clone(),
            certificate: self.queue_cert.clone().zip(self.queue_key.clone()),
            ..ClusterConfig::new(address, &self.pool)
        };
        Ok(Some(Arc::new(NatsStore::open(&config)?)))
    }

    /// How long a claim is good.
    pub(crate) fn lease(&self) -> Duration {
        Duration::from_secs_f64(self.queue_lease.clamp(1.0, 3600.0))
    }
}

/// Arguments of `worker`.
#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    #[command(flatten)]
    pub(crate) queue: QueueArgs,
    /// What it is called; letters, digits, - and _. Something is put behind it that no other worker has
    #[arg(long, value_name = "NAME", default_value = "worker")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) jobs: JobArgs,
    /// Print its name as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `workers`.
#[derive(Args, Debug)]
pub(crate) struct WorkersArgs {
    #[command(flatten)]
    pub(crate) queue: QueueArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}
