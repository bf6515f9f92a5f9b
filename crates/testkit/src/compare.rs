//! How far a tensor is from the one it should be, and where. A NaN, a missing value or an empty tensor is
//! infinitely far from everything.

use std::fmt;

/// The result of comparing a tensor with the one wanted.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// What was compared.
    pub name: String,
    /// Largest difference over the largest magnitude wanted. Infinite if any value is NaN, if lengths differ or if
    /// there is nothing to compare.
    pub relative: f64,
    /// Length of the difference over the length of what is wanted, both seen as vectors.
    pub norm: f64,
    /// Cosine of the angle between the two vectors; 1 where both are all zero, 0 where one is.
    pub cosine: f64,
    /// Values given and values wanted.
    pub lengths: (usize, usize),
    /// The first of the worst elements, if any differs.
    pub worst: Option<Worst>,
}

/// One element of two tensors.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Worst {
    /// Flat, row-major index.
    pub index: usize,
    /// The value given.
    pub got: f32,
    /// The value wanted.
    pub want: f32,
}

impl Report {
    /// Compares `got` with `want`.
    pub fn new(name: impl Into<String>, got: &[f32], want: &[f32]) -> Report {
        let largest = want.iter().filter(|v| v.is_finite()).fold(0f32, |most, v| most.max(v.abs()));
        Report::with_scale(name, got, want, f64::from(largest))
    }

    /// Compares with the relative error measured against `scale` instead of the largest magnitude wanted: for
    /// values that are small differences of large ones, such as means.
    pub fn with_scale(name: impl Into<String>, got: &[f32], want: &[f32], scale: f64) -> Report {
        let mut sums = Sums::default();
        let mut largest = 0f64;
        let mut worst = None;
        for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
            let difference = difference(got, want);
            if difference > largest {
                largest = difference;
                worst = Some(Worst { index, got, want });
            }
            sums.add(got, want);
        }
        let comparable = got.len() == want.len() && !got.is_empty();
        let ratio = |part: f64, whole: f64| if part == 0.0 { 0.0 } else { part / whole };
        Report {
            name: name.into(),
            relative: if comparable { ratio(largest, scale) } else { f64::INFINITY },
            norm: if comparable && largest.is_finite() { sums.norm() } else { f64::INFINITY },
            cosine: if comparable && largest.is_finite() { sums.cosine() } else { 0.0 },
            lengths: (got.len(), want.len()),
            worst,
        }
    }

    /// Whether the relative error is at most `tolerance`.
    pub fn passes(&self, tolerance: f64) -> bool {
        self.relative <= tolerance
    }

    /// Panics with the report if the relative error is above `tolerance`.
    #[track_caller]
    pub fn assert(&self, tolerance: f64) {
        assert!(self.passes(tolerance), "tolerance {tolerance:.1e} passed by {self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (got, want) = self.lengths;
        write!(f, "'{}': ", self.name)?;
        if got != want {
            return write!(f, "{got} values given, {want} wanted");
        }
        if got == 0 {
            return write!(f, "nothing to compare");
        }
        write!(f, "error {:.3e} (norm {:.3e}, cosine {:.9})", self.relative, self.norm, self.cosine)?;
        match self.worst {
            Some(Worst { index, got, want }) => write!(f, ", worst at {index}: got {got:e}, want {want:e}"),
            None => write!(f, ", no value differs"),
        }
    }
}

/// Panics if the largest difference over the largest magnitude in `want` is above `tolerance`, saying which tensor,
/// how far, and where it is worst. Values that are NaN never pass, and neither do empty tensors.
#[track_caller]
pub fn assert_close(name: &str, got: &[f32], want: &[f32], tolerance: f64) {
    Report::new(name, got, want).assert(tolerance);
}

/// Distance of two values; infinite where one is NaN. Equal infinities are equal.
fn difference(got: f32, want: f32) -> f64 {
    if got == want {
        return 0.0;
    }
    let difference = (f64::from(got) - f64::from(want)).abs();
    if difference.is_nan() { f64::INFINITY } else { difference }
}

/// Running sums over pairs of values.
#[derive(Default)]
struct Sums {
    got: f64,
    want: f64,
    product: f64,
    difference: f64,
}

impl Sums {
    fn add(&mut self, got: f32, want: f32) {
        let (got, want) = (f64::from(got), f64::from(want));
        self.got += got * got;
        self.want += want * want;
        self.product += got * want;
        self.difference += (got - want) * (got - want);
    }

    fn norm(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.want).sqrt() }
    }

    fn cosine(&self) -> f64 {
        match (self.got == 0.0, self.want == 0.0) {
            (true, true) => 1.0,
            (false, false) => self.product / (self.got.sqrt() * self.want.sqrt()),
            _ => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_what_it_says() {
        let report = Report::new("t", &[3.0, 4.5, -1.0], &[3.0, 4.0, -1.25]);
        assert_eq!(report.relative, 0.125);
        assert_eq!(report.worst, Some(Worst { index: 1, got: 4.5, want: 4.0 }));
        assert!((report.norm - (0.3125f64 / 26.5625).sqrt()).abs() < 1e-12);
        assert!((report.cosine - 28.25 / (30.25f64 * 26.5625).sqrt()).abs() < 1e-12);
        assert!(report.passes(0.125) && !report.passes(0.1249));
        let text = report.to_string();
        assert!(text.contains("'t'") && text.contains("worst at 1: got 4.5e0, want 4e0"), "{text}");
    }

    #[test]
    fn equal_tensors_have_no_error() {
        for values in [vec![1.0, -2.0], vec![0.0; 3], vec![f32::INFINITY, 1.0]] {
            let report = Report::new("t", &values, &values);
            assert_eq!((report.relative, report.worst), (0.0, None), "{values:?}");
            assert!(report.passes(0.0));
        }
        assert_eq!(Report::new("t", &[0.0], &[0.0]).cosine, 1.0);
    }

    #[test]
    fn what_never_passes() {
        for (got, want) in [
            (&[f32::NAN, 1.0][..], &[1.0, 1.0][..]),
            (&[1.0, 1.0], &[1.0, f32::NAN]),
            (&[f32::NAN], &[f32::NAN]),
            (&[f32::INFINITY], &[1.0]),
            (&[f32::INFINITY], &[f32::NEG_INFINITY]),
            (&[1.0], &[f32::INFINITY]),
            (&[1e-30], &[0.0]),
            (&[], &[]),
            (&[1.0, 2.0], &[1.0]),
            (&[1.0], &[1.0, 2.0]),
        ] {
            let report = Report::new("t", got, want);
            assert!(!report.passes(f64::MAX), "{report}");
            assert!(
                report.relative.is_infinite() && !report.norm.is_nan() && !report.cosine.is_nan(),
                "{report:?}"
            );
        }
    }

    #[test]
    #[should_panic(expected = "tolerance 1.0e-3 passed by 'block.0': error 5.000e-1 (norm 5.000e-1")]
    fn the_panic_tells_the_story() {
        assert_close("block.0", &[1.0], &[2.0], 1e-3);
    }
}
