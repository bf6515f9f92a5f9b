//! The arguments of the commands that ask a running server (`free`, `ps`, `stop`), and of `list` and `config`.

use clap::Args;

use super::serving::TokenArgs;
use super::{FolderArgs, Output};

/// Which server is asked.
#[derive(Args, Debug)]
pub(crate) struct PeerArgs {
    /// The server
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8188")]
    pub(crate) server: String,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
}

/// Arguments of `free`.
#[derive(Args, Debug)]
pub(crate) struct FreeArgs {
    /// Unload models as their loaders said: those to eject if there are any, else those with nothing said
    #[arg(long)]
    pub(crate) unload_models: bool,
    /// The same, and forget the outputs of nodes
    #[arg(long)]
    pub(crate) free_memory: bool,
    /// Unload models that are to be kept, too
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `ps`.
#[derive(Args, Debug)]
pub(crate) struct PsArgs {
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// The jobs to stop, by the ids that `gantry ps` shows; the one that runs if none is named
    #[arg(value_name = "JOB")]
    pub(crate) jobs: Vec<String>,
    /// Stop the job that runs and take all that wait out of the queue
    #[arg(long, conflicts_with = "jobs")]
    pub(crate) all: bool,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Only names that contain this
    pub(crate) text: Option<String>,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `config`.
#[derive(Args, Debug)]
pub(crate) struct ConfigArgs {
    /// List every flag with its variable and the commands that take it
    #[arg(long)]
    pub(crate) list: bool,
    /// The same with what each says, as a table in Markdown
    #[arg(long)]
    pub(crate) markdown: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}
