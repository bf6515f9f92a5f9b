//! The arguments of `selftest`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use meta::{DType, DeviceId};
use serde::Serialize;

use super::Output;

/// Arguments of `selftest`.
#[derive(Args, Debug)]
pub(crate) struct SelftestArgs {
    /// Only this device (repeatable); all by default
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Vec<DeviceId>,
    /// Only cases whose name contains this
    #[arg(long, default_value = "", value_name = "TEXT")]
    pub(crate) only: String,
    /// Show every case, not only the worst of each operation
    #[arg(long)]
    pub(crate) all: bool,
    /// Run the workflows of a folder of reference values instead of single operations, on one device
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["only", "all"])]
    pub(crate) golden: Option<PathBuf>,
    /// Only the workflow of this name, or those whose names begin so (repeatable)
    #[arg(long = "case", value_name = "NAME", requires = "golden")]
    pub(crate) cases: Vec<String>,
    /// The element type of activations, for networks that may have it
    #[arg(long, value_enum, value_name = "TYPE", default_value = "f32", requires = "golden")]
    pub(crate) dtype: ActivationType,
    /// Where weights are: on the device, in host memory, or on two devices (repeatable); all three by default
    #[arg(long, value_enum, value_name = "WAY", requires = "golden")]
    pub(crate) how: Vec<How>,
    /// Where the model files are rebuilt and kept; a folder that goes away at the end by default
    #[arg(long, value_name = "FOLDER", requires = "golden")]
    pub(crate) models: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) output: Output,
}

/// An element type of activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationType {
    /// 32 bits
    F32,
    /// 16 bits, with the range of 32
    Bf16,
    /// 16 bits
    F16,
}

impl ActivationType {
    /// What the rest of the program calls it.
    pub(crate) fn dtype(self) -> DType {
        match self {
            ActivationType::F32 => DType::F32,
            ActivationType::Bf16 => DType::BF16,
            ActivationType::F16 => DType::F16,
        }
    }
}

/// Where a workflow's weights are while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum How {
    /// All on the device that computes
    Resident,
    /// In host memory, from where every block travels in every step
    Streamed,
    /// Half on the device that computes, half on another
    Split,
}

impl How {
    /// All of them.
    pub(crate) const ALL: [How; 3] = [How::Resident, How::Streamed, How::Split];

    /// The word for it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            How::Resident => "resident",
            How::Streamed => "streamed",
            How::Split => "split",
        }
    }
}
