//! Videos that are saved: frames go to the writer one by one, and the file gets its name when it is whole.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Hidden, Input, Literal, NodeClass, Outcome, Schema};
use media::{Conversion, FrameRate, Mp4Writer, VideoPlan, write_with_ffmpeg};

use super::{Components, components, frame_bytes, not_empty, told};
use crate::saving::{file_item, provenance};
use crate::value::{Audio, Image, Video};
use crate::{Error, Result, Runtime};
use runtime::SavedFile;
use runtime::folders::Place;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(SaveVideo(Arc::clone(runtime)));
    catalogue.add(SaveWebm(Arc::clone(runtime)));
}

/// How much is lost where nodes do not say, as x264's `crf` counts.
const USUAL_QUALITY: f64 = 20.0;

/// A video that is to be saved.
pub(super) struct Movie<'a> {
    pub(super) images: &'a Image,
    /// Which of them, in the order in which they are shown.
    pub(super) order: Vec<usize>,
    pub(super) audio: Option<&'a Audio>,
    pub(super) rate: FrameRate,
    /// Less is better, as x264's `crf` counts.
    pub(super) quality: f64,
    /// How it was made.
    pub(super) texts: Vec<(String, String)>,
}

/// Where a video is saved.
#[derive(Clone, Copy)]
pub(super) struct Destination<'a> {
    pub(super) place: Place,
    pub(super) prefix: &'a str,
}

impl Movie<'_> {
    /// Saves it as MP4 with H.264, frame by frame.
    pub(super) fn save_mp4(&self, runtime: &Runtime, call: &Call, to: Destination<'_>) -> Result<SavedFile> {
        let (width, height) = (self.images.width, self.images.height);
        if width % 2 == 1 || height % 2 == 1 {
            tracing::info!(
                "{width}x{height}: the last odd row or column is left out, as H.264 has pixels in pairs"
            );
        }
        let mut saving = runtime.outputs().begin(to.place, to.prefix, (width, height))?;
        saving.save_draft(0, "mp4", &mut |draft| {
            let plan = VideoPlan {
                width,
                height,
                rate: self.rate,
                quality: self.quality,
                sound: self.audio.map(|audio| audio.sound(0)),
                texts: self.texts.clone(),
            };
            let mut writer = Mp4Writer::new(draft.file(), plan).map_err(told)?;
            self.frames(call, |frame| writer.frame(frame).map_err(told))?;
            writer.finish().map_err(told)?;
            Ok(())
        })
    }

    /// Has ffmpeg save it in another format.
    pub(super) fn save_by_ffmpeg(
        &self,
        runtime: &Runtime,
        call: &Call,
        to: Destination<'_>,
        (extension, mut conversion): (&str, Conversion),
    ) -> Result<SavedFile> {
        let (width, height) = (self.images.width, self.images.height);
        let rate = format!("{}/{}", self.rate.frames, self.rate.seconds);
        let input = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", &format!("{width}x{height}"), "-r", &rate];
        conversion.input = input.map(str::to_owned).to_vec();
        for (key, value) in &self.texts {
            conversion.output.extend(["-metadata".to_owned(), format!("{key}={value}")]);
        }
        conversion.output.extend(["-f".to_owned(), extension.to_owned()]);
        let mut saving = runtime.outputs().begin(to.place, to.prefix, (width, height))?;
        saving.save_draft(0, extension, &mut |draft| {
            let written = write_with_ffmpeg(&conversion, draft.path(), |pipe| {
                self.frames(call, |frame| {
                    pipe.write_all(frame)
                        .map_err(|error| Error::Told(format!("ffmpeg takes no more frames: {error}")))
                })
                .map_err(Fed::Node)
            });
            written.map_err(Fed::into_error)
        })
    }

    /// Gives each frame in 8 bits, one at a time.
    fn frames(&self, call: &Call, mut each: impl FnMut(&[u8]) -> Result<()>) -> Result<()> {
        for (shown, index) in self.order.iter().enumerate() {
            if call.check().is_err() {
                return Err(Error::Device(device::Error::Cancelled));
            }
            each(&frame_bytes(self.images, *index))?;
            // A job that is to end is noticed by the question above, for the next frame.
            let _ = call.plain_progress((shown + 1) as f64, self.order.len() as f64);
        }
        Ok(())
    }
}

/// What failed while ffmpeg was fed.
enum Fed {
    Media(media::Error),
    Node(Error),
}

impl From<media::Error> for Fed {
    fn from(error: media::Error) -> Fed {
        Fed::Media(error)
    }
}

impl Fed {
    fn into_error(self) -> Error {
        match self {
            Fed::Media(error) => told(error),
            Fed::Node(error) => error,
        }
    }
}

/// How a video was made, for writing into it: what workflows are saved with, then the prompt.
pub(super) fn texts(runtime: &Runtime, call: &Call) -> Vec<(String, String)> {
    provenance(runtime, call)
}

/// What clients show of a video.
pub(super) fn shown(file: &SavedFile) -> graph::Map {
    let item = file_item(&file.name, &file.subfolder, file.place);
    graph::map([("images", Literal::List(vec![item])), ("animated", Literal::List(vec![true.into()]))])
}

pub(super) fn with_hidden(schema: Schema) -> Schema {
    schema.hidden("prompt", Hidden::Prompt).hidden("extra_pnginfo", Hidden::ExtraPngInfo).output_node()
}

struct SaveVideo(Arc<Runtime>);

impl NodeClass for SaveVideo {
    fn schema(&self) -> Schema {
        let prefix = Input::text("filename_prefix", "video/ComfyUI").tooltip(
            "The start of the file name, with folders if wanted. %date:yyyy-MM-dd%, %Empty Latent Image.width% and \
             the like are filled in.",
        );
        let schema = Schema::new("SaveVideo", "image/video")
            .title("Save Video")
            .about("Saves a video in the output folder, with the workflow that made it.")
            .input(Input::socket("video", "VIDEO").tooltip("The video to save."))
            .input(prefix)
            .input(Input::choice("format", ["auto", "mp4"]).with("default", "auto"))
            .input(Input::choice("codec", ["auto", "h264"]).with("default", "auto"))
            .module("comfy_extras.nodes_video");
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let video = call.object::<Video>("video")?;
        let Components { images, audio, rate } = components(&self.0.host, &video)?;
        not_empty(&images)?;
        let movie = Movie {
            images: &images,
            order: (0..images.batch).collect(),
            audio: audio.as_ref(),
            rate,
            quality: USUAL_QUALITY,
            texts: texts(&self.0, call),
        };
        let to = Destination { place: Place::Output, prefix: call.text("filename_prefix")? };
        let file = movie.save_mp4(&self.0, call, to)?;
        Ok(Outcome::default().with_ui(shown(&file)))
    }
}

struct SaveWebm(Arc<Runtime>);

impl NodeClass for SaveWebm {
    fn schema(&self) -> Schema {
        let crf = Input::float("crf", 32.0, 0.0, 63.0, 1.0)
            .tooltip("More is worse and smaller. The file is written by ffmpeg, which has to be installed.");
        let mut schema = Schema::new("SaveWEBM", "image/video")
            .about("Saves pictures as a WebM video.")
            .input(Input::socket("images", "IMAGE"))
            .input(Input::text("filename_prefix", "ComfyUI"))
            .input(Input::choice("codec", ["vp9", "av1"]))
            .input(Input::float("fps", 24.0, 0.01, 1000.0, 0.01))
            .input(crf)
            .module("comfy_extras.nodes_video");
        schema.is_experimental = true;
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let images = call.object::<Image>("images")?;
        not_empty(&images)?;
        let rate = FrameRate::of(call.float("fps")?).map_err(told)?;
        let quality = call.float("crf")?;
        let order = (0..images.batch).collect();
        let movie = Movie { images: &images, order, audio: None, rate, quality, texts: texts(&self.0, call) };
        let to = Destination { place: Place::Output, prefix: call.text("filename_prefix")? };
        let codec = call.text("codec")?;
        let pixels = if codec == "av1" { "yuv420p10le" } else { "yuv420p" };
        let conversion = webm(codec, quality, pixels);
        let file = movie.save_by_ffmpeg(&self.0, call, to, ("webm", conversion))?;
        Ok(Outcome::default().with_ui(shown(&file)))
    }
}

/// How ffmpeg writes WebM.
pub(super) fn webm(codec: &str, crf: f64, pixels: &str) -> Conversion {
    let crf = crf.to_string();
    let output: &[&str] = match codec {
        "av1" => &["-c:v", "libsvtav1", "-pix_fmt", pixels, "-preset", "6", "-b:v", "0", "-crf", &crf],
        _ => &["-c:v", "libvpx-vp9", "-pix_fmt", pixels, "-b:v", "0", "-crf", &crf],
    };
    Conversion {
        format: "WebM",
        instead: "SaveVideo, which writes MP4",
        input: Vec::new(),
        output: output.iter().map(|&word| word.to_owned()).collect(),
    }
}
