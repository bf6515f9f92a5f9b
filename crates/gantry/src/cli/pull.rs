//! The arguments of `pull`.

use clap::Args;

use super::{FolderArgs, Output};

/// Arguments of `pull`.
#[derive(Args, Debug)]
pub(crate) struct PullArgs {
    /// A short name, hf:OWNER/REPOSITORY/FILE, a link, or a workflow file that names its models (repeatable)
    #[arg(value_name = "WHAT", required_unless_present = "list")]
    pub(crate) wanted: Vec<String>,
    /// List the short names
    #[arg(long)]
    pub(crate) list: bool,
    /// The kind of folder that the file of an address goes into, such as loras; read from the address if it says so
    #[arg(long, value_name = "KIND")]
    pub(crate) into: Option<String>,
    /// Say what would be fetched, how large it is and where it goes, and fetch nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}
