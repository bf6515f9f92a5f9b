//! Which job a worker takes: one whose models it holds, as long as nobody waits much longer for it.
//!
//! Every job has a promise: how long it would have waited, loading included, had jobs been served first come, first
//! served from the moment it came, each by the worker where it begins first. A worker takes the first job whose models it
//! holds; else the first that nobody holds. It may pass over others only if all of them would still begin within twice
//! their promises were the rest served first come, first served from then on; if not, it takes what it would then take.
//! That leaves a job to a busy worker that holds its models, unless loading here is sooner. As the fallback is looked at
//! before every step, it is always there, and as far as predictions are right no job waits longer than twice its promise.
//!
//! Numbers in, a choice out: nothing here asks the queue or a clock.

/// Jobs that are looked at, from the first. What is further behind waits for its turn in any case.
pub(crate) const HORIZON: usize = 256;
/// A job may wait so many times its promise.
const PATIENCE: f64 = 2.0;

/// A worker holds a job's models that lacks at most this part of their bytes.
const NEARLY_ALL: u64 = 10;

/// A model by its number in [`Scene::sizes`].
pub(crate) type ModelNumber = usize;

/// A job that waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting {
    pub(crate) models: Vec<ModelNumber>,
    pub(crate) age_s: f64,
    /// How long it would have waited, first come, first served.
    pub(crate) promise_s: f64,
    /// How long it computes once its models are there.
    pub(crate) seconds: f64,
}

/// Something that runs one job after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seat {
    /// What it has loaded, or will have when it is free.
    pub(crate) held: Vec<ModelNumber>,
    /// Model files that it lacks.
    pub(crate) lacking: Vec<ModelNumber>,
    pub(crate) free_in_s: f64,
    pub(crate) load_bytes_per_s: f64,
    /// What it can hold.
    pub(crate) capacity_bytes: u64,
}

/// What a worker sees when it looks for a job.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scene {
    /// Bytes of the models.
    pub(crate) sizes: Vec<u64>,
    pub(crate) seats: Vec<Seat>,
    /// Jobs that wait, in the order in which they came.
    pub(crate) jobs: Vec<Waiting>,
    /// What a promise is stretched by at least: what it takes until a free worker has heard of a job.
    pub(crate) grace_s: f64,
}

/// Why a worker takes a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// It has nothing to load for it.
    Held,
    /// No worker holds its models.
    HeldNowhere,
    /// Loading here takes less than waiting for who holds them.
    LoadingIsSooner,
    /// It came first, and nobody may be taken before it any more.
    Due,
}

impl Reason {
    /// For records.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Reason::Held => "held",
            Reason::HeldNowhere => "held nowhere",
            Reason::LoadingIsSooner => "loading is sooner",
            Reason::Due => "due",
        }
    }
}

/// A job that a worker takes, and the numbers by which it was chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    /// Its place among those that wait.
    pub(crate) job: usize,
    pub(crate) reason: Reason,
    pub(crate) load_s: f64,
    /// How long it would wait for a worker that holds its models.
    pub(crate) elsewhere_s: Option<f64>,
}

/// When and where a job is served.
#[derive(Clone, Copy, Debug)]
struct Turn {
    seat: Option<usize>,
    begins_s: f64,
}

impl Scene {
    /// What a seat takes; none if everything is left to others.
    pub(crate) fn choose(&self, own: usize) -> Option<Choice> {
        let mine: Vec<usize> = (0..self.jobs.len()).filter(|job| self.is_for(own, *job)).collect();
        let held = mine.iter().find(|job| self.holds(&self.seats[own], **job));
        if let Some(held) = held.filter(|held| self.is_bearable(own, **held)) {
            return Some(self.choice(own, *held, Reason::Held));
        }
        let nowhere = mine.iter().find(|job| self.elsewhere_s(own, **job).is_none());
        if let Some(nowhere) = nowhere.filter(|job| self.is_bearable(own, **job)) {
            return Some(self.choice(own, *nowhere, Reason::HeldNowhere));
        }
        let plan = self.serve(self.seats.clone(), None);
        let is_overdue = |job: &usize| self.jobs[*job].age_s > self.limit_s(*job) + self.load_s(own, *job);
        let next = mine.into_iter().find(|job| plan[*job].seat == Some(own) || is_overdue(job))?;
        let is_sooner = self.elsewhere_s(own, next).is_some_and(|wait| self.load_s(own, next) < wait);
        Some(self.choice(own, next, if is_sooner { Reason::LoadingIsSooner } else { Reason::Due }))
    }

    /// How long each job waits until its own work begins, first come, first served.
    pub(crate) fn first_come_s(&self) -> Vec<f64> {
        self.serve(self.seats.clone(), None).iter().map(|turn| turn.begins_s).collect()
    }

    fn choice(&self, own: usize, job: usize, reason: Reason) -> Choice {
        Choice { job, reason, load_s: self.load_s(own, job), elsewhere_s: self.elsewhere_s(own, job) }
    }

    /// Whether a seat has the files of a job, or nobody has.
    fn is_for(&self, seat: usize, job: usize) -> bool {
        let has_all = |seat: &Seat| !self.jobs[job].models.iter().any(|model| seat.lacking.contains(model));
        has_all(&self.seats[seat]) || !self.seats.iter().any(has_all)
    }

    fn load_s(&self, seat: usize, job: usize) -> f64 {
        self.load_of(&self.seats[seat], job)
    }

    fn load_of(&self, seat: &Seat, job: usize) -> f64 {
        let bytes = self.missing_bytes(seat, job);
        if bytes == 0 { 0.0 } else { bytes as f64 / seat.load_bytes_per_s.max(1.0) }
    }

    fn missing_bytes(&self, seat: &Seat, job: usize) -> u64 {
        let missing = self.jobs[job].models.iter().filter(|model| !seat.held.contains(model));
        missing.map(|model| self.sizes[*model]).sum()
    }

    /// Whether a seat has nothing to load for a job, or next to nothing: encoders and decoders come and go.
    fn holds(&self, seat: &Seat, job: usize) -> bool {
        let bytes: u64 = self.jobs[job].models.iter().map(|model| self.sizes[*model]).sum();
        self.missing_bytes(seat, job) <= bytes / NEARLY_ALL
    }

    /// How long a job would wait for another seat that holds its models; none if there is none.
    fn elsewhere_s(&self, own: usize, job: usize) -> Option<f64> {
        let others = (0..self.seats.len()).filter(|seat| *seat != own);
        let holders: Vec<usize> =
            others.filter(|seat| self.is_for(*seat, job) && self.holds(&self.seats[*seat], job)).collect();
        let ahead = self.jobs[..job].iter().filter(|ahead| ahead.models == self.jobs[job].models);
        let ahead_s: f64 = ahead.map(|ahead| ahead.seconds).sum();
        let begins = holders.iter().map(|seat| self.seats[*seat].free_in_s + self.load_s(*seat, job));
        Some(begins.reduce(f64::min)? + ahead_s / holders.len() as f64)
    }

    /// The latest age at which a job's own work is to begin.
    fn limit_s(&self, job: usize) -> f64 {
        let promise = self.jobs[job].promise_s;
        (PATIENCE * promise).max(promise + self.grace_s)
    }

    /// Whether all others begin in time if a seat takes this job now.
    fn is_bearable(&self, own: usize, taken: usize) -> bool {
        let mut seats = self.seats.clone();
        self.run(&mut seats[own], taken);
        let turns = self.serve(seats, Some(taken));
        let is_in_time = |job: usize| {
            let turn = turns[job];
            turn.seat.is_none() || self.jobs[job].age_s + turn.begins_s <= self.limit_s(job)
        };
        (0..self.jobs.len()).filter(|job| *job != taken).all(is_in_time)
    }

    /// Serves all jobs but one in their order, each where it begins first.
    fn serve(&self, mut seats: Vec<Seat>, except: Option<usize>) -> Vec<Turn> {
        let mut turns = vec![Turn { seat: None, begins_s: f64::INFINITY }; self.jobs.len()];
        for job in (0..self.jobs.len()).filter(|job| Some(*job) != except) {
            let begins = |seat: &usize| seats[*seat].free_in_s + self.load_of(&seats[*seat], job);
            let able = (0..seats.len()).filter(|seat| self.is_for(*seat, job));
            let Some(seat) = able.min_by(|a, b| begins(a).total_cmp(&begins(b))) else { continue };
            turns[job] = Turn { seat: Some(seat), begins_s: self.run(&mut seats[seat], job) };
        }
        turns
    }

    /// Runs a job on a seat; when its own work begins.
    fn run(&self, seat: &mut Seat, job: usize) -> f64 {
        let (models, begins) = (&self.jobs[job].models, seat.free_in_s + self.load_of(seat, job));
        seat.free_in_s = begins + self.jobs[job].seconds;
        seat.hold(models, &self.sizes);
        begins
    }
}

impl Seat {
    /// Models are loaded; where they do not fit beside others, those go.
    pub(crate) fn hold(&mut self, models: &[ModelNumber], sizes: &[u64]) {
        let new: Vec<ModelNumber> =
            models.iter().copied().filter(|model| !self.held.contains(model)).collect();
        if new.is_empty() {
            return;
        }
        let bytes: u64 = self.held.iter().chain(&new).map(|model| sizes[*model]).sum();
        if bytes > self.capacity_bytes {
            self.held.clear();
            self.held.extend(models);
        } else {
            self.held.extend(new);
        }
    }
}

#[cfg(test)]
mod tests;
