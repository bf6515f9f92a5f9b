//! H.264: frames to packets as MP4 keeps them, and back.

mod sequence;

use std::collections::VecDeque;

use openh264::OpenH264API;
use openh264::decoder::{DecodeOptions, DecodedYUV, Decoder as OpenDecoder, DecoderConfig, Flush};
use openh264::encoder::{
    BitRate, Complexity, Encoder as OpenEncoder, EncoderConfig, FrameRate as OpenRate, FrameType,
    IntraFramePeriod, RateControlMode, VuiConfig,
};
use openh264::formats::{RgbSliceU8, YUVBuffer, YUVSource};

use crate::colour::{Colour, Plane, Planes};
use crate::limits::check_size;
use crate::{Error, Frame, FrameRate, Result};
use sequence::Sequence;

/// Kinds of units in a stream: what the decoder is set up with.
const SEQUENCE: u8 = 7;
const PICTURE: u8 = 8;
/// Bits of a pixel at the usual quality, and the quality that this is.
const BITS_PER_PIXEL: f64 = 0.25;
const USUAL_QUALITY: f64 = 23.0;
/// Steps of the quality that halve the bits.
const STEPS_PER_HALF: f64 = 6.0;
/// The fewest and the most bits per second.
const BIT_RATES: (f64, f64) = (500_000.0, 200_000_000.0);
/// Seconds between frames that stand for themselves.
const KEY_SECONDS: f64 = 5.0;

/// Turns frames into packets.
pub(crate) struct Encoder {
    encoder: OpenEncoder,
    picture: YUVBuffer,
    size: (usize, usize),
    /// What a decoder is set up with: the last sequence and picture parameters.
    pub(crate) sequence: Vec<u8>,
    pub(crate) parameters: Vec<u8>,
}

/// An encoded frame: units with their lengths in front.
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    /// Whether it stands for itself.
    pub(crate) is_key: bool,
}

impl Encoder {
    /// For frames of an even size. `quality` counts as x264's `crf`: less is better.
    pub(crate) fn new(size: (usize, usize), rate: FrameRate, quality: f64) -> Result<Encoder> {
        let fps = rate.fps();
        let pixels = (size.0 * size.1) as f64;
        let share = ((USUAL_QUALITY - quality) / STEPS_PER_HALF).exp2();
        let bits = (pixels * fps * BITS_PER_PIXEL * share).clamp(BIT_RATES.0, BIT_RATES.1);
        let config = EncoderConfig::new()
            .bitrate(BitRate::from_bps(bits as u32))
            .max_frame_rate(OpenRate::from_hz(fps as f32))
            .rate_control_mode(RateControlMode::Bitrate)
            .skip_frames(false)
            .complexity(Complexity::Medium)
            .scene_change_detect(true)
            .intra_frame_period(IntraFramePeriod::from_num_frames((fps * KEY_SECONDS).ceil().max(1.0) as u32))
            .vui(VuiConfig::bt601());
        let encoder = OpenEncoder::with_api_config(OpenH264API::from_source(), config)
            .map_err(|error| refused(&error))?;
        let picture = YUVBuffer::new(size.0, size.1);
        Ok(Encoder { encoder, picture, size, sequence: Vec::new(), parameters: Vec::new() })
    }

    /// The packet of a frame of red, green and blue.
    pub(crate) fn encode(&mut self, rgb: &[u8]) -> Result<Packet> {
        self.picture.read_rgb8(RgbSliceU8::new(rgb, self.size));
        let stream = self.encoder.encode(&self.picture).map_err(|error| refused(&error))?;
        let is_key = matches!(stream.frame_type(), FrameType::IDR | FrameType::I);
        let mut bytes = Vec::new();
        for layer in (0..stream.num_layers()).filter_map(|at| stream.layer(at)) {
            for unit in (0..layer.nal_count()).filter_map(|at| layer.nal_unit(at)) {
                let unit = without_start(unit);
                match unit.first().map(|kind| kind & 0x1F) {
                    None => {}
                    Some(SEQUENCE) => self.sequence = unit.to_vec(),
                    Some(PICTURE) => self.parameters = unit.to_vec(),
                    Some(_) => {
                        bytes.extend((unit.len() as u32).to_be_bytes());
                        bytes.extend(unit);
                    }
                }
            }
        }
        Ok(Packet { bytes, is_key })
    }
}

/// A unit without the zeros and the one in front of it.
fn without_start(unit: &[u8]) -> &[u8] {
    let zeros = unit.iter().take_while(|byte| **byte == 0).count();
    match unit.get(zeros) {
        Some(1) if zeros >= 2 => &unit[zeros + 1..],
        _ => unit,
    }
}

fn refused(error: &openh264::Error) -> Error {
    Error::Encoder(error.to_string())
}

/// Turns packets into frames.
pub(crate) struct Decoder {
    decoder: OpenDecoder,
    /// Bytes of the length in front of a unit.
    length_bytes: usize,
    /// What the container says of the colours, and what holds.
    container: Option<Colour>,
    colour: Colour,
    /// Frames that are complete.
    ready: VecDeque<Frame>,
    /// The file, for messages.
    file: String,
}

impl Decoder {
    /// Set up with what MP4 and Matroska keep beside the packets (`avcC`).
    pub(crate) fn new(file: &str, setup: &[u8], container: Option<Colour>) -> Result<Decoder> {
        let broken = |reason: &str| unreadable(file, reason);
        let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
        let decoder = OpenDecoder::with_api_config(OpenH264API::from_source(), config)
            .map_err(|error| broken(&error.to_string()))?;
        let length_bytes = setup.get(4).map_or(4, |byte| usize::from(byte & 3) + 1);
        let mut decoder = Decoder {
            decoder,
            length_bytes,
            container,
            colour: container.unwrap_or_default(),
            ready: VecDeque::new(),
            file: file.to_owned(),
        };
        let units = setup_units(setup).ok_or_else(|| broken("the parameters of its pictures are damaged"))?;
        decoder.feed(&units)?;
        Ok(decoder)
    }

    /// Takes a packet of units with their lengths in front.
    pub(crate) fn take(&mut self, packet: &[u8]) -> Result<()> {
        let mut units = Vec::new();
        let mut rest = packet;
        while rest.len() > self.length_bytes {
            let (length, after) = rest.split_at(self.length_bytes);
            let length = length.iter().fold(0usize, |sum, byte| (sum << 8) | usize::from(*byte));
            if length > after.len() {
                return Err(unreadable(&self.file, "a packet ends in the middle of a picture"));
            }
            units.push(&after[..length]);
            rest = &after[length..];
        }
        self.feed(&units)
    }

    /// The next frame that is complete.
    pub(crate) fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// All frames that were held back for their order.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let Decoder { decoder, ready, file, colour, .. } = self;
        let rest = decoder.flush_remaining().map_err(|error| unreadable(file, &error.to_string()))?;
        for picture in &rest {
            ready.push_back(frame_of(file, picture, *colour)?);
        }
        Ok(())
    }

    fn feed(&mut self, units: &[&[u8]]) -> Result<()> {
        let mut stream = Vec::with_capacity(units.iter().map(|unit| unit.len() + 4).sum());
        for unit in units {
            if unit.first().is_some_and(|kind| kind & 0x1F == SEQUENCE) {
                self.follow(unit)?;
            }
            stream.extend([0, 0, 0, 1]);
            stream.extend_from_slice(unit);
        }
        if stream.is_empty() {
            return Ok(());
        }
        let options = DecodeOptions::new().flush_after_decode(Flush::NoFlush);
        let Decoder { decoder, ready, file, colour, .. } = self;
        let decoded = decoder
            .decode_with_options(&stream, options)
            .map_err(|error| unreadable(file, &error.to_string()))?;
        if let Some(picture) = &decoded {
            ready.push_back(frame_of(file, picture, *colour)?);
        }
        Ok(())
    }

    /// Sees from the parameters of pictures whether they can be decoded, and what their colours mean.
    fn follow(&mut self, unit: &[u8]) -> Result<()> {
        let sequence = Sequence::read(unit)
            .ok_or_else(|| unreadable(&self.file, "the parameters of its pictures are damaged"))?;
        check_size(&self.file, sequence.size.0, sequence.size.1)?;
        if let Some(codec) = sequence.refused() {
            return Err(Error::Codec { file: self.file.clone(), codec });
        }
        self.colour = Colour::of_stream(sequence.matrix, sequence.is_full_range, self.container);
        Ok(())
    }
}

fn unreadable(file: &str, reason: &str) -> Error {
    Error::Unreadable { file: file.to_owned(), reason: reason.to_owned() }
}

fn frame_of(file: &str, picture: &DecodedYUV<'_>, colour: Colour) -> Result<Frame> {
    let ((width, height), strides) = (picture.dimensions(), picture.strides());
    let plane = |bytes, stride| Some(Plane { bytes, stride });
    let planes =
        [plane(picture.y(), strides.0), plane(picture.u(), strides.1), plane(picture.v(), strides.2)];
    let planes = Planes { width, height, bits: 8, halved: (true, true), planes, colour };
    planes.frame().ok_or_else(|| unreadable(file, "a picture is incomplete"))
}

/// The units of a decoder's set-up.
fn setup_units(setup: &[u8]) -> Option<Vec<&[u8]>> {
    let mut units = Vec::new();
    let mut at = 5;
    for mask in [0x1F, 0xFF] {
        let count = setup.get(at)? & mask;
        at += 1;
        for _ in 0..count {
            let length = usize::from(u16::from_be_bytes([*setup.get(at)?, *setup.get(at + 1)?]));
            units.push(setup.get(at + 2..at + 2 + length)?);
            at += 2 + length;
        }
    }
    Some(units)
}
