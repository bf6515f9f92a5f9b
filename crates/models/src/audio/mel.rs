//! The picture of a sound that Whisper looks at: how loud bands of frequencies are from moment to moment, on Slaney's scale
//! of pitch.

use std::f64::consts::TAU;

/// Values of a moment's window.
const WINDOW: usize = 400;
/// From one moment to the next.
const STEP: usize = 160;
/// Frequencies of a window.
const FREQUENCIES: usize = WINDOW / 2 + 1;
/// The highest frequency.
const HIGHEST_HZ: f64 = 8000.0;
/// The least loudness that counts.
const QUIET: f64 = 1e-10;
/// How far below the loudest the quietest is, in powers of ten.
const DEPTH: f64 = 8.0;

/// Pitch and frequency are proportional up to here, and the logarithm of frequency from here on.
const BEND_HZ: f64 = 1000.0;
const HZ_PER_PITCH: f64 = 200.0 / 3.0;
/// How much a pitch is above the bend: 27 of them are a factor of 6.4.
const PITCHES: f64 = 27.0;
const FACTOR: f64 = 6.4;

fn hz(pitch: f64) -> f64 {
    let bend = BEND_HZ / HZ_PER_PITCH;
    if pitch < bend { pitch * HZ_PER_PITCH } else { BEND_HZ * FACTOR.powf((pitch - bend) / PITCHES) }
}

fn pitch(hz: f64) -> f64 {
    if hz < BEND_HZ {
        hz / HZ_PER_PITCH
    } else {
        BEND_HZ / HZ_PER_PITCH + (hz / BEND_HZ).ln() / FACTOR.ln() * PITCHES
    }
}

/// How much each frequency counts in each band: triangles of equal areas.
fn bands(count: usize) -> Vec<Vec<f64>> {
    let corner = |at: usize| hz(pitch(HIGHEST_HZ) * at as f64 / (count + 1) as f64);
    let frequency = |at: usize| HIGHEST_HZ * at as f64 / (FREQUENCIES - 1) as f64;
    let band = |band: usize| {
        let [from, peak, to] = [corner(band), corner(band + 1), corner(band + 2)];
        let weight = |at: usize| {
            let (up, down) = ((frequency(at) - from) / (peak - from), (to - frequency(at)) / (to - peak));
            up.min(down).max(0.0) * 2.0 / (to - from)
        };
        (0..FREQUENCIES).map(weight).collect()
    };
    (0..count).map(band).collect()
}

/// The picture of a sound, band by band `[count, moments]`; there is a moment for every step of the sound.
pub(super) fn picture(sound: &[f32], count: usize) -> Vec<f32> {
    let moments = sound.len() / STEP;
    let hann: Vec<f64> = (0..WINDOW).map(|at| 0.5 - 0.5 * (TAU * at as f64 / WINDOW as f64).cos()).collect();
    let turns: Vec<(f64, f64)> = (0..WINDOW)
        .map(|at| {
            let angle = TAU * at as f64 / WINDOW as f64;
            (angle.cos(), angle.sin())
        })
        .collect();
    let bands = bands(count);
    let mut loud = vec![0.0f64; count * moments];
    let mut windowed = vec![0.0f64; WINDOW];
    let mut power = vec![0.0f64; FREQUENCIES];
    for moment in 0..moments {
        for (at, value) in windowed.iter_mut().enumerate() {
            let place = (moment * STEP + at) as isize - (WINDOW / 2) as isize;
            *value = f64::from(mirrored(sound, place)) * hann[at];
        }
        if windowed.iter().all(|value| *value == 0.0) {
            power.fill(0.0);
        } else {
            for (frequency, power) in power.iter_mut().enumerate() {
                let (mut re, mut im) = (0.0, 0.0);
                for (at, value) in windowed.iter().enumerate() {
                    let (cos, sin) = turns[frequency * at % WINDOW];
                    re += value * cos;
                    im -= value * sin;
                }
                *power = re * re + im * im;
            }
        }
        for (band, weights) in bands.iter().enumerate() {
            loud[band * moments + moment] =
                weights.iter().zip(&power).map(|(weight, power)| weight * power).sum();
        }
    }
    let logarithms: Vec<f64> = loud.iter().map(|value| value.max(QUIET).log10()).collect();
    let loudest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    logarithms.iter().map(|value| ((value.max(loudest - DEPTH) + 4.0) / 4.0) as f32).collect()
}

/// A value of a sound, which goes on backwards beyond its ends.
fn mirrored(sound: &[f32], place: isize) -> f32 {
    let last = sound.len() as isize - 1;
    let inside = if place < 0 {
        -place
    } else if place > last {
        2 * last - place
    } else {
        place
    };
    usize::try_from(inside).ok().and_then(|at| sound.get(at)).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tone_is_loudest_in_its_band() {
        let tone: Vec<f32> =
            (0..3200).map(|at| (TAU * 1000.0 * f64::from(at) / 16_000.0).sin() as f32).collect();
        let picture = picture(&tone, 80);
        assert_eq!(picture.len(), 80 * 20);
        let loudness = |band: usize| picture[band * 20 + 10];
        let loudest = (0..80).max_by(|a, b| loudness(*a).total_cmp(&loudness(*b))).unwrap();
        let peak = hz(pitch(HIGHEST_HZ) * (loudest + 1) as f64 / 81.0);
        assert!((peak - 1000.0).abs() < 40.0, "{peak}");
        // The quietest is as far below the loudest as it may be.
        assert!((loudness(loudest) - loudness(79) - 2.0).abs() < 1e-6);
    }

    #[test]
    fn pitch_and_frequency_are_inverse() {
        for frequency in [0.0, 440.0, 999.0, 1000.0, 5000.0, 8000.0] {
            assert!((hz(pitch(frequency)) - frequency).abs() < 1e-9);
        }
    }
}
