//! Answers `POST /gantry/plan` as `gantry plan` does, quickly enough for someone who is typing.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use checkpoint::Checkpoint;
use meta::ByteSize;
use placement::{AllocationError, Plan, PlanError};
use server::{PlanFault, PlanQuestion, Planner};

use super::plan::{self, Speed};
use crate::machine::Machine;

/// How long measured speeds are believed. A job that runs meanwhile makes devices look slow, so not for ever.
const BELIEVED: Duration = Duration::from_secs(300);

/// Plans for this machine.
pub(super) struct MachinePlanner {
    machine: Arc<Machine>,
    speeds: Mutex<Option<(Instant, Vec<Speed>)>>,
}

impl MachinePlanner {
    pub(super) fn new(machine: Arc<Machine>) -> MachinePlanner {
        MachinePlanner { machine, speeds: Mutex::default() }
    }

    /// Measures when nothing is known or what is known is old. Others wait meanwhile: they would disturb it.
    fn speeds(&self) -> Result<Vec<Speed>> {
        let mut kept = self.speeds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((at, speeds)) = &*kept
            && at.elapsed() < BELIEVED
        {
            return Ok(speeds.clone());
        }
        let speeds = plan::speeds(&self.machine)?;
        *kept = Some((Instant::now(), speeds.clone()));
        Ok(speeds)
    }
}

impl Planner for MachinePlanner {
    fn plan(&self, checkpoint: &Checkpoint, question: &PlanQuestion) -> Result<Plan, PlanFault> {
        let asked = plan::Question {
            file: PathBuf::from(&question.file),
            text: plan::allocation_text(
                question.alloc.as_deref(),
                question.virtual_vram_gb,
                question.donor.as_deref().unwrap_or("cpu"),
                question.compute,
            ),
            compute: question.compute,
            rows: question.rows.unwrap_or(plan::DEFAULT_ROWS),
            working: ByteSize(question.working_bytes.unwrap_or(plan::DEFAULT_WORKING_BYTES)),
        };
        plan::answer_with(&self.machine, &asked, checkpoint, || self.speeds()).map_err(|error| fault(&error))
    }
}

/// The error with what a page can point at.
fn fault(error: &anyhow::Error) -> PlanFault {
    if let Some(error) = error.downcast_ref::<AllocationError>() {
        return PlanFault::from(PlanError::Allocation(error.clone()));
    }
    match error.downcast_ref::<PlanError>() {
        Some(error) => PlanFault::from(error.clone()),
        None => PlanFault::told(crate::told(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo_model;

    fn question(alloc: &str) -> PlanQuestion {
        PlanQuestion {
            file: "demo-flux.safetensors".to_owned(),
            alloc: Some(alloc.to_owned()),
            working_bytes: Some(1 << 20),
            ..PlanQuestion::default()
        }
    }

    #[test]
    fn the_second_plan_waits_for_no_measurement() {
        let planner = MachinePlanner::new(Arc::new(Machine::for_tests()));
        let file = Checkpoint::from_static("demo-flux.safetensors", demo_model::FLUX).unwrap();
        let first = planner.plan(&file, &question("sim:0,50%;cpu,50%")).unwrap();
        let measured_at = || planner.speeds.lock().unwrap().as_ref().map(|(at, _)| *at);
        let before = measured_at();
        let second = planner.plan(&file, &question("sim:0,50%;cpu,50%")).unwrap();
        assert!(before.is_some() && before == measured_at());
        assert_eq!(first, second);
    }

    #[test]
    fn a_fault_keeps_what_is_known_of_it() {
        let planner = MachinePlanner::new(Arc::new(Machine::for_tests()));
        let file = Checkpoint::from_static("demo-flux.safetensors", demo_model::FLUX).unwrap();
        let told = |alloc: &str, working: u64| {
            let asked = PlanQuestion { working_bytes: Some(working), ..question(alloc) };
            format!("{:?}", planner.plan(&file, &asked).unwrap_err())
        };
        let wrong = told("sim:0,2xb;cpu,*", 1 << 20);
        assert!(wrong.contains("Span { start: 7, end: 9 }"), "{wrong}");
        let full = told("sim:0,4mb;cpu,*", (1 << 30) - (2 << 20));
        assert!(full.contains("nearest: Some("), "{full}");
    }
}
