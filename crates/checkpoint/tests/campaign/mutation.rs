//! Damaging files: single bits, numbers that headers lie with, pieces moved, doubled and cut off.

use super::seeds::Parser;

/// Random numbers that a seed repeats (SplitMix64).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() % end as u64) as usize }
    }
}

/// Numbers that break arithmetic and limits.
const NUMBERS: [u64; 18] = [
    0,
    1,
    2,
    7,
    31,
    32,
    255,
    256,
    65_535,
    65_536,
    100_000_000,
    (1 << 20) + 1,
    (1 << 31) - 1,
    1 << 32,
    1 << 40,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// Pieces of headers.
const PIECES: [&[u8]; 17] = [
    b"\"__metadata__\":{},",
    b"\"data_offsets\":[0,0]",
    b"\"shape\":[],",
    b"{\"dtype\":\"F64\"}",
    b"\\u0000",
    b"[[[[[[[[",
    b",,",
    b"null",
    b"-1",
    b"1e9",
    b"split.count",
    b"general.alignment",
    b"\x09\0\0\0\x09\0\0\0",
    b"\xff\xfe",
    b"cos\nsystem\n",
    b"}q\x01(",
    b"h\x01R",
];

/// A damaged copy of one of `seeds`.
pub fn mutate(parser: Parser, seeds: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut file = seeds[random.below(seeds.len())].clone();
    for _ in 0..=random.below(4) {
        mutate_once(&mut file, seeds, random);
    }
    // Most changes move the end of a safetensors header; without this they would only test the length.
    if parser == Parser::Safetensors && file.len() >= 8 && random.below(4) != 0 {
        repair_header_length(&mut file);
    }
    file
}

fn mutate_once(file: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(file.len() + 1);
    let end = at + random.below((file.len() - at).min(40) + 1);
    match random.below(10) {
        0 if at < file.len() => file[at] ^= 1 << random.below(8),
        1 if at < file.len() => file[at] = random.next() as u8,
        2 => overwrite(file, at, &NUMBERS[random.below(NUMBERS.len())].to_le_bytes()),
        3 => overwrite(file, at, &(NUMBERS[random.below(NUMBERS.len())] as u32).to_le_bytes()),
        4 => replace_decimal(file, at, random),
        5 => drop(file.drain(at..end)),
        6 => {
            let copy = file[at..end].to_vec();
            let to = random.below(file.len() + 1);
            file.splice(to..to, copy);
        }
        7 => {
            let piece = PIECES[random.below(PIECES.len())];
            file.splice(at..at, piece.iter().copied());
        }
        8 => {
            let other = &seeds[random.below(seeds.len())];
            let from = random.below(other.len());
            file.truncate(at);
            file.extend_from_slice(&other[from..]);
        }
        _ => file.truncate(at),
    }
}

fn overwrite(file: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in file.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}

/// Replaces the first run of digits from `at` on by another number.
fn replace_decimal(file: &mut Vec<u8>, at: usize, random: &mut Random) {
    let Some(start) = file[at..].iter().position(u8::is_ascii_digit).map(|offset| at + offset) else {
        return;
    };
    let len = file[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let number = NUMBERS[random.below(NUMBERS.len())].to_string();
    file.splice(start..start + len, number.into_bytes());
}

/// Makes the header end at its last closing brace.
fn repair_header_length(file: &mut [u8]) {
    if let Some(brace) = file[8..].iter().rposition(|&byte| byte == b'}') {
        file[..8].copy_from_slice(&(brace as u64 + 1).to_le_bytes());
    }
}
