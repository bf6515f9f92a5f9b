//! The command line as it is written.

mod cluster;
pub(crate) mod comfy_flags;
mod doctor;
mod pull;
mod running;
mod selftest;
mod serving;

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::builder::RangedU64ValueParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use device::SimSpec;
use meta::{ByteSize, DeviceId};
use placement::CodingPolicy;
use residency::Products;

use crate::drawing::STRENGTHS;
use crate::machine::LogicalGpus;
pub(crate) use cluster::{QueueArgs, WorkerArgs, WorkersArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use pull::PullArgs;
pub(crate) use running::{ConfigArgs, FreeArgs, ListArgs, PeerArgs, PsArgs, StopArgs};
pub(crate) use selftest::{How, SelftestArgs};
pub(crate) use serving::{
    CacheArgs, CheckArgs, FolderArgs, JobArgs, PreviewName, RunArgs, ServeArgs, Verbosity, WorkerDevices,
};

/// The version, with the commit that it was built from where that is known.
pub(crate) const VERSION: &str = env!("GANTRY_VERSION");

/// What every command has in common.
const AFTER_HELP: &str = "\
Every flag can be set by a variable (GANTRY_PORT for --port) or in a configuration file: see `gantry config`.
Exit status: 0 success, 1 failure, 2 wrong usage, 130 interrupted.";

/// Runs diffusion models that do not fit on one device.
#[derive(Debug, Parser)]
#[command(version = VERSION, about, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) machine: MachineArgs,
    /// Tell nothing but results, warnings and errors
    #[arg(short, long, global = true, help_heading = "Telling")]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Which devices to open.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MachineArgs {
    /// Add a simulated device: memory@link, such as 8gb@12gbps (repeatable)
    #[arg(long, global = true, value_name = "SPEC", help_heading = "Devices")]
    pub(crate) sim_device: Vec<SimSpec>,
    /// Open one card as several logical devices, such as cuda:0=2 (repeatable)
    #[arg(long, global = true, value_name = "DEVICE=COUNT", help_heading = "Devices")]
    pub(crate) logical_gpus: Vec<LogicalGpus>,
    /// Give each logical device a CUDA context of its own, as cards have: slower, to try what only contexts show
    #[arg(long, global = true, requires = "logical_gpus", hide = true)]
    pub(crate) own_contexts: bool,
    /// Do not look for GPUs
    #[arg(long, global = true, help_heading = "Devices")]
    pub(crate) cpu: bool,
    /// The most memory of the host to use, if that is less than it or its container has: of a model that is larger, the rest
    /// is read from the disk at every step
    #[arg(long, global = true, value_name = "SIZE", help_heading = "Devices")]
    pub(crate) host_memory: Option<ByteSize>,
    /// Whether weights that stream, or that a device is too small for, are kept losslessly coded, in fewer bytes
    #[arg(
        long,
        global = true,
        value_enum,
        default_value = CODED,
        value_name = "WHEN",
        help_heading = "Devices"
    )]
    pub(crate) coded: Coded,
    /// The most that coded weights may take in the cache folder, where the next start finds them; 0gb keeps none
    #[arg(long, global = true, default_value = CODED_CACHE, value_name = "SIZE", help_heading = "Devices")]
    pub(crate) coded_cache: ByteSize,
    /// Trade precision for speed in one way (repeatable)
    #[arg(long, global = true, value_enum, value_name = "WAY", help_heading = "Devices")]
    pub(crate) fast: Vec<Fast>,
    /// Trade no precision for speed, whatever model files and loaders ask for
    #[arg(long, global = true, conflicts_with = "fast", help_heading = "Devices")]
    pub(crate) exact: bool,
}

impl MachineArgs {
    /// Which products of diffusion models are of 8 bits.
    pub(crate) fn products(&self) -> Products {
        match (self.exact, self.fast.contains(&Fast::Fp8MatrixMult)) {
            (true, _) => Products::Exact,
            (false, true) => Products::EightBits,
            (false, false) => Products::ByFile,
        }
    }
}

/// What can be traded for speed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Fast {
    /// Products of 8 bits with weights that are kept in fp8, on devices that have such
    #[value(name = "fp8_matrix_mult")]
    Fp8MatrixMult,
}

/// Which weights are coded where nothing is said.
const CODED: &str = "auto";
/// What coded weights may take in the cache folder where nothing is said: a few models.
const CODED_CACHE: &str = "60gb";

/// Which weights are coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Coded {
    /// None
    Off,
    /// Those with which a step is predicted to be shorter, where the host has the memory
    #[default]
    Auto,
    /// All that can be
    Force,
}

impl Coded {
    /// What the planner calls it.
    pub(crate) fn policy(self) -> CodingPolicy {
        match self {
            Coded::Off => CodingPolicy::Off,
            Coded::Auto => CodingPolicy::Auto,
            Coded::Force => CodingPolicy::Force,
        }
    }
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Draw with the small model that comes with the program
    #[command(
        after_help = "Examples:\n  gantry demo\n  gantry demo 'a green triangle left of a yellow circle' --seed 7 -o picture.png"
    )]
    Demo(DemoArgs),
    /// Draw a picture with a model file, without a workflow
    #[command(after_help = "Examples:\n  \
        gantry draw 'a red fox in snow' --model NAME_THAT_WAS_PULLED -o fox.png\n  \
        gantry draw 'a red fox in snow' --model flux1-schnell.safetensors --clip-l clip_l.safetensors \\\n      \
        --t5 t5xxl_fp16.safetensors --vae ae.safetensors --steps 4 -o fox.png\n  \
        echo 'a lighthouse' | gantry draw --model all-in-one.safetensors > lighthouse.png")]
    Draw(DrawArgs),
    /// Serve ComfyUI's API and web front end; ComfyUI's own flags work
    #[command(after_help = "Examples:\n  gantry serve --comfy-dir ~/ComfyUI\n  \
        gantry serve --listen --port 8188 --token SECRET")]
    Serve(Box<ServeArgs>),
    /// Take jobs from a queue that several machines share, and run them here
    #[command(
        after_help = "Examples:\n  gantry worker --queue nats://10.0.0.5:4222 --name attic --comfy-dir ~/ComfyUI\n\n\
        Ctrl-C or SIGTERM ends it after the job that runs; nothing is lost if it is killed."
    )]
    Worker(Box<WorkerArgs>),
    /// Show the workers of a shared queue: what each has and does
    #[command(after_help = "Examples:\n  gantry workers --queue nats://10.0.0.5:4222")]
    Workers(WorkersArgs),
    /// Run a workflow file, in the API's or the editor's format
    #[command(after_help = "Examples:\n  gantry run workflow.json -o pictures\n  \
        gantry run picture.png --set 3.seed=7 --comfy-dir ~/ComfyUI")]
    Run(RunArgs),
    /// Get model files: by a short name, by an address, or all that a workflow names
    #[command(after_help = "Examples:\n  gantry pull --list\n  gantry pull NAME\n  \
        gantry pull hf:OWNER/REPOSITORY/model.safetensors --into diffusion_models\n  \
        gantry pull template.json --dry-run\n\n\
        HF_TOKEN is the token for gated models, HF_ENDPOINT another hub; proxies are those of the environment.\n\
        A download that is broken off goes on where it was.")]
    Pull(PullArgs),
    /// List the model files that are here, and what each is
    #[command(after_help = "Examples:\n  gantry list\n  gantry list fp8 --comfy-dir ~/ComfyUI")]
    List(ListArgs),
    /// Show what a running server does: its jobs, the models that it holds, the memory of its devices
    Ps(PsArgs),
    /// Stop a running server's job; the server goes on
    #[command(after_help = "Examples:\n  gantry stop\n  gantry stop --all")]
    Stop(StopArgs),
    /// Press a running server's memory buttons
    #[command(after_help = "Examples:\n  gantry free --unload-models\n  gantry free --free-memory --force")]
    Free(FreeArgs),
    /// Say which workflow files can run here, and which node classes are missing
    #[command(after_help = "Examples:\n  gantry check workflow.json\n  gantry check ~/workflows --json")]
    Check(CheckArgs),
    /// Look at this machine and say what works, what does not and what to do
    #[command(
        after_help = "Examples:\n  gantry doctor\n  gantry doctor --comfy-dir ~/ComfyUI\n  gantry doctor --json\n\n\
        Exit status: 0 nothing is broken, 3 something does not work, 1 failure, 2 wrong usage."
    )]
    Doctor(DoctorArgs),
    /// List the losslessly coded weights that are kept for the next start, or remove them
    #[command(after_help = "Examples:\n  gantry cache\n  gantry cache --clear")]
    Cache(CacheListArgs),
    /// Show the devices of this machine, their memory and measured bandwidths
    #[command(after_help = "Examples:\n  gantry devices\n  gantry devices --sim-device 8gb@12gbps --json")]
    Devices(Output),
    /// Say what a model file is, whether it runs here, and what is in it: precision, blocks and sizes
    #[command(
        after_help = "Examples:\n  gantry inspect flux1-dev.safetensors\n  gantry inspect model-Q4_K_S.gguf --entries"
    )]
    Inspect(InspectArgs),
    /// Show where every block of a model would go, and how long a step would take
    #[command(after_help = "Examples:\n  gantry plan flux1-dev.safetensors\n  \
        gantry plan flux1-dev.safetensors --alloc 'cuda:0,8gb;cpu,*'\n  \
        gantry plan flux1-dev.safetensors --virtual-vram-gb 12 --donor cpu --json")]
    Plan(PlanArgs),
    /// Check every operation on every kind of device against the CPU, and the CPU against plain loops; or whole
    /// workflows against reference values
    #[command(
        after_help = "Examples:\n  gantry selftest\n  gantry selftest --device cuda:0 --only attention --all\n  \
            gantry selftest --golden reference --case NAME --device cuda:0 --dtype bf16"
    )]
    Selftest(SelftestArgs),
    /// Show what is set by variables and the configuration file, and what can be
    #[command(after_help = "Examples:\n  gantry config\n  gantry config --list")]
    Config(ConfigArgs),
    /// Say which version this is
    Version(Output),
    /// Print a script that completes commands and flags in a shell
    #[command(
        after_help = "Examples:\n  gantry completions bash > ~/.local/share/bash-completion/completions/gantry\n  \
        gantry completions fish > ~/.config/fish/completions/gantry.fish"
    )]
    Completions {
        /// The shell
        #[arg(value_enum)]
        shell: clap_complete::Shell,
    },
    /// Write the manual pages of all commands into a folder
    #[command(after_help = "Examples:\n  gantry man ~/.local/share/man/man1")]
    Man {
        /// The folder, which is made if it is not there
        folder: PathBuf,
        #[command(flatten)]
        output: Output,
    },
    /// Measure
    #[command(after_help = "Examples:\n  gantry bench ops\n  gantry bench ops --device cuda:0 --json\n  \
        gantry bench residency")]
    Bench(BenchArgs),
}

/// How to print.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Output {
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `cache`.
#[derive(Args, Debug)]
pub(crate) struct CacheListArgs {
    /// Remove all of them; a model that runs with one keeps it until it is unloaded
    #[arg(long)]
    pub(crate) clear: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `demo`.
#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// What to draw: one or two coloured shapes, and where they are
    #[arg(default_value = "a red circle above a blue square")]
    pub(crate) prompt: String,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = steps())]
    pub(crate) steps: usize,
    /// The seed of the noise
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// Use the model in GGUF's Q8_0
    #[arg(long)]
    pub(crate) quantised: bool,
    /// Draw outlines: the strength of the demo's LoRA
    #[arg(long, value_name = "STRENGTH", num_args = 0..=1, default_missing_value = "1", allow_negative_numbers = true, value_parser = strength)]
    pub(crate) outline: Option<f64>,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Where to write the picture: a PNG, which carries its workflow, or a JPEG by a name that ends so
    #[arg(short, long, value_name = "FILE", default_value = "demo.png")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) report: Output,
}

/// Arguments of `draw`.
#[derive(Args, Debug)]
pub(crate) struct DrawArgs {
    /// What to draw; read from a pipe if it is not given
    pub(crate) prompt: Option<String>,
    /// The diffusion model, a checkpoint that has all parts, or the short name of a model that was pulled
    #[arg(long, value_name = "FILE|NAME")]
    pub(crate) model: PathBuf,
    /// The folder below which pulled models lie; the current one if nothing is said
    #[arg(long, visible_alias = "comfy-dir", value_name = "FOLDER")]
    pub(crate) base_directory: Option<PathBuf>,
    /// The CLIP-L text encoder, if the model's file does not have it
    #[arg(long, value_name = "FILE")]
    pub(crate) clip_l: Option<PathBuf>,
    /// The CLIP-G text encoder, if the model takes one and its file does not have it
    #[arg(long, value_name = "FILE")]
    pub(crate) clip_g: Option<PathBuf>,
    /// The T5 text encoder, if the model's file does not have it
    #[arg(long, value_name = "FILE")]
    pub(crate) t5: Option<PathBuf>,
    /// The autoencoder, if the model's file does not have it
    #[arg(long, value_name = "FILE")]
    pub(crate) vae: Option<PathBuf>,
    /// A LoRA and its strength (repeatable)
    #[arg(long, value_name = "FILE:STRENGTH")]
    pub(crate) lora: Vec<String>,
    /// Width and height in pixels
    #[arg(long, value_name = "WxH", default_value = "1024x1024")]
    pub(crate) size: PictureSize,
    /// Steps
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = steps())]
    pub(crate) steps: usize,
    /// The seed of the noise
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub(crate) seed: u64,
    /// The guidance that a distilled model is told; what is usual if nothing is said
    #[arg(long, value_name = "G", allow_negative_numbers = true, value_parser = guidance)]
    pub(crate) guidance: Option<f64>,
    /// The factor of guidance away from the negative prompt; what is usual for the model if nothing is said
    #[arg(long, value_name = "G", allow_negative_numbers = true, value_parser = guidance)]
    pub(crate) cfg: Option<f64>,
    /// What the picture is not to be, for models with a factor above 1
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) negative: String,
    #[command(flatten)]
    pub(crate) place: PlaceArgs,
    /// Where to write the picture: a PNG, which carries its workflow, or a JPEG by a name that ends so; a pipe if it is
    /// not given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print what was drawn as JSON
    #[arg(long, requires = "output")]
    pub(crate) json: bool,
}

impl DrawArgs {
    /// The file that a flag names.
    pub(crate) fn file(&self, flag: &str) -> Option<&Path> {
        match flag {
            "--clip-l" => self.clip_l.as_deref(),
            "--clip-g" => self.clip_g.as_deref(),
            "--t5" => self.t5.as_deref(),
            "--vae" => self.vae.as_deref(),
            _ => None,
        }
    }
}

/// Where a model computes and where its bytes go.
#[derive(Args, Debug)]
pub(crate) struct PlaceArgs {
    /// Where to compute
    #[arg(long, value_name = "DEVICE")]
    pub(crate) compute: Option<DeviceId>,
    /// Where the diffusion model's bytes go, such as 'cuda:0,8gb;cpu,*'; automatic if nothing is said
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) alloc: String,
}

/// How many steps can be asked for.
fn steps() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=10_000)
}

/// A LoRA's strength.
fn strength(text: &str) -> Result<f64, String> {
    within(text, STRENGTHS).ok_or_else(|| {
        format!(
            "'{text}' is not a strength: write a number from {} to {}",
            STRENGTHS.start(),
            STRENGTHS.end()
        )
    })
}

/// The guidance that a model is told.
fn guidance(text: &str) -> Result<f64, String> {
    within(text, 0.0..=100.0)
        .ok_or_else(|| format!("'{text}' is not a guidance: write a number from 0 to 100, such as 3.5"))
}

fn within(text: &str, range: RangeInclusive<f64>) -> Option<f64> {
    text.trim().parse().ok().filter(|number| range.contains(number))
}

/// A number of gigabytes.
fn gigabytes(text: &str) -> Result<f64, String> {
    let number = text.trim().parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| {
        format!("'{text}' is not a number of gigabytes: write one of 0 or more, such as 8 or 2.5")
    })
}

/// A picture's size: `1024x768`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PictureSize {
    pub(crate) width: usize,
    pub(crate) height: usize,
}

impl FromStr for PictureSize {
    type Err = String;

    fn from_str(text: &str) -> Result<PictureSize, String> {
        let error = || format!("'{text}' is not a size: write width and height, such as 1024x768");
        let (width, height) = text.split_once(['x', 'X']).ok_or_else(error)?;
        let side =
            |text: &str| text.trim().parse().ok().filter(|side| (1..=16384).contains(side)).ok_or_else(error);
        Ok(PictureSize { width: side(width)?, height: side(height)? })
    }
}

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// A safetensors or GGUF file, or a *.safetensors.index.json
    pub(crate) file: PathBuf,
    /// List every tensor
    #[arg(long)]
    pub(crate) entries: bool,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub(crate) struct PlanArgs {
    /// A safetensors or GGUF file, or a *.safetensors.index.json
    pub(crate) file: PathBuf,
    /// Where the bytes go, such as 'cuda:0,2.5gb;cuda:1,3gb;cpu,*'; automatic if nothing is said
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["virtual_vram_gb", "donor"])]
    pub(crate) alloc: Option<String>,
    /// How many gigabytes leave the compute device
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = gigabytes)]
    pub(crate) virtual_vram_gb: Option<f64>,
    /// Who takes them, in order, such as cuda:1,cpu
    #[arg(long, value_name = "DEVICES", default_value = "cpu", requires = "virtual_vram_gb")]
    pub(crate) donor: String,
    /// Where to compute; the first accelerator, or the CPU
    #[arg(long, value_name = "DEVICE")]
    pub(crate) compute: Option<DeviceId>,
    /// The picture's width and height in pixels
    #[arg(long, value_name = "WxH", default_value = "1024x1024")]
    pub(crate) size: PictureSize,
    /// Frames of a video
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) frames: usize,
    /// Pictures at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) batch: usize,
    /// With guidance: every step evaluates two conditionings
    #[arg(long)]
    pub(crate) cfg: bool,
    /// Which part of a checkpoint that has several; the diffusion model if it has one
    #[arg(long, value_enum)]
    pub(crate) part: Option<PlanPart>,
    /// Draw the plan into this SVG file, too
    #[arg(long, value_name = "FILE")]
    pub(crate) picture: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// A part of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlanPart {
    /// The diffusion model
    Diffusion,
    /// The first text encoder
    Text,
    /// The autoencoder
    Vae,
    /// The vision model
    Vision,
}

impl PlanPart {
    /// What the rest of the program calls it.
    pub(crate) fn role(self) -> runtime::Role {
        match self {
            PlanPart::Diffusion => runtime::Role::Diffusion,
            PlanPart::Text => runtime::Role::Text,
            PlanPart::Vae => runtime::Role::Autoencoder,
            PlanPart::Vision => runtime::Role::Vision,
        }
    }
}

/// Arguments of `bench`.
#[derive(Args, Debug)]
pub(crate) struct BenchArgs {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) case: BenchCase,
    /// The device to measure
    #[arg(long, default_value = "cpu", value_name = "DEVICE")]
    pub(crate) device: DeviceId,
    /// A Python that has PyTorch, to measure beside us in the same run; "none" to leave it out
    #[arg(long, default_value = "python3", value_name = "PROGRAM")]
    pub(crate) python: String,
    /// Fail if there is no PyTorch to measure beside us
    #[arg(long)]
    pub(crate) with_torch: bool,
    /// Be one side of `bench cpu`, which starts this itself
    #[arg(long, hide = true)]
    pub(crate) answer: bool,
    /// The model file of `bench load` and `bench coding`, where one of a family's released size is written if none is named, and of `bench codec`
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
    /// The family whose released size `bench step`, `bench load` and `bench coding` take, by its short name; the first one if none is named
    #[arg(long, value_name = "NAME")]
    pub(crate) family: Option<String>,
    /// Width and height of the picture or video of `bench step`; what the family's models are usually measured with if
    /// nothing is said
    #[arg(long, value_name = "WxH")]
    pub(crate) size: Option<PictureSize>,
    /// Frames of the video of `bench step`
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = steps())]
    pub(crate) frames: usize,
    /// How large the models of benches that take a family are, and those of `bench parts`' upscaler
    #[arg(long, value_enum, default_value = "12b", value_name = "SHAPE")]
    pub(crate) shape: ModelShape,
    /// Steps of each job of `bench served` and `bench shared`; the median of all but the first counts
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = steps())]
    pub(crate) steps: usize,
    /// How many clients of `bench server` and `bench queue` post prompts at once
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub(crate) clients: usize,
    /// How many prompts of `bench server` and `bench queue` are posted in all
    #[arg(long, default_value_t = 400, value_name = "N")]
    pub(crate) prompts: usize,
    /// A ComfyUI install to measure beside us in `bench server`; --python names its Python
    #[arg(long, value_name = "FOLDER")]
    pub(crate) with_comfy: Option<PathBuf>,
    /// Measure a step of `bench step` with a control network of the family's released size beside it, and without
    #[arg(long)]
    pub(crate) control: bool,
    /// Also tell where the time goes, operation by operation, in `bench step` and `bench parts`
    #[arg(long)]
    pub(crate) operations: bool,
    /// Only rows whose name contains this, or one of these with commas between them
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) only: String,
    /// Where bench step writes a profile of each row's last step, as JSON that trace viewers open too
    #[arg(long, value_name = "FOLDER")]
    pub(crate) profile: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// What can be measured.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum BenchCase {
    /// Coding a model while steps run: how long it takes, by how much steps are slower, and what the next start saves
    Coding,
    /// Lossless coding of weights: speed of one core and of a device, and how far weights shrink
    Codec,
    /// Whole steps of large blocks and of an autoencoder on the CPU
    Cpu,
    /// Matrix products, convolutions and attention at model shapes
    Ops,
    /// What queuing an operation costs the host, on a device that computes nothing and on a GPU
    Launches,
    /// Text encoder, autoencoder and single blocks at three sizes each: times, and memory beside what was planned; and an
    /// upscaler, beside PyTorch where a Python has it
    Parts,
    /// Time from the start to the first block of a model file in use, from the page cache and from the disk
    Load,
    /// A model of one and a half times the host memory that may be used, streamed from the disk; see --host-memory
    Disk,
    /// Streaming on a metered simulated device, and memory over many loads and frees
    Residency,
    /// Steps of a large model as people get them: workflows over HTTP, resident, offloaded, patched, cast, split
    Served,
    /// Steps of a model of random weights in a family's released size, resident and offloaded
    Step,
    /// The server as a program: start, memory, prompts, nodes whose outputs are known
    Server,
    /// One picture on two devices: a pair of texts and a batch that are split, and jobs of several parts, with their bits
    Shared,
    /// A queue that several machines share, with all of them on this one: jobs in a second, and how soon prompts are accepted
    Queue,
    /// Models of videos: offloaded beside resident, two experts where one fits, frames written as MP4; with --device, two
    /// experts of the released size on that device and on a part of it
    Video,
}

/// How large a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModelShape {
    /// As it was published: FLUX.1 has 12 billion weights, 24 GB, and makes a picture of 1024 by 1024
    #[value(name = "12b")]
    Full,
    /// One that two CPU cores can run
    Small,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_read() {
        assert_eq!("640x480".parse(), Ok(PictureSize { width: 640, height: 480 }));
        for text in ["", "640", "0x8", "axb", "99999x8", "8x8x8"] {
            assert!(text.parse::<PictureSize>().is_err(), "{text}");
        }
    }

    #[test]
    fn wrong_numbers_are_refused_with_the_way_to_write_them() {
        for (arguments, said) in [
            (["demo", "--steps", "0"].as_slice(), "0 is not in 1..=10000"),
            (&["demo", "--outline", "nan"], "'nan' is not a strength: write a number from -100 to 100"),
            (&["draw", "x", "--model", "x", "--guidance", "-1"], "'-1' is not a guidance"),
            (&["draw", "x", "--model", "x", "--guidance", "500"], "write a number from 0 to 100"),
            (&["plan", "x", "--virtual-vram-gb", "-5"], "'-5' is not a number of gigabytes"),
            (&["plan", "x", "--virtual-vram-gb", "nan"], "write one of 0 or more"),
            (&["plan", "x", "--size", "large"], "such as 1024x768"),
        ] {
            let error = Cli::try_parse_from(["gantry"].iter().chain(arguments)).unwrap_err().to_string();
            assert!(error.contains(said), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn wrong_devices_are_refused_with_the_way_to_write_them() {
        let error = Cli::try_parse_from(["gantry", "selftest", "--device", "gpu0"]).unwrap_err().to_string();
        assert!(error.contains("'gpu0' is not a device: write cpu, cuda:0"), "{error}");
        let error =
            Cli::try_parse_from(["gantry", "devices", "--sim-device", "8gb"]).unwrap_err().to_string();
        assert!(error.contains("8gb@12gbps"), "{error}");
    }
}
