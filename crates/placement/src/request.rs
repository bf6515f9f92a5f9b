//! What the planner is given: the model's blocks, the devices with their room and speed, and the wish.

use meta::{DeviceId, DeviceKind};

use crate::allocation::Order;
use crate::language::AllocationText;

/// Everything a plan depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanRequest {
    /// The model's blocks in order of use.
    pub blocks: Vec<BlockSpec>,
    /// Bytes that activations need on a device that computes, at the requested size.
    pub working_bytes: u64,
    /// Bytes that move when the next block computes on another device than the last one.
    pub activation_bytes: u64,
    /// The machine's devices, in any order.
    pub devices: Vec<DeviceSpec>,
    /// Where the model computes.
    pub compute: DeviceId,
    /// What the user asked.
    pub allocation: AllocationText,
    /// Which blocks go where, unless the allocation says it.
    pub order: Order,
    /// What to do with blocks whose home is another accelerator.
    pub remote: RemotePolicy,
    /// How large the ring of slots for streamed blocks may be.
    pub ring: RingLimits,
    /// What to do with byte amounts that together exceed the model.
    pub overfull: Overfull,
    /// What a byte that arrives takes of the computing device's memory, beside its time on the link: copies and computing
    /// share that memory, so a plan that copies less is better than one that is as fast by the links alone.
    pub arrival_s_per_byte: f64,
    /// How many times as long a copy to the computing device takes while that computes; 1 is as long.
    pub copy_slowdown: f64,
    /// Whether links and block times were measured. If not, the plan has no times to show.
    pub speeds_known: bool,
    /// Whether blocks may travel losslessly coded, and what that would make of them.
    pub coding: Coding,
    /// The disk, for what host memory has no room for. Without it, everything that leaves the compute device must have
    /// room elsewhere.
    pub disk: Option<Disk>,
    /// What a step takes outside of the blocks.
    pub outside: Outside,
}

/// The disk that a model's file is on.
#[derive(Clone, Debug, PartialEq)]
pub struct Disk {
    /// The most bytes of host memory that weights may take; what there is of them beyond that is read at every step.
    pub host_bytes: u64,
    /// Bytes per second that it reads, past what the system keeps of files in memory.
    pub bytes_per_s: f64,
    /// For each block whether it can be read at every step: it lies in the file as it is used. Blocks at the end may be
    /// missing, and cannot.
    pub readable: Vec<bool>,
}

/// Seconds of a step outside of the model's blocks, as far as they are known: 0 if they are not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outside {
    /// Where no weights are copied in a step.
    pub resident_s: f64,
    /// Where some are.
    pub streaming_s: f64,
}

/// What is known of coding the blocks of a model, and what is wanted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coding {
    /// Which blocks are coded.
    pub policy: CodingPolicy,
    /// For each block the bytes that it has when it is coded; none for one that is not. Blocks at the end may be missing.
    pub coded_bytes: Vec<Option<u64>>,
    /// Bytes that the compute device decodes per second, counted decoded. None if that was not measured: then no block is
    /// coded for its speed.
    pub decode_bytes_per_s: Option<f64>,
    /// What coded blocks may take of the host's memory, unless coding is forced; none if nothing limits them.
    pub host: Option<HostRoom>,
}

/// Host memory for coded blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRoom {
    /// Bytes that can be taken without pressing other programs, or the files that they read, out of memory.
    pub bytes: u64,
    /// Whether blocks take their plain bytes of it, too, until they are coded: where what streams is pinned.
    pub plain_too: bool,
}

/// Which of the blocks that stream from host memory are kept and sent coded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CodingPolicy {
    /// None.
    #[default]
    Off,
    /// Those with which a step is predicted to be shorter, if they shrink enough to be worth their memory.
    Auto,
    /// All that can be.
    Force,
}

impl CodingPolicy {
    /// Every one.
    pub const ALL: [CodingPolicy; 3] = [CodingPolicy::Off, CodingPolicy::Auto, CodingPolicy::Force];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            CodingPolicy::Off => "off",
            CodingPolicy::Auto => "auto",
            CodingPolicy::Force => "force",
        }
    }
}

impl PlanRequest {
    /// A request in automatic mode with the usual settings; the fields are there to be changed.
    pub fn new(blocks: Vec<BlockSpec>, devices: Vec<DeviceSpec>, compute: DeviceId) -> PlanRequest {
        PlanRequest {
            blocks,
            working_bytes: 0,
            activation_bytes: 0,
            devices,
            compute,
            allocation: AllocationText::automatic(),
            order: Order::default(),
            remote: RemotePolicy::default(),
            ring: RingLimits::default(),
            overfull: Overfull::default(),
            arrival_s_per_byte: 0.0,
            copy_slowdown: 1.0,
            speeds_known: true,
            coding: Coding::default(),
            disk: None,
            outside: Outside::default(),
        }
    }
}

/// One block of a model: the unit of placement.
#[derive(Clone, Debug, PartialEq)]
pub struct BlockSpec {
    /// Its name, such as `double_blocks.3`.
    pub name: String,
    /// Its stored bytes.
    pub bytes: u64,
    /// Seconds it takes per step on the compute device, measured or predicted.
    pub compute_seconds: f64,
    /// Whether it must stay on the compute device: norms, embeddings, heads. Blocks that are tiny stay in any case.
    pub pinned: bool,
}

/// Whether weights of this size are too small to be worth moving: under 0.01 % of the model.
pub const fn is_tiny(bytes: u64, model_bytes: u64) -> bool {
    (bytes as u128) * 10_000 < model_bytes as u128
}

/// One device: its room and its speed.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Which device.
    pub id: DeviceId,
    /// All its memory.
    pub total_bytes: u64,
    /// What a plan may use of it.
    pub available_bytes: u64,
    /// Bytes per second from pinned host memory to this device; not used for the host itself.
    pub link_bytes_per_s: f64,
    /// How long it computes relative to the other devices: 2 takes twice as long as 1.
    pub compute_factor: f64,
    /// The devices it can copy to without going through the host.
    pub reaches: Vec<PeerLink>,
}

impl DeviceSpec {
    /// Whether this is the host rather than an accelerator.
    pub fn is_host(&self) -> bool {
        self.id.kind == DeviceKind::Cpu
    }
}

/// A direct link to another accelerator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerLink {
    /// The other end.
    pub device: DeviceId,
    /// Its bandwidth.
    pub bytes_per_s: f64,
}

/// What to do with a block whose home is an accelerator other than the compute device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RemotePolicy {
    /// Whichever is predicted to be faster.
    #[default]
    Auto,
    /// Bring the weights to the compute device.
    Stream,
    /// Compute where the weights live and move the activations.
    InPlace,
}

impl RemotePolicy {
    /// The word after `remote=`.
    pub const fn name(self) -> &'static str {
        match self {
            RemotePolicy::Auto => "auto",
            RemotePolicy::Stream => "stream",
            RemotePolicy::InPlace => "inplace",
        }
    }
}

/// How many slots the ring for streamed blocks has.
///
/// The ring is never larger than what it streams, so a plan with few streamed blocks can have fewer slots
/// than `min_slots`; and where there is room for a single slot only, a plan with one is still a plan. Normal and
/// automatic mode, which are about how little of the compute device is taken, have the fewest slots, from one up to
/// `max_slots`, with which no copy is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLimits {
    /// The fewest slots with which a copy can run while a streamed block computes.
    pub min_slots: usize,
    /// The slots to have where there is room: one computes, one is copied, and one takes up the jitter that
    /// no prediction has.
    pub usual_slots: usize,
    /// The most slots; more than usual are used only where they are predicted to help: where blocks whose copies are
    /// longer than their computing come together, the ring has to run ahead of all of them.
    pub max_slots: usize,
}

impl Default for RingLimits {
    fn default() -> RingLimits {
        RingLimits { min_slots: 2, usual_slots: 3, max_slots: 10 }
    }
}

/// What to do with byte amounts that together exceed the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overfull {
    /// They are an error that points at the entry that is too much.
    #[default]
    Refuse,
    /// Entries are filled in the order written until the model is placed, and the plan says so. For
    /// stored workflows, which give one text to models of several sizes.
    Trim,
}
