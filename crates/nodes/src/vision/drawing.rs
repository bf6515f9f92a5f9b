//! Boxes and outlines on a picture.

use crate::value::Image;

/// The colour of boxes.
pub(super) const RED: [f32; 3] = [1.0, 0.0, 0.0];
/// Colours of outlines, in turn: well apart from each other.
const COLOURS: [[u8; 3]; 16] = [
    [0, 0, 255],
    [255, 165, 0],
    [0, 128, 0],
    [128, 0, 128],
    [165, 42, 42],
    [255, 192, 203],
    [128, 128, 0],
    [0, 255, 255],
    [255, 0, 0],
    [0, 255, 0],
    [75, 0, 130],
    [238, 130, 238],
    [255, 0, 255],
    [255, 215, 0],
    [210, 180, 140],
    [135, 206, 235],
];
/// How much a tint hides.
const TINT: f32 = 180.0 / 255.0;
/// Pixels across the line of an outline.
const LINE: i64 = 3;
/// The digits, five rows of three pixels each, the leftmost pixel highest.
const DIGITS: [[u8; 5]; 10] = [
    [0b111, 0b101, 0b101, 0b101, 0b111],
    [0b010, 0b110, 0b010, 0b010, 0b111],
    [0b111, 0b001, 0b111, 0b100, 0b111],
    [0b111, 0b001, 0b111, 0b001, 0b111],
    [0b101, 0b101, 0b111, 0b001, 0b001],
    [0b111, 0b100, 0b111, 0b001, 0b111],
    [0b111, 0b100, 0b111, 0b101, 0b111],
    [0b111, 0b001, 0b010, 0b010, 0b010],
    [0b111, 0b101, 0b111, 0b101, 0b111],
    [0b111, 0b101, 0b111, 0b001, 0b111],
];
/// Pixels of the picture for one of a digit.
const DIGIT_SCALE: i64 = 2;

/// The colour of the outline of a number.
pub(super) fn colour(index: usize) -> [f32; 3] {
    COLOURS[index % COLOURS.len()].map(|byte| f32::from(byte) / 255.0)
}

/// A picture of three colours to draw on.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Canvas {
    width: i64,
    height: i64,
    values: Vec<f32>,
}

impl Canvas {
    /// A picture of three channels.
    pub(super) fn new(picture: &Image) -> Canvas {
        Canvas { width: picture.width as i64, height: picture.height as i64, values: picture.values.to_vec() }
    }

    /// Nothing, as large as a picture.
    pub(super) fn black(picture: &Image) -> Canvas {
        let values = vec![0.0; picture.values.len()];
        Canvas { width: picture.width as i64, height: picture.height as i64, values }
    }

    pub(super) fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// The first colour alone.
    pub(super) fn one_channel(&self) -> Vec<f32> {
        self.values.iter().step_by(3).copied().collect()
    }

    /// Fills a box: left, top, right and bottom, all of which belong to it.
    pub(super) fn fill_box(&mut self, place: [f32; 4], colour: [f32; 3]) {
        let [left, top, right, bottom] = place.map(|at| at as i64);
        for y in top.max(0)..=bottom.min(self.height - 1) {
            for x in left.max(0)..=right.min(self.width - 1) {
                self.put((x, y), colour, 1.0);
            }
        }
    }

    /// The border of a box.
    pub(super) fn draw_box(&mut self, place: [f32; 4], colour: [f32; 3]) {
        let [left, top, right, bottom] = place.map(|at| at as i64);
        for x in left..=right {
            self.put((x, top), colour, 1.0);
            self.put((x, bottom), colour, 1.0);
        }
        for y in top..=bottom {
            self.put((left, y), colour, 1.0);
            self.put((right, y), colour, 1.0);
        }
    }

    /// A number above a box, or in it where there is no room above.
    pub(super) fn number(&mut self, number: usize, place: [f32; 4]) {
        let text = number.to_string();
        let (width, height) = (text.len() as i64 * 4 * DIGIT_SCALE + DIGIT_SCALE, 7 * DIGIT_SCALE);
        let left = (place[0] as i64).min(self.width - width).max(0);
        let above = place[1] as i64 - height;
        let top = if above < 0 { place[1] as i64 } else { above };
        for (x, y) in (0..height).flat_map(|y| (0..width).map(move |x| (x, y))) {
            self.put((left + x, top + y), colour(number), 0.5);
        }
        for (place, digit) in text.bytes().enumerate() {
            let rows = DIGITS[usize::from(digit - b'0')];
            for (x, y) in (0..5 * DIGIT_SCALE).flat_map(|y| (0..3 * DIGIT_SCALE).map(move |x| (x, y))) {
                let is_set = rows[(y / DIGIT_SCALE) as usize] >> (2 - x / DIGIT_SCALE) & 1 == 1;
                let column = (place as i64 * 4 + 1) * DIGIT_SCALE + x;
                if is_set {
                    self.put((left + column, top + DIGIT_SCALE + y), [1.0; 3], 1.0);
                }
            }
        }
    }

    /// Lets a colour shine over the inside of an outline.
    pub(super) fn tint(&mut self, corners: &[f32], colour: [f32; 3]) {
        for at in self.inside(corners) {
            self.put(at, colour, TINT);
        }
    }

    /// Fills an outline with its border.
    pub(super) fn fill_outline(&mut self, corners: &[f32], colour: [f32; 3]) {
        for at in self.inside(corners) {
            self.put(at, colour, 1.0);
        }
        for at in border(corners) {
            self.put(at, colour, 1.0);
        }
    }

    /// The border of an outline, a few pixels wide.
    pub(super) fn draw_outline(&mut self, corners: &[f32], colour: [f32; 3]) {
        for (x, y) in border(corners) {
            for (dx, dy) in (0..LINE).flat_map(|dy| (0..LINE).map(move |dx| (dx, dy))) {
                self.put((x + dx - LINE / 2, y + dy - LINE / 2), colour, 1.0);
            }
        }
    }

    /// The pixels whose middles are inside an outline: an odd number of its lines are to their left.
    fn inside(&self, corners: &[f32]) -> Vec<(i64, i64)> {
        let points: Vec<(f32, f32)> = corners.chunks_exact(2).map(|at| (at[0], at[1])).collect();
        let mut pixels = Vec::new();
        for y in 0..self.height {
            let middle = y as f32 + 0.5;
            let lines = points.iter().zip(points.iter().cycle().skip(1));
            let crossed = lines.filter(|(from, to)| (from.1 <= middle) != (to.1 <= middle));
            let mut crossings: Vec<f32> = crossed
                .map(|(from, to)| from.0 + (middle - from.1) * (to.0 - from.0) / (to.1 - from.1))
                .collect();
            crossings.sort_by(f32::total_cmp);
            for pair in crossings.chunks_exact(2) {
                let first = (pair[0] - 0.5).ceil().max(0.0) as i64;
                let end = ((pair[1] - 0.5).ceil() as i64).min(self.width);
                pixels.extend((first..end).map(|x| (x, y)));
            }
        }
        pixels
    }

    fn put(&mut self, (x, y): (i64, i64), colour: [f32; 3], share: f32) {
        if !(0..self.width).contains(&x) || !(0..self.height).contains(&y) {
            return;
        }
        let start = (y * self.width + x) as usize * 3;
        for (value, colour) in self.values[start..start + 3].iter_mut().zip(colour) {
            *value += (colour - *value) * share;
        }
    }
}

/// The pixels on the lines of an outline.
fn border(corners: &[f32]) -> Vec<(i64, i64)> {
    let points: Vec<(f32, f32)> = corners.chunks_exact(2).map(|at| (at[0], at[1])).collect();
    let lines = points.iter().zip(points.iter().cycle().skip(1));
    let line = |(from, to): (&(f32, f32), &(f32, f32))| {
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let steps = dx.abs().max(dy.abs()).ceil().max(1.0) as i64;
        let (from, share) = (*from, 1.0 / steps as f32);
        (0..=steps).map(move |step| {
            let along = step as f32 * share;
            ((from.0 + dx * along) as i64, (from.1 + dy * along) as i64)
        })
    };
    lines.flat_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::host::Host;

    fn blank(width: usize, height: usize) -> Image {
        Image::filled(&Host::with_budget(1 << 30), [1, height, width, 3], 0.0).unwrap()
    }

    fn set(canvas: &Canvas) -> usize {
        canvas.one_channel().iter().filter(|value| **value > 0.0).count()
    }

    #[test]
    fn boxes_have_all_their_sides_and_stay_inside() {
        let picture = blank(10, 8);
        let mut canvas = Canvas::black(&picture);
        canvas.fill_box([1.9, 2.2, 4.7, 3.0], [1.0; 3]);
        assert_eq!(set(&canvas), 4 * 2);
        canvas.fill_box([-5.0, -5.0, 100.0, 100.0], [1.0; 3]);
        assert_eq!(set(&canvas), 80);
        let mut border = Canvas::new(&picture);
        border.draw_box([1.0, 1.0, 5.0, 4.0], RED);
        assert_eq!(set(&border), 2 * 5 + 2 * 2);
        border.draw_box([-3.0, 0.0, 30.0, 7.0], RED);
        assert_eq!(set(&border), 2 * 10 + 2 * 5 + 2 * 2);
    }

    #[test]
    fn outlines_enclose_their_inside() {
        let picture = blank(20, 20);
        let mut canvas = Canvas::black(&picture);
        canvas.fill_outline(&[2.0, 2.0, 12.0, 2.0, 12.0, 12.0, 2.0, 12.0], [1.0; 3]);
        assert_eq!(set(&canvas), 11 * 11);
        let mut triangle = Canvas::black(&picture);
        triangle.tint(&[0.0, 0.0, 10.0, 0.0, 0.0, 10.0], [1.0; 3]);
        assert_eq!(set(&triangle), 45);
        assert!((triangle.one_channel()[0] - TINT).abs() < 1e-6);
        let mut line = Canvas::black(&picture);
        line.draw_outline(&[5.0, 5.0, 15.0, 5.0], [1.0; 3]);
        assert_eq!(set(&line), 13 * 3);
    }

    #[test]
    fn numbers_are_readable() {
        let mut canvas = Canvas::black(&blank(40, 40));
        canvas.number(14, [10.0, 30.0, 20.0, 35.0]);
        let white = canvas.values.chunks_exact(3).filter(|pixel| *pixel == [1.0; 3]).count();
        let pixels = |digit: usize| DIGITS[digit].iter().map(|row| row.count_ones() as usize).sum::<usize>();
        assert_eq!(white, 4 * (pixels(1) + pixels(4)));
    }
}
