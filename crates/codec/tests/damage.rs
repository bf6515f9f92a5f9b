//! Damaged coded weights are refused: no panic, no wrong values.
#![allow(clippy::unwrap_used, reason = "a test that cannot unwrap fails, as it should")]

mod campaign;

use codec::{Coded, Damage, Error, HEADER_BYTES, Layout, Portable, encode};
use meta::DType;
use testkit::random_trained;

const INPUTS: u64 = 20_000;

#[test]
fn undamaged_weights_are_decoded() {
    for seed in campaign::seeds() {
        campaign::exercise(&[&Portable], &seed).unwrap();
    }
}

#[test]
fn damaged_weights_are_decoded_or_refused() {
    let report = campaign::run(&[&Portable], INPUTS, 1);
    // A campaign that never gets past the first check, or never fails, tests nothing.
    assert!(report.decoded > INPUTS / 100, "{} decoded", report.decoded);
    for kind in ["mark", "header", "truncated", "tile entry", "tile place", "tile escapes", "checksum"] {
        assert!(report.errors.contains_key(kind), "{kind}: {:?}", report.errors);
    }
}

/// Coded weights of three tiles, and their layout.
fn coded() -> (Vec<u8>, Layout) {
    let values = testkit::encode(meta::Encoding::BF16, &random_trained(1, [3, 2048], 0.5)).unwrap();
    (encode(DType::BF16, &values).unwrap(), Layout::new(DType::BF16, 3 * 2048).unwrap())
}

fn decode(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let coded = Coded::parse(bytes)?;
    let mut values = vec![0; coded.layout().original_bytes()];
    coded.decode(&mut values).map(|()| values)
}

#[test]
fn each_damage_has_its_own_error() {
    let (good, layout) = coded();
    decode(&good).unwrap();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        decode(&bytes).unwrap_err()
    };
    assert_eq!(with(0, b'x'), Error::Mark);
    assert_eq!(with(8, 2), Error::Header { field: "the version", got: 2 });
    assert_eq!(with(10, 9), Error::Header { field: "the element type", got: 9 });
    assert_eq!(with(HEADER_BYTES - 1, 1), Error::Header { field: "a field that must be 0", got: 1 << 56 });
    assert!(matches!(with(23, 1), Error::TooLarge { .. }));
    assert!(matches!(with(31, 1), Error::Truncated { .. }));
    assert!(matches!(with(32, good[32] ^ 1), Error::Checksum { .. }));
    let table = layout.table().start;
    assert_eq!(with(table, 250), Error::Tile { tile: 0, damage: Damage::Entry }, "a base above all windows");
    assert_eq!(with(table + 1, 2), Error::Tile { tile: 0, damage: Damage::Entry }, "neither coded nor raw");
    assert_eq!(with(table + 15, 1), Error::Tile { tile: 1, damage: Damage::Place });
    let escapes = u16::from_le_bytes([good[table + 2], good[table + 3]]);
    assert!(escapes > 0);
    assert_eq!(
        with(table + 2, good[table + 2] ^ 1),
        Error::Tile { tile: 0, damage: Damage::Escapes },
        "another number of escapes"
    );
    let ranks = layout.variable_start();
    assert_eq!(with(ranks + 2, good[ranks + 2] ^ 1), Error::Tile { tile: 0, damage: Damage::Escapes });
    assert!(matches!(with(layout.fixed().start, !good[layout.fixed().start]), Error::Checksum { .. }));
    assert_eq!(
        decode(&good[..good.len() - 1]).unwrap_err(),
        Error::Truncated { wanted: good.len() as u64, got: good.len() as u64 - 1 }
    );
    assert_eq!(decode(&good[..10]).unwrap_err(), Error::Truncated { wanted: 64, got: 10 });
}

#[test]
fn a_header_cannot_promise_more_than_there_is() {
    let (mut bytes, _) = coded();
    for elements in [1u64 << 20, 1 << 30, 1 << 34] {
        bytes[16..24].copy_from_slice(&elements.to_le_bytes());
        let got = bytes.len() as u64;
        assert_eq!(
            Coded::parse(&bytes).unwrap_err(),
            Error::Header { field: "the number of coded bytes", got }
        );
    }
}
