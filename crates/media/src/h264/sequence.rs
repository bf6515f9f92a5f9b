//! What a stream of H.264 says of its pictures (its sequence parameters).

use crate::bits::Bits;

/// Kinds of pictures, and what their values mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sequence {
    /// Bits of a value of brightness and of colour.
    pub(super) bits: (u32, u32),
    /// Values of colour: 0 none, 1 a quarter, 2 half, 3 as many as of brightness.
    pub(super) colours: u32,
    /// Whether pictures may be made of two fields.
    pub(super) is_interlaced: bool,
    /// Pixels, before some are cut off.
    pub(super) size: (usize, usize),
    /// Whether black is 0, and the number of the matrix.
    pub(super) is_full_range: bool,
    pub(super) matrix: u32,
}

/// Profiles that say more of their values than that there are 8 bits.
const HIGH_PROFILES: [u32; 13] = [100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135];
/// The matrix of a stream that does not say it.
const UNSPECIFIED: u32 = 2;
/// A shape of pixels that two numbers follow.
const OTHER_SHAPE: u32 = 255;

impl Sequence {
    /// Of a unit; none if it is damaged.
    pub(super) fn read(unit: &[u8]) -> Option<Sequence> {
        let bytes = without_guards(unit.get(1..)?);
        let mut bits = Bits::of(&bytes);
        let profile = bits.number(8)?;
        bits.skip(16)?;
        bits.golomb()?;
        let (mut colours, mut depths) = (1, (8, 8));
        if HIGH_PROFILES.contains(&profile) {
            colours = bits.golomb()?;
            if colours == 3 {
                bits.skip(1)?;
            }
            depths = (bits.golomb()?.checked_add(8)?, bits.golomb()?.checked_add(8)?);
            bits.skip(1)?;
            if bits.flag()? {
                skip_scaling(&mut bits, if colours == 3 { 12 } else { 8 })?;
            }
        }
        skip_order(&mut bits)?;
        bits.golomb()?;
        bits.skip(1)?;
        let across = bits.golomb()?.checked_add(1)? as usize;
        let down = bits.golomb()?.checked_add(1)? as usize;
        let is_interlaced = !bits.flag()?;
        if is_interlaced {
            bits.skip(1)?;
        }
        bits.skip(1)?;
        if bits.flag()? {
            for _ in 0..4 {
                bits.golomb()?;
            }
        }
        let rows = if is_interlaced { 2 } else { 1 };
        let size = (across.checked_mul(16)?, down.checked_mul(16 * rows)?);
        // Marks that are cut off are as good as none.
        let (is_full_range, matrix) = marks(&mut bits).unwrap_or((false, UNSPECIFIED));
        Some(Sequence { bits: depths, colours, is_interlaced, size, is_full_range, matrix })
    }

    /// What makes it unreadable for a decoder of plain pictures, in words.
    pub(super) fn refused(&self) -> Option<String> {
        match (self.bits, self.colours, self.is_interlaced) {
            ((8, 8), 1, false) => None,
            ((8, 8), 1, true) => Some("interlaced H.264".to_owned()),
            ((8, 8), 0, _) => Some("H.264 without colours".to_owned()),
            ((8, 8), 2, _) => Some("H.264 with 4:2:2 colours".to_owned()),
            ((8, 8), ..) => Some("H.264 with 4:4:4 colours".to_owned()),
            ((bright, colour), ..) => Some(format!("H.264 with {} bits a value", bright.max(colour))),
        }
    }
}

/// A unit's bytes without those that keep it from looking like a start.
fn without_guards(unit: &[u8]) -> Vec<u8> {
    let mut zeros = 0;
    let mut bytes = Vec::with_capacity(unit.len());
    for byte in unit {
        if zeros >= 2 && *byte == 3 {
            zeros = 0;
            continue;
        }
        zeros = if *byte == 0 { zeros + 1 } else { 0 };
        bytes.push(*byte);
    }
    bytes
}

fn skip_scaling(bits: &mut Bits<'_>, lists: usize) -> Option<()> {
    for list in 0..lists {
        if !bits.flag()? {
            continue;
        }
        let (mut last, mut next) = (8, 8);
        for _ in 0..if list < 6 { 16 } else { 64 } {
            if next != 0 {
                next = (last + bits.signed_golomb()?).rem_euclid(256);
            }
            last = if next == 0 { last } else { next };
        }
    }
    Some(())
}

/// How pictures are put in order.
fn skip_order(bits: &mut Bits<'_>) -> Option<()> {
    bits.golomb()?;
    match bits.golomb()? {
        0 => {
            bits.golomb()?;
        }
        1 => {
            bits.skip(1)?;
            bits.signed_golomb()?;
            bits.signed_golomb()?;
            for _ in 0..bits.golomb()?.min(255) {
                bits.signed_golomb()?;
            }
        }
        _ => {}
    }
    Some(())
}

/// Whether black is 0, and the number of the matrix.
fn marks(bits: &mut Bits<'_>) -> Option<(bool, u32)> {
    if !bits.flag()? {
        return None;
    }
    if bits.flag()? && bits.number(8)? == OTHER_SHAPE {
        bits.skip(32)?;
    }
    if bits.flag()? {
        bits.skip(1)?;
    }
    if !bits.flag()? {
        return None;
    }
    bits.skip(3)?;
    let is_full_range = bits.flag()?;
    if !bits.flag()? {
        return Some((is_full_range, UNSPECIFIED));
    }
    bits.skip(16)?;
    Some((is_full_range, bits.number(8)?))
}
