//! One case: inputs, the operation as a model would call it, and the same in plain loops.

use std::sync::Arc;

use anyhow::{Context, Result};
use device::Device;
use meta::{DType, Encoding, Shape};
use tensor::{Lane, Tensor, Weight};
use testkit::{decode, encode, random_blocks, random_normal};

/// The operation on a device.
type Run = Arc<dyn Fn(&Lane, &Inputs) -> tensor::Result<Tensor> + Send + Sync>;
/// The operation in f64, from the inputs' values in order.
type Naive = Arc<dyn Fn(&[Vec<f64>]) -> Vec<f64> + Send + Sync>;

/// One case of one operation.
#[derive(Clone)]
pub(super) struct Case {
    op: &'static str,
    variant: String,
    inputs: Vec<Input>,
    run: Run,
    naive: Option<Naive>,
    exact: bool,
}

/// What goes in.
#[derive(Clone)]
pub(super) enum Input {
    /// An activation, in the lane's type.
    Activation(Shape, Vec<f32>),
    /// A stored weight.
    Stored(Encoding, Shape, Vec<u8>),
    /// An f32 table, whatever the lane's type.
    Table(Shape, Vec<f32>),
    /// Indices.
    Ids(Shape, Vec<i32>),
}

impl Input {
    /// Nearly normal values.
    pub(super) fn random(seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()))
    }

    /// Nearly normal values, multiplied: an operation that is sensitive to its input gets it as it is,
    /// not rounded once more on the way.
    pub(super) fn scaled(seed: u64, shape: impl Into<Shape>, factor: f32) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()).iter().map(|v| v * factor).collect())
    }

    /// Nearly normal values moved above 0.
    pub(super) fn positive(seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        Input::Activation(shape, random_normal(seed, shape.count()).iter().map(|v| v.abs() + 0.1).collect())
    }

    /// A weight in any encoding: encoded values where there is an encoder, else random blocks.
    pub(super) fn weight(encoding: Encoding, seed: u64, shape: impl Into<Shape>) -> Input {
        let shape = shape.into();
        let values: Vec<f32> = random_normal(seed, shape.count()).iter().map(|v| v * 0.1).collect();
        let bytes = match (encode(encoding, &values), encoding) {
            (Ok(bytes), _) => bytes,
            (Err(_), Encoding::Quant(format)) => {
                random_blocks(format, seed, shape.count() / format.block_len())
            }
            (Err(_), Encoding::Plain(dtype)) => vec![0; shape.count() * dtype.bytes()],
        };
        Input::Stored(encoding, shape, bytes)
    }

    /// The values of a weight in a plain type, by another decoder than the devices'.
    pub(super) fn decoded(&self) -> Option<Vec<f64>> {
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
    pub(super) fn new(
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
        }
    }

    /// The same case, which must give the same bits on every device in f32.
    pub(super) fn exact(self) -> Case {
        Case { exact: true, ..self }
    }

    /// The same case without plain loops: what the CPU gives is checked by its own tests.
    pub(super) fn without_naive(self) -> Case {
        Case { naive: None, ..self }
    }

    /// Operation and variant.
    pub(super) fn name(&self) -> String {
        format!("{} {}", self.op, self.variant)
    }

    pub(super) fn op(&self) -> &'static str {
        self.op
    }

    pub(super) fn variant(&self) -> &str {
        &self.variant
    }

    pub(super) fn is_exact(&self) -> bool {
        self.exact
    }
}

/// A case with its inputs rounded to one type, so that devices differ only in computing.
pub(super) struct Prepared<'a> {
    case: &'a Case,
    rounded: Vec<Input>,
    values: Vec<Vec<f64>>,
}

impl<'a> Prepared<'a> {
    /// Rounds activations to `dtype` and unpacks weights, with the CPU.
    pub(super) fn new(case: &'a Case, reference: &Lane, dtype: DType) -> Result<Prepared<'a>> {
        let mut rounded = Vec::new();
        let mut values = Vec::new();
        for input in &case.inputs {
            let (input, value) = prepare(input, reference, dtype).with_context(|| case.name())?;
            rounded.push(input);
            values.push(value.into_iter().map(f64::from).collect());
        }
        Ok(Prepared { case, rounded, values })
    }

    /// Runs the case on a lane and reads the result.
    pub(super) fn run(&self, lane: &Lane) -> tensor::Result<Vec<f32>> {
        let inputs =
            self.rounded.iter().map(|input| place(input, lane)).collect::<tensor::Result<Vec<_>>>()?;
        (self.case.run)(lane, &Inputs(inputs))?.to_vec()
    }

    /// What plain loops give.
    pub(super) fn naive(&self) -> Option<Vec<f64>> {
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
        Input::Table(_, values) => (input.clone(), values.clone()),
        Input::Ids(_, ids) => (input.clone(), ids.iter().map(|id| *id as f32).collect()),
    })
}

/// Inputs on a device.
pub(super) struct Inputs(Vec<Placed>);

enum Placed {
    Tensor(Tensor),
    Weight(Weight),
}

fn place(input: &Input, lane: &Lane) -> tensor::Result<Placed> {
    Ok(match input {
        Input::Activation(shape, values) => Placed::Tensor(lane.tensor(*shape, values)?),
        Input::Table(shape, values) => Placed::Tensor(lane.tensor_f32(*shape, values)?),
        Input::Ids(shape, ids) => Placed::Tensor(lane.ids(*shape, ids)?),
        Input::Stored(encoding, shape, bytes) => {
            Placed::Weight(stored(lane.device(), *encoding, *shape, bytes)?)
        }
    })
}

fn stored(device: &Device, encoding: Encoding, shape: Shape, bytes: &[u8]) -> tensor::Result<Weight> {
    Weight::upload(device, encoding, shape, bytes)
}

impl Inputs {
    /// Input `index`, which the case declared as a tensor.
    pub(super) fn tensor(&self, index: usize) -> &Tensor {
        match &self.0[index] {
            Placed::Tensor(tensor) => tensor,
            Placed::Weight(_) => panic!("input {index} of the case is a weight"),
        }
    }

    /// Input `index`, which the case declared as a weight.
    pub(super) fn weight(&self, index: usize) -> &Weight {
        match &self.0[index] {
            Placed::Weight(weight) => weight,
            Placed::Tensor(_) => panic!("input {index} of the case is a tensor"),
        }
    }
}
