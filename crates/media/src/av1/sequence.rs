//! What a stream of AV1 says of its colours (its sequence header). The decoder says it too, but stops the program at numbers
//! that are reserved.

use crate::bits::Bits;

/// What the values of pictures mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) is_full_range: bool,
    /// The number of the matrix.
    pub(super) matrix: u32,
}

/// The kind of unit that has it.
const SEQUENCE_HEADER: u32 = 1;
/// Numbers of primaries, curve and matrix that together say that values are red, green and blue.
const RGB: [u32; 3] = [1, 13, 0];
const UNSPECIFIED: u32 = 2;

impl Marks {
    /// Of the first header in a packet; none if it has none.
    pub(super) fn read(packet: &[u8]) -> Option<Marks> {
        let mut rest = packet;
        while !rest.is_empty() {
            let mut bits = Bits::of(rest);
            bits.skip(1)?;
            let kind = bits.number(4)?;
            let (has_more, has_size) = (bits.flag()?, bits.flag()?);
            let start = if has_more { 2 } else { 1 };
            let (length, contents) = match has_size {
                true => length(rest.get(start..)?)?,
                false => (rest.len().checked_sub(start)?, rest.get(start..)?),
            };
            let (unit, after) = contents.split_at_checked(length)?;
            if kind == SEQUENCE_HEADER {
                return header(&mut Bits::of(unit));
            }
            rest = after;
        }
        None
    }
}

/// A number of seven bits a byte, the lowest first, and what lies behind it.
fn length(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0usize;
    for (at, byte) in bytes.iter().enumerate().take(8) {
        value |= usize::from(byte & 0x7F).checked_shl(7 * at as u32)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

fn header(bits: &mut Bits<'_>) -> Option<Marks> {
    let profile = bits.number(3)?;
    bits.skip(1)?;
    let is_reduced = bits.flag()?;
    if is_reduced {
        bits.skip(5)?;
    } else {
        skip_timing(bits)?;
    }
    let (across, down) = (bits.number(4)?, bits.number(4)?);
    bits.skip(across + 1 + down + 1)?;
    if !is_reduced && bits.flag()? {
        bits.skip(7)?;
    }
    bits.skip(3)?;
    if !is_reduced {
        skip_tools(bits)?;
    }
    bits.skip(3)?;
    colours(bits, profile)
}

/// Times, models of buffers, and the operating points.
fn skip_timing(bits: &mut Bits<'_>) -> Option<()> {
    let mut delay_bits = None;
    if bits.flag()? {
        bits.skip(64)?;
        if bits.flag()? {
            bits.golomb()?;
        }
        if bits.flag()? {
            delay_bits = Some(bits.number(5)? + 1);
            bits.skip(42)?;
        }
    }
    let has_delays = bits.flag()?;
    for _ in 0..=bits.number(5)? {
        bits.skip(12)?;
        if bits.number(5)? > 7 {
            bits.skip(1)?;
        }
        if let Some(delay_bits) = delay_bits
            && bits.flag()?
        {
            bits.skip(2 * delay_bits + 1)?;
        }
        if has_delays && bits.flag()? {
            bits.skip(4)?;
        }
    }
    Some(())
}

/// Ways to predict that a stream uses.
fn skip_tools(bits: &mut Bits<'_>) -> Option<()> {
    bits.skip(4)?;
    let has_order = bits.flag()?;
    if has_order {
        bits.skip(2)?;
    }
    let chooses_tools = bits.flag()?;
    let screen_tools = chooses_tools || bits.flag()?;
    if screen_tools && !bits.flag()? {
        bits.skip(1)?;
    }
    if has_order {
        bits.skip(3)?;
    }
    Some(())
}

fn colours(bits: &mut Bits<'_>, profile: u32) -> Option<Marks> {
    let is_deep = bits.flag()?;
    if profile == 2 && is_deep {
        bits.skip(1)?;
    }
    let is_grey = profile != 1 && bits.flag()?;
    let described = match bits.flag()? {
        true => [bits.number(8)?, bits.number(8)?, bits.number(8)?],
        false => [UNSPECIFIED; 3],
    };
    let is_full_range = if !is_grey && described == RGB { true } else { bits.flag()? };
    Some(Marks { is_full_range, matrix: described[2] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_say_what_colours_mean() {
        // As libaom writes it for 96x64 pixels without marks, behind a unit that is passed over.
        let unmarked = [0x12, 0, 10, 10, 0, 0, 0, 3, 45, 255, 205, 175, 144, 4];
        assert_eq!(Marks::read(&unmarked), Some(Marks { is_full_range: false, matrix: 2 }));
        assert_eq!(Marks::read(&unmarked[..8]), None);
        assert_eq!(Marks::read(&[]), None);
    }
}
