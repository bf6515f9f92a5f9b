//! A body that is given out one piece at a time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

/// A body that pauses after each piece. The reader of forms takes in all it can get before it hands anything on;
/// from a client that is faster than the disk that would be the whole upload.
pub(crate) struct Paced {
    body: Body,
    is_pausing: bool,
}

impl Paced {
    /// The same body, with pauses.
    pub(crate) fn new(body: Body) -> Paced {
        Paced { body, is_pausing: false }
    }
}

impl HttpBody for Paced {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if std::mem::take(&mut self.is_pausing) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        self.is_pausing = true;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
