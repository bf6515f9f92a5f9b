//! https with a certificate of one's own.

use std::path::Path;
use std::sync::Arc;

use server::TlsFiles;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::classes::{catalogue, config, runtime, start_with};
use super::client::read;

fn files() -> TlsFiles {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data"));
    TlsFiles { key: folder.join("localhost.key"), certificate: folder.join("localhost.crt") }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_server_answers() {
    let mut encrypted = config();
    encrypted.tls = Some(files());
    let server = start_with(encrypted).await;
    assert!(server.url().starts_with("https://127.0.0.1:"));
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(files().certificate).unwrap()).unwrap();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(server.addresses()[0]).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    stream.write_all(b"GET /prompt HTTP/1.0\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(read(&mut stream).await.status, 200);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_that_is_no_certificate_is_named() {
    let mut encrypted = config();
    encrypted.tls = Some(TlsFiles { key: files().key, certificate: "none.pem".into() });
    let refused =
        server::Server::start(encrypted, engine::EngineConfig::default(), catalogue(), runtime()).await;
    assert!(refused.err().unwrap().to_string().starts_with("none.pem: "));
}
