//! Moving pictures and sound in files. Nothing here knows models or nodes.
//!
//! ```text
//! frames of 8 bits ── Mp4Writer ──> MP4: H.264 pictures, FLAC sound, texts that say how it was made
//! file ── VideoReader ──> frames, one after the other
//! file ── Sound::read ──> Sound ── write_flac ──> FLAC
//! ```
//!
//! Writing holds one frame at a time; reading gives one at a time. H.264 is encoded and decoded by OpenH264, which is built
//! from its source (BSD); VP9 and AV1 are decoded in Rust; containers and codecs of sound are Symphonia's. What none of them
//! knows is read and written by an `ffmpeg` if the system has one.
//!
//! Cisco's licence for H.264's patents covers the binary that it distributes itself, not one that is built from source. Who
//! ships a build where such patents are in force has to see to them; who only runs it at home has no such duty.
#![forbid(unsafe_code)]

mod av1;
mod bits;
mod colour;
mod error;
mod ffmpeg;
mod flac;
mod frame;
mod h264;
mod limits;
mod mp4;
mod rotation;
mod sound;
mod source;
mod survey;
mod video;
mod vp9;

pub use error::{Error, Result};
pub use ffmpeg::{Conversion, write_with_ffmpeg};
pub use flac::write_flac;
pub use frame::{Frame, FrameRate};
pub use mp4::{Mp4Writer, VideoPlan};
pub use sound::Sound;
pub use source::Source;
pub use video::{VideoInfo, VideoReader};
