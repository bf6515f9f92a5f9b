//! Matrix products through cuBLASLt: descriptors that free themselves, and a plan for each kind of product, made once.

use std::collections::HashSet;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtEpilogue_t, cublasLtHandle_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as DescAttribute, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t as PreferenceAttribute, cublasLtMatrixLayout_t,
    cublasLtMatrixLayoutAttribute_t as LayoutAttribute, cudaDataType_t,
};
use device::{Error, Result};
use meta::DType;

use crate::context::{Context, lock};
use crate::fast_hash::FastMap;
use crate::kernel::Launch;
use crate::raw::{Algorithm, BlasFunctions, HeuristicResult};

/// Temporary memory that an algorithm may use; Hopper's best ones want this much.
pub(crate) const WORKSPACE_BYTES: usize = 32 << 20;
/// Parts of a product that is split along `k` are added in f32, never in the output's type.
const REDUCE_IN_COMPUTE_TYPE: u32 = 2;
/// How many algorithms the library proposes.
const PROPOSALS: usize = 8;

/// One matrix of a product as the library sees it: columns one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    /// Whether the product uses the transpose of what is stored. Never so for the result.
    pub(crate) transposed: bool,
    /// Elements from one stored column to the next.
    pub(crate) leading: i64,
    /// Elements from one matrix of the batch to the next.
    pub(crate) batch_stride: i64,
}

/// What is done to each value of the product before it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Epilogue {
    None,
    Bias,
    GeluTanh,
    GeluTanhBias,
    Relu,
    ReluBias,
}

impl Epilogue {
    pub(crate) fn has_bias(self) -> bool {
        matches!(self, Epilogue::Bias | Epilogue::GeluTanhBias | Epilogue::ReluBias)
    }

    /// Whether it is more than a bias.
    pub(crate) fn activates(self) -> bool {
        !matches!(self, Epilogue::None | Epilogue::Bias)
    }

    fn code(self) -> u32 {
        match self {
            Epilogue::None => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_DEFAULT as u32,
            Epilogue::Bias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_BIAS as u32,
            Epilogue::GeluTanh => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU as u32,
            Epilogue::GeluTanhBias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_GELU_BIAS as u32,
            Epilogue::Relu => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU as u32,
            Epilogue::ReluBias => cublasLtEpilogue_t::CUBLASLT_EPILOGUE_RELU_BIAS as u32,
        }
    }
}

/// What multiplies the factors of a product of e4m3 codes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CodeScales {
    /// One f32 for all of `a`; nothing multiplies `b`.
    One,
    /// An f32 for each row of `a`, and one for each column of `b`.
    Vectors,
}

/// `d = epilogue(alpha · a · b + beta · d + bias)` with `d` of `rows` and `columns`, all in columns. The bias has one
/// value for each row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Product {
    /// The type of all matrices, or only of the result if the others are codes.
    pub(crate) dtype: DType,
    /// Whether `a` and `b` are e4m3 codes, and what multiplies them.
    pub(crate) codes: Option<CodeScales>,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    pub(crate) inner: u64,
    pub(crate) a: Matrix,
    pub(crate) b: Matrix,
    pub(crate) d: Matrix,
    pub(crate) batch: i32,
    pub(crate) epilogue: Epilogue,
}

/// Where the matrices of a product are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    pub(crate) a: u64,
    pub(crate) b: u64,
    pub(crate) d: u64,
    /// Read only if the epilogue has a bias.
    pub(crate) bias: u64,
    /// What multiplies `a` and `b`, if they are codes; 0 for nothing.
    pub(crate) scales: [u64; 2],
    pub(crate) alpha: f32,
    /// Factor of what stands at `d` before, to which the product is added; 0 if that is not read.
    pub(crate) beta: f32,
}

/// The kind of a product, for which one algorithm is chosen: the product and how its matrices are
/// aligned, in powers of two up to 256 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Kind {
    product: Product,
    alignments: [u32; 3],
}

impl Kind {
    fn of(product: &Product, places: &Places) -> Kind {
        let alignment = |address: u64| 1 << address.trailing_zeros().min(8);
        Kind { product: *product, alignments: [places.a, places.b, places.d].map(alignment) }
    }
}

/// cuBLASLt in one context.
pub(crate) struct Blas {
    context: Arc<Context>,
    raw: BlasFunctions,
    handle: cublasLtHandle_t,
    /// The plan of each kind of product that was asked for; none where the library has no algorithm.
    plans: RwLock<FastMap<Kind, Option<Arc<Plan>>>>,
    /// Lines that were logged already.
    said: Mutex<HashSet<String>>,
}

/// How products of one kind are done: made at the first one, used by all.
pub(crate) struct Plan {
    algorithm: Algorithm,
    prepared: Prepared,
}

// SAFETY: the library allows one handle to be used from several threads.
unsafe impl Send for Blas {}
// SAFETY: as above.
unsafe impl Sync for Blas {}

impl Blas {
    /// A handle in the context.
    pub(crate) fn new(context: Arc<Context>, raw: BlasFunctions) -> Result<Blas> {
        context.enter()?;
        let mut blas =
            Blas { context, raw, handle: null_mut(), plans: RwLock::default(), said: Mutex::default() };
        // SAFETY: the context is current and the handle is a field of the right type.
        let code = unsafe { (blas.raw.cublasLtCreate)(&mut blas.handle) };
        if code != 0 {
            let reason = format!("cublasLtCreate said: {}", blas.status(code));
            return Err(Error::Device {
                device: blas.context.id(),
                action: "starting cuBLASLt".into(),
                reason,
            });
        }
        Ok(blas)
    }

    /// The library's version: major, minor, patch.
    pub(crate) fn version(&self) -> [usize; 3] {
        // SAFETY: the function takes nothing.
        let number = unsafe { (self.raw.cublasLtGetVersion)() };
        [number / 10_000, number / 100 % 100, number % 100]
    }

    /// The plan of a product; none if the library has no algorithm for it.
    pub(crate) fn plan(&self, product: &Product, places: &Places) -> Result<Option<Arc<Plan>>> {
        let kind = Kind::of(product, places);
        if let Some(known) = self.plans.read().unwrap_or_else(PoisonError::into_inner).get(&kind) {
            return Ok(known.clone());
        }
        self.context.enter()?;
        // A bias pointer must be set for the question, but is not read: any aligned address will do.
        let prepared = Prepared::new(self, product, 256)?;
        let algorithm = prepared.propose(self, &Preference::new(self, &kind)?)?;
        let plan = algorithm.map(|algorithm| Arc::new(Plan { algorithm, prepared }));
        let mut plans = self.plans.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have been first; all use one plan.
        Ok(plans.entry(kind).or_insert(plan).clone())
    }

    /// The plan of a product of codes; none if the library has no algorithm for it, or does not know what it is asked.
    pub(crate) fn plan_of_codes(&self, product: &Product, places: &Places) -> Option<Arc<Plan>> {
        match self.plan(product, places) {
            Ok(plan) => plan,
            Err(error) => {
                self.say_once(&format!("8-bit products with scales as {:?}: {error}", product.codes));
                let kind = Kind::of(product, places);
                self.plans.write().unwrap_or_else(PoisonError::into_inner).insert(kind, None);
                None
            }
        }
    }

    /// Logs a line, but only the first of its kind.
    pub(crate) fn say_once(&self, line: &str) {
        if lock(&self.said).insert(line.to_owned()) {
            tracing::info!("{}: {line}", self.context.id());
        }
    }

    /// Queues a product.
    pub(crate) fn run(&self, launch: &Launch<'_>, product: &Product, places: &Places) -> Result<()> {
        let plan = self.plan(product, places)?.ok_or_else(|| self.no_algorithm(product))?;
        self.run_plan(launch, &plan, places)
    }

    /// Queues a product of a plan's kind.
    pub(crate) fn run_plan(&self, launch: &Launch<'_>, plan: &Plan, places: &Places) -> Result<()> {
        let scratch = launch.scratch(WORKSPACE_BYTES)?;
        let workspace = (scratch.pointer(), WORKSPACE_BYTES);
        plan.prepared.queue(self, places, &plan.algorithm, workspace, launch.queue.raw())
    }

    fn no_algorithm(&self, product: &Product) -> Error {
        Error::Device {
            device: self.context.id(),
            action: "choosing a matrix product".into(),
            reason: format!("cuBLASLt has no algorithm for {product:?}"),
        }
    }

    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(Error::Device {
            device: self.context.id(),
            action: "a matrix product".into(),
            reason: format!("{call} said {}", self.status(code)),
        })
    }

    fn status(&self, code: u32) -> String {
        // SAFETY: the library returns a static string, or null for unknown codes.
        unsafe {
            let text = (self.raw.cublasLtGetStatusString)(code);
            if text.is_null() {
                format!("status {code}")
            } else {
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            self.plans.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
            self.context.leave("closing cuBLASLt", |_| {
                // SAFETY: the handle is this library's and is used no more.
                unsafe { (self.raw.cublasLtDestroy)(self.handle) };
                Ok(())
            });
        }
    }
}

/// The descriptors of one product.
pub(crate) struct Prepared {
    /// Where the bias is, is part of what is computed: whoever queues a product has it alone meanwhile.
    computed: Mutex<Computed>,
    a: Layout,
    b: Layout,
    d: Layout,
}

/// What is computed, and where the bias and the scales were said to be last; none if there are none.
struct Computed {
    desc: Descriptor,
    bias: Option<u64>,
    scales: Option<[u64; 2]>,
}

// SAFETY: descriptors are plain memory of the library, which any thread may use; the one that changes is behind a lock.
unsafe impl Send for Prepared {}
// SAFETY: as above.
unsafe impl Sync for Prepared {}

impl Prepared {
    pub(crate) fn new(blas: &Blas, product: &Product, anywhere: u64) -> Result<Prepared> {
        let (rows, columns, inner) = (product.rows, product.columns, product.inner);
        let stored = |matrix: &Matrix, rows, columns| {
            if matrix.transposed { (columns, rows) } else { (rows, columns) }
        };
        let factor = product.codes.map_or(product.dtype, |_| DType::F8E4M3);
        let layout = |matrix: &Matrix, dtype: DType, size: (u64, u64)| {
            Layout::new(blas, (product, dtype), matrix, size)
        };
        let desc = Descriptor::new(blas, product, anywhere)?;
        let scales =
            product.codes.map(|codes| if codes == CodeScales::Vectors { [anywhere; 2] } else { [0; 2] });
        let bias = product.epilogue.has_bias().then_some(anywhere);
        Ok(Prepared {
            computed: Mutex::new(Computed { desc, bias, scales }),
            a: layout(&product.a, factor, stored(&product.a, rows, inner))?,
            b: layout(&product.b, factor, stored(&product.b, inner, columns))?,
            d: layout(&product.d, product.dtype, (rows, columns))?,
        })
    }

    fn propose(&self, blas: &Blas, preference: &Preference<'_>) -> Result<Option<Algorithm>> {
        let mut proposals = [HeuristicResult::default(); PROPOSALS];
        let mut count: c_int = 0;
        let computed = lock(&self.computed);
        // SAFETY: all descriptors are alive; the array has room for the number of proposals asked for.
        let code = unsafe {
            (blas.raw.cublasLtMatmulAlgoGetHeuristic)(
                blas.handle,
                computed.desc.raw,
                self.a.raw,
                self.b.raw,
                self.d.raw,
                self.d.raw,
                preference.raw,
                PROPOSALS as c_int,
                proposals.as_mut_ptr(),
                &mut count,
            )
        };
        if code == NOT_SUPPORTED {
            return Ok(None);
        }
        blas.check("cublasLtMatmulAlgoGetHeuristic", code)?;
        let usable = |p: &&HeuristicResult| p.state == 0 && p.workspace_bytes <= WORKSPACE_BYTES;
        let count = (count.max(0) as usize).min(PROPOSALS);
        Ok(proposals[..count].iter().find(usable).map(|proposal| proposal.algorithm))
    }

    /// Queues the product on a stream of the context.
    pub(crate) fn queue(
        &self,
        blas: &Blas,
        places: &Places,
        algorithm: &Algorithm,
        workspace: (u64, usize),
        stream: cudarc::driver::sys::CUstream,
    ) -> Result<()> {
        blas.context.enter()?;
        let (alpha, beta) = (places.alpha, places.beta);
        let mut computed = lock(&self.computed);
        computed.set_bias(blas, places.bias)?;
        computed.set_scales(blas, places.scales)?;
        // SAFETY: alpha and beta are f32, the scale type, read before the call returns; the matrices are
        // device memory of the sizes that the layouts describe, which the caller vouches for.
        let code = unsafe {
            (blas.raw.cublasLtMatmul)(
                blas.handle,
                computed.desc.raw,
                (&raw const alpha).cast(),
                places.a as *const c_void,
                self.a.raw,
                places.b as *const c_void,
                self.b.raw,
                (&raw const beta).cast(),
                places.d as *const c_void,
                self.d.raw,
                places.d as *mut c_void,
                self.d.raw,
                algorithm,
                workspace.0 as *mut c_void,
                workspace.1,
                stream,
            )
        };
        blas.check("cublasLtMatmul", code)
    }

    /// The library's first proposal for matrices that are aligned to 256 bytes.
    pub(crate) fn best(&self, blas: &Blas, product: &Product) -> Result<Algorithm> {
        let preference = Preference::new(blas, &Kind { product: *product, alignments: [256; 3] })?;
        self.propose(blas, &preference)?.ok_or_else(|| blas.no_algorithm(product))
    }
}

impl Computed {
    /// Says where the bias of the next product is, if it is another than the last one's.
    fn set_bias(&mut self, blas: &Blas, bias: u64) -> Result<()> {
        if self.bias.is_none_or(|known| known == bias) {
            return Ok(());
        }
        self.desc.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)?;
        self.bias = Some(bias);
        Ok(())
    }

    /// Says where the scales of the next product of codes are.
    fn set_scales(&mut self, blas: &Blas, scales: [u64; 2]) -> Result<()> {
        let Some(known) = &mut self.scales else { return Ok(()) };
        let attributes = [
            DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
            DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        ];
        for ((known, new), attribute) in known.iter_mut().zip(scales).zip(attributes) {
            if *known != new {
                self.desc.set(blas, attribute, new)?;
                *known = new;
            }
        }
        Ok(())
    }
}

/// `CUBLAS_STATUS_NOT_SUPPORTED`.
const NOT_SUPPORTED: u32 = 15;
/// `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`, which libraries know since 12.9.
const SCALES_ARE_VECTORS: i32 = 3;

/// What is computed.
struct Descriptor {
    destroy: unsafe extern "C" fn(cublasLtMatmulDesc_t) -> u32,
    raw: cublasLtMatmulDesc_t,
}

impl Descriptor {
    /// What is read beside the matrices is said to be `anywhere` until a product is queued.
    fn new(blas: &Blas, product: &Product, anywhere: u64) -> Result<Descriptor> {
        let mut descriptor = Descriptor { destroy: blas.raw.cublasLtMatmulDescDestroy, raw: null_mut() };
        let compute = cublasComputeType_t::CUBLAS_COMPUTE_32F as c_uint;
        let scale = cudaDataType_t::CUDA_R_32F as c_uint;
        // SAFETY: the descriptor is a field of the right type.
        let code = unsafe { (blas.raw.cublasLtMatmulDescCreate)(&mut descriptor.raw, compute, scale) };
        blas.check("cublasLtMatmulDescCreate", code)?;
        // CUBLAS_OP_N is 0, CUBLAS_OP_T is 1.
        descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSA, i32::from(product.a.transposed))?;
        descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_TRANSB, i32::from(product.b.transposed))?;
        descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_EPILOGUE, product.epilogue.code())?;
        if product.epilogue.has_bias() {
            descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_BIAS_POINTER, anywhere)?;
        }
        if let Some(scales) = product.codes {
            descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, 1i8)?;
            if scales == CodeScales::Vectors {
                descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, SCALES_ARE_VECTORS)?;
                descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, SCALES_ARE_VECTORS)?;
                // As with the bias: the question wants addresses, which it does not read.
                descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, anywhere)?;
                descriptor.set(blas, DescAttribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, anywhere)?;
            }
        }
        Ok(descriptor)
    }

    fn set<T: Copy>(&self, blas: &Blas, attribute: DescAttribute, value: T) -> Result<()> {
        // SAFETY: the value is a local whose size is given; the library copies it.
        let code = unsafe {
            let value = (&raw const value).cast();
            (blas.raw.cublasLtMatmulDescSetAttribute)(self.raw, attribute as c_uint, value, size_of::<T>())
        };
        blas.check("cublasLtMatmulDescSetAttribute", code)
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the descriptor was made by this library and is used no more.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// How a matrix is stored.
struct Layout {
    destroy: unsafe extern "C" fn(cublasLtMatrixLayout_t) -> u32,
    raw: cublasLtMatrixLayout_t,
}

impl Layout {
    fn new(
        blas: &Blas,
        (product, dtype): (&Product, DType),
        matrix: &Matrix,
        size: (u64, u64),
    ) -> Result<Layout> {
        let mut layout = Layout { destroy: blas.raw.cublasLtMatrixLayoutDestroy, raw: null_mut() };
        let dtype = match dtype {
            DType::F8E4M3 => cudaDataType_t::CUDA_R_8F_E4M3,
            DType::BF16 => cudaDataType_t::CUDA_R_16BF,
            DType::F16 => cudaDataType_t::CUDA_R_16F,
            _ => cudaDataType_t::CUDA_R_32F,
        };
        // SAFETY: the layout is a field of the right type.
        let code = unsafe {
            (blas.raw.cublasLtMatrixLayoutCreate)(
                &mut layout.raw,
                dtype as c_uint,
                size.0,
                size.1,
                matrix.leading,
            )
        };
        blas.check("cublasLtMatrixLayoutCreate", code)?;
        if product.batch != 1 {
            layout.set(blas, LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, product.batch)?;
            layout.set(
                blas,
                LayoutAttribute::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                matrix.batch_stride,
            )?;
        }
        Ok(layout)
    }

    fn set<T: Copy>(&self, blas: &Blas, attribute: LayoutAttribute, value: T) -> Result<()> {
        // SAFETY: the value is a local whose size is given; the library copies it.
        let code = unsafe {
            let value = (&raw const value).cast();
            (blas.raw.cublasLtMatrixLayoutSetAttribute)(self.raw, attribute as c_uint, value, size_of::<T>())
        };
        blas.check("cublasLtMatrixLayoutSetAttribute", code)
    }
}

impl Drop for Layout {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the layout was made by this library and is used no more.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// What an algorithm may use and rely on.
struct Preference<'a> {
    blas: &'a Blas,
    raw: cublasLtMatmulPreference_t,
}

impl<'a> Preference<'a> {
    fn new(blas: &'a Blas, kind: &Kind) -> Result<Preference<'a>> {
        let mut preference = Preference { blas, raw: null_mut() };
        // SAFETY: the preference is a field of the right type.
        let code = unsafe { (blas.raw.cublasLtMatmulPreferenceCreate)(&mut preference.raw) };
        blas.check("cublasLtMatmulPreferenceCreate", code)?;
        use PreferenceAttribute as P;
        preference.set(P::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, WORKSPACE_BYTES as u64)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, REDUCE_IN_COMPUTE_TYPE)?;
        let [a, b, d] = kind.alignments;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d)?;
        preference.set(P::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d)?;
        Ok(preference)
    }

    fn set<T: Copy>(&self, attribute: PreferenceAttribute, value: T) -> Result<()> {
        // SAFETY: the value is a local whose size is given; the library copies it.
        let code = unsafe {
            let value = (&raw const value).cast();
            (self.blas.raw.cublasLtMatmulPreferenceSetAttribute)(
                self.raw,
                attribute as c_uint,
                value,
                size_of::<T>(),
            )
        };
        self.blas.check("cublasLtMatmulPreferenceSetAttribute", code)
    }
}

impl Drop for Preference<'_> {
    fn drop(&mut self) {
        if !self.raw.is_null() {
            // SAFETY: the preference was made by this library and is used no more.
            unsafe { (self.blas.raw.cublasLtMatmulPreferenceDestroy)(self.raw) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn product() -> Product {
        let matrix = Matrix { transposed: false, leading: 64, batch_stride: 0 };
        Product {
            dtype: DType::BF16,
            codes: None,
            rows: 64,
            columns: 8,
            inner: 64,
            a: Matrix { transposed: true, ..matrix },
            b: matrix,
            d: matrix,
            batch: 1,
            epilogue: Epilogue::Bias,
        }
    }

    #[test]
    fn the_kind_of_a_product_is_its_shape_and_alignment() {
        let places =
            Places { a: 0x1000, b: 0x1010, d: 0x1002, bias: 1, scales: [0; 2], alpha: 1.0, beta: 0.0 };
        let kind = Kind::of(&product(), &places);
        assert_eq!(kind.alignments, [256, 16, 2]);
        let moved = Places { a: 0x9100, b: 0x30, bias: 77, alpha: 2.0, ..places };
        assert_eq!(kind, Kind::of(&product(), &moved), "places and factors are no part of it");
        assert_ne!(kind, Kind::of(&product(), &Places { b: 0x1008, ..places }));
        assert_ne!(kind, Kind::of(&Product { columns: 9, ..product() }, &places));
        assert_ne!(kind, Kind::of(&Product { epilogue: Epilogue::None, ..product() }, &places));
    }
}
