//! What takes minutes is stopped within a second, and the process within two.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::ScratchDir;

use crate::prompts::AUTOENCODER;
use crate::server::Server;

/// How long a job goes on after it was interrupted, at most.
const INTERRUPT: Duration = Duration::from_secs(1);
/// How long the process goes on after it was asked to end, at most.
#[cfg(unix)]
const TERMINATE: Duration = Duration::from_secs(2);

/// A picture of 4096 x 4096 pixels: the attention of its middle alone takes minutes on a CPU.
fn huge_decode() -> Value {
    json!({
        "1": { "class_type": "VAELoader", "inputs": { "vae_name": AUTOENCODER } },
        "2": { "class_type": "EmptySD3LatentImage",
            "inputs": { "width": 4096, "height": 4096, "batch_size": 1 } },
        "3": { "class_type": "VAEDecode", "inputs": { "samples": ["2", 0], "vae": ["1", 0] } },
        "4": { "class_type": "PreviewImage", "inputs": { "images": ["3", 0] } },
    })
}

/// Queues a prompt, and waits until its longest node has been at work for a while.
fn start(server: &Server, prompt: &Value, after: Duration) -> String {
    let id = server.queue(prompt);
    server.until("the job", |server| server.jobs().0 == [id.as_str()]);
    std::thread::sleep(after);
    assert_eq!(server.jobs().0, [id.as_str()], "it takes longer");
    id
}

/// Interrupts a job; how long it went on.
fn interrupt(server: &Server, id: &str) -> Duration {
    let since = Instant::now();
    assert_eq!(server.post("/interrupt", &json!({})).status, 200);
    let ended = server.wait(id);
    let taken = since.elapsed();
    ended.message("execution_interrupted");
    taken
}

#[test]
fn a_huge_decode_is_interrupted_within_a_second() {
    let folder = ScratchDir::new().unwrap();
    let places: [&[&str]; 2] = [&[], &["--sim-device", "8gb@20gbps"]];
    for flags in places {
        let server = Server::start(folder.path(), flags);
        for after in [300, 2000, 4000] {
            let id = start(&server, &huge_decode(), Duration::from_millis(after));
            let taken = interrupt(&server, &id);
            println!("{flags:?}: interrupted after {after} ms, ended {taken:.0?} later");
            assert!(taken < INTERRUPT, "{taken:?}");
        }
        // The next job is not in the way of what the last one left behind.
        server.run(&crate::prompts::text_to_image(64, 1));
    }
}

/// Nodes that compute on the host, at sizes that validation allows.
#[test]
fn huge_pictures_on_the_host_are_interrupted_within_a_second() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let picture = json!({ "class_type": "EmptyImage",
        "inputs": { "width": 6144, "height": 6144, "batch_size": 1, "color": 1234567 } });
    let jobs = [
        ("ImageBlur", json!({ "image": ["1", 0], "blur_radius": 31, "sigma": 10.0 })),
        ("Canny", json!({ "image": ["1", 0], "low_threshold": 0.1, "high_threshold": 0.2 })),
        (
            "ImageScale",
            json!({ "image": ["1", 0], "upscale_method": "lanczos", "width": 8192, "height": 8192,
            "crop": "disabled" }),
        ),
        ("ImageAddNoise", json!({ "image": ["1", 0], "seed": 1, "strength": 0.5 })),
    ];
    for (class, inputs) in jobs {
        let prompt = json!({
            "1": picture,
            "2": { "class_type": class, "inputs": inputs },
            "3": { "class_type": "PreviewImage", "inputs": { "images": ["2", 0] } },
        });
        let id = start(&server, &prompt, Duration::from_millis(500));
        let taken = interrupt(&server, &id);
        println!("{class}: ended {taken:.0?} after it was interrupted");
        assert!(taken < INTERRUPT, "{class}: {taken:?}");
    }
}

#[cfg(unix)]
#[test]
fn a_huge_decode_does_not_keep_the_process_from_ending() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &[]);
    let id = start(&server, &huge_decode(), Duration::from_secs(2));
    let (taken, status) = server.terminate();
    println!("SIGTERM during a decode: ended {taken:.0?} later, {status}");
    assert!(taken < TERMINATE, "{taken:?}");
    assert!(status.success(), "{status}");

    // The job was not lost: it runs again, and can be interrupted.
    let server = Server::start(folder.path(), &[]);
    server.until("the job again", |server| server.jobs().0 == [id.as_str()]);
    assert!(interrupt(&server, &id) < INTERRUPT);
}

/// A decode that no memory has room for is refused with the memory that it takes, before anything is computed.
#[test]
fn what_cannot_fit_is_refused_with_its_numbers() {
    let folder = ScratchDir::new().unwrap();
    let server = Server::start(folder.path(), &["--sim-device", "380mb@20gbps"]);
    let mut prompt = huge_decode();
    prompt["1"] = json!({ "class_type": "VAELoaderMultiGPU", "inputs": { "vae_name": AUTOENCODER, "device": "sim:0" } });
    let since = Instant::now();
    let told = server.run_badly(&prompt);
    assert!(since.elapsed() < Duration::from_secs(5), "{:?}", since.elapsed());
    for part in ["4096x4096", "sim:0", "would fit", "MB"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    println!("{told}");
}
