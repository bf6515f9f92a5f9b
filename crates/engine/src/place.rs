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
    /// The devices that it works with; none where there is one worker only, which has all of them. A job with one device
    /// has it for itself. Jobs with several go through their stages side by side: while one samples on a device, the next
    /// encodes its text on another, and on each device they take turns.
    pub devices: Option<BTreeSet<DeviceId>>,
}

impl JobPlace {
    /// Whether something that computed on a device may be this job's. The host is everybody's.
    #[must_use]
    pub fn may_use(&self, device: DeviceId) -> bool {
        device == DeviceId::CPU || self.devices.as_ref().is_none_or(|devices| devices.contains(&device))
    }

    /// Whether other jobs may work with its devices, too, in turns with it.
    #[must_use]
    pub fn is_in_stages(&self) -> bool {
        self.devices.as_ref().is_some_and(is_in_stages)
    }

    /// Whether there are other workers.
    #[must_use]
    pub fn is_one_of_several(&self) -> bool {
        self.devices.is_some()
    }
}

/// Whether a job that names these devices shares them.
fn is_in_stages(devices: &BTreeSet<DeviceId>) -> bool {
    devices.len() > 1
}

/// The devices that running jobs work with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Taken {
    /// Those that a job has for itself.
    pub(crate) alone: BTreeSet<DeviceId>,
    /// Those that jobs have in turns.
    pub(crate) in_turns: BTreeSet<DeviceId>,
}

impl Taken {
    /// Adds the devices of a job.
    pub(crate) fn add(&mut self, place: &JobPlace) {
        let devices = place.devices.iter().flatten().copied();
        if place.is_in_stages() { self.in_turns.extend(devices) } else { self.alone.extend(devices) }
    }
}

/// Looks through the jobs that wait, in their order, for the first that a worker may run now.
///
/// A job runs on any worker, unless it names devices of workers: then on one of those. It has its worker's device for
/// itself; with others that it names it takes turns with jobs that name some of them and others. What an earlier job waits
/// for no later one takes, so that none waits for ever.
pub(crate) struct Chooser<'a> {
    pub(crate) own: DeviceId,
    pub(crate) workers: &'a [DeviceId],
    pub(crate) named: Option<&'a NamedDevices>,
    /// What jobs have that run; what earlier ones wait for counts as theirs alone.
    pub(crate) taken: Taken,
    /// What the chosen job has.
    pub(crate) chosen: BTreeSet<DeviceId>,
}

impl Chooser<'_> {
    pub(crate) fn look(&mut self, job: &Job) -> Choice {
        if self.taken.alone.contains(&self.own) {
            return Choice::Stop;
        }
        let mut devices = self.named.map_or_else(BTreeSet::new, |named| named(&job.prompt));
        let is_mine =
            devices.contains(&self.own) || !self.workers.iter().any(|worker| devices.contains(worker));
        if is_mine {
            devices.insert(self.own);
        }
        let waits_for_turns = !is_in_stages(&devices) && !devices.is_disjoint(&self.taken.in_turns);
        if is_mine && !waits_for_turns && devices.is_disjoint(&self.taken.alone) {
            self.chosen = devices;
            return Choice::Take;
        }
        // Where only something is busy that is no worker's, this worker may run others meanwhile.
        if !waits_for_turns
            && !devices.iter().any(|device| self.workers.contains(device) && *device != self.own)
        {
            devices.remove(&self.own);
        }
        self.taken.alone.extend(devices);
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

    /// The place in the queue of the job that the worker takes, and what it has then, while jobs with one device each run.
    fn taken(own: &str, running: &[&str], queue: &[&[&str]]) -> Option<(usize, Vec<String>)> {
        let running: Vec<&[&str]> = running.iter().map(std::slice::from_ref).collect();
        taken_beside(own, &running, queue)
    }

    /// The same while jobs with these devices run.
    fn taken_beside(own: &str, running: &[&[&str]], queue: &[&[&str]]) -> Option<(usize, Vec<String>)> {
        let named: NamedDevices =
            Arc::new(|prompt: &Prompt| prompt.nodes.keys().map(|name| id(name)).collect());
        let workers = [id("sim:0"), id("sim:1")];
        let mut taken = Taken::default();
        for names in running {
            let devices = Some(names.iter().map(|name| id(name)).collect());
            taken.add(&JobPlace { worker: id(names[0]), devices });
        }
        let mut chooser =
            Chooser { own: id(own), workers: &workers, named: Some(&named), taken, chosen: BTreeSet::new() };
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

    #[test]
    fn jobs_that_name_several_devices_run_side_by_side() {
        let both: &[&str] = &["sim:0", "sim:1"];
        assert_eq!(taken_beside("sim:1", &[both], &[both]), Some((0, devices(both))));
        let first_and_spare: &[&str] = &["sim:0", "sim:2"];
        assert_eq!(
            taken_beside("sim:1", &[first_and_spare], &[&["sim:2"]]),
            Some((0, devices(&["sim:1", "sim:2"]))),
            "a device that is no worker's is shared, too"
        );
        assert_eq!(taken_beside("sim:1", &[&["sim:0"]], &[both]), None, "the first is somebody's alone");
    }

    #[test]
    fn one_that_wants_a_device_for_itself_is_not_overtaken_by_those_that_share_it() {
        let both: &[&str] = &["sim:0", "sim:1"];
        for alone in [&[][..], &["sim:1"]] {
            assert_eq!(taken_beside("sim:1", &[both], &[alone, both]), None, "{alone:?}");
        }
        assert_eq!(taken_beside("sim:1", &[both], &[both, &["sim:1"]]), Some((0, devices(both))));
    }
}
