//! Small linear systems, for the weights of predictor-corrector samplers.

/// Solves `matrix * x = right` in f32 by elimination with row exchanges; `None` when it has no single solution.
pub(super) fn solve(mut matrix: Vec<Vec<f32>>, mut right: Vec<f32>) -> Option<Vec<f32>> {
    let n = right.len();
    for column in 0..n {
        let pivot =
            (column..n).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()))?;
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let head = matrix[column][column];
        if head == 0.0 || !head.is_finite() {
            return None;
        }
        for row in column + 1..n {
            let factor = matrix[row][column] / head;
            let (above, below) = matrix.split_at_mut(row);
            below[0].iter_mut().zip(&above[column]).skip(column).for_each(|(v, head)| *v -= factor * head);
            right[row] -= factor * right[column];
        }
    }
    for row in (0..n).rev() {
        let known: f32 = (row + 1..n).map(|k| matrix[row][k] * right[k]).sum();
        right[row] = (right[row] - known) / matrix[row][row];
    }
    Some(right)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn solves_with_row_exchanges() {
        let matrix = vec![vec![0.0, 2.0, 1.0], vec![1.0, -1.0, 0.0], vec![3.0, 0.0, -2.0]];
        let got = solve(matrix, vec![7.0, -1.0, -3.0]).unwrap();
        assert!(got.iter().zip([1.0, 2.0, 3.0]).all(|(a, b)| (a - b).abs() < 1e-6), "{got:?}");
        assert_eq!(solve(vec![vec![1.0, 2.0], vec![2.0, 4.0]], vec![1.0, 2.0]), None);
    }
}
