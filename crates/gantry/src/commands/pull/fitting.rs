//! How a model would fit on this machine, told from the header of its file before the rest of it is fetched.

use std::fs::OpenOptions;
use std::sync::Arc;

use anyhow::{Context, Result};
use checkpoint::Checkpoint;
use hub::{Hub, Remote};
use meta::{ByteSize, DeviceId};
use placement::Plan;
use runtime::{Folders, PlanQuestion, Role, Runtime, Settings};
use testkit::ScratchDir;

use super::Wanted;
use crate::machine::Machine;
use crate::{environment, serving};

/// The kinds of folders whose files have diffusion models.
const KINDS: [&str; 2] = ["diffusion_models", "checkpoints"];

/// The longest header that is fetched to answer a question.
const MOST_HEADER_BYTES: u64 = 32 << 20;

/// Asks the planner that serves.
pub(super) struct Fitting {
    runtime: Arc<Runtime>,
}

impl Fitting {
    pub(super) fn on(machine: &Machine, folders: &Folders) -> Result<Fitting> {
        let settings = Settings { profile_file: environment::profile_file(), ..Settings::default() };
        Ok(Fitting { runtime: serving::runtime(machine, folders.clone(), None, settings)? })
    }

    /// How the diffusion model of a file would fit; nothing for files that have none and for those that do not say
    /// before they are read.
    pub(super) fn of(&self, hub: &Hub, file: &Wanted, remote: &Remote) -> Option<String> {
        if !KINDS.contains(&file.kind.as_str()) {
            return None;
        }
        let told = self.planned(hub, file, remote);
        told.inspect_err(|error| tracing::debug!("{}: {error:#}", file.address)).ok()
    }

    fn planned(&self, hub: &Hub, file: &Wanted, remote: &Remote) -> Result<String> {
        let total = remote.bytes.context("the server does not say how long it is")?;
        let first = hub.beginning(&file.address, remote, 8)?;
        let end = checkpoint::safetensors_header_end(&first).context("no safetensors file begins so")?;
        anyhow::ensure!(end <= MOST_HEADER_BYTES.min(total), "a header of {}", ByteSize(end));
        let header = hub.beginning(&file.address, remote, end)?;
        // A file of that length whose weights are holes: planning reads none.
        let folder = ScratchDir::new()?;
        let path = folder.join(file.path.file_name().context("a file without a name")?);
        disk::write(&path, &header)?;
        OpenOptions::new().write(true).open(&path)?.set_len(total)?;
        let outline = Arc::new(Checkpoint::open(&path)?);
        let question = PlanQuestion { part: Some(Role::Diffusion), ..PlanQuestion::default() };
        Ok(match self.runtime.plan_file(&outline, &question) {
            Ok(plan) => told(&plan, &question),
            Err(error) => format!("does not fit: {error}"),
        })
    }
}

/// A plan in a line.
fn told(plan: &Plan, question: &PlanQuestion) -> String {
    let fits = match (plan.compute == DeviceId::CPU, plan.streamed_bytes()) {
        (true, _) => "runs on the CPU".to_owned(),
        (false, 0) => format!("fits whole on {}", plan.compute),
        (false, streamed) => format!("fits on {} with {} streamed", plan.compute, ByteSize(streamed)),
    };
    let (width, height) = question.size;
    let step = if plan.prediction.known {
        format!("about {} per step", placement::seconds(plan.prediction.seconds_per_step))
    } else {
        "time per step not measured yet".to_owned()
    };
    format!("{fits}, {step} at {width} × {height} pixels")
}
