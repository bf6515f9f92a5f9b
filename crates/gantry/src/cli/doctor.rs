//! The arguments of `doctor`.

use std::path::PathBuf;

use clap::Args;

use super::{FolderArgs, Output};

/// Arguments of `doctor`: the flags of `serve` that say where files are, so that it looks where the server would.
#[derive(Args, Debug)]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    /// Where the queue and the history are kept
    #[arg(long, value_name = "FILE")]
    pub(crate) database: Option<PathBuf>,
    /// The port that the server would listen on
    #[arg(long, value_name = "N", default_value_t = 8188)]
    pub(crate) port: u16,
    #[command(flatten)]
    pub(crate) output: Output,
}
