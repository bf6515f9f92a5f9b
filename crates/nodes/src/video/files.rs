//! Videos from files, and parts of videos.

use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Literal, NodeClass, Outcome, Schema, Validates, Verdict,
};

use super::Components;
use crate::class::class;
use crate::image::file_verdict;
use crate::value::{Audio, Video, VideoPart};
use crate::{Error, Result, Runtime};
use runtime::folders::Place;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LoadVideo(Arc::clone(runtime)));
    catalogue.add(VideoSlice(Arc::clone(runtime)));
}

/// The length and the date of a file: large files are not read to see whether they changed.
pub(super) fn date_of(runtime: &Runtime, name: &str) -> Result<Literal> {
    let path = runtime.outputs().path(name)?;
    let about = std::fs::metadata(&path).map_err(|source| Error::Io { path, source })?;
    Ok(Literal::Text(format!("{} {:?}", about.len(), about.modified().ok())))
}

struct LoadVideo(Arc<Runtime>);

impl NodeClass for LoadVideo {
    fn schema(&self) -> Schema {
        let files = self.0.outputs().videos(Place::Input);
        Schema::new("LoadVideo", "image/video")
            .title("Load Video")
            .about("Loads a video from the input folder.")
            .input(Input::choice("file", files.iter().map(String::as_str)).with("video_upload", true))
            .module("comfy_extras.nodes_video")
            .output("VIDEO")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let path = self.0.outputs().path(call.text("file")?)?;
        Ok(Outcome::object(Video::File { path, part: VideoPart::default() }))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(date_of(&self.0, call.text("file")?)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["file"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(self.0.outputs(), given, "file", "Invalid video file"))
    }
}

class! {
    /// A part of a video.
    VideoSlice in "image/video";
    |schema| Schema { class: "Video Slice".into(), ..schema }
        .title("Video Slice")
        .about("Takes a part of a video, from a time on and for a time.")
        .input(Input::socket("video", "VIDEO"))
        .input(Input::float("start_time", 0.0, -1e5, 1e5, 0.001).tooltip("Seconds; below 0 from the end."))
        .input(Input::float("duration", 0.0, 0.0, 1e5, 0.001).tooltip("Seconds; 0 for all that is left."))
        .input(Input::boolean("strict_duration", false).tooltip("Fails if the video is shorter."))
        .module("comfy_extras.nodes_video")
        .output("VIDEO");
    |runtime, call| {
        let video = call.object::<Video>("video")?;
        let duration = Some(call.float("duration")?).filter(|duration| *duration > 0.0);
        let part = VideoPart { start: call.float("start_time")?, duration };
        let sliced = slice(runtime, &video, part)?;
        if let (Some(duration), true) = (duration, call.boolean("strict_duration")?) {
            let Components { images, rate, .. } = super::components(&runtime.host, &sliced)?;
            let there = images.batch as f64 / rate.fps();
            // Half a frame is no difference.
            if there + 0.5 / rate.fps() < duration {
                return Err(Failure::value(format!(
                    "the video has only {there:.3} seconds from there on, where {duration:.3} are wanted"
                )));
            }
        }
        Ok(Outcome::object(sliced))
    }
}

/// A part of a video.
fn slice(runtime: &Runtime, video: &Video, part: VideoPart) -> Result<Video> {
    match video {
        // A part of a file is read as such, unless it is a part of a part.
        Video::File { path, part: VideoPart { duration: None, start } } if *start == 0.0 => {
            Ok(Video::File { path: path.clone(), part })
        }
        other => {
            let Components { images, audio, rate } = super::components(&runtime.host, other)?;
            let seconds = images.batch as f64 / rate.fps();
            let start = if part.start < 0.0 { seconds + part.start } else { part.start };
            let first = (start.max(0.0) * rate.fps()).round() as usize;
            let most = part.duration.map_or(usize::MAX, |duration| (duration * rate.fps()).round() as usize);
            let end = first.saturating_add(most).min(images.batch);
            if first >= end {
                return Err(Error::Told(format!(
                    "the video has {seconds:.3} seconds; the part is behind its end"
                )));
            }
            let audio = match audio {
                Some(audio) => {
                    Some(Audio::of_sound(&runtime.host, &super::cut(audio.sound(0), part, seconds))?)
                }
                None => None,
            };
            Ok(Video::Made { images: images.frames(first..end)?, audio, rate })
        }
    }
}
