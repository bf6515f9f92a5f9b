//! `/api/assets` and `/api/tags`: ComfyUI's own list of files, which its front end shows where `/features` says so.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Multipart, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, head, post};
use graph::Literal;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::files::assets::{Asset, AssetFault, Wanted, Words, is_hash};
use crate::files::reply::{Refusal, blocking};
use crate::files::storing::Received;
use crate::files::{upload, view};
use crate::wire::query::Asked;
use crate::wire::v2::time;
use crate::wire::{body, reply};

/// All of them.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/api/assets", get(list).post(add))
        .route("/api/assets/from-hash", post(from_hash))
        .route("/api/assets/hash/{hash}", head(by_hash))
        .route("/api/assets/{id}", get(one).put(change).delete(remove))
        .route("/api/assets/{id}/content", get(content))
        .route("/api/assets/{id}/tags", post(tag).delete(untag))
        .route("/api/tags", get(tags))
}

type Answer<T = Response> = Result<T, Fault>;

/// `{"error": {code, message, details}}`, with codes in capitals as ComfyUI writes them here.
struct Fault(StatusCode, &'static str, String);

impl Fault {
    fn body(message: impl Into<String>) -> Fault {
        Fault(StatusCode::BAD_REQUEST, "INVALID_BODY", message.into())
    }

    fn query(message: &str) -> Fault {
        Fault(StatusCode::BAD_REQUEST, "INVALID_QUERY", message.to_owned())
    }
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let Fault(status, code, message) = self;
        let error = json!({ "code": code, "message": message, "details": {} });
        reply::json_with(status, &json!({ "error": error }))
    }
}

impl From<Refusal> for Fault {
    fn from(refusal: Refusal) -> Fault {
        match refusal {
            Refusal::Missing => {
                Fault(StatusCode::NOT_FOUND, "ASSET_NOT_FOUND", "there is no such asset".to_owned())
            }
            other => Fault(other.status(), "INVALID_BODY", other.text()),
        }
    }
}

impl From<AssetFault> for Fault {
    fn from(fault: AssetFault) -> Fault {
        match fault {
            AssetFault::OtherHash { found } => {
                Fault(StatusCode::BAD_REQUEST, "HASH_MISMATCH", format!("the bytes are {found}"))
            }
            AssetFault::UnknownHash => Refusal::Missing.into(),
            AssetFault::File(refusal) => refusal.into(),
        }
    }
}

impl From<body::BadBody> for Fault {
    fn from(bad: body::BadBody) -> Fault {
        Fault(StatusCode::BAD_REQUEST, "INVALID_JSON", bad.to_string())
    }
}

/// The asset with an id.
pub(super) async fn find(app: &Arc<App>, id: &str) -> Result<Asset, Refusal> {
    let (app, id) = (Arc::clone(app), id.to_owned());
    blocking(move || app.assets.find(&id).ok_or(Refusal::Missing)).await
}

/// A form that brings a file; the other parts are short texts.
pub(super) struct Form {
    pub(super) file: Option<(String, Received)>,
    pub(super) tags: Vec<String>,
    pub(super) texts: HashMap<String, String>,
}

impl Form {
    pub(super) async fn read(app: &App, mut parts: Multipart) -> Result<Form, Refusal> {
        let mut form = Form { file: None, tags: Vec::new(), texts: HashMap::new() };
        let files = &app.config.files;
        while let Some(field) = parts.next_field().await? {
            let name = field.name().unwrap_or_default().to_owned();
            match field.file_name().map(str::to_owned) {
                Some(sent_as) if form.file.is_none() => {
                    let temp = files.folders.temp.clone();
                    let received = upload::receive_field(field, temp, files.max_upload_bytes).await?;
                    form.file = Some((sent_as, received));
                }
                Some(_) => {}
                None if name == "tags" => form.tags.extend(tag_list(&upload::text(field).await?)),
                None => {
                    form.texts.insert(name, upload::text(field).await?);
                }
            }
        }
        Ok(form)
    }
}

/// `a, b` or `["a", "b"]`.
fn tag_list(text: &str) -> Vec<String> {
    if let Ok(list) = serde_json::from_str::<Vec<String>>(text) {
        return list;
    }
    text.split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

async fn add(State(app): State<Arc<App>>, parts: Multipart) -> Answer {
    let form = Form::read(&app, parts).await?;
    let text = |key: &str| form.texts.get(key).filter(|text| !text.is_empty()).cloned();
    let user_metadata = match text("user_metadata") {
        None => Map::new(),
        Some(text) => serde_json::from_str(&text)
            .map_err(|error| Fault::body(format!("user_metadata must be a JSON object: {error}")))?,
    };
    let hash = text("hash").map(|hash| hash.to_ascii_lowercase());
    let name = text("name");
    let made = match form.file {
        Some((sent_as, received)) => {
            let wanted = Wanted { name: name.unwrap_or(sent_as), tags: form.tags, user_metadata, hash };
            blocking(move || Ok(app.assets.add(received, &wanted))).await?
        }
        None => {
            let hash = hash.ok_or_else(|| {
                Fault(StatusCode::BAD_REQUEST, "MISSING_INPUT", "send a file or a known hash".to_owned())
            })?;
            let wanted =
                Wanted { name: name.unwrap_or_default(), tags: form.tags, user_metadata, hash: None };
            blocking(move || Ok(app.assets.add_known(&hash, &wanted))).await?
        }
    };
    Ok(created(made?))
}

fn created((asset, is_new): (Asset, bool)) -> Response {
    let mut shown = shown(&asset);
    shown["created_new"] = json!(is_new);
    reply::json_with(if is_new { StatusCode::CREATED } else { StatusCode::OK }, &shown)
}

async fn from_hash(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let text = |key: &str| map.get(key).and_then(Literal::as_text).unwrap_or_default().to_owned();
    let hash = text("hash").to_ascii_lowercase();
    if !is_hash(&hash) {
        return Err(Fault::body("\"hash\" must be blake3:HEX"));
    }
    let tags = body::ids(&map, "tags")?.unwrap_or_default();
    let wanted = Wanted { name: text("name"), tags, ..Wanted::default() };
    let made = blocking(move || Ok(app.assets.add_known(&hash, &wanted))).await??;
    Ok(created(made))
}

async fn by_hash(State(app): State<Arc<App>>, Path(hash): Path<String>) -> Answer<StatusCode> {
    let hash = hash.to_ascii_lowercase();
    if !is_hash(&hash) {
        return Ok(StatusCode::BAD_REQUEST);
    }
    let found = blocking(move || Ok(app.assets.with_hash(&hash))).await?;
    Ok(if found.is_some() { StatusCode::OK } else { StatusCode::NOT_FOUND })
}

async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let asset = find(&app, &id).await?;
    Ok(reply::json(&shown(&asset)))
}

async fn content(State(app): State<Arc<App>>, Path(id): Path<String>, headers: HeaderMap) -> Answer {
    let asset = find(&app, &id).await?;
    Ok(view::send(&app.assets.file(&asset), &headers).await?)
}

async fn change(State(app): State<Arc<App>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let text = |key: &str| map.get(key).and_then(Literal::as_text).map(str::to_owned);
    let user_metadata = match json!(map.get("user_metadata")) {
        Value::Object(user_metadata) => Some(user_metadata),
        _ => None,
    };
    let words = Words { name: text("name"), user_metadata, preview_id: text("preview_id") };
    if words.name.is_none() && words.user_metadata.is_none() && words.preview_id.is_none() {
        return Err(Fault::body("give name, user_metadata or preview_id"));
    }
    let asset = find(&app, &id).await?;
    let asset = blocking(move || Ok(app.assets.describe(&asset, words))).await?;
    Ok(reply::json(&shown(&asset)))
}

async fn remove(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    let asset = find(&app, &id).await?;
    blocking(move || app.assets.remove(&asset)).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

async fn tag(State(app): State<Arc<App>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let (before, tags, after) = retag(&app, &id, &body, true).await?;
    let (already_present, added): (Vec<_>, Vec<_>) =
        tags.into_iter().partition(|tag| before.tags.contains(tag));
    Ok(reply::json(&json!({ "added": added, "already_present": already_present, "total_tags": after.tags })))
}

async fn untag(State(app): State<Arc<App>>, Path(id): Path<String>, body: Bytes) -> Answer {
    let (before, tags, after) = retag(&app, &id, &body, false).await?;
    let (present, not_present): (Vec<_>, Vec<_>) =
        tags.into_iter().partition(|tag| before.tags.contains(tag));
    // The word of the folder cannot be taken away.
    let (protected, removed): (Vec<_>, Vec<_>) =
        present.into_iter().partition(|tag| after.tags.contains(tag));
    Ok(reply::json(&json!({
        "removed": removed, "not_present": not_present, "total_tags": after.tags, "protected": protected,
    })))
}

async fn retag(app: &Arc<App>, id: &str, body: &[u8], is_added: bool) -> Answer<(Asset, Vec<String>, Asset)> {
    let map = body::object(body)?;
    let tags = body::ids(&map, "tags")?.unwrap_or_default();
    let tags: Vec<String> =
        tags.iter().map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty()).collect();
    if tags.is_empty() {
        return Err(Fault::body("\"tags\" must be a list of words"));
    }
    let before = find(app, id).await?;
    let (app, asset, given) = (Arc::clone(app), before.clone(), tags.clone());
    let after = blocking(move || Ok(app.assets.tag(&asset, &given, is_added))).await?;
    Ok((before, tags, after))
}

/// Which assets a list has, and in which order.
struct Filter {
    all: Vec<String>,
    any: Vec<String>,
    none: Vec<String>,
    name_contains: String,
    hash: Option<String>,
    sort: String,
    is_ascending: bool,
    limit: usize,
    offset: usize,
}

impl Filter {
    fn of(asked: &Asked) -> Answer<Filter> {
        let tags = |keys: &[&str]| -> Vec<String> {
            let values = asked.0.iter().filter(|(name, _)| keys.contains(&name.as_str()));
            values.flat_map(|(_, value)| tag_list(value)).collect()
        };
        let whole = |key: &'static str, usual: u64, range: std::ops::RangeInclusive<u64>| {
            let number = asked.whole(key).map_err(|why| Fault::query(&why.to_string()))?.unwrap_or(usual);
            if !range.contains(&number) {
                return Err(Fault::query(&format!("{key} must be within {range:?}")));
            }
            Ok(usize::try_from(number).unwrap_or(usize::MAX))
        };
        // A cursor is the offset that it stands for.
        let offset = match asked.get("after") {
            None => whole("offset", 0, 0..=u64::MAX)?,
            Some(cursor) => cursor.parse().map_err(|_| {
                Fault(StatusCode::BAD_REQUEST, "INVALID_CURSOR", "this cursor is not from here".to_owned())
            })?,
        };
        let sort = asked.get("sort").unwrap_or("created_at").to_ascii_lowercase();
        if !["name", "created_at", "updated_at", "size", "last_access_time"].contains(&sort.as_str()) {
            return Err(Fault::query("sort must be name, created_at, updated_at, size or last_access_time"));
        }
        Ok(Filter {
            all: tags(&["tags_all", "include_tags"]),
            any: tags(&["tags_any"]),
            none: tags(&["tags_none", "exclude_tags"]),
            name_contains: asked.get("name_contains").unwrap_or_default().to_lowercase(),
            hash: asked.get("hash").map(str::to_ascii_lowercase),
            sort,
            is_ascending: asked.get("order").is_some_and(|order| order.eq_ignore_ascii_case("asc")),
            limit: whole("limit", 20, 1..=500)?,
            offset,
        })
    }

    fn takes(&self, asset: &Asset) -> bool {
        let has = |tag: &String| asset.tags.contains(tag);
        self.all.iter().all(has)
            && (self.any.is_empty() || self.any.iter().any(has))
            && !self.none.iter().any(has)
            && asset.name.to_lowercase().contains(&self.name_contains)
            && self.hash.as_ref().is_none_or(|hash| asset.hash.as_ref() == Some(hash))
    }

    fn sorted(&self, mut assets: Vec<Asset>) -> Vec<Asset> {
        assets.sort_by(|a, b| {
            let order = match self.sort.as_str() {
                "name" => a.name.cmp(&b.name),
                "size" => a.bytes.cmp(&b.bytes),
                _ => a.modified.cmp(&b.modified),
            };
            let order = order.then_with(|| a.id.cmp(&b.id));
            if self.is_ascending { order } else { order.reverse() }
        });
        assets
    }
}

async fn list(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let filter = Filter::of(&asked)?;
    blocking(move || {
        let found = app.assets.all().into_iter().filter(|asset| filter.takes(asset)).collect();
        let found = filter.sorted(found);
        let page: Vec<Value> = found.iter().skip(filter.offset).take(filter.limit).map(shown).collect();
        let next = filter.offset.saturating_add(page.len());
        let has_more = next < found.len();
        let mut answer = json!({ "assets": page, "total": found.len(), "has_more": has_more });
        if has_more {
            answer["next_cursor"] = json!(next.to_string());
        }
        Ok(reply::json(&answer))
    })
    .await
    .map_err(Fault::from)
}

async fn tags(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Answer {
    let filter = Filter::of(&asked)?;
    let prefix = asked.get("prefix").unwrap_or_default().to_owned();
    let by_name = asked.get("order") == Some("name_asc");
    blocking(move || {
        let mut counts = BTreeMap::<String, usize>::new();
        for tag in app.assets.all().into_iter().flat_map(|asset| asset.tags) {
            *counts.entry(tag).or_default() += 1;
        }
        let mut counts: Vec<(String, usize)> =
            counts.into_iter().filter(|(tag, _)| tag.starts_with(&prefix)).collect();
        if !by_name {
            counts.sort_by_key(|(_, count)| Reverse(*count));
        }
        let limit = if asked.get("limit").is_some() { filter.limit } else { 100 };
        let page: Vec<Value> = counts
            .iter()
            .skip(filter.offset)
            .take(limit)
            .map(|(name, count)| json!({ "name": name, "count": count }))
            .collect();
        let has_more = filter.offset.saturating_add(page.len()) < counts.len();
        Ok(reply::json(&json!({ "tags": page, "total": counts.len(), "has_more": has_more })))
    })
    .await
    .map_err(Fault::from)
}

/// One asset; keys without a value are left out.
fn shown(asset: &Asset) -> Value {
    let (subfolder, filename) = asset.path.rsplit_once('/').unwrap_or(("", &asset.path));
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let is_shown =
        ["image/", "video/", "audio/", "text/"].iter().any(|kind| asset.content_type.starts_with(kind));
    let mut url = format!("/api/view?type={}&filename={}", asset.place.name(), encoded(filename));
    if !subfolder.is_empty() {
        url = format!("{url}&subfolder={}", encoded(subfolder));
    }
    let at = time(asset.modified);
    let mut shown = json!({
        "id": asset.id,
        "name": asset.name,
        "loader_path": asset.annotated(),
        "display_name": asset.path,
        "size": asset.bytes,
        "mime_type": asset.content_type,
        "tags": asset.tags,
        "user_metadata": asset.user_metadata,
        "created_at": at,
        "updated_at": at,
        "last_access_time": at,
    });
    let rest = [
        ("hash", asset.hash.as_ref().map(|hash| json!(hash))),
        ("preview_url", is_shown.then(|| json!(url))),
        ("preview_id", asset.preview_id.as_ref().map(|id| json!(id))),
    ];
    for (key, value) in rest {
        if let Some(value) = value {
            shown[key] = value;
        }
    }
    shown
}
