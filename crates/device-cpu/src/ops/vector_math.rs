//! Loops compiled for each instruction set, and transcendental functions that vectorise inside them.
//!
//! A loop is a [`Kernel`]. [`dispatch`] runs the copy of it that was compiled for the widest instruction
//! set here, which is looked up once. The bits of a result may differ between instruction sets, because
//! multiplications and additions are fused where the hardware can; on one machine they never do.
//!
//! Largest errors against f64 over the samples of the tests, in units in the last place: exp 1.0,
//! sigmoid 2.3, tanh 1.4, erf 1.2. NaN gives NaN, and infinities give the limits.

use std::sync::OnceLock;

/// A product and sum in one step, rounded once where the hardware has it.
pub(crate) trait Arithmetic: Copy {
    /// `a · b + c`.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;
}

/// Rounds once.
#[derive(Clone, Copy)]
pub(crate) struct Fused;

/// Rounds the product, then the sum.
#[derive(Clone, Copy)]
#[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "every aarch64 fuses"))]
pub(crate) struct Separate;

impl Arithmetic for Fused {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }
}

impl Arithmetic for Separate {
    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }
}

/// A loop with its arguments. `run`, and all that its inner loops call, must be `#[inline(always)]`, which
/// a closure cannot be: only what is inlined is compiled for the instruction set.
pub(crate) trait Kernel {
    /// What the loop gives.
    type Output;

    /// The loop.
    fn run<A: Arithmetic>(self) -> Self::Output;
}

#[derive(Clone, Copy)]
enum InstructionSet {
    /// What every processor of the architecture has.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

fn instruction_set() -> InstructionSet {
    static FOUND: OnceLock<InstructionSet> = OnceLock::new();
    *FOUND.get_or_init(find_instruction_set)
}

#[cfg(target_arch = "x86_64")]
fn find_instruction_set() -> InstructionSet {
    let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    let avx512 = avx2
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq");
    match (avx512, avx2) {
        (true, _) => InstructionSet::Avx512,
        (false, true) => InstructionSet::Avx2,
        (false, false) => InstructionSet::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn find_instruction_set() -> InstructionSet {
    InstructionSet::Baseline
}

/// Runs a loop with the widest instructions here.
#[inline]
pub(crate) fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    match instruction_set() {
        #[cfg(target_arch = "aarch64")]
        InstructionSet::Baseline => kernel.run::<Fused>(),
        #[cfg(not(target_arch = "aarch64"))]
        InstructionSet::Baseline => kernel.run::<Separate>(),
        // SAFETY: the features have been found.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx2 => unsafe { run_avx2(kernel) },
        // SAFETY: the features have been found.
        #[cfg(target_arch = "x86_64")]
        InstructionSet::Avx512 => unsafe { run_avx512(kernel) },
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Fused>()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]
fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Fused>()
}

/// A polynomial, the highest power first.
#[inline(always)]
fn polynomial<A: Arithmetic, const N: usize>(x: f32, coefficients: [f32; N]) -> f32 {
    let mut sum = coefficients[0];
    let mut i = 1;
    while i < N {
        sum = A::mul_add(sum, x, coefficients[i]);
        i += 1;
    }
    sum
}

/// Into a range; NaN stays, which `f32::max` would not let it.
#[inline(always)]
fn limit(x: f32, low: f32, high: f32) -> f32 {
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// 2ⁿ for n from -126 to 127.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `eˣ`, with gradual underflow.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "coefficients as they were fitted")]
pub(crate) fn exp<A: Arithmetic>(x: f32) -> f32 {
    // Adding this leaves the nearest integer in the low bits of the sum.
    const ROUND: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_375;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    // Beyond these the result is 0 or infinite.
    let x = limit(x, -104.0, 89.0);
    let rounded = A::mul_add(x, std::f32::consts::LOG2_E, ROUND);
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let whole = rounded - ROUND;
    let r = A::mul_add(whole, -LN2_LOW, A::mul_add(whole, -LN2_HIGH, x));
    let p = polynomial::<A, 6>(
        r,
        [
            1.987_569_15e-4,
            1.398_199_950_7e-3,
            8.333_451_907_3e-3,
            4.166_579_589_4e-2,
            1.666_666_545_9e-1,
            5.000_000_120_1e-1,
        ],
    );
    let e = A::mul_add(p, r * r, r) + 1.0;
    // Two steps, because 2ⁿ alone may not be a number where eˣ is.
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

/// `1 / (1 + e⁻ˣ)`.
#[inline(always)]
pub(crate) fn sigmoid<A: Arithmetic>(x: f32) -> f32 {
    let e = exp::<A>(-x.abs());
    let top = if x < 0.0 { e } else { 1.0 };
    top / (1.0 + e)
}

/// Hyperbolic tangent.
#[inline(always)]
#[allow(clippy::excessive_precision, reason = "coefficients as they were fitted")]
pub(crate) fn tanh<A: Arithmetic>(x: f32) -> f32 {
    let t = x.abs();
    let s = x * x;
    let p = polynomial::<A, 5>(
        s,
        [
            -5.704_988_727_45e-3,
            2.063_908_879_54e-2,
            -5.373_971_555_31e-2,
            1.333_144_220_36e-1,
            -3.333_328_194_22e-1,
        ],
    );
    let near = A::mul_add(p * s, x, x);
    let far = (1.0 - 2.0 / (exp::<A>(2.0 * t) + 1.0)).copysign(x);
    if t < 0.625 { near } else { far }
}

/// The error function.
#[inline(always)]
pub(crate) fn erf<A: Arithmetic>(x: f32) -> f32 {
    // erf(x) / x - 1 in powers of x², fitted for |x| up to 1.
    const NEAR: [f32; 7] = [
        7.882_497_4e-5,
        -8.018_855e-4,
        5.189_312e-3,
        -2.685_433e-2,
        1.128_359_7e-1,
        -3.761_262_6e-1,
        1.283_791_7e-1,
    ];
    // -ln(1 - erf(x)), fitted for x from 1 to 4, where erf is 1 to the last bit.
    const FAR: [f32; 9] = [
        -1.614_061_6e-6,
        4.559_062_3e-5,
        -5.927_695e-4,
        4.740_222_4e-3,
        -2.636_471_8e-2,
        1.099_782_4e-1,
        6.319_371e-1,
        1.130_166_6,
        -3.032_129_6e-4,
    ];
    let t = limit(x.abs(), 0.0, 4.0);
    let near = A::mul_add(polynomial::<A, 7>(x * x, NEAR), x, x);
    let far = (1.0 - exp::<A>(-polynomial::<A, 9>(t, FAR))).copysign(x);
    if t < 1.0 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A function of one value over a slice, for tests.
    struct Each<'a>(Kind, &'a mut [f32]);

    #[derive(Clone, Copy, Debug)]
    enum Kind {
        Exp,
        Sigmoid,
        Tanh,
        Erf,
    }

    impl Kernel for Each<'_> {
        type Output = ();

        #[inline(always)]
        fn run<A: Arithmetic>(self) {
            for v in self.1 {
                *v = match self.0 {
                    Kind::Exp => exp::<A>(*v),
                    Kind::Sigmoid => sigmoid::<A>(*v),
                    Kind::Tanh => tanh::<A>(*v),
                    Kind::Erf => erf::<A>(*v),
                };
            }
        }
    }

    /// The error function in f64: its series, or the continued fraction of its complement.
    fn erf_f64(x: f64) -> f64 {
        let t = x.abs();
        if t < 3.0 {
            let mut term = t;
            let mut sum = t;
            for n in 1..120 {
                term *= -t * t / f64::from(n);
                sum += term / f64::from(2 * n + 1);
            }
            return (sum * 2.0 / std::f64::consts::PI.sqrt()).copysign(x);
        }
        let fraction = (1..80).rev().fold(t, |f, n| t + f64::from(n) / 2.0 / f);
        (1.0 - (-t * t).exp() / (fraction * std::f64::consts::PI.sqrt())).copysign(x)
    }

    fn exact(kind: Kind, x: f64) -> f64 {
        match kind {
            Kind::Exp => x.exp(),
            Kind::Sigmoid if x < 0.0 => x.exp() / (1.0 + x.exp()),
            Kind::Sigmoid => 1.0 / (1.0 + (-x).exp()),
            Kind::Tanh => x.tanh(),
            Kind::Erf => erf_f64(x),
        }
    }

    /// Distance to the exact value in units in the last place of its f32.
    fn ulps(got: f32, want: f64) -> f64 {
        let near = (want.abs() as f32).max(f32::MIN_POSITIVE);
        let unit = f64::from(f32::from_bits(near.to_bits() + 1)) - f64::from(near);
        (f64::from(got) - want).abs() / unit
    }

    fn worst(kind: Kind, low: f32, high: f32) -> f64 {
        let count = 400_000;
        let x: Vec<f32> = (0..=count).map(|i| low + (high - low) * (i as f32 / count as f32)).collect();
        let mut dispatched = x.clone();
        dispatch(Each(kind, &mut dispatched));
        let mut separate = x.clone();
        Each(kind, &mut separate).run::<Separate>();
        let errors = x.iter().zip(dispatched.iter().zip(&separate)).map(|(x, (a, b))| {
            let want = exact(kind, f64::from(*x));
            ulps(*a, want).max(ulps(*b, want))
        });
        errors.fold(0.0, f64::max)
    }

    #[test]
    fn errors_are_within_the_documented_ones() {
        let cases = [
            (Kind::Exp, -87.0, 88.7, 1.0),
            (Kind::Exp, -1.0, 1.0, 1.0),
            (Kind::Sigmoid, -86.0, 30.0, 2.3),
            (Kind::Tanh, -10.0, 10.0, 1.4),
            (Kind::Tanh, -0.7, 0.7, 1.4),
            (Kind::Erf, -4.5, 4.5, 1.2),
            (Kind::Erf, -0.01, 0.01, 1.2),
        ];
        for (kind, low, high, limit) in cases {
            let error = worst(kind, low, high);
            assert!(error <= limit, "{kind:?} over {low}..{high}: {error} units");
        }
    }

    #[test]
    fn infinities_and_nan() {
        let ends = |kind| {
            let mut v = [f32::NEG_INFINITY, f32::INFINITY, f32::NAN, 1e30, -1e30, 0.0];
            dispatch(Each(kind, &mut v));
            assert!(v[2].is_nan(), "{kind:?}");
            [v[0], v[1], v[3], v[4], v[5]]
        };
        let inf = f32::INFINITY;
        assert_eq!(ends(Kind::Exp), [0.0, inf, inf, 0.0, 1.0]);
        assert_eq!(ends(Kind::Sigmoid), [0.0, 1.0, 1.0, 0.0, 0.5]);
        assert_eq!(ends(Kind::Tanh), [-1.0, 1.0, 1.0, -1.0, 0.0]);
        assert_eq!(ends(Kind::Erf), [-1.0, 1.0, 1.0, -1.0, 0.0]);
    }

    #[test]
    fn exp_underflows_gradually() {
        let mut v = [-90.0f32, -103.0, -103.9, -104.5];
        dispatch(Each(Kind::Exp, &mut v));
        assert_eq!(
            v.map(f32::to_bits),
            [-90.0f64, -103.0, -103.9, -104.5].map(|x| (x.exp() as f32).to_bits())
        );
    }
}
