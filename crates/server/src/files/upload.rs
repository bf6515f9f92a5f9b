//! `POST /upload/image` and `/upload/mask`: files for the input, output and temp folders.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::multipart::Field;
use axum::extract::{Multipart, Request, State};
use axum::middleware::map_request;
use axum::routing::post;
use runtime::folders::Place;
use serde::Deserialize;
use serde_json::json as value;

use super::names::{place_to_write, relative};
use super::pace::Paced;
use super::reply::{Answer, Refusal, blocking, json};
use super::storing::{Kept, Received, Receiving};
use super::{Files, Shared};

/// The longest text of a form beside its file.
const MAX_TEXT_BYTES: usize = 64 * 1024;

pub(super) fn routes() -> Router<Shared> {
    Router::new()
        .route("/upload/image", post(upload_image))
        .route("/upload/mask", post(upload_mask))
        .layer(map_request(async |request: Request| request.map(|body| Body::new(Paced::new(body)))))
}

async fn upload_image(State(files): State<Shared>, form: Multipart) -> Answer {
    let form = Form::read(&files, form).await?;
    let target = Target::of(&form)?;
    let (_, received) = form.file.ok_or(NO_FILE)?;
    save(files, target, received).await
}

/// Stores the picture that the form names, with the transparency of the picture that it brings.
async fn upload_mask(State(files): State<Shared>, form: Multipart) -> Answer {
    let form = Form::read(&files, form).await?;
    let target = Target::of(&form)?;
    let original: Original = serde_json::from_str(&form.original_ref)
        .map_err(|_| Refusal::Malformed("`original_ref` must be JSON with the `filename` of a picture"))?;
    let place = original.place.as_deref().unwrap_or("output");
    let original = files.placed(&original.filename, place, &original.subfolder)?;
    let (_, mask) = form.file.ok_or(NO_FILE)?;
    let masked = files
        .with_picture(original, move |picture| Ok(nodes::picture::with_alpha_of(picture, &mask.read()?)?))
        .await?;
    let folder = files.config.folders.temp.clone();
    let received = blocking(move || Ok(Received::of(&masked, &folder)?)).await?;
    save(files, target, received).await
}

const NO_FILE: Refusal = Refusal::Malformed("the form has no file in `image`");

/// The picture that a mask is for.
#[derive(Deserialize)]
struct Original {
    filename: String,
    #[serde(default)]
    subfolder: String,
    #[serde(rename = "type")]
    place: Option<String>,
}

/// What a form says. The file may come before the words that say where it belongs.
#[derive(Default)]
struct Form {
    file: Option<(String, Received)>,
    place: Option<String>,
    subfolder: String,
    overwrite: String,
    original_ref: String,
}

impl Form {
    async fn read(files: &Files, mut parts: Multipart) -> Answer<Form> {
        let mut form = Form::default();
        while let Some(field) = parts.next_field().await? {
            match field.name().unwrap_or_default() {
                "image" if form.file.is_none() => form.file = receive(files, field).await?,
                "type" => form.place = Some(text(field).await?),
                "subfolder" => form.subfolder = text(field).await?,
                "overwrite" => form.overwrite = text(field).await?,
                "original_ref" => form.original_ref = text(field).await?,
                _ => {}
            }
        }
        Ok(form)
    }
}

async fn receive(files: &Files, field: Field<'_>) -> Answer<Option<(String, Received)>> {
    let Some(name) = field.file_name().map(str::to_owned) else { return Ok(None) };
    let config = &files.config;
    Ok(Some((name, receive_field(field, config.folders.temp.clone(), config.max_upload_bytes).await?)))
}

/// Receives the file of a form into a folder.
pub(crate) async fn receive_field(mut field: Field<'_>, folder: PathBuf, max_bytes: u64) -> Answer<Received> {
    let mut receiving = Receiving::start(folder, max_bytes).await?;
    while let Some(bytes) = field.chunk().await? {
        receiving.add(&bytes).await?;
    }
    receiving.finish().await
}

/// Reads a short text of a form.
pub(crate) async fn text(mut field: Field<'_>) -> Answer<String> {
    let mut bytes = Vec::new();
    while let Some(piece) = field.chunk().await? {
        if bytes.len() + piece.len() > MAX_TEXT_BYTES {
            return Err(Refusal::Malformed("a text of the form is too long"));
        }
        bytes.extend_from_slice(&piece);
    }
    String::from_utf8(bytes).map_err(|_| Refusal::Malformed("a text of the form is not UTF-8"))
}

/// Where an upload belongs.
struct Target {
    place: Place,
    /// As the client wrote it, which it gets back.
    subfolder: String,
    /// Below the sub-folder.
    name: PathBuf,
    /// Below the folder of the place.
    path: PathBuf,
    overwrite: bool,
}

impl Target {
    fn of(form: &Form) -> Answer<Target> {
        const OUTSIDE: Refusal = Refusal::Malformed("the file name or sub-folder leads out of its folder");
        let (name, _) = form.file.as_ref().ok_or(NO_FILE)?;
        let place = Place::named(form.place.as_deref().unwrap_or("input"));
        let place = place.ok_or(Refusal::Malformed("the type must be input, output or temp"))?;
        let name = relative(name).map_err(|_| OUTSIDE)?;
        if name.as_os_str().is_empty() {
            return Err(Refusal::Malformed("the file has no name"));
        }
        let path = relative(&form.subfolder).map_err(|_| OUTSIDE)?.join(&name);
        let overwrite = matches!(form.overwrite.as_str(), "true" | "1");
        Ok(Target { place, subfolder: form.subfolder.clone(), name, path, overwrite })
    }
}

/// Gives an upload its name: as asked, or with a number if another file has it.
async fn save(files: Arc<Files>, target: Target, received: Received) -> Answer {
    if !target.overwrite {
        files.bring(target.place, &files.config.folders.directory(target.place).join(&target.path)).await;
    }
    blocking(move || {
        let root = files.config.folders.directory(target.place);
        let path = place_to_write(root, &target.path).map_err(|refusal| match refusal {
            Refusal::Outside => Refusal::Malformed("the sub-folder is a link out of its folder"),
            other => other,
        })?;
        let name = if target.overwrite {
            received.replace(&path)?;
            target.name
        } else {
            let number = keep_numbered(received, &path)?;
            numbered(&target.name, number)
        };
        let stored = target.path.with_file_name(name.file_name().unwrap_or_default());
        files.share(target.place, &super::names::wire_path(&stored))?;
        let name = super::names::wire_path(&name);
        Ok(json(&value!({ "name": name, "subfolder": target.subfolder, "type": target.place.name() })))
    })
    .await
}

/// The number under which an upload is found: 0 for the name itself. A file that has just its bytes is it already.
pub(super) fn keep_numbered(mut received: Received, path: &Path) -> Answer<u32> {
    for number in 0..u32::MAX {
        let candidate = numbered(path, number);
        match received.keep(&candidate)? {
            Kept::New => return Ok(number),
            Kept::Taken(other) if other.equals(&candidate)? => return Ok(number),
            Kept::Taken(other) => received = other,
        }
    }
    Err(Refusal::Exists)
}

/// `stem (1).ext` for number 1; the name itself for 0.
pub(super) fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = path.file_stem().unwrap_or_default().to_owned();
    name.push(format!(" ({number})"));
    if let Some(ending) = path.extension() {
        name.push(".");
        name.push(ending);
    }
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_before_the_ending() {
        let cases = [
            ("a.png", 0, "a.png"),
            ("a.png", 1, "a (1).png"),
            ("s/a.b.png", 12, "s/a.b (12).png"),
            (".hidden", 1, ".hidden (1)"),
        ];
        for (name, number, expected) in cases {
            assert_eq!(numbered(Path::new(name), number), Path::new(expected));
        }
    }
}
