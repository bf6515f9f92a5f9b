//! The memory buttons are pressed while a job runs: they answer at once, and the job goes on as if nobody had.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::ScratchDir;

use crate::prompts::{FLUX, text_to_image};
use crate::server::Server;

/// Any answer takes less where the processors are free.
const AT_ONCE: Duration = Duration::from_millis(1);

fn timed(action: impl FnOnce()) -> Duration {
    let start = Instant::now();
    action();
    start.elapsed()
}

/// The middle one; they are sorted then.
fn median(times: &mut [Duration]) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[test]
fn buttons_answer_at_once_and_harm_no_job() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let prompt = text_to_image(128, 150);
    let alone = server.run(&prompt).latent("9");
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    assert!(server.models().is_empty());

    let id = server.queue(&prompt);
    server.until("sampling", |server| {
        server.models().contains_key(FLUX) && server.model(FLUX)["staged"] == true
    });
    let (mut presses, mut looks) = (Vec::new(), Vec::new());
    for _ in 0..25 {
        looks.push(timed(|| drop(server.get("/features"))));
        presses.push(timed(|| {
            let answer = server.post("/free", &json!({ "unload_models": true, "free_memory": true }));
            assert_eq!(answer.status, 200);
        }));
        std::thread::sleep(Duration::from_millis(10));
    }
    let (running, _) = server.jobs();
    assert_eq!(running, [id.as_str()], "the buttons were pressed while it ran");
    let (median, look) = (median(&mut presses), median(&mut looks));
    let worst = presses[presses.len() - 1];
    println!(
        "POST /free while a job runs: median {median:.1?}, worst {worst:.1?}; GET /features: {look:.1?}"
    );
    // A machine that is too busy to answer anything at once says little of this answer, which waits for a turn of a processor
    // more than a look does.
    let limit = if look < AT_ONCE { Duration::from_millis(20) } else { Duration::from_millis(50) };
    assert!(median < limit, "{presses:?}");

    let ended = server.wait(&id);
    ended.expect_success();
    assert!(ended.latent("9") == alone, "the picture is another one");
    // The presses count once the job is done.
    server.until("what the buttons asked for", |server| server.models().is_empty());
}
