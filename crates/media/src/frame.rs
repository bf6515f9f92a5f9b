//! A frame, and how many of them a second has.

use crate::{Error, Result};

/// A picture of 8 bits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Red, green and blue of every pixel, row by row.
    pub rgb: Vec<u8>,
}

/// Frames per second, as a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRate {
    /// Frames.
    pub frames: u32,
    /// Seconds.
    pub seconds: u32,
}

/// Parts of a frame per second that are kept.
const PARTS: f64 = 1000.0;

impl FrameRate {
    /// The nearest thousandth.
    ///
    /// # Errors
    /// It is no rate for a video.
    pub fn of(fps: f64) -> Result<FrameRate> {
        if !(0.01..=PARTS).contains(&fps) {
            return Err(Error::Rate(fps));
        }
        Ok(FrameRate::reduced((fps * PARTS).round() as u32, PARTS as u32))
    }

    /// A fraction in its smallest numbers; 1 where it is none.
    #[must_use]
    pub fn reduced(frames: u32, seconds: u32) -> FrameRate {
        let (mut a, mut b) = (frames, seconds);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        match (frames, seconds) {
            (0, _) | (_, 0) => FrameRate { frames: 1, seconds: 1 },
            _ => FrameRate { frames: frames / a, seconds: seconds / a },
        }
    }

    /// Frames per second.
    #[must_use]
    pub fn fps(self) -> f64 {
        f64::from(self.frames) / f64::from(self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_fractions_in_their_smallest_numbers() {
        assert_eq!(FrameRate::of(24.0).unwrap(), FrameRate { frames: 24, seconds: 1 });
        assert_eq!(FrameRate::of(23.976).unwrap(), FrameRate { frames: 2997, seconds: 125 });
        assert_eq!(FrameRate::reduced(30000, 1001), FrameRate { frames: 30000, seconds: 1001 });
        assert_eq!(FrameRate::reduced(0, 5), FrameRate { frames: 1, seconds: 1 });
        for wrong in [0.0, -1.0, f64::NAN, 1e9] {
            assert!(FrameRate::of(wrong).is_err(), "{wrong}");
        }
    }
}
