//! Why a plan cannot be made, with the numbers and what would work.

use meta::{ByteSize, DeviceId};

use crate::language::{AllocationError, device_list};

/// Why a plan cannot be made.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// The allocation cannot be used with this machine and this model.
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    /// A device would hold more than it has room for.
    #[error("{device} needs {} ({}) and has {} available; {}",
        ByteSize(*wanted), need_text(*weights, *ring, *working), ByteSize(*available),
        nearest_text(nearest.as_deref()))]
    NoRoom {
        /// Which device.
        device: DeviceId,
        /// What the plan needs of it: weights, ring and working memory together.
        wanted: u64,
        /// The weights among them.
        weights: u64,
        /// The ring among them.
        ring: u64,
        /// The working memory among them.
        working: u64,
        /// What it has.
        available: u64,
        /// The nearest allocation that fits, to be used as it is; none when nothing fits.
        nearest: Option<String>,
    },
    /// The compute device is not among the devices.
    #[error("there is no device {device} to compute on; available: {}", device_list(available))]
    NoComputeDevice {
        /// The device asked for.
        device: DeviceId,
        /// What there is.
        available: Vec<DeviceId>,
    },
    /// A device is in the list twice.
    #[error("the device list names {device} twice")]
    RepeatedDevice {
        /// Which device.
        device: DeviceId,
    },
    /// A device's bandwidth or speed is not a positive number.
    #[error("{what} of {device} is {value}; it must be a positive number")]
    BadDevice {
        /// Which device.
        device: DeviceId,
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A block's time is negative or not a number.
    #[error("block {block} takes {seconds} s per step; it must be zero or a positive number")]
    BadBlockTime {
        /// Which block.
        block: String,
        /// Its time.
        seconds: f64,
    },
    /// The blocks together have more bytes than can be counted.
    #[error("the blocks and the working memory have more than 2^53 bytes together")]
    TooManyBytes,
}

fn need_text(weights: u64, ring: u64, working: u64) -> String {
    let mut parts = vec![format!("{} of weights", ByteSize(weights))];
    if ring > 0 {
        parts.push(format!("{} of ring", ByteSize(ring)));
    }
    if working > 0 {
        parts.push(format!("{} to work in", ByteSize(working)));
    }
    parts.join(", ")
}

fn nearest_text(nearest: Option<&str>) -> String {
    match nearest {
        Some(text) => format!("this fits: {text}"),
        None => "no allocation of this model fits on this machine".to_owned(),
    }
}
