//! Videos and sound: made, loaded, cut, saved. What files are made of is `media`'s.

mod files;
mod round_trip;
mod saving;
mod sound;
mod vhs;

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Literal, Outcome, Value};
use media::{FrameRate, Sound, Source, VideoReader};

use crate::class::class;
use crate::value::{Audio, Image, Video, VideoPart};
use crate::wanted::still_wanted;
use crate::{Error, Result, Runtime};
use runtime::host::Host;

pub(crate) use round_trip::through_codec;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CreateVideo(Arc::clone(runtime)));
    catalogue.add(GetVideoComponents(Arc::clone(runtime)));
    files::add(catalogue, runtime);
    saving::add(catalogue, runtime);
    sound::add(catalogue, runtime);
    vhs::add(catalogue, runtime);
}

/// Frames of 8 bits that take as much memory as one value.
const VALUES_IN_BYTES: usize = 4;

/// An error of files, as nodes tell it.
#[expect(clippy::needless_pass_by_value, reason = "it stands where errors are mapped")]
fn told(error: media::Error) -> Error {
    Error::Told(error.to_string())
}

/// An error of a file that was read: a job that was to end says so itself.
fn read_badly(error: media::Error) -> Error {
    match (error, still_wanted()) {
        (media::Error::Cancelled, Err(cancelled)) => cancelled,
        (error, _) => told(error),
    }
}

class! {
    /// Pictures one after the other as a video.
    CreateVideo in "image/video";
    |schema| schema
        .about("Makes a video of pictures.")
        .input(Input::socket("images", "IMAGE").tooltip("The frames."))
        .input(Input::float("fps", 30.0, 1.0, 120.0, 1.0))
        .input(Input::socket("audio", "AUDIO").optional().tooltip("What is heard."))
        .title("Create Video")
        .module("comfy_extras.nodes_video")
        .output("VIDEO");
    |runtime, call| {
        let images = Image::clone(&*call.object::<Image>("images")?);
        let audio = call.object_if_given::<Audio>("audio")?.map(|audio| Audio::clone(&audio));
        let rate = FrameRate::of(call.float("fps")?).map_err(told)?;
        Ok(Outcome::object(Video::Made { images, audio, rate }))
    }
}

class! {
    /// The frames, the sound and the rate of a video.
    GetVideoComponents in "image/video";
    |schema| schema
        .about("Takes a video apart: frames, sound and frames per second.")
        .input(Input::socket("video", "VIDEO"))
        .title("Get Video Components")
        .module("comfy_extras.nodes_video")
        .named_output("IMAGE", "images")
        .named_output("AUDIO", "audio")
        .named_output("FLOAT", "fps");
    |runtime, call| {
        let video = call.object::<Video>("video")?;
        let Components { images, audio, rate } = components(&runtime.host, &video)?;
        let audio = audio.map_or(Value::Literal(Literal::Null), Value::object);
        Ok(Outcome::values([Value::object(images), audio, Value::Literal(Literal::Float(rate.fps()))]))
    }
}

/// What a video is made of.
struct Components {
    images: Image,
    audio: Option<Audio>,
    rate: FrameRate,
}

fn components(host: &Host, video: &Video) -> Result<Components> {
    match video {
        Video::Made { images, audio, rate } => {
            Ok(Components { images: images.clone(), audio: audio.clone(), rate: *rate })
        }
        Video::File { path, part } => {
            let source = Source::Path(path.clone());
            let frames = read_frames(host, &source, &Wanted::part(*part))?;
            let audio = sound_of(host, &source, *part, frames.seconds)?;
            Ok(Components { images: frames.images, audio, rate: frames.rate })
        }
    }
}

/// The sound of a file, for as long as the job is wanted.
fn read_sound(source: &Source) -> Result<Sound> {
    Sound::read_while(source, &|| still_wanted().is_ok()).map_err(read_badly)
}

/// The sound of a part of a file, if it has any.
fn sound_of(host: &Host, source: &Source, part: VideoPart, seconds: f64) -> Result<Option<Audio>> {
    let sound = match Sound::read_while(source, &|| still_wanted().is_ok()) {
        Ok(sound) => sound,
        Err(media::Error::NoSound { .. }) => return Ok(None),
        // A video whose sound is in an unknown codec is still a video.
        Err(error @ media::Error::Codec { .. }) => {
            tracing::warn!("{error}; the video is used without its sound");
            return Ok(None);
        }
        Err(error) => return Err(read_badly(error)),
    };
    Ok(Some(Audio::of_sound(host, &cut(sound, part, seconds))?))
}

/// A part of a sound.
fn cut(mut sound: Sound, part: VideoPart, seconds: f64) -> Sound {
    let rate = f64::from(sound.rate);
    let at = |time: f64| (time.max(0.0) * rate).round() as usize;
    let start = if part.start < 0.0 { seconds + part.start } else { part.start };
    for channel in &mut sound.channels {
        let first = at(start).min(channel.len());
        let end = part.duration.map_or(channel.len(), |duration| (first + at(duration)).min(channel.len()));
        *channel = channel[first..end].to_vec();
    }
    sound
}

/// Which frames of a file are read.
struct Wanted {
    part: VideoPart,
    /// Frames that are left out at the start of the part.
    skip: usize,
    /// Every so many of what is left.
    every: usize,
    /// At most so many in the end.
    most: Option<usize>,
    /// As if the video had so many frames a second.
    rate: Option<f64>,
}

impl Wanted {
    fn part(part: VideoPart) -> Wanted {
        Wanted { part, skip: 0, every: 1, most: None, rate: None }
    }
}

/// The time of a video that is wanted, in seconds from its first frame.
struct Span {
    start: f64,
    end: f64,
}

/// What times may be off by, in seconds: files keep them in whole units.
const ROUNDING: f64 = 1e-3;

impl Span {
    /// A part of a video of some length; none if it is counted from an end that is not known.
    fn of(part: VideoPart, length: Option<f64>) -> Option<Span> {
        let start = if part.start < 0.0 { (length? + part.start).max(0.0) } else { part.start };
        Some(Span { start, end: part.duration.map_or(f64::INFINITY, |duration| start + duration) })
    }

    /// Whether a frame that is shown from a time on is in it.
    fn holds(&self, time: f64) -> bool {
        time >= self.start - ROUNDING && !self.is_behind(time)
    }

    /// Whether it is over when a frame is shown.
    fn is_behind(&self, time: f64) -> bool {
        time >= self.end - ROUNDING
    }
}

/// Frames that were read.
struct ReadFrames {
    images: Image,
    rate: FrameRate,
    /// How long the whole video is.
    seconds: f64,
    /// The frames that the file has.
    source_frames: usize,
    source_rate: FrameRate,
}

/// Reads frames of a file. They are in 8 bits, counted as they come, until all are there.
fn read_frames(host: &Host, source: &Source, wanted: &Wanted) -> Result<ReadFrames> {
    let mut reader = VideoReader::open_while(source, &|| still_wanted().is_ok()).map_err(read_badly)?;
    let source_rate = reader.info.rate;
    let length = reader.info.seconds;
    let part = Span::of(wanted.part, length).ok_or_else(|| {
        let name = source.name();
        Error::Told(format!(
            "{name} does not say how long it is: choose a start that is counted from its beginning"
        ))
    })?;
    let (mut held, mut frames, mut seen) = (Vec::new(), Vec::<Vec<u8>>::new(), 0usize);
    let mut size = (reader.info.width, reader.info.height);
    let (mut given, mut began) = (0usize, None);
    while let Some(frame) = reader.next_frame().map_err(told)? {
        still_wanted()?;
        let (time, ends) = (reader.time(seen), reader.time(seen + 1));
        if length.is_some() && part.is_behind(time) {
            break;
        }
        seen += 1;
        if !part.holds(time) {
            continue;
        }
        let began = *began.get_or_insert(time);
        if frames.is_empty() {
            size = (frame.width, frame.height);
        } else if size != (frame.width, frame.height) {
            return Err(Error::Told(format!(
                "{}: its frames change from {}x{} to {}x{} pixels; convert it to one size",
                source.name(),
                size.0,
                size.1,
                frame.width,
                frame.height
            )));
        }
        // The frames of another rate that lie within this one's time; without one all frames as they are.
        let until = wanted.rate.map_or(given + 1, |fps| ((ends - began) * fps + 1e-6).floor() as usize);
        while given < until {
            let chosen = given >= wanted.skip && (given - wanted.skip).is_multiple_of(wanted.every.max(1));
            given += 1;
            if chosen && wanted.most.is_none_or(|most| frames.len() < most) {
                held.push(host.room(&[frame.rgb.len() / VALUES_IN_BYTES + 1])?);
                frames.push(frame.rgb.clone());
            }
        }
        if wanted.most.is_some_and(|most| frames.len() >= most) && wanted.part.duration.is_none() {
            break;
        }
    }
    if frames.is_empty() {
        return Err(Error::Told(format!("{}: no frames are in the part that was asked for", source.name())));
    }
    let shape = [frames.len(), size.1, size.0, 3];
    let values = frames.iter().flatten().map(|byte| f32::from(*byte) / 255.0);
    let images = Image::collect(host, shape, values)?;
    let fps = wanted.rate.unwrap_or(source_rate.fps());
    let rate = FrameRate::of(fps / wanted.every.max(1) as f64).unwrap_or(source_rate);
    let seconds = length.unwrap_or(reader.time(seen));
    let source_frames = reader.info.frames.map_or(seen, |frames| frames as usize);
    Ok(ReadFrames { images, rate, seconds, source_frames, source_rate })
}

/// A frame of a batch in 8 bits, red, green and blue.
fn frame_bytes(images: &Image, index: usize) -> Vec<u8> {
    let byte = |value: &f32| (value * 255.0).clamp(0.0, 255.0) as u8;
    let mut bytes = Vec::with_capacity(images.height * images.width * 3);
    for pixel in images.frame(index).chunks_exact(images.channels.max(1)) {
        bytes.extend((0..3).map(|at| pixel.get(at).or(pixel.first()).map_or(0, byte)));
    }
    bytes
}

/// What is said of an empty batch.
fn not_empty(images: &Image) -> Result<(), Failure> {
    if images.batch == 0 {
        return Err(Failure::value("there is no picture in the batch; check the node that made it"));
    }
    Ok(())
}

/// The text of a call's optional input.
fn text_or<'a>(call: &'a Call, input: &str, absent: &'a str) -> Result<&'a str, Failure> {
    if call.inputs.first(input).is_some() { call.text(input) } else { Ok(absent) }
}
