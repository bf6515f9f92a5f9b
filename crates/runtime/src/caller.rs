//! Who asks for a network: the job that it works for, and where that job's worker computes.

use std::sync::Arc;

use graph::JobContext;
use meta::DeviceId;
use residency::Cancel;

use crate::planning::Demand;
use crate::{Result, Runtime, Source, Work};

/// A job, as far as devices are concerned. It travels with every call, so that one runtime serves several workers.
#[derive(Clone, Debug)]
pub struct Caller {
    /// Its id; none for what is part of no job.
    pub job: Option<Arc<str>>,
    /// Says when the job is to end.
    pub cancel: Cancel,
    /// Where its worker computes; the runtime's own device if it is not said.
    pub device: Option<DeviceId>,
}

impl Caller {
    /// The job of a call.
    #[must_use]
    pub fn of(job: &JobContext) -> Caller {
        let id = job.prompt_id.as_str();
        Caller {
            job: (!id.is_empty()).then(|| id.into()),
            cancel: Cancel::from(Arc::clone(&job.cancel)),
            device: device_of(job),
        }
    }
}

impl Runtime {
    /// Where the nodes of a job compute unless they say otherwise.
    #[must_use]
    pub fn device_for(&self, job: &JobContext) -> DeviceId {
        device_of(job).unwrap_or(self.compute)
    }
}

impl Runtime {
    /// Where a network computes for a caller.
    #[must_use]
    pub fn device_of(&self, source: &Source, caller: &Caller) -> DeviceId {
        match source.placing.follows {
            true => caller.device.unwrap_or(self.compute),
            false => source.placing.compute,
        }
    }

    /// Seconds that some work is predicted to take of a network where it is placed.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn predicted_s(&self, source: &Source, work: &Work) -> Result<f64> {
        let demand = Demand { work: Some(work), ..Demand::default() };
        let planned = self.with_room(source, || self.plan(source, demand))?;
        Ok(planned.plan.prediction.seconds_per_step)
    }
}

/// Workers are called by their devices.
fn device_of(job: &JobContext) -> Option<DeviceId> {
    job.worker.as_deref().and_then(|name| name.parse().ok())
}
