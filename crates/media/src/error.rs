//! What can be wrong with a file, or with what is to become one.

use std::io;

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is no video or sound, or is damaged.
    #[error("{file} cannot be read: {reason}")]
    Unreadable {
        /// The file.
        file: String,
        /// What is wrong.
        reason: String,
    },
    /// A file without moving pictures.
    #[error("{file} has no moving pictures in it; choose a video file")]
    NoVideo {
        /// The file.
        file: String,
    },
    /// A file without sound.
    #[error("{file} has no sound in it; choose a file with a sound track")]
    NoSound {
        /// The file.
        file: String,
    },
    /// A codec that is not known here.
    #[error(
        "{file} is in {codec}, which cannot be read here by itself; install ffmpeg so that it is found, or convert the \
         file to VP9, AV1 or plain H.264 (8 bits, 4:2:0, not interlaced)"
    )]
    Codec {
        /// The file.
        file: String,
        /// The codec's name.
        codec: String,
    },
    /// Pictures that the format has no place for.
    #[error("pictures of {width}x{height} pixels cannot be saved as {format}: {reason}")]
    Size {
        /// Their width.
        width: usize,
        /// Their height.
        height: usize,
        /// The format.
        format: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// Frames per second that are none.
    #[error("{0} frames per second is no rate for a video; choose one from 0.01 to 1000")]
    Rate(f64),
    /// Nothing to save.
    #[error("there are no pictures to save; check the node that made them")]
    Empty,
    /// Sound that a format has no place for.
    #[error("{channels} channels of sound at {rate} Hz cannot be saved as {format}")]
    SoundShape {
        /// The channels.
        channels: usize,
        /// Values per second.
        rate: u32,
        /// The format.
        format: &'static str,
    },
    /// The encoder refused.
    #[error("the video cannot be encoded: {0}")]
    Encoder(String),
    /// A format that only ffmpeg writes here.
    #[error("{format} is written by ffmpeg, which was not found; install it, or choose {instead}")]
    NeedsFfmpeg {
        /// The format.
        format: &'static str,
        /// What can be written without.
        instead: &'static str,
    },
    /// ffmpeg failed.
    #[error("ffmpeg failed: {0}")]
    Ffmpeg(String),
    /// Whoever asked does not want it any more.
    #[error("reading was ended")]
    Cancelled,
    /// From the system.
    #[error(transparent)]
    Io(#[from] io::Error),
}
