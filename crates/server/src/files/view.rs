//! `GET /view`: files of the input, output and temp folders, and pictures among them in other shapes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use axum::routing::get;
use nodes::picture::{self, PreviewFormat};
use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use runtime::folders::Place;

use super::content_type::{self, Showing};
use super::names::relative;
use super::reply::{Answer, Refusal};
use super::serving::{self, Version};
use super::{Files, Shared};
use crate::wire::query::Asked;

/// The quality of a preview that does not say.
const PREVIEW_QUALITY: u8 = 90;

/// What must be encoded in a file name of a header.
const HEADER_UNSAFE: &AsciiSet = &CONTROLS
    .add(b' ')
    .add(b'"')
    .add(b'%')
    .add(b'\'')
    .add(b'(')
    .add(b')')
    .add(b'*')
    .add(b',')
    .add(b'/')
    .add(b':');

pub(super) fn routes() -> Router<Shared> {
    Router::new().route("/view", get(view))
}

async fn view(State(files): State<Shared>, Query(asked): Query<Asked>, headers: HeaderMap) -> Answer {
    let name = asked.get("filename").ok_or(Refusal::Missing)?;
    let place = asked.get("type").unwrap_or("output");
    let path = files.placed(name, place, asked.get("subfolder").unwrap_or_default())?;
    if let Some(place) = Place::of(name).1.or_else(|| Place::named(place)) {
        files.bring(place, &path).await;
    }
    match Shape::asked(&asked) {
        Shape::AsStored => show(&path, &headers, Disposition::of(&path, &headers)).await,
        shape @ Shape::Preview { .. } => match reshaped(&files, &path, shape, &headers).await {
            // A preview only saves bytes: a browser may well show what cannot be read here.
            Err(Refusal::Malformed(_)) => show(&path, &headers, Disposition::of(&path, &headers)).await,
            answer => answer,
        },
        shape => reshaped(&files, &path, shape, &headers).await,
    }
}

/// Sends a file as it is stored, as a browser may have it.
pub(crate) async fn send(path: &Path, headers: &HeaderMap) -> Answer {
    show(path, headers, Disposition::of(path, headers)).await
}

impl Files {
    /// The path of a file that a client names: `x.png` in a folder, or `x.png [output]`, which goes before it.
    pub(super) fn placed(&self, name: &str, place: &str, subfolder: &str) -> Answer<PathBuf> {
        let (name, annotated) = Place::of(name);
        if name.is_empty() || name.starts_with('/') || name.contains("..") {
            return Err(Refusal::Malformed("the file name is empty or leads out of its folder"));
        }
        let place = annotated.or_else(|| Place::named(place));
        let place = place.ok_or(Refusal::Malformed("the type must be input, output or temp"))?;
        let folder = self.config.folders.directory(place).join(relative(subfolder)?);
        let name = relative(name)?;
        Ok(folder.join(name.file_name().ok_or(Refusal::Missing)?))
    }
}

/// What a file is sent as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    AsStored,
    Preview { format: PreviewFormat, without_alpha: bool },
    Colours,
    Alpha,
}

impl Shape {
    fn asked(asked: &Asked) -> Shape {
        let channel = asked.get("channel").unwrap_or_default();
        match (asked.get("preview"), channel) {
            (Some(preview), channel) => Shape::preview(preview, channel),
            (None, "rgb") => Shape::Colours,
            (None, "a") => Shape::Alpha,
            (None, _) => Shape::AsStored,
        }
    }

    /// Reads `webp;90`, `jpeg;80`, `jpeg`, `90`. JPEG has no transparency, so what asks for it gets WebP.
    fn preview(text: &str, channel: &str) -> Shape {
        let mut parts = text.split(';');
        let is_jpeg = parts.next() == Some("jpeg") && !channel.contains('a');
        let last = text.rsplit(';').next().unwrap_or_default();
        let is_number = !last.is_empty() && last.bytes().all(|byte| byte.is_ascii_digit());
        let quality = if is_number { last.parse().unwrap_or(100).clamp(1, 100) } else { PREVIEW_QUALITY };
        let format = if is_jpeg { PreviewFormat::Jpeg(quality) } else { PreviewFormat::Webp(quality) };
        Shape::Preview { format, without_alpha: channel == "rgb" }
    }

    fn content_type(self) -> &'static str {
        match self {
            Shape::Preview { format: PreviewFormat::Jpeg(_), .. } => "image/jpeg",
            Shape::Preview { .. } => "image/webp",
            Shape::AsStored | Shape::Colours | Shape::Alpha => "image/png",
        }
    }
}

/// The picture in another shape, unless the client has just that already.
async fn reshaped(files: &Arc<Files>, path: &Path, shape: Shape, asked: &HeaderMap) -> Answer {
    let metadata = tokio::fs::metadata(path).await.map_err(|_| Refusal::Missing)?;
    if !metadata.is_file() {
        return Err(Refusal::Missing);
    }
    let version = Version::of(&metadata).with(&format!("{shape:?}"));
    let mut response = Response::new(Body::empty());
    version.describe(response.headers_mut());
    if version.is_known_by(asked) {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        return Ok(response);
    }
    let bytes = files
        .with_picture(path.to_owned(), move |bytes| {
            Ok(match shape {
                Shape::AsStored => bytes.to_vec(),
                Shape::Preview { format, without_alpha } => picture::preview(bytes, format, without_alpha)?,
                Shape::Colours => picture::colours_png(bytes)?,
                Shape::Alpha => picture::alpha_png(bytes)?,
            })
        })
        .await?;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(shape.content_type()));
    headers.insert(header::CONTENT_DISPOSITION, Disposition::Inline.header(path));
    *response.body_mut() = Body::from(bytes);
    Ok(response)
}

/// Whether a browser shows a file or stores it.
#[derive(Clone, Copy)]
enum Disposition {
    Inline,
    Attachment,
}

impl Disposition {
    fn of(path: &Path, asked: &HeaderMap) -> Disposition {
        let is_for_image = asked.get("sec-fetch-dest").is_some_and(|value| value == "image");
        match content_type::showing(path, is_for_image) {
            Showing::AsItIs => Disposition::Inline,
            Showing::AsDownload => Disposition::Attachment,
        }
    }

    /// The name as clients of ComfyUI read it, and once more for those that read only ASCII.
    fn header(self, path: &Path) -> HeaderValue {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let start = match self {
            Disposition::Inline => "",
            Disposition::Attachment => "attachment; ",
        };
        let quoted = name.replace('"', "\\\"");
        let coded = if name.is_ascii() {
            String::new()
        } else {
            format!("; filename*=UTF-8''{}", utf8_percent_encode(&name, HEADER_UNSAFE))
        };
        let text = format!("{start}filename=\"{quoted}\"{coded}");
        HeaderValue::from_bytes(text.as_bytes()).unwrap_or(HeaderValue::from_static("attachment"))
    }
}

async fn show(path: &Path, asked: &HeaderMap, disposition: Disposition) -> Answer {
    let kind = match disposition {
        Disposition::Inline => content_type::by_name(path),
        Disposition::Attachment => HeaderValue::from_static(content_type::BYTES),
    };
    let mut response = serving::serve(path, kind, asked).await?;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_DISPOSITION, disposition.header(path));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_are_read() {
        let shape = |preview: &str, channel: &str| {
            let pairs = [("preview", preview), ("channel", channel)];
            let pairs = pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
            Shape::asked(&Asked(pairs.filter(|(_, value)| !value.is_empty()).collect()))
        };
        let jpeg = |quality| Shape::Preview { format: PreviewFormat::Jpeg(quality), without_alpha: false };
        let webp =
            |quality, without_alpha| Shape::Preview { format: PreviewFormat::Webp(quality), without_alpha };
        assert_eq!(shape("webp;50", ""), webp(50, false));
        assert_eq!(shape("webp;90", "rgb"), webp(90, true));
        assert_eq!(shape("jpeg", ""), jpeg(90));
        assert_eq!(shape("jpeg;70", ""), jpeg(70));
        assert_eq!(shape("jpeg;0", ""), jpeg(1));
        assert_eq!(shape("jpeg;99999999999999999999", ""), jpeg(100));
        assert_eq!(shape("jpeg;70", "rgba"), webp(70, false));
        assert_eq!(shape("gif;70", ""), webp(70, false));
        assert_eq!(shape("", "rgb"), Shape::Colours);
        assert_eq!(shape("", "a"), Shape::Alpha);
        assert_eq!(shape("", "rgba"), Shape::AsStored);
        assert_eq!(shape("", "other"), Shape::AsStored);
    }

    #[test]
    fn names_stay_readable_in_headers() {
        let header = |name: &str| Disposition::Inline.header(Path::new(name));
        assert_eq!(header("a b.png"), "filename=\"a b.png\"");
        assert_eq!(header("a\"b.png"), "filename=\"a\\\"b.png\"");
        let expected = "filename=\"é.png\"; filename*=UTF-8''%C3%A9.png";
        assert_eq!(header("é.png").as_bytes(), expected.as_bytes());
        assert_eq!(Disposition::Attachment.header(Path::new("a.html")), "attachment; filename=\"a.html\"");
    }
}
