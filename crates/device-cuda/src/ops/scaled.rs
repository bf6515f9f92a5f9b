//! Codes with scales beside them to floats.

use device::op::Scales;
use device::{Operand, Result};
use meta::{DType, Scheme};

use super::layout::geometry::{element, type_name, unsupported};
use crate::kernel::{Args, KernelFile, Launch, Variant};

/// Values of a row that a block of threads unpacks at once, and its threads.
const BLOCK_VALUES: usize = 2048;
const THREADS: u32 = 128;
/// The most blocks side by side in the second dimension; rows beyond them are the same blocks' next.
const MOST_ROWS: usize = 65_535;

/// Every scheme to every type, and rotations of every length.
macro_rules! schemes {
    ($($scheme:literal $group:literal $id:literal)*) => {
        &[$(
            Variant { file: KernelFile::Scaled, name: "unpack_scaled", defines: &[("TARGET", "bf16"), ("SCHEME", $scheme), ("GROUP", $group), ("ID", $id)] },
            Variant { file: KernelFile::Scaled, name: "unpack_scaled", defines: &[("TARGET", "f16"), ("SCHEME", $scheme), ("GROUP", $group), ("ID", $id)] },
            Variant { file: KernelFile::Scaled, name: "unpack_scaled", defines: &[("TARGET", "f32"), ("SCHEME", $scheme), ("GROUP", $group), ("ID", $id)] },
        )*]
    };
}

pub(crate) const VARIANTS: &[Variant] = schemes! {
    "INT8" "1" "i32" "INT8" "4" "i64" "INT8" "16" "i32" "INT8" "64" "i32" "INT8" "256" "i32" "INT8" "1024" "i32"
    "MXFP8" "1" "i32" "NVFP4" "1" "i32" "NVFP4" "1" "i64"
};

/// A weight whose codes need scales.
#[derive(Clone, Copy)]
pub(crate) struct Coded<'a> {
    /// The codes.
    pub(crate) weight: &'a Operand,
    /// Their scheme.
    pub(crate) scheme: Scheme,
    /// What makes numbers of them.
    pub(crate) scales: &'a Scales,
    /// Columns that count: all but what fills rows up.
    pub(crate) columns: usize,
}

impl Coded<'_> {
    /// Writes all its values one after the other to the device address `to`.
    pub(crate) fn unpack_to(&self, launch: &Launch<'_>, target: DType, to: u64) -> Result<()> {
        self.launch(launch, (0, "i32", self.weight.dim(0)), target, to)
    }

    /// Writes the rows that `ids` name to `out`; NaN for those that it does not have.
    pub(crate) fn look_up(&self, launch: &Launch<'_>, ids: &Operand, out: &Operand) -> Result<()> {
        let id = type_name(element(launch, "embedding", ids)?);
        let target = element(launch, "embedding", out)?;
        self.launch(launch, (launch.pointer(ids)?, id, ids.count()), target, launch.pointer(out)?)
    }

    /// Launches the kernel for the rows that are wanted: by the address and type of their ids, and their number.
    fn launch(
        &self,
        launch: &Launch<'_>,
        (ids, id, rows): (u64, &'static str, usize),
        target: DType,
        to: u64,
    ) -> Result<()> {
        let (weight, scales) = (self.weight, self.scales);
        let stored_columns = weight.dim(1);
        let (scheme, group) = match self.scheme {
            Scheme::Int8 { rotation } => ("INT8", group_name(rotation.map_or(1, meta::Rotation::group))),
            Scheme::Mxfp8 => ("MXFP8", "1"),
            Scheme::Nvfp4 => ("NVFP4", "1"),
        };
        let count = |value: usize| {
            u32::try_from(value)
                .map_err(|_| unsupported(launch, "unpack", format!("a row of {value} values")))
        };
        let tensor = scales.tensor.as_ref().map_or(Ok(0), |tensor| launch.pointer(tensor))?;
        let across = self.scheme.tiles(stored_columns).map_or(0, meta::ScaleTiles::across);
        let by_row = u32::from(across == 0 && scales.values.count() > 1);
        // In the order of the kernel's structure.
        let mut stored = Vec::with_capacity(72);
        for pointer in [launch.pointer(weight)?, launch.pointer(&scales.values)?, tensor, ids] {
            stored.extend(pointer.to_ne_bytes());
        }
        for number in [weight.dim(0), scales.first_row, rows] {
            stored.extend((number as i64).to_ne_bytes());
        }
        for number in [count(stored_columns)?, count(self.columns)?, count(across)?, by_row] {
            stored.extend(number.to_ne_bytes());
        }
        let defines = [("TARGET", type_name(target)), ("SCHEME", scheme), ("GROUP", group), ("ID", id)];
        let kernel = launch.kernel(KernelFile::Scaled, "unpack_scaled", &defines)?;
        let grid = [count(self.columns.div_ceil(BLOCK_VALUES))?, rows.min(MOST_ROWS) as u32, 1];
        kernel.launch(launch, grid, [THREADS, 1, 1], 0, &mut Args::new().bytes(&stored).ptr(to))
    }
}

/// The length of a rotation as the kernel is compiled for it.
fn group_name(group: usize) -> &'static str {
    match group {
        4 => "4",
        16 => "16",
        64 => "64",
        256 => "256",
        1024 => "1024",
        _ => "1",
    }
}
