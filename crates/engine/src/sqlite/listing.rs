//! Lists of jobs of every state: what runs and waits is in memory, what ended is in the database.

use super::SqliteStore;
use crate::error::Error;
use crate::job::{JobFilter, JobPage, JobRecord, JobStatus, SortBy};

/// A job in a list, before its record is read.
enum Item {
    Unfinished(JobRecord),
    /// Its row in the database.
    Finished(i64),
}

impl JobFilter {
    /// Whether jobs of a state are wanted.
    pub(super) fn has(&self, status: JobStatus) -> bool {
        self.statuses.is_empty() || self.statuses.contains(&status)
    }

    fn takes(&self, record: &JobRecord) -> bool {
        let workflow = self.workflow_id.as_deref();
        self.has(record.status) && (workflow.is_none() || workflow == record.job.workflow_id())
    }
}

/// The part of a list that a filter asks for. `unfinished` has the jobs of the queue, with their places
/// among all jobs.
pub(super) fn page(
    store: &SqliteStore,
    unfinished: Vec<(i64, JobRecord)>,
    filter: &JobFilter,
) -> Result<JobPage, Error> {
    let ids: Vec<&str> = unfinished.iter().map(|(_, record)| record.job.prompt_id.as_str()).collect();
    let (finished, total) = store.listed(filter, &ids)?;
    let mut items: Vec<((i64, i64), Item)> = finished
        .into_iter()
        .map(|listed| ((listed.key, listed.sequence), Item::Finished(listed.id)))
        .collect();
    let mut total = total;
    for (sequence, record) in unfinished.into_iter().filter(|(_, record)| filter.takes(record)) {
        let key = match filter.sort_by {
            SortBy::Created => record.job.created(),
            // It has no end yet.
            SortBy::Duration => 0,
        };
        items.push(((key, sequence), Item::Unfinished(record)));
        total += 1;
    }
    items.sort_by_key(|(key, _)| *key);
    if !filter.ascending {
        items.reverse();
    }
    let wanted = items.into_iter().skip(filter.offset).take(filter.limit.unwrap_or(usize::MAX));
    let mut jobs = Vec::new();
    for (_, item) in wanted {
        match item {
            Item::Unfinished(record) => jobs.push(record),
            Item::Finished(id) => jobs.extend(store.list_item(id)?),
        }
    }
    Ok(JobPage { jobs, total })
}
