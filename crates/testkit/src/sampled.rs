//! Tensors of which golden data keeps only pieces, because all of it would be large. What was kept is described
//! by a metadata entry under the tensor's name; the same pieces are cut from the tensor at hand and compared.

use meta::Shape;
use serde::Deserialize;

use crate::Error;

/// Rows that have a root mean square in the row-wise sampling.
const RMS_ROWS: usize = 1024;

/// Which pieces of a tensor were kept.
#[derive(Debug, Deserialize)]
#[serde(tag = "sampled", rename_all = "lowercase")]
pub(crate) enum Sampling {
    /// The tensor seen as a matrix, all axes but the last flattened.
    Rows {
        /// The full shape.
        shape: Vec<usize>,
        /// `.rows`: as many whole rows from the first.
        rows: usize,
        /// `.cols`: as many rows from the first ...
        cols_rows: usize,
        /// ... of which every so many-th column.
        cols_stride: usize,
    },
    /// The tensor seen as items, channels and the rest.
    Channels {
        /// The full shape.
        shape: Vec<usize>,
        /// `.channels`: these channels of the first item.
        first_item_channels: Vec<usize>,
    },
}

/// One piece cut from a tensor.
pub(crate) struct Piece {
    /// What the piece is called behind the tensor's name.
    pub(crate) suffix: &'static str,
    /// Its values.
    pub(crate) values: Vec<f32>,
}

impl Sampling {
    /// The full shape of the tensor called `name`.
    pub(crate) fn shape(&self, name: &str) -> Result<Shape, Error> {
        let (Sampling::Rows { shape, .. } | Sampling::Channels { shape, .. }) = self;
        Shape::new(shape).map_err(|source| Error::Rank { tensor: name.to_owned(), source })
    }

    /// Cuts the pieces from `values`, which must have the full shape.
    pub(crate) fn pieces(&self, name: &str, shape: &Shape, values: &[f32]) -> Result<Vec<Piece>, Error> {
        let misfit = |part| Error::Sampling { name: name.to_owned(), shape: *shape, part };
        if values.is_empty() || values.len() != shape.count() {
            return Err(misfit("shape"));
        }
        match self {
            Sampling::Rows { rows, cols_rows, cols_stride, .. } => {
                let matrix: Vec<&[f32]> = values.chunks(shape.last()).collect();
                let whole = matrix.get(..*rows).ok_or_else(|| misfit("rows"))?.concat();
                let sparse = matrix.get(..*cols_rows).ok_or_else(|| misfit("cols_rows"))?;
                if *cols_stride == 0 {
                    return Err(misfit("cols_stride"));
                }
                let cols = sparse.iter().flat_map(|row| row.iter().step_by(*cols_stride).copied()).collect();
                Ok(vec![
                    Piece { suffix: "rows", values: whole },
                    Piece { suffix: "cols", values: cols },
                    Piece {
                        suffix: "rms",
                        values: matrix.iter().take(RMS_ROWS).map(|row| rms(row)).collect(),
                    },
                ])
            }
            Sampling::Channels { first_item_channels, .. } => {
                let &[_, channels, ref rest @ ..] = shape.dims() else {
                    return Err(misfit("shape"));
                };
                let maps: Vec<&[f32]> = values.chunks(rest.iter().product()).collect();
                let mut kept = Vec::new();
                for &channel in first_item_channels {
                    let map = maps[..channels].get(channel).ok_or_else(|| misfit("first_item_channels"))?;
                    kept.extend_from_slice(map);
                }
                Ok(vec![
                    Piece { suffix: "channels", values: kept },
                    Piece { suffix: "mean", values: maps.iter().map(|map| mean(map)).collect() },
                    Piece { suffix: "rms", values: maps.iter().map(|map| rms(map)).collect() },
                ])
            }
        }
    }
}

fn mean(values: &[f32]) -> f32 {
    (values.iter().map(|&v| f64::from(v)).sum::<f64>() / values.len() as f64) as f32
}

fn rms(values: &[f32]) -> f32 {
    (values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / values.len() as f64).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(json: &str, shape: &[usize], values: &[f32]) -> Result<Vec<(&'static str, Vec<f32>)>, Error> {
        let sampling: Sampling = serde_json::from_str(json).unwrap();
        let pieces = sampling.pieces("t", &Shape::new(shape).unwrap(), values)?;
        Ok(pieces.into_iter().map(|piece| (piece.suffix, piece.values)).collect())
    }

    #[test]
    fn rows_and_columns() {
        let json = r#"{"shape": [1, 3, 4], "sampled": "rows", "rows": 1, "cols_stride": 3, "cols_rows": 2}"#;
        let values = [3., 4., 3., 4., 5., 6., 7., 8., 0., 0., 0., 2.];
        let cut = pieces(json, &[1, 3, 4], &values).unwrap();
        assert_eq!(cut[0], ("rows", vec![3., 4., 3., 4.]));
        assert_eq!(cut[1], ("cols", vec![3., 4., 5., 8.]));
        assert_eq!(cut[2], ("rms", vec![12.5f32.sqrt(), 43.5f32.sqrt(), 1.]));
    }

    #[test]
    fn channels_with_means() {
        let json = r#"{"shape": [2, 2, 1, 2], "sampled": "channels", "first_item_channels": [1]}"#;
        let values = [1., 3., 5., 7., -3., 3., 0., 8.];
        let cut = pieces(json, &[2, 2, 1, 2], &values).unwrap();
        assert_eq!(cut[0], ("channels", vec![5., 7.]));
        assert_eq!(cut[1], ("mean", vec![2., 6., 0., 4.]));
        assert_eq!(cut[2], ("rms", vec![5f32.sqrt(), 37f32.sqrt(), 3., 32f32.sqrt()]));
    }

    #[test]
    fn descriptions_that_do_not_fit_are_refused() {
        let rows = |rows, cols, stride| {
            format!(
                r#"{{"shape": [2, 2], "sampled": "rows", "rows": {rows}, "cols_rows": {cols}, "cols_stride": {stride}}}"#
            )
        };
        let channels = r#"{"shape": [2, 2], "sampled": "channels", "first_item_channels": [2]}"#.to_owned();
        for (json, dims, part) in [
            (rows(3, 1, 1), &[2, 2][..], "rows"),
            (rows(1, 3, 1), &[2, 2], "cols_rows"),
            (rows(1, 1, 0), &[2, 2], "cols_stride"),
            (rows(1, 1, 1), &[2, 3], "shape"),
            (channels.clone(), &[2, 2], "first_item_channels"),
            (channels, &[4], "shape"),
        ] {
            let error = pieces(&json, dims, &[1.0; 4]);
            assert!(matches!(error, Err(Error::Sampling { part: p, .. }) if p == part), "{part}: {error:?}");
        }
    }
}
