//! Lists of jobs of every state.

use engine::{JobFilter, JobPage, JobStatus, SortBy, Submission};
use graph::{Literal, map};

use super::support::*;

fn of_workflow(id: &str, submission: Submission) -> Submission {
    let workflow = Literal::Map(map([("id", id.into()), ("nodes", Literal::List(Vec::new()))]));
    let extra_data = map([("extra_pnginfo", Literal::Map(map([("workflow", workflow)])))]);
    Submission { extra_data, ..submission }
}

/// Completed, failed, cancelled, running and two that wait, in the order in which they were accepted.
fn all_states() -> (Bench, Vec<String>) {
    let bench = Bench::new();
    let mut all = vec![bench.run(of_workflow("w1", show("a"))).job.prompt_id];
    all.push(bench.run(fail("value")).job.prompt_id);
    let cancelled = bench.submit(wait("c")).prompt_id;
    bench.props.until_waiting(1);
    bench.engine.interrupt(None);
    bench.told.until_ended(&cancelled);
    all.push(cancelled);
    all.push(bench.submit(of_workflow("w2", wait("d"))).prompt_id);
    bench.props.until_waiting(2);
    all.push(bench.submit(of_workflow("w1", show("e"))).prompt_id);
    all.push(bench.submit(show("f")).prompt_id);
    (bench, all)
}

fn ids_of(page: &JobPage) -> Vec<&str> {
    page.jobs.iter().map(|record| record.job.prompt_id.as_str()).collect()
}

fn statuses(page: &JobPage) -> Vec<JobStatus> {
    page.jobs.iter().map(|record| record.status).collect()
}

#[test]
fn all_states_are_listed_newest_first() {
    let (bench, all) = all_states();
    let page = bench.engine.jobs(&JobFilter::default()).unwrap();
    assert_eq!(page.total, 6);
    let mut newest: Vec<&str> = all.iter().map(String::as_str).collect();
    newest.reverse();
    assert_eq!(ids_of(&page), newest);
    use JobStatus::{Cancelled, Completed, Failed, InProgress, Pending};
    assert_eq!(statuses(&page), [Pending, Pending, InProgress, Cancelled, Failed, Completed]);
    let has_entry: Vec<bool> = page.jobs.iter().map(|record| record.entry.is_some()).collect();
    assert_eq!(has_entry, [false, false, false, true, true, true]);
    let page = bench.engine.jobs(&JobFilter { ascending: true, ..JobFilter::default() }).unwrap();
    assert_eq!(ids_of(&page), all);
    bench.props.permit(1);
}

#[test]
fn lists_are_filtered_by_state_and_workflow() {
    let (bench, all) = all_states();
    let list = |statuses: &[JobStatus], workflow: Option<&str>| {
        let filter = JobFilter {
            statuses: statuses.to_vec(),
            workflow_id: workflow.map(str::to_owned),
            ascending: true,
            ..JobFilter::default()
        };
        let page = bench.engine.jobs(&filter).unwrap();
        assert_eq!(page.total, page.jobs.len());
        let index = |id: &str| all.iter().position(|known| known == id).unwrap();
        ids_of(&page).into_iter().map(index).collect::<Vec<usize>>()
    };
    assert_eq!(list(&[JobStatus::Completed], None), [0]);
    assert_eq!(list(&[JobStatus::Failed, JobStatus::Cancelled], None), [1, 2]);
    assert_eq!(list(&[JobStatus::InProgress, JobStatus::Pending], None), [3, 4, 5]);
    assert_eq!(list(&[], Some("w1")), [0, 4]);
    assert_eq!(list(&[JobStatus::Pending], Some("w1")), [4]);
    assert_eq!(list(&[], Some("none")), Vec::<usize>::new());
    bench.props.permit(1);
}

#[test]
fn lists_are_paged_across_the_queue_and_the_history() {
    let (bench, all) = all_states();
    let mut paged = Vec::new();
    for offset in [0, 2, 4, 6] {
        let page = bench.engine.jobs(&JobFilter { limit: Some(2), offset, ..JobFilter::default() }).unwrap();
        assert_eq!(page.total, 6);
        assert_eq!(page.jobs.len(), if offset < 6 { 2 } else { 0 });
        paged.extend(ids_of(&page).into_iter().map(str::to_owned));
    }
    paged.reverse();
    assert_eq!(paged, all);
    bench.props.permit(1);
}

#[test]
fn lists_are_sorted_by_how_long_jobs_ran() {
    let bench = Bench::new();
    let slow = bench.hold();
    std::thread::sleep(std::time::Duration::from_millis(60));
    bench.props.permit(1);
    bench.told.until_ended(&slow);
    let quick = bench.run(show("a")).job.prompt_id;
    let filter = |ascending| JobFilter { sort_by: SortBy::Duration, ascending, ..JobFilter::default() };
    assert_eq!(ids_of(&bench.engine.jobs(&filter(false)).unwrap()), [slow.as_str(), &quick]);
    assert_eq!(ids_of(&bench.engine.jobs(&filter(true)).unwrap()), [quick.as_str(), &slow]);
}

#[test]
fn a_list_has_what_it_shows_and_a_single_job_has_all() {
    let bench = Bench::new();
    let submission = Submission { client_id: Some("me".to_owned()), ..of_workflow("w1", show("a")) };
    let id = bench.run(submission).job.prompt_id;
    let page = bench.engine.jobs(&JobFilter::default()).unwrap();
    let (item, whole) = (&page.jobs[0], bench.engine.job(&id).unwrap().unwrap());
    let entry = item.entry.as_ref().unwrap();
    assert!(item.job.prompt.nodes.is_empty());
    assert_eq!(item.job.extra_data["create_time"], whole.job.extra_data["create_time"]);
    let workflow =
        |record: &engine::JobRecord| record.job.extra_data["extra_pnginfo"].get("workflow").unwrap().clone();
    assert_eq!(workflow(item).get("id").unwrap().as_text(), Some("w1"));
    assert!(workflow(item).get("nodes").is_none() && workflow(&whole).get("nodes").is_some());
    assert_eq!(entry.outputs, whole.entry.as_ref().unwrap().outputs);
    assert_eq!(entry.messages, whole.entry.as_ref().unwrap().messages);
    assert_eq!((item.job.client_id.as_deref(), whole.job.client_id.as_deref()), (Some("me"), Some("me")));
    assert_eq!(whole.job.prompt.nodes.len(), 1);
    assert!(bench.engine.job(&uuid(1)).unwrap().is_none());
}
