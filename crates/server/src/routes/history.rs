//! `/history`: jobs that ended.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use graph::Literal;

use super::ask;
use crate::app::App;
use crate::wire::job::History;
use crate::wire::rejection::{Answer, Rejection};
use crate::wire::{body, reply};

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let max =
        whole(&query, "max_items").map_err(Rejection::Invalid)?.map(|max| usize::try_from(max).unwrap_or(0));
    // A negative offset is ComfyUI's way of saying none.
    let offset =
        whole(&query, "offset").map_err(Rejection::Invalid)?.and_then(|offset| usize::try_from(offset).ok());
    ask(&app, move |engine| match engine.history(max, offset) {
        Ok(entries) => reply::json(&History(&entries)),
        Err(error) => reply::failed(&error),
    })
    .await
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    ask(&app, move |engine| match engine.history_entry(&id) {
        Ok(entry) => reply::json(&History(entry.as_slice())),
        Err(error) => reply::failed(&error),
    })
    .await
}

pub(super) async fn change(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let ids = body::ids(&map, "delete")?;
    let is_clear = map.get("clear").is_some_and(Literal::is_truthy);
    ask(&app, move |engine| {
        let cleared = if is_clear { engine.forget(None) } else { Ok(()) };
        let deleted = match &ids {
            Some(ids) => engine.forget(Some(ids)),
            None => Ok(()),
        };
        match cleared.and(deleted) {
            Ok(()) => reply::done(),
            Err(error) => reply::failed(&error),
        }
    })
    .await
}

fn whole(query: &HashMap<String, String>, key: &str) -> Result<Option<i64>, String> {
    let number = query.get(key).map(|text| text.trim().parse()).transpose();
    number.map_err(|_| format!("{key} must be a whole number"))
}
