//! Streaming from another accelerator, computing there, or some of both: against every possibility.

use meta::DeviceId;
use placement::{
    AllocationText, BetweenSteps, BlockSpec, DeviceSpec, PeerLink, Plan, PlanRequest, RemotePolicy,
    StepBlock, plan, simulate,
};

const CPU: DeviceId = DeviceId::CPU;
const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);
const MB: f64 = 1e6;
const GB: f64 = 1e9;

/// One machine and one model of equal blocks.
#[derive(Clone, Copy, Debug)]
struct Case {
    /// Bytes per second from the host, of both accelerators.
    link: f64,
    /// Of the direct link between them.
    peer: Option<f64>,
    /// How long the other accelerator computes for one second of the compute device.
    factor: f64,
    activations: f64,
    block: f64,
    /// On the compute device.
    block_s: f64,
}

/// Blocks on the compute device, on the other accelerator, and on the host.
type Split = [usize; 3];

/// Where a block is and runs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Spot {
    Compute,
    There,
    FromThere,
    FromHost,
}

impl Case {
    fn between(&self) -> f64 {
        self.peer.unwrap_or(self.link / 2.0)
    }

    fn seconds(&self, spots: &[Spot]) -> f64 {
        let hop_s = self.activations / self.between();
        let mut away = false;
        let steps: Vec<StepBlock> = spots
            .iter()
            .map(|spot| {
                let there = *spot == Spot::There;
                let hops = there != away;
                away = there;
                StepBlock {
                    compute_s: self.block_s * if there { self.factor } else { 1.0 },
                    hop_s: if hops { hop_s } else { 0.0 },
                    copy_s: match spot {
                        Spot::FromThere => Some(self.block / self.between()),
                        Spot::FromHost => Some(self.block / self.link),
                        Spot::Compute | Spot::There => None,
                    },
                    copy_slowdown: 1.0,
                    decode_s: None,
                }
            })
            .collect();
        // More slots are never slower.
        let streamed = steps.iter().filter(|step| step.copy_s.is_some()).count();
        let between = BetweenSteps { return_hop_s: if away { hop_s } else { 0.0 }, outside_s: 0.0 };
        simulate(&steps, streamed.clamp(1, 10), between).seconds_per_step
    }

    /// The shortest step of all ways to place the blocks so, with every choice of those that compute there.
    fn best(&self, split: Split) -> f64 {
        let mut best = f64::INFINITY;
        let mut spots = Vec::new();
        self.search(split, &mut spots, &mut best);
        best
    }

    fn search(&self, left: Split, spots: &mut Vec<Spot>, best: &mut f64) {
        if left == [0; 3] {
            *best = best.min(self.seconds(spots));
            return;
        }
        for (spot, from) in [(Spot::Compute, 0), (Spot::There, 1), (Spot::FromThere, 1), (Spot::FromHost, 2)]
        {
            if left[from] > 0 {
                let mut left = left;
                left[from] -= 1;
                spots.push(spot);
                self.search(left, spots, best);
                spots.pop();
            }
        }
    }

    fn plan(&self, split: Split, remote: RemotePolicy) -> Plan {
        let block = |i| BlockSpec {
            name: format!("blocks.{i}"),
            bytes: self.block as u64,
            compute_seconds: self.block_s,
            pinned: false,
        };
        let device = |id: DeviceId| DeviceSpec {
            id,
            total_bytes: 1 << 50,
            available_bytes: 1 << 50,
            link_bytes_per_s: self.link,
            compute_factor: if id == C1 { self.factor } else { 1.0 },
            reaches: self
                .peer
                .filter(|_| id == C1)
                .map(|bytes_per_s| PeerLink { device: C0, bytes_per_s })
                .into_iter()
                .collect(),
        };
        let blocks: Vec<BlockSpec> = (0..split.iter().sum()).map(block).collect();
        let mut request = PlanRequest::new(blocks, [CPU, C0, C1].map(device).to_vec(), C0);
        let bytes = |blocks: usize| blocks as u64 * self.block as u64;
        let text =
            format!("cuda:0,{}b;cuda:1,{}b;cpu,{}b", bytes(split[0]), bytes(split[1]), bytes(split[2]));
        request.allocation = AllocationText::parse(&text).unwrap_or_else(|error| panic!("{error}"));
        request.activation_bytes = self.activations as u64;
        request.remote = remote;
        let plan = plan(&request).unwrap_or_else(|error| panic!("{error}"));
        let given = [C0, C1, CPU].map(|id| plan.device(id).map_or(0, |usage| usage.weight_bytes));
        assert_eq!(given, split.map(bytes), "{plan}");
        plan
    }
}

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for link in [0.05, 0.2, 1.0, 5.0, 20.0] {
        for peer in [None, Some(0.5), Some(4.0)] {
            for factor in [1.0, 2.0, 0.5] {
                for activations in [0.1, 3.0, 28.0] {
                    for block_s in [0.002, 0.05, 1.0] {
                        cases.push(Case {
                            link: link * GB,
                            peer: peer.map(|times| times * link * GB),
                            factor,
                            activations: activations * MB,
                            block: 100.0 * MB,
                            block_s,
                        });
                    }
                }
            }
        }
    }
    cases
}

/// Compares the planner with every possibility, in one of so many cases, and returns the worst ratio.
fn worst(split: Split, every: usize) -> (f64, String) {
    let mut worst = (0.0, String::new());
    for case in cases().into_iter().step_by(every) {
        let best = case.best(split);
        let auto = case.plan(split, RemotePolicy::Auto);
        for pure in [RemotePolicy::Stream, RemotePolicy::InPlace] {
            let pure_s = case.plan(split, pure).prediction.seconds_per_step;
            let auto_s = auto.prediction.seconds_per_step;
            assert!(
                auto_s <= pure_s * 1.0001,
                "{case:?}: {auto_s} is slower than {pure:?} with {pure_s}\n{auto}"
            );
        }
        let ratio = auto.prediction.seconds_per_step / best;
        assert!(ratio >= 1.0 - 1e-6, "{case:?}: faster than possible: {ratio}\n{auto}");
        if ratio > worst.0 {
            worst = (ratio, format!("{case:?}\n{auto}"));
        }
    }
    worst
}

#[test]
fn two_accelerators_come_near_the_best_of_all_possibilities() {
    for (split, every) in [([4, 4, 0], 1), ([6, 2, 0], 1), ([2, 6, 0], 1), ([5, 5, 0], 7)] {
        let (ratio, text) = worst(split, every);
        assert!(ratio <= 1.01, "{ratio} for {split:?}: {text}");
    }
}

/// 57 blocks of 415 MB, half of them on a second card of the same speed, no direct link.
#[test]
fn a_large_model_on_two_cards_streams_or_computes_there_by_what_was_measured() {
    for (link, step_s, expected) in
        [(20.0, 74.4, Spot::FromThere), (55.0, 1.73, Spot::FromThere), (55.0, 0.124, Spot::There)]
    {
        let case = Case {
            link: link * GB,
            peer: None,
            factor: 1.0,
            activations: 28.0 * MB,
            block: 415.0 * MB,
            block_s: step_s / 57.0,
        };
        let split = [29, 28, 0];
        let [auto, stream, there] = [RemotePolicy::Auto, RemotePolicy::Stream, RemotePolicy::InPlace]
            .map(|remote| case.plan(split, remote).prediction.seconds_per_step);
        assert!(auto <= stream.min(there) * 1.0001, "{case:?}: {auto}, stream {stream}, there {there}");
        // Where copies hide, computing there costs hops and gains nothing; where they do not, it is far shorter.
        match expected {
            Spot::There => assert!(there < stream * 0.7 && auto < 0.128, "{auto}, {stream}, {there}"),
            _ => assert!(stream < there && auto < step_s * 1.001, "{auto}, {stream}, {there}"),
        }
    }
}

/// Only the ratio of the speeds counts: block times are those of the compute device.
#[test]
fn speeds_are_relative_to_the_compute_device() {
    let case = Case { link: GB, peer: None, factor: 1.0, activations: 3e6, block: 1e8, block_s: 0.05 };
    let with = |compute: f64, other: f64| {
        let plan = Case { factor: other / compute, ..case }.plan([4, 4, 0], RemotePolicy::InPlace);
        let mut request = PlanRequest::new(
            (0..8)
                .map(|i| BlockSpec {
                    name: format!("blocks.{i}"),
                    bytes: 100_000_000,
                    compute_seconds: 0.05,
                    pinned: false,
                })
                .collect(),
            [(C0, compute), (C1, other)]
                .map(|(id, compute_factor)| DeviceSpec {
                    id,
                    total_bytes: 1 << 40,
                    available_bytes: 1 << 40,
                    link_bytes_per_s: GB,
                    compute_factor,
                    reaches: Vec::new(),
                })
                .to_vec(),
            C0,
        );
        request.allocation = AllocationText::parse("cuda:0,400000000b;cuda:1,400000000b").unwrap();
        request.activation_bytes = 3_000_000;
        request.remote = RemotePolicy::InPlace;
        let same = placement::plan(&request).unwrap();
        assert_eq!(same.prediction.seconds_per_step, plan.prediction.seconds_per_step);
        // Four blocks here, four there, one hop each way.
        let expected = 4.0 * 0.05 + 4.0 * 0.05 * other / compute + 2.0 * 3e6 / (GB / 2.0);
        assert!((same.prediction.seconds_per_step - expected).abs() < 1e-9, "{same}");
    };
    with(1.0, 2.0);
    with(3.0, 1.5);
    with(2.0, 2.0);
}

#[test]
fn two_accelerators_and_the_host_come_near_the_best_of_all_possibilities() {
    for (split, every) in [([3, 2, 2], 1), ([2, 3, 2], 1), ([3, 3, 2], 5), ([4, 3, 3], 40)] {
        let (ratio, text) = worst(split, every);
        assert!(ratio <= 1.03, "{ratio} for {split:?}: {text}");
    }
}

#[test]
fn of_two_ways_that_are_as_fast_the_one_that_copies_less_is_chosen() {
    let device = |id: DeviceId| DeviceSpec {
        id,
        total_bytes: 1 << 40,
        available_bytes: 1 << 40,
        link_bytes_per_s: 55.0 * GB,
        compute_factor: if id == C1 { 1.002 } else { 1.0 },
        // So fast that streaming from the other card hides completely.
        reaches: [C0, C1].map(|device| PeerLink { device, bytes_per_s: 2000.0 * GB }).to_vec(),
    };
    let block = |i: usize| BlockSpec {
        name: format!("blocks.{i}"),
        bytes: 415_000_000,
        compute_seconds: 0.0022,
        pinned: false,
    };
    let mut request = PlanRequest::new((0..57).map(block).collect(), [CPU, C0, C1].map(device).to_vec(), C0);
    request.allocation = AllocationText::parse("cuda:0,50%;cuda:1,50%").unwrap();
    request.activation_bytes = 28_000_000;
    assert!(plan(&request).unwrap().streamed_bytes() > 0, "by the links alone streaming is a little faster");
    request.arrival_s_per_byte = 2.0 / 4800e9;
    assert_eq!(plan(&request).unwrap().streamed_bytes(), 0, "but it takes memory from computing");
}
