//! cuDNN's graphs: descriptors that free themselves, the graphs of an attention and a convolution, and their plans.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys::CUstream;
use meta::DType;

use super::{AttentionShape, ConvolutionShape, Fault, MaskShape, Shape, check};
use crate::raw::DnnFunctions;

/// Kinds of descriptors, attributes and values, by their numbers in cuDNN's headers.
mod code {
    use std::ffi::c_int;

    pub(super) const POINTWISE: c_int = 0;
    pub(super) const CONVOLUTION: c_int = 1;
    pub(super) const ENGINE_CONFIG: c_int = 3;
    pub(super) const HEURISTICS: c_int = 4;
    pub(super) const PLAN: c_int = 5;
    pub(super) const OPERATION_CONVOLUTION: c_int = 10;
    pub(super) const OPERATION_POINTWISE: c_int = 13;
    pub(super) const OPERATION_GRAPH: c_int = 15;
    pub(super) const VARIANT_PACK: c_int = 16;
    pub(super) const TENSOR: c_int = 17;
    pub(super) const MATMUL: c_int = 18;
    pub(super) const OPERATION_MATMUL: c_int = 19;
    pub(super) const REDUCTION: c_int = 21;
    pub(super) const OPERATION_REDUCTION: c_int = 22;

    pub(super) const MULTIPLY: c_int = 1;
    pub(super) const ADD: c_int = 0;
    pub(super) const DIVIDE: c_int = 6;
    pub(super) const SUBTRACT: c_int = 9;
    pub(super) const EXP: c_int = 13;
    pub(super) const LOG: c_int = 15;
    /// The kernel is not turned around.
    pub(super) const CROSS_CORRELATION: c_int = 1;
    pub(super) const REDUCE_ADD: c_int = 0;
    pub(super) const REDUCE_MAX: c_int = 3;

    pub(super) const F32: c_int = 0;
    pub(super) const F16: c_int = 2;
    pub(super) const BF16: c_int = 9;
    /// The way of choosing kernels, best first: by a model of their speed, then whatever works.
    pub(super) const CHOICES: [c_int; 2] = [3, 2];
}

/// The type of an attribute's values, by its number in cuDNN's headers.
#[derive(Clone, Copy)]
enum Type {
    Handle = 0,
    Element = 1,
    Boolean = 2,
    Int64 = 3,
    Float = 4,
    Pointer = 6,
    ConvolutionMode = 7,
    Heuristic = 8,
    PointwiseMode = 14,
    Descriptor = 15,
    Reduction = 18,
}

/// Kernels that are tried for a graph, best first.
const CANDIDATES: usize = 8;

/// cuDNN's handle.
pub(super) struct Handle {
    raw: DnnFunctions,
    handle: *mut c_void,
}

impl Handle {
    pub(super) fn own(raw: DnnFunctions, handle: *mut c_void) -> Handle {
        Handle { raw, handle }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: the handle is this library's and is used no more.
        unsafe { (self.raw.cudnnDestroy)(self.handle) };
    }
}

/// A descriptor.
struct Descriptor {
    raw: DnnFunctions,
    descriptor: *mut c_void,
}

impl Descriptor {
    fn new(raw: DnnFunctions, kind: c_int) -> Result<Descriptor, Fault> {
        let mut descriptor: *mut c_void = null_mut();
        // SAFETY: the descriptor is a variable of the right type.
        let code = unsafe { (raw.cudnnBackendCreateDescriptor)(kind, &mut descriptor) };
        check("cudnnBackendCreateDescriptor", code)?;
        Ok(Descriptor { raw, descriptor })
    }

    /// Sets an attribute to values of a type whose size in memory is `T`'s.
    fn set<T>(&mut self, attribute: c_int, kind: Type, values: &[T]) -> Result<(), Fault> {
        let (count, first) = (values.len() as i64, values.as_ptr().cast::<c_void>());
        // SAFETY: the values are alive during the call, which copies them, and are as many as it is told.
        let code = unsafe {
            (self.raw.cudnnBackendSetAttribute)(self.descriptor, attribute, kind as c_int, count, first)
        };
        check("cudnnBackendSetAttribute", code)
    }

    fn set_descriptor(&mut self, attribute: c_int, other: &Descriptor) -> Result<(), Fault> {
        self.set(attribute, Type::Descriptor, &[other.descriptor])
    }

    fn finish(self) -> Result<Descriptor, Fault> {
        // SAFETY: the descriptor is alive.
        let code = unsafe { (self.raw.cudnnBackendFinalize)(self.descriptor) };
        check("cudnnBackendFinalize", code)?;
        Ok(self)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        // SAFETY: the descriptor is this library's and is used no more.
        unsafe { (self.raw.cudnnBackendDestroyDescriptor)(self.descriptor) };
    }
}

/// Names of the tensors that are given when a plan of an attention runs. Those of any plan are 1, 2, 3 …
const QUERIES: i64 = 1;
const KEYS: i64 = 2;
const VALUES: i64 = 3;
const RESULT: i64 = 4;
/// The scale is read from the host when the plan runs.
const SCALE: i64 = 5;
const MASK: i64 = 6;

/// Builds the graph: hands out names for what stays inside.
struct Builder {
    raw: DnnFunctions,
    next: i64,
    operations: Vec<Descriptor>,
    /// What the operations refer to; it must live until the graph is finished.
    parts: Vec<Descriptor>,
}

/// A tensor: its extent, where the next item of each axis is, and its type.
#[derive(Clone, Copy)]
struct Extent<const RANK: usize = 4> {
    dims: [i64; RANK],
    strides: [i64; RANK],
    dtype: c_int,
}

impl<const RANK: usize> Extent<RANK> {
    /// Dense, in f32: what stays inside.
    fn inside(dims: [i64; RANK]) -> Extent<RANK> {
        let strides = std::array::from_fn(|axis| dims[axis + 1..].iter().product());
        Extent { dims, strides, dtype: code::F32 }
    }
}

impl Builder {
    fn tensor<const RANK: usize>(
        &mut self,
        name: i64,
        extent: &Extent<RANK>,
        is_virtual: bool,
    ) -> Result<usize, Fault> {
        let mut tensor = Descriptor::new(self.raw, code::TENSOR)?;
        tensor.set(906, Type::Int64, &[name])?;
        tensor.set(901, Type::Element, &[extent.dtype])?;
        tensor.set(902, Type::Int64, &extent.dims)?;
        tensor.set(903, Type::Int64, &extent.strides)?;
        tensor.set(900, Type::Int64, &[16i64])?;
        tensor.set(907, Type::Boolean, &[is_virtual])?;
        tensor.set(908, Type::Boolean, &[name == SCALE])?;
        self.parts.push(tensor.finish()?);
        Ok(self.parts.len() - 1)
    }

    fn inner(&mut self, extent: &Extent) -> Result<usize, Fault> {
        self.next += 1;
        self.tensor(self.next, extent, true)
    }

    /// `c = a · b`.
    fn product(&mut self, a: usize, b: usize, c: usize) -> Result<(), Fault> {
        let mut kind = Descriptor::new(self.raw, code::MATMUL)?;
        kind.set(1500, Type::Element, &[code::F32])?;
        let kind = kind.finish()?;
        let mut operation = Descriptor::new(self.raw, code::OPERATION_MATMUL)?;
        operation.set_descriptor(1520, &self.parts[a])?;
        operation.set_descriptor(1521, &self.parts[b])?;
        operation.set_descriptor(1522, &self.parts[c])?;
        operation.set_descriptor(1523, &kind)?;
        self.add(operation, kind)
    }

    /// `y = x ∘ b`, or a function of `x` alone.
    fn pointwise(&mut self, mode: c_int, x: usize, b: Option<usize>, y: usize) -> Result<(), Fault> {
        let mut kind = Descriptor::new(self.raw, code::POINTWISE)?;
        kind.set(0, Type::PointwiseMode, &[mode])?;
        kind.set(1, Type::Element, &[code::F32])?;
        let kind = kind.finish()?;
        let mut operation = Descriptor::new(self.raw, code::OPERATION_POINTWISE)?;
        operation.set_descriptor(750, &kind)?;
        operation.set_descriptor(751, &self.parts[x])?;
        if let Some(b) = b {
            operation.set_descriptor(752, &self.parts[b])?;
        }
        operation.set_descriptor(753, &self.parts[y])?;
        self.add(operation, kind)
    }

    /// `y` = the sum or the largest of each row of `x`.
    fn reduce(&mut self, mode: c_int, x: usize, y: usize) -> Result<(), Fault> {
        let mut kind = Descriptor::new(self.raw, code::REDUCTION)?;
        kind.set(1600, Type::Reduction, &[mode])?;
        kind.set(1601, Type::Element, &[code::F32])?;
        let kind = kind.finish()?;
        let mut operation = Descriptor::new(self.raw, code::OPERATION_REDUCTION)?;
        operation.set_descriptor(1610, &self.parts[x])?;
        operation.set_descriptor(1611, &self.parts[y])?;
        operation.set_descriptor(1612, &kind)?;
        self.add(operation, kind)
    }

    fn add(&mut self, operation: Descriptor, kind: Descriptor) -> Result<(), Fault> {
        self.parts.push(kind);
        self.operations.push(operation.finish()?);
        Ok(())
    }

    fn build(&mut self, shape: &Shape) -> Result<(), Fault> {
        match shape {
            Shape::Attention(shape) => self.attention(shape),
            Shape::Convolution(shape) if shape.moved == 3 => self.convolution::<5>(shape),
            Shape::Convolution(shape) => self.convolution::<4>(shape),
        }
    }

    /// `out = x ∗ weight`: the tensors 1, 2 and 3, of so many dimensions, are input, weight and output.
    fn convolution<const RANK: usize>(&mut self, shape: &ConvolutionShape) -> Result<(), Fault> {
        let given = |dims: [i64; 5]| {
            let dims: [i64; RANK] = std::array::from_fn(|axis| dims[axis]);
            Extent { dtype: element(shape.dtype), ..Extent::inside(dims) }
        };
        let x = self.tensor(1, &given(shape.x), false)?;
        let weight = self.tensor(2, &given(shape.weight), false)?;
        let out = self.tensor(3, &given(shape.out), false)?;
        let moved = shape.moved;
        let mut kind = Descriptor::new(self.raw, code::CONVOLUTION)?;
        kind.set(100, Type::Element, &[code::F32])?;
        kind.set(101, Type::ConvolutionMode, &[code::CROSS_CORRELATION])?;
        kind.set(102, Type::Int64, &shape.dilations[..moved])?;
        kind.set(103, Type::Int64, &shape.strides[..moved])?;
        kind.set(104, Type::Int64, &shape.pads_after[..moved])?;
        kind.set(105, Type::Int64, &shape.pads_before[..moved])?;
        kind.set(106, Type::Int64, &[moved as i64])?;
        let kind = kind.finish()?;
        let mut operation = Descriptor::new(self.raw, code::OPERATION_CONVOLUTION)?;
        operation.set(700, Type::Float, &[1.0f32])?;
        operation.set(701, Type::Float, &[0.0f32])?;
        operation.set_descriptor(702, &kind)?;
        operation.set_descriptor(703, &self.parts[weight])?;
        operation.set_descriptor(704, &self.parts[x])?;
        operation.set_descriptor(705, &self.parts[out])?;
        self.add(operation, kind)
    }

    /// The operations of an attention, in the order in which cuDNN knows them.
    fn attention(&mut self, shape: &AttentionShape) -> Result<(), Fault> {
        let dtype = element(shape.dtype);
        let given = |heads: i64, tokens: i64, strides: [i64; 3]| Extent {
            dims: [shape.batch, heads, tokens, shape.size],
            strides: [strides[0], strides[2], strides[1], 1],
            dtype,
        };
        let [q, k, v, out] = shape.strides;
        let mut keys = given(shape.groups, shape.keys, k);
        keys.dims.swap(2, 3);
        keys.strides.swap(2, 3);
        let scores = Extent::inside([shape.batch, shape.heads, shape.queries, shape.keys]);
        let rows = Extent::inside([shape.batch, shape.heads, shape.queries, 1]);
        let one = Extent::inside([1, 1, 1, 1]);

        let queries = self.tensor(QUERIES, &given(shape.heads, shape.queries, q), false)?;
        let keys = self.tensor(KEYS, &keys, false)?;
        let values = self.tensor(VALUES, &given(shape.groups, shape.keys, v), false)?;
        let result = self.tensor(RESULT, &given(shape.heads, shape.queries, out), false)?;
        let scale = self.tensor(SCALE, &one, false)?;

        let raw_scores = self.inner(&scores)?;
        self.product(queries, keys, raw_scores)?;
        let scaled = self.inner(&scores)?;
        self.pointwise(code::MULTIPLY, raw_scores, Some(scale), scaled)?;
        let scaled = match shape.mask {
            None => scaled,
            Some(MaskShape { dims, strides }) => {
                let mask = self.tensor(MASK, &Extent { dims, strides, dtype }, false)?;
                let masked = self.inner(&scores)?;
                self.pointwise(code::ADD, scaled, Some(mask), masked)?;
                masked
            }
        };
        let largest = self.inner(&rows)?;
        self.reduce(code::REDUCE_MAX, scaled, largest)?;
        let below = self.inner(&scores)?;
        self.pointwise(code::SUBTRACT, scaled, Some(largest), below)?;
        let powers = self.inner(&scores)?;
        self.pointwise(code::EXP, below, None, powers)?;
        let sums = self.inner(&rows)?;
        self.reduce(code::REDUCE_ADD, powers, sums)?;
        // The statistics that training would keep: cuDNN knows the pattern with them.
        let logarithms = self.inner(&rows)?;
        self.pointwise(code::LOG, sums, None, logarithms)?;
        let statistics = self.inner(&rows)?;
        self.pointwise(code::ADD, largest, Some(logarithms), statistics)?;
        let weights = self.inner(&Extent { dtype, ..scores })?;
        self.pointwise(code::DIVIDE, powers, Some(sums), weights)?;
        self.product(weights, values, result)
    }
}

/// The number of a 16-bit type.
fn element(dtype: DType) -> c_int {
    if dtype == DType::BF16 { code::BF16 } else { code::F16 }
}

/// A kernel for one shape.
pub(super) struct Plan {
    plan: Descriptor,
    workspace_bytes: usize,
}

impl Plan {
    /// Asks cuDNN for its best kernel that takes no more memory than this for itself.
    pub(super) fn find(handle: &Handle, shape: &Shape, most_bytes: usize) -> Result<Plan, Fault> {
        let raw = handle.raw;
        let mut builder = Builder { raw, next: 100, operations: Vec::new(), parts: Vec::new() };
        builder.build(shape)?;
        let operations: Vec<*mut c_void> =
            builder.operations.iter().map(|operation| operation.descriptor).collect();
        let mut graph = Descriptor::new(raw, code::OPERATION_GRAPH)?;
        graph.set(801, Type::Descriptor, &operations)?;
        graph.set(800, Type::Handle, &[handle.handle])?;
        let graph = graph.finish()?;
        let mut fault = Fault { call: "choosing a kernel", code: 0 };
        for choice in code::CHOICES {
            for config in configurations(raw, &graph, choice)? {
                match Plan::from_configuration(handle, &config) {
                    Ok(plan) if plan.workspace_bytes <= most_bytes => return Ok(plan),
                    Ok(_) => {}
                    Err(other) => fault = other,
                }
            }
        }
        Err(fault)
    }

    fn from_configuration(handle: &Handle, config: &Descriptor) -> Result<Plan, Fault> {
        let mut plan = Descriptor::new(handle.raw, code::PLAN)?;
        plan.set(400, Type::Handle, &[handle.handle])?;
        plan.set_descriptor(401, config)?;
        let plan = plan.finish()?;
        let (mut bytes, mut count) = (0i64, 0i64);
        // SAFETY: one number is asked for, and there is room for one.
        let code = unsafe {
            (handle.raw.cudnnBackendGetAttribute)(
                plan.descriptor,
                402,
                Type::Int64 as c_int,
                1,
                &mut count,
                (&raw mut bytes).cast(),
            )
        };
        check("cudnnBackendGetAttribute", code)?;
        Ok(Plan { plan, workspace_bytes: usize::try_from(bytes).unwrap_or(0) })
    }

    pub(super) fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// Queues the kernel on a stream of the current context.
    ///
    /// # Safety
    /// The pointers must be those of the plan's tensors in order: device memory that the stream may use, and values
    /// on the host that live until this returns. The workspace must have the plan's size.
    pub(super) unsafe fn run(
        &self,
        handle: &Handle,
        stream: CUstream,
        pointers: &[*mut c_void],
        workspace: u64,
    ) -> Result<(), Fault> {
        // SAFETY: the stream is one of the context that is current.
        check("cudnnSetStream", unsafe { (handle.raw.cudnnSetStream)(handle.handle, stream) })?;
        let names: Vec<i64> = (1..=pointers.len() as i64).collect();
        let mut pack = Descriptor::new(handle.raw, code::VARIANT_PACK)?;
        pack.set(1001, Type::Pointer, pointers)?;
        pack.set(1000, Type::Int64, &names)?;
        pack.set(1003, Type::Pointer, &[workspace as *mut c_void])?;
        let pack = pack.finish()?;
        // SAFETY: what the caller vouches for; values on the host are read before the call returns.
        let code =
            unsafe { (handle.raw.cudnnBackendExecute)(handle.handle, self.plan.descriptor, pack.descriptor) };
        check("cudnnBackendExecute", code)
    }
}

/// The kernels that cuDNN proposes for a graph, best first.
fn configurations(raw: DnnFunctions, graph: &Descriptor, choice: c_int) -> Result<Vec<Descriptor>, Fault> {
    let mut heuristics = Descriptor::new(raw, code::HEURISTICS)?;
    heuristics.set_descriptor(201, graph)?;
    heuristics.set(200, Type::Heuristic, &[choice])?;
    // A graph that this way of choosing does not know is an answer, too.
    let Ok(heuristics) = heuristics.finish() else { return Ok(Vec::new()) };
    let mut configs = Vec::new();
    for _ in 0..CANDIDATES {
        configs.push(Descriptor::new(raw, code::ENGINE_CONFIG)?);
    }
    let mut raw_configs: Vec<*mut c_void> = configs.iter().map(|config| config.descriptor).collect();
    let mut count = 0i64;
    // SAFETY: there is room for as many descriptors as are asked for, all of the right kind.
    let code = unsafe {
        (raw.cudnnBackendGetAttribute)(
            heuristics.descriptor,
            202,
            Type::Descriptor as c_int,
            CANDIDATES as i64,
            &mut count,
            raw_configs.as_mut_ptr().cast(),
        )
    };
    check("cudnnBackendGetAttribute", code)?;
    configs.truncate(usize::try_from(count).unwrap_or(0));
    Ok(configs)
}
