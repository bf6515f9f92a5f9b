//! Vector instructions give what the portable coder gives: the same bytes, the same values, the same refusals.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

#[path = "../../codec/tests/campaign/mod.rs"]
mod campaign;

use codec::{Coded, Format, Portable, TILE, TileCoder, encode, encode_with};
use device_cpu::tile_coders;
use proptest::collection::vec;
use proptest::prelude::*;
use testkit::random_trained;

fn check(format: Format, values: &[u8]) {
    let portable = encode(format.dtype(), values).unwrap();
    for coder in tile_coders() {
        let coded = encode_with(coder, format.dtype(), values).unwrap();
        assert!(coded == portable, "{} codes {format:?} otherwise", coder.name());
        let mut decoded = vec![0; values.len()];
        Coded::parse(&coded).unwrap().decode_with(coder, &mut decoded).unwrap();
        assert!(decoded == values, "{} decodes {format:?} otherwise", coder.name());
    }
}

#[test]
fn the_portable_coder_is_the_first_of_them() {
    assert_eq!(tile_coders()[0].name(), Portable.name());
}

#[test]
fn trained_weights_of_every_type_and_odd_lengths() {
    for format in Format::ALL {
        for elements in [0, 1, 63, 64, 255, 256, 257, TILE - 1, TILE, TILE + 1, 10 * TILE + 300] {
            let values = random_trained(elements as u64, [1, elements], 1.0);
            check(format, &testkit::encode(format.dtype().into(), &values).unwrap());
        }
    }
}

/// Windows at both ends of the exponents, two that are equally good, and values far below the largest.
#[test]
fn odd_exponents() {
    for format in Format::ALL {
        let top = (1usize << format.exponent_bits()) - 1;
        for pattern in [
            vec![0],
            vec![top],
            vec![0, top],
            vec![top, 0, 0],
            vec![top; 7],
            (0..=top).collect(),
            vec![top, 3, 3, 3],
            vec![top, top - 1, top.saturating_sub(17), top.saturating_sub(17)],
            vec![0, 1, 2, 3, 4, 5, 6, 7, 8],
            vec![5, 6, 12, 13],
        ] {
            let exponents = pattern.iter().cycle().take(2 * TILE + 100);
            let values = exponents
                .flat_map(|exponent| format.filler(*exponent as u8)[..format.element_bytes()].to_vec());
            check(format, &values.collect::<Vec<u8>>());
        }
    }
}

proptest! {
    #[test]
    fn any_values(format in prop::sample::select(&Format::ALL[..]), bytes in vec(any::<u8>(), 0..9000)) {
        check(format, &bytes[..bytes.len() / format.element_bytes() * format.element_bytes()]);
    }

    #[test]
    fn exponents_of_any_spread(
        format in prop::sample::select(&Format::ALL[..]),
        seed in any::<u64>(),
        sigma in 0.1f32..8.0,
    ) {
        let values = random_trained(seed, [3, TILE], 0.0);
        let values: Vec<f32> = values.iter().map(|value| value.signum() * (sigma * value * 50.0).exp2()).collect();
        check(format, &testkit::encode(format.dtype().into(), &values).unwrap());
    }
}

#[test]
fn damaged_weights_are_refused_alike() {
    let report = campaign::run(&tile_coders(), 20_000, 2);
    assert!(report.decoded > 200 && report.errors.contains_key("tile escapes"), "{:?}", report.errors);
}
