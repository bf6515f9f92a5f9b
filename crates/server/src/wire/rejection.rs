//! Why a request is not answered as it asks: one list, with the status of each.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::body::BadBody;
use super::query::NoNumber;
use super::reply;

/// What handlers answer.
pub(crate) type Answer = Result<Response, Rejection>;

/// Why a request is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Rejection {
    /// The body cannot be read.
    #[error(transparent)]
    Body(#[from] BadBody),
    /// A number of the query is none.
    #[error(transparent)]
    Number(#[from] NoNumber),
    /// Something else of the request is wrong.
    #[error("{0}")]
    Invalid(String),
    /// The model is not loaded.
    #[error("model {0} is not loaded")]
    NoModel(String),
    /// The thread that worked on it ended.
    #[error("a request failed: {0}")]
    Thread(#[from] tokio::task::JoinError),
}

impl Rejection {
    /// The status of the answer.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Rejection::Body(_) | Rejection::Number(_) | Rejection::Invalid(_) => StatusCode::BAD_REQUEST,
            Rejection::NoModel(_) => StatusCode::NOT_FOUND,
            Rejection::Thread(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

impl IntoResponse for Rejection {
    fn into_response(self) -> Response {
        match self.status() {
            StatusCode::INTERNAL_SERVER_ERROR => reply::failed(&self),
            status => reply::error(status, &self.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_its_status() {
        let status = |rejection: Rejection| rejection.into_response().status().as_u16();
        assert_eq!(status(Rejection::Body(BadBody::TooManyValues)), 400);
        assert_eq!(status(Rejection::Invalid("no".to_owned())), 400);
        assert_eq!(status(Rejection::NoModel("7".to_owned())), 404);
    }
}
