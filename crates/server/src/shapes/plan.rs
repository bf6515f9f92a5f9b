//! A plan as `POST /gantry/plan` and `GET /gantry/models` show it, and as `gantry plan --json` prints it.

use placement::{BlockPlan, BlockTime, DeviceUse, Plan, Prediction, Reading, Ring};
use serde::Serialize;

/// Where every block of a model goes, and how long a step will be.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlanShape {
    /// Where the model computes.
    pub compute: String,
    /// Which blocks went where: `interleaved` or `contiguous`.
    pub order: &'static str,
    /// Every block, in order of use.
    pub blocks: Vec<BlockShape>,
    /// The slots on the compute device through which streamed blocks pass; none if none is streamed.
    pub ring: Option<RingShape>,
    /// The host's buffers through which blocks pass that are read from the disk; left out if none is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reading: Option<ReadingShape>,
    /// What the plan takes of every device that it uses, compute device first, then by id.
    pub devices: Vec<DeviceUseShape>,
    /// How long a step will be.
    pub prediction: PredictionShape,
    /// What differs from what was asked, and why.
    pub notes: Vec<String>,
}

/// One block's place.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BlockShape {
    /// Its name.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
    /// Where its weights live.
    pub home: String,
    /// Where it computes.
    pub runs_on: String,
    /// `resident` or `streamed`.
    pub mode: &'static str,
    /// Its bytes when it is losslessly coded, where it is: in host memory and on the link if it is streamed, else where it
    /// lives.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coded_bytes: Option<u64>,
    /// Whether it is read from the disk whenever it travels, because host memory has no room for it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub from_disk: bool,
}

/// The slots through which streamed blocks pass.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RingShape {
    /// How many.
    pub slots: usize,
    /// The bytes of each.
    pub slot_bytes: u64,
    /// The bytes of the room in which coded blocks are decoded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub room_bytes: Option<u64>,
}

/// The host's buffers through which blocks pass that are read from the disk.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReadingShape {
    /// How many.
    pub buffers: usize,
    /// The bytes of each.
    pub buffer_bytes: u64,
}

/// What a plan takes of one device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceUseShape {
    /// Which device.
    pub device: String,
    /// The weights whose home it is.
    pub weight_bytes: u64,
    /// The weights that were asked for there, where amounts were given.
    pub asked_bytes: Option<u64>,
    /// The ring, on the compute device; on the host the buffers for what is read from the disk.
    pub ring_bytes: u64,
    /// Memory to work in, where blocks run.
    pub working_bytes: u64,
    /// Of the weights, those that are read from the disk whenever they travel, and take no memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk_bytes: Option<u64>,
    /// What a plan may use of it.
    pub available_bytes: u64,
}

/// The predicted seconds of one step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PredictionShape {
    /// Whether the machine's speeds were measured; if not, the times say nothing.
    pub known: bool,
    /// The step.
    pub seconds_per_step: f64,
    /// Computing in it.
    pub compute_s: f64,
    /// Decoding weights in it.
    pub decode_s: f64,
    /// Moving activations between devices in it.
    pub hop_s: f64,
    /// What it does outside of the model's blocks.
    pub outside_s: f64,
    /// Waiting for weights in it.
    pub stall_s: f64,
    /// What the copy stream is busy.
    pub copy_s: f64,
    /// The same, block by block.
    pub blocks: Vec<BlockTimeShape>,
}

/// The predicted seconds of one block.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BlockTimeShape {
    /// Computing.
    pub compute_s: f64,
    /// Decoding its weights.
    pub decode_s: f64,
    /// Waiting for the activations to arrive.
    pub hop_s: f64,
    /// Copying its weights.
    pub copy_s: f64,
    /// Waiting for its weights after everything else was ready.
    pub stall_s: f64,
}

impl PlanShape {
    /// The shape of a plan. Every value is taken apart whole, so that one that a plan gains is not forgotten here.
    #[must_use]
    pub fn of(plan: &Plan) -> PlanShape {
        let Plan { compute, order, blocks, ring, reading, devices, prediction, notes, .. } = plan;
        PlanShape {
            compute: compute.to_string(),
            order: order.name(),
            blocks: blocks.iter().map(BlockShape::of).collect(),
            ring: ring.map(RingShape::of),
            reading: reading.map(ReadingShape::of),
            devices: devices.iter().map(DeviceUseShape::of).collect(),
            prediction: PredictionShape::of(prediction),
            notes: notes.clone(),
        }
    }
}

impl ReadingShape {
    fn of(reading: Reading) -> ReadingShape {
        let Reading { buffers, buffer_bytes } = reading;
        ReadingShape { buffers, buffer_bytes }
    }
}

impl RingShape {
    fn of(ring: Ring) -> RingShape {
        let Ring { slots, slot_bytes, room_bytes } = ring;
        RingShape { slots, slot_bytes, room_bytes: (room_bytes > 0).then_some(room_bytes) }
    }
}

impl BlockShape {
    fn of(block: &BlockPlan) -> BlockShape {
        let BlockPlan { name, bytes, home, runs_on, mode, coded_bytes, from_disk } = block;
        BlockShape {
            name: name.clone(),
            bytes: *bytes,
            home: home.to_string(),
            runs_on: runs_on.to_string(),
            mode: mode.name(),
            coded_bytes: *coded_bytes,
            from_disk: *from_disk,
        }
    }
}

impl DeviceUseShape {
    fn of(usage: &DeviceUse) -> DeviceUseShape {
        let DeviceUse {
            device,
            weight_bytes,
            asked_bytes,
            ring_bytes,
            working_bytes,
            disk_bytes,
            available_bytes,
        } = *usage;
        DeviceUseShape {
            device: device.to_string(),
            weight_bytes,
            asked_bytes,
            ring_bytes,
            working_bytes,
            disk_bytes: (disk_bytes > 0).then_some(disk_bytes),
            available_bytes,
        }
    }
}

impl PredictionShape {
    fn of(prediction: &Prediction) -> PredictionShape {
        let Prediction {
            known,
            seconds_per_step,
            compute_s,
            decode_s,
            hop_s,
            outside_s,
            stall_s,
            copy_s,
            ref blocks,
        } = *prediction;
        let block = |time: &BlockTime| {
            let BlockTime { compute_s, decode_s, hop_s, copy_s, stall_s } = *time;
            BlockTimeShape { compute_s, decode_s, hop_s, copy_s, stall_s }
        };
        let blocks = blocks.iter().map(block).collect();
        PredictionShape {
            known,
            seconds_per_step,
            compute_s,
            decode_s,
            hop_s,
            outside_s,
            stall_s,
            copy_s,
            blocks,
        }
    }
}

#[cfg(test)]
mod tests {
    use meta::DeviceId;
    use placement::{AllocationText, BlockSpec, DeviceSpec, PlanRequest, plan};

    use super::*;

    fn device(id: DeviceId, available_bytes: u64) -> DeviceSpec {
        DeviceSpec {
            id,
            total_bytes: available_bytes,
            available_bytes,
            link_bytes_per_s: 1000.0,
            compute_factor: 1.0,
            reaches: Vec::new(),
        }
    }

    #[test]
    fn a_plan_has_its_keys_in_order() {
        let devices = vec![device(DeviceId::sim(0), 250), device(DeviceId::CPU, 1000)];
        let block =
            |name: &str| BlockSpec { name: name.to_owned(), bytes: 100, compute_seconds: 0.5, pinned: false };
        let blocks = vec![block("a"), block("b"), block("c")];
        let mut request = PlanRequest::new(blocks, devices, DeviceId::sim(0));
        request.allocation = AllocationText::parse("sim:0,0%;cpu,100%").unwrap();
        let made = plan(&request).unwrap();
        let shape = serde_json::to_value(PlanShape::of(&made)).unwrap();
        let keys = |value: &serde_json::Value| -> String {
            value.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(keys(&shape), "compute order blocks ring devices prediction notes");
        assert_eq!(keys(&shape["blocks"][0]), "name bytes home runs_on mode");
        assert_eq!(keys(&shape["ring"]), "slots slot_bytes");
        assert_eq!(
            keys(&shape["devices"][0]),
            "device weight_bytes asked_bytes ring_bytes working_bytes available_bytes"
        );
        assert_eq!(
            keys(&shape["prediction"]),
            "known seconds_per_step compute_s decode_s hop_s outside_s stall_s copy_s blocks"
        );
        assert_eq!(keys(&shape["prediction"]["blocks"][0]), "compute_s decode_s hop_s copy_s stall_s");
        assert_eq!((&shape["compute"], &shape["order"]), (&"sim:0".into(), &"interleaved".into()));
        assert_eq!(
            (&shape["blocks"][2]["home"], &shape["blocks"][2]["mode"]),
            (&"cpu".into(), &"streamed".into())
        );
    }
}
