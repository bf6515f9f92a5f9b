//! A file as a response: dates, tags, ranges, and the bytes in small pieces.

use std::fs::Metadata;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::SeekFrom;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio_util::io::ReaderStream;

use super::reply::{Answer, Refusal};

/// Bytes that one file in flight holds in memory.
const PIECE_BYTES: usize = 64 * 1024;

/// Sends a file as `kind`, or the part of it that was asked for, or nothing if the client has it already.
pub(crate) async fn serve(path: &Path, kind: HeaderValue, asked: &HeaderMap) -> Answer {
    // What is no plain file (a pipe, a device) could block for ever when it is opened.
    let metadata = tokio::fs::metadata(path).await.map_err(|_| Refusal::Missing)?;
    if !metadata.is_file() {
        return Err(Refusal::Missing);
    }
    let mut file = tokio::fs::File::open(path).await?;
    let version = Version::of(&metadata);
    let length = metadata.len();
    let mut response = Response::new(Body::empty());
    version.describe(response.headers_mut());
    if version.is_known_by(asked) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, kind);
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let (start, count) = match asked_range(asked, &version, length) {
        Asked::Whole => (0, length),
        Asked::Part { start, count } => {
            let range = format!("bytes {start}-{}/{length}", start + count - 1);
            headers.insert(header::CONTENT_RANGE, ascii(&range));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            (start, count)
        }
        Asked::Nothing => {
            headers.remove(header::CONTENT_TYPE);
            headers.insert(header::CONTENT_RANGE, ascii(&format!("bytes */{length}")));
            *response.status_mut() = StatusCode::RANGE_NOT_SATISFIABLE;
            return Ok(response);
        }
    };
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(count));
    if start > 0 {
        file.seek(SeekFrom::Start(start)).await?;
    }
    *response.body_mut() = Body::from_stream(ReaderStream::with_capacity(file.take(count), PIECE_BYTES));
    Ok(response)
}

/// Which bytes a file had when it was looked at.
pub(crate) struct Version {
    tag: String,
    modified: SystemTime,
}

impl Version {
    /// By what the file system says.
    pub(crate) fn of(metadata: &Metadata) -> Version {
        let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
        let since = modified.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Version {
            tag: format!("\"{:x}-{:x}\"", since.as_nanos(), metadata.len()),
            modified: UNIX_EPOCH + since,
        }
    }

    /// The same file in another shape.
    pub(crate) fn with(self, shape: &str) -> Version {
        let mut hasher = DefaultHasher::new();
        (&self.tag, shape).hash(&mut hasher);
        Version { tag: format!("\"{:x}\"", hasher.finish()), ..self }
    }

    /// Says which version an answer holds.
    pub(crate) fn describe(&self, headers: &mut HeaderMap) {
        headers.insert(header::ETAG, ascii(&self.tag));
        headers.insert(header::LAST_MODIFIED, ascii(&httpdate::fmt_http_date(self.modified)));
    }

    /// Whether the client says that it has this version. A tag goes before a date, which is only as fine as a second.
    pub(crate) fn is_known_by(&self, asked: &HeaderMap) -> bool {
        if asked.contains_key(header::IF_NONE_MATCH) {
            let values = asked.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
            let mut tags = values.flat_map(|value| value.split(',')).map(str::trim);
            return tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.tag);
        }
        date(asked, &header::IF_MODIFIED_SINCE)
            .is_some_and(|since| in_seconds(self.modified) <= in_seconds(since))
    }

    /// Whether a part of this version continues what the client has.
    fn continues(&self, asked: &HeaderMap) -> bool {
        let Some(condition) = asked.get(header::IF_RANGE) else { return true };
        condition.as_bytes() == self.tag.as_bytes()
            || date(asked, &header::IF_RANGE).is_some_and(|at| in_seconds(at) == in_seconds(self.modified))
    }
}

/// What part of a file is asked for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Whole,
    /// At least one byte.
    Part {
        start: u64,
        count: u64,
    },
    /// A part that the file does not have.
    Nothing,
}

fn asked_range(asked: &HeaderMap, version: &Version, length: u64) -> Asked {
    match asked.get(header::RANGE).and_then(|value| value.to_str().ok()) {
        Some(range) if version.continues(asked) => parse_range(range, length),
        _ => Asked::Whole,
    }
}

/// Reads `bytes=a-b`, `bytes=a-` and `bytes=-n`. Several ranges, and what cannot be read, mean the whole file.
fn parse_range(range: &str, length: u64) -> Asked {
    let Some((first, last)) = range.trim().strip_prefix("bytes=").and_then(|range| range.split_once('-'))
    else {
        return Asked::Whole;
    };
    match (number(first), number(last)) {
        (Some(start), Some(end)) if start <= end => part(start, end, length),
        (Some(start), None) if last.trim().is_empty() => part(start, u64::MAX, length),
        (None, Some(count)) if first.trim().is_empty() && count > 0 => {
            part(length.saturating_sub(count), u64::MAX, length)
        }
        (None, Some(0)) if first.trim().is_empty() => Asked::Nothing,
        _ => Asked::Whole,
    }
}

fn part(start: u64, end: u64, length: u64) -> Asked {
    if start >= length {
        return Asked::Nothing;
    }
    let last = end.min(length - 1);
    Asked::Part { start, count: last - start + 1 }
}

/// Digits as a number; more of them than fit are as good as the largest.
fn number(text: &str) -> Option<u64> {
    let text = text.trim();
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| text.parse().unwrap_or(u64::MAX))
}

fn date(headers: &HeaderMap, name: &header::HeaderName) -> Option<SystemTime> {
    httpdate::parse_http_date(headers.get(name)?.to_str().ok()?).ok()
}

fn in_seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}

fn ascii(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).expect("numbers, dates and their punctuation are visible ASCII")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        let part = |start, count| Asked::Part { start, count };
        let cases = [
            ("bytes=0-3", part(0, 4)),
            ("bytes=4-", part(4, 6)),
            ("bytes=-3", part(7, 3)),
            ("bytes=-30", part(0, 10)),
            ("bytes=9-9", part(9, 1)),
            ("bytes=5-99999999999999999999999", part(5, 5)),
            ("bytes=10-", Asked::Nothing),
            ("bytes=99999999999999999999999-", Asked::Nothing),
            ("bytes=-0", Asked::Nothing),
            ("bytes=3-1", Asked::Whole),
            ("bytes=0-1,3-4", Asked::Whole),
            ("bytes=x-1", Asked::Whole),
            ("bytes=-", Asked::Whole),
            ("items=0-1", Asked::Whole),
            ("", Asked::Whole),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_range(text, 10), expected, "{text}");
        }
        assert_eq!(parse_range("bytes=0-", 0), Asked::Nothing);
        assert_eq!(parse_range("bytes=-1", 0), Asked::Nothing);
    }
}
