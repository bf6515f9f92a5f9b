//! MP4 files: pictures as they come, then sound, then an index at the end. The file holds what was written even while the
//! index is still to come, so nothing but the sizes and places of packets is kept in memory.

mod boxes;
mod index;
mod marks;

use std::io::{Seek, SeekFrom, Write};

use crate::flac::Blocks;
use crate::h264::Encoder;
use crate::{Error, FrameRate, Result, Sound};
use index::{Index, Track};

pub(crate) use marks::Marks;

/// What a file is to have.
#[derive(Clone, Debug)]
pub struct VideoPlan {
    /// Pixels in a row of a frame.
    pub width: usize,
    /// Rows of a frame.
    pub height: usize,
    /// Frames per second.
    pub rate: FrameRate,
    /// How much may be lost, as x264's `crf` counts: less is better, 23 is usual.
    pub quality: f64,
    /// What is heard, if anything.
    pub sound: Option<Sound>,
    /// How it was made, by keys such as `prompt` and `workflow`.
    pub texts: Vec<(String, String)>,
}

/// The smallest and the largest sides that the encoder takes.
const SIDES: (usize, usize) = (16, 3840);
const SHORTER_SIDE: usize = 2160;
/// Units of time per frame, so that players that round lose nothing.
const UNITS_PER_FRAME: u32 = 512;
/// Bytes of the header in front of the packets.
const HEADER: u64 = 16;

/// Writes an MP4 file frame by frame. One frame is held at a time.
pub struct Mp4Writer<W> {
    out: W,
    plan: VideoPlan,
    encoder: Encoder,
    /// A frame without the row and the column that make its size odd.
    even: Vec<u8>,
    video: Track,
    sound: Option<(Blocks, Track)>,
    /// Where the packets begin, and where the next one goes.
    start: u64,
    end: u64,
}

impl<W: Write + Seek> Mp4Writer<W> {
    /// Begins a file. A row and a column that make the size odd are left out, as the codec has pixels in pairs.
    ///
    /// # Errors
    /// The codec has no place for such frames, or the file cannot be written.
    pub fn new(mut out: W, mut plan: VideoPlan) -> Result<Mp4Writer<W>> {
        let (width, height) = (plan.width & !1, plan.height & !1);
        let refused = |reason| Error::Size { width, height, format: "H.264", reason };
        if width.min(height) < SIDES.0 {
            return Err(refused("each side has at least 16 pixels"));
        }
        if width.max(height) > SIDES.1 || width.min(height) > SHORTER_SIDE {
            return Err(refused("the encoder takes at most 3840x2160 or 2160x3840; scale them down"));
        }
        let encoder = Encoder::new((width, height), plan.rate, plan.quality)?;
        let sound = match plan.sound.take().filter(|sound| !sound.is_empty()) {
            Some(sound) => Some((Blocks::new(&sound)?, Track::default())),
            None => None,
        };
        let first = boxes::file_type();
        out.write_all(&first)?;
        // The size is filled in at the end.
        out.write_all(&1u32.to_be_bytes())?;
        out.write_all(b"mdat")?;
        out.write_all(&0u64.to_be_bytes())?;
        let start = first.len() as u64;
        let end = start + HEADER;
        Ok(Mp4Writer { out, plan, encoder, even: Vec::new(), video: Track::default(), sound, start, end })
    }

    /// Adds the next frame: red, green and blue of every pixel, row by row.
    ///
    /// # Errors
    /// It has another size, or the file cannot be written.
    pub fn frame(&mut self, rgb: &[u8]) -> Result<()> {
        let (width, height) = (self.plan.width, self.plan.height);
        if rgb.len() != width * height * 3 {
            return Err(Error::Encoder(format!(
                "a frame has {} bytes, where {width}x{height} pixels have {}",
                rgb.len(),
                width * height * 3
            )));
        }
        let packet = if width % 2 == 0 && height % 2 == 0 {
            self.encoder.encode(rgb)?
        } else {
            self.even.clear();
            let rows = rgb.chunks_exact(width * 3).take(height & !1);
            rows.for_each(|row| self.even.extend(&row[..(width & !1) * 3]));
            self.encoder.encode(&self.even)?
        };
        self.video.add(self.end, packet.bytes.len(), UNITS_PER_FRAME * self.plan.rate.seconds, packet.is_key);
        self.write(&packet.bytes)?;
        let seconds = self.video.len() as f64 / self.plan.rate.fps();
        self.sound_until(seconds)
    }

    /// Writes what is left, and the index.
    ///
    /// # Errors
    /// There is no frame, or the file cannot be written.
    pub fn finish(mut self) -> Result<W> {
        if self.video.len() == 0 {
            return Err(Error::Empty);
        }
        let seconds = self.video.len() as f64 / self.plan.rate.fps();
        self.sound_until(seconds)?;
        let size = self.end - self.start;
        self.out.seek(SeekFrom::Start(self.start + 8))?;
        self.out.write_all(&size.to_be_bytes())?;
        self.out.seek(SeekFrom::Start(self.end))?;
        let index = Index {
            size: (self.plan.width & !1, self.plan.height & !1),
            units_per_second: UNITS_PER_FRAME * self.plan.rate.frames,
            sequence: &self.encoder.sequence,
            parameters: &self.encoder.parameters,
            video: &self.video,
            sound: self.sound.as_ref().map(|(blocks, track)| (blocks, track)),
            texts: &self.plan.texts,
        };
        self.out.write_all(&index.bytes())?;
        self.out.flush()?;
        Ok(self.out)
    }

    /// Writes sound up to a time; what lies behind the last frame is left out.
    fn sound_until(&mut self, seconds: f64) -> Result<()> {
        let Some((mut blocks, mut track)) = self.sound.take() else { return Ok(()) };
        while (blocks.position() as f64) < seconds * f64::from(blocks.rate()) {
            let Some((bytes, count)) = blocks.next() else { break };
            track.add(self.end, bytes.len(), count as u32, true);
            self.write(&bytes)?;
        }
        self.sound = Some((blocks, track));
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}
