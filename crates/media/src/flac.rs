//! FLAC: sound of 16 bits without loss. Each block of a channel is written as its differences, whose sizes decide how many
//! bits they get; what is left of a value goes as a row of zeros.

use std::io::Write;

use crate::{Error, Result, Sound};

/// Values of a channel in a block.
const BLOCK: usize = 4096;
/// The most channels that the format has.
const MOST_CHANNELS: usize = 8;
/// The highest rate that the format has.
const HIGHEST_RATE: u32 = 655_350;
/// Bits of a value.
const BITS: u32 = 16;
/// The most bits that the lower part of a difference may have.
const MOST_LOW_BITS: u32 = 14;
/// The largest order of differences that is tried.
const MOST_ORDER: usize = 2;

/// Sound as blocks of a stream.
pub(crate) struct Blocks {
    channels: Vec<Vec<i32>>,
    rate: u32,
    at: usize,
    number: u32,
}

/// A file with this sound, and texts that say how it was made.
///
/// # Errors
/// The format has no place for such sound, or it cannot be written.
pub fn write_flac(sound: &Sound, texts: &[(String, String)], out: &mut dyn Write) -> Result<()> {
    let mut blocks = Blocks::new(sound)?;
    out.write_all(b"fLaC")?;
    out.write_all(&metadata(0, false, &blocks.stream_info()))?;
    out.write_all(&metadata(4, true, &comments(texts)))?;
    while let Some((bytes, _)) = blocks.next() {
        out.write_all(&bytes)?;
    }
    Ok(())
}

/// A block of metadata with its header.
pub(crate) fn metadata(kind: u8, is_last: bool, content: &[u8]) -> Vec<u8> {
    let mut block = vec![if is_last { 0x80 | kind } else { kind }];
    block.extend(&(content.len() as u32).to_be_bytes()[1..]);
    block.extend(content);
    block
}

/// Texts as Vorbis comments. What is too long for a block of metadata is left out.
fn comments(texts: &[(String, String)]) -> Vec<u8> {
    const MOST_BYTES: usize = (1 << 24) - 1024;
    let entries: Vec<String> = texts.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let fits = entries.iter().map(|entry| entry.len() + 4).sum::<usize>() < MOST_BYTES;
    let entries = if fits { entries } else { Vec::new() };
    let vendor = "Gantry";
    let mut block = (vendor.len() as u32).to_le_bytes().to_vec();
    block.extend(vendor.as_bytes());
    block.extend((entries.len() as u32).to_le_bytes());
    for entry in entries {
        block.extend((entry.len() as u32).to_le_bytes());
        block.extend(entry.as_bytes());
    }
    block
}

impl Blocks {
    pub(crate) fn new(sound: &Sound) -> Result<Blocks> {
        let count = sound.channels.len();
        if count == 0 || count > MOST_CHANNELS || sound.rate == 0 || sound.rate > HIGHEST_RATE {
            return Err(Error::SoundShape { channels: count, rate: sound.rate, format: "FLAC" });
        }
        let whole = |value: &f32| (value.clamp(-1.0, 1.0) * 32767.0).round() as i32;
        let channels = sound.channels.iter().map(|channel| channel.iter().map(whole).collect()).collect();
        Ok(Blocks { channels, rate: sound.rate, at: 0, number: 0 })
    }

    /// Values of a channel.
    pub(crate) fn len(&self) -> usize {
        self.channels.iter().map(Vec::len).min().unwrap_or(0)
    }

    /// Values per second.
    pub(crate) fn rate(&self) -> u32 {
        self.rate
    }

    /// How many channels there are.
    pub(crate) fn channels(&self) -> usize {
        self.channels.len()
    }

    /// The first values of the next block.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// What a decoder is set up with.
    pub(crate) fn stream_info(&self) -> Vec<u8> {
        let mut bits = Bits::default();
        bits.push(BLOCK as u64, 16);
        bits.push(BLOCK as u64, 16);
        // The sizes of blocks are not known yet.
        bits.push(0, 24);
        bits.push(0, 24);
        bits.push(u64::from(self.rate), 20);
        bits.push(self.channels.len() as u64 - 1, 3);
        bits.push(u64::from(BITS) - 1, 5);
        bits.push(self.len() as u64, 36);
        let mut info = bits.finish();
        // No sum over the values.
        info.extend([0; 16]);
        info
    }

    /// The next block and the number of its values.
    pub(crate) fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        let count = (self.len() - self.at).min(BLOCK);
        if count == 0 {
            return None;
        }
        let mut bits = Bits::default();
        bits.push(0b11_1111_1111_1110, 14);
        bits.push(0, 2);
        // The size of the block follows in 16 bits; the rate is the stream's.
        bits.push(0b0111_0000, 8);
        bits.push(self.channels.len() as u64 - 1, 4);
        bits.push(0b1000, 4);
        for byte in as_text(self.number) {
            bits.push(u64::from(byte), 8);
        }
        bits.push(count as u64 - 1, 16);
        let sum = sum8(&bits.bytes);
        bits.push(u64::from(sum), 8);
        for channel in &self.channels {
            write_channel(&mut bits, &channel[self.at..self.at + count]);
        }
        let mut bytes = bits.finish();
        let sum = sum16(&bytes);
        bytes.extend(sum.to_be_bytes());
        self.at += count;
        self.number += 1;
        Some((bytes, count))
    }
}

/// One channel's values in a block.
fn write_channel(bits: &mut Bits, values: &[i32]) {
    let orders = 0..=MOST_ORDER.min(values.len() - 1);
    let coded = orders.map(|order| (order, differences(values, order)));
    let sized = coded.map(|(order, rest)| {
        let (low, size) = best_low_bits(&rest);
        (size + u64::from(BITS) * order as u64, order, rest, low)
    });
    let best = sized.min_by_key(|(size, ..)| *size);
    match best {
        Some((size, order, rest, low)) if size < u64::from(BITS) * values.len() as u64 => {
            bits.push(0b001_000 | order as u64, 7);
            bits.push(0, 1);
            values[..order].iter().for_each(|value| bits.push_signed(*value, BITS));
            bits.push(0, 6);
            bits.push(u64::from(low), 4);
            for value in rest {
                let value = folded(value);
                bits.push_zeros(value >> low);
                bits.push(1, 1);
                bits.push(u64::from(value & ((1 << low) - 1)), low);
            }
        }
        _ => {
            bits.push(0b000_0001, 7);
            bits.push(0, 1);
            values.iter().for_each(|value| bits.push_signed(*value, BITS));
        }
    }
}

/// What is left of values when those before them are taken away, so many times.
fn differences(values: &[i32], order: usize) -> Vec<i32> {
    let mut rest = values.to_vec();
    for _ in 0..order {
        rest = rest.windows(2).map(|pair| pair[1] - pair[0]).collect();
    }
    rest
}

/// Small numbers of either sign as small numbers.
fn folded(value: i32) -> u32 {
    ((value << 1) ^ (value >> 31)) as u32
}

/// How many low bits give the shortest code, and how long it is.
fn best_low_bits(rest: &[i32]) -> (u32, u64) {
    let size = |low: u32| {
        let high: u64 = rest.iter().map(|value| u64::from(folded(*value) >> low)).sum();
        high + rest.len() as u64 * u64::from(low + 1)
    };
    (0..=MOST_LOW_BITS).map(|low| (low, size(low))).min_by_key(|(_, size)| *size).unwrap_or((0, 0))
}

/// A number in the way that UTF-8 has.
fn as_text(number: u32) -> Vec<u8> {
    let bits = 32 - number.leading_zeros();
    if bits <= 7 {
        return vec![number as u8];
    }
    let more = (2..=6).find(|bytes| bits <= 5 * bytes + 1).unwrap_or(6) - 1;
    let first = (0xFFu32 << (7 - more)) as u8 | (number >> (6 * more)) as u8;
    let rest = (0..more).rev().map(|at| 0x80 | ((number >> (6 * at)) & 0x3F) as u8);
    std::iter::once(first).chain(rest).collect()
}

fn sum8(bytes: &[u8]) -> u8 {
    let step = |sum: u8, _: u8| if sum & 0x80 != 0 { (sum << 1) ^ 0x07 } else { sum << 1 };
    bytes.iter().fold(0, |sum, byte| (0..8).fold(sum ^ byte, step))
}

fn sum16(bytes: &[u8]) -> u16 {
    let step = |sum: u16, _: u8| if sum & 0x8000 != 0 { (sum << 1) ^ 0x8005 } else { sum << 1 };
    bytes.iter().fold(0, |sum, byte| (0..8).fold(sum ^ (u16::from(*byte) << 8), step))
}

/// Bits, the highest of a byte first.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    /// Bits that fill no byte yet, and how many.
    rest: u64,
    count: u32,
}

impl Bits {
    fn push(&mut self, value: u64, count: u32) {
        for at in (0..count).rev() {
            self.rest = (self.rest << 1) | ((value >> at) & 1);
            self.count += 1;
            if self.count == 8 {
                self.bytes.push(self.rest as u8);
                (self.rest, self.count) = (0, 0);
            }
        }
    }

    fn push_signed(&mut self, value: i32, count: u32) {
        self.push(u64::from(value as u32), count);
    }

    fn push_zeros(&mut self, count: u32) {
        (0..count).for_each(|_| self.push(0, 1));
    }

    /// All bytes, the last filled up with zeros.
    fn finish(mut self) -> Vec<u8> {
        if self.count > 0 {
            self.push(0, 8 - self.count);
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Source;

    #[test]
    fn numbers_are_written_as_utf_8_writes_characters() {
        for number in [0, 0x7F, 0x80, 0x7FF, 0x800, 0xFFFF, 0x1_0000, 0x10_FFFF] {
            let Some(character) = char::from_u32(number) else { continue };
            assert_eq!(as_text(number), character.to_string().as_bytes(), "{number:x}");
        }
    }

    #[test]
    fn what_is_written_is_read_again() {
        let wave = |step: f32| (0..10_000).map(|at| (at as f32 * step).sin() * 0.7).collect::<Vec<f32>>();
        let noise: Vec<f32> = testkit::random_normal(3, 10_000).iter().map(|value| value * 0.4).collect();
        for channels in [vec![wave(0.01)], vec![wave(0.3), noise], vec![vec![0.0; 4096]; 3], vec![vec![0.5]]]
        {
            let sound = Sound { rate: 44_100, channels };
            let mut file = Vec::new();
            write_flac(&sound, &[("prompt".into(), "{}".into())], &mut file).unwrap();
            let read = Sound::read(&Source::Bytes("a.flac".into(), file)).unwrap();
            assert_eq!((read.rate, read.channels.len()), (sound.rate, sound.channels.len()));
            for (own, other) in sound.channels.iter().zip(&read.channels) {
                assert_eq!(own.len(), other.len());
                assert!(
                    own.iter().zip(other).all(|(own, other)| (own.clamp(-1.0, 1.0) - other).abs() < 1e-4)
                );
            }
        }
    }
}
