//! What a server is started with, and the checks that need no network.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderValue;
use meta::DeviceId;

use crate::error::{Error, Result};
use crate::files::FilesConfig;

/// What a server is started with. [`ServerConfig::new`] has the usual values; the fields are there to be changed.
#[derive(Clone)]
pub struct ServerConfig {
    /// Addresses or host names, each of them to listen on.
    pub listen: Vec<String>,
    /// The port; 0 for any that is free.
    pub port: u16,
    /// How long to wait for a port that another process still holds.
    pub bind_patience: Duration,
    /// Certificate and key, for https.
    pub tls: Option<TlsFiles>,
    /// The origin whose pages may use the server, or `*`. It takes the place of the check of origins.
    pub cors_origin: Option<String>,
    /// The largest request body.
    pub max_upload_bytes: usize,
    /// What requests must show.
    pub token: Option<String>,
    /// Whether other machines may come without a token.
    pub allow_without_token: bool,
    /// Host names that requests may use besides those of this machine; `*` for any.
    pub allowed_hosts: Vec<String>,
    /// Whether pages are told to talk to this server alone.
    pub self_only: bool,
    /// Whether answers are compressed.
    pub compress: bool,
    /// Connections at once; more wait.
    pub max_connections: usize,
    /// The file routes.
    pub files: Arc<FilesConfig>,
    /// What is told of the process.
    pub process: ProcessInfo,
    /// Reads how busy and how warm devices are, if anybody can.
    pub sensors: Option<SensorReader>,
    /// The workers on other machines, if jobs run there.
    pub workers: Option<WorkerReader>,
}

/// Tells what workers on other machines have and do, as JSON, or why that is not known now.
pub type WorkerReader = Arc<dyn Fn() -> std::result::Result<serde_json::Value, String> + Send + Sync>;

/// Reads the sensors of a device; nothing if it has none.
pub type SensorReader = Arc<dyn Fn(DeviceId) -> Option<Reading> + Send + Sync>;

/// What a device's sensors say; what it does not tell is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The share of the last moment in which it computed, in percent.
    pub busy_percent: Option<u32>,
    /// Its temperature, in degrees Celsius.
    pub celsius: Option<u32>,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The private key.
    pub key: PathBuf,
    /// The certificate and those that vouch for it.
    pub certificate: PathBuf,
}

/// What `/system_stats` tells of the process. The binary fills it in: nobody else reads the environment.
#[derive(Clone, Debug, Default)]
pub struct ProcessInfo {
    /// The operating system, such as `linux`.
    pub os: String,
    /// The command line.
    pub argv: Vec<String>,
    /// The version of this program.
    pub version: String,
    /// The version of the web front end, if it is known.
    pub front_end_version: Option<String>,
}

impl ServerConfig {
    /// Loopback, port 8188, 100 MiB, nothing else.
    #[must_use]
    pub fn new(files: Arc<FilesConfig>) -> ServerConfig {
        ServerConfig {
            listen: vec!["127.0.0.1".to_owned()],
            port: 8188,
            bind_patience: Duration::from_secs(10),
            tls: None,
            cors_origin: None,
            max_upload_bytes: 100 << 20,
            token: None,
            allow_without_token: false,
            allowed_hosts: Vec::new(),
            self_only: false,
            compress: false,
            max_connections: 2048,
            files,
            process: ProcessInfo::default(),
            sensors: None,
            workers: None,
        }
    }

    /// Looks the addresses up and refuses what would be unsafe or could not be sent.
    ///
    /// # Errors
    /// No or an unknown address; other machines without a token; a token or an origin that no header can carry.
    pub fn checked_addresses(&self) -> Result<Vec<SocketAddr>> {
        if let Some(token) = &self.token
            && (token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic() && !b",;\"\\".contains(&b)))
        {
            return Err(Error::UnusableToken);
        }
        if let Some(origin) = &self.cors_origin
            && HeaderValue::from_str(origin).is_err()
        {
            return Err(Error::CorsOrigin { value: origin.clone() });
        }
        let addresses = self.addresses()?;
        let foreign = addresses.iter().find(|address| !is_loopback(address.ip()));
        match foreign {
            Some(address) if self.token.is_none() && !self.allow_without_token => {
                Err(Error::TokenNeeded { address: *address })
            }
            _ => Ok(addresses),
        }
    }

    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        use std::net::ToSocketAddrs;
        let mut addresses = Vec::new();
        let names = self.listen.iter().flat_map(|list| list.split(',')).map(str::trim);
        for name in names.filter(|name| !name.is_empty()) {
            let bare = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
            let found = (bare, self.port).to_socket_addrs();
            let found = found.map_err(|source| Error::UnknownAddress { name: name.to_owned(), source })?;
            for address in found {
                if !addresses.contains(&address) {
                    addresses.push(address);
                }
            }
        }
        if addresses.is_empty() { Err(Error::NoAddress) } else { Ok(addresses) }
    }
}

/// Whether an address is of this machine alone; `::ffff:127.0.0.1` is.
pub(crate) fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(listen: &str) -> ServerConfig {
        let mut config = ServerConfig::new(Arc::new(FilesConfig::default()));
        config.listen = vec![listen.to_owned()];
        config
    }

    #[test]
    fn addresses_are_read_from_a_list() {
        let addresses = config("127.0.0.1, ::1,127.0.0.1,[::1]").checked_addresses().unwrap();
        let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        assert_eq!(texts, ["127.0.0.1:8188", "[::1]:8188"]);
        assert!(matches!(config(" ,").checked_addresses(), Err(Error::NoAddress)));
    }

    #[test]
    fn other_machines_need_a_token_unless_it_is_waived() {
        for listen in ["0.0.0.0", "::", "127.0.0.1,192.168.1.4"] {
            let mut open = config(listen);
            assert!(matches!(open.checked_addresses(), Err(Error::TokenNeeded { .. })), "{listen}");
            open.token = Some("secret".to_owned());
            assert!(open.checked_addresses().is_ok());
            open.token = None;
            open.allow_without_token = true;
            assert!(open.checked_addresses().is_ok());
        }
        assert!(config("::ffff:127.0.0.1").checked_addresses().is_ok());
    }

    #[test]
    fn what_no_header_can_carry_is_refused() {
        for token in ["", "two words", "a;b", "\u{e9}"] {
            let mut with_token = config("127.0.0.1");
            with_token.token = Some(token.to_owned());
            assert!(matches!(with_token.checked_addresses(), Err(Error::UnusableToken)), "{token:?}");
        }
        let mut with_origin = config("127.0.0.1");
        with_origin.cors_origin = Some("https://a\nb".to_owned());
        assert!(matches!(with_origin.checked_addresses(), Err(Error::CorsOrigin { .. })));
    }
}
