//! The frames of a track and their times, by a look at all packets: not all containers say them.

use symphonia::core::formats::Track;

use crate::limits::MOST_FRAMES;
use crate::{Error, FrameRate, Result, Source};

/// What was seen.
pub(crate) struct Survey {
    /// When each frame is shown, from the first on, in units of the track's time.
    times: Vec<i64>,
    /// Units that all frames take.
    units: u64,
    /// Units of a second.
    base: Option<(u64, u64)>,
}

impl Survey {
    /// Of a track, whose frames may be shown at other times than its packets say. What comes behind a damaged place is told when frames are read.
    pub(crate) fn of(
        source: &Source,
        track: &Track,
        shown: Option<&[i64]>,
        goes_on: &dyn Fn() -> bool,
    ) -> Result<Survey> {
        let mut container = source.open()?;
        let (mut times, mut units) = (Vec::new(), 0u64);
        while let Ok(Some(packet)) = container.next_packet() {
            if !goes_on() {
                return Err(Error::Cancelled);
            }
            if packet.track_id != track.id {
                continue;
            }
            if times.len() as u64 >= MOST_FRAMES {
                return Err(source.unreadable(format!("it says that it has more than {MOST_FRAMES} frames")));
            }
            units = units.saturating_add(packet.dur.get());
            times.push(packet.pts.get());
        }
        if let Some(shown) = shown.filter(|shown| shown.len() == times.len()) {
            times.copy_from_slice(shown);
        }
        // Packets stand in the order in which they are decoded.
        times.sort_unstable();
        let first = times.first().copied().unwrap_or(0);
        times.iter_mut().for_each(|time| *time = time.saturating_sub(first));
        let between = times.last().map_or(0, |last| last.unsigned_abs());
        if units <= between && times.len() > 1 {
            // Packets without lengths, or with those of decoding: what lies between the first and the last is one length less.
            units = between.saturating_mul(times.len() as u64) / (times.len() as u64 - 1);
        }
        let base = track.time_base.map(|base| (u64::from(base.numer.get()), u64::from(base.denom.get())));
        Ok(Survey { times, units, base })
    }

    pub(crate) fn frames(&self) -> u64 {
        self.times.len() as u64
    }

    /// Seconds from the first frame to one; none behind the last, or where the track has no time.
    pub(crate) fn time(&self, frame: usize) -> Option<f64> {
        let (numer, denom) = self.base?;
        self.times.get(frame).map(|time| *time as f64 * numer as f64 / denom as f64)
    }

    /// Seconds that all frames take.
    pub(crate) fn seconds(&self) -> Option<f64> {
        let (numer, denom) = self.base.filter(|_| self.units > 0)?;
        Some(self.units as f64 * numer as f64 / denom as f64)
    }

    /// Frames per second; the mean if they take different times.
    pub(crate) fn rate(&self) -> FrameRate {
        let unknown = FrameRate { frames: 1, seconds: 1 };
        let Some((numer, denom)) = self.base.filter(|_| self.units > 0 && self.frames() > 0) else {
            return unknown;
        };
        let frames = self.frames().saturating_mul(denom);
        let units = self.units.saturating_mul(numer);
        let divisor = gcd(frames, units);
        match (u32::try_from(frames / divisor), u32::try_from(units / divisor)) {
            (Ok(frames), Ok(seconds)) => FrameRate::reduced(frames, seconds),
            _ => FrameRate::of(frames as f64 / units as f64).unwrap_or(unknown),
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}
