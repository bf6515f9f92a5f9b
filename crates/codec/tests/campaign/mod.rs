//! A fuzzing campaign without tools: coded weights are damaged at random, with some knowledge of their structure, and
//! decoded by several coders, which must agree. Nothing may panic.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "each binary uses a part of this")]

use std::collections::BTreeMap;
use std::ops::Range;

use codec::{Coded, Damage, Error, Format, HEADER_BYTES, TILE, TileCoder, encode};
use testkit::{Random, random_bytes, random_trained};

/// What a campaign found.
#[derive(Default)]
pub struct Report {
    pub decoded: u64,
    /// How often each kind of error came up.
    pub errors: BTreeMap<&'static str, u64>,
}

/// Small coded weights of every type: trained-like ones, some that fill no group, and raw tiles.
pub fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for format in Format::ALL {
        for elements in [0, 1, 300, TILE, TILE + 257] {
            let values = random_trained(elements as u64, [1, elements], 1.0);
            let trained = testkit::encode(format.dtype().into(), &values).unwrap();
            seeds.push(encode(format.dtype(), &trained).unwrap());
        }
        let raw = random_bytes(7, 600 * format.element_bytes());
        seeds.push(encode(format.dtype(), &raw).unwrap());
    }
    seeds
}

/// Decodes `inputs` damaged tensors. Panics, naming the input's number and seed, where coders do not agree.
pub fn run(coders: &[&dyn TileCoder], inputs: u64, seed: u64) -> Report {
    run_part(coders, 0..inputs, seed)
}

/// The same by all processors.
pub fn run_by_all(coders: &[&dyn TileCoder], inputs: u64, seed: u64) -> Report {
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get() as u64);
    let part = |at: u64| inputs * at / threads..inputs * (at + 1) / threads;
    std::thread::scope(|scope| {
        let parts: Vec<_> =
            (0..threads).map(|at| scope.spawn(move || run_part(coders, part(at), seed))).collect();
        let mut report = Report::default();
        for part in parts {
            let Report { decoded, errors } = part.join().unwrap();
            report.decoded += decoded;
            errors.into_iter().for_each(|(kind, count)| *report.errors.entry(kind).or_default() += count);
        }
        report
    })
}

fn run_part(coders: &[&dyn TileCoder], numbers: Range<u64>, seed: u64) -> Report {
    let seeds = seeds();
    let mut report = Report::default();
    for number in numbers {
        let mut random = Random::new(seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let coded = damage(&seeds, &mut random);
        match exercise(coders, &coded) {
            Ok(()) => report.decoded += 1,
            Err(error) => *report.errors.entry(kind(&error)).or_default() += 1,
        }
    }
    report
}

/// Decodes bytes by every coder and compares what they give.
pub fn exercise(coders: &[&dyn TileCoder], bytes: &[u8]) -> Result<(), Error> {
    let coded = Coded::parse(bytes)?;
    // The fixed area holds at least half of a value for each value, so that the header cannot ask for much.
    assert!(coded.layout().original_bytes() <= 2 * bytes.len() + 512, "{:?}", coded.layout());
    let decode = |coder: &dyn TileCoder| {
        let mut values = vec![0; coded.layout().original_bytes()];
        coded.decode_with(coder, &mut values).map(|()| values)
    };
    let first = decode(coders[0]);
    for coder in &coders[1..] {
        assert_eq!(decode(*coder), first, "{} against {}", coder.name(), coders[0].name());
    }
    for tile in 0..coded.layout().tiles() + 1 {
        let mut values = vec![0; coded.layout().tile_place(tile).len()];
        let result = coded.decode_tile(coders[0], tile, &mut values);
        if let Ok(whole) = &first
            && tile < coded.layout().tiles()
        {
            result.unwrap();
            assert_eq!(values, whole[coded.layout().tile_place(tile)]);
        }
    }
    first.map(drop)
}

/// A damaged copy of one of `seeds`.
fn damage(seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut below = |end: usize| if end == 0 { 0 } else { (random.next_u64() % end as u64) as usize };
    let mut bytes = seeds[below(seeds.len())].clone();
    for _ in 0..=below(3) {
        // Half of the damage goes where the structure is.
        let end = if below(2) == 0 { bytes.len().min(HEADER_BYTES + 32) } else { bytes.len() };
        let at = below(end);
        match below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << below(8),
            1 if at < bytes.len() => bytes[at] = below(256) as u8,
            2 => {
                let number = [0, 1, 255, 2048, 65_535, 1 << 20, 1 << 34, u64::MAX][below(8)];
                bytes.iter_mut().skip(at).zip(number.to_le_bytes()).for_each(|(to, from)| *to = from);
            }
            3 => bytes.truncate(at),
            4 => {
                let other = &seeds[below(seeds.len())];
                let from = below(other.len());
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            _ => bytes.extend(std::iter::repeat_n(0xa5, below(64))),
        }
    }
    bytes
}

/// The name of an error's variant.
fn kind(error: &Error) -> &'static str {
    match error {
        Error::Type { .. } => "type",
        Error::TooLarge { .. } => "too large",
        Error::Length { .. } => "length",
        Error::Room { .. } => "room",
        Error::Mark => "mark",
        Error::Header { .. } => "header",
        Error::Truncated { .. } => "truncated",
        Error::Tile { damage: Damage::Entry, .. } => "tile entry",
        Error::Tile { damage: Damage::Place, .. } => "tile place",
        Error::Tile { damage: Damage::Escapes, .. } => "tile escapes",
        Error::NoTile { .. } => "no tile",
        Error::Checksum { .. } => "checksum",
    }
}
