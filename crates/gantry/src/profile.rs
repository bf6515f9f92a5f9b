//! Profiles of steps for people and programs: a table, and a file that is both our JSON and a Chrome trace.

use std::path::Path;

use anyhow::{Context, Result};
use meta::{ByteSize, DeviceId};
use placement::Plan;
use residency::StepProfile;
use serde_json::{Value, json};

use crate::table::Table;

/// The latest step of one model.
pub(crate) struct ModelProfile {
    /// The model's name.
    pub(crate) name: String,
    pub(crate) plan: Plan,
    pub(crate) step: StepProfile,
}

impl ModelProfile {
    /// The profiles of all loaded models that made a step.
    pub(crate) fn of_loaded(residency: &residency::Residency) -> Vec<ModelProfile> {
        let models = residency.models().into_iter();
        let profile = |model: residency::ModelReport| {
            model.profile.map(|step| ModelProfile { name: model.name, plan: model.plan, step })
        };
        models.filter_map(profile).collect()
    }

    /// A row per block and the sums.
    pub(crate) fn to_text(&self) -> String {
        let ms = |seconds: f64| format!("{:.2}", seconds * 1e3);
        let mut table =
            Table::new(&["block", "runs on", "begin ms", "stall ms", "compute ms", "copy ms", "copied"]);
        let (mut stall, mut compute, mut copy, mut bytes) = (0.0, 0.0, 0.0, 0);
        for block in &self.step.blocks {
            let copied = block.copy.map(|copy| (ms(copy.seconds), ByteSize(copy.bytes).to_string()));
            let (copy_ms, copied) = copied.unwrap_or_default();
            table.row(&[
                self.block_name(block.block),
                &block.device.to_string(),
                &ms(block.begin),
                &ms(block.stall),
                &ms(block.compute),
                &copy_ms,
                &copied,
            ]);
            stall += block.stall;
            compute += block.compute;
            copy += block.copy.map_or(0.0, |copy| copy.seconds);
            bytes += block.copy.map_or(0, |copy| copy.bytes);
        }
        let other = (self.step.seconds - stall - compute).max(0.0);
        format!(
            "{}: step of {} ms (compute {}, stall {}, between blocks {}; copies {}, {})\n\n{table}",
            self.name,
            ms(self.step.seconds),
            ms(compute),
            ms(stall),
            ms(other),
            ms(copy),
            ByteSize(bytes),
        )
    }

    fn to_json(&self) -> Value {
        let block = |block: &residency::BlockProfile| {
            json!({
                "block": self.block_name(block.block),
                "device": block.device.to_string(),
                "begin_s": block.begin,
                "stall_s": block.stall,
                "compute_s": block.compute,
                "copy": block.copy.map(|copy| json!({
                    "begin_s": copy.begin,
                    "seconds": copy.seconds,
                    "bytes": copy.bytes,
                })),
            })
        };
        json!({
            "model": self.name,
            "seconds": self.step.seconds,
            "predicted_seconds": self.plan.prediction.seconds_per_step,
            "blocks": self.step.blocks.iter().map(block).collect::<Vec<_>>(),
        })
    }

    /// Events of the Chrome trace format; one process per model, a thread for computing and one for copying per device.
    fn trace(&self, process: usize) -> Vec<Value> {
        let mut devices: Vec<DeviceId> = self.step.blocks.iter().map(|block| block.device).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut events = vec![named("process_name", process, 0, &self.name)];
        for (index, device) in devices.iter().enumerate() {
            events.push(named("thread_name", process, 2 * index, &format!("{device} computes")));
            events.push(named("thread_name", process, 2 * index + 1, &format!("{device} copies")));
        }
        let span = |name: &str, kind: &str, thread: usize, begin: f64, seconds: f64| {
            json!({ "name": name, "cat": kind, "ph": "X", "pid": process, "tid": thread,
                    "ts": begin * 1e6, "dur": seconds * 1e6 })
        };
        for block in &self.step.blocks {
            let thread = 2 * devices.iter().position(|device| *device == block.device).unwrap_or(0);
            let name = self.block_name(block.block);
            if block.stall > 0.0 {
                events.push(span(&format!("waits for {name}"), "stall", thread, block.begin, block.stall));
            }
            events.push(span(name, "compute", thread, block.begin + block.stall, block.compute));
            if let Some(copy) = block.copy {
                events.push(span(name, "copy", thread + 1, copy.begin, copy.seconds));
            }
        }
        events
    }

    fn block_name(&self, block: usize) -> &str {
        self.plan.blocks.get(block).map_or("?", |block| &block.name)
    }
}

fn named(what: &str, process: usize, thread: usize, name: &str) -> Value {
    json!({ "name": what, "ph": "M", "pid": process, "tid": thread, "args": { "name": name } })
}

/// Writes profiles to a file that trace viewers open (`chrome://tracing`, Perfetto) and programs read under `profiles`.
pub(crate) fn write(path: &Path, profiles: &[ModelProfile]) -> Result<()> {
    let events: Vec<Value> = profiles.iter().enumerate().flat_map(|(i, it)| it.trace(i + 1)).collect();
    let all = json!({
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "profiles": profiles.iter().map(ModelProfile::to_json).collect::<Vec<_>>(),
    });
    disk::write(path, format!("{all:#}\n").as_bytes()).with_context(|| format!("writing {}", path.display()))
}
