//! Files from a server that behaves like the hub, faults included: redirections to signed addresses, ranges, tokens, gates,
//! too many requests, broken connections, addresses that end, and files that change.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod local_hub;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use hub::{Address, Error, Fetched, Hub, Watch};
use local_hub::{Faults, LocalHub, bytes_of};
use testkit::ScratchDir;

/// Watches, and stops after so many bytes.
struct Until {
    most: u64,
    there: AtomicU64,
    free: u64,
}

impl Until {
    fn the_end() -> Until {
        Until::bytes(u64::MAX)
    }

    fn bytes(most: u64) -> Until {
        Until { most, there: AtomicU64::new(0), free: u64::MAX }
    }
}

impl Watch for Until {
    fn at(&self, bytes: u64) {
        self.there.fetch_max(bytes, Ordering::Relaxed);
    }

    fn is_wanted(&self) -> bool {
        self.there.load(Ordering::Relaxed) < self.most
    }

    fn free_space(&self, _folder: &Path) -> Option<u64> {
        Some(self.free)
    }
}

fn asked(server: &LocalHub, token: Option<&str>) -> Hub {
    Hub::new(Some(server.endpoint()), token.map(str::to_owned)).with_pieces_of(50_000)
}

fn fetch(hub: &Hub, file: &str, to: &Path, watch: &dyn Watch) -> hub::Result<Fetched> {
    let address: Address = format!("hf:owner/repo/{file}").parse().unwrap();
    let remote = hub.look(&address)?;
    hub.fetch(&address, &remote, to, watch)
}

#[test]
fn a_file_comes_whole_and_once() {
    let (server, dir) = (LocalHub::start(Faults::default()), ScratchDir::new().unwrap());
    let (hub, to) = (asked(&server, None), dir.join("models/vae/a.safetensors"));
    assert_eq!(fetch(&hub, "a.safetensors", &to, &Until::the_end()).unwrap(), Fetched::New);
    assert!(fs::read(&to).unwrap() == bytes_of("a.safetensors"));
    assert_eq!(fetch(&hub, "a.safetensors", &to, &Until::the_end()).unwrap(), Fetched::There);
    // Nothing else is left in the folder.
    assert_eq!(fs::read_dir(to.parent().unwrap()).unwrap().count(), 1);
    // A server without ranges sends all of it.
    let plain = dir.join("b.bin");
    fetch(&hub, "plain.bin", &plain, &Until::the_end()).unwrap();
    assert!(fs::read(plain).unwrap() == bytes_of("plain.bin"));
}

#[test]
fn a_hundred_broken_downloads_go_on_and_end_with_the_right_sum() {
    let faults = Faults { breaks: true, too_many: true, signatures_end: true };
    let (server, dir) = (LocalHub::start(faults), ScratchDir::new().unwrap());
    let hub = asked(&server, None);
    for number in 0..100u64 {
        let name = format!("file-{number}.safetensors");
        let (to, size) = (dir.join(&name), bytes_of(&name).len() as u64);
        // The program is killed three times on the way.
        for share in [number % 5, 3 + number % 3, 8] {
            let ended = fetch(&hub, &name, &to, &Until::bytes(size * share / 10));
            assert!(matches!(ended, Err(Error::Stopped { .. }) | Ok(_)), "{name}: {ended:?}");
            assert!(ended.is_ok() || !to.exists(), "{name}: half a file has its name");
        }
        fetch(&hub, &name, &to, &Until::the_end()).unwrap();
        assert!(fs::read(&to).unwrap() == bytes_of(&name), "{name}");
    }
    assert!(server.broken() > 100, "{} connections broke", server.broken());
    // What came before a stop was not asked for again: the bytes sent are not many times those of the files.
    let wanted: u64 =
        (0..100).map(|number| bytes_of(&format!("file-{number}.safetensors")).len() as u64).sum();
    assert!(server.sent() < wanted * 3, "{} bytes were sent for {wanted}", server.sent());
}

#[test]
fn refusals_say_what_to_do() {
    let (server, dir) = (LocalHub::start(Faults::default()), ScratchDir::new().unwrap());
    let to = dir.join("x");
    let told = |token: Option<&str>, file: &str| {
        fetch(&asked(&server, token), file, &to, &Until::the_end()).unwrap_err().to_string()
    };
    for (token, file, words) in [
        (None, "private.bin", "set HF_TOKEN"),
        (Some("right"), "gated.bin", "accept its terms"),
        (None, "none.bin", "there is no such file (404)"),
        (None, "wrong-sum.bin", "thrown away"),
    ] {
        let told = told(token, file);
        assert!(told.contains(words) && told.contains(file), "{told}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0, "{file} left something behind");
    }
    // With the token it comes, and nobody but the hub saw the token.
    fetch(&asked(&server, Some("right")), "private.bin", &to, &Until::the_end()).unwrap();
    assert!(!server.token_went_elsewhere());
}

#[test]
fn a_disk_without_room_is_told_before_the_first_byte() {
    let (server, dir) = (LocalHub::start(Faults::default()), ScratchDir::new().unwrap());
    let watch = Until { free: 10, ..Until::the_end() };
    let error = fetch(&asked(&server, None), "a.safetensors", &dir.join("x"), &watch).unwrap_err();
    assert!(matches!(error, Error::NoRoom { free: 10, .. }), "{error}");
    assert!(server.sent() < 10);
}

#[test]
fn a_file_that_changed_begins_anew() {
    let (server, dir) = (LocalHub::start(Faults::default()), ScratchDir::new().unwrap());
    let (hub, to) = (asked(&server, None), dir.join("x"));
    let half = bytes_of("changing.bin").len() as u64 / 2;
    assert!(fetch(&hub, "changing.bin", &to, &Until::bytes(half)).is_err());
    server.change_files();
    fetch(&hub, "changing.bin", &to, &Until::the_end()).unwrap();
    assert!(fs::read(&to).unwrap() == bytes_of("changing.bin#2"));
}
