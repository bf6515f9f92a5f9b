//! Large attentions and convolutions through cuDNN, where it is installed: its kernels reach several times the speed
//! of ours on the newest cards. The library is looked for when a first large one runs, because loading it takes time
//! and memory that a program without one should not spend.
//!
//! cuDNN is told what to compute as a graph of small operations (a product, a softmax in its parts, a product),
//! finds the fused kernel for it, and is then run with addresses. Whatever it cannot do is left to our own kernel.

mod graph;

use std::ffi::{c_int, c_void};
use std::ptr::{from_ref, null_mut};
use std::sync::{Arc, Mutex, OnceLock};

use device::{Error, Operand, Result, op};
use meta::DType;

use crate::context::{Context, lock};
use crate::fast_hash::FastMap;
use crate::kernel::Launch;
use crate::library::{self, SearchPath};
use crate::ops::product::SCRATCH_LIMIT;
use crate::raw::DnnFunctions;
use graph::{Handle, Plan};

/// Queries and keys from which on it pays: below, a launch of our own kernel is as quick.
const LEAST_TOKENS: usize = 512;
/// The same where there is a mask or heads share keys.
const LEAST_TOKENS_OF_OTHERS: usize = 1024;

/// Multiplications and places of a picture from which on it pays for a convolution: tensors may have to be turned
/// around first.
const LEAST_WORK: usize = 1 << 27;
const LEAST_PLACES: usize = 64 * 64;
/// What a kernel may take beside copies of its tensors.
const MARGIN: usize = 16 << 20;
/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 16;

/// cuDNN, found when it is first needed; one for all devices.
#[derive(Default)]
pub(crate) struct LazyDnn {
    path: SearchPath,
    newest: u32,
    found: OnceLock<Option<DnnFunctions>>,
}

impl LazyDnn {
    pub(crate) fn new(path: SearchPath, newest: u32) -> LazyDnn {
        LazyDnn { path, newest, found: OnceLock::new() }
    }

    fn functions(&self) -> Option<DnnFunctions> {
        *self.found.get_or_init(|| library::load_dnn(&self.path, self.newest).ok())
    }
}

/// cuDNN in one context.
pub(crate) struct Dnn {
    context: Arc<Context>,
    library: Arc<LazyDnn>,
    state: Mutex<State>,
}

/// A handle serves one stream at a time, so everything is behind one lock; a call only queues work.
#[derive(Default)]
struct State {
    handle: Option<Handle>,
    /// Whether the handle could not be made; it is not tried again.
    unusable: bool,
    plans: FastMap<Shape, Option<Plan>>,
}

impl State {
    /// The handle, and the plan for a shape, looked for once; none if cuDNN does not start or has no such kernel. The
    /// context must be current.
    fn plan(&mut self, raw: DnnFunctions, shape: Shape) -> Option<(&Handle, &Plan)> {
        if self.handle.is_none() && !self.unusable {
            self.handle = Handle::new(raw);
            self.unusable = self.handle.is_none();
        }
        let handle = self.handle.as_ref()?;
        let find = || Plan::find(handle, &shape, shape.most_workspace()).ok();
        self.plans.entry(shape).or_insert_with(find).as_ref().map(|plan| (handle, plan))
    }
}

/// What a kernel is chosen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Attention(AttentionShape),
    Convolution(ConvolutionShape),
}

/// An attention as far as a kernel is chosen by it: `[batch, tokens, heads, size]`, and where the next item of each
/// axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionShape {
    pub(crate) dtype: DType,
    pub(crate) batch: i64,
    pub(crate) heads: i64,
    /// Heads of keys and values.
    pub(crate) groups: i64,
    pub(crate) queries: i64,
    pub(crate) keys: i64,
    pub(crate) size: i64,
    /// Strides of batch, token and head: of the queries, the keys, the values and the result.
    pub(crate) strides: [[i64; 3]; 4],
    pub(crate) mask: Option<MaskShape>,
}

/// A mask that is added to the scores: batch, head, query and key, of which those that repeat are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MaskShape {
    pub(crate) dims: [i64; 4],
    pub(crate) strides: [i64; 4],
}

impl MaskShape {
    /// The shape of a mask that repeats to `[batch, heads, queries, keys]`, which it is seen as; none if its rows
    /// cannot be read as they are.
    pub(crate) fn of(mask: &Operand) -> Option<MaskShape> {
        let (mut dims, mut strides) = ([1; 4], [0; 4]);
        for axis in 0..4 {
            if mask.dim(axis) > 1 && mask.strides()[axis] > 0 {
                (dims[axis], strides[axis]) = (mask.dim(axis) as i64, mask.strides()[axis] as i64);
            }
        }
        let packed = mask.dim(3) > 1 && mask.strides()[3] == 1 && is_aligned(mask);
        let aligned = strides[..3].iter().all(|stride| *stride % 8 == 0);
        // Where there is one index only any stride will do; cuDNN wants them to go on.
        for axis in (0..3).rev().filter(|axis| dims[*axis] == 1).collect::<Vec<_>>() {
            strides[axis] = (dims[axis + 1] * strides[axis + 1] + 7) / 8 * 8;
        }
        (packed && aligned).then_some(MaskShape { dims, strides })
    }
}

impl AttentionShape {
    /// The shape of a call that cuDNN may be asked for: 16-bit values, whole heads of up to 128, no cap, and no mask that
    /// depends on positions. A mask that is added comes beside.
    pub(crate) fn of(call: &op::Attention, dtype: DType) -> Option<AttentionShape> {
        let (q, k) = (&call.q, &call.k);
        let size = q.dim(3);
        let plain = matches!(call.mask, op::AttentionMask::None) && q.dim(2) == k.dim(2);
        let least = if plain { LEAST_TOKENS } else { LEAST_TOKENS_OF_OTHERS };
        let fits = dtype != DType::F32
            && call.soft_cap.is_none()
            && !matches!(call.mask, op::AttentionMask::Causal)
            && size.is_multiple_of(8)
            && (16..=128).contains(&size)
            && q.dim(1) >= least
            && k.dim(1) >= least;
        if !fits {
            return None;
        }
        let operands = [&call.q, &call.k, &call.v, &call.out];
        let aligned = |stride: usize| stride.is_multiple_of(8);
        let dense = operands
            .iter()
            .all(|x| is_aligned(x) && x.strides()[3] == 1 && x.strides()[..3].iter().all(|s| aligned(*s)));
        let stride = |axis: usize| operands.map(|x| x.strides()[axis] as i64);
        let [batch, token, head] = [stride(0), stride(1), stride(2)];
        dense.then(|| AttentionShape {
            dtype,
            batch: q.dim(0) as i64,
            heads: q.dim(2) as i64,
            groups: k.dim(2) as i64,
            queries: q.dim(1) as i64,
            keys: k.dim(1) as i64,
            size: size as i64,
            strides: [0, 1, 2, 3].map(|i| [batch[i], token[i], head[i]]),
            mask: None,
        })
    }
}

/// A convolution as far as a kernel is chosen by it. Tensors are contiguous `[images or outputs, channels, height,
/// width]`, or with frames before the height.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConvolutionShape {
    pub(crate) dtype: DType,
    /// Dimensions that the window moves along, 2 or 3; of what follows so many count, and two more of the tensors.
    pub(crate) moved: usize,
    pub(crate) x: [i64; 5],
    pub(crate) weight: [i64; 5],
    pub(crate) out: [i64; 5],
    pub(crate) strides: [i64; 3],
    pub(crate) dilations: [i64; 3],
    pub(crate) pads_before: [i64; 3],
    pub(crate) pads_after: [i64; 3],
}

impl ConvolutionShape {
    /// The shape of a call that cuDNN may be asked for: 16-bit pictures or videos, zeros around them, and enough to do.
    pub(crate) fn of(call: &op::Convolution, dtype: DType) -> Option<ConvolutionShape> {
        let (x, weight, out) = (call.x.dims(), call.weight.dims(), call.out.dims());
        let moved = call.window.len();
        if !(2..=3).contains(&moved) || [x, weight, out].iter().any(|dims| dims.len() != moved + 2) {
            return None;
        }
        let zeros = matches!(call.padding, op::Padding::Constant(0.0))
            || call.window.iter().all(|w| w.pad_before == 0 && w.pad_after == 0);
        let work = out.iter().product::<usize>() * weight[1..].iter().product::<usize>();
        let enough = work >= LEAST_WORK && out[2..].iter().product::<usize>() >= LEAST_PLACES;
        // A weight of another type is unpacked to a place of its own.
        let own_weight = call.weight.dtype() == Some(dtype);
        let aligned =
            is_aligned(&call.x) && is_aligned(&call.out) && (!own_weight || is_aligned(&call.weight));
        let fits = dtype != DType::F32 && !call.transposed && call.groups == 1 && zeros && enough && aligned;
        let numbers =
            |dims: &[usize]| std::array::from_fn(|axis| dims.get(axis).map_or(1, |dim| *dim as i64));
        let each = |of: fn(&op::Window) -> usize| {
            std::array::from_fn(|axis| call.window.get(axis).map_or(0, |window| of(window) as i64))
        };
        fits.then(|| ConvolutionShape {
            dtype,
            moved,
            x: numbers(x),
            weight: numbers(weight),
            out: numbers(out),
            strides: each(|w| w.stride),
            dilations: each(|w| w.dilation),
            pads_before: each(|w| w.pad_before),
            pads_after: each(|w| w.pad_after),
        })
    }
}

/// Whether an operand begins where cuDNN can read it. Buffers start at multiples of 256.
fn is_aligned(operand: &Operand) -> bool {
    operand.offset().is_multiple_of(ALIGNMENT)
}

impl Shape {
    fn name(&self) -> &'static str {
        match self {
            Shape::Attention(_) => "attention",
            Shape::Convolution(_) => "convolution",
        }
    }

    /// The most memory that a kernel may take for itself. A convolution may turn its tensors around to do them with
    /// channels last.
    fn most_workspace(&self) -> usize {
        match self {
            Shape::Attention(_) => SCRATCH_LIMIT,
            Shape::Convolution(shape) => {
                let values = [shape.x, shape.weight, shape.out].map(|dims| dims.iter().product::<i64>());
                SCRATCH_LIMIT.max(2 * values.iter().sum::<i64>() as usize + MARGIN)
            }
        }
    }
}

// SAFETY: handles and plans are used under the lock only, with the context current.
unsafe impl Send for Dnn {}
// SAFETY: as above.
unsafe impl Sync for Dnn {}

impl Dnn {
    pub(crate) fn new(context: Arc<Context>, library: Arc<LazyDnn>) -> Dnn {
        Dnn { context, library, state: Mutex::default() }
    }

    /// Queues an attention if cuDNN is there and can do it; whether it was queued. The addresses are those of
    /// queries, keys, values, result and, if there is one, mask.
    pub(crate) fn attention(
        &self,
        launch: &Launch<'_>,
        shape: &AttentionShape,
        addresses: [u64; 5],
        scale: f32,
    ) -> Result<bool> {
        let [q, k, v, out, mask] = addresses.map(|address| address as *mut c_void);
        let pointers = [q, k, v, out, from_ref(&scale).cast_mut().cast(), mask];
        let count = if shape.mask.is_some() { 6 } else { 5 };
        self.run(launch, Shape::Attention(*shape), &pointers[..count])
    }

    /// Queues a convolution if cuDNN is there and can do it; whether it was queued. The addresses are those of
    /// input, weight and result.
    pub(crate) fn convolution(
        &self,
        launch: &Launch<'_>,
        shape: &ConvolutionShape,
        addresses: [u64; 3],
    ) -> Result<bool> {
        let pointers = addresses.map(|address| address as *mut c_void);
        self.run(launch, Shape::Convolution(*shape), &pointers)
    }

    /// Bytes that cuDNN's kernel for such an attention takes for itself; none if there is no such kernel.
    pub(crate) fn attention_workspace(&self, shape: &AttentionShape) -> Option<usize> {
        self.workspace(Shape::Attention(*shape))
    }

    /// The same for a convolution.
    pub(crate) fn convolution_workspace(&self, shape: &ConvolutionShape) -> Option<usize> {
        self.workspace(Shape::Convolution(*shape))
    }

    fn workspace(&self, shape: Shape) -> Option<usize> {
        let raw = self.library.functions()?;
        // An error that waits to be told is not for a question that cannot tell it.
        self.context.make_current().ok()?;
        lock(&self.state).plan(raw, shape).map(|(_, plan)| plan.workspace_bytes())
    }

    /// Queues a kernel over these tensors, given in the order of their names.
    fn run(&self, launch: &Launch<'_>, shape: Shape, pointers: &[*mut c_void]) -> Result<bool> {
        let Some(raw) = self.library.functions() else { return Ok(false) };
        self.context.enter()?;
        let mut state = lock(&self.state);
        let Some((handle, plan)) = state.plan(raw, shape) else { return Ok(false) };
        // Where there is no room for that, our own kernels do with less.
        let workspace = match launch.scratch(plan.workspace_bytes()) {
            Err(Error::OutOfMemory(_)) => return Ok(false),
            other => other?,
        };
        // SAFETY: the addresses are those of operands of the shape's sizes, which the launch keeps for the stream.
        let queued = unsafe { plan.run(handle, launch.queue.raw(), pointers, workspace.pointer()) };
        queued.map_err(|fault| Error::Device {
            device: self.context.id(),
            action: format!("{} through cuDNN", shape.name()),
            reason: fault.to_string(),
        })?;
        Ok(true)
    }
}

impl Drop for Dnn {
    fn drop(&mut self) {
        let state = std::mem::take(&mut *lock(&self.state));
        self.context.leave("closing cuDNN", |_| {
            drop(state);
            Ok(())
        });
    }
}

/// What a call of the library said.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call} said {code}")]
pub(crate) struct Fault {
    call: &'static str,
    code: c_int,
}

fn check(call: &'static str, code: c_int) -> Result<(), Fault> {
    if code == 0 { Ok(()) } else { Err(Fault { call, code }) }
}

impl Handle {
    /// A handle in the current context; none if the library does not start here.
    fn new(raw: DnnFunctions) -> Option<Handle> {
        let mut handle: *mut c_void = null_mut();
        // SAFETY: the context is current, and the handle is a variable of the right type.
        let code = unsafe { (raw.cudnnCreate)(&mut handle) };
        (code == 0).then(|| Handle::own(raw, handle))
    }
}
