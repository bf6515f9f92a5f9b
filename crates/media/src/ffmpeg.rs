//! What an `ffmpeg` of the system reads and writes for us, if there is one: codecs that are not known here.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use crate::colour::{Colour, Plane, Planes};
use crate::limits::check_size;
use crate::{Error, Frame, FrameRate, Result, Source, VideoInfo};

/// The program.
const PROGRAM: &str = "ffmpeg";
/// The longest first line of a stream of frames.
const LONGEST_HEADER: u64 = 4096;

/// Frames that ffmpeg decodes, as they come out of a pipe.
pub(crate) struct PipedFrames {
    pub(crate) info: VideoInfo,
    child: Child,
    out: BufReader<ChildStdout>,
    name: String,
}

impl PipedFrames {
    /// Begins to decode a file; none if it is not on the disk or there is no ffmpeg.
    pub(crate) fn open(source: &Source) -> Result<Option<PipedFrames>> {
        let Some(path) = source.path() else { return Ok(None) };
        let mut command = Command::new(PROGRAM);
        command.args(["-v", "error", "-nostdin", "-i"]).arg(path);
        command.args([
            "-map",
            "0:v:0",
            // Marks of the stream are followed, and what comes out always means the same. Planes of colour are spread without
            // smoothing, as those that are decoded here.
            "-vf",
            "scale=out_color_matrix=bt601:out_range=tv:flags=neighbor+accurate_rnd",
            "-pix_fmt",
            "yuv444p",
            "-strict",
            "-1",
            "-f",
            "yuv4mpegpipe",
            "pipe:1",
        ]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return Ok(None) };
        let Some(out) = child.stdout.take() else { return Ok(None) };
        let mut out = BufReader::new(out);
        let mut header = String::new();
        let read = out.by_ref().take(LONGEST_HEADER).read_line(&mut header);
        let info = read.ok().and_then(|_| stream_info(&header));
        let Some(info) = info else {
            let _ = child.wait();
            return Err(source.unreadable("ffmpeg found no moving pictures in it".to_owned()));
        };
        check_size(&source.name(), info.width, info.height)?;
        Ok(Some(PipedFrames { info, child, out, name: source.name() }))
    }

    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>> {
        let mut line = String::new();
        if self.out.by_ref().take(LONGEST_HEADER).read_line(&mut line)? == 0 {
            let ended = self.child.wait()?;
            if ended.success() {
                return Ok(None);
            }
            return Err(Error::Unreadable {
                file: self.name.clone(),
                reason: "ffmpeg could not read all of it".into(),
            });
        }
        let VideoInfo { width, height, .. } = self.info;
        let mut planes = vec![0; width * height * 3];
        self.out.read_exact(&mut planes)?;
        Ok(frame_of(&planes, width, height))
    }
}

impl Drop for PipedFrames {
    fn drop(&mut self) {
        // One that has ended already cannot be stopped, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the first line of a stream says: `YUV4MPEG2 W64 H48 F24:1 …`.
fn stream_info(header: &str) -> Option<VideoInfo> {
    let words = header.strip_prefix("YUV4MPEG2 ")?;
    let word = |letter: char| words.split_whitespace().find_map(|word| word.strip_prefix(letter));
    let (frames, seconds) = word('F')?.split_once(':')?;
    let rate = FrameRate::reduced(frames.parse().ok()?, seconds.parse().ok()?);
    Some(VideoInfo {
        width: word('W')?.parse().ok()?,
        height: word('H')?.parse().ok()?,
        rate,
        frames: None,
        seconds: None,
    })
}

/// Planes of brightness and colour as red, green and blue.
fn frame_of(planes: &[u8], width: usize, height: usize) -> Option<Frame> {
    let plane = |at: usize| Some(Plane { bytes: planes.get(at * width * height..)?, stride: width });
    let planes = [plane(0), plane(1), plane(2)];
    let colour = Colour::default();
    Planes { width, height, bits: 8, halved: (false, false), planes, colour }.frame()
}

/// A file that ffmpeg is to write of frames or sound that go into its pipe.
#[derive(Clone, Debug)]
pub struct Conversion {
    /// What people call the format.
    pub format: &'static str,
    /// What can be written without ffmpeg.
    pub instead: &'static str,
    /// What goes into the pipe: options before the input.
    pub input: Vec<String>,
    /// What is to come out: options after the input.
    pub output: Vec<String>,
}

/// Has ffmpeg write a file of what `feed` puts into its pipe.
///
/// # Errors
/// There is no ffmpeg, it failed, or `feed` did.
pub fn write_with_ffmpeg<E: From<Error>>(
    conversion: &Conversion,
    to: &Path,
    feed: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut command = Command::new(PROGRAM);
    command.args(["-v", "error", "-nostdin", "-y"]).args(&conversion.input).args(["-i", "pipe:0"]);
    command.args(&conversion.output).arg(to);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let (format, instead) = (conversion.format, conversion.instead);
    let mut child = command.spawn().map_err(|_| Error::NeedsFfmpeg { format, instead })?;
    let fed = child.stdin.take().map_or(Ok(()), |mut pipe: ChildStdin| feed(&mut pipe));
    if let Err(error) = fed {
        // What it wrote is given up with it.
        let _ = child.kill();
        let told =
            child.wait_with_output().map(|output| String::from_utf8_lossy(&output.stderr).trim().to_owned());
        return match told {
            Ok(told) if !told.is_empty() => Err(Error::Ffmpeg(told).into()),
            _ => Err(error),
        };
    }
    let output = child.wait_with_output().map_err(Error::from)?;
    if output.status.success() {
        return Ok(());
    }
    Err(Error::Ffmpeg(String::from_utf8_lossy(&output.stderr).trim().to_owned()).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_stream_is_read() {
        let info = stream_info("YUV4MPEG2 W64 H48 F30000:1001 Ip A1:1 C444\n").unwrap();
        assert_eq!((info.width, info.height), (64, 48));
        assert_eq!(info.rate, FrameRate { frames: 30000, seconds: 1001 });
        assert!(stream_info("").is_none() && stream_info("YUV4MPEG2 W64 H48 F0\n").is_none());
    }

    #[test]
    fn black_white_and_grey_stay_what_they_are() {
        let planes = [16, 235, 126, 128, 128, 128, 128, 128, 128];
        let frame = frame_of(&planes, 3, 1).unwrap();
        assert_eq!(frame.rgb, [0, 0, 0, 255, 255, 255, 128, 128, 128]);
    }
}
