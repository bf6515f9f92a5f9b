//! VP9: packets to frames.

use std::collections::VecDeque;

use rusty_vp9::{BitReader, DecodedFrame, Error as Failed, Vp9Decoder, parse_uncompressed_header};

use crate::bits::Bits;
use crate::colour::{Colour, Plane, Planes};
use crate::limits::check_size;
use crate::{Error, Frame, Result};

/// Frames that may be kept to predict others from.
const SLOTS: usize = 8;

/// Turns packets into frames.
pub(crate) struct Decoder {
    decoder: Vp9Decoder,
    /// What the container says of the colours, and what holds.
    container: Option<Colour>,
    colour: Colour,
    ready: VecDeque<Frame>,
    /// The file, for messages.
    file: String,
}

impl Decoder {
    pub(crate) fn new(file: &str, container: Option<Colour>) -> Decoder {
        Decoder {
            decoder: Vp9Decoder::new(),
            container,
            colour: container.unwrap_or_default(),
            ready: VecDeque::new(),
            file: file.to_owned(),
        }
    }

    /// Takes a packet, which has one frame that is shown, and perhaps some that are not.
    pub(crate) fn take(&mut self, packet: &[u8]) -> Result<()> {
        let frames = frames_in(packet);
        for frame in &frames {
            self.look_at(frame)?;
        }
        self.decoder.push(packet, None).map_err(|error| self.unreadable(&error.to_string()))?;
        for _ in &frames {
            match self.decoder.next_frame() {
                Ok(decoded) => {
                    let frame = frame_of(&decoded, self.colour);
                    self.ready.push_back(frame.ok_or_else(|| self.unreadable("a picture is incomplete"))?);
                }
                Err(Failed::Again | Failed::Eof) => {}
                Err(error) => return Err(self.unreadable(&error.to_string())),
            }
        }
        Ok(())
    }

    pub(crate) fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// Sees from a frame's header how large it is, before there is memory for it, and what its colours mean.
    fn look_at(&mut self, frame: &[u8]) -> Result<()> {
        // The sizes of others are not needed: where a frame has the size of another, that one was looked at.
        let header = parse_uncompressed_header(&mut BitReader::new(frame), &[(0, 0); SLOTS])
            .map_err(|error| self.unreadable(&error.to_string()))?;
        if header.width > 0 || header.height > 0 {
            check_size(&self.file, header.width as usize, header.height as usize)?;
        }
        if header.key_frame && !header.show_existing_frame {
            self.colour = colour(frame, header.profile, self.container).unwrap_or(self.colour);
        }
        Ok(())
    }

    fn unreadable(&self, reason: &str) -> Error {
        Error::Unreadable { file: self.file.clone(), reason: reason.to_owned() }
    }
}

/// The frames of a packet: several stand one behind the other, with their lengths at its end.
fn frames_in(packet: &[u8]) -> Vec<&[u8]> {
    let several = || {
        let marker = *packet.last().filter(|marker| **marker & 0xE0 == 0xC0)?;
        let (count, bytes) = (usize::from(marker & 7) + 1, usize::from(marker >> 3 & 3) + 1);
        let start = packet.len().checked_sub(2 + count * bytes)?;
        let lengths = packet.get(start..).filter(|index| index[0] == marker)?;
        let mut rest = &packet[..start];
        let mut frames = Vec::new();
        for length in lengths[1..=count * bytes].chunks_exact(bytes) {
            let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
            let (frame, after) = rest.split_at_checked(length)?;
            frames.push(frame);
            rest = after;
        }
        Some(frames)
    };
    several().unwrap_or_else(|| vec![packet])
}

/// What a key frame's header says of its colours.
fn colour(frame: &[u8], profile: u32, container: Option<Colour>) -> Option<Colour> {
    /// The numbers of H.273 by those of VP9.
    const MATRICES: [u32; 8] = [2, 6, 1, 6, 7, 9, 2, 0];
    const RGB: u32 = 7;
    let mut bits = Bits::of(frame);
    // Marks, the profile, kinds of the frame and a code in front; deeper profiles say their depth.
    bits.skip(if profile == 3 { 5 } else { 4 } + 4 + 24 + u32::from(profile >= 2))?;
    let space = bits.number(3)?;
    let is_full_range = space == RGB || bits.flag()?;
    Some(Colour::of_stream(MATRICES[space as usize], is_full_range, container))
}

fn frame_of(decoded: &DecodedFrame, colour: Colour) -> Option<Frame> {
    let plane = |at: usize| Some(Plane { bytes: decoded.planes.get(at)?, stride: *decoded.strides.get(at)? });
    let planes = Planes {
        width: decoded.width as usize,
        height: decoded.height as usize,
        bits: decoded.bit_depth,
        halved: (decoded.subsampling_x == 1, decoded.subsampling_y == 1),
        planes: [plane(0), plane(1), plane(2)],
        colour,
    };
    planes.frame()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_taken_apart_by_their_end() {
        assert_eq!(frames_in(&[1, 2, 3]), [&[1, 2, 3][..]]);
        assert_eq!(frames_in(&[]), [&[0u8; 0][..]]);
        // Two frames of 2 and 1 bytes, whose lengths take a byte.
        assert_eq!(frames_in(&[1, 2, 3, 0xC1, 2, 1, 0xC1]), [&[1, 2][..], &[3]]);
        // Lengths that reach too far are none.
        assert_eq!(frames_in(&[1, 0xC1, 2, 1, 0xC1]).len(), 1);
    }
}
