//! Videos read frame by frame.

use symphonia::core::codecs::video::well_known as codecs;
use symphonia::core::codecs::video::{VideoCodecId, VideoCodecParameters};
use symphonia::core::errors::Error as Failed;
use symphonia::core::formats::{FormatReader, Track, TrackType};

use crate::ffmpeg::PipedFrames;
use crate::limits::check_size;
use crate::mp4::Marks;
use crate::rotation::Rotation;
use crate::survey::Survey;
use crate::{Error, Frame, FrameRate, Result, Source, av1, h264, vp9};

/// What is known of a video before its frames are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoInfo {
    /// Pixels in a row, as it is shown.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Frames per second; the mean of a video whose frames take different times.
    pub rate: FrameRate,
    /// How many frames, where the file says it.
    pub frames: Option<u64>,
    /// How long it is, where the file says it.
    pub seconds: Option<f64>,
}

/// Reads a video frame by frame.
pub struct VideoReader {
    /// What the file says of itself.
    pub info: VideoInfo,
    frames: Frames,
    /// Frames that were given.
    given: usize,
    source: Source,
}

/// Who gives the frames.
enum Frames {
    Own(Box<OwnFrames>),
    Piped(PipedFrames),
}

/// Frames that are decoded here.
struct OwnFrames {
    container: Box<dyn FormatReader>,
    track: u32,
    decoder: Decoder,
    rotation: Rotation,
    survey: Survey,
    is_at_end: bool,
    source: Source,
}

/// A decoder, by its codec.
enum Decoder {
    H264(h264::Decoder),
    Vp9(Box<vp9::Decoder>),
    Av1(av1::Decoder),
}

impl VideoReader {
    /// Opens a video.
    ///
    /// # Errors
    /// The file is none, is damaged, or is in a codec that neither is known here nor by an ffmpeg that was found.
    pub fn open(source: &Source) -> Result<VideoReader> {
        VideoReader::open_while(source, &|| true)
    }

    /// Opens a video for as long as it is wanted: all of the file is looked through for the times of its frames.
    ///
    /// # Errors
    /// As [`VideoReader::open`], or it is not wanted any more.
    pub fn open_while(source: &Source, goes_on: &dyn Fn() -> bool) -> Result<VideoReader> {
        let container = match source.open() {
            Ok(container) => container,
            // Perhaps a container that ffmpeg knows.
            Err(error) => return VideoReader::piped(source, None, error),
        };
        let Some(track) = container.default_track(TrackType::Video).or_else(|| first_video(&*container))
        else {
            return Err(Error::NoVideo { file: source.name() });
        };
        let Some(parameters) = track.codec_params.as_ref().and_then(|all| all.video()) else {
            let codec = "an unknown codec".to_owned();
            return VideoReader::piped(source, None, Error::Codec { file: source.name(), codec });
        };
        let marks = source.marks(track.id);
        let survey = Survey::of(source, track, marks.times.as_deref(), goes_on)?;
        let seconds = survey.seconds();
        let decoder = match Decoder::new(source, parameters, &marks) {
            Ok(decoder) => decoder,
            Err(error) => return VideoReader::piped(source, seconds, error),
        };
        let side = |side: Option<u16>| side.map_or(0, usize::from);
        let (width, height) = marks.rotation.size((side(parameters.width), side(parameters.height)));
        check_size(&source.name(), width, height)?;
        let info = VideoInfo { width, height, rate: survey.rate(), frames: Some(survey.frames()), seconds };
        let (track, rotation) = (track.id, marks.rotation);
        let (is_at_end, source) = (false, source.clone());
        let own =
            OwnFrames { container, track, decoder, rotation, survey, is_at_end, source: source.clone() };
        Ok(VideoReader { info, frames: Frames::Own(Box::new(own)), given: 0, source })
    }

    /// By an ffmpeg that the system has, or with the error why it cannot be read otherwise.
    fn piped(source: &Source, seconds: Option<f64>, otherwise: Error) -> Result<VideoReader> {
        match PipedFrames::open(source)? {
            Some(frames) => {
                let info = VideoInfo { seconds, ..frames.info };
                Ok(VideoReader { info, frames: Frames::Piped(frames), given: 0, source: source.clone() })
            }
            None => Err(otherwise),
        }
    }

    /// The next frame; none behind the last.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        let next = match &mut self.frames {
            Frames::Own(own) => own.next_frame(),
            Frames::Piped(piped) => piped.next_frame(),
        };
        let next = match (next, &self.frames, self.given) {
            // What our decoder has no way to begin with, another one may know.
            (Err(error), Frames::Own(_), 0) => {
                *self = VideoReader::piped(&self.source, self.info.seconds, error)?;
                return self.next_frame();
            }
            (next, ..) => next?,
        };
        self.given += usize::from(next.is_some());
        Ok(next)
    }

    /// Seconds from the first frame to one of them, or to the end behind the last.
    #[must_use]
    pub fn time(&self, frame: usize) -> f64 {
        let even = frame as f64 / self.info.rate.fps();
        match &self.frames {
            Frames::Own(own) => {
                let end = self.info.seconds.filter(|_| frame as u64 >= own.survey.frames());
                own.survey.time(frame).or(end).unwrap_or(even)
            }
            Frames::Piped(_) => even,
        }
    }
}

impl OwnFrames {
    fn next_frame(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.decoder.next() {
                return Ok(Some(self.rotation.apply(frame)));
            }
            if self.is_at_end {
                return Ok(None);
            }
            match self.container.next_packet() {
                Ok(Some(packet)) if packet.track_id == self.track => self.decoder.take(&packet.data)?,
                Ok(Some(_)) => {}
                Ok(None) | Err(Failed::ResetRequired) => {
                    self.is_at_end = true;
                    self.decoder.finish()?;
                }
                Err(error) => return Err(self.source.unreadable(error.to_string())),
            }
        }
    }
}

impl Decoder {
    /// The one for a codec.
    fn new(source: &Source, parameters: &VideoCodecParameters, marks: &Marks) -> Result<Decoder> {
        let (file, colour) = (source.name(), marks.colour);
        let setup = parameters.extra_data.first().map(|extra| &*extra.data);
        match codec(parameters, marks) {
            codecs::CODEC_ID_H264 => {
                Ok(Decoder::H264(h264::Decoder::new(&file, setup.unwrap_or_default(), colour)?))
            }
            codecs::CODEC_ID_VP9 => Ok(Decoder::Vp9(Box::new(vp9::Decoder::new(&file, colour)))),
            codecs::CODEC_ID_AV1 => {
                let setup = setup.or(marks.av1_setup.as_deref()).unwrap_or_default();
                Ok(Decoder::Av1(av1::Decoder::new(&file, setup, colour)?))
            }
            other => Err(Error::Codec { file, codec: codec_name(other).to_owned() }),
        }
    }

    fn take(&mut self, packet: &[u8]) -> Result<()> {
        match self {
            Decoder::H264(decoder) => decoder.take(packet),
            Decoder::Vp9(decoder) => decoder.take(packet),
            Decoder::Av1(decoder) => decoder.take(packet),
        }
    }

    fn next(&mut self) -> Option<Frame> {
        match self {
            Decoder::H264(decoder) => decoder.next(),
            Decoder::Vp9(decoder) => decoder.next(),
            Decoder::Av1(decoder) => decoder.next(),
        }
    }

    /// All frames that were held back.
    fn finish(&mut self) -> Result<()> {
        match self {
            Decoder::H264(decoder) => decoder.finish(),
            // It gives every frame with the packet that shows it.
            Decoder::Vp9(_) => Ok(()),
            Decoder::Av1(decoder) => decoder.finish(),
        }
    }
}

fn first_video(container: &dyn FormatReader) -> Option<&Track> {
    let is_video = |track: &&Track| track.codec_params.as_ref().is_some_and(|all| all.video().is_some());
    container.tracks().iter().find(is_video)
}

/// The codec of a track; in MP4 files our demuxer leaves some of them to us.
fn codec(parameters: &VideoCodecParameters, marks: &Marks) -> VideoCodecId {
    match &marks.codec {
        b"vp09" => codecs::CODEC_ID_VP9,
        b"vp08" => codecs::CODEC_ID_VP8,
        b"av01" => codecs::CODEC_ID_AV1,
        b"jpeg" | b"mjpg" => codecs::CODEC_ID_MJPEG,
        _ => parameters.codec,
    }
}

/// What people call a codec.
fn codec_name(codec: VideoCodecId) -> &'static str {
    match codec {
        codecs::CODEC_ID_HEVC => "HEVC (H.265)",
        codecs::CODEC_ID_VP8 => "VP8",
        codecs::CODEC_ID_MJPEG => "Motion JPEG",
        _ => "a codec that is not known",
    }
}
