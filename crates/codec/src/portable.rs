//! Coding in plain Rust: the reference for vector instructions and kernels.

use crate::{
    CODE_BITS, Damage, Exponents, Format, GROUP, PLANE_BYTES, Tile, TileCoder, TileMut, WINDOW, Window,
    best_window,
};

/// The coder in plain Rust.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

/// One byte for each value of a group.
type Lanes = [u8; GROUP];

impl TileCoder for Portable {
    fn name(&self) -> &'static str {
        "portable"
    }

    fn survey(&self, format: Format, values: &[u8]) -> Window {
        let mut counts = [0; 256];
        for value in values.chunks_exact(format.element_bytes()) {
            counts[usize::from(format.exponent(value))] += 1;
        }
        best_window(format, &counts)
    }

    fn encode(&self, format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
        let filler = format.filler(window.map_or(0, |window| window.base));
        let fixed = to.fixed.chunks_exact_mut(format.fixed_group_bytes());
        let groups = values.chunks(GROUP * format.element_bytes());
        match window {
            None => {
                let raw = to.variable.chunks_exact_mut(format.raw_group_bytes());
                for ((values, fixed), raw) in groups.zip(fixed).zip(raw) {
                    write_exponents(format, raw, &split(format, values, filler, fixed));
                }
            }
            Some(window) => {
                let mut coded = CodedMut::new(to.variable, values.len() / format.element_bytes());
                for (group, (values, fixed)) in groups.zip(fixed).enumerate() {
                    coded.write(group, window.base, &split(format, values, filler, fixed));
                }
            }
        }
    }

    fn decode(&self, format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
        let fixed = tile.fixed.chunks_exact(format.fixed_group_bytes());
        let groups = values.chunks_mut(GROUP * format.element_bytes());
        match tile.exponents {
            Exponents::Raw(raw) => {
                let raw = raw.chunks_exact(format.raw_group_bytes());
                for ((values, fixed), raw) in groups.zip(fixed).zip(raw) {
                    join(format, fixed, &read_exponents(format, raw), values);
                }
                Ok(())
            }
            Exponents::Coded { base, ranks, codes, escapes } => {
                let mut rest = escapes;
                let codes = codes.chunks_exact(CODE_BITS * PLANE_BYTES);
                let ranks = ranks.as_chunks::<2>().0;
                for (((values, fixed), codes), rank) in groups.zip(fixed).zip(codes).zip(ranks) {
                    if usize::from(u16::from_le_bytes(*rank)) != escapes.len() - rest.len() {
                        return Err(Damage::Escapes);
                    }
                    let exponents = decode_exponents(base, codes, &mut rest)?;
                    join(format, fixed, &exponents, values);
                }
                if rest.is_empty() { Ok(()) } else { Err(Damage::Escapes) }
            }
        }
    }
}

/// The variable area of a coded tile that is being written.
struct CodedMut<'a> {
    ranks: &'a mut [[u8; 2]],
    codes: &'a mut [[u8; CODE_BITS * PLANE_BYTES]],
    escapes: &'a mut [u8],
    rank: usize,
}

impl<'a> CodedMut<'a> {
    fn new(variable: &'a mut [u8], elements: usize) -> CodedMut<'a> {
        let (ranks, rest) = variable.split_at_mut(crate::RANK_BYTES);
        let (codes, escapes) = rest.split_at_mut(elements.div_ceil(GROUP) * CODE_BITS * PLANE_BYTES);
        CodedMut { ranks: ranks.as_chunks_mut().0, codes: codes.as_chunks_mut().0, escapes, rank: 0 }
    }

    /// Writes the codes of a group, and its exponents outside of the window.
    fn write(&mut self, group: usize, base: u8, exponents: &Lanes) {
        self.ranks[group] = (self.rank as u16).to_le_bytes();
        let mut codes = [0; GROUP];
        for (code, exponent) in codes.iter_mut().zip(exponents) {
            let place = exponent.wrapping_sub(base);
            if usize::from(place) < WINDOW {
                *code = place + 1;
            } else {
                self.escapes[self.rank] = *exponent;
                self.rank += 1;
            }
        }
        write_planes(&codes, &mut self.codes[group]);
    }
}

/// Writes sign and mantissa of a group and gives its exponents. A group that is not full is filled up.
fn split(format: Format, values: &[u8], filler: [u8; 2], fixed: &mut [u8]) -> Lanes {
    let (mut low, mut rest, mut exponents) = ([0; GROUP], [0; GROUP], [0; GROUP]);
    let mut values = values.chunks_exact(format.element_bytes());
    for lane in 0..GROUP {
        let value = values.next().unwrap_or(&filler);
        [low[lane], rest[lane], exponents[lane]] = format.split(format.load(value));
    }
    let planes = if format.has_low_bytes() {
        let (bytes, planes) = fixed.split_at_mut(GROUP);
        bytes.copy_from_slice(&low);
        planes
    } else {
        fixed
    };
    write_planes(&rest, planes);
    exponents
}

/// Puts sign, mantissa and exponents of a group together, as far as `values` goes.
fn join(format: Format, fixed: &[u8], exponents: &Lanes, values: &mut [u8]) {
    let (low, planes) = if format.has_low_bytes() { fixed.split_at(GROUP) } else { (&[0; GROUP][..], fixed) };
    let rest = read_planes(planes);
    for (lane, value) in values.chunks_exact_mut(format.element_bytes()).enumerate() {
        let bits = format.join([low[lane], rest[lane], exponents[lane]]).to_le_bytes();
        value.copy_from_slice(&bits[..value.len()]);
    }
}

/// Writes as many low bits of each lane as there are planes.
fn write_planes(lanes: &Lanes, planes: &mut [u8]) {
    for (bit, plane) in planes.chunks_exact_mut(PLANE_BYTES).enumerate() {
        for (byte, lanes) in plane.iter_mut().zip(lanes.as_chunks::<8>().0) {
            *byte = (0..8).fold(0, |byte, lane| byte | (lanes[lane] >> bit & 1) << lane);
        }
    }
}

fn read_planes(planes: &[u8]) -> Lanes {
    let mut lanes = [0; GROUP];
    for (bit, plane) in planes.chunks_exact(PLANE_BYTES).enumerate() {
        for (byte, lanes) in plane.iter().zip(lanes.as_chunks_mut::<8>().0) {
            for (lane, value) in lanes.iter_mut().enumerate() {
                *value |= (byte >> lane & 1) << bit;
            }
        }
    }
    lanes
}

fn write_exponents(format: Format, raw: &mut [u8], exponents: &Lanes) {
    if format.exponent_bits() == 8 {
        raw.copy_from_slice(exponents);
    } else {
        write_planes(exponents, raw);
    }
}

fn read_exponents(format: Format, raw: &[u8]) -> Lanes {
    match raw.first_chunk::<GROUP>() {
        Some(bytes) if format.exponent_bits() == 8 => *bytes,
        _ => read_planes(raw),
    }
}

/// The exponents of a group, whose escapes are taken from the front of `escapes`.
fn decode_exponents(base: u8, codes: &[u8], escapes: &mut &[u8]) -> Result<Lanes, Damage> {
    let mut exponents = read_planes(codes);
    for exponent in &mut exponents {
        *exponent = match *exponent {
            0 => *escapes.split_off_first().ok_or(Damage::Escapes)?,
            code => base.wrapping_add(code - 1),
        };
    }
    Ok(exponents)
}
