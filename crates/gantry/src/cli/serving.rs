//! The arguments of `serve`, `run` and `check`. `serve` takes ComfyUI's own flags, so that scripts that
//! start ComfyUI start Gantry.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};
use meta::DeviceId;

use super::Output;

/// Where files are, for `serve` and `run`.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct FolderArgs {
    /// The folder that has models, input, output, temp and user; an existing ComfyUI install will do
    #[arg(long, visible_alias = "comfy-dir", value_name = "FOLDER")]
    pub(crate) base_directory: Option<PathBuf>,
    /// Where pictures are saved
    #[arg(long, value_name = "FOLDER")]
    pub(crate) output_directory: Option<PathBuf>,
    /// Where workflows load pictures from
    #[arg(long, value_name = "FOLDER")]
    pub(crate) input_directory: Option<PathBuf>,
    /// Where previews go: into a folder temp below this one, which is emptied at start and end
    #[arg(long, value_name = "FOLDER")]
    pub(crate) temp_directory: Option<PathBuf>,
    /// Where settings and stored workflows are
    #[arg(long, value_name = "FOLDER")]
    pub(crate) user_directory: Option<PathBuf>,
    /// More model folders: files as ComfyUI's extra_model_paths.yaml (repeatable)
    #[arg(long, value_name = "FILE", num_args = 1..)]
    pub(crate) extra_model_paths_config: Vec<PathBuf>,
}

/// What requests to a server show.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct TokenArgs {
    /// The bearer token of requests, needed to listen beyond this machine; others see it in the list of processes, so
    /// better use --token-file or the variable GANTRY_TOKEN
    #[arg(long, value_name = "TOKEN", conflicts_with = "token_file")]
    token: Option<String>,
    /// A file whose first line is the token
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl TokenArgs {
    /// The token that a flag, its variable or a file says.
    pub(crate) fn read(&self) -> Result<Option<String>> {
        if let Some(file) = &self.token_file {
            let text = std::fs::read_to_string(file)
                .with_context(|| format!("--token-file {}: cannot be read", file.display()))?;
            let token = text.lines().next().unwrap_or_default().trim().to_owned();
            ensure!(!token.is_empty(), "--token-file {}: its first line is empty", file.display());
            return Ok(Some(token));
        }
        Ok(self.token.clone().filter(|token| !token.is_empty()))
    }
}

/// How outputs of nodes are kept.
#[derive(Args, Clone, Debug, Default)]
#[group(multiple = false)]
pub(crate) struct CacheArgs {
    /// Keep outputs of nodes until a prompt comes that does not have them (the default)
    #[arg(long)]
    pub(crate) cache_classic: bool,
    /// Keep the outputs of so many nodes; 0 is the default way
    #[arg(long, value_name = "N")]
    pub(crate) cache_lru: Option<usize>,
    /// Keep no outputs of nodes
    #[arg(long)]
    pub(crate) cache_none: bool,
}

/// How previews are made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PreviewName {
    /// Not at all
    #[default]
    None,
    /// The best way that there is
    Auto,
    /// By a linear map from latent values to colours
    Latent2rgb,
    /// Not there yet: shown as latent2rgb
    Taesd,
}

/// How loud the log is; ComfyUI's names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "UPPER")]
pub(crate) enum Verbosity {
    /// Everything
    Debug,
    /// What happens
    #[default]
    Info,
    /// What is odd
    Warning,
    /// What went wrong
    Error,
    /// What went wrong
    Critical,
}

/// The devices on which jobs run at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WorkerDevices {
    /// Every accelerator, or the host if there is none.
    Auto,
    /// These.
    These(Vec<DeviceId>),
}

impl FromStr for WorkerDevices {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkerDevices, String> {
        if text.trim().eq_ignore_ascii_case("auto") {
            return Ok(WorkerDevices::Auto);
        }
        let mut devices = Vec::new();
        for name in text.split(',') {
            let device: DeviceId = name.trim().parse().map_err(|error| format!("{error}"))?;
            if devices.contains(&device) {
                return Err(format!("{device} is named twice; a device has one worker"));
            }
            devices.push(device);
        }
        Ok(WorkerDevices::These(devices))
    }
}

/// How jobs run, for `serve` and `worker`.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// How steps show what they have
    #[arg(long, value_enum, value_name = "METHOD", default_value = "none")]
    pub(crate) preview_method: PreviewName,
    /// Pixels along the longer side of a preview
    #[arg(long, value_name = "N", default_value_t = 512)]
    pub(crate) preview_size: usize,
    /// Saved pictures do not say how they were made
    #[arg(long)]
    pub(crate) disable_metadata: bool,
    /// Where models compute unless a node says otherwise
    #[arg(long, value_name = "DEVICE")]
    pub(crate) compute: Option<DeviceId>,
    /// Run so many jobs at the same time, one on each of these devices, such as cuda:0,cuda:1; auto for all
    /// accelerators
    #[arg(long, value_name = "DEVICES", conflicts_with = "compute")]
    pub(crate) workers: Option<WorkerDevices>,
    /// How loud the log is
    #[arg(long, value_enum, value_name = "LEVEL", num_args = 0..=1, default_value = "INFO", default_missing_value = "DEBUG", ignore_case = true)]
    pub(crate) verbose: Verbosity,
    /// Write the log into this file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) log_file: Option<PathBuf>,
    /// Add the node classes that ComfyUI's own tests use
    #[arg(long)]
    pub(crate) testing_nodes: bool,
}

/// Arguments of `serve`.
#[derive(Args, Debug)]
pub(crate) struct ServeArgs {
    /// Addresses to listen on, comma-separated; without a value all of them
    #[arg(long, value_name = "IP", num_args = 0..=1, default_value = "127.0.0.1", default_missing_value = "0.0.0.0,::")]
    pub(crate) listen: String,
    /// The port; 0 for any that is free
    #[arg(long, value_name = "N", default_value_t = 8188)]
    pub(crate) port: u16,
    /// The key of the certificate, for https
    #[arg(long, value_name = "FILE", requires = "tls_certfile")]
    pub(crate) tls_keyfile: Option<PathBuf>,
    /// The certificate, for https
    #[arg(long, value_name = "FILE", requires = "tls_keyfile")]
    pub(crate) tls_certfile: Option<PathBuf>,
    /// Let pages of this origin use the server; without a value all origins
    #[arg(long, value_name = "ORIGIN", num_args = 0..=1, default_missing_value = "*")]
    pub(crate) enable_cors_header: Option<String>,
    /// The largest request, in megabytes
    #[arg(long, value_name = "MB", default_value_t = 100.0)]
    pub(crate) max_upload_size: f64,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
    /// Listen beyond this machine without a token
    #[arg(long)]
    pub(crate) no_token: bool,
    /// A host name that requests may use besides those of this machine (repeatable)
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) cache: CacheArgs,
    #[command(flatten)]
    pub(crate) queue: super::QueueArgs,
    /// Where the queue and the history are kept
    #[arg(long, value_name = "FILE")]
    pub(crate) database: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) jobs: JobArgs,
    /// The web front end's files, if they are not in a Python install
    #[arg(long, value_name = "FOLDER")]
    pub(crate) front_end_root: Option<PathBuf>,
    /// The front end makes no calls beyond this machine
    #[arg(long, visible_alias = "offline")]
    pub(crate) disable_api_nodes: bool,
    /// Compress answers
    #[arg(long)]
    pub(crate) enable_compress_response_body: bool,
    /// Print where it listens as one line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    /// The workflow: a JSON file in the API's or the editor's format, or a picture that has one; - for a pipe
    pub(crate) workflow: PathBuf,
    /// Where pictures are saved
    #[arg(short, long, value_name = "FOLDER")]
    pub(crate) output: Option<PathBuf>,
    /// Set an input: node, input and value, such as 3.seed=7 or 6.text='a red fox' (repeatable)
    #[arg(long, value_name = "NODE.INPUT=VALUE")]
    pub(crate) set: Vec<String>,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    /// Where models compute unless a node says otherwise
    #[arg(long, value_name = "DEVICE")]
    pub(crate) compute: Option<DeviceId>,
    /// Saved pictures do not say how they were made
    #[arg(long)]
    pub(crate) disable_metadata: bool,
    /// Print the prompt in the API's format instead of running it
    #[arg(long)]
    pub(crate) convert: bool,
    /// Write where the time of each model's last step went, block by block: JSON that trace viewers open too
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) report: Output,
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// Workflow files, or folders of them
    #[arg(required = true)]
    pub(crate) paths: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) folders: FolderArgs,
    #[command(flatten)]
    pub(crate) output: Output,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_read() {
        let these = |ids: &[DeviceId]| Ok(WorkerDevices::These(ids.to_vec()));
        assert_eq!("auto".parse(), Ok(WorkerDevices::Auto));
        assert_eq!("cuda:1, cuda:0".parse(), these(&[DeviceId::cuda(1), DeviceId::cuda(0)]));
        assert_eq!("sim:0".parse(), these(&[DeviceId::sim(0)]));
        for (text, why) in
            [("cuda:0,cuda:0", "cuda:0 is named twice"), ("", ""), ("gpu0", ""), ("sim:0,", "")]
        {
            let error = text.parse::<WorkerDevices>().unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
