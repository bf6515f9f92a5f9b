//! What the streams of one device share: context, memory pool, compiled kernels, matrix products.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use device::Result;

use crate::blas::Blas;
use crate::context::{Context, lock};
use crate::cudnn::Dnn;
use crate::kernel::Kernels;
use crate::pool::Pool;
use crate::upload::Uploader;

/// One device at work.
pub(crate) struct Runtime {
    pub(crate) context: Arc<Context>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) kernels: Kernels,
    pub(crate) blas: Blas,
    pub(crate) dnn: Dnn,
    pub(crate) uploader: Uploader,
    /// Contexts of other cards, by address, that have been asked for peer access.
    peers: Mutex<HashSet<usize>>,
}

impl Runtime {
    pub(crate) fn new(
        context: Arc<Context>,
        pool: Arc<Pool>,
        kernels: Kernels,
        blas: Blas,
        dnn: Dnn,
    ) -> Runtime {
        Runtime { context, pool, kernels, blas, dnn, uploader: Uploader::default(), peers: Mutex::default() }
    }

    /// Switches on direct copies with another card, once, where the cards can do it. Where they cannot,
    /// copies still work: the driver takes the way through the host.
    pub(crate) fn enable_peer(&self, other: &Arc<Context>) -> Result<()> {
        let context = &self.context;
        if other.card() == context.card() || !lock(&self.peers).insert(other.raw() as usize) {
            return Ok(());
        }
        let action = format!("asking for peer access to {}", other.id());
        let driver = context.driver();
        if context.check(&action, driver.can_access_peer(context.card(), other.card()))? {
            context.enter()?;
            context.check(&action, driver.enable_peer(other.raw()))?;
        }
        Ok(())
    }
}
