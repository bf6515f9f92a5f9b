//! Lists of model files, and what the files say about themselves.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use axum::Router;
use axum::extract::{Path as Segment, Query, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use checkpoint::{Checkpoint, Value as Metadata};
use nodes::picture::{self, PreviewFormat};
use serde_json::{Map, Value, json as value};

use super::names::{decoded_again, relative, wire_path};
use super::reply::{Answer, Refusal, blocking, json};
use super::walk::{Found, Walk, created_seconds, modified_seconds};
use super::{Files, Shared};
use crate::wire::query::Asked;

/// Keys whose files are no models.
const NO_MODELS: &[&str] = &["configs", "custom_nodes"];

/// Endings of pictures that lie beside a model to show what it does.
const PREVIEW_ENDINGS: &[&str] = &["png", "jpg", "jpeg", "webp", "gif", "bmp"];

/// How good the picture beside a model is shown, from 1 to 100.
const MODEL_PREVIEW_QUALITY: u8 = 90;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/embeddings", get(embeddings))
        .route("/models", get(keys))
        .route("/models/{folder}", get(names))
        .route("/experiment/models", get(folders))
        .route("/experiment/models/{folder}", get(files_of))
        .route("/experiment/models/preview/{folder}/{index}/{*file}", get(preview))
        .route("/view_metadata/{folder}", get(metadata))
}

async fn embeddings(State(files): State<Shared>) -> Answer {
    let names = blocking(move || Ok(files.config.folders.listing("embeddings"))).await?;
    let without_ending = |name: &String| wire_path(&Path::new(name).with_extension(""));
    Ok(json(&names.iter().map(without_ending).collect::<Vec<_>>()))
}

async fn keys(State(files): State<Shared>) -> Response {
    json(&files.config.folders.keys().collect::<Vec<_>>())
}

async fn names(State(files): State<Shared>, Segment(folder): Segment<String>) -> Answer {
    files.known_key(&folder)?;
    let names = blocking(move || Ok(files.config.folders.listing(&folder))).await?;
    Ok(json(&names[..]))
}

async fn folders(State(files): State<Shared>) -> Response {
    let folders = &files.config.folders;
    let keys = folders.keys().filter(|key| !NO_MODELS.contains(key));
    json(&keys.map(|key| value!({ "name": key, "folders": folders.places(key) })).collect::<Vec<_>>())
}

/// Every file of a key, those of the same name in several folders each for itself.
async fn files_of(State(files): State<Shared>, Segment(folder): Segment<String>) -> Answer {
    files.known_key(&folder)?;
    let entries = blocking(move || {
        let listing = files.config.folders.listing(&folder);
        let names: HashSet<&str> = listing.iter().map(String::as_str).collect();
        let mut entries = Vec::new();
        for (index, place) in files.config.folders.places(&folder).iter().enumerate() {
            let found = Walk { recurse: true, hidden: false }.below(place).unwrap_or_default();
            let found = found.iter().filter(|found| found.metadata.is_file());
            let listed = found.filter(|found| names.contains(wire_path(&found.path).as_str()));
            entries.extend(listed.map(|found| model_entry(found, index)));
        }
        // What comes with the program is offered by loaders and lies in no folder.
        let found: HashSet<String> =
            entries.iter().filter_map(|entry| entry["name"].as_str().map(str::to_owned)).collect();
        let embedded = listing.iter().filter(|name| !found.contains(*name));
        entries.extend(embedded.map(
            |name| value!({ "name": name, "pathIndex": 0, "modified": 0.0, "created": 0.0, "size": 0 }),
        ));
        Ok(entries)
    })
    .await?;
    Ok(json(&entries))
}

fn model_entry(found: &Found, index: usize) -> Value {
    value!({
        "name": wire_path(&found.path),
        "pathIndex": index,
        "modified": modified_seconds(&found.metadata),
        "created": created_seconds(&found.metadata),
        "size": found.metadata.len(),
    })
}

/// The picture beside a model file, as WebP.
async fn preview(
    State(files): State<Shared>,
    Segment((folder, index, file)): Segment<(String, String, String)>,
) -> Answer {
    files.known_key(&folder)?;
    let index: usize = index.parse().map_err(|_| Refusal::Missing)?;
    let place = files.config.folders.places(&folder).get(index).ok_or(Refusal::Missing)?;
    let model = place.join(relative(&decoded_again(&file)?)?);
    let picture = blocking(move || picture_beside(&model).ok_or(Refusal::Missing)).await?;
    let webp = files
        .with_picture(picture, |bytes| {
            Ok(picture::preview(bytes, PreviewFormat::Webp(MODEL_PREVIEW_QUALITY), false)?)
        })
        .await
        .map_err(|_| Refusal::Missing)?;
    Ok(([(header::CONTENT_TYPE, "image/webp")], webp).into_response())
}

/// `model.png` or `model.preview.png`.
fn picture_beside(model: &Path) -> Option<PathBuf> {
    let endings = PREVIEW_ENDINGS.iter().map(|ending| (*ending).to_owned());
    let preview_endings = PREVIEW_ENDINGS.iter().map(|ending| format!("preview.{ending}"));
    endings.chain(preview_endings).map(|ending| model.with_extension(ending)).find(|path| path.is_file())
}

/// What a safetensors file says about itself.
async fn metadata(
    State(files): State<Shared>,
    Segment(folder): Segment<String>,
    Query(asked): Query<Asked>,
) -> Answer {
    let name = asked.get("filename").filter(|name| name.ends_with(".safetensors"));
    let name = name.ok_or(Refusal::Missing)?.to_owned();
    let texts = blocking(move || {
        let path = files.config.folders.find(&folder, &name).ok_or(Refusal::Missing)?;
        let checkpoint = Checkpoint::open(&path).map_err(|error| {
            tracing::debug!("{error}");
            Refusal::Missing
        })?;
        let texts: Map<String, Value> = checkpoint
            .metadata()
            .iter()
            .filter_map(|(key, text)| match text {
                Metadata::Str(text) => Some((key.to_owned(), Value::from(text))),
                _ => None,
            })
            .collect();
        if texts.is_empty() { Err(Refusal::Missing) } else { Ok(texts) }
    })
    .await?;
    Ok(json(&texts))
}

impl Files {
    /// Refuses a key that is none; older names of keys are for workflows, not for this.
    fn known_key(&self, key: &str) -> Answer<()> {
        if self.config.folders.keys().any(|known| known == key) { Ok(()) } else { Err(Refusal::Missing) }
    }
}
