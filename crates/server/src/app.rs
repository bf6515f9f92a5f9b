//! The routes as one router.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::DefaultBodyLimit;
use axum::{Extension, Router, middleware};
use engine::Engine;
use tokio::sync::watch;
use tower_http::compression::CompressionLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::RequestBodyTimeoutLayer;

use crate::config::ServerConfig;
use crate::files::assets::Assets;
use crate::guard::{self, Guard};
use crate::hub::Hub;
use crate::live::Live;
use crate::routes::{UsedKeys, Withdrawn};
use crate::{dashboard, files, routes};

/// How long a client may pause within a body.
const BODY_PAUSE: Duration = Duration::from_secs(60);

/// What the routes share.
pub(crate) struct App {
    pub(crate) engine: Arc<Engine>,
    pub(crate) hub: Arc<Hub>,
    /// What the running job has done so far.
    pub(crate) live: Arc<Live>,
    /// The files of the input, output and temp folders.
    pub(crate) assets: Assets,
    pub(crate) used_keys: UsedKeys,
    pub(crate) withdrawn: Withdrawn,
    pub(crate) config: Arc<ServerConfig>,
    /// Becomes true when the server stops.
    pub(crate) stop: watch::Receiver<bool>,
}

/// Every route twice: bare, as scripts ask for it, and under `/api`, as the web front end does.
///
/// The router must have no fallback of its own.
pub fn with_api_alias(router: Router) -> Router {
    Router::new().nest("/api", router.clone()).merge(router)
}

/// All routes, behind the guard.
pub(crate) fn router(app: &Arc<App>, guard: Guard) -> Router {
    let mut router = with_api_alias(routes::aliased(app))
        .merge(routes::only_under_api(app))
        .merge(dashboard::routes())
        .merge(files::routes(&app.config.files))
        .layer(Extension(Arc::clone(&app.hub)))
        .layer(DefaultBodyLimit::disable())
        .layer(RequestBodyLimitLayer::new(app.config.max_upload_bytes))
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE));
    if app.config.compress {
        router = router.layer(CompressionLayer::new());
    }
    router.layer(middleware::from_fn_with_state(Arc::new(guard), guard::watch))
}
