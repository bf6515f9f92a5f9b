//! Where a job runs: its worker, and the devices that it has for itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use graph::Prompt;
use meta::DeviceId;

use crate::job::Job;
use crate::store::Choice;

/// Says which accelerators a prompt names.
pub type NamedDevices = Arc<dyn Fn(&Prompt) -> BTreeSet<DeviceId> + Send + Sync>;

/// Where a job runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobPlace {
    /// Its worker, by the device that it computes on.
    pub worker: DeviceId,
    /// The devices that no other job has meanwhile; none where there is one worker only, which has all of them.
    pub devices: Option<BTreeSet<DeviceId>>,
}

impl JobPlace {
    /// Whether something that computed on a device may be this job's. The host is everybody's.
    #[must_use]
    pub fn may_use(&self, device: DeviceId) -> bool {
        device == DeviceId::CPU || self.devices.as_ref().is_none_or(|devices| devices.contains(&device))
    }

    /// Whether there are other workers.
    #[must_use]
    pub fn is_one_of_several(&self) -> bool {
        self.devices.is_some()
    }
}

/// Looks through the jobs that wait, in their order, for the first that a worker may run now.
///
/// A job runs on any worker, unless it names devices of workers: then on one of those. It has its worker's device and all
/// that it names for itself. What an earlier job waits for no later one takes, so that none waits for ever.
pub(crate) struct Chooser<'a> {
    pub(crate) own: DeviceId,
    pub(crate) workers: &'a [DeviceId],
    pub(crate) named: Option<&'a NamedDevices>,
    /// What jobs have that run, and what earlier ones wait for.
    pub(crate) taken: BTreeSet<DeviceId>,
    /// What the chosen job has.
    pub(crate) chosen: BTreeSet<DeviceId>,
}

impl Chooser<'_> {
    pub(crate) fn look(&mut self, job: &Job) -> Choice {
        if self.taken.contains(&self.own) {
            return Choice::Stop;
        }
        let mut devices = self.named.map_or_else(BTreeSet::new, |named| named(&job.prompt));
        let is_mine =
            devices.contains(&self.own) || !self.workers.iter().any(|worker| devices.contains(worker));
        if is_mine {
            devices.insert(self.own);
        }
        if is_mine && devices.is_disjoint(&self.taken) {
            self.chosen = devices;
            return Choice::Take;
        }
        // Where only something is busy that is no worker's, this worker may run others meanwhile.
        if !devices.iter().any(|device| self.workers.contains(device) && *device != self.own) {
            devices.remove(&self.own);
        }
        self.taken.extend(devices);
        Choice::Leave
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The devices that a job names are the names of its nodes.
    fn job(names: &[&str]) -> Job {
        let mut prompt = Prompt::default();
        for name in names {
            prompt.nodes.insert((*name).into(), graph::PromptNode::default());
        }
        Job { prompt: Arc::new(prompt), ..Job::default() }
    }

    fn id(name: &str) -> DeviceId {
        name.parse().unwrap()
    }

    /// The place in the queue of the job that the worker takes, and what it has then.
    fn taken(own: &str, running: &[&str], queue: &[&[&str]]) -> Option<(usize, Vec<String>)> {
        let named: NamedDevices =
            Arc::new(|prompt: &Prompt| prompt.nodes.keys().map(|name| id(name)).collect());
        let workers = [id("sim:0"), id("sim:1")];
        let mut chooser = Chooser {
            own: id(own),
            workers: &workers,
            named: Some(&named),
            taken: running.iter().map(|name| id(name)).collect(),
            chosen: BTreeSet::new(),
        };
        for (place, names) in queue.iter().enumerate() {
            match chooser.look(&job(names)) {
                Choice::Take => {
                    return Some((place, chooser.chosen.iter().map(ToString::to_string).collect()));
                }
                Choice::Leave => {}
                Choice::Stop => return None,
            }
        }
        None
    }

    fn devices(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_job_that_names_nothing_runs_on_any_worker() {
        assert_eq!(taken("sim:0", &[], &[&[]]), Some((0, devices(&["sim:0"]))));
        assert_eq!(taken("sim:1", &["sim:0"], &[&[]]), Some((0, devices(&["sim:1"]))));
        assert_eq!(taken("sim:1", &["sim:0", "sim:1"], &[&[]]), None, "its device is somebody's donor");
    }

    #[test]
    fn a_job_runs_on_a_worker_whose_device_it_names() {
        assert_eq!(taken("sim:0", &[], &[&["sim:1"], &[]]), Some((1, devices(&["sim:0"]))));
        assert_eq!(taken("sim:1", &[], &[&["sim:1"], &[]]), Some((0, devices(&["sim:1"]))));
        assert_eq!(taken("sim:0", &[], &[&["sim:2"]]), Some((0, devices(&["sim:0", "sim:2"]))));
    }

    #[test]
    fn what_an_earlier_job_waits_for_no_later_one_takes() {
        let both: &[&str] = &["sim:0", "sim:1"];
        assert_eq!(taken("sim:0", &["sim:1"], &[both, &[]]), None, "the first waits for both");
        assert_eq!(taken("sim:0", &[], &[both, &[]]), Some((0, devices(both))));
        assert_eq!(
            taken("sim:1", &["sim:0", "sim:2"], &[&["sim:2"], &[]]),
            Some((1, devices(&["sim:1"]))),
            "the first waits for a device that is no worker's"
        );
    }
}
