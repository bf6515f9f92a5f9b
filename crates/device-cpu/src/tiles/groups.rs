//! Groups of a tile in loops that the compiler vectorises, for whichever instructions they are inlined into; only what
//! turns lanes into bit-planes and back, and counts, is written by hand for each instruction set.

use codec::{
    CODE_BITS, Damage, Exponents, Format, GROUP, PLANE_BYTES, RANK_BYTES, TILE, Tile, TileMut, WINDOW,
    Window, best_window,
};

/// One byte for each value of a group.
pub(super) type Lanes = [u8; GROUP];
/// One bit for each value of a group.
pub(super) type Plane = [u64; GROUP / 64];

/// What an instruction set does by hand.
pub(super) trait Vectors {
    /// One bit of every lane.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn plane(lanes: &Lanes, bit: usize) -> Plane;

    /// Lanes of which the low bits are those of some bit-planes.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn lanes(planes: &[[u8; PLANE_BYTES]]) -> Lanes;
}

/// Exponents below the largest of a tile that are counted without a histogram.
pub(super) const NEAR: usize = 16;

/// The largest exponent of a whole tile, and how many values have it, the next lower one, and so on.
pub(super) type NearCounts = (u8, [u16; NEAR]);

/// The exponents of a tile.
#[inline(always)]
pub(super) fn exponents(format: Format, values: &[u8], exponents: &mut [u8; TILE]) {
    match format {
        Format::Bf16 => wide(values, exponents, |bits| Format::Bf16.split(bits)[2]),
        Format::F16 => wide(values, exponents, |bits| Format::F16.split(bits)[2]),
        Format::F8E4M3 => {
            for (to, byte) in exponents.iter_mut().zip(values) {
                *to = Format::F8E4M3.split(u16::from(*byte))[2];
            }
        }
    }
}

#[inline(always)]
fn wide(values: &[u8], to: &mut [u8], of: impl Fn(u16) -> u8) {
    for (to, value) in to.iter_mut().zip(values.as_chunks::<2>().0) {
        *to = of(u16::from_le_bytes(*value));
    }
}

/// The best window of a tile. Where nearly all exponents are near the largest, as in trained weights, counting those is
/// enough to know it; else there is a histogram.
#[inline(always)]
pub(super) fn survey(format: Format, values: &[u8], count: impl Fn(&[u8; TILE]) -> NearCounts) -> Window {
    let elements = values.len() / format.element_bytes();
    let mut tile = [0; TILE];
    exponents(format, values, &mut tile);
    let near = if elements == TILE { window_of_near(format, count(&tile)) } else { None };
    near.unwrap_or_else(|| {
        let mut counts = [[0u16; 256]; 4];
        let (fours, rest) = tile[..elements].as_chunks::<4>();
        for four in fours {
            for (counts, exponent) in counts.iter_mut().zip(four) {
                counts[usize::from(*exponent)] += 1;
            }
        }
        rest.iter().for_each(|exponent| counts[0][usize::from(*exponent)] += 1);
        let [mut sum, others @ ..] = counts;
        for other in others {
            sum.iter_mut().zip(other).for_each(|(sum, count)| *sum += count);
        }
        best_window(format, &sum)
    })
}

/// The best window of a whole tile, if no window that reaches below the exponents that were counted can be as good.
fn window_of_near(format: Format, (largest, near): NearCounts) -> Option<Window> {
    let mut counts = [0; 256];
    let mut counted = 0;
    for (distance, count) in near.into_iter().enumerate() {
        // An exponent below 0 has no values.
        if let Some(exponent) = usize::from(largest).checked_sub(distance) {
            counts[exponent] = count;
            counted += usize::from(count);
        }
    }
    let far = TILE - counted;
    let mut window = best_window(format, &counts);
    let inside = counted - usize::from(window.escapes);
    // A window with an exponent that was not counted has at most the lowest ones of those that were.
    let lowest: usize = near[NEAR - (WINDOW - 1)..].iter().map(|count| usize::from(*count)).sum();
    window.escapes += far as u16;
    (far == 0 || inside > far + lowest).then_some(window)
}

/// Writes a tile.
#[inline(always)]
pub(super) fn encode<V: Vectors>(format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
    match format {
        Format::Bf16 => encode_as::<V>(Format::Bf16, values, window, to),
        Format::F16 => encode_as::<V>(Format::F16, values, window, to),
        Format::F8E4M3 => encode_as::<V>(Format::F8E4M3, values, window, to),
    }
}

#[inline(always)]
fn encode_as<V: Vectors>(format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
    let TileMut { fixed, variable } = to;
    let bytes = GROUP * format.element_bytes();
    let filler = format.filler(window.map_or(0, |window| window.base));
    let groups = values.len().div_ceil(bytes);
    let (ranks, rest) = variable.split_at_mut(if window.is_some() { RANK_BYTES } else { 0 });
    let codes = if window.is_some() { groups * CODE_BITS * PLANE_BYTES } else { rest.len() };
    let (codes, escapes) = rest.split_at_mut(codes);
    let mut rank = 0;
    for (group, fixed) in fixed.chunks_exact_mut(format.fixed_group_bytes()).enumerate().take(groups) {
        let mut filled = [0; 2 * GROUP];
        let mut own = &values[group * bytes..values.len().min((group + 1) * bytes)];
        if own.len() < bytes {
            for value in filled[..bytes].chunks_exact_mut(format.element_bytes()) {
                value.copy_from_slice(&filler[..format.element_bytes()]);
            }
            filled[..own.len()].copy_from_slice(own);
            own = &filled[..bytes];
        }
        let exponents = split::<V>(format, own, fixed);
        if let Some(Window { base, .. }) = window {
            ranks.as_chunks_mut::<2>().0[group] = (rank as u16).to_le_bytes();
            let planes = &mut codes.as_chunks_mut::<{ CODE_BITS * PLANE_BYTES }>().0[group];
            rank += write_codes::<V>(base, &exponents, planes, &mut escapes[rank..]);
        } else {
            let raw = &mut codes[group * format.raw_group_bytes()..][..format.raw_group_bytes()];
            if format.exponent_bits() == 8 {
                raw.copy_from_slice(&exponents);
            } else {
                write_planes::<V>(&exponents, raw);
            }
        }
    }
}

/// Writes sign and mantissa of a whole group and gives its exponents.
#[inline(always)]
fn split<V: Vectors>(format: Format, values: &[u8], fixed: &mut [u8]) -> Lanes {
    let (mut low, mut rest, mut exponents) = ([0; GROUP], [0; GROUP], [0; GROUP]);
    if format.element_bytes() == 2 {
        for (lane, value) in values.as_chunks::<2>().0.iter().enumerate().take(GROUP) {
            [low[lane], rest[lane], exponents[lane]] = format.split(u16::from_le_bytes(*value));
        }
    } else {
        for (lane, value) in values.iter().enumerate().take(GROUP) {
            [low[lane], rest[lane], exponents[lane]] = format.split(u16::from(*value));
        }
    }
    let (bytes, planes) = fixed.split_at_mut(if format.has_low_bytes() { GROUP } else { 0 });
    if format.has_low_bytes() {
        bytes.copy_from_slice(&low);
    }
    write_planes::<V>(&rest, planes);
    exponents
}

/// Writes the codes of a group and its escapes, and says how many those are.
#[inline(always)]
fn write_codes<V: Vectors>(base: u8, exponents: &Lanes, planes: &mut [u8], escapes: &mut [u8]) -> usize {
    let mut codes = [0; GROUP];
    for (code, exponent) in codes.iter_mut().zip(exponents) {
        let place = exponent.wrapping_sub(base);
        *code = if place < WINDOW as u8 { place + 1 } else { 0 };
    }
    let mut inside = [0; GROUP / 64];
    for (bit, to) in planes.chunks_exact_mut(PLANE_BYTES).enumerate() {
        // SAFETY: this is inlined only where the processor has the instructions of `V`.
        let plane = unsafe { V::plane(&codes, bit) };
        inside.iter_mut().zip(plane).for_each(|(inside, word)| *inside |= word);
        to.copy_from_slice(bytes_of(&plane).as_flattened());
    }
    let mut rank = 0;
    for_each_bit(&inside.map(|word| !word), |lane| {
        escapes[rank] = exponents[lane];
        rank += 1;
    });
    rank
}

fn bytes_of(plane: &Plane) -> [[u8; 8]; GROUP / 64] {
    plane.map(u64::to_le_bytes)
}

/// Calls `work` with each lane whose bit is set, in order.
#[inline(always)]
fn for_each_bit(plane: &Plane, mut work: impl FnMut(usize)) {
    for (word, bits) in plane.iter().enumerate() {
        let mut bits = *bits;
        while bits != 0 {
            work(64 * word + bits.trailing_zeros() as usize);
            bits &= bits - 1;
        }
    }
}

/// Writes as many low bits of each lane as there are planes.
#[inline(always)]
fn write_planes<V: Vectors>(lanes: &Lanes, planes: &mut [u8]) {
    for (bit, to) in planes.chunks_exact_mut(PLANE_BYTES).enumerate() {
        // SAFETY: this is inlined only where the processor has the instructions of `V`.
        let plane = unsafe { V::plane(lanes, bit) };
        to.copy_from_slice(bytes_of(&plane).as_flattened());
    }
}

/// Reads a tile.
#[inline(always)]
pub(super) fn decode<V: Vectors>(format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
    match format {
        Format::Bf16 => decode_as::<V>(Format::Bf16, tile, values),
        Format::F16 => decode_as::<V>(Format::F16, tile, values),
        Format::F8E4M3 => decode_as::<V>(Format::F8E4M3, tile, values),
    }
}

#[inline(always)]
fn decode_as<V: Vectors>(format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
    let fixed = tile.fixed.chunks_exact(format.fixed_group_bytes());
    let groups = values.chunks_mut(GROUP * format.element_bytes());
    match tile.exponents {
        Exponents::Raw(raw) => {
            let raw = raw.chunks_exact(format.raw_group_bytes());
            for ((values, fixed), raw) in groups.zip(fixed).zip(raw) {
                let exponents = match raw.first_chunk::<GROUP>() {
                    Some(bytes) if format.exponent_bits() == 8 => *bytes,
                    // SAFETY: this is inlined only where the processor has the instructions of `V`.
                    _ => unsafe { V::lanes(raw.as_chunks().0) },
                };
                join::<V>(format, fixed, &exponents, values);
            }
            Ok(())
        }
        Exponents::Coded { base, ranks, codes, escapes } => {
            let mut rank = 0;
            let codes = codes.as_chunks::<{ CODE_BITS * PLANE_BYTES }>().0;
            let ranks = ranks.as_chunks::<2>().0;
            for (((values, fixed), codes), before) in groups.zip(fixed).zip(codes).zip(ranks) {
                if usize::from(u16::from_le_bytes(*before)) != rank {
                    return Err(Damage::Escapes);
                }
                let (exponents, next) = read_codes::<V>(base, codes, escapes, rank)?;
                rank = next;
                join::<V>(format, fixed, &exponents, values);
            }
            if rank == escapes.len() { Ok(()) } else { Err(Damage::Escapes) }
        }
    }
}

/// The exponents of a group whose first escape is that of this rank, and the rank of the next group's.
#[inline(always)]
fn read_codes<V: Vectors>(
    base: u8,
    planes: &[u8; CODE_BITS * PLANE_BYTES],
    escapes: &[u8],
    rank: usize,
) -> Result<(Lanes, usize), Damage> {
    let planes = planes.as_chunks::<PLANE_BYTES>().0;
    // SAFETY: this is inlined only where the processor has the instructions of `V`.
    let mut exponents = unsafe { V::lanes(planes) };
    for exponent in &mut exponents {
        *exponent = exponent.wrapping_add(base.wrapping_sub(1));
    }
    let mut outside = [u64::MAX; GROUP / 64];
    for plane in planes {
        for (outside, word) in outside.iter_mut().zip(plane.as_chunks::<8>().0) {
            *outside &= !u64::from_le_bytes(*word);
        }
    }
    let next = rank + outside.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    let mut own = escapes.get(rank..next).ok_or(Damage::Escapes)?.iter();
    for_each_bit(&outside, |lane| {
        if let Some(escape) = own.next() {
            exponents[lane] = *escape;
        }
    });
    Ok((exponents, next))
}

/// Puts sign, mantissa and exponents of a group together, as far as `values` goes.
#[inline(always)]
fn join<V: Vectors>(format: Format, fixed: &[u8], exponents: &Lanes, values: &mut [u8]) {
    let (low, planes) = fixed.split_at(if format.has_low_bytes() { GROUP } else { 0 });
    let low = low.first_chunk::<GROUP>().unwrap_or(&[0; GROUP]);
    let rest = match format.rest_planes() {
        0 => [0; GROUP],
        // SAFETY: this is inlined only where the processor has the instructions of `V`.
        _ => unsafe { V::lanes(planes.as_chunks().0) },
    };
    if format.element_bytes() == 1 {
        for (lane, value) in values.iter_mut().enumerate().take(GROUP) {
            *value = format.join([low[lane], rest[lane], exponents[lane]]) as u8;
        }
        return;
    }
    let mut whole = [[0; 2]; GROUP];
    for lane in 0..GROUP {
        whole[lane] = format.join([low[lane], rest[lane], exponents[lane]]).to_le_bytes();
    }
    values.copy_from_slice(&whole.as_flattened()[..values.len()]);
}
