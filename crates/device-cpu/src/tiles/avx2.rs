//! Tiles by AVX2.

use std::arch::x86_64::{
    __m256i, _mm_cvtsi32_si128, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_max_epu8,
    _mm256_movemask_epi8, _mm256_or_si256, _mm256_sad_epu8, _mm256_set1_epi8, _mm256_set1_epi32,
    _mm256_set1_epi64x, _mm256_setr_epi64x, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_sll_epi16,
    _mm256_storeu_si256, _mm256_sub_epi8,
};

use codec::{Damage, Format, GROUP, PLANE_BYTES, TILE, Tile, TileCoder, TileMut, Window};

use super::groups::{self, Lanes, NEAR, NearCounts, Plane, Vectors};

/// The coder; there is one only where the processor has the instructions.
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<&'static Avx2> {
        static CODER: Avx2 = Avx2(());
        let all = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("popcnt");
        all.then_some(&CODER)
    }
}

impl TileCoder for Avx2 {
    fn name(&self) -> &'static str {
        "avx2"
    }

    fn survey(&self, format: Format, values: &[u8]) -> Window {
        // SAFETY: a coder exists only where the processor has the instructions.
        unsafe { survey(format, values) }
    }

    fn encode(&self, format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
        // SAFETY: as above.
        unsafe { encode(format, values, window, to) }
    }

    fn decode(&self, format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
        // SAFETY: as above.
        unsafe { decode(format, tile, values) }
    }
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
fn survey(format: Format, values: &[u8]) -> Window {
    groups::survey(format, values, |exponents| count_near(exponents))
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
fn encode(format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
    groups::encode::<Avx2>(format, values, window, to);
}

#[target_feature(enable = "avx2,bmi1,popcnt")]
fn decode(format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
    groups::decode::<Avx2>(format, tile, values)
}

impl Vectors for Avx2 {
    #[inline(always)]
    unsafe fn plane(lanes: &Lanes, bit: usize) -> Plane {
        // SAFETY: the caller's promise.
        unsafe { plane(lanes, bit) }
    }

    #[inline(always)]
    unsafe fn lanes(planes: &[[u8; PLANE_BYTES]]) -> Lanes {
        // SAFETY: the caller's promise.
        unsafe { lanes(planes) }
    }
}

/// Lanes of a vector.
const WIDTH: usize = 32;

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; WIDTH]) -> __m256i {
    // SAFETY: the array is as long as the vector, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; WIDTH], vector: __m256i) {
    // SAFETY: the array is as long as the vector, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) };
}

#[inline]
#[target_feature(enable = "avx2")]
fn plane(lanes: &Lanes, bit: usize) -> Plane {
    let mut plane = [0; GROUP / 64];
    // The shift goes over the borders of bytes, but what comes from below does not reach the highest bit.
    let shift = _mm_cvtsi32_si128(7 - bit as i32);
    for (word, pair) in plane.iter_mut().zip(lanes.as_chunks::<{ 2 * WIDTH }>().0) {
        for (half, lanes) in pair.as_chunks::<WIDTH>().0.iter().enumerate() {
            let bits = _mm256_movemask_epi8(_mm256_sll_epi16(load(lanes), shift)) as u32;
            *word |= u64::from(bits) << (32 * half);
        }
    }
    plane
}

#[inline]
#[target_feature(enable = "avx2")]
fn lanes(planes: &[[u8; PLANE_BYTES]]) -> Lanes {
    let mut lanes = [0; GROUP];
    // Lane i looks at byte i / 8 of four, and there at bit i % 8.
    let spread = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
    let select = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
    for (part, to) in lanes.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
        let mut sum = _mm256_setzero_si256();
        for (bit, plane) in planes.iter().enumerate() {
            let word = i32::from_le_bytes(plane.as_chunks().0[part]);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), spread);
            let set = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, select), select);
            sum = _mm256_or_si256(sum, _mm256_and_si256(set, _mm256_set1_epi8(1 << bit)));
        }
        store(to, sum);
    }
    lanes
}

/// Counts the exponents of a whole tile that are near the largest.
#[target_feature(enable = "avx2")]
pub(super) fn count_near(exponents: &[u8; TILE]) -> NearCounts {
    let parts = exponents.as_chunks::<WIDTH>().0;
    let mut largest = _mm256_setzero_si256();
    for part in parts {
        largest = _mm256_max_epu8(largest, load(part));
    }
    let mut lanes = [0; WIDTH];
    store(&mut lanes, largest);
    let largest = lanes.into_iter().max().unwrap_or(0);
    let mut counts = [0; NEAR];
    // So many counters stay in registers. A lane counts at most as many as there are parts, 64.
    const AT_ONCE: usize = 8;
    for (round, counts) in counts.as_chunks_mut::<AT_ONCE>().0.iter_mut().enumerate() {
        let mut sums = [_mm256_setzero_si256(); AT_ONCE];
        let below = |index: usize| largest.wrapping_sub((round * AT_ONCE + index) as u8) as i8;
        let wanted: [__m256i; AT_ONCE] = std::array::from_fn(|index| _mm256_set1_epi8(below(index)));
        for part in parts {
            let part = load(part);
            for (sum, wanted) in sums.iter_mut().zip(wanted) {
                *sum = _mm256_sub_epi8(*sum, _mm256_cmpeq_epi8(part, wanted));
            }
        }
        for (count, sum) in counts.iter_mut().zip(sums) {
            store(&mut lanes, _mm256_sad_epu8(sum, _mm256_setzero_si256()));
            *count = lanes.as_chunks().0.iter().map(|lane| u64::from_le_bytes(*lane) as u16).sum();
        }
    }
    (largest, counts)
}
