//! Frames turned and mirrored as a file asks for it.

use crate::Frame;

/// Where the pixels of a frame are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rotation {
    /// Whether rows are shown as columns.
    is_transposed: bool,
    /// Whether, behind that, what is left is shown right, and what is above below.
    is_mirrored: (bool, bool),
}

impl Rotation {
    /// By the first two columns of a track's matrix, in 65536ths: where the axes go. One that scales or tilts is not
    /// followed.
    pub(crate) fn of_matrix([a, b, c, d]: [i32; 4]) -> Rotation {
        match [a.signum(), b.signum(), c.signum(), d.signum()] {
            [x, 0, 0, y] if x != 0 && y != 0 => {
                Rotation { is_transposed: false, is_mirrored: (x < 0, y < 0) }
            }
            [0, y, x, 0] if x != 0 && y != 0 => Rotation { is_transposed: true, is_mirrored: (x < 0, y < 0) },
            _ => Rotation::default(),
        }
    }

    /// The size that is shown.
    pub(crate) fn size(self, (width, height): (usize, usize)) -> (usize, usize) {
        if self.is_transposed { (height, width) } else { (width, height) }
    }

    /// The frame as it is shown.
    pub(crate) fn apply(self, frame: Frame) -> Frame {
        if self == Rotation::default() {
            return frame;
        }
        let (width, height) = self.size((frame.width, frame.height));
        let mut rgb = Vec::with_capacity(frame.rgb.len());
        for y in 0..height {
            let y = if self.is_mirrored.1 { height - 1 - y } else { y };
            for x in 0..width {
                let x = if self.is_mirrored.0 { width - 1 - x } else { x };
                let (column, row) = if self.is_transposed { (y, x) } else { (x, y) };
                let at = (row * frame.width + column) * 3;
                rgb.extend_from_slice(&frame.rgb[at..at + 3]);
            }
        }
        Frame { width, height, rgb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_shown_as_the_matrix_says() {
        // 1 2
        // 3 4
        // 5 6
        let rgb: Vec<u8> = (1..=6).flat_map(|value| [value; 3]).collect();
        let shown = |matrix: [i32; 4]| {
            let frame = Frame { width: 2, height: 3, rgb: rgb.clone() };
            let shown = Rotation::of_matrix(matrix.map(|value| value << 16)).apply(frame);
            (shown.width, shown.rgb.iter().step_by(3).copied().collect::<Vec<u8>>())
        };
        assert_eq!(shown([1, 0, 0, 1]), (2, vec![1, 2, 3, 4, 5, 6]));
        // A quarter with the clock, a half, and a quarter against it.
        assert_eq!(shown([0, 1, -1, 0]), (3, vec![5, 3, 1, 6, 4, 2]));
        assert_eq!(shown([-1, 0, 0, -1]), (2, vec![6, 5, 4, 3, 2, 1]));
        assert_eq!(shown([0, -1, 1, 0]), (3, vec![2, 4, 6, 1, 3, 5]));
        assert_eq!(shown([-1, 0, 0, 1]), (2, vec![2, 1, 4, 3, 6, 5]));
        assert_eq!(shown([0, 0, 0, 0]), (2, vec![1, 2, 3, 4, 5, 6]));
    }
}
