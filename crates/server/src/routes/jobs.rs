//! `/api/jobs`: jobs of every state, as a list to page through.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use engine::{JobFilter, JobRecord, JobStatus, SortBy};
use serde_json::json;

use super::ask;
use crate::app::App;
use crate::wire::rejection::{Answer, Rejection};
use crate::wire::{body, job, reply};

pub(super) async fn list(
    State(app): State<Arc<App>>,
    Query(query): Query<HashMap<String, String>>,
) -> Answer {
    let filter = filter(&query).map_err(Rejection::Invalid)?;
    ask(&app, move |engine| match engine.jobs(&filter) {
        Ok(page) => reply::json(&job::page(&page, filter.offset, filter.limit)),
        Err(error) => reply::failed(&error),
    })
    .await
}

pub(super) async fn one(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    ask(&app, move |engine| match engine.job(&id) {
        Ok(Some(record)) => reply::json(&job::detailed(&record)),
        Ok(None) => reply::error(StatusCode::NOT_FOUND, &format!("there is no job {id}")),
        Err(error) => reply::failed(&error),
    })
    .await
}

pub(super) async fn cancel(State(app): State<Arc<App>>, Path(id): Path<String>) -> Answer {
    cancel_jobs(&app, vec![id]).await
}

pub(super) async fn cancel_all(State(app): State<Arc<App>>, body: Bytes) -> Answer {
    let map = body::object(&body)?;
    let ids = body::ids(&map, "job_ids")?;
    let ids = ids.ok_or_else(|| Rejection::Invalid("\"job_ids\" must be a list of ids".to_owned()))?;
    cancel_jobs(&app, ids).await
}

async fn cancel_jobs(app: &Arc<App>, ids: Vec<String>) -> Answer {
    if let Some(id) = ids.iter().find(|id| !is_uuid(id)) {
        return Err(Rejection::Invalid(format!("{id:?} is no job id")));
    }
    ask(app, move |engine| {
        // All of them are cancelled, whether or not one was.
        let cancelled = ids.iter().filter(|id| engine.cancel(id)).count();
        reply::json(&json!({ "cancelled": cancelled > 0 }))
    })
    .await
}

/// Jobs that were cancelled before they ran. They leave no history; the latest of them are remembered for clients that go
/// on asking.
#[derive(Default)]
pub(crate) struct Withdrawn(Mutex<VecDeque<JobRecord>>);

/// So many are remembered.
const WITHDRAWN: usize = 1000;

impl Withdrawn {
    pub(super) fn keep(&self, record: JobRecord) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(record);
        if kept.len() > WITHDRAWN {
            kept.pop_front();
        }
    }

    pub(super) fn get(&self, id: &str) -> Option<JobRecord> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|record| record.job.prompt_id == id).cloned()
    }
}

/// Five groups of hexadecimal digits.
fn is_uuid(text: &str) -> bool {
    let groups: Vec<&str> = text.split('-').collect();
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12])
        && groups.iter().all(|group| group.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

fn filter(query: &HashMap<String, String>) -> Result<JobFilter, String> {
    let get = |key: &str| query.get(key).map(|text| text.trim().to_ascii_lowercase());
    let limit = match query.get("limit") {
        None => None,
        Some(text) => match text.trim().parse::<i64>() {
            Ok(limit) if limit >= 1 => Some(usize::try_from(limit).unwrap_or(usize::MAX)),
            _ => return Err("limit must be a whole number of at least 1".to_owned()),
        },
    };
    let offset = match query.get("offset") {
        None => 0,
        Some(text) => {
            let offset: i64 = text.trim().parse().map_err(|_| "offset must be a whole number".to_owned())?;
            usize::try_from(offset).unwrap_or(0)
        }
    };
    Ok(JobFilter {
        statuses: statuses(&get("status").unwrap_or_default())?,
        workflow_id: query.get("workflow_id").filter(|id| !id.is_empty()).cloned(),
        sort_by: match get("sort_by").as_deref() {
            None | Some("created_at") => SortBy::Created,
            Some("execution_duration") => SortBy::Duration,
            Some(_) => return Err("sort_by must be created_at or execution_duration".to_owned()),
        },
        ascending: match get("sort_order").as_deref() {
            None | Some("desc") => false,
            Some("asc") => true,
            Some(_) => return Err("sort_order must be asc or desc".to_owned()),
        },
        limit,
        offset,
    })
}

fn statuses(list: &str) -> Result<Vec<JobStatus>, String> {
    let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
    let status = |name: &str| {
        let found = job::STATUSES.into_iter().find(|status| job::status_name(*status) == name);
        found.ok_or_else(|| {
            let known = job::STATUSES.map(job::status_name).join(", ");
            format!("there is no status {name:?}; there are {known}")
        })
    };
    names.map(status).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &[(&str, &str)]) -> Result<JobFilter, String> {
        filter(&query.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn what_the_front_end_asks_is_understood() {
        let history =
            read(&[("status", "completed,failed,cancelled"), ("limit", "64"), ("offset", "-3")]).unwrap();
        assert_eq!(history.statuses, [JobStatus::Completed, JobStatus::Failed, JobStatus::Cancelled]);
        assert_eq!((history.limit, history.offset, history.ascending), (Some(64), 0, false));
        let other =
            read(&[("sort_by", "execution_duration"), ("sort_order", "ASC"), ("workflow_id", "W")]).unwrap();
        assert_eq!((other.sort_by, other.ascending), (SortBy::Duration, true));
        assert_eq!(other.workflow_id.as_deref(), Some("W"), "ids keep their case");
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (key, value) in [
            ("status", "completed,done"),
            ("limit", "0"),
            ("limit", "x"),
            ("offset", "1.5"),
            ("sort_by", "name"),
            ("sort_order", "up"),
        ] {
            assert!(read(&[(key, value)]).is_err(), "{key}={value}");
        }
    }

    #[test]
    fn ids_are_uuids() {
        assert!(is_uuid("0b5c1e9a-7a0e-4a55-9d3b-0123456789ab"));
        for text in ["", "x", "0b5c1e9a7a0e4a559d3b0123456789ab", "0b5c1e9a-7a0e-4a55-9d3b-0123456789ag"] {
            assert!(!is_uuid(text), "{text}");
        }
    }
}
