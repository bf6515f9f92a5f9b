//! Places: a square table of learned vectors, stretched over the patches of a picture of any size.

use crate::vision::patches::Layout;

/// For each patch the four rows of the table that are nearest to it, and how much each counts.
pub(super) struct Taps {
    pub(super) rows: Vec<i32>,
    pub(super) shares: Vec<f32>,
}

impl Taps {
    /// The taps into a table of so many rows and columns; its corners lie on the corners of the picture.
    pub(super) fn of(layout: &Layout, side: usize) -> Taps {
        let [rows, columns] = layout.grid().map(|cells| 2 * cells);
        let mut taps = Taps { rows: Vec::new(), shares: Vec::new() };
        for [row, column] in layout.places() {
            let (down, right) = (axis(row, rows, side), axis(column, columns, side));
            for (row, share) in down {
                for (column, part) in right {
                    taps.rows.push((row * side + column) as i32);
                    taps.shares.push(share * part);
                }
            }
        }
        taps
    }
}

/// The two nearest places of a table along one axis, and how much each counts.
fn axis(at: usize, count: usize, side: usize) -> [(usize, f32); 2] {
    let last = side.saturating_sub(1);
    let place = at as f32 * (last as f32 / (count.max(2) - 1) as f32);
    let below = (place.floor() as usize).min(last);
    let share = place - below as f32;
    [(below, 1.0 - share), ((below + 1).min(last), share)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corners_lie_on_corners() {
        assert_eq!(axis(0, 4, 48), [(0, 1.0), (1, 0.0)]);
        assert_eq!(axis(3, 4, 48), [(47, 1.0), (47, 0.0)]);
        let [(below, near), (above, far)] = axis(1, 3, 48);
        assert_eq!((below, near, above, far), (23, 0.5, 24, 0.5));
    }
}
