//! Tiles by AVX-512.

use std::arch::x86_64::{
    _mm512_loadu_si512, _mm512_mask_add_epi8, _mm512_set1_epi8, _mm512_setzero_si512, _mm512_storeu_si512,
    _mm512_test_epi8_mask,
};

use codec::{Damage, Format, GROUP, PLANE_BYTES, Tile, TileCoder, TileMut, Window};

use super::avx2::count_near;
use super::groups::{self, Lanes, Plane, Vectors};

/// The coder; there is one only where the processor has the instructions.
pub(crate) struct Avx512(());

impl Avx512 {
    pub(crate) fn detect() -> Option<&'static Avx512> {
        static CODER: Avx512 = Avx512(());
        let all = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("popcnt");
        all.then_some(&CODER)
    }
}

impl TileCoder for Avx512 {
    fn name(&self) -> &'static str {
        "avx512"
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

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,popcnt")]
fn survey(format: Format, values: &[u8]) -> Window {
    groups::survey(format, values, |exponents| count_near(exponents))
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,popcnt")]
fn encode(format: Format, values: &[u8], window: Option<Window>, to: TileMut<'_>) {
    groups::encode::<Avx512>(format, values, window, to);
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,bmi1,popcnt")]
fn decode(format: Format, tile: &Tile<'_>, values: &mut [u8]) -> Result<(), Damage> {
    groups::decode::<Avx512>(format, tile, values)
}

impl Vectors for Avx512 {
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
const WIDTH: usize = 64;

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn plane(lanes: &Lanes, bit: usize) -> Plane {
    let mut plane = [0; GROUP / WIDTH];
    for (word, lanes) in plane.iter_mut().zip(lanes.as_chunks::<WIDTH>().0) {
        // SAFETY: the array is as long as the vector, and the load needs no alignment.
        let lanes = unsafe { _mm512_loadu_si512(lanes.as_ptr().cast()) };
        *word = _mm512_test_epi8_mask(lanes, _mm512_set1_epi8((1u8 << bit) as i8));
    }
    plane
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn lanes(planes: &[[u8; PLANE_BYTES]]) -> Lanes {
    let mut lanes = [0; GROUP];
    for (part, to) in lanes.as_chunks_mut::<WIDTH>().0.iter_mut().enumerate() {
        let mut sum = _mm512_setzero_si512();
        for (bit, plane) in planes.iter().enumerate() {
            let set = u64::from_le_bytes(plane.as_chunks().0[part]);
            sum = _mm512_mask_add_epi8(sum, set, sum, _mm512_set1_epi8((1u8 << bit) as i8));
        }
        // SAFETY: the array is as long as the vector, and the store needs no alignment.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), sum) };
    }
    lanes
}
