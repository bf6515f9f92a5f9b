//! The two classes of VideoHelperSuite that workflows begin and end with.

use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Literal, NodeClass, Outcome, Schema, Validates, Value, Verdict,
};
use media::{Conversion, FrameRate, Source};

use super::files::date_of;
use super::saving::{Destination, Movie, texts, webm, with_hidden};
use super::{ReadFrames, Wanted, not_empty, read_frames, sound_of, told};
use crate::image::{Method, Target, file_verdict, scale_image};
use crate::picture::{self, Pace, WebpCoding};
use crate::saving::file_item;
use crate::value::{Audio, Image, VideoPart};
use crate::{Result, Runtime};
use runtime::SavedFile;
use runtime::folders::Place;

/// The pack that they come from.
const PACK: &str = "custom_nodes.comfyui-videohelpersuite";
/// Formats, in the order of the pack's menu as far as they can be written.
const FORMATS: [&str; 5] = ["image/webp", "video/h264-mp4", "video/h265-mp4", "video/webm", "video/av1-webm"];
/// The format that sound is saved in, too.
const WITH_SOUND: &str = "video/h264-mp4";
/// What `crf` is unless it is said.
const USUAL_CRF: f64 = 19.0;
/// How good the frames of a WebP file are, from 0 to 100.
const WEBP_QUALITY: u8 = 80;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(VideoCombine(Arc::clone(runtime)));
    catalogue.add(LoadVideo(Arc::clone(runtime)));
}

struct VideoCombine(Arc<Runtime>);

impl NodeClass for VideoCombine {
    fn schema(&self) -> Schema {
        let schema = Schema::new("VHS_VideoCombine", "Video Helper Suite 🎥🅥🅗🅢")
            .title("Video Combine 🎥🅥🅗🅢")
            .about("Saves pictures as a video or as a picture that moves.")
            .module(PACK)
            .input(Input::socket("images", "IMAGE"))
            .input(Input::float("frame_rate", 8.0, 1.0, 1000.0, 1.0))
            .input(Input::int("loop_count", 0, 0, 100))
            .input(Input::text("filename_prefix", "AnimateDiff"))
            .input(Input::choice("format", FORMATS))
            .input(Input::boolean("pingpong", false))
            .input(Input::boolean("save_output", true))
            .input(Input::socket("audio", "AUDIO").optional())
            .input(Input::socket("meta_batch", "VHS_BatchManager").optional())
            .input(Input::socket("vae", "VAE").optional())
            .input(Input::float("crf", USUAL_CRF, 0.0, 100.0, 1.0).optional())
            .input(Input::boolean("save_metadata", true).optional())
            .input(Input::boolean("trim_to_audio", false).optional())
            .input(Input::text("pix_fmt", "yuv420p").optional());
        with_hidden(schema).named_output("VHS_FILENAMES", "Filenames")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        for input in ["meta_batch", "vae"] {
            if call.inputs.first(input).is_some_and(|given| !given.is_none()) {
                return Err(Failure::value(format!(
                    "{input} cannot be used yet; unlink it and give pictures"
                )));
            }
        }
        let images = call.object::<Image>("images")?;
        not_empty(&images)?;
        let saved = self.save(call, &images)?;
        let is_kept = call.boolean("save_output")?;
        let format = call.text("format")?;
        let Literal::Map(mut item) = file_item(&saved.name, &saved.subfolder, saved.place) else {
            return Err(Failure::value("a saved file has no name"));
        };
        item.insert("format".to_owned(), format.into());
        item.insert("frame_rate".to_owned(), call.float("frame_rate")?.into());
        let name = match saved.subfolder.as_str() {
            "" => saved.name.clone(),
            folder => format!("{folder}/{}", saved.name),
        };
        let names = Literal::List(vec![is_kept.into(), Literal::List(vec![Literal::Text(name)])]);
        let ui = graph::map([("gifs", Literal::List(vec![Literal::Map(item)]))]);
        Ok(Outcome::values([Value::Literal(names)]).with_ui(ui))
    }
}

impl VideoCombine {
    fn save(&self, call: &Call, images: &Image) -> Result<SavedFile, Failure> {
        let given = |input: &str| call.inputs.first(input).is_some_and(|given| !given.is_none());
        let quality = if given("crf") { call.float("crf")? } else { USUAL_CRF };
        let has_texts = !given("save_metadata") || call.boolean("save_metadata")?;
        let (format, loops) = (call.text("format")?, call.size("loop_count")?);
        let audio = call.object_if_given::<Audio>("audio")?;
        if audio.is_some() && format != WITH_SOUND {
            return Err(Failure::value(format!(
                "{format} is saved without sound: choose {WITH_SOUND}, or unlink audio"
            )));
        }
        let pixels = if given("pix_fmt") { call.text("pix_fmt")? } else { "" };
        let pixels = pixel_format(format, pixels)?;
        let rate = call.float("frame_rate")?;
        let mut order = shown(images.batch, call.boolean("pingpong")?);
        if format.starts_with("video/") {
            order = order.repeat(loops + 1);
        }
        if let Some(audio) = audio.as_ref().filter(|_| given("trim_to_audio")) {
            let frames = (audio.shape[2] as f64 / f64::from(audio.rate) * rate).ceil() as usize;
            order.truncate(if call.boolean("trim_to_audio")? { frames.max(1) } else { order.len() });
        }
        let place = if call.boolean("save_output")? { Place::Output } else { Place::Temp };
        let to = Destination { place, prefix: call.text("filename_prefix")? };
        let movie = Movie {
            images,
            order,
            audio: audio.as_deref(),
            rate: FrameRate::of(rate).map_err(told)?,
            quality,
            texts: if has_texts { texts(&self.0, call) } else { Vec::new() },
        };
        let runtime = &self.0;
        let ffmpeg = |extension, conversion| movie.save_by_ffmpeg(runtime, call, to, (extension, conversion));
        let saved = match format {
            WITH_SOUND => movie.save_mp4(runtime, call, to)?,
            "video/h265-mp4" => ffmpeg("mp4", hevc(quality, pixels))?,
            "video/webm" => ffmpeg("webm", webm("vp9", quality, pixels))?,
            "video/av1-webm" => ffmpeg("webm", webm("av1", quality, pixels))?,
            _ => {
                let mut saving =
                    runtime.outputs().begin(to.place, to.prefix, (images.width, images.height))?;
                let images = images.frames(movie.order.iter().copied())?;
                let times = u16::try_from(loops).unwrap_or(u16::MAX);
                let pace = Pace { frame_ms: (1000.0 / rate) as u64, times };
                let bytes = picture::animated_webp(
                    &images,
                    pace,
                    WebpCoding::of_quality(WEBP_QUALITY),
                    &movie.texts,
                )?;
                saving.save(0, "webp", &bytes)?
            }
        };
        Ok(saved)
    }
}

/// How ffmpeg writes HEVC.
fn hevc(crf: f64, pixels: &str) -> Conversion {
    let words = ["-c:v", "libx265", "-pix_fmt", pixels, "-tag:v", "hvc1", "-crf", &crf.to_string()];
    Conversion {
        format: "HEVC",
        instead: "the format video/h264-mp4",
        input: Vec::new(),
        output: words.map(str::to_owned).to_vec(),
    }
}

/// The order of frames: as they are, or with the way back, without the first and the last twice.
fn shown(frames: usize, is_there_and_back: bool) -> Vec<usize> {
    let back = if is_there_and_back { 1..frames.saturating_sub(1) } else { 0..0 };
    (0..frames).chain(back.rev()).collect()
}

/// How a format keeps pixels: as asked for, or its usual way if nothing is.
fn pixel_format(format: &str, asked: &str) -> Result<&'static str, Failure> {
    let known: &[&'static str] = match format {
        "video/h265-mp4" | "video/av1-webm" => &["yuv420p10le", "yuv420p"],
        "video/webm" => &["yuv420p", "yuva420p"],
        // Pictures have no such choice, and H.264 is written in eight bits.
        _ => &["yuv420p"],
    };
    match known.iter().find(|known| **known == asked) {
        Some(known) => Ok(known),
        None if asked.is_empty() => Ok(known[0]),
        None if !format.starts_with("video/") => Ok(known[0]),
        None => Err(Failure::value(format!(
            "pix_fmt is {asked:?}, which {format} is not written in here: choose {}",
            known.join(" or ")
        ))),
    }
}

struct LoadVideo(Arc<Runtime>);

impl NodeClass for LoadVideo {
    fn schema(&self) -> Schema {
        let files = self.0.outputs().videos(Place::Input);
        Schema::new("VHS_LoadVideo", "Video Helper Suite 🎥🅥🅗🅢")
            .title("Load Video (Upload) 🎥🅥🅗🅢")
            .about("Loads frames of a video of the input folder.")
            .module(PACK)
            .input(Input::choice("video", files.iter().map(String::as_str)).with("video_upload", true))
            .input(Input::float("force_rate", 0.0, 0.0, 60.0, 1.0))
            .input(Input::int("custom_width", 0, 0, 8192))
            .input(Input::int("custom_height", 0, 0, 8192))
            .input(Input::int("frame_load_cap", 0, 0, u64::from(u32::MAX)))
            .input(Input::int("skip_first_frames", 0, 0, u64::from(u32::MAX)))
            .input(Input::int("select_every_nth", 1, 1, u64::from(u32::MAX)))
            .input(Input::socket("meta_batch", "VHS_BatchManager").optional())
            .input(Input::socket("vae", "VAE").optional())
            .input(Input::text("format", "AnimateDiff").optional())
            .named_output("IMAGE", "IMAGE")
            .named_output("INT", "frame_count")
            .named_output("AUDIO", "audio")
            .named_output("VHS_VIDEOINFO", "video_info")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        for input in ["meta_batch", "vae"] {
            if call.inputs.first(input).is_some_and(|given| !given.is_none()) {
                return Err(Failure::value(format!("{input} cannot be used yet; unlink it")));
            }
        }
        let source = Source::Path(self.0.outputs().path(call.text("video")?)?);
        let rate = Some(call.float("force_rate")?).filter(|rate| *rate > 0.0);
        let most = Some(call.size("frame_load_cap")?).filter(|most| *most > 0);
        let (skip, every) = (call.size("skip_first_frames")?, call.size("select_every_nth")?.max(1));
        let wanted = Wanted { part: VideoPart::default(), skip, every, most, rate };
        let read = read_frames(&self.0.host, &source, &wanted)?;
        let fps = rate.unwrap_or(read.source_rate.fps());
        let seconds = read.images.batch as f64 / read.rate.fps();
        let part = VideoPart { start: skip as f64 / fps, duration: Some(seconds) };
        let audio = sound_of(&self.0.host, &source, part, read.seconds)?;
        let images = scaled(&read.images, call.size("custom_width")?, call.size("custom_height")?)?;
        let info = info(&read, &images);
        let audio = audio.map_or(Value::Literal(Literal::Null), Value::object);
        let count = Value::Literal(Literal::from(images.batch));
        Ok(Outcome::values([Value::object(images), count, audio, Value::Literal(info)]))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(date_of(&self.0, call.text("video")?)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["video"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(self.0.outputs(), given, "video", "Invalid video file"))
    }
}

/// Frames in another size; a side that is 0 follows the other.
fn scaled(images: &Image, width: usize, height: usize) -> Result<Image> {
    let follow = |side: usize, own: usize, other: usize| (side * own / other.max(1)).max(1);
    let (width, height) = match (width, height) {
        (0, 0) => return Ok(images.clone()),
        (width, 0) => (width, follow(width, images.height, images.width)),
        (0, height) => (follow(height, images.width, images.height), height),
        both => both,
    };
    if (width, height) == (images.width, images.height) {
        return Ok(images.clone());
    }
    scale_image(images, Target::cropped(width, height), Method::Lanczos)
}

/// What other nodes of the pack ask of a video.
fn info(read: &ReadFrames, images: &Image) -> Literal {
    let numbers = [
        ("source_fps", read.source_rate.fps().into()),
        ("source_frame_count", Literal::from(read.source_frames)),
        ("source_duration", read.seconds.into()),
        ("source_width", Literal::from(read.images.width)),
        ("source_height", Literal::from(read.images.height)),
        ("loaded_fps", read.rate.fps().into()),
        ("loaded_frame_count", Literal::from(images.batch)),
        ("loaded_duration", (images.batch as f64 / read.rate.fps()).into()),
        ("loaded_width", Literal::from(images.width)),
        ("loaded_height", Literal::from(images.height)),
    ];
    Literal::Map(graph::map(numbers))
}
