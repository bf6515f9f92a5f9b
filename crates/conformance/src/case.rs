//! One case: inputs, the operation as a model would call it, and the same in plain loops.

use std::sync::Arc;

use device::op::Scales;
use device::{Device, Operand};
use meta::{DType, Encoding, Scheme, Shape};
use tensor::{Lane, Tensor, Weight};
use testkit::{QuantisedMatrix, decode, encode, quantise_matrix, random_blocks, random_normal};

use crate::Error;

/// The operation on a device.
type Run = Arc<dyn Fn(&Lane, &Inputs) -> tensor::Result<Tensor> + Send + Sync>;
/// The operation in f64, from the inputs' values in order.
type Naive = Arc<dyn Fn(&[Vec<f64>]) -> Vec<f64> + Send + Sync>;

/// One case of one operation.
#[derive(Clone)]
pub(crate) struct Case {
    op: &'static str,
    variant: String,
    inputs: Vec<Input>,
    run: Run,
    naive: Option<Naive>,
    exact: bool,
    /// The relative error that passes, where it is more than others may have.
    within: f64,
}

/// What goes in.
#[derive(Clone)]
pub(crate) enum Input {
    /// An activation, in the lane's type.
    Activation(Shape, Vec<f32>),
    /// A stored weight.
    Stored(Encoding, Shape, Vec<u8>),
    /// A matrix of these dimensions as codes with scales beside them.
    Coded(Encoding, Shape, Box<QuantisedMatrix>),
    /// An f32 table, whatever the lane's type.
    Table(Shape, Vec<f32>),
    /// Indices.
    Ids(Shape, Vec<i32>),
}

impl Input {
    /// Nearly normal values.
    pub(crate) fn random(seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()))
    }

    /// Nearly normal values, multiplied: an operation that is sensitive to its input gets it as it is,
    /// not rounded once more on the way.
    pub(crate) fn scaled(seed: u64, shape: impl Into<Shape>, factor: f32) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()).iter().map(|v| v * factor).collect())
    }

    /// Nearly normal values moved above 0.
    pub(crate) fn positive(seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()).iter().map(|v| v.abs() + 0.1).collect())
    }

    /// A weight in any encoding: encoded values where there is an encoder, else random blocks.
    pub(crate) fn weight(encoding: Encoding, seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        let values: Vec<f32> = random_normal(seed, shape.count()).iter().map(|v| v * 0.1).collect();
        let bytes = match (encode(encoding, &values), encoding) {
            (Ok(bytes), _) => bytes,
            (Err(_), Encoding::Quant(format)) => {
                random_blocks(format, seed, shape.count() / format.block_len())
            }
            (Err(_), Encoding::Plain(dtype)) => vec![0; shape.count() * dtype.bytes()],
            (Err(_), Encoding::Scaled(scheme)) => {
                vec![0; shape.count() / scheme.block_len() * scheme.block_bytes()]
            }
        };
        Input::Stored(encoding, shape, bytes)
    }

    /// A matrix in a scheme whose scales stand beside it.
    pub(crate) fn coded(scheme: Scheme, seed: u64, dims: [usize; 2]) -> Input {
        let values: Vec<f32> = random_normal(seed, dims[0] * dims[1]).iter().map(|v| v * 0.1).collect();
        // Every scheme can be written.
        let matrix = quantise_matrix(scheme.into(), &values, dims).unwrap_or_else(|error| panic!("{error}"));
        Input::Coded(scheme.into(), Shape::from(dims), Box::new(matrix))
    }

    /// The values of a weight in a plain type, by another decoder than the devices'.
    pub(crate) fn decoded(&self) -> Option<Vec<f64>> {
        match self {
            Input::Stored(encoding, _, bytes) => {
                Some(decode(*encoding, bytes).ok()?.into_iter().map(f64::from).collect())
            }
            _ => None,
        }
    }
}

impl Case {
    /// A case of `op`; `run` is compared with `naive` on the CPU.
    pub(crate) fn new(
        op: &'static str,
        variant: impl Into<String>,
        inputs: Vec<Input>,
        run: impl Fn(&Lane, &Inputs) -> tensor::Result<Tensor> + Send + Sync + 'static,
        naive: impl Fn(&[Vec<f64>]) -> Vec<f64> + Send + Sync + 'static,
    ) -> Case {
        Case {
            op,
            variant: variant.into(),
            inputs,
            run: Arc::new(run),
            naive: Some(Arc::new(naive)),
            exact: false,
            within: 0.0,
        }
    }

    /// The same case, in which values may fall to one side or another of a step, so that more error passes.
    pub(crate) fn within(self, error: f64) -> Case {
        Case { within: error, ..self }
    }

    /// The relative error that passes at least.
    pub(crate) fn tolerance(&self) -> f64 {
        self.within
    }

    /// The same case, which must give the same bits on every device in f32.
    pub(crate) fn exact(self) -> Case {
        Case { exact: true, ..self }
    }

    /// The same case without plain loops: what the CPU gives is checked by its own tests.
    pub(crate) fn without_naive(self) -> Case {
        Case { naive: None, ..self }
    }

    /// Operation and variant.
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.op, self.variant)
    }

    pub(crate) fn op(&self) -> &'static str {
        self.op
    }

    pub(crate) fn variant(&self) -> &str {
        &self.variant
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.exact
    }
}

/// A case with its inputs rounded to one type, so that devices differ only in computing.
pub(crate) struct Prepared<'a> {
    case: &'a Case,
    rounded: Vec<Input>,
    values: Vec<Vec<f64>>,
}

impl<'a> Prepared<'a> {
    /// Rounds activations to `dtype` and unpacks weights, with the CPU.
    pub(crate) fn new(case: &'a Case, reference: &Lane, dtype: DType) -> Result<Prepared<'a>, Error> {
        let mut rounded = Vec::new();
        let mut values = Vec::new();
        for input in &case.inputs {
            let (input, value) = prepare(input, reference, dtype)
                .map_err(|source| Error::Inputs { case: case.name(), source: Box::new(source) })?;
            rounded.push(input);
            values.push(value.into_iter().map(f64::from).collect());
        }
        Ok(Prepared { case, rounded, values })
    }

    /// Runs the case on a lane and reads the result.
    pub(crate) fn run(&self, lane: &Lane) -> tensor::Result<Vec<f32>> {
        let inputs =
            self.rounded.iter().map(|input| place(input, lane)).collect::<tensor::Result<Vec<_>>>()?;
        (self.case.run)(lane, &Inputs(inputs))?.to_vec()
    }

    /// What plain loops give.
    pub(crate) fn naive(&self) -> Option<Vec<f64>> {
        self.case.naive.as_ref().map(|naive| naive(&self.values))
    }
}

/// An input rounded to `dtype`, and its values.
fn prepare(input: &Input, reference: &Lane, dtype: DType) -> tensor::Result<(Input, Vec<f32>)> {
    Ok(match input {
        Input::Activation(shape, values) => {
            let values = reference.tensor_f32(*shape, values)?.cast(dtype)?.cast(DType::F32)?.to_vec()?;
            (Input::Activation(*shape, values.clone()), values)
        }
        Input::Stored(encoding, shape, bytes) => {
            let weight = Weight::upload(reference.device(), *encoding, *shape, bytes)?;
            (input.clone(), reference.unpack(&weight)?.to_vec()?)
        }
        Input::Coded(encoding, shape, matrix) => {
            let weight = coded(reference.device(), *encoding, *shape, matrix)?;
            (input.clone(), reference.unpack(&weight)?.to_vec()?)
        }
        Input::Table(_, values) => (input.clone(), values.clone()),
        Input::Ids(_, ids) => (input.clone(), ids.iter().map(|id| *id as f32).collect()),
    })
}

/// Inputs on a device.
pub(crate) struct Inputs(Vec<Placed>);

enum Placed {
    Tensor(Tensor),
    Weight(Box<Weight>),
}

fn place(input: &Input, lane: &Lane) -> tensor::Result<Placed> {
    Ok(match input {
        Input::Activation(shape, values) => Placed::Tensor(lane.tensor(*shape, values)?),
        Input::Table(shape, values) => Placed::Tensor(lane.tensor_f32(*shape, values)?),
        Input::Ids(shape, ids) => Placed::Tensor(lane.ids(*shape, ids)?),
        Input::Coded(encoding, shape, matrix) => {
            Placed::Weight(Box::new(coded(lane.device(), *encoding, *shape, matrix)?))
        }
        Input::Stored(encoding, shape, bytes) => {
            Placed::Weight(Box::new(stored(lane.device(), *encoding, *shape, bytes)?))
        }
    })
}

fn coded(
    device: &Device,
    encoding: Encoding,
    shape: Shape,
    matrix: &QuantisedMatrix,
) -> tensor::Result<Weight> {
    let upload = |encoding: Encoding, shape: Shape, bytes: &[u8]| {
        Operand::new(device.upload(bytes)?, encoding, shape, 0)
    };
    let scales = upload(matrix.scales_as.into(), matrix.scales_shape, &matrix.scales)?;
    let one = |scale: f32| upload(Encoding::F32, Shape::scalar(), &scale.to_le_bytes());
    let tensor = matrix.tensor_scale.map(one).transpose()?;
    Weight::upload(device, encoding, matrix.stored, &matrix.codes)?
        .with_scales(Scales::new(scales, tensor))
        .cut_to(shape)
}

fn stored(device: &Device, encoding: Encoding, shape: Shape, bytes: &[u8]) -> tensor::Result<Weight> {
    Weight::upload(device, encoding, shape, bytes)
}

impl Inputs {
    /// Input `index`, which the case declared as a tensor.
    pub(crate) fn tensor(&self, index: usize) -> &Tensor {
        match &self.0[index] {
            Placed::Tensor(tensor) => tensor,
            Placed::Weight(_) => panic!("input {index} of the case is a weight"),
        }
    }

    /// Input `index`, which the case declared as a weight.
    pub(crate) fn weight(&self, index: usize) -> &Weight {
        match &self.0[index] {
            Placed::Weight(weight) => weight,
            Placed::Tensor(_) => panic!("input {index} of the case is a tensor"),
        }
    }
}
