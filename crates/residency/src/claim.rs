//! Who still refers to a model: sessions that use it, and claims of handles that will. A model that another took the
//! place of leaves with the last of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::ModelId;
use crate::model::LoadedModel;

/// Loaded models, by id.
pub(crate) type Models = Mutex<BTreeMap<ModelId, Arc<LoadedModel>>>;

pub(crate) fn lock(models: &Models) -> MutexGuard<'_, BTreeMap<ModelId, Arc<LoadedModel>>> {
    models.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says that a handle, such as a cached node output, still means a model. It keeps neither the model nor its copies in
/// memory: retention and free requests decide that. But a model that was superseded leaves when the last claim on it has
/// gone. Clones are one claim.
#[derive(Clone)]
pub struct ModelClaim(Arc<Reference>);

impl ModelClaim {
    pub(crate) fn new(reference: Reference) -> ModelClaim {
        ModelClaim(Arc::new(reference))
    }

    /// The model that is meant.
    pub fn id(&self) -> ModelId {
        self.0.id
    }
}

impl fmt::Debug for ModelClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ModelClaim({})", self.0.id)
    }
}

/// How a model is referred to.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    /// Claims and sessions.
    references: AtomicUsize,
    superseded: AtomicBool,
}

impl Usage {
    /// Whether another model took its place.
    pub(crate) fn is_superseded(&self) -> bool {
        self.superseded.load(Ordering::SeqCst)
    }

    pub(crate) fn set_superseded(&self, superseded: bool) {
        self.superseded.store(superseded, Ordering::SeqCst);
    }
}

/// One reference to a model.
pub(crate) struct Reference {
    id: ModelId,
    usage: Arc<Usage>,
    models: Weak<Models>,
}

impl Reference {
    /// Counts one more. The registry must be locked meanwhile, so that the model cannot leave at the same moment.
    pub(crate) fn new(model: &LoadedModel, models: &Arc<Models>) -> Reference {
        let usage = Arc::clone(model.usage());
        usage.references.fetch_add(1, Ordering::SeqCst);
        Reference { id: model.id(), usage, models: Arc::downgrade(models) }
    }
}

impl Drop for Reference {
    fn drop(&mut self) {
        if self.usage.references.fetch_sub(1, Ordering::SeqCst) == 1
            && let Some(models) = self.models.upgrade()
        {
            leave_if_superseded(&models, self.id);
        }
    }
}

/// Lets a model go if another took its place and nothing refers to it any more.
pub(crate) fn leave_if_superseded(models: &Models, id: ModelId) {
    let gone = {
        let mut models = lock(models);
        let leaves = models.get(&id).is_some_and(|model| {
            let usage = model.usage();
            usage.is_superseded() && usage.references.load(Ordering::SeqCst) == 0
        });
        if leaves { models.remove(&id) } else { None }
    };
    // Freeing takes its time: nobody who asks for models waits for it.
    if let Some(model) = gone {
        model.forget_copies();
    }
}
