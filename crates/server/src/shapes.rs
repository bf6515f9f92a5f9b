//! Shapes of our own answers, which the command line prints as well.

mod plan;

use engine::{DeviceReport, ModelFile, ModelFolder};
use meta::{DeviceId, Moment};
use residency::{BlockProfile, CodingReport, ModelReport, Snapshot, StepProfile};
use serde::Serialize;
use serde_json::{Map, Value};

pub use plan::{BlockShape, DeviceUseShape, PlanShape, PredictionShape, ReadingShape, RingShape};

/// One device, as `GET /gantry/devices` and `gantry devices --json` show it.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceShape {
    /// Such as `cuda:0`.
    pub id: String,
    /// The model's name.
    pub name: String,
    /// More about it.
    pub detail: String,
    /// Whether this is a simulation.
    pub simulated: bool,
    /// All its memory.
    pub total_bytes: u64,
    /// What is free for anyone.
    pub free_bytes: u64,
    /// What is held for reuse.
    pub cached_bytes: u64,
    /// What may be used of it.
    pub budget_bytes: u64,
    /// What is in use.
    pub used_bytes: u64,
    /// What is promised and not in use yet.
    pub reserved_bytes: u64,
    /// The most that was in use.
    pub peak_bytes: u64,
    /// The share of the last moment in which it computed, if it tells.
    pub busy_percent: Option<u32>,
    /// Its temperature, if it tells.
    pub celsius: Option<u32>,
    /// Element types that activations may have, the preferred one first.
    pub activations: Vec<&'static str>,
}

impl DeviceShape {
    /// The shape of what is known of a device.
    ///
    /// # Errors
    /// The device did not answer, and why.
    pub fn of(report: &DeviceReport) -> Result<DeviceShape, String> {
        let memory = report.memory.clone()?;
        Ok(DeviceShape {
            id: report.id.to_string(),
            name: report.name.clone(),
            detail: report.detail.clone(),
            simulated: report.simulated,
            total_bytes: memory.total,
            free_bytes: memory.free,
            cached_bytes: memory.cached,
            budget_bytes: report.ledger.budget,
            used_bytes: report.ledger.used,
            reserved_bytes: report.ledger.reserved,
            peak_bytes: report.ledger.peak,
            busy_percent: None,
            celsius: None,
            activations: report.activations.iter().map(|dtype| dtype.name()).collect(),
        })
    }
}

/// One kind of model files, as `GET /gantry/files` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct FolderShape {
    /// The name of the kind, such as `diffusion_models`.
    pub folder: String,
    /// Where such files belong.
    pub places: Vec<String>,
    /// Those that are there.
    pub files: Vec<FileShape>,
}

/// One model file.
#[derive(Clone, Debug, Serialize)]
pub struct FileShape {
    /// Its name, as loaders list it.
    pub name: String,
    /// Its bytes; none for a file that comes with the program.
    pub bytes: Option<u64>,
}

impl FolderShape {
    /// The shape of what is there.
    #[must_use]
    pub fn of(folder: &ModelFolder) -> FolderShape {
        let file = |file: &ModelFile| FileShape { name: file.name.clone(), bytes: file.bytes };
        FolderShape {
            folder: folder.key.clone(),
            places: folder.places.iter().map(|place| place.display().to_string()).collect(),
            files: folder.files.iter().map(file).collect(),
        }
    }
}

/// One loaded model, as `GET /gantry/models` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct ModelShape {
    /// Its id.
    pub id: u64,
    /// Its name, such as its file's.
    pub name: String,
    /// Its family.
    pub family: String,
    /// `keep`, `eject` or `default`.
    pub retention: &'static str,
    /// Bytes of its copies by device.
    pub bytes: Map<String, Value>,
    /// Where everything goes.
    pub plan: PlanShape,
    /// Whether its copies are on their devices now.
    pub staged: bool,
    /// When it was last opened, in milliseconds since 1970.
    pub last_used: u64,
    /// What streaming did since its copies were made.
    pub streamed: StreamShape,
    /// Where the time of its latest step went; none before it computed.
    pub profile: Option<ProfileShape>,
    /// How far the coding is of blocks that the plan wants coded; none if there are none, or no copies.
    pub coding: Option<CodingShape>,
}

/// How the blocks of a model are kept that its plan wants losslessly coded.
#[derive(Clone, Debug, Serialize)]
pub struct CodingShape {
    /// `plain`, if they could not be coded; `coding`, while steps run plain and they are being coded; `coded`.
    pub state: &'static str,
    /// Blocks that are coded by now.
    pub done: usize,
    /// Blocks that the plan wants coded.
    pub blocks: usize,
    /// How long coding took, or has taken so far.
    pub seconds: f64,
    /// Whether they were coded at an earlier start and only read.
    pub is_read: bool,
    /// Why they stay plain, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl CodingShape {
    fn of(report: &CodingReport) -> CodingShape {
        let CodingReport { state, done, blocks, seconds, is_read, reason } = report;
        CodingShape {
            state: state.name(),
            done: *done,
            blocks: *blocks,
            seconds: *seconds,
            is_read: *is_read,
            reason: reason.clone(),
        }
    }
}

/// Memory at one moment, as `GET /gantry/snapshots` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotShape {
    /// Counts up from 0, so that a gap shows where old ones were dropped.
    pub number: u64,
    /// When, in UTC: `2026-11-15T16:40:00.123Z`.
    pub time: String,
    /// What had just happened.
    pub label: String,
    /// Bytes in use by device.
    pub used: Map<String, Value>,
    /// Bytes that each device's allocator holds for reuse.
    pub cached: Map<String, Value>,
}

impl SnapshotShape {
    /// The shape of a snapshot.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> SnapshotShape {
        SnapshotShape {
            number: snapshot.number,
            time: format!("{}Z", Moment::utc(snapshot.time).to_text(3)),
            label: snapshot.label.clone(),
            used: by_device(&snapshot.used),
            cached: by_device(&snapshot.cached),
        }
    }
}

fn by_device(bytes: &[(DeviceId, u64)]) -> Map<String, Value> {
    bytes.iter().map(|(device, bytes)| (device.to_string(), (*bytes).into())).collect()
}

/// One step, as the devices timed it.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileShape {
    /// From the first block's turn to the last block's end.
    pub seconds: f64,
    /// The blocks that it used, in order.
    pub blocks: Vec<BlockTimeShape>,
}

/// One block's part of a step.
#[derive(Clone, Debug, Serialize)]
pub struct BlockTimeShape {
    /// Its number in the plan.
    pub block: usize,
    /// Where it computed.
    pub device: String,
    /// When its turn came, from the step's start.
    pub begin_s: f64,
    /// Computing.
    pub compute_s: f64,
    /// Waiting for its weights.
    pub stall_s: f64,
    /// Decoding them; 0 if they are not coded.
    pub decode_s: f64,
    /// Copying its weights; 0 if they were there.
    pub copy_s: f64,
    /// Bytes that were copied.
    pub copied_bytes: u64,
}

impl ProfileShape {
    /// The shape of a measured step.
    #[must_use]
    pub fn of(profile: &StepProfile) -> ProfileShape {
        let block = |block: &BlockProfile| BlockTimeShape {
            block: block.block,
            device: block.device.to_string(),
            begin_s: block.begin,
            compute_s: block.compute,
            stall_s: block.stall,
            decode_s: block.decode,
            copy_s: block.copy.map_or(0.0, |copy| copy.seconds),
            copied_bytes: block.copy.map_or(0, |copy| copy.bytes),
        };
        ProfileShape { seconds: profile.seconds, blocks: profile.blocks.iter().map(block).collect() }
    }
}

/// What streaming did.
#[derive(Clone, Debug, Serialize)]
pub struct StreamShape {
    /// Blocks copied.
    pub blocks: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// How often a block was waited for.
    pub stalls: u64,
    /// For how long.
    pub stalled_seconds: f64,
}

impl ModelShape {
    /// What is known of a loaded model.
    #[must_use]
    pub fn of(report: &ModelReport) -> ModelShape {
        let since = report.last_used.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        ModelShape {
            id: report.id.0,
            name: report.name.clone(),
            family: report.family.clone(),
            retention: report.retention.name(),
            bytes: by_device(&report.bytes),
            plan: PlanShape::of(&report.plan),
            staged: report.staged,
            last_used: u64::try_from(since.as_millis()).unwrap_or(u64::MAX),
            streamed: StreamShape {
                blocks: report.stats.copies,
                bytes: report.stats.bytes,
                stalls: report.stats.stalls,
                stalled_seconds: report.stats.stalled.as_secs_f64(),
            },
            profile: report.profile.as_ref().map(ProfileShape::of),
            coding: report.coding.as_ref().map(CodingShape::of),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use residency::CopyProfile;

    use super::*;

    #[test]
    fn a_snapshot_has_its_keys_in_order() {
        let snapshot = Snapshot {
            number: 7,
            time: UNIX_EPOCH + Duration::from_millis(1_794_761_999_123),
            label: "a \"b\"".to_owned(),
            used: vec![(DeviceId::CPU, 5), (DeviceId::sim(0), 9)],
            cached: Vec::new(),
        };
        let expected = concat!(
            r#"{"number":7,"time":"2026-11-15T16:59:59.123Z","label":"a \"b\"","used":{"cpu":5,"sim:0":9},"#,
            r#""cached":{}}"#
        );
        assert_eq!(serde_json::to_string(&SnapshotShape::of(&snapshot)).unwrap_or_default(), expected);
    }

    #[test]
    fn a_block_that_was_not_copied_has_no_time_of_copying() {
        let block = |number: usize, copy: Option<CopyProfile>| BlockProfile {
            block: number,
            device: DeviceId::sim(1),
            begin: 0.5,
            stall: 0.25,
            decode: 0.125,
            compute: 2.0,
            copy,
            handed_bytes: 0,
        };
        let copy = CopyProfile { begin: -1.0, seconds: 0.75, bytes: 300 };
        let blocks = vec![block(0, None), block(3, Some(copy))];
        let step = StepProfile { seconds: 5.0, blocks, moving_in: false };
        let shown = serde_json::to_value(ProfileShape::of(&step)).unwrap_or_default();
        assert_eq!(shown["seconds"], 5.0);
        assert_eq!(
            (&shown["blocks"][0]["copy_s"], &shown["blocks"][0]["copied_bytes"]),
            (&0.0.into(), &0.into())
        );
        let streamed = &shown["blocks"][1];
        assert_eq!((&streamed["block"], &streamed["device"]), (&3.into(), &"sim:1".into()));
        assert_eq!((&streamed["copy_s"], &streamed["copied_bytes"]), (&0.75.into(), &300.into()));
        assert_eq!((&streamed["compute_s"], &streamed["stall_s"]), (&2.0.into(), &0.25.into()));
        assert_eq!(streamed["decode_s"], 0.125);
    }
}
