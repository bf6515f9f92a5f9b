//! What was decided: per block a home, where it runs, resident or streamed; per device the bytes.

use meta::DeviceId;

use crate::allocation::{Allocation, Amount, Amounts, Entry, Order};
use crate::predictor::Prediction;

/// Where every block of a model goes, what that takes of every device, and how long a step will be.
///
/// It prints as a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Where the model computes.
    pub compute: DeviceId,
    /// Which blocks went where.
    pub order: Order,
    /// Every block, in order of use.
    pub blocks: Vec<BlockPlan>,
    /// The slots on the compute device through which streamed blocks pass; none if none is streamed.
    pub ring: Option<Ring>,
    /// The host's buffers through which blocks pass that are read from the disk; none if none is.
    pub reading: Option<Reading>,
    /// What the plan takes of every device that it uses, compute device first, then by id.
    pub devices: Vec<DeviceUse>,
    /// How long a step will be.
    pub prediction: Prediction,
    /// What differs from what was asked, and why.
    pub notes: Vec<String>,
    /// The devices in the order in which the user wrote them, which is what a contiguous order means.
    pub(crate) written: Vec<DeviceId>,
}

/// One block's place.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockPlan {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Where its weights live.
    pub home: DeviceId,
    /// Where it computes.
    pub runs_on: DeviceId,
    /// Whether its weights travel.
    pub mode: BlockMode,
    /// The bytes that it has when it is losslessly coded, where it is: in host memory and on the link if it is streamed,
    /// else where it lives.
    pub coded_bytes: Option<u64>,
    /// Whether the host has no room for it, although it is its home: it is read from the disk whenever it travels.
    pub from_disk: bool,
}

impl BlockPlan {
    /// Whether it stays where it computes, coded, and is decoded just before it is used.
    pub fn is_kept_coded(&self) -> bool {
        self.mode == BlockMode::Resident && self.coded_bytes.is_some()
    }

    /// The bytes that are copied when it travels.
    pub fn travelling_bytes(&self) -> u64 {
        self.coded_bytes.unwrap_or(self.bytes)
    }
}

/// Whether a block's weights travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockMode {
    /// The weights live where the block runs.
    Resident,
    /// The weights are copied into the ring of the compute device, once per step.
    Streamed,
}

impl BlockMode {
    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            BlockMode::Resident => "resident",
            BlockMode::Streamed => "streamed",
        }
    }
}

/// The slots through which streamed blocks pass, and the room in which coded ones are decoded. Where blocks are kept coded
/// and none is streamed, it has no slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ring {
    /// How many.
    pub slots: usize,
    /// The bytes of each: the largest streamed block, as it travels.
    pub slot_bytes: u64,
    /// The room in which coded blocks are decoded, one after the other: the largest of them; 0 if none is coded.
    pub room_bytes: u64,
}

impl Ring {
    /// A ring of plain slots of this size in so much memory, for so many blocks: one slot there is in any case.
    pub fn plain_within(memory_bytes: u64, slot_bytes: u64, blocks: usize) -> Ring {
        let fit = usize::try_from(memory_bytes / slot_bytes.max(1)).unwrap_or(usize::MAX);
        Ring { slots: fit.clamp(1, blocks.max(1)), slot_bytes, room_bytes: 0 }
    }

    /// The bytes of the whole ring.
    pub const fn bytes(&self) -> u64 {
        self.slots as u64 * self.slot_bytes + self.room_bytes
    }
}

/// The host's buffers through which blocks pass that are read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// How many.
    pub buffers: usize,
    /// The bytes of each.
    pub buffer_bytes: u64,
}

impl Reading {
    /// What a disk is asked for at a time: enough for its full speed.
    const LARGEST_BUFFER: u64 = 8 << 20;
    const SMALLEST_BUFFER: u64 = 64 << 10;
    /// Buffers are of whole pages.
    const PAGE: u64 = 4096;
    /// The most bytes of all buffers; reading ahead further than that hides nothing more.
    const MOST_BYTES: u64 = 1 << 30;
    /// They take at most one part in so many of what the host has for weights.
    const PARTS: u64 = 4;

    /// For blocks of at most so many bytes: one is copied while the next is read.
    pub(crate) fn of(largest_block: u64, host_bytes: u64) -> Reading {
        let quarter = (largest_block / 4).next_multiple_of(Reading::PAGE);
        let buffer_bytes = quarter.clamp(Reading::SMALLEST_BUFFER, Reading::LARGEST_BUFFER);
        let most = Reading::MOST_BYTES.min(host_bytes / Reading::PARTS) / buffer_bytes;
        let wanted = largest_block.saturating_mul(2).div_ceil(buffer_bytes) + 1;
        let buffers = usize::try_from(wanted.min(most)).unwrap_or(usize::MAX).max(2);
        Reading { buffers, buffer_bytes }
    }

    /// The bytes of all of them.
    pub const fn bytes(&self) -> u64 {
        self.buffers as u64 * self.buffer_bytes
    }
}

/// What a plan takes of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceUse {
    /// Which device.
    pub device: DeviceId,
    /// The weights whose home it is.
    pub weight_bytes: u64,
    /// The weights that the user gave it, where amounts were given; whole blocks come to a little more or less.
    pub asked_bytes: Option<u64>,
    /// The ring, on the compute device; on the host the buffers for what is read from the disk.
    pub ring_bytes: u64,
    /// Memory to work in, where blocks run.
    pub working_bytes: u64,
    /// Of the weights, those that are read from the disk whenever they travel, and take no memory.
    pub disk_bytes: u64,
    /// What a plan may use of it.
    pub available_bytes: u64,
}

impl DeviceUse {
    /// Everything the plan takes of this device.
    pub const fn total_bytes(&self) -> u64 {
        self.weight_bytes - self.disk_bytes + self.ring_bytes + self.working_bytes
    }
}

impl Plan {
    /// The bytes of the model.
    pub fn model_bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    /// The bytes copied to the compute device in every step.
    pub fn streamed_bytes(&self) -> u64 {
        let streamed = self.blocks.iter().filter(|block| block.mode == BlockMode::Streamed);
        streamed.map(BlockPlan::travelling_bytes).sum()
    }

    /// The bytes among them that are read from the disk.
    pub fn disk_bytes(&self) -> u64 {
        self.blocks.iter().filter(|block| block.from_disk).map(|block| block.bytes).sum()
    }

    /// The bytes that are decoded in every step, counted decoded.
    pub fn decoded_bytes(&self) -> u64 {
        let coded = self.blocks.iter().filter(|block| block.coded_bytes.is_some());
        coded.map(|block| block.bytes).sum()
    }

    /// How steps run until the blocks are coded that are to be: as they are, through a ring of plain slots in the memory that was
    /// planned for the coded one. What is to stay coded travels from the host until then. None if nothing is to be coded.
    #[must_use]
    pub fn before_coding(&self) -> Option<Plan> {
        let mut plain = self.clone();
        for block in plain.blocks.iter_mut().filter(|block| block.coded_bytes.is_some()) {
            if block.is_kept_coded() {
                (block.mode, block.home) = (BlockMode::Streamed, DeviceId::CPU);
            }
            block.coded_bytes = None;
        }
        let streamed = plain.blocks.iter().filter(|block| block.mode == BlockMode::Streamed);
        let (count, slot_bytes) =
            streamed.fold((0, 0), |(count, most), block| (count + 1, block.bytes.max(most)));
        let planned = self.ring.filter(|_| self.decoded_bytes() > 0)?;
        plain.ring = Some(Ring::plain_within(planned.bytes(), slot_bytes, count));
        Some(plain)
    }

    /// What the plan takes of a device; none if it does not use it.
    pub fn device(&self, device: DeviceId) -> Option<&DeviceUse> {
        self.devices.iter().find(|usage| usage.device == device)
    }

    /// The allocation that says the same. It is in bytes unless blocks are kept coded: exact amounts, with `*` for the host or, if it holds
    /// nothing, for the device that holds most.
    pub fn to_allocation(&self) -> Allocation {
        // Only the planner's own choice keeps blocks coded.
        if self.blocks.iter().any(BlockPlan::is_kept_coded) {
            return Allocation { amounts: Amounts::Automatic, order: None, remote: None, compute: None };
        }
        let weights = |device: DeviceId| self.device(device).map_or(0, |usage| usage.weight_bytes);
        let mut devices: Vec<DeviceId> = self.devices.iter().map(|usage| usage.device).collect();
        let written = |device: &DeviceId| self.written.iter().position(|other| other == device);
        devices.sort_by_key(|device| match self.order {
            Order::Interleaved => (*device != self.compute, *device == DeviceId::CPU, 0, *device),
            Order::Contiguous => (false, false, written(device).unwrap_or(usize::MAX), *device),
        });
        devices.retain(|device| *device == self.compute || weights(*device) > 0);
        let most = devices.iter().copied().max_by_key(|device| (weights(*device), *device));
        let host = devices.iter().copied().find(|device| *device == DeviceId::CPU);
        let taker = host.filter(|device| weights(*device) > 0).or(most);
        let entry = |device: DeviceId| match Some(device) == taker {
            true => Entry { device, amount: Amount::Remainder },
            false => Entry { device, amount: Amount::Exactly(weights(device)) },
        };
        let order = (self.order == Order::Contiguous).then_some(Order::Contiguous);
        let amounts = Amounts::Bytes(devices.into_iter().map(entry).collect());
        Allocation { amounts, order, remote: None, compute: None }
    }
}
