//! Videos and sound.

use std::fmt;
use std::path::PathBuf;

use graph::Object;
use media::{FrameRate, Sound};

use super::Image;
use crate::Result;
use runtime::host::{Host, Values};

/// Sound: `AUDIO`.
#[derive(Clone, PartialEq)]
pub struct Audio {
    /// How many sounds, channels of each, and values of each channel.
    pub shape: [usize; 3],
    /// Values per second.
    pub rate: u32,
    /// The values, those of a channel one after the other.
    pub values: Values,
}

/// A video: `VIDEO`.
#[derive(Clone)]
pub enum Video {
    /// Frames that nodes made.
    Made {
        /// The frames.
        images: Image,
        /// What is heard with them.
        audio: Option<Audio>,
        /// How many of them a second has.
        rate: FrameRate,
    },
    /// A file, which is read when its frames are needed.
    File {
        /// Where it is.
        path: PathBuf,
        /// Which part of it.
        part: VideoPart,
    },
}

/// A part of a video, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct VideoPart {
    /// Where it begins; below 0 it is counted from the end.
    pub start: f64,
    /// How long it is, at most; all that is left without it.
    pub duration: Option<f64>,
}

impl Audio {
    /// One sound.
    ///
    /// # Errors
    /// It does not fit into memory.
    pub fn of_sound(host: &Host, sound: &Sound) -> Result<Audio> {
        let length = sound.channels.iter().map(Vec::len).min().unwrap_or(0);
        let shape = [1, sound.channels.len(), length];
        let values = sound.channels.iter().flat_map(|channel| channel[..length].iter().copied());
        Ok(Audio { shape, rate: sound.rate, values: host.room(&shape)?.collect(values)? })
    }

    /// One of the sounds.
    #[must_use]
    pub fn sound(&self, index: usize) -> Sound {
        let [_, channels, length] = self.shape;
        let start = index * channels * length;
        let channel = |at: usize| self.values[start + at * length..start + (at + 1) * length].to_vec();
        Sound { rate: self.rate, channels: (0..channels).map(channel).collect() }
    }
}

impl Object for Audio {
    fn describe(&self) -> String {
        format!("audio {:?} at {} Hz", self.shape, self.rate)
    }
}

impl Object for Video {
    fn describe(&self) -> String {
        match self {
            Video::Made { images, rate, .. } => {
                format!(
                    "video of {} frames of {}x{}, {} a second",
                    images.batch,
                    images.width,
                    images.height,
                    rate.fps()
                )
            }
            Video::File { path, .. } => format!("video {}", path.display()),
        }
    }
}

impl fmt::Debug for Audio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

impl fmt::Debug for Video {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}
