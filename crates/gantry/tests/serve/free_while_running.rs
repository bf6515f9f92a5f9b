//! The memory buttons are pressed while a job runs: they answer at once, and the job goes on as if nothing were.

use std::time::{Duration, Instant};

use serde_json::json;
use testkit::ScratchDir;

use crate::prompts::text_to_image;
use crate::server::Server;

#[test]
fn buttons_answer_at_once_and_harm_no_job() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let prompt = text_to_image(128, 60);
    let alone = server.run(&prompt).latent("9");
    server.free(&json!({ "unload_models": true, "free_memory": true }));
    assert!(server.models().is_empty());

    let id = server.queue(&prompt);
    server.until("the diffusion model", |server| server.models().contains_key(crate::prompts::FLUX));
    let mut times = Vec::new();
    for _ in 0..15 {
        let start = Instant::now();
        let answer = server.post("/free", &json!({ "unload_models": true, "free_memory": true }));
        times.push(start.elapsed());
        assert_eq!(answer.status, 200);
        std::thread::sleep(Duration::from_millis(10));
    }
    let (running, _) = server.jobs();
    assert_eq!(running, [id.as_str()], "the buttons were pressed while it ran");
    times.sort();
    let (median, worst) = (times[times.len() / 2], times[times.len() - 1]);
    println!("POST /free while a job runs: median {median:.1?}, worst {worst:.1?}");
    assert!(median < Duration::from_millis(5), "{times:?}");
    assert!(worst < Duration::from_millis(50), "{times:?}");

    let ended = server.wait(&id);
    ended.expect_success();
    assert!(ended.latent("9") == alone, "the picture is another one");
    // The presses count once the job is done.
    server.until("what the buttons asked for", |server| server.models().is_empty());
}
