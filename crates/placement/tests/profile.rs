//! The machine profile: what is measured, interpolated, learnt and kept.

use meta::{DType, DeviceId};
use placement::{DeviceProfile, MachineProfile, OpCost, Outside, SpeedPoint, WorkKind};
use proptest::prelude::*;

const C0: DeviceId = DeviceId::cuda(0);
const C1: DeviceId = DeviceId::cuda(1);

fn point(kind: WorkKind, dtype: DType, flops: f64, flops_per_s: f64) -> SpeedPoint {
    SpeedPoint { kind, dtype, flops, flops_per_s }
}

fn product(dtype: DType, flops: u64) -> OpCost {
    OpCost { kind: WorkKind::Product, dtype, flops, bytes: 0 }
}

/// A card with products from 1 to 100 GFLOP, and attention at one size.
fn card() -> DeviceProfile {
    let mut card = DeviceProfile::new("a card, driver 1");
    card.speeds = vec![
        point(WorkKind::Product, DType::BF16, 1e11, 800e12),
        point(WorkKind::Product, DType::BF16, 1e9, 200e12),
        point(WorkKind::Product, DType::F32, 1e10, 50e12),
        point(WorkKind::Attention, DType::BF16, 1e11, 600e12),
    ];
    card
}

#[track_caller]
fn close(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-9 * want.abs(), "{got} is not {want}");
}

#[test]
fn speed_is_interpolated_over_the_logarithm_of_the_size() {
    let card = card();
    let speed = |flops: u64| flops as f64 / card.seconds(&product(DType::BF16, flops)).unwrap();
    close(speed(1_000_000_000), 200e12);
    close(speed(100_000_000_000), 800e12);
    // Half way between 1e9 and 1e11 is 1e10, and half way between 200 and 800 is 400.
    close(speed(10_000_000_000), 400e12);
    // Beyond the points it stays.
    close(speed(1_000), 200e12);
    close(speed(10_000_000_000_000), 800e12);
}

#[test]
fn the_longer_of_arithmetic_and_traffic_counts_and_the_launch_is_added() {
    let mut card = card();
    card.memory_bytes_per_s = Some(4e12);
    card.launch_s = Some(5e-6);
    let cost = OpCost { bytes: 1_000_000, ..product(DType::BF16, 100_000_000_000) };
    close(card.seconds(&cost).unwrap(), 1e11 / 800e12 + 5e-6);
    let cost = OpCost { bytes: 4_000_000_000, ..cost };
    close(card.seconds(&cost).unwrap(), 1e-3 + 5e-6);
    let pass = OpCost { kind: WorkKind::Memory, dtype: DType::BF16, flops: 10, bytes: 4_000_000_000 };
    close(card.seconds(&pass).unwrap(), 1e-3 + 5e-6);
}

#[test]
fn the_nearest_kind_and_element_type_stand_in() {
    let card = card();
    let speed = |kind: WorkKind, dtype: DType| {
        let cost = OpCost { kind, dtype, flops: 100_000_000_000, bytes: 0 };
        1e11 / card.seconds(&cost).unwrap()
    };
    close(speed(WorkKind::Convolution, DType::BF16), 800e12);
    close(speed(WorkKind::Product, DType::F16), 800e12);
    close(speed(WorkKind::Attention, DType::F16), 600e12);
    // In f32 the product in f32 is nearer than attention in bf16.
    close(speed(WorkKind::Attention, DType::F32), 50e12);
    close(speed(WorkKind::Product, DType::F64), 50e12);
}

#[test]
fn what_was_not_measured_is_not_known() {
    let nothing = DeviceProfile::new("a card");
    assert_eq!(nothing.seconds(&product(DType::BF16, 1000)), None);
    let pass = OpCost { kind: WorkKind::Memory, dtype: DType::F32, flops: 0, bytes: 1000 };
    assert_eq!(nothing.seconds(&pass), None);
    // Products say nothing about passes over memory, and the other way round.
    assert_eq!(card().seconds(&pass), None);
    let memory = DeviceProfile { memory_bytes_per_s: Some(1e12), ..DeviceProfile::default() };
    assert_eq!(memory.seconds(&product(DType::BF16, 1000)), None);
    assert_eq!(memory.seconds(&pass), Some(1e-9));
    // Numbers that no measurement gives, as in a damaged file, are as if not there.
    let mut broken = card();
    broken.speeds = vec![point(WorkKind::Product, DType::BF16, 0.0, f64::NAN)];
    broken.memory_bytes_per_s = Some(-1.0);
    broken.launch_s = Some(f64::NAN);
    assert_eq!(broken.seconds(&product(DType::BF16, 1000)), None);
}

#[test]
fn the_first_measurement_counts_fully_and_an_outlier_little() {
    let mut card = card();
    assert_eq!(card.correction("flux", ""), 1.0);
    card.learn("flux", 0.1, 0.13);
    close(card.correction("flux", ""), 1.3);
    for _ in 0..5 {
        card.learn("flux", 0.1, 0.13);
    }
    card.learn("flux", 0.1, 100.0);
    let disturbed = card.correction("flux", "");
    assert!(disturbed > 1.3 && disturbed < 1.3 * 1.2, "{disturbed}");
    for _ in 0..10 {
        card.learn("flux", 0.1, 0.13);
    }
    let healed = card.correction("flux", "");
    assert!((healed / 1.3 - 1.0).abs() < 0.02, "{healed}");
    // A lasting change is believed in the end.
    for _ in 0..40 {
        card.learn("flux", 0.1, 0.9);
    }
    let changed = card.correction("flux", "");
    assert!((changed / 9.0 - 1.0).abs() < 0.02, "{changed}");
    assert_eq!(card.learnt["flux"].samples, 57);
}

#[test]
fn a_cold_first_step_is_forgotten_at_once() {
    let mut card = card();
    card.learn("flux", 0.1, 8.0);
    card.learn("flux", 0.1, 0.13);
    close(card.correction("flux", ""), 1.3);
}

#[test]
fn what_is_outside_of_the_blocks_is_known_by_workload_and_by_whether_weights_are_copied() {
    let mut card = card();
    card.learn_outside("flux", false, 0.5);
    assert_eq!(card.outside("flux"), Outside::default(), "a workload that was never measured");
    card.learn("flux", 0.1, 0.13);
    card.learn_outside("flux", true, 0.02);
    // One kind stands in for the other as long as that was not measured.
    assert_eq!(card.outside("flux"), Outside { resident_s: 0.02, streaming_s: 0.02 });
    card.learn_outside("flux", false, 0.004);
    assert_eq!(card.outside("flux"), Outside { resident_s: 0.004, streaming_s: 0.02 });
    // A shorter one replaces the first, a longer one moves it a little.
    card.learn("flux", 0.1, 0.13);
    card.learn_outside("flux", true, 0.01);
    assert_eq!(card.outside("flux").streaming_s, 0.01);
    card.learn_outside("flux", true, 0.03);
    close(card.outside("flux").streaming_s, 0.015);
    assert_eq!(card.outside("flux").resident_s, 0.004);
    assert_eq!(card.outside("wan"), Outside::default());
    // What else is learnt leaves it as it is.
    card.learn("flux", 0.1, 0.2);
    close(card.outside("flux").streaming_s, 0.015);
    card.learn_outside("flux", true, f64::NAN);
    close(card.outside("flux").streaming_s, 0.015);
}

#[test]
fn decoding_is_learnt_from_what_is_large_enough() {
    let mut card = card();
    card.learn_decoding(1000, 1.0);
    assert_eq!(card.decode_bytes_per_s, None);
    card.learn_decoding(100 << 20, 0.1);
    close(card.decode_bytes_per_s.unwrap(), f64::from(1000 << 20));
    card.learn_decoding(100 << 20, 0.05);
    let faster = card.decode_bytes_per_s.unwrap() / f64::from(1000 << 20);
    assert!(faster > 1.1 && faster < 1.3, "{faster}");
}

#[test]
fn nonsense_is_not_learnt() {
    let mut card = card();
    for (predicted, measured) in
        [(0.0, 1.0), (1.0, 0.0), (-1.0, -1.0), (f64::NAN, 1.0), (1.0, f64::INFINITY), (1e-300, 1e300)]
    {
        card.learn("flux", predicted, measured);
    }
    assert!(card.learnt.is_empty(), "{:?}", card.learnt);
}

#[test]
fn another_workload_takes_the_median_of_the_known_ones() {
    let mut card = card();
    card.learn("a", 1.0, 1.0);
    close(card.correction("new", ""), 1.0);
    card.learn("b", 1.0, 4.0);
    close(card.correction("new", ""), 2.0);
    card.learn("c", 1.0, 100.0);
    close(card.correction("new", ""), 4.0);
    close(card.correction("c", ""), 100.0);
}

#[test]
fn links_are_learnt_from_copies_that_are_large_enough() {
    let mut profile = MachineProfile::default();
    assert_eq!(profile.link(C0), None);
    let entry = profile.device_mut(C0, "a card");
    entry.learn_link(1000, 1e-9);
    entry.learn_link(1 << 30, 0.0);
    assert_eq!(entry.link_bytes_per_s, None);
    entry.learn_link(1 << 30, (1u64 << 30) as f64 / 50e9);
    assert_eq!(profile.link(C0), Some(50e9));
    let entry = profile.device_mut(C0, "a card");
    entry.learn_link(1 << 30, 1000.0);
    let link = profile.link(C0).unwrap();
    assert!(link < 50e9 && link > 40e9, "{link}");
}

#[test]
fn peers_are_learnt_each_way_and_stand_in_for_each_other() {
    let mut profile = MachineProfile::default();
    assert_eq!(profile.peer(C0, C1), None);
    profile.learn_peer(C0, C1, 100, 1e-9);
    assert_eq!(profile.peers, []);
    profile.learn_peer(C0, C1, 1 << 30, (1u64 << 30) as f64 / 300e9);
    assert_eq!((profile.peer(C0, C1), profile.peer(C1, C0)), (Some(300e9), Some(300e9)));
    profile.learn_peer(C1, C0, 1 << 30, (1u64 << 30) as f64 / 100e9);
    assert_eq!((profile.peer(C0, C1), profile.peer(C1, C0)), (Some(300e9), Some(100e9)));
}

#[test]
fn another_card_in_the_same_place_starts_afresh() {
    let mut profile = MachineProfile::default();
    profile.device_mut(C0, "old").link_bytes_per_s = Some(1e9);
    profile.device_mut(C1, "other").link_bytes_per_s = Some(2e9);
    profile.learn_peer(C0, C1, 1 << 30, 1.0);
    assert_eq!(profile.device_mut(C0, "old").link_bytes_per_s, Some(1e9));
    assert_eq!(*profile.device_mut(C0, "new"), DeviceProfile::new("new"));
    assert_eq!((profile.link(C0), profile.link(C1), profile.peer(C0, C1)), (None, Some(2e9), None));
}

#[test]
fn a_profile_survives_being_kept() {
    let mut profile = MachineProfile::default();
    *profile.device_mut(C0, "a card, driver 1") = card();
    profile.device_mut(C0, "a card, driver 1").learn("flux", 0.1, 0.13);
    profile.device_mut(DeviceId::CPU, "a processor").memory_bytes_per_s = Some(1.5e10);
    profile.learn_peer(C0, C1, 1 << 30, 0.01);
    let text = serde_json::to_string_pretty(&profile).unwrap();
    assert!(
        text.contains("\"bf16\"") && text.contains("\"product\"") && text.contains("\"cuda:0\""),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<MachineProfile>(&text).unwrap(), profile);
    // A file of an older program lacks what it did not know.
    let old: MachineProfile = serde_json::from_str(r#"{"devices":{"cpu":{"identity":"p"}}}"#).unwrap();
    assert_eq!(old.devices["cpu"], DeviceProfile::new("p"));
    let bad = text.replace("\"bf16\"", "\"bf17\"");
    let error = serde_json::from_str::<MachineProfile>(&bad).unwrap_err();
    assert!(error.to_string().contains("'bf17' is not an element type"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn learning_ends_near_what_is_measured(first in 0.01..100.0f64, then in 0.01..100.0f64, noise in 0.0..0.1f64) {
        let mut card = DeviceProfile::new("a card");
        card.learn("w", 1.0, first);
        for i in 0..120 {
            card.learn("w", 1.0, then * (1.0 + if i % 2 == 0 { noise } else { -noise }));
        }
        let learnt = card.correction("w", "") / then;
        prop_assert!((learnt - 1.0).abs() < 0.15, "{}", learnt);
    }

    #[test]
    fn more_work_never_takes_less_time_where_speed_does_not_jump(
        small in 1u64..1_000_000_000_000,
        more in 1u64..1_000_000_000_000,
        dtype in prop_oneof![Just(DType::BF16), Just(DType::F32), Just(DType::F8E4M3)],
    ) {
        let card = card();
        let seconds = |flops| card.seconds(&product(dtype, flops));
        prop_assert!(seconds(small + more) >= seconds(small));
    }
}
