//! Attention through cuDNN, where it is installed: its fused kernels reach twice the speed of ours on the
//! newest cards. The library is looked for when a first large attention runs, because loading it takes time
//! and memory that a program without one should not spend.
//!
//! cuDNN is told what to compute as a graph of small operations (a product, a softmax in its parts, a product),
//! finds the fused kernel for it, and is then run with addresses. Whatever it cannot do is left to our own kernel.

mod graph;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, OnceLock};

use device::{Error, Result, op};
use meta::DType;

use crate::context::{Context, lock};
use crate::kernel::Launch;
use crate::library::{self, SearchPath};
use crate::raw::DnnFunctions;
use graph::{AttentionPlan, Handle};

/// Queries and keys from which on it pays: below, a launch of our own kernel is as quick.
const LEAST_TOKENS: usize = 512;

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
    plans: HashMap<AttentionShape, Option<AttentionPlan>>,
}

/// An attention as far as a kernel is chosen by it: `[batch, tokens, heads, size]`, and where the next item of each
/// axis is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct AttentionShape {
    pub(crate) dtype: DType,
    pub(crate) batch: i64,
    pub(crate) heads: i64,
    pub(crate) queries: i64,
    pub(crate) keys: i64,
    pub(crate) size: i64,
    /// Strides of batch, token and head: of the queries, the keys, the values and the result.
    pub(crate) strides: [[i64; 3]; 4],
}

impl AttentionShape {
    /// The shape of a call that cuDNN may be asked for: 16-bit values, no mask, whole heads of up to 128.
    pub(crate) fn of(call: &op::Attention, dtype: DType) -> Option<AttentionShape> {
        let (q, k) = (&call.q, &call.k);
        let size = q.dim(3);
        let fits = dtype != DType::F32
            && matches!(call.mask, op::AttentionMask::None)
            && size.is_multiple_of(8)
            && (16..=128).contains(&size)
            && q.dim(2) == k.dim(2)
            && q.dim(1) >= LEAST_TOKENS
            && k.dim(1) >= LEAST_TOKENS;
        if !fits {
            return None;
        }
        let operands = [&call.q, &call.k, &call.v, &call.out];
        let aligned = |stride: usize| stride.is_multiple_of(8);
        let dense =
            operands.iter().all(|x| x.strides()[3] == 1 && x.strides()[..3].iter().all(|s| aligned(*s)));
        let stride = |axis: usize| operands.map(|x| x.strides()[axis] as i64);
        let [batch, token, head] = [stride(0), stride(1), stride(2)];
        dense.then(|| AttentionShape {
            dtype,
            batch: q.dim(0) as i64,
            heads: q.dim(2) as i64,
            queries: q.dim(1) as i64,
            keys: k.dim(1) as i64,
            size: size as i64,
            strides: [0, 1, 2, 3].map(|i| [batch[i], token[i], head[i]]),
        })
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
    /// queries, keys, values and result.
    pub(crate) fn attention(
        &self,
        launch: &Launch<'_>,
        shape: &AttentionShape,
        addresses: [u64; 4],
        scale: f32,
    ) -> Result<bool> {
        if addresses.iter().any(|address| !address.is_multiple_of(16)) {
            return Ok(false);
        }
        let Some(raw) = self.library.functions() else { return Ok(false) };
        self.context.enter()?;
        let mut state = lock(&self.state);
        let State { handle, unusable, plans } = &mut *state;
        if *unusable {
            return Ok(false);
        }
        if handle.is_none() {
            *handle = Handle::new(raw);
            *unusable = handle.is_none();
        }
        let Some(handle) = handle else { return Ok(false) };
        let plan = plans.entry(*shape).or_insert_with(|| AttentionPlan::find(handle, shape).ok());
        let Some(plan) = plan else { return Ok(false) };
        let workspace = launch.scratch(plan.workspace_bytes())?;
        let queued = plan.run(handle, launch.queue.raw(), addresses, scale, workspace.pointer());
        queued.map_err(|fault| Error::Device {
            device: self.context.id(),
            action: "attention through cuDNN".into(),
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
