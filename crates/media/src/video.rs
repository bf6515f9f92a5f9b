//! Videos read frame by frame.

use symphonia::core::codecs::video::VideoCodecParameters;
use symphonia::core::codecs::video::well_known as codecs;
use symphonia::core::errors::Error as Failed;
use symphonia::core::formats::{FormatReader, Track, TrackType};

use crate::ffmpeg::PipedFrames;
use crate::h264::Decoder;
use crate::{Error, Frame, FrameRate, Result, Source};

/// What is known of a video before its frames are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoInfo {
    /// Pixels in a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Frames per second; the mean of a video whose frames take different times.
    pub rate: FrameRate,
    /// How many frames, where the file says it.
    pub frames: Option<u64>,
}

/// The longest side of a video that is read.
const LONGEST_SIDE: usize = 16_384;

/// Reads a video frame by frame.
pub struct VideoReader {
    /// What the file says of itself.
    pub info: VideoInfo,
    frames: Frames,
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
    is_at_end: bool,
    source: Source,
}

impl VideoReader {
    /// Opens a video.
    ///
    /// # Errors
    /// The file is none, is damaged, or is in a codec that neither is known here nor by an ffmpeg that was found.
    pub fn open(source: &Source) -> Result<VideoReader> {
        let container = match source.open() {
            Ok(container) => container,
            // Perhaps a container that ffmpeg knows.
            Err(error) => return VideoReader::piped(source, error),
        };
        let Some(track) = container.default_track(TrackType::Video).or_else(|| first_video(&*container))
        else {
            return Err(Error::NoVideo { file: source.name() });
        };
        let parameters = track.codec_params.as_ref().and_then(|all| all.video());
        let Some(parameters) = parameters.filter(|parameters| parameters.codec == codecs::CODEC_ID_H264)
        else {
            let codec = parameters.map_or("an unknown codec", codec_name).to_owned();
            return VideoReader::piped(source, Error::Codec { file: source.name(), codec });
        };
        let setup = parameters.extra_data.first().map(|extra| extra.data.to_vec()).unwrap_or_default();
        let decoder = Decoder::new(&source.name(), &setup)?;
        let survey = Survey::of(source, track.id)?;
        let side = |side: Option<u16>| side.map_or(0, usize::from);
        let info = VideoInfo {
            width: side(parameters.width),
            height: side(parameters.height),
            rate: survey.rate(track),
            frames: Some(survey.frames),
        };
        if info.width.max(info.height) > LONGEST_SIDE {
            return Err(source.unreadable(format!("its frames have {}x{} pixels", info.width, info.height)));
        }
        let track = track.id;
        let own = OwnFrames { container, track, decoder, is_at_end: false, source: source.clone() };
        Ok(VideoReader { info, frames: Frames::Own(Box::new(own)) })
    }

    /// By an ffmpeg that the system has, or with the error why it cannot be read otherwise.
    fn piped(source: &Source, otherwise: Error) -> Result<VideoReader> {
        match PipedFrames::open(source)? {
            Some(frames) => Ok(VideoReader { info: frames.info, frames: Frames::Piped(frames) }),
            None => Err(otherwise),
        }
    }

    /// The next frame; none behind the last.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn next_frame(&mut self) -> Result<Option<Frame>> {
        match &mut self.frames {
            Frames::Own(own) => own.next_frame(),
            Frames::Piped(piped) => piped.next_frame(),
        }
    }
}

impl OwnFrames {
    fn next_frame(&mut self) -> Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.decoder.next() {
                return Ok(Some(frame));
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

fn first_video(container: &dyn FormatReader) -> Option<&Track> {
    let is_video = |track: &&Track| track.codec_params.as_ref().is_some_and(|all| all.video().is_some());
    container.tracks().iter().find(is_video)
}

/// The frames of a track and the time that they take, by a look at all packets: not all containers say it.
struct Survey {
    frames: u64,
    /// Units of the track's time.
    units: u64,
}

impl Survey {
    fn of(source: &Source, track: u32) -> Result<Survey> {
        let mut container = source.open()?;
        let (mut frames, mut units) = (0u64, 0u64);
        let (mut first, mut last) = (i64::MAX, i64::MIN);
        // What comes behind a damaged place is told when frames are read.
        while let Ok(Some(packet)) = container.next_packet() {
            if packet.track_id == track {
                frames += 1;
                units = units.saturating_add(packet.dur.get());
                (first, last) = (first.min(packet.pts.get()), last.max(packet.pts.get()));
            }
        }
        if units == 0 && frames > 1 {
            // Packets without lengths: what lies between the first and the last is one length less.
            let between = last.saturating_sub(first).unsigned_abs();
            units = between.saturating_mul(frames) / (frames - 1);
        }
        Ok(Survey { frames, units })
    }

    /// Frames per second; the mean if they take different times.
    fn rate(&self, track: &Track) -> FrameRate {
        let unknown = FrameRate { frames: 1, seconds: 1 };
        let Some(base) = track.time_base.filter(|_| self.units > 0 && self.frames > 0) else {
            return unknown;
        };
        let frames = self.frames.saturating_mul(u64::from(base.denom.get()));
        let units = self.units.saturating_mul(u64::from(base.numer.get()));
        let divisor = gcd(frames, units);
        match (u32::try_from(frames / divisor), u32::try_from(units / divisor)) {
            (Ok(frames), Ok(seconds)) => FrameRate::reduced(frames, seconds),
            _ => FrameRate::of(frames as f64 / units as f64).unwrap_or(unknown),
        }
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a.max(1)
}

/// What people call a codec.
fn codec_name(parameters: &VideoCodecParameters) -> &'static str {
    match parameters.codec {
        codecs::CODEC_ID_HEVC => "HEVC (H.265)",
        codecs::CODEC_ID_VP8 => "VP8",
        codecs::CODEC_ID_VP9 => "VP9",
        codecs::CODEC_ID_AV1 => "AV1",
        codecs::CODEC_ID_MJPEG => "Motion JPEG",
        _ => "a codec that is not known",
    }
}
