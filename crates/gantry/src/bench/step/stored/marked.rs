//! Files whose blocks' matrices are codes with scales beside them, each layer marked by a tensor of JSON, as published files
//! of INT8 with rotated columns and of NVFP4 are.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use checkpoint::{NewTensor, SafetensorsHead};
use meta::{DType, Encoding, Rotation, Scheme, Shape};
use serde_json::json;
use testkit::{Procedural, quantise_matrix};

use super::{amplitude, is_matrix_of_block};
use crate::bench::served::files;

/// The names of the formats.
pub(super) const FORMATS: [&str; 2] = ["INT8_CONVROT", "NVFP4"];
/// Columns that are rotated together, the most that divide all columns: what published files have, and less for narrow models.
const ROTATED_TOGETHER: [usize; 4] = [256, 64, 16, 4];

/// A tensor of the model, and what the file has for it.
struct Layer<'a> {
    name: &'a str,
    shape: Shape,
    /// How it is quantised; none for what stays as it is.
    scheme: Option<Scheme>,
    stored: Vec<NewTensor>,
}

/// Writes a file with the matrices of blocks in a format, from all threads.
pub(super) fn write(path: &Path, format: &str, tensors: &[(String, Shape)]) -> Result<()> {
    let layers = tensors.iter().map(|tensor| Layer::of(tensor, format)).collect::<Result<Vec<_>>>()?;
    let stored: Vec<NewTensor> = layers.iter().flat_map(|layer| layer.stored.clone()).collect();
    let head = SafetensorsHead::new(path, &[], &stored)?;
    let draft = disk::Draft::beside(path)?;
    let mut file = draft.file();
    file.write_all(head.bytes())?;
    file.set_len(head.file_bytes())?;
    let mut starts = head.places().iter().map(|place| place.start);
    let placed = layers.iter().map(|layer| (layer, starts.by_ref().take(layer.stored.len()).collect()));
    let placed: Vec<(&Layer<'_>, Vec<u64>)> = placed.collect();
    files::from_all_threads(draft.path(), &placed, |file, (layer, starts)| {
        for (start, bytes) in starts.iter().zip(layer.bytes()?) {
            file.seek(SeekFrom::Start(*start))?;
            file.write_all(&bytes)?;
        }
        Ok(())
    })?;
    Ok(draft.replace(path)?)
}

impl<'a> Layer<'a> {
    fn of((name, shape): &'a (String, Shape), format: &str) -> Result<Layer<'a>> {
        let dims = shape.dims();
        let coded = name.strip_suffix(".weight").filter(|_| is_matrix_of_block(name, dims));
        let plain = || vec![NewTensor { name: name.clone(), dtype: DType::BF16, shape: *shape }];
        let (scheme, stored) = match (coded, dims) {
            (Some(layer), &[rows, columns]) => {
                let scheme = scheme(format, columns);
                (Some(scheme), stored(layer, scheme, [rows, columns])?)
            }
            _ => (None, plain()),
        };
        Ok(Layer { name, shape: *shape, scheme, stored })
    }

    /// The bytes of what the file has for it, in order.
    fn bytes(&self) -> Result<Vec<Vec<u8>>> {
        let dims = self.shape.dims();
        let (scale, offset) = amplitude(self.name, dims);
        let values = Procedural::new(self.name, scale as f32, offset as f32);
        let (Some(scheme), &[rows, columns]) = (self.scheme, dims) else {
            return Ok(vec![values.encoded(Encoding::BF16, self.shape.count())?]);
        };
        let mut matrix = vec![0.0; rows * columns];
        values.fill(0, &mut matrix);
        let coded = quantise_matrix(scheme.into(), &matrix, [rows, columns])?;
        let mut all = vec![coded.codes, coded.scales];
        all.extend(coded.tensor_scale.map(|scale| scale.to_le_bytes().to_vec()));
        all.push(mark(scheme).into_bytes());
        for (bytes, tensor) in all.iter().zip(&self.stored) {
            let expected = Encoding::Plain(tensor.dtype).bytes(&tensor.shape)?;
            ensure!(
                bytes.len() as u64 == expected,
                "{} has {} bytes, not {expected}",
                tensor.name,
                bytes.len()
            );
        }
        Ok(all)
    }
}

/// How a matrix of so many columns is quantised.
fn scheme(format: &str, columns: usize) -> Scheme {
    if format == FORMATS[1] {
        return Scheme::Nvfp4;
    }
    let group = ROTATED_TOGETHER.into_iter().find(|group| columns.is_multiple_of(*group));
    Scheme::Int8 { rotation: group.and_then(Rotation::new) }
}

/// What a file has for a layer: codes, scales and the mark.
fn stored(layer: &str, scheme: Scheme, dims @ [rows, _]: [usize; 2]) -> Result<Vec<NewTensor>> {
    let tensor =
        |name: &str, dtype: DType, shape: Shape| NewTensor { name: format!("{layer}.{name}"), dtype, shape };
    let mut all = match scheme {
        Scheme::Nvfp4 => {
            let [rows, columns] = dims.map(|size| size.next_multiple_of(scheme.padding()));
            let tiles = scheme.tiles(columns).context("its scales lie in tiles")?;
            vec![
                tensor("weight", DType::U8, Shape::from([rows, columns / 2])),
                tensor("weight_scale", DType::F8E4M3, Shape::from(tiles.grid(rows))),
                tensor("weight_scale_2", DType::F32, Shape::scalar()),
            ]
        }
        _ => vec![
            tensor("weight", DType::I8, Shape::from(dims)),
            tensor("weight_scale", DType::F32, Shape::from([rows, 1])),
        ],
    };
    all.push(tensor("comfy_quant", DType::U8, Shape::from([mark(scheme).len()])));
    Ok(all)
}

/// What the mark of a layer says.
fn mark(scheme: Scheme) -> String {
    let mark = match scheme {
        Scheme::Nvfp4 => json!({ "format": "nvfp4" }),
        Scheme::Int8 { rotation: Some(rotation) } => {
            json!({ "format": "int8_tensorwise", "convrot": true, "convrot_groupsize": rotation.group() })
        }
        _ => json!({ "format": "int8_tensorwise" }),
    };
    mark.to_string()
}

#[cfg(test)]
mod tests {
    use checkpoint::Checkpoint;
    use models::diffusion::FAMILIES;

    use super::super::{super::read_model, write_model};

    #[test]
    fn files_are_read_as_what_they_are_called() {
        let dir = testkit::ScratchDir::new().unwrap();
        let family = FAMILIES[0];
        for (format, expected) in [("INT8_CONVROT", "int8_convrot"), ("NVFP4", "nvfp4")] {
            let path = write_model(dir.path(), format, (family, &family.small), 1).unwrap();
            let file = Checkpoint::open(&path).unwrap();
            let coded = file.entries().iter().filter(|entry| entry.encoding().scheme().is_some());
            let names: Vec<&str> = coded.map(|entry| entry.encoding().name()).collect();
            assert!(names.len() > 10 && names.iter().all(|name| *name == expected), "{format}: {names:?}");
            read_model(&file).unwrap().manifest(&file).unwrap();
        }
    }
}
