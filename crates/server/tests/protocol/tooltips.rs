//! Words on inputs: the front end shows them when the pointer rests there.

use std::sync::Arc;

use engine::EngineConfig;
use server::Server;

use super::classes::{config, runtime};
use super::client::get;

/// Inputs of real classes that have no words. A new input needs a line in `src/wire/tooltips.txt`, or `.tooltip(…)`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_input_of_every_class_has_words() {
    let runtime = runtime();
    let catalogue = Arc::new(nodes::catalogue(&runtime));
    let server = Server::start(config(), EngineConfig::default(), catalogue, runtime).await.unwrap();
    let classes = get(&server, "/object_info").await.json();
    let (mut inputs, mut without) = (0, Vec::new());
    for (class, info) in classes.as_object().unwrap() {
        for group in ["required", "optional"] {
            for (name, spec) in info["input"][group].as_object().into_iter().flatten() {
                inputs += 1;
                if spec[1]["tooltip"].as_str().is_none_or(str::is_empty) {
                    without.push(format!("{class}.{name}"));
                }
            }
        }
    }
    assert!(inputs > 1500, "{inputs} inputs");
    assert!(without.is_empty(), "{} of {inputs} inputs have no tooltip: {without:?}", without.len());
    server.stop().await;
}
