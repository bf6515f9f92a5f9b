//! Vectors of f32 in the widths that processors have, and the exponential that attention needs.

use std::f32::consts::LN_2;

use super::turn::Columns;

/// A vector of f32. The methods must be inlined into a function that is compiled for the vector's
/// instruction set, which is why all are `inline(always)`.
///
/// # Safety
/// Implementors must touch exactly [`Vector::LANES`] values in `load` and `store`. Callers of any method
/// must know that the processor has the instruction set.
pub(super) unsafe trait Vector: Copy {
    /// Number of values.
    const LANES: usize;

    /// The same value in every lane.
    unsafe fn splat(value: f32) -> Self;

    /// Reads values, which need no alignment.
    unsafe fn load(from: *const f32) -> Self;

    /// Writes values, which need no alignment.
    unsafe fn store(self, to: *mut f32);

    /// The sum.
    unsafe fn add(self, other: Self) -> Self;

    /// The difference.
    unsafe fn sub(self, other: Self) -> Self;

    /// `self · factor + term`, rounded once where the hardware has it.
    unsafe fn mul_add(self, factor: Self, term: Self) -> Self;

    /// The larger; `other` where either is NaN.
    unsafe fn max(self, other: Self) -> Self;

    /// `other` where `self` equals `value`, else `self`.
    unsafe fn replace(self, value: Self, other: Self) -> Self;

    /// `self` times two to the integer in the low bits of `exponent`, which must not overflow or
    /// underflow; 0 where `argument` is below `limit`.
    unsafe fn scale_or_zero(self, exponent: Self, argument: Self, limit: Self) -> Self;

    /// Turns eight rows of eight numbers, number `i` of each multiplied by factor `i`.
    #[inline(always)]
    unsafe fn turn_block(rows: [*const f32; 8], factors: *const f32, target: Columns) {
        for (r, row) in rows.into_iter().enumerate() {
            for i in 0..8 {
                // SAFETY: the caller gives eight readable numbers each, and room for them.
                unsafe { *target.start.add(i * target.pitch + r) = *row.add(i) * *factors.add(i) };
            }
        }
    }
}

/// 2ˣ for `x` up to 0, within one unit in the last place. Below -126 it is exactly 0; NaN stays.
///
/// # Safety
/// The processor must have the instruction set of `V`.
#[inline(always)]
pub(super) unsafe fn exp2_nonpositive<V: Vector>(x: V) -> V {
    /// Fitted to 2ʳ - 1 over r, from -½ to ½, the lowest power first; the error is 2e-9.
    const POLYNOMIAL: [f32; 6] =
        [LN_2, 0.240_226_48, 0.055_503_324, 0.009_618_437, 0.001_339_887_4, 0.000_153_533_62];
    /// Adding this leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    // SAFETY: the caller knows that the processor has the instruction set.
    unsafe {
        let limit = V::splat(-126.0);
        let limited = limit.max(x);
        let rounded = limited.add(V::splat(ROUND));
        let rest = limited.sub(rounded.sub(V::splat(ROUND)));
        let mut sum = V::splat(POLYNOMIAL[5]);
        let mut power = 5;
        while power > 0 {
            power -= 1;
            sum = sum.mul_add(rest, V::splat(POLYNOMIAL[power]));
        }
        sum.mul_add(rest, V::splat(1.0)).scale_or_zero(rounded, x, limit)
    }
}

/// Vectors of every processor, in whatever the compiler makes of them.
#[derive(Clone, Copy)]
#[repr(align(16))]
pub(super) struct Portable([f32; 4]);

impl Portable {
    #[inline(always)]
    fn zip(self, other: Portable, f: impl Fn(f32, f32) -> f32) -> Portable {
        let ([a, b, c, d], [e, g, h, i]) = (self.0, other.0);
        Portable([f(a, e), f(b, g), f(c, h), f(d, i)])
    }
}

// SAFETY: loads and stores touch four values, and the instructions are those of the architecture.
unsafe impl Vector for Portable {
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(value: f32) -> Portable {
        Portable([value; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Portable {
        // SAFETY: the caller gives four readable values.
        Portable(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller gives four writable values.
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn add(self, other: Portable) -> Portable {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn sub(self, other: Portable) -> Portable {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Portable, term: Portable) -> Portable {
        // Without the instruction a fused product is a slow call into the C library.
        if cfg!(target_arch = "aarch64") {
            let ([a, b, c, d], [e, f, g, h], [i, j, k, l]) = (self.0, factor.0, term.0);
            return Portable([a.mul_add(e, i), b.mul_add(f, j), c.mul_add(g, k), d.mul_add(h, l)]);
        }
        self.zip(factor, |a, b| a * b).zip(term, |a, b| a + b)
    }

    #[inline(always)]
    unsafe fn max(self, other: Portable) -> Portable {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    unsafe fn replace(self, value: Portable, other: Portable) -> Portable {
        let mut lanes = self.0;
        for (i, lane) in lanes.iter_mut().enumerate() {
            *lane = if *lane == value.0[i] { other.0[i] } else { *lane };
        }
        Portable(lanes)
    }

    #[inline(always)]
    unsafe fn scale_or_zero(self, exponent: Portable, argument: Portable, limit: Portable) -> Portable {
        let mut lanes = self.0;
        for (i, lane) in lanes.iter_mut().enumerate() {
            let scaled = f32::from_bits(lane.to_bits().wrapping_add(exponent.0[i].to_bits() << 23));
            *lane = if argument.0[i] < limit.0[i] { 0.0 } else { scaled };
        }
        Portable(lanes)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    //! The vectors of x86.

    use std::arch::x86_64::*;

    use super::{Columns, Vector};

    /// Eight values; needs AVX2 and FMA.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(__m256);

    /// Sixteen values; needs AVX-512F.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx512(__m512);

    /// Methods that are one instruction each.
    macro_rules! single_instructions {
        ($vector:ident: $splat:ident $load:ident $store:ident $add:ident $sub:ident $fma:ident $max:ident) => {
            #[inline(always)]
            unsafe fn splat(value: f32) -> $vector {
                // SAFETY: the caller knows that the processor has the instruction.
                $vector(unsafe { $splat(value) })
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> $vector {
                // SAFETY: as above, and the caller gives enough readable values.
                $vector(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: as above, and the caller gives enough writable values.
                unsafe { $store(to, self.0) }
            }

            #[inline(always)]
            unsafe fn add(self, other: $vector) -> $vector {
                // SAFETY: the caller knows that the processor has the instruction.
                $vector(unsafe { $add(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn sub(self, other: $vector) -> $vector {
                // SAFETY: as above.
                $vector(unsafe { $sub(self.0, other.0) })
            }

            #[inline(always)]
            unsafe fn mul_add(self, factor: $vector, term: $vector) -> $vector {
                // SAFETY: as above.
                $vector(unsafe { $fma(self.0, factor.0, term.0) })
            }

            #[inline(always)]
            unsafe fn max(self, other: $vector) -> $vector {
                // SAFETY: as above.
                $vector(unsafe { $max(self.0, other.0) })
            }
        };
    }

    /// Turns a block within registers: pairs, then fours, then halves are exchanged.
    ///
    /// # Safety
    /// As for [`Vector::turn_block`]; the processor has AVX2.
    #[inline(always)]
    unsafe fn turn_block(rows: [*const f32; 8], factors: *const f32, target: Columns) {
        // SAFETY: the caller gives eight readable numbers each, room for them, and the instruction set.
        unsafe {
            // No closures here: they would not be compiled for the instruction set.
            let factors = _mm256_loadu_ps(factors);
            let mut row = [factors; 8];
            for (row, from) in row.iter_mut().zip(rows) {
                *row = _mm256_mul_ps(_mm256_loadu_ps(from), factors);
            }
            let mut fours = [[factors; 2]; 4];
            for (half, [p, q, r, s]) in row.as_chunks::<4>().0.iter().enumerate() {
                let (a, b) = (_mm256_unpacklo_ps(*p, *q), _mm256_unpackhi_ps(*p, *q));
                let (c, d) = (_mm256_unpacklo_ps(*r, *s), _mm256_unpackhi_ps(*r, *s));
                fours[0][half] = _mm256_shuffle_ps::<0x44>(a, c);
                fours[1][half] = _mm256_shuffle_ps::<0xEE>(a, c);
                fours[2][half] = _mm256_shuffle_ps::<0x44>(b, d);
                fours[3][half] = _mm256_shuffle_ps::<0xEE>(b, d);
            }
            for (i, [first, second]) in fours.into_iter().enumerate() {
                let low = _mm256_permute2f128_ps::<0x20>(first, second);
                let high = _mm256_permute2f128_ps::<0x31>(first, second);
                _mm256_storeu_ps(target.start.add(i * target.pitch), low);
                _mm256_storeu_ps(target.start.add((i + 4) * target.pitch), high);
            }
        }
    }

    // SAFETY: loads and stores touch eight values.
    unsafe impl Vector for Avx2 {
        const LANES: usize = 8;

        single_instructions!(Avx2: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_sub_ps
            _mm256_fmadd_ps _mm256_max_ps);

        #[inline(always)]
        unsafe fn replace(self, value: Avx2, other: Avx2) -> Avx2 {
            // SAFETY: the caller knows that the processor has the instructions.
            unsafe {
                let equal = _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, value.0);
                Avx2(_mm256_blendv_ps(self.0, other.0, equal))
            }
        }

        #[inline(always)]
        unsafe fn scale_or_zero(self, exponent: Avx2, argument: Avx2, limit: Avx2) -> Avx2 {
            // SAFETY: the caller knows that the processor has the instructions.
            unsafe {
                let exponent = _mm256_slli_epi32::<23>(_mm256_castps_si256(exponent.0));
                let scaled = _mm256_add_epi32(_mm256_castps_si256(self.0), exponent);
                let kept = _mm256_cmp_ps::<_CMP_NLT_UQ>(argument.0, limit.0);
                Avx2(_mm256_and_ps(kept, _mm256_castsi256_ps(scaled)))
            }
        }

        #[inline(always)]
        unsafe fn turn_block(rows: [*const f32; 8], factors: *const f32, target: Columns) {
            // SAFETY: the caller vouches for the memory and the instruction set.
            unsafe { turn_block(rows, factors, target) }
        }
    }

    // SAFETY: loads and stores touch sixteen values.
    unsafe impl Vector for Avx512 {
        const LANES: usize = 16;

        single_instructions!(Avx512: _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_sub_ps
            _mm512_fmadd_ps _mm512_max_ps);

        #[inline(always)]
        unsafe fn replace(self, value: Avx512, other: Avx512) -> Avx512 {
            // SAFETY: the caller knows that the processor has the instructions.
            unsafe {
                let equal = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, value.0);
                Avx512(_mm512_mask_blend_ps(equal, self.0, other.0))
            }
        }

        #[inline(always)]
        unsafe fn scale_or_zero(self, exponent: Avx512, argument: Avx512, limit: Avx512) -> Avx512 {
            // SAFETY: the caller knows that the processor has the instructions.
            unsafe {
                let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(exponent.0));
                let kept = _mm512_cmp_ps_mask::<_CMP_NLT_UQ>(argument.0, limit.0);
                let scaled = _mm512_maskz_add_epi32(kept, _mm512_castps_si512(self.0), exponent);
                Avx512(_mm512_castsi512_ps(scaled))
            }
        }

        #[inline(always)]
        unsafe fn turn_block(rows: [*const f32; 8], factors: *const f32, target: Columns) {
            // SAFETY: the caller vouches for the memory and the instruction set.
            unsafe { turn_block(rows, factors, target) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// # Safety
    /// The processor must have the instruction set of `V`.
    #[inline(always)]
    unsafe fn exp2_all<V: Vector>(values: &mut [f32]) {
        for values in values.chunks_exact_mut(V::LANES) {
            // SAFETY: the caller knows that the processor has the instruction set.
            unsafe { exp2_nonpositive(V::load(values.as_ptr())).store(values.as_mut_ptr()) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    fn exp2_avx2(values: &mut [f32]) {
        // SAFETY: the function has the instruction set.
        unsafe { exp2_all::<Avx2>(values) };
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,avx512f")]
    fn exp2_avx512(values: &mut [f32]) {
        // SAFETY: the function has the instruction set.
        unsafe { exp2_all::<Avx512>(values) };
    }

    fn check(exp2_all: impl Fn(&mut [f32])) {
        let arguments: Vec<f32> = (0..160_000).map(|i| i as f32 * -7.874e-4).collect();
        let mut values = arguments.clone();
        exp2_all(&mut values);
        for (argument, got) in arguments.into_iter().zip(values) {
            let want = f64::from(argument).exp2();
            let error = (f64::from(got) - want).abs() / want;
            assert!(error < 1.5e-7, "2^{argument}: {got}, not {want}, error {error:e}");
        }
        let mut special = [0.0, -0.0, -126.0, -126.01, -1e30, f32::NEG_INFINITY, f32::NAN, -1.0].repeat(2);
        exp2_all(&mut special);
        assert_eq!(special[..6], [1.0, 1.0, f32::MIN_POSITIVE, 0.0, 0.0, 0.0]);
        assert!(special[6].is_nan() && special[7] == 0.5);
    }

    #[test]
    fn powers_of_two_are_accurate_on_every_instruction_set() {
        // SAFETY: it needs nothing.
        check(|values| unsafe { exp2_all::<Portable>(values) });
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            // SAFETY: the processor has just been asked for these instructions.
            check(|values| unsafe { exp2_avx2(values) });
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: as above.
                check(|values| unsafe { exp2_avx512(values) });
            }
        }
    }
}
