//! Routes that read and write files: the web front end, pictures, uploads, the user's settings and workflows,
//! model lists, and the log.
//!
//! ```text
//! request name ── names (text, then links) ── storing (hidden file, then its name)     for writing
//!                                          └─ serving (dates, tags, ranges)            for reading
//! ```
//!
//! Nothing is written outside the input, output, temp and user folders, and no request can name a file outside
//! the folder that its route is for.

pub(crate) mod assets;
pub(crate) mod content_type;
mod front_end;
mod internal;
mod logs;
mod models;
pub(crate) mod names;
mod pace;
mod packages;
mod pictures;
pub(crate) mod reply;
pub(crate) mod serving;
mod settings;
pub(crate) mod storing;
mod templates;
pub(crate) mod upload;
mod userdata;
pub(crate) mod view;
mod walk;

use std::path::PathBuf;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{Method, StatusCode};
use axum::middleware::from_fn;
use axum::routing::get;
use runtime::folders::Place;
use runtime::{FileExchange, Folders};
use tokio::sync::{Mutex, Semaphore};

use crate::app::with_api_alias;
pub use logs::{LogEntry, LogRing};
pub use packages::WebPackages;
pub use templates::Template;

/// The folder of the only user. Nobody over HTTP reaches the others, whose names begin with `__`.
const USER: &str = "default";

/// Pictures that are unpacked at the same time; a large one takes a gigabyte.
const PICTURES_AT_ONCE: usize = 2;

/// What the file routes are started with.
#[derive(Clone, Debug)]
pub struct FilesConfig {
    /// Where files are.
    pub folders: Folders,
    /// The folder with the front end's `index.html`. Without one, `/` says how to get it.
    pub front_end: Option<PathBuf>,
    /// Workflows that come with the program, shown before others.
    pub own_templates: &'static [Template],
    /// Folders with workflow templates, searched in order.
    pub templates: Vec<PathBuf>,
    /// The folder with the front end's documentation of nodes.
    pub docs: Option<PathBuf>,
    /// The largest body of a request.
    pub max_upload_bytes: u64,
    /// The log that the front end shows.
    pub logs: LogRing,
    /// Where files of other machines come from.
    pub exchange: Option<Arc<dyn FileExchange>>,
}

impl Default for FilesConfig {
    fn default() -> FilesConfig {
        FilesConfig {
            folders: Folders::default(),
            front_end: None,
            own_templates: &[],
            templates: Vec::new(),
            docs: None,
            max_upload_bytes: 100 << 20,
            logs: LogRing::default(),
            exchange: None,
        }
    }
}

/// The file routes: bare and under `/api`, with the web front end as the fallback.
pub fn routes(config: &Arc<FilesConfig>) -> Router {
    let files = Arc::new(Files {
        config: Arc::clone(config),
        user_writes: Arc::default(),
        picture_turns: Semaphore::new(PICTURES_AT_ONCE),
    });
    let api = Router::new()
        .merge(view::routes())
        .merge(upload::routes())
        .merge(userdata::routes())
        .merge(settings::routes())
        .merge(models::routes())
        .merge(front_end::api_routes())
        .method_not_allowed_fallback(wrong_method)
        .with_state(Arc::clone(&files));
    let internal =
        internal::routes().method_not_allowed_fallback(wrong_method).with_state(Arc::clone(&files));
    let limit = usize::try_from(config.max_upload_bytes).unwrap_or(usize::MAX);
    with_api_alias(api)
        .merge(internal)
        .fallback_service(get(front_end::page).fallback(front_end::no_page).with_state(files))
        .layer(from_fn(front_end::cache_headers))
        .layer(DefaultBodyLimit::max(limit))
}

/// What the handlers share.
struct Files {
    config: Arc<FilesConfig>,
    /// Held while the user's files change, so that changes come one after the other.
    user_writes: Arc<Mutex<()>>,
    /// Held while a picture is unpacked.
    picture_turns: Semaphore,
}

type Shared = Arc<Files>;

impl Files {
    /// Brings a file that another machine has into the folder here. What cannot be had now is as if it were not there.
    async fn bring(&self, place: Place, path: &std::path::Path) {
        let Some(exchange) = self.config.exchange.clone() else { return };
        let Ok(name) = path.strip_prefix(self.config.folders.directory(place)).map(names::wire_path) else {
            return;
        };
        let brought = tokio::task::spawn_blocking(move || exchange.bring(place, &name)).await;
        if let Ok(Err(error)) = brought {
            tracing::warn!("{} cannot be fetched: {error}", path.display());
        }
    }

    /// Lets other machines have a file.
    fn share(&self, place: Place, name: &str) -> Result<(), reply::Refusal> {
        let Some(exchange) = &self.config.exchange else { return Ok(()) };
        exchange.share(place, name).map_err(|error| std::io::Error::other(error.to_string()).into())
    }

    fn user_folder(&self) -> PathBuf {
        self.config.folders.user.join(USER)
    }
}

/// To ask for a path that is only written to is to ask for a file of the front end that is not there.
async fn wrong_method(method: Method) -> StatusCode {
    if method == Method::GET || method == Method::HEAD {
        StatusCode::NOT_FOUND
    } else {
        StatusCode::METHOD_NOT_ALLOWED
    }
}
