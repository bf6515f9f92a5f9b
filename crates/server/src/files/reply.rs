//! What a request is answered with when there is no file to send: JSON, or a refusal with its status.

use std::error::Error;
use std::io;

use axum::body::Body;
use axum::extract::multipart::MultipartError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use serde::Serialize;

use super::names::NameFault;

/// The result of a file route.
pub(crate) type Answer<T = Response> = Result<T, Refusal>;

/// Why a request is not served. The status of each is in [`Refusal::status`] and nowhere else.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request does not say what it must, or not so that it can be used.
    Malformed(&'static str),
    /// The name leads out of its folder.
    Outside,
    /// There is no such thing.
    Missing,
    /// There is such a thing, and it is to be kept.
    Exists,
    /// The body is longer than is allowed.
    TooLarge,
    /// A form was broken off or is not one.
    Form(MultipartError),
    /// From the file system.
    Io(io::Error),
    /// Something on our side, already logged.
    Fault,
}

impl Refusal {
    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Refusal::Malformed(_) => StatusCode::BAD_REQUEST,
            Refusal::Outside => StatusCode::FORBIDDEN,
            Refusal::Missing => StatusCode::NOT_FOUND,
            Refusal::Exists => StatusCode::CONFLICT,
            Refusal::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Refusal::Form(error) if is_over_limit(error) => StatusCode::PAYLOAD_TOO_LARGE,
            // A form that cannot be read on is the client's doing, whatever its reader thinks.
            Refusal::Form(error) if error.status().is_server_error() => StatusCode::BAD_REQUEST,
            Refusal::Form(error) => error.status(),
            Refusal::Io(error) => status_of_io(error),
            Refusal::Fault => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// What is said.
    pub(crate) fn text(&self) -> String {
        match self {
            Refusal::Malformed(text) => (*text).to_owned(),
            Refusal::Outside => "the name leads out of its folder".to_owned(),
            Refusal::Missing => String::new(),
            Refusal::Exists => "the file exists already".to_owned(),
            Refusal::TooLarge => {
                "the body is longer than this server takes; see --max-upload-size".to_owned()
            }
            Refusal::Form(error) => error.body_text(),
            Refusal::Io(error) => error.kind().to_string(),
            Refusal::Fault => "the server failed; its log says why".to_owned(),
        }
    }
}

/// Whether a body stopped because of a limit on its length, here or in a layer further out.
pub(crate) fn is_over_limit(error: &(dyn Error + 'static)) -> bool {
    std::iter::successors(Some(error), |&error| error.source()).any(<dyn Error>::is::<LengthLimitError>)
}

/// What a client can do about an error of the file system is its own status; the rest is ours.
fn status_of_io(error: &io::Error) -> StatusCode {
    use io::ErrorKind as Kind;
    match error.kind() {
        Kind::NotFound => StatusCode::NOT_FOUND,
        Kind::PermissionDenied | Kind::ReadOnlyFilesystem => StatusCode::FORBIDDEN,
        Kind::AlreadyExists => StatusCode::CONFLICT,
        Kind::InvalidInput
        | Kind::InvalidFilename
        | Kind::IsADirectory
        | Kind::NotADirectory
        | Kind::DirectoryNotEmpty => StatusCode::BAD_REQUEST,
        Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => StatusCode::INSUFFICIENT_STORAGE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let status = self.status();
        if let (Refusal::Io(error), true) = (&self, status.is_server_error()) {
            tracing::error!("a file could not be served or stored: {error}");
        }
        (status, self.text()).into_response()
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::Io(error)
    }
}

impl From<MultipartError> for Refusal {
    fn from(error: MultipartError) -> Refusal {
        Refusal::Form(error)
    }
}

impl From<runtime::Error> for Refusal {
    fn from(error: runtime::Error) -> Refusal {
        tracing::debug!("a picture could not be read: {error}");
        Refusal::Malformed("the file is no picture that can be read")
    }
}

impl From<NameFault> for Refusal {
    fn from(fault: NameFault) -> Refusal {
        match fault {
            NameFault::Unusable => {
                Refusal::Malformed("the name has characters or parts that no file may have")
            }
            NameFault::Escapes => Refusal::Outside,
        }
    }
}

/// A value as JSON, with the content type that clients of ComfyUI compare.
pub(crate) fn json<T: Serialize + ?Sized>(value: &T) -> Response {
    let Ok(text) = serde_json::to_vec(value) else {
        tracing::error!("an answer could not be written as JSON");
        return Refusal::Fault.into_response();
    };
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Runs work that waits for a disk or computes, where it holds up nobody else.
pub(crate) async fn blocking<T, F>(work: F) -> Answer<T>
where
    T: Send + 'static,
    F: FnOnce() -> Answer<T> + Send + 'static,
{
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!("work on a file stopped: {error}");
        Err(Refusal::Fault)
    })
}
