//! Who is trusted: certificates of both sides, credentials, and versions that do not fit.
//!
//! The certificates in `tests/data/tls` hold from 2020 to 2119. `ca.pem` vouches for `server.pem`, which names 127.0.0.1 only, and
//! for `client.pem`; `other-ca.pem` vouches for `foreign-client.pem`.

use std::path::{Path, PathBuf};

use cluster::{ClusterConfig, Error, NatsStore};

use super::LEASE;
use super::server::Server;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/tls").join(name)
}

fn path(name: &str) -> String {
    file(name).display().to_string()
}

/// A server with a certificate, and more arguments.
fn server(more: &[&str]) -> Option<Server> {
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let own = ["--tls", "--tlscert", certificate.as_str(), "--tlskey", key.as_str()];
    Server::start(&[&own[..], more].concat())
}

/// How a machine comes that trusts whom this file vouches for, with its own certificate if it has one.
fn coming(server: &Server, ca: Option<&str>, own: Option<&str>) -> ClusterConfig {
    ClusterConfig {
        root_certificates: ca.map(file),
        certificate: own.map(|own| (file(&format!("{own}.pem")), file(&format!("{own}.key")))),
        ..server.config("a", LEASE)
    }
}

#[track_caller]
fn refusal(config: &ClusterConfig) -> Error {
    NatsStore::open(config).err().expect("it is refused")
}

#[track_caller]
fn assert_no_trust(config: &ClusterConfig) {
    let error = refusal(config);
    assert!(matches!(error, Error::Trust { .. }), "{error}");
    assert!(error.to_string().contains("do not trust each other"), "{error}");
}

#[test]
fn a_queue_is_trusted_by_the_certificates_that_vouch_for_it() {
    let Some(server) = server(&[]) else { return };
    NatsStore::open(&coming(&server, Some("ca.pem"), None)).unwrap();
    assert_no_trust(&coming(&server, Some("other-ca.pem"), None));
    // What the system trusts does not have it, and nobody speaks without TLS to a server that has it.
    assert_no_trust(&coming(&server, None, None));
    // The certificate names the address, and not this name.
    let by_name = coming(&server, Some("ca.pem"), None);
    let address = by_name.address.replace("127.0.0.1", "localhost");
    assert_no_trust(&ClusterConfig { address, ..by_name });
    let missing = refusal(&coming(&server, Some("nowhere.pem"), None));
    assert!(matches!(missing, Error::CertificateFile { .. }), "{missing}");
    assert!(missing.to_string().contains("nowhere.pem cannot be read"), "{missing}");
}

#[test]
fn who_wants_tls_does_not_speak_without() {
    let Some(server) = Server::start(&[]) else { return };
    NatsStore::open(&coming(&server, None, None)).unwrap();
    let error = refusal(&coming(&server, Some("ca.pem"), None));
    assert!(matches!(error, Error::Trust { .. } | Error::Unreachable { .. }), "{error}");
}

#[test]
fn a_queue_that_asks_who_we_are_knows_certificates_of_its_own_only() {
    let ca = path("ca.pem");
    let Some(server) = server(&["--tlsverify", "--tlscacert", &ca]) else { return };
    NatsStore::open(&coming(&server, Some("ca.pem"), Some("client"))).unwrap();
    for own in [None, Some("foreign-client")] {
        let error = refusal(&coming(&server, Some("ca.pem"), own));
        // A server may hang up before what it says against a certificate has been read.
        assert!(matches!(error, Error::Trust { .. } | Error::Unreachable { .. }), "{error}");
    }
}

#[test]
fn a_password_is_asked_for_behind_a_certificate_too() {
    let Some(server) = server(&["--user", "gantry", "--pass", "right"]) else { return };
    let with = |password: &str| ClusterConfig {
        user: Some(("gantry".to_owned(), password.to_owned())),
        ..coming(&server, Some("ca.pem"), None)
    };
    NatsStore::open(&with("right")).unwrap();
    let wrong = refusal(&with("wrong"));
    assert!(matches!(wrong, Error::Credentials { .. }), "{wrong}");
    let nobody = refusal(&coming(&server, Some("ca.pem"), None));
    assert!(matches!(nobody, Error::Credentials { .. }), "{nobody}");
}

#[test]
fn versions_that_do_not_fit_refuse_each_other() {
    let Some(server) = Server::start(&[]) else { return };
    let config = server.config("a", LEASE);
    drop(NatsStore::open(&config).unwrap());
    let threads = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let speak = |protocol: &str| {
        threads.block_on(async {
            let client = async_nats::connect(&config.address).await.unwrap();
            let states = async_nats::jetstream::new(client).get_key_value("gantry_a").await.unwrap();
            let before = states.get("protocol").await.unwrap().unwrap();
            states.put("protocol", protocol.to_owned().into()).await.unwrap();
            String::from_utf8(before.to_vec()).unwrap()
        })
    };
    // As an older and a newer version would have left it.
    let own = speak("1");
    for theirs in ["1", "9"] {
        speak(theirs);
        let error = refusal(&config);
        assert!(matches!(error, Error::Protocol { .. }), "{error}");
        let told = error.to_string();
        assert!(
            told.contains(&format!("pool a speaks protocol {theirs} and this version speaks {own}")),
            "{told}"
        );
        assert!(told.contains("run the same version everywhere, or use another pool"), "{told}");
    }
    // Another pool is not concerned, and what fits again is let in.
    NatsStore::open(&ClusterConfig { pool: "b".to_owned(), ..config.clone() }).unwrap();
    speak(&own);
    NatsStore::open(&config).unwrap();
}
