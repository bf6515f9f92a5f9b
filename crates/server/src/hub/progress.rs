//! How far the nodes of a job are, and when that is worth telling.
//!
//! Each `progress_state` is a snapshot of every node touched so far, so telling each change of a job of n nodes
//! costs n² bytes. Few nodes are told at once; with many, snapshots keep a distance that grows with their
//! size. Ticks keep a distance, too. What is held back is told a moment later or before the job's next event, so the
//! last word always arrives.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use graph::{Identity, NodeId};

use super::frame;

/// Up to so many nodes, every start and finish is told at once.
const FEW_NODES: usize = 64;
/// The distance of snapshots, per node, where there are more.
const DISTANCE_PER_NODE: Duration = Duration::from_micros(50);
/// The distance of ticks.
const TICK_DISTANCE: Duration = Duration::from_millis(20);

/// The nodes of one job.
pub(super) struct JobProgress {
    prompt_id: Arc<str>,
    /// `"id":{…}`, ready to be put together.
    written: Vec<String>,
    places: HashMap<NodeId, usize>,
    maxima: HashMap<NodeId, f64>,
    is_changed: bool,
    told_at: Option<Instant>,
    ticked_at: Option<(NodeId, Instant)>,
    held: Option<Tick>,
}

/// A tick that is told a moment later.
#[derive(Clone, Debug)]
pub(super) struct Tick {
    pub(super) identity: Arc<Identity>,
    pub(super) value: f64,
    pub(super) max: f64,
    pub(super) is_plain: bool,
}

impl JobProgress {
    pub(super) fn new(prompt_id: Arc<str>) -> JobProgress {
        JobProgress {
            prompt_id,
            written: Vec::new(),
            places: HashMap::new(),
            maxima: HashMap::new(),
            is_changed: false,
            told_at: None,
            ticked_at: None,
            held: None,
        }
    }

    /// A node starts.
    pub(super) fn start(&mut self, identity: &Identity) {
        self.write(identity, "running", 0.0, 1.0);
    }

    /// A node ended.
    pub(super) fn finish(&mut self, identity: &Identity) {
        let max = self.maxima.get(&identity.node).copied().unwrap_or(1.0);
        self.write(identity, "finished", max, max);
    }

    /// A node is so far. Whether it is to be told now; else it is held back.
    pub(super) fn tick(&mut self, tick: Tick, now: Instant) -> bool {
        self.write(&tick.identity, "running", tick.value, tick.max);
        let is_last = tick.value >= tick.max;
        let is_early = self
            .ticked_at
            .as_ref()
            .is_some_and(|(node, at)| *node == tick.identity.node && now.duration_since(*at) < TICK_DISTANCE);
        if is_early && !is_last {
            self.held = Some(tick);
            return false;
        }
        self.ticked_at = Some((Arc::clone(&tick.identity.node), now));
        self.held = None;
        true
    }

    /// The tick that was held back; it counts as told now.
    pub(super) fn take_held(&mut self, now: Instant) -> Option<Tick> {
        let tick = self.held.take()?;
        self.ticked_at = Some((Arc::clone(&tick.identity.node), now));
        Some(tick)
    }

    /// Whether the tick that is held back is of this node.
    pub(super) fn holds(&self, node: &NodeId) -> bool {
        self.held.as_ref().is_some_and(|tick| tick.identity.node == *node)
    }

    /// Whether the nodes are worth telling now; with many nodes they are so only from time to time.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.is_changed && self.next_snapshot().is_none_or(|next| now >= next)
    }

    /// When something that was held back is to be told.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let tick = self.held.as_ref().and(self.ticked_at.as_ref()).map(|(_, at)| *at + TICK_DISTANCE);
        let snapshot = if self.is_changed { self.next_snapshot() } else { None };
        match (tick, snapshot) {
            (Some(tick), Some(snapshot)) => Some(tick.min(snapshot)),
            (tick, snapshot) => tick.or(snapshot),
        }
    }

    /// Whether something changed since the last snapshot.
    pub(super) fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// All nodes, as the data of a `progress_state`.
    pub(super) fn snapshot(&mut self, now: Instant) -> String {
        self.is_changed = false;
        self.told_at = Some(now);
        let prompt_id = frame::json(&self.prompt_id.as_ref());
        format!("{{\"prompt_id\":{prompt_id},\"nodes\":{{{}}}}}", self.written.join(","))
    }

    /// As if told, when nobody is there to be told.
    pub(super) fn skip(&mut self) {
        self.is_changed = false;
    }

    fn next_snapshot(&self) -> Option<Instant> {
        let nodes = u32::try_from(self.written.len()).unwrap_or(u32::MAX);
        let distance =
            if self.written.len() <= FEW_NODES { Duration::ZERO } else { DISTANCE_PER_NODE * nodes };
        self.told_at.map(|at| at + distance)
    }

    fn write(&mut self, identity: &Identity, state: &str, value: f64, max: f64) {
        self.is_changed = true;
        let text = frame::node_progress(identity, &self.prompt_id, state, value, max);
        self.maxima.insert(Arc::clone(&identity.node), max);
        match self.places.get(&identity.node) {
            Some(place) => self.written[*place] = text,
            None => {
                self.places.insert(Arc::clone(&identity.node), self.written.len());
                self.written.push(text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: &str) -> Arc<Identity> {
        let node: NodeId = node.into();
        Arc::new(Identity {
            node: node.clone(),
            display: node.clone(),
            parent: None,
            real: node,
            class: String::new(),
        })
    }

    fn tick(node: &str, value: f64) -> Tick {
        Tick { identity: identity(node), value, max: 100.0, is_plain: false }
    }

    #[test]
    fn the_first_and_the_last_tick_are_told_at_once_and_others_keep_a_distance() {
        let mut progress = JobProgress::new("p".into());
        let start = Instant::now();
        assert!(progress.tick(tick("1", 1.0), start));
        assert!(!progress.tick(tick("1", 2.0), start));
        assert!(!progress.tick(tick("1", 3.0), start));
        assert_eq!(progress.deadline(), Some(start + TICK_DISTANCE));
        assert!(progress.tick(tick("1", 4.0), start + TICK_DISTANCE));
        assert!(!progress.tick(tick("1", 5.0), start + TICK_DISTANCE));
        assert!(progress.tick(tick("1", 100.0), start + TICK_DISTANCE));
        assert!(progress.take_held(start).is_none());
        assert!(progress.tick(tick("2", 1.0), start + TICK_DISTANCE), "another node does not wait");
    }

    #[test]
    fn a_finished_node_has_its_maximum() {
        let mut progress = JobProgress::new("p".into());
        progress.start(&identity("1"));
        progress.tick(tick("1", 5.0), Instant::now());
        progress.finish(&identity("1"));
        progress.finish(&identity("2"));
        let data: serde_json::Value = serde_json::from_str(&progress.snapshot(Instant::now())).unwrap();
        assert_eq!(data["nodes"]["1"]["value"], 100);
        assert_eq!(data["nodes"]["1"]["state"], "finished");
        assert_eq!(data["nodes"]["2"]["max"], 1);
        assert_eq!(data["prompt_id"], "p");
    }

    #[test]
    fn many_nodes_are_told_in_few_snapshots() {
        let mut progress = JobProgress::new("p".into());
        let (mut now, mut bytes, mut snapshots) = (Instant::now(), 0, 0);
        for node in 0..5000 {
            let identity = identity(&node.to_string());
            for finished in [false, true] {
                if finished {
                    progress.finish(&identity);
                } else {
                    progress.start(&identity);
                }
                if progress.is_due(now) {
                    bytes += progress.snapshot(now).len();
                    snapshots += 1;
                }
                now += Duration::from_micros(20);
            }
        }
        assert!(progress.is_changed() && progress.deadline().is_some(), "the last word is still to come");
        assert!(snapshots < 200, "{snapshots} snapshots");
        assert!(bytes < 5000 * 2000, "{bytes} bytes");
    }
}
