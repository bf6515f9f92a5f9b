//! The beta distribution's quantiles, by inverting its regularised incomplete beta function.

/// The `x` at which the distribution function with these parameters is `p`.
pub(super) fn quantile(p: f64, a: f64, b: f64) -> f64 {
    if p <= 0.0 || p >= 1.0 {
        return p.clamp(0.0, 1.0);
    }
    if a == b && p == 0.5 {
        // By symmetry; a last digit lost here would move a table position that lies between two.
        return 0.5;
    }
    // The function rises strictly, so halving always gets there; no derivative misleads it at the ends.
    let (mut low, mut high) = (0.0f64, 1.0f64);
    loop {
        let middle = 0.5 * (low + high);
        if middle <= low || middle >= high {
            return middle;
        }
        if distribution(middle, a, b) < p { low = middle } else { high = middle }
    }
}

/// The regularised incomplete beta function.
fn distribution(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    let front = (a * x.ln() + b * (-x).ln_1p() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp();
    if x < (a + 1.0) / (a + b + 2.0) {
        front * fraction(x, a, b) / a
    } else {
        1.0 - front * fraction(1.0 - x, b, a) / b
    }
}

/// The continued fraction of the incomplete beta function, by Lentz's method.
fn fraction(x: f64, a: f64, b: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let keep = |v: f64| if v.abs() < TINY { TINY } else { v };
    let mut c = 1.0;
    let mut d = 1.0 / keep(1.0 - (a + b) * x / (a + 1.0));
    let mut value = d;
    for m in 1..10_000 {
        let m = f64::from(m);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let mut change = 1.0;
        for term in [even, odd] {
            d = 1.0 / keep(1.0 + term * d);
            c = keep(1.0 + term / c);
            change = c * d;
            value *= change;
        }
        if (change - 1.0).abs() < 1e-16 {
            break;
        }
    }
    value
}

/// The logarithm of the gamma function of a positive number (Lanczos, nine terms).
#[allow(clippy::excessive_precision, reason = "the published coefficients")]
fn ln_gamma(x: f64) -> f64 {
    const G: f64 = 7.0;
    const TERMS: [f64; 9] = [
        0.999_999_999_999_809_932_276_847_004_734_780,
        676.520_368_121_885_098_567_009_190_444_019,
        -1_259.139_216_722_402_870_471_560_787_552_828,
        771.323_428_777_653_078_848_652_825_889_445,
        -176.615_029_162_140_599_065_845_513_540_045,
        12.507_343_278_686_904_814_458_936_853_252,
        -0.138_571_095_265_720_116_895_547_027_985_868,
        9.984_369_578_019_570_859_563_000_184_495_2e-6,
        1.505_632_735_149_311_558_338_355_775_386_4e-7,
    ];
    if x < 0.5 {
        return (std::f64::consts::PI / (std::f64::consts::PI * x).sin()).ln() - ln_gamma(1.0 - x);
    }
    let x = x - 1.0;
    let t = x + G + 0.5;
    let series = TERMS.iter().enumerate().skip(1).fold(TERMS[0], |sum, (i, c)| sum + c / (x + i as f64));
    0.5 * (2.0 * std::f64::consts::PI).ln() + (x + 0.5) * t.ln() - t + series.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_of_known_distributions() {
        // Uniform, arcsine and a power: their inverses are elementary.
        for p in [0.001, 0.1, 0.37, 0.5, 0.9, 0.9999] {
            assert!((quantile(p, 1.0, 1.0) - p).abs() < 1e-12);
            let arcsine = (std::f64::consts::FRAC_PI_2 * p).sin().powi(2);
            assert!((quantile(p, 0.5, 0.5) - arcsine).abs() < 1e-12, "{p}");
            assert!((quantile(p, 3.0, 1.0) - p.cbrt()).abs() < 1e-12, "{p}");
        }
    }
}
