//! Marked layers, checked: each weight gets the encoding that its mark says, and whatever does not fit is told at once,
//! by the names of the layer and of what is wrong with it.

use std::collections::BTreeMap;

use meta::{DType, Encoding, Rotation, ScaleTiles, Scheme, Shape};

use crate::companions::{INPUT_FACTOR, OLD_SCALE, SCALE, TENSOR_SCALE, WEIGHT};
use crate::marks::{Mark, Marked};
use crate::safetensors::dtype_name;
use crate::{Entry, Error, MarkFault, ProductMark};

/// Columns that are rotated together where a mark does not say.
const USUAL_GROUP: u64 = 256;

/// What a file's marks make of it.
pub(crate) struct Quantised {
    /// The weights that are not what their element type says, by name.
    pub(crate) weights: BTreeMap<String, (Encoding, Shape)>,
    /// What is said of the products of weights, by name.
    pub(crate) products: BTreeMap<String, ProductMark>,
    /// What is strange but can be read.
    pub(crate) warnings: Vec<String>,
}

/// Reads and checks the marks of a file.
pub(crate) fn read(
    marked: &Marked<'_>,
    fault: &dyn Fn(&str, MarkFault) -> Error,
) -> Result<Quantised, Error> {
    let mut quantised =
        Quantised { weights: BTreeMap::new(), products: BTreeMap::new(), warnings: Vec::new() };
    for (layer, mark) in marked.layers(fault)? {
        let reader = Layer { name: &layer, mark: &mark, file: marked };
        let Some(weight) = reader.tensor(WEIGHT) else {
            quantised
                .warnings
                .push(format!("it marks the layer {layer:?} as quantised, which has no weight here"));
            continue;
        };
        if let Some(encoding) =
            reader.check(weight, &mut quantised.warnings).map_err(|wrong| fault(&layer, wrong))?
        {
            quantised.weights.insert(weight.name().to_owned(), encoding);
        }
        if let Some(product) = mark.product() {
            quantised.products.insert(weight.name().to_owned(), product);
        }
    }
    Ok(quantised)
}

/// A marked layer with its tensors.
struct Layer<'l, 'a> {
    name: &'l str,
    mark: &'l Mark,
    file: &'l Marked<'a>,
}

impl<'a> Layer<'_, 'a> {
    fn tensor(&self, name: &str) -> Option<&'a Entry> {
        (self.file.find)(&format!("{}.{name}", self.name))
    }

    /// The encoding and the shape of its weight where they are not those that it has by its element type.
    fn check(
        &self,
        weight: &Entry,
        warnings: &mut Vec<String>,
    ) -> Result<Option<(Encoding, Shape)>, MarkFault> {
        let format = self.mark.format.as_deref().ok_or(MarkFault::NoFormat)?;
        let scaled = |scheme: Scheme, dims: [usize; 2]| Some((Encoding::Scaled(scheme), Shape::from(dims)));
        if let Some(experts) = self.mark.experts {
            return Err(MarkFault::Experts { format: format.into(), experts });
        }
        Ok(match format {
            "float8_e4m3fn" => self.fp8(weight, DType::F8E4M3)?,
            "float8_e5m2" => self.fp8(weight, DType::F8E5M2)?,
            "mxfp8" => scaled(Scheme::Mxfp8, self.mxfp8(weight)?),
            "nvfp4" => scaled(Scheme::Nvfp4, self.nvfp4(weight)?),
            "int8_tensorwise" => {
                let (rotation, dims) = self.int8(weight, warnings)?;
                scaled(Scheme::Int8 { rotation }, dims)
            }
            other => return Err(MarkFault::Format { format: crate::error::excerpt(other) }),
        })
    }

    fn fp8(&self, weight: &Entry, dtype: DType) -> Result<Option<(Encoding, Shape)>, MarkFault> {
        expect_type(WEIGHT, weight, &[dtype])?;
        let (name, other) = if self.mark.is_old { (OLD_SCALE, SCALE) } else { (SCALE, OLD_SCALE) };
        let found = self.tensor(name).map(|scale| (name, scale));
        let (name, scale) = found
            .or_else(|| self.tensor(other).map(|scale| (other, scale)))
            .ok_or(MarkFault::Missing { tensor: SCALE })?;
        self.one_number(name, scale)?;
        Ok(None)
    }

    fn mxfp8(&self, weight: &Entry) -> Result<[usize; 2], MarkFault> {
        expect_type(WEIGHT, weight, &[DType::F8E4M3])?;
        let dims = self.padded(weight, Scheme::Mxfp8, 1)?;
        self.block_scales(Scheme::Mxfp8, dims, &[DType::U8])?;
        Ok(dims)
    }

    fn nvfp4(&self, weight: &Entry) -> Result<[usize; 2], MarkFault> {
        expect_type(WEIGHT, weight, &[DType::U8])?;
        let dims = self.padded(weight, Scheme::Nvfp4, 2)?;
        self.block_scales(Scheme::Nvfp4, dims, &[DType::F8E4M3, DType::U8])?;
        self.one_number(TENSOR_SCALE, self.needed(TENSOR_SCALE)?)?;
        if let Some(factor) = self.tensor(INPUT_FACTOR) {
            expect_type(INPUT_FACTOR, factor, &[DType::F32, DType::BF16, DType::F16])?;
            let fits = matches!(factor.shape().dims(), [len] if len.checked_next_multiple_of(Scheme::Nvfp4.padding()) == Some(dims[1]));
            expect_shape(INPUT_FACTOR, factor, fits, || format!("[{}]", dims[1]))?;
        }
        Ok(dims)
    }

    fn int8(
        &self,
        weight: &Entry,
        warnings: &mut Vec<String>,
    ) -> Result<(Option<Rotation>, [usize; 2]), MarkFault> {
        expect_type(WEIGHT, weight, &[DType::I8])?;
        let dims @ [rows, columns] = matrix(weight)?;
        let rotation = self.rotation(columns)?;
        let scale = self.needed(SCALE)?;
        expect_type(SCALE, scale, &[DType::F32])?;
        let shape = scale.shape().dims();
        let flat = shape == [rows] && rows != 1;
        let fits = matches!(shape, [] | [1]) || shape == [rows, 1] || flat;
        expect_shape(SCALE, scale, fits, || {
            format!("one number or [{rows}, 1] for the {rows} rows of its weight")
        })?;
        if flat {
            warnings.push(format!(
                "{SCALE} of the layer {:?} has the shape {} instead of [{rows}, 1]: it is read as one for each row",
                self.name,
                scale.shape()
            ));
        }
        self.finite(SCALE, scale)?;
        Ok((rotation, dims))
    }

    /// How columns are rotated back.
    fn rotation(&self, columns: usize) -> Result<Option<Rotation>, MarkFault> {
        if !self.mark.convrot {
            return Ok(None);
        }
        let group = self.mark.group.unwrap_or(USUAL_GROUP);
        let rotation =
            usize::try_from(group).ok().and_then(Rotation::new).ok_or(MarkFault::Group { group })?;
        if !columns.is_multiple_of(rotation.group()) {
            return Err(MarkFault::GroupDoesNotDivide { group, columns });
        }
        Ok(Some(rotation))
    }

    /// The dimensions of a weight whose bytes hold `per_byte` codes each, which must be filled up to whole blocks.
    fn padded(&self, weight: &Entry, scheme: Scheme, per_byte: usize) -> Result<[usize; 2], MarkFault> {
        let [rows, bytes] = matrix(weight)?;
        let padding = scheme.padding();
        let columns = bytes.checked_mul(per_byte).filter(|columns| columns.is_multiple_of(padding));
        let expected = || format!("rows in multiples of {padding} and {} bytes", padding / per_byte);
        match columns {
            Some(columns) if rows.is_multiple_of(padding) => Ok([rows, columns]),
            _ => Err(MarkFault::Shape {
                tensor: WEIGHT,
                expected: expected(),
                got: weight.shape().to_string(),
            }),
        }
    }

    fn block_scales(
        &self,
        scheme: Scheme,
        [rows, columns]: [usize; 2],
        types: &[DType],
    ) -> Result<(), MarkFault> {
        let scale = self.needed(SCALE)?;
        expect_type(SCALE, scale, types)?;
        let grid = scheme.tiles(columns).map_or([0, 0], |tiles: ScaleTiles| tiles.grid(rows));
        let expected = || format!("{}, whole tiles", Shape::from(grid));
        expect_shape(SCALE, scale, scale.shape().dims() == grid, expected)
    }

    fn needed(&self, tensor: &'static str) -> Result<&'a Entry, MarkFault> {
        self.tensor(tensor).ok_or(MarkFault::Missing { tensor })
    }

    /// A tensor must be one finite f32.
    fn one_number(&self, name: &'static str, entry: &Entry) -> Result<(), MarkFault> {
        expect_type(name, entry, &[DType::F32])?;
        expect_shape(name, entry, entry.shape().count() == 1, || "one number".to_owned())?;
        self.finite(name, entry)
    }

    /// All values of an f32 tensor must be numbers.
    fn finite(&self, tensor: &'static str, entry: &Entry) -> Result<(), MarkFault> {
        let (values, _) = (self.file.bytes)(entry).as_chunks();
        let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes));
        match values.enumerate().find(|(_, value)| !value.is_finite()) {
            Some((row, value)) => Err(MarkFault::NotFinite { tensor, row, value: format!("{value}") }),
            None => Ok(()),
        }
    }
}

/// The dimensions of a weight, which must be a matrix.
fn matrix(weight: &Entry) -> Result<[usize; 2], MarkFault> {
    weight.shape().dims().try_into().map_err(|_| MarkFault::Shape {
        tensor: WEIGHT,
        expected: "a matrix".to_owned(),
        got: weight.shape().to_string(),
    })
}

fn expect_type(tensor: &'static str, entry: &Entry, types: &[DType]) -> Result<(), MarkFault> {
    let dtype = entry.encoding().dtype();
    if dtype.is_some_and(|dtype| types.contains(&dtype)) {
        return Ok(());
    }
    let name = |dtype: DType| dtype_name(dtype).unwrap_or(dtype.name());
    Err(MarkFault::Type {
        tensor,
        expected: types.iter().map(|dtype| name(*dtype)).collect::<Vec<_>>().join(" or "),
        got: dtype.map_or(entry.encoding().name(), name),
    })
}

fn expect_shape(
    tensor: &'static str,
    entry: &Entry,
    fits: bool,
    expected: impl FnOnce() -> String,
) -> Result<(), MarkFault> {
    if fits {
        return Ok(());
    }
    Err(MarkFault::Shape { tensor, expected: expected(), got: entry.shape().to_string() })
}
