//! The choice on small scenes, and over whole days of simulated time.

use super::*;

/// Bytes of every model; seats load one in `LOAD_S`.
const SIZE: u64 = 1000;
const LOAD_S: f64 = 3.0;
const JOB_S: f64 = 1.0;

fn seat(held: &[ModelNumber], free_in_s: f64) -> Seat {
    Seat {
        held: held.to_vec(),
        lacking: Vec::new(),
        free_in_s,
        load_bytes_per_s: SIZE as f64 / LOAD_S,
        capacity_bytes: SIZE,
    }
}

fn job(model: ModelNumber, age_s: f64, promise_s: f64) -> Waiting {
    Waiting { models: vec![model], age_s, promise_s, seconds: JOB_S }
}

fn scene(seats: Vec<Seat>, jobs: Vec<Waiting>) -> Scene {
    Scene { sizes: vec![SIZE; 4], seats, jobs, grace_s: 0.1 }
}

fn chosen(scene: &Scene) -> Option<(usize, Reason)> {
    scene.choose(0).map(|choice| (choice.job, choice.reason))
}

#[test]
fn a_worker_takes_what_it_holds_before_what_it_would_load() {
    let jobs = vec![job(1, 1.0, 20.0), job(0, 1.0, 20.0)];
    let scene = scene(vec![seat(&[0], 0.0), seat(&[2], 5.0)], jobs);
    assert_eq!(chosen(&scene), Some((1, Reason::Held)));
}

#[test]
fn what_came_first_is_not_passed_over_for_longer_than_twice_its_wait() {
    let jobs = vec![job(1, 9.0, 6.5), job(0, 1.0, 20.0)];
    let scene = scene(vec![seat(&[0], 0.0), seat(&[2], 50.0)], jobs);
    // It is 9 s old, loading takes 3 s and may begin within 13 s: another job of 1 s may go before it, a second may not.
    assert_eq!(chosen(&scene), Some((1, Reason::Held)));
    let later = Scene { jobs: vec![job(1, 10.0, 6.5), job(0, 2.0, 20.0)], ..scene };
    assert_eq!(chosen(&later), Some((0, Reason::HeldNowhere)));
}

#[test]
fn a_job_is_left_to_who_holds_its_model_unless_loading_is_sooner() {
    let jobs = vec![job(1, 0.0, 3.0)];
    let busy = |free_in_s: f64| scene(vec![seat(&[0], 0.0), seat(&[1], free_in_s)], jobs.clone());
    assert_eq!(chosen(&busy(2.0)), None);
    assert_eq!(chosen(&busy(4.0)), Some((0, Reason::LoadingIsSooner)));
    // The holder should have taken it long ago: it hangs.
    let old = Scene { jobs: vec![job(1, 9.5, 3.0)], ..busy(0.0) };
    assert_eq!(chosen(&old), Some((0, Reason::Due)));
}

#[test]
fn a_job_goes_to_a_machine_that_has_its_file() {
    let lacking = Seat { lacking: vec![1], ..seat(&[0], 0.0) };
    let with = scene(vec![lacking.clone(), seat(&[], 50.0)], vec![job(1, 99.0, 1.0)]);
    assert_eq!(chosen(&with), None, "the other has it, late as that is");
    let without = Scene { seats: vec![lacking.clone(), lacking], ..with };
    assert_eq!(chosen(&without), Some((0, Reason::HeldNowhere)), "it fails and says why");
}

#[test]
fn who_lacks_a_small_part_holds_the_rest() {
    let sizes = vec![SIZE, SIZE / 20];
    let both = Waiting { models: vec![0, 1], ..job(0, 0.0, 3.0) };
    let scene = |held: &[ModelNumber], other: &[ModelNumber]| Scene {
        sizes: sizes.clone(),
        ..scene(vec![seat(held, 0.0), seat(other, 0.0)], vec![both.clone()])
    };
    assert_eq!(chosen(&scene(&[0], &[])), Some((0, Reason::Held)));
    assert_eq!(chosen(&scene(&[1], &[0])), None, "the other has most of it");
}

#[test]
fn first_come_waits_count_loading() {
    let jobs = vec![job(0, 0.0, 0.0), job(1, 0.0, 0.0), job(0, 0.0, 0.0)];
    let scene = scene(vec![seat(&[0], 0.0), seat(&[], 1.5)], jobs);
    // The first at once; the second by the first worker, which is free at 1 and loads; the third loads at 1.5.
    assert_eq!(scene.first_come_s(), [0.0, 1.0 + LOAD_S, 1.5 + LOAD_S]);
}

#[test]
fn models_stay_together_where_they_fit() {
    let mut seat = Seat { capacity_bytes: 2 * SIZE, ..seat(&[0], 0.0) };
    seat.hold(&[1], &[SIZE; 4]);
    assert_eq!(seat.held, [0, 1]);
    seat.hold(&[2], &[SIZE; 4]);
    assert_eq!(seat.held, [2]);
}

/// Numbers from 0 to 1 that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A day's jobs: when each came, and its model.
fn day(seed: u64, jobs: usize, jobs_per_s: f64) -> Vec<(f64, ModelNumber)> {
    let mut dice = Dice(seed);
    let _first_are_alike = (0..20).map(|_| dice.roll()).sum::<f64>();
    let mut day: Vec<(f64, ModelNumber)> =
        (0..jobs).map(|_| (dice.roll() * jobs as f64 / jobs_per_s, (dice.roll() * 4.0) as usize)).collect();
    day.sort_by(|a, b| a.0.total_cmp(&b.0));
    day
}

struct Served {
    loads: usize,
    /// Until its own work began, by job.
    waits: Vec<f64>,
    promises: Vec<f64>,
}

/// Two workers that can each hold one of four models serve a day.
fn serve(day: &[(f64, ModelNumber)], is_first_come: bool) -> Served {
    let mut seats = [seat(&[], 0.0), seat(&[], 0.0)];
    let (mut waiting, mut next, mut now) = (Vec::<usize>::new(), 0, 0.0_f64);
    let mut served = Served { loads: 0, waits: vec![0.0; day.len()], promises: vec![0.0; day.len()] };
    let look = |now: f64, waiting: &[usize], seats: &[Seat], promises: &[f64]| {
        let jobs = waiting.iter().map(|at| job(day[*at].1, now - day[*at].0, promises[*at])).collect();
        let seat = |seat: &Seat| Seat { free_in_s: (seat.free_in_s - now).max(0.0), ..seat.clone() };
        Scene { grace_s: 1e-6, ..scene(seats.iter().map(seat).collect(), jobs) }
    };
    while next < day.len() || !waiting.is_empty() {
        while next < day.len() && day[next].0 <= now {
            waiting.push(next);
            let scene = look(now, &waiting, &seats, &served.promises);
            served.promises[next] = *scene.first_come_s().last().unwrap();
            next += 1;
        }
        for own in 0..seats.len() {
            if seats[own].free_in_s > now || waiting.is_empty() {
                continue;
            }
            let mut scene = look(now, &waiting, &seats, &served.promises);
            scene.seats.swap(0, own);
            let Some(at) = (if is_first_come { Some(0) } else { scene.choose(0).map(|choice| choice.job) })
            else {
                continue;
            };
            let id = waiting.remove(at);
            let load_s = scene.load_s(0, at);
            served.loads += usize::from(load_s > 0.0);
            served.waits[id] = now + load_s - day[id].0;
            seats[own].free_in_s = now + load_s + JOB_S;
            seats[own].hold(&[day[id].1], &[SIZE; 4]);
        }
        let frees = seats.iter().map(|seat| seat.free_in_s).filter(|free| *free > now);
        let comes = day.get(next).map(|(at, _)| *at);
        now = frees.chain(comes).fold(f64::INFINITY, f64::min);
    }
    served
}

/// More comes than could be served in the order of coming.
#[test]
fn busy_days_need_few_loads_and_nobody_waits_twice_as_long() {
    for seed in 1..=20 {
        let day = day(seed, 400, 1.4);
        let (plain, kept) = (serve(&day, true), serve(&day, false));
        let share = kept.loads as f64 / plain.loads as f64;
        assert!(share <= 0.3, "day {seed}: {} loads for {}", kept.loads, plain.loads);
        for (at, (wait, plain)) in kept.waits.iter().zip(&plain.waits).enumerate() {
            assert!(*wait <= 2.0 * plain + 1e-3, "day {seed}, job {at}: {wait} s, first-come {plain} s");
        }
    }
}

#[test]
fn promises_hold_on_quiet_days_and_on_busy_ones() {
    for (seed, jobs_per_s) in [(1, 0.3), (2, 0.5), (3, 0.6), (4, 0.8), (5, 1.0), (6, 1.6), (7, 1000.0)] {
        let day = day(seed, 400, jobs_per_s);
        let (plain, kept) = (serve(&day, true), serve(&day, false));
        assert!(kept.loads < plain.loads);
        let mean = |waits: &[f64]| waits.iter().sum::<f64>() / waits.len() as f64;
        assert!(mean(&kept.waits) < mean(&plain.waits));
        for (at, (wait, promise)) in kept.waits.iter().zip(&kept.promises).enumerate() {
            assert!(*wait <= 2.0 * promise + 1e-3, "day {seed}, job {at}: {wait} s, promised {promise} s");
        }
    }
}
