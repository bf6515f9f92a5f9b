//! Brings the bytes of the devices as near to what was asked as whole blocks allow, by exchanging few blocks between
//! two devices at a time, so that blocks stay spread as they are.

use std::collections::BTreeMap;

use meta::DeviceId;

use super::layout::{Outline, Place, Rounding};
use super::problem::Problem;

/// Differences that come to less than one in so many of the model's bytes are met: nobody means them.
const MET: u64 = 1000;
/// Up to so many blocks every assignment is looked at.
const VERY_FEW_BLOCKS: usize = 9;
/// How many blocks change sides at most, each way, in one exchange.
const MOST_BLOCKS: usize = 3;
/// Up to so many blocks of a device every choice of them is looked at; of more, neighbours only.
const FEW_BLOCKS: usize = 6;
/// Each exchange brings the devices nearer, and a handful does for any model; this bounds the time for all.
const MAX_EXCHANGES: usize = 64;

/// The bytes by which the devices differ from what was asked, together.
pub(super) fn difference(problem: &Problem<'_>, outline: Outline<'_>, places: &[Place]) -> u64 {
    sides(problem, outline, places).values().map(Side::difference).sum()
}

/// Exchanges blocks until no exchange brings the devices nearer to what was asked. Activations hop no more often than
/// before.
pub(super) fn exchange(problem: &Problem<'_>, outline: Outline<'_>, places: &mut [Place]) {
    if problem.free_blocks().count() <= VERY_FEW_BLOCKS {
        return try_all(problem, outline, places);
    }
    for _ in 0..MAX_EXCHANGES {
        let balance = Balance::new(problem, outline, places);
        if balance.difference() <= problem.model_bytes / MET {
            return;
        }
        match balance.best(places) {
            Some(exchange) => exchange.carry_out(places),
            None => return,
        }
    }
}

/// Takes the nearest of all assignments; of equal ones that which changes the fewest places.
fn try_all(problem: &Problem<'_>, outline: Outline<'_>, places: &mut [Place]) {
    let balance = Balance::new(problem, outline, places);
    let blocks = (0..places.len()).filter(|block| !problem.fixed[*block]).collect();
    let key = (balance.difference(), 0);
    let mut every = Every {
        problem,
        hops: balance.hops(places),
        before: places.to_vec(),
        places: places.to_vec(),
        best: places.to_vec(),
        key,
        blocks,
        balance,
    };
    for block in &every.blocks {
        let bytes = problem.request.blocks[*block].bytes;
        if let Some(side) = every.balance.sides.get_mut(&every.before[*block].home) {
            side.given -= bytes;
        }
    }
    every.search(0, 0);
    places.copy_from_slice(&every.best);
}

/// All assignments of few blocks.
struct Every<'a> {
    problem: &'a Problem<'a>,
    balance: Balance,
    blocks: Vec<usize>,
    before: Vec<Place>,
    hops: usize,
    /// Those of the blocks up to where the search is.
    places: Vec<Place>,
    best: Vec<Place>,
    /// Of the best: the difference and how many places changed.
    key: (u64, usize),
}

impl Every<'_> {
    fn search(&mut self, at: usize, changed: usize) {
        // What a device has too much it will not lose again, and others will lack it.
        let over = self.balance.sides.values().map(|side| side.given.saturating_sub(side.asked)).sum::<u64>();
        if (2 * over, changed) >= self.key {
            return;
        }
        let Some(block) = self.blocks.get(at).copied() else {
            let key = (self.balance.difference(), changed);
            if key < self.key && self.balance.hops(&self.places) <= self.hops {
                (self.key, self.best) = (key, self.places.clone());
            }
            return;
        };
        let bytes = self.problem.request.blocks[block].bytes;
        for shelf in 0..self.balance.shelves.len() {
            let place = self.balance.shelves[shelf].place;
            let Some(side) = self.balance.sides.get_mut(&place.home) else { continue };
            let fits_slot = place.in_place || bytes <= self.balance.slot_bytes;
            if side.given + bytes > side.most || !fits_slot {
                continue;
            }
            side.given += bytes;
            self.places[block] = place;
            self.search(at + 1, changed + usize::from(place != self.before[block]));
            if let Some(side) = self.balance.sides.get_mut(&place.home) {
                side.given -= bytes;
            }
        }
    }
}

/// One device: what it was asked to hold, what it holds, and what it may hold.
struct Side {
    asked: u64,
    given: u64,
    most: u64,
}

impl Side {
    fn difference(&self) -> u64 {
        self.asked.abs_diff(self.given)
    }

    /// The difference if it gives and takes this much; none if it has no room for that.
    fn after(&self, gives: u64, takes: u64) -> Option<u64> {
        let given = self.given - gives + takes;
        // What is too much already may become less.
        (given <= self.most.max(self.given)).then(|| self.asked.abs_diff(given))
    }
}

fn sides(problem: &Problem<'_>, outline: Outline<'_>, places: &[Place]) -> BTreeMap<DeviceId, Side> {
    let listed = outline.targets.shares.iter().map(|(device, _)| *device);
    let side = |device: DeviceId| {
        let asked = outline.targets.share(device);
        let most = match (device == problem.compute(), outline.rounding) {
            (true, Rounding::Nearest) => u64::MAX,
            (true, Rounding::Down) => asked,
            (false, _) => problem.room(device, outline.ways),
        };
        (device, Side { asked, given: 0, most })
    };
    let mut sides: BTreeMap<DeviceId, Side> = listed.chain([problem.compute()]).map(side).collect();
    for (block, place) in problem.request.blocks.iter().zip(places) {
        if let Some(side) = sides.get_mut(&place.home) {
            side.given += block.bytes;
        }
    }
    sides
}

/// Some blocks of one place, in order of use.
struct Bundle {
    blocks: Vec<usize>,
    bytes: u64,
    /// The largest block.
    largest: u64,
}

/// What comes back where blocks move one way only.
const NOTHING: Bundle = Bundle { blocks: Vec::new(), bytes: 0, largest: 0 };

impl Bundle {
    fn middle(&self) -> usize {
        self.blocks.iter().sum::<usize>() / self.blocks.len().max(1)
    }

    /// How far the blocks of two bundles are from each other, and how many they are.
    fn distance(&self, other: &Bundle) -> usize {
        let apart = if other.blocks.is_empty() { 0 } else { self.middle().abs_diff(other.middle()) };
        apart + self.blocks.len() + other.blocks.len()
    }
}

/// The bundles of one place.
struct Shelf {
    place: Place,
    bundles: Vec<Bundle>,
}

/// A bundle that changes sides, and the one that comes back for it, if any.
struct Exchange {
    from: Place,
    to: Place,
    gives: Vec<usize>,
    takes: Vec<usize>,
}

impl Exchange {
    fn new(from: (Place, &Bundle), to: (Place, &Bundle)) -> Exchange {
        Exchange { from: from.0, to: to.0, gives: from.1.blocks.clone(), takes: to.1.blocks.clone() }
    }

    fn carry_out(&self, places: &mut [Place]) {
        self.gives.iter().for_each(|block| places[*block] = self.to);
        self.takes.iter().for_each(|block| places[*block] = self.from);
    }
}

/// Everything that can change sides.
struct Balance {
    compute: DeviceId,
    slot_bytes: u64,
    sides: BTreeMap<DeviceId, Side>,
    shelves: Vec<Shelf>,
}

impl Balance {
    fn new(problem: &Problem<'_>, outline: Outline<'_>, places: &[Place]) -> Balance {
        let compute = problem.compute();
        let sides = sides(problem, outline, places);
        let mut lists: Vec<(Place, Vec<usize>)> = Vec::new();
        for (block, place) in places.iter().enumerate().filter(|(block, _)| !problem.fixed[*block]) {
            match lists.iter_mut().find(|(known, _)| known == place) {
                Some((_, list)) => list.push(block),
                None => lists.push((*place, vec![block])),
            }
        }
        // A device that has nothing yet may get something.
        for home in sides.keys().copied() {
            if lists.iter().all(|(place, _)| place.home != home) {
                let in_place = home == compute || outline.ways.contains_key(&home);
                lists.push((Place { home, in_place }, Vec::new()));
            }
        }
        let bundle = |blocks: Vec<usize>| {
            let sizes = blocks.iter().map(|block| problem.request.blocks[*block].bytes);
            let (bytes, largest) = (sizes.clone().sum(), sizes.max().unwrap_or(0));
            Bundle { blocks, bytes, largest }
        };
        let shelf = |(place, list): (Place, Vec<usize>)| Shelf {
            place,
            bundles: choices(&list).into_iter().map(bundle).collect(),
        };
        let shelves = lists.into_iter().map(shelf).collect();
        Balance { compute, slot_bytes: outline.slot_bytes, sides, shelves }
    }

    fn difference(&self) -> u64 {
        self.sides.values().map(Side::difference).sum()
    }

    /// The exchange after which the devices differ least from what was asked; of equal ones the one whose blocks are
    /// nearest to each other, so that they stay spread. None if none brings the devices nearer.
    fn best(&self, places: &[Place]) -> Option<Exchange> {
        let hops = self.hops(places);
        let mut best = None;
        let mut best_key = (self.difference(), 0);
        for (at, from) in self.shelves.iter().enumerate() {
            for (other, to) in self.shelves.iter().enumerate() {
                let sides = (self.sides.get(&from.place.home), self.sides.get(&to.place.home));
                let (Some(here), Some(there)) = sides else { continue };
                if from.place.home == to.place.home {
                    continue;
                }
                let others = self.difference() - here.difference() - there.difference();
                // An exchange of two bundles is the same from either side and looked at once.
                let back = if at < other { to.bundles.as_slice() } else { &[] };
                for gives in from.bundles.iter().filter(|bundle| self.may_go(bundle, to.place)) {
                    for takes in std::iter::once(&NOTHING).chain(back) {
                        let after =
                            (here.after(gives.bytes, takes.bytes), there.after(takes.bytes, gives.bytes));
                        let (Some(here), Some(there)) = after else { continue };
                        let key = (others + here + there, gives.distance(takes));
                        if key >= best_key || !self.may_go(takes, from.place) {
                            continue;
                        }
                        let exchange = Exchange::new((from.place, gives), (to.place, takes));
                        if self.hops_after(&exchange, places) <= hops {
                            (best, best_key) = (Some(exchange), key);
                        }
                    }
                }
            }
        }
        best
    }

    /// Whether the blocks may live there: those that travel must fit a slot.
    fn may_go(&self, bundle: &Bundle, place: Place) -> bool {
        place.in_place || bundle.largest <= self.slot_bytes
    }

    fn hops_after(&self, exchange: &Exchange, places: &[Place]) -> usize {
        let computes_elsewhere = |place: Place| place.in_place && place.home != self.compute;
        if !computes_elsewhere(exchange.from) && !computes_elsewhere(exchange.to) {
            return 0;
        }
        let mut after = places.to_vec();
        exchange.carry_out(&mut after);
        self.hops(&after)
    }

    /// How often activations move to another device in a step.
    fn hops(&self, places: &[Place]) -> usize {
        let runs_on = |place: &Place| if place.in_place { place.home } else { self.compute };
        let mut on = self.compute;
        let mut hops = 0;
        for next in places.iter().map(runs_on).chain([self.compute]) {
            hops += usize::from(next != on);
            on = next;
        }
        hops
    }
}

/// What can change sides at once of these blocks.
fn choices(blocks: &[usize]) -> Vec<Vec<usize>> {
    if blocks.len() > FEW_BLOCKS {
        return (1..=MOST_BLOCKS).flat_map(|count| blocks.windows(count).map(<[usize]>::to_vec)).collect();
    }
    let mut all: Vec<Vec<usize>> = vec![Vec::new()];
    for block in blocks {
        let smaller = all.iter().filter(|chosen| chosen.len() < MOST_BLOCKS);
        let with: Vec<Vec<usize>> = smaller.map(|chosen| [chosen.as_slice(), &[*block]].concat()).collect();
        all.extend(with);
    }
    all.retain(|chosen| !chosen.is_empty());
    all
}
