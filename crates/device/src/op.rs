//! The closed list of operations. Each call is a value that owns its operands, is checked once here,
//! and is matched by every backend. Outputs are operands too: the caller allocates them.

mod attention;
mod check;
mod coding;
mod convolution;
mod cost;
mod elementwise;
mod layout;
mod lowering;
mod norm;
mod position;
mod product;
mod quantised;
mod reduction;
mod resample;
mod scales;

pub use attention::{Attention, AttentionMask};
pub use coding::{Decode, Encode};
pub use convolution::{Convolution, Padding, Window};
pub use cost::{OpCost, WorkKind};
pub use elementwise::{
    Activation, Binary, BinaryKind, GatedActivation, GatedAdd, Modulate, Unary, UnaryKind,
};
pub use layout::{Copy, Embedding, NormalNoise, Pad};
pub use norm::{GroupNorm, LayerNorm, ModulatedNorm, RmsNorm};
pub use position::{NormedRope, Rope, RopeLayout};
pub use product::{Linear, Matmul};
pub use quantised::{
    LARGEST_CODE, QuantiseRows, QuantisedLinear, QuantisedRows, RowChange, RowModulation, SMALLEST_LARGEST,
};
pub use reduction::{Reduce, ReduceKind, Softmax};
pub use resample::{Resize, ResizeMode};
pub use scales::{Scales, Unpack};

use crate::{Operand, Result};

/// One call of one operation.
#[derive(Clone, Debug)]
pub enum OpCall {
    /// Rows times a stored weight, with bias and activation.
    Linear(Linear),
    /// Rows of activations to 8-bit codes with one scale each.
    QuantiseRows(QuantiseRows),
    /// Such rows times a weight of 8 bits as it is stored, with bias and activation.
    QuantisedLinear(QuantisedLinear),
    /// Batches of matrix products.
    Matmul(Matmul),
    /// Scaled dot-product attention.
    Attention(Attention),
    /// Convolution over one, two or three dimensions.
    Convolution(Convolution),
    /// Normalisation over groups of channels.
    GroupNorm(GroupNorm),
    /// Normalisation to mean 0 and variance 1 over the last dimension.
    LayerNorm(LayerNorm),
    /// Layer norm, then `x * (1 + scale) + shift`.
    ModulatedNorm(ModulatedNorm),
    /// Normalisation by the root mean square over one dimension.
    RmsNorm(RmsNorm),
    /// Rotary position embedding.
    Rope(Rope),
    /// Normalisation of each head by its root mean square, then rotary position embedding.
    NormedRope(NormedRope),
    /// `x * (1 + scale) + shift`.
    Modulate(Modulate),
    /// `x + gate * y`.
    GatedAdd(GatedAdd),
    /// `activation(gate) * up`.
    GatedActivation(GatedActivation),
    /// One value in, one value out.
    Unary(Unary),
    /// Two values in, one value out.
    Binary(Binary),
    /// Softmax over the last dimension.
    Softmax(Softmax),
    /// Sums, means and extremes over dimensions.
    Reduce(Reduce),
    /// Rows of a table.
    Embedding(Embedding),
    /// Conversion of type and layout; also unpacks quantised weights.
    Copy(Copy),
    /// The numbers of a weight with scales beside it.
    Unpack(Unpack),
    /// Floats to losslessly coded bytes.
    Encode(Encode),
    /// Losslessly coded bytes to floats.
    Decode(Decode),
    /// A border around a tensor.
    Pad(Pad),
    /// Another image size.
    Resize(Resize),
    /// Normal noise from a seed.
    NormalNoise(NormalNoise),
}

/// What every operation answers.
trait Operation {
    const NAME: &'static str;

    /// Calls `visit` with each operand that is read.
    fn inputs<'a>(&'a self, visit: &mut dyn FnMut(&'a Operand));

    /// The operand that is written.
    fn output(&self) -> &Operand;

    /// Calls `visit` with each operand that has the activations' type, the output last.
    fn activations<'a>(&'a mut self, visit: &mut dyn FnMut(&'a mut Operand));

    /// Whether the operands fit each other.
    fn check(&self) -> Result<()>;

    /// Additions and multiplications, roughly; one per value where there is no better count.
    fn flops(&self) -> u64 {
        self.output().count() as u64
    }

    /// Bytes read and written, each operand once.
    fn bytes(&self) -> u64 {
        let mut bytes = self.output().stored_bytes();
        self.inputs(&mut |operand| bytes += operand.stored_bytes());
        bytes
    }
}

/// [`Operation::activations`] of the fields that are such operands.
macro_rules! activations {
    ($($field:ident),*) => {
        fn activations<'a>(&'a mut self, _visit: &mut dyn FnMut(&'a mut Operand)) {
            $(_visit(&mut self.$field);)*
        }
    };
}
use activations;

/// Applies an expression to the call inside, whichever it is.
macro_rules! with_call {
    ($self:expr, $call:ident => $body:expr) => {
        match $self {
            OpCall::Linear($call) => $body,
            OpCall::QuantiseRows($call) => $body,
            OpCall::QuantisedLinear($call) => $body,
            OpCall::Matmul($call) => $body,
            OpCall::Attention($call) => $body,
            OpCall::Convolution($call) => $body,
            OpCall::GroupNorm($call) => $body,
            OpCall::LayerNorm($call) => $body,
            OpCall::ModulatedNorm($call) => $body,
            OpCall::RmsNorm($call) => $body,
            OpCall::Rope($call) => $body,
            OpCall::NormedRope($call) => $body,
            OpCall::Modulate($call) => $body,
            OpCall::GatedAdd($call) => $body,
            OpCall::GatedActivation($call) => $body,
            OpCall::Unary($call) => $body,
            OpCall::Binary($call) => $body,
            OpCall::Softmax($call) => $body,
            OpCall::Reduce($call) => $body,
            OpCall::Embedding($call) => $body,
            OpCall::Copy($call) => $body,
            OpCall::Unpack($call) => $body,
            OpCall::Encode($call) => $body,
            OpCall::Decode($call) => $body,
            OpCall::Pad($call) => $body,
            OpCall::Resize($call) => $body,
            OpCall::NormalNoise($call) => $body,
        }
    };
}

/// The name of the operation a call is of.
fn name_of<T: Operation>(_: &T) -> &'static str {
    T::NAME
}

impl OpCall {
    /// The operation's name.
    pub fn name(&self) -> &'static str {
        with_call!(self, call => name_of(call))
    }

    /// The operands that are read.
    pub fn inputs(&self) -> Vec<&Operand> {
        let mut inputs = Vec::with_capacity(5);
        with_call!(self, call => call.inputs(&mut |operand| inputs.push(operand)));
        inputs
    }

    /// The operand that is written.
    pub fn output(&self) -> &Operand {
        with_call!(self, call => call.output())
    }

    /// All operands, the output last.
    pub fn operands(&self) -> Vec<&Operand> {
        let mut all = self.inputs();
        all.push(self.output());
        all
    }

    /// Calls `look` with each operand, the output last, until one is an error. Nothing is allocated: this is on the
    /// way of every launch.
    pub fn each_operand<'a>(&'a self, mut look: impl FnMut(&'a Operand) -> Result<()>) -> Result<()> {
        self.each_input(&mut look)?;
        look(self.output())
    }

    /// The same with each operand that is read.
    fn each_input<'a>(&'a self, mut look: impl FnMut(&'a Operand) -> Result<()>) -> Result<()> {
        let mut outcome = Ok(());
        let mut visit = |operand: &'a Operand| {
            if outcome.is_ok() {
                outcome = look(operand);
            }
        };
        with_call!(self, call => call.inputs(&mut visit));
        outcome
    }

    /// Additions and multiplications, roughly.
    pub fn flops(&self) -> u64 {
        with_call!(self, call => call.flops())
    }

    /// Bytes read and written, each operand once.
    pub fn bytes(&self) -> u64 {
        with_call!(self, call => call.bytes())
    }

    /// The same call with other operands in place of its activations, the output last. Conversions have none: their
    /// operands may be of any type.
    pub(crate) fn with_activations(
        &self,
        mut other: impl FnMut(&Operand) -> Result<Operand>,
    ) -> Result<OpCall> {
        let (mut call, mut outcome) = (self.clone(), Ok(()));
        let mut replace = |operand: &mut Operand| match other(operand) {
            Ok(replaced) => *operand = replaced,
            Err(error) => outcome = Err(error),
        };
        with_call!(&mut call, call => call.activations(&mut replace));
        outcome.map(|()| call)
    }

    /// Whether the operands fit each other, and the output overlaps no input. An elementwise operation
    /// may write exactly over an input.
    pub fn validate(&self) -> Result<()> {
        with_call!(self, call => call.check())?;
        let in_place = matches!(
            self,
            OpCall::Modulate(_)
                | OpCall::GatedAdd(_)
                | OpCall::GatedActivation(_)
                | OpCall::Unary(_)
                | OpCall::Binary(_)
        );
        let out = self.output();
        let repeats = out.dims().iter().zip(out.strides()).any(|(size, stride)| *size > 1 && *stride == 0);
        if repeats && out.count() > 0 {
            let expected = "a place of its own for every value".into();
            return Err(check::error(self.name(), "output", expected, format!("{out:?}, repeated")));
        }
        self.each_input(|input| {
            if input.overlaps(out) && !(in_place && input.same_view(out)) {
                let (expected, got) = ("apart from the inputs".into(), format!("{out:?} over {input:?}"));
                return Err(check::error(self.name(), "output", expected, got));
            }
            Ok(())
        })
    }
}

/// Lets a call be passed where an [`OpCall`] is wanted.
macro_rules! into_call {
    ($($name:ident),*) => {
        $(impl From<$name> for OpCall {
            fn from(call: $name) -> OpCall {
                OpCall::$name(call)
            }
        })*
    };
}

into_call!(
    Linear,
    QuantiseRows,
    QuantisedLinear,
    Matmul,
    Attention,
    Convolution,
    GroupNorm,
    LayerNorm,
    ModulatedNorm,
    RmsNorm,
    Rope,
    NormedRope,
    Modulate,
    GatedAdd,
    GatedActivation,
    Unary,
    Binary,
    Softmax,
    Reduce,
    Embedding,
    Copy,
    Unpack,
    Encode,
    Decode,
    Pad,
    Resize,
    NormalNoise
);
