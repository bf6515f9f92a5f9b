//! What is measured of a machine: links, speeds by kind of work, and how far predictions were off.
//!
//! Pure data and arithmetic. Whoever asks devices fills it in, keeps it between starts, and teaches it with
//! every step that runs.

use std::collections::BTreeMap;

use meta::{DType, DeviceId};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::request::Outside;

/// Copies below this say more about their start than about the link.
const SMALLEST_COPY_BYTES: u64 = 1 << 20;
/// How much a new measurement weighs against what was known.
const NEW_WEIGHT: f64 = 0.25;
/// One measurement moves what was known as if it were at most this many times it, or one of so many parts.
const MOST_CHANGE: f64 = 2.0;
/// Copies beside computing are at most so many times as slow: what was measured beyond that was disturbed.
const MOST_SLOWDOWN: f64 = 4.0;
/// Measurements after which a faster one no longer replaces what was known. The first steps of a program compile
/// kernels and touch memory for the first time: they can be too slow, and hardly too fast.
const WARM_SAMPLES: u32 = 3;

/// What is measured of a machine and refined by every step that runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MachineProfile {
    /// By the text of the device's id.
    #[serde(default)]
    pub devices: BTreeMap<String, DeviceProfile>,
    /// Direct links between accelerators.
    #[serde(default)]
    pub peers: Vec<PeerProfile>,
    /// Bytes per second that disks read past the page cache, by the system's name for them.
    #[serde(default)]
    pub disks: BTreeMap<String, f64>,
}

/// What is measured of one device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// The card's or processor's name and its driver; with another identity the entry is stale.
    pub identity: String,
    /// From pinned host memory to the device; none if not measured.
    #[serde(default)]
    pub link_bytes_per_s: Option<f64>,
    /// The same while the device computes; none if not measured.
    #[serde(default)]
    pub busy_link_bytes_per_s: Option<f64>,
    /// Measured operations.
    #[serde(default)]
    pub speeds: Vec<SpeedPoint>,
    /// Element-wise passes over the device's memory.
    #[serde(default)]
    pub memory_bytes_per_s: Option<f64>,
    /// Losslessly coded weights, counted decoded.
    #[serde(default)]
    pub decode_bytes_per_s: Option<f64>,
    /// What one small operation costs host and device.
    #[serde(default)]
    pub launch_s: Option<f64>,
    /// By workload: how far predictions were off.
    #[serde(default)]
    pub learnt: BTreeMap<String, Learnt>,
}

/// One measured operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    /// What kind of work it was.
    pub kind: WorkKind,
    /// In which element type.
    #[serde(with = "dtype_name")]
    pub dtype: DType,
    /// Its size.
    pub flops: f64,
    /// Its speed.
    pub flops_per_s: f64,
}

/// What kind of work an operation is: what its speed depends on beside its size and element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WorkKind {
    /// Matrix products.
    Product,
    /// Attention.
    Attention,
    /// Convolutions.
    Convolution,
    /// Passes over memory.
    Memory,
}

impl WorkKind {
    /// The kinds whose speed may stand in for this one's, the best first, itself included.
    const fn stand_ins(self) -> &'static [WorkKind] {
        match self {
            WorkKind::Product => &[WorkKind::Product, WorkKind::Convolution, WorkKind::Attention],
            WorkKind::Attention => &[WorkKind::Attention, WorkKind::Product, WorkKind::Convolution],
            WorkKind::Convolution => &[WorkKind::Convolution, WorkKind::Product, WorkKind::Attention],
            WorkKind::Memory => &[WorkKind::Memory],
        }
    }
}

/// How far predictions of one workload were off on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Learnt {
    /// Measured seconds per predicted one.
    pub seconds_per_predicted: f64,
    /// How many measurements it comes from.
    pub samples: u32,
    /// Seconds of a step outside of the model's blocks: values that come from the host and go back. Of steps in which no
    /// weights are copied.
    #[serde(default)]
    pub outside_s: f64,
    /// The same of steps in which some are; none before there was one.
    #[serde(default)]
    pub streaming_outside_s: Option<f64>,
}

/// A direct link between two accelerators.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PeerProfile {
    /// The text of the id of the device copied from.
    pub from: String,
    /// The text of the id of the device copied to.
    pub to: String,
    /// Its bandwidth.
    pub bytes_per_s: f64,
}

/// What one operation costs, whatever the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OpCost {
    /// What kind of work it is.
    pub kind: WorkKind,
    /// In which element type.
    pub dtype: DType,
    /// Its arithmetic.
    pub flops: u64,
    /// The bytes it reads and writes.
    pub bytes: u64,
}

impl DeviceProfile {
    /// A device of which nothing has been measured.
    pub fn new(identity: impl Into<String>) -> DeviceProfile {
        DeviceProfile { identity: identity.into(), ..DeviceProfile::default() }
    }

    /// The seconds of one operation: the longer of its arithmetic and its memory traffic, and the launch. The speed
    /// of arithmetic is interpolated over the logarithm of the size between points of that kind and element type, or
    /// of the nearest ones where there are none. None where nothing that would tell was measured.
    pub fn seconds(&self, cost: &OpCost) -> Option<f64> {
        let memory = self.memory_bytes_per_s.filter(|it| is_positive(*it));
        let memory_s = memory.map(|bytes_per_s| cost.bytes as f64 / bytes_per_s);
        let arithmetic_s = match cost.flops {
            0 => None,
            flops => self.speed(cost.kind, cost.dtype, flops as f64).map(|speed| flops as f64 / speed),
        };
        // What an operation mostly is must have been measured: passes over memory are their traffic, and arithmetic
        // without a single measured product is not known, whatever its traffic.
        let main_s = match cost.kind {
            WorkKind::Memory => memory_s.or(arithmetic_s),
            _ if cost.flops == 0 => memory_s,
            _ => arithmetic_s,
        }?;
        let launch_s = self.launch_s.filter(|it| it.is_finite() && *it >= 0.0);
        Some(main_s.max(memory_s.unwrap_or(0.0)).max(arithmetic_s.unwrap_or(0.0)) + launch_s.unwrap_or(0.0))
    }

    /// Flops per second at this size.
    fn speed(&self, kind: WorkKind, dtype: DType, flops: f64) -> Option<f64> {
        let distance = |point: &SpeedPoint| {
            let kind = kind.stand_ins().iter().position(|it| *it == point.kind)?;
            Some(2 * kind as u32 + dtype_distance(dtype, point.dtype))
        };
        let usable = self.speeds.iter().filter(|it| is_positive(it.flops) && is_positive(it.flops_per_s));
        let near: Vec<(u32, &SpeedPoint)> = usable.filter_map(|it| Some((distance(it)?, it))).collect();
        // Two stand-ins can be equally near, and then the first by kind and element type is taken, so that the order
        // in which points were measured does not matter.
        let key = |(distance, point): &(u32, &SpeedPoint)| (*distance, point.kind, point.dtype);
        let best = near.iter().map(key).min()?;
        let mut points: Vec<(f64, f64)> = near
            .iter()
            .filter(|point| key(point) == best)
            .map(|(_, point)| (point.flops.ln(), point.flops_per_s.ln()))
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(interpolate(&points, flops.ln()).exp())
    }

    /// Blends in what a step took where so much was predicted without any correction. A single measurement moves what
    /// is known only so far, so that a step that was disturbed does not spoil it; the first counts fully.
    pub fn learn(&mut self, workload: &str, predicted_s: f64, measured_s: f64) {
        let ratio = measured_s / predicted_s;
        if !(is_positive(predicted_s) && is_positive(measured_s) && is_positive(ratio)) {
            return;
        }
        let known = self.learnt.get(workload).filter(|it| is_positive(it.seconds_per_predicted)).copied();
        let learnt = match known {
            None => Learnt { seconds_per_predicted: ratio, samples: 1, ..Learnt::default() },
            Some(Learnt { seconds_per_predicted: known, samples, .. }) => {
                let replaces = samples < WARM_SAMPLES && ratio < known;
                let seconds_per_predicted = if replaces { ratio } else { blend(known, ratio) };
                // What is outside of the blocks is learnt apart.
                let before = self.learnt.get(workload).copied().unwrap_or_default();
                Learnt { seconds_per_predicted, samples: samples.saturating_add(1), ..before }
            }
        };
        self.learnt.insert(workload.to_owned(), learnt);
    }

    /// Whether a workload was measured.
    pub fn has_learnt(&self, workload: &str) -> bool {
        self.learnt.contains_key(workload)
    }

    /// Measured seconds per predicted one: of that workload; else the median of those on this device whose name begins
    /// in the same way, as those of one family do; else 1.
    pub fn correction(&self, workload: &str, family: &str) -> f64 {
        let usable = |learnt: &Learnt| is_positive(learnt.seconds_per_predicted);
        if let Some(learnt) = self.learnt.get(workload).filter(|it| usable(it)) {
            return learnt.seconds_per_predicted;
        }
        let alike = self.learnt.iter().filter(|(name, _)| name.starts_with(family)).map(|(_, learnt)| learnt);
        let others = alike.filter(|it| usable(it));
        let mut others: Vec<f64> = others.map(|it| it.seconds_per_predicted).collect();
        others.sort_by(f64::total_cmp);
        let middle = others.len() / 2;
        match others.len() {
            0 => 1.0,
            // The geometric mean of the two in the middle: these are factors.
            even if even % 2 == 0 => (others[middle - 1] * others[middle]).sqrt(),
            _ => others[middle],
        }
    }

    /// Blends in what a step of a workload took outside of the model's blocks, and whether weights were copied in it. The
    /// workload was learnt before.
    pub fn learn_outside(&mut self, workload: &str, streams: bool, seconds: f64) {
        let Some(learnt) = self.learnt.get_mut(workload).filter(|_| seconds.is_finite() && seconds >= 0.0)
        else {
            return;
        };
        let known = if streams { learnt.streaming_outside_s.unwrap_or(0.0) } else { learnt.outside_s };
        let replaces = learnt.samples <= WARM_SAMPLES && (known == 0.0 || seconds < known);
        let new = if replaces { seconds } else { known + (seconds - known) * NEW_WEIGHT };
        match streams {
            true => learnt.streaming_outside_s = Some(new),
            false => learnt.outside_s = new,
        }
    }

    /// Seconds that a step of a workload takes outside of the model's blocks, as far as they are known: where steps of one kind
    /// were not measured, those of the other kind stand in.
    pub fn outside(&self, workload: &str) -> Outside {
        let Some(learnt) = self.learnt.get(workload) else { return Outside::default() };
        let streaming_s = learnt.streaming_outside_s.unwrap_or(learnt.outside_s);
        let resident_s = if learnt.outside_s > 0.0 { learnt.outside_s } else { streaming_s };
        Outside { resident_s, streaming_s }
    }

    /// Blends in the decoding of coded weights, counted decoded; that of under 1 MB says nothing.
    pub fn learn_decoding(&mut self, bytes: u64, seconds: f64) {
        if let Some(measured) = bandwidth(bytes, seconds) {
            let known = self.decode_bytes_per_s.filter(|it| is_positive(*it));
            self.decode_bytes_per_s = Some(known.map_or(measured, |known| blend(known, measured)));
        }
    }

    /// Blends in a copy from pinned host memory; one of under 1 MB says nothing.
    pub fn learn_link(&mut self, bytes: u64, seconds: f64) {
        if let Some(measured) = bandwidth(bytes, seconds) {
            let known = self.link_bytes_per_s.filter(|it| is_positive(*it));
            self.link_bytes_per_s = Some(known.map_or(measured, |known| blend(known, measured)));
        }
    }

    /// Blends in a copy from pinned host memory beside which the device computed; one of under 1 MB says nothing.
    pub fn learn_busy_link(&mut self, bytes: u64, seconds: f64) {
        if let Some(measured) = bandwidth(bytes, seconds) {
            let known = self.busy_link_bytes_per_s.filter(|it| is_positive(*it));
            self.busy_link_bytes_per_s = Some(known.map_or(measured, |known| blend(known, measured)));
        }
    }

    /// How many times as long a copy from pinned host memory takes while the device computes: 1, as long, where that was not
    /// measured, and never less.
    pub fn copy_slowdown(&self) -> f64 {
        let speed = |speed: Option<f64>| speed.filter(|it| is_positive(*it));
        match (speed(self.link_bytes_per_s), speed(self.busy_link_bytes_per_s)) {
            (Some(idle), Some(busy)) => (idle / busy).clamp(1.0, MOST_SLOWDOWN),
            _ => 1.0,
        }
    }
}

impl MachineProfile {
    /// What is measured of a device.
    pub fn device(&self, id: DeviceId) -> Option<&DeviceProfile> {
        self.devices.get(&id.to_string())
    }

    /// The entry of a device, to be filled in. An entry of another identity is forgotten, with the links to it.
    pub fn device_mut(&mut self, id: DeviceId, identity: &str) -> &mut DeviceProfile {
        let name = id.to_string();
        if self.devices.get(&name).is_some_and(|entry| entry.identity != identity) {
            self.devices.remove(&name);
            self.peers.retain(|peer| peer.from != name && peer.to != name);
        }
        self.devices.entry(name).or_insert_with(|| DeviceProfile::new(identity))
    }

    /// Bytes per second from pinned host memory to a device.
    pub fn link(&self, id: DeviceId) -> Option<f64> {
        self.device(id)?.link_bytes_per_s.filter(|it| is_positive(*it))
    }

    /// Bytes per second of the direct link between two devices; what was measured the other way where this way was not.
    pub fn peer(&self, from: DeviceId, to: DeviceId) -> Option<f64> {
        let (from, to) = (from.to_string(), to.to_string());
        let link = |from: &str, to: &str| {
            let found = self.peers.iter().find(|peer| peer.from == from && peer.to == to);
            found.map(|peer| peer.bytes_per_s).filter(|it| is_positive(*it))
        };
        link(&from, &to).or_else(|| link(&to, &from))
    }

    /// Bytes per second that a disk reads.
    pub fn disk(&self, name: &str) -> Option<f64> {
        self.disks.get(name).copied().filter(|it| is_positive(*it))
    }

    /// Notes the bandwidth of the direct link between two devices, as it was just measured.
    pub fn set_peer(&mut self, from: DeviceId, to: DeviceId, bytes_per_s: f64) {
        let (from, to) = (from.to_string(), to.to_string());
        self.peers.retain(|peer| (&peer.from, &peer.to) != (&from, &to));
        self.peers.push(PeerProfile { from, to, bytes_per_s });
    }

    /// Blends in a copy between two devices; one of under 1 MB says nothing.
    pub fn learn_peer(&mut self, from: DeviceId, to: DeviceId, bytes: u64, seconds: f64) {
        let Some(measured) = bandwidth(bytes, seconds) else { return };
        let (from, to) = (from.to_string(), to.to_string());
        match self.peers.iter_mut().find(|peer| peer.from == from && peer.to == to) {
            Some(peer) if is_positive(peer.bytes_per_s) => {
                peer.bytes_per_s = blend(peer.bytes_per_s, measured);
            }
            Some(peer) => peer.bytes_per_s = measured,
            None => self.peers.push(PeerProfile { from, to, bytes_per_s: measured }),
        }
    }
}

fn is_positive(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// What a copy says of a link, if anything.
fn bandwidth(bytes: u64, seconds: f64) -> Option<f64> {
    let measured = bytes as f64 / seconds;
    (bytes >= SMALLEST_COPY_BYTES && is_positive(seconds) && is_positive(measured)).then_some(measured)
}

/// Moves a known positive number toward a measured one, by factors, so that twice and half weigh the same.
fn blend(known: f64, measured: f64) -> f64 {
    let change = (measured / known).clamp(1.0 / MOST_CHANGE, MOST_CHANGE);
    known * change.powf(NEW_WEIGHT)
}

/// How unlike the speeds of two element types are.
fn dtype_distance(a: DType, b: DType) -> u32 {
    match a == b {
        true => 0,
        false if a.bytes() == b.bytes() && a.is_float() == b.is_float() => 1,
        // Another width is more unlike than any other kind of work in the right one.
        false => 5 + a.bytes().ilog2().abs_diff(b.bytes().ilog2()) + u32::from(a.is_float() != b.is_float()),
    }
}

/// Linear between points that ascend, constant beyond them. Points of one place count as their mean.
fn interpolate(points: &[(f64, f64)], at: f64) -> f64 {
    let place = |x: f64| {
        let here: Vec<f64> = points.iter().filter(|point| point.0 == x).map(|point| point.1).collect();
        here.iter().sum::<f64>() / here.len().max(1) as f64
    };
    let below = points.iter().rev().find(|point| point.0 <= at).map(|point| point.0);
    let above = points.iter().find(|point| point.0 >= at).map(|point| point.0);
    match (below, above) {
        (Some(low), Some(high)) if high > low => {
            let part = (at - low) / (high - low);
            place(low) * (1.0 - part) + place(high) * part
        }
        (Some(near), _) | (None, Some(near)) => place(near),
        (None, None) => f64::NEG_INFINITY,
    }
}

/// Element types are kept by name.
mod dtype_name {
    use super::{DType, Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(dtype: &DType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(dtype.name())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| serde::de::Error::custom(format!("'{name}' is not an element type")))
    }
}
