//! Whose turn it is on a device. Jobs that share devices work on each one after the other: while one samples on a device,
//! the next encodes its text on another. Whoever opens networks asks for all of their devices at once and has them until
//! the networks are closed. Nobody is overtaken by one who asked later for the same device, and nobody waits for a device
//! while he has another, so none waits for ever.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use meta::DeviceId;
use residency::Cancel;

use crate::{Result, Source};

/// Time between two looks at whether a job that waits is to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The turns on all devices.
#[derive(Debug, Default)]
pub(crate) struct Turns {
    line: Mutex<Line>,
    moved: Condvar,
}

/// Those who have devices and those who wait for some, in the order in which they asked.
#[derive(Debug, Default)]
struct Line {
    asked: u64,
    places: Vec<Place>,
}

#[derive(Debug)]
struct Place {
    number: u64,
    devices: BTreeSet<DeviceId>,
}

impl Line {
    /// Whether nobody who asked earlier has or wants one of its devices.
    fn is_turn_of(&self, number: u64) -> bool {
        let Some(place) = self.places.iter().position(|place| place.number == number) else { return true };
        let (earlier, own) = (&self.places[..place], &self.places[place].devices);
        earlier.iter().all(|earlier| earlier.devices.is_disjoint(own))
    }
}

/// The use of devices that nobody else has meanwhile.
#[must_use = "dropping it gives the devices to the next"]
#[derive(Debug)]
pub(crate) struct DeviceTurn<'a> {
    turns: &'a Turns,
    number: u64,
}

impl Turns {
    /// Waits until the devices are free and no earlier one wants them. The host is everybody's.
    ///
    /// # Errors
    /// The job is to end.
    pub(crate) fn take(&self, mut devices: BTreeSet<DeviceId>, cancel: &Cancel) -> Result<DeviceTurn<'_>> {
        devices.remove(&DeviceId::CPU);
        let mut line = self.line();
        line.asked += 1;
        let number = line.asked;
        line.places.push(Place { number, devices });
        // From here on, dropping it leaves the line.
        let turn = DeviceTurn { turns: self, number };
        while !line.is_turn_of(number) {
            if cancel.is_cancelled() {
                drop(line);
                drop(turn);
                return Err(device::Error::Cancelled.into());
            }
            let waited = self.moved.wait_timeout(line, LOOK_INTERVAL);
            line = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(line);
        Ok(turn)
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for DeviceTurn<'_> {
    fn drop(&mut self) {
        self.turns.line().places.retain(|place| place.number != self.number);
        self.turns.moved.notify_all();
    }
}

/// Where a network computes, and what else its loader says that it uses.
pub(crate) fn devices_of(source: &Source) -> impl Iterator<Item = DeviceId> {
    let placing = &source.placing;
    placing.allocation.allocation().devices().into_iter().chain([placing.compute])
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    fn devices(ordinals: &[u16]) -> BTreeSet<DeviceId> {
        ordinals.iter().map(|ordinal| DeviceId::sim(*ordinal)).collect()
    }

    /// Waits until so many are in the line.
    fn until(turns: &Turns, count: usize) {
        while turns.line().places.len() < count {
            std::thread::yield_now();
        }
    }

    #[test]
    fn who_asks_later_waits_and_does_not_overtake() {
        let (turns, never) = (Turns::default(), Cancel::NEVER);
        let first = turns.take(devices(&[0]), &never).unwrap();
        let beside = turns.take(devices(&[1]), &never).unwrap();
        let (done, order) = channel();
        std::thread::scope(|scope| {
            for (place, wanted) in [&[0_u16, 1][..], &[1], &[2]].into_iter().enumerate() {
                let (turns, never, done) = (&turns, &never, done.clone());
                scope.spawn(move || {
                    let turn = turns.take(devices(wanted), never).unwrap();
                    done.send(wanted).unwrap();
                    drop(turn);
                });
                until(turns, if wanted == [2] { 4 } else { 3 + place });
                if wanted == [2] {
                    assert_eq!(order.recv().unwrap(), [2], "nobody has it");
                }
            }
            // The second is free, but the one who wants both asked for it before the one who wants it alone.
            drop(beside);
            std::thread::sleep(Duration::from_millis(30));
            assert!(order.try_recv().is_err());
            drop(first);
            assert_eq!(order.recv().unwrap(), [0, 1]);
            assert_eq!(order.recv().unwrap(), [1]);
        });
        assert!(turns.line().places.is_empty());
    }

    #[test]
    fn one_who_waits_leaves_the_line_when_his_job_is_to_end() {
        let (turns, cancel) = (Turns::default(), Cancel::default());
        let first = turns.take(devices(&[0]), &Cancel::NEVER).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| turns.take(devices(&[0]), &cancel).map(drop));
            until(&turns, 2);
            cancel.cancel();
            assert!(waiting.join().unwrap().unwrap_err().is_cancelled());
        });
        drop(first);
        drop(turns.take(devices(&[0]), &cancel).unwrap());
    }

    #[test]
    fn the_host_is_everybodys() {
        let turns = Turns::default();
        let host = || turns.take([DeviceId::CPU].into(), &Cancel::NEVER).unwrap();
        let _both = (host(), host());
    }

    #[test]
    fn many_who_want_one_or_two_of_three_devices_all_come_to_their_turn_alone() {
        let (turns, users) = (Turns::default(), [const { AtomicUsize::new(0) }; 3]);
        std::thread::scope(|scope| {
            for thread in 0..8_u16 {
                let (turns, users) = (&turns, &users);
                scope.spawn(move || {
                    for round in 0..200 {
                        let wanted = [(thread + round) % 3, (thread * round) % 3];
                        let wanted: BTreeSet<u16> = wanted.into();
                        let list: Vec<u16> = wanted.iter().copied().collect();
                        let turn = turns.take(devices(&list), &Cancel::NEVER).unwrap();
                        for device in &wanted {
                            assert_eq!(users[usize::from(*device)].fetch_add(1, Ordering::SeqCst), 0);
                        }
                        std::thread::yield_now();
                        for device in &wanted {
                            users[usize::from(*device)].fetch_sub(1, Ordering::SeqCst);
                        }
                        drop(turn);
                    }
                });
            }
        });
    }
}
