//! Moving pictures and sound in files. Nothing here knows models or nodes.
//!
//! ```text
//! frames of 8 bits ── Mp4Writer ──> MP4: H.264 pictures, FLAC sound, texts that say how it was made
//! file ── VideoReader ──> frames, one after the other
//! file ── Sound::read ──> Sound ── write_flac ──> FLAC
//! ```
//!
//! Writing holds one frame at a time; reading gives one at a time. H.264 is encoded and decoded by OpenH264, which is built
//! from its source (BSD); containers and codecs of sound are Symphonia's. What neither knows is read and written by an
//! `ffmpeg` if the system has one.
//!
//! Cisco's licence for H.264's patents covers the binary that it distributes itself, not one that is built from source. Who
//! ships a build where such patents are in force has to see to them; who only runs it at home has no such duty.
#![forbid(unsafe_code)]

mod error;
mod ffmpeg;
mod flac;
mod frame;
mod h264;
mod mp4;
mod sound;
mod source;
mod video;

pub use error::{Error, Result};
pub use ffmpeg::{Conversion, write_with_ffmpeg};
pub use flac::write_flac;
pub use frame::{Frame, FrameRate};
pub use mp4::{Mp4Writer, VideoPlan};
pub use sound::Sound;
pub use source::Source;
pub use video::{VideoInfo, VideoReader};
