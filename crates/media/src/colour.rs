//! Brightness and differences of colour, as codecs have them, to red, green and blue.

use crate::Frame;

/// How a stream's values are meant (ITU-T H.273).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Colour {
    matrix: Matrix,
    /// Whether black is 0 and white the largest value, not 16 and 235.
    is_full_range: bool,
}

/// What the three planes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matrix {
    Bt601,
    Bt709,
    Smpte240,
    Bt2020,
    /// Green, blue and red.
    Identity,
    YCgCo,
}

/// What streams without marks are taken for, as ffmpeg takes them.
const UNMARKED: Colour = Colour { matrix: Matrix::Bt601, is_full_range: false };
/// The number that says nothing of the matrix.
const UNSPECIFIED: u32 = 2;
/// Bits behind the point of the weights.
const POINT: u32 = 16;

impl Default for Colour {
    fn default() -> Colour {
        UNMARKED
    }
}

impl Colour {
    /// By the number of the matrix; none if it says nothing, or nothing that is known.
    pub(crate) fn of(matrix: u32, is_full_range: bool) -> Option<Colour> {
        let matrix = match matrix {
            0 => Matrix::Identity,
            1 => Matrix::Bt709,
            4..=6 => Matrix::Bt601,
            7 => Matrix::Smpte240,
            8 => Matrix::YCgCo,
            9 | 10 => Matrix::Bt2020,
            _ => return None,
        };
        Some(Colour { matrix, is_full_range })
    }

    /// The same where the stream itself has marks: its range counts even without a matrix.
    pub(crate) fn of_stream(matrix: u32, is_full_range: bool, container: Option<Colour>) -> Colour {
        let unmarked = Colour { is_full_range, ..container.unwrap_or_default() };
        if matrix == UNSPECIFIED { unmarked } else { Colour::of(matrix, is_full_range).unwrap_or(unmarked) }
    }

    /// Red, green and blue by brightness and both differences, which lie around 0, from 0 to 1 and from -½ to ½.
    fn weights(self) -> [[f64; 3]; 3] {
        let (red, blue) = match self.matrix {
            Matrix::Bt601 => (0.299, 0.114),
            Matrix::Bt709 => (0.2126, 0.0722),
            Matrix::Smpte240 => (0.212, 0.087),
            Matrix::Bt2020 => (0.2627, 0.0593),
            Matrix::Identity => return [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]],
            Matrix::YCgCo => return [[1.0, -1.0, 1.0], [1.0, 1.0, 0.0], [1.0, -1.0, -1.0]],
        };
        let green = 1.0 - red - blue;
        let (by_red, by_blue) = (2.0 * (1.0 - red), 2.0 * (1.0 - blue));
        [[1.0, 0.0, by_red], [1.0, -by_blue * blue / green, -by_red * red / green], [1.0, by_blue, 0.0]]
    }

    /// What is done to values of so many bits.
    fn transform(self, bits: u32) -> Transform {
        let scale = f64::from(1u32 << (bits - 8));
        let (black, bright, differences) = match self.is_full_range {
            true => (0.0, 255.0 / f64::from((1u32 << bits) - 1), 255.0 / f64::from((1u32 << bits) - 1)),
            false => (16.0 * scale, 255.0 / (219.0 * scale), 255.0 / (224.0 * scale)),
        };
        let is_identity = self.matrix == Matrix::Identity;
        let steps = if is_identity { [bright; 3] } else { [bright, differences, differences] };
        let middle = if is_identity { black } else { 128.0 * scale };
        let fixed = |value: f64| (value * f64::from(1u32 << POINT)).round() as i32;
        let weights = self.weights().map(|row| [0, 1, 2].map(|at| fixed(row[at] * steps[at])));
        Transform { weights, zeros: [black, middle, middle].map(|zero| zero as i32) }
    }
}

/// Weights of whole numbers, and the value that stands for 0 in each plane.
struct Transform {
    weights: [[i32; 3]; 3],
    zeros: [i32; 3],
}

/// A picture as a codec has it.
pub(crate) struct Planes<'a> {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// Bits of a value; those of more than 8 take two bytes, the lower one first.
    pub(crate) bits: u32,
    /// Whether the planes of colour have half as many values in a row, and half as many rows.
    pub(crate) halved: (bool, bool),
    /// Brightness and both differences; pictures without colour have only the first.
    pub(crate) planes: [Option<Plane<'a>>; 3],
    pub(crate) colour: Colour,
}

/// One plane.
#[derive(Clone, Copy)]
pub(crate) struct Plane<'a> {
    pub(crate) bytes: &'a [u8],
    /// Bytes from one row to the next.
    pub(crate) stride: usize,
}

impl Planes<'_> {
    /// The picture in red, green and blue; none if a plane is too short for it.
    pub(crate) fn frame(&self) -> Option<Frame> {
        let Planes { width, height, bits, .. } = *self;
        let Transform { weights, zeros } = self.colour.transform(bits);
        let mut rgb = vec![0; width * height * 3];
        let mut rows: [Vec<i32>; 3] = zeros.map(|zero| vec![zero; width]);
        for (y, out) in rgb.chunks_exact_mut((width * 3).max(1)).enumerate() {
            for (at, row) in rows.iter_mut().enumerate() {
                let (across, down) = if at == 0 { (false, false) } else { self.halved };
                // A plane that is not there has the value that stands for 0.
                let Some(plane) = self.planes[at] else { continue };
                // Rows of colour that are halved stay for two.
                if y == 0 || !down || y % 2 == 0 {
                    plane.row(y >> u32::from(down), bits > 8, across, row)?;
                }
            }
            let values = rows[0].iter().zip(&rows[1]).zip(&rows[2]);
            for (pixel, ((first, second), third)) in out.chunks_exact_mut(3).zip(values) {
                let parts = [first - zeros[0], second - zeros[1], third - zeros[2]];
                for (byte, row) in pixel.iter_mut().zip(&weights) {
                    let sum = row[0] * parts[0] + row[1] * parts[1] + row[2] * parts[2];
                    *byte = ((sum + (1 << (POINT - 1))) >> POINT).clamp(0, 255) as u8;
                }
            }
        }
        Some(Frame { width, height, rgb })
    }
}

impl Plane<'_> {
    /// A row's values; those of a halved plane stand twice.
    fn row(&self, y: usize, is_wide: bool, is_halved: bool, into: &mut [i32]) -> Option<()> {
        let times = if is_halved { 2 } else { 1 };
        let size = if is_wide { 2 } else { 1 };
        let start = y * self.stride;
        let row = self.bytes.get(start..start + into.len().div_ceil(times) * size)?;
        let pieces = into.chunks_mut(times);
        if is_wide {
            let values = row.chunks_exact(2).map(|pair| i32::from(u16::from_le_bytes([pair[0], pair[1]])));
            pieces.zip(values).for_each(|(piece, value)| piece.fill(value));
        } else {
            pieces.zip(row).for_each(|(piece, value)| piece.fill(i32::from(*value)));
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pixel(colour: Colour, bits: u32, values: [u16; 3]) -> [u8; 3] {
        let bytes = values.map(|value| match bits {
            8 => vec![value as u8],
            _ => value.to_le_bytes().to_vec(),
        });
        let plane = |at: usize| Some(Plane { bytes: &bytes[at], stride: bytes[at].len() });
        let planes = [plane(0), plane(1), plane(2)];
        let planes = Planes { width: 1, height: 1, bits, halved: (false, false), planes, colour };
        planes.frame().unwrap().rgb.try_into().unwrap()
    }

    /// Values of the standards: black, white and red.
    #[test]
    fn marks_say_what_values_mean() {
        let (sd, hd) = (Colour::of(6, false).unwrap(), Colour::of(1, false).unwrap());
        for colour in [sd, hd] {
            assert_eq!(pixel(colour, 8, [16, 128, 128]), [0, 0, 0]);
            assert_eq!(pixel(colour, 8, [235, 128, 128]), [255, 255, 255]);
            assert_eq!(pixel(colour, 10, [940, 512, 512]), [255, 255, 255]);
            assert_eq!(pixel(colour, 12, [256, 2048, 2048]), [0, 0, 0]);
        }
        assert_eq!(pixel(sd, 8, [81, 90, 240]), [254, 0, 0]);
        assert_eq!(pixel(hd, 8, [63, 102, 240]), [255, 1, 0]);
        assert_eq!(pixel(Colour::of(5, true).unwrap(), 8, [76, 85, 255]), [254, 0, 0]);
        assert_eq!(pixel(Colour::of(0, true).unwrap(), 8, [20, 30, 10]), [10, 20, 30]);
        assert_eq!(pixel(Colour::of(8, true).unwrap(), 8, [255, 128, 128]), [255, 255, 255]);
        assert_eq!(Colour::of(2, true), None);
        assert!(Colour::of_stream(2, true, Some(hd)) == Colour::of(1, true).unwrap());
    }

    #[test]
    fn planes_of_half_the_size_are_spread_and_missing_ones_are_grey() {
        let bright = [16, 126, 235, 16, 126, 235, 16, 126, 235];
        let grey = Plane { bytes: &[128; 4], stride: 2 };
        let mut picture = Planes {
            width: 3,
            height: 3,
            bits: 8,
            halved: (true, true),
            planes: [Some(Plane { bytes: &bright, stride: 3 }), Some(grey), Some(grey)],
            colour: Colour::default(),
        };
        let row = [0, 0, 0, 128, 128, 128, 255, 255, 255];
        assert_eq!(picture.frame().unwrap().rgb, [row; 3].concat());
        (picture.planes[1], picture.planes[2]) = (None, None);
        assert_eq!(picture.frame().unwrap().rgb, [row; 3].concat());
        picture.planes[0] = Some(Plane { bytes: &bright[..8], stride: 3 });
        assert!(picture.frame().is_none());
    }
}
