//! AV1: packets to frames.

mod sequence;

use std::collections::VecDeque;

use re_rav1d::dav1d::{
    Decoder as Rav1dDecoder, Error as Failed, Picture, PixelLayout, PlanarImageComponent as Part, Settings,
};

use crate::colour::{Colour, Plane, Planes};
use crate::limits::{MOST_PIXELS, check_size};
use crate::{Error, Frame, Result};
use sequence::Marks;

/// Bytes of a decoder's set-up in front of the units in it.
const SETUP_HEAD: usize = 4;
/// Threads that decode. With several, this decoder may wait for ever; with one it gives 70 frames of 720p a second.
const THREADS: u32 = 1;

/// Turns packets into frames.
pub(crate) struct Decoder {
    decoder: Rav1dDecoder,
    /// What the container says of the colours, and what holds.
    container: Option<Colour>,
    colour: Colour,
    ready: VecDeque<Frame>,
    /// The file, for messages.
    file: String,
}

impl Decoder {
    /// Set up with what containers keep beside the packets (`av1C`), if they do.
    pub(crate) fn new(file: &str, setup: &[u8], container: Option<Colour>) -> Result<Decoder> {
        let mut settings = Settings::new();
        settings.set_n_threads(THREADS);
        settings.set_frame_size_limit(MOST_PIXELS as u32);
        let decoder = Rav1dDecoder::with_settings(&settings)
            .map_err(|error| Error::Unreadable { file: file.to_owned(), reason: error.to_string() })?;
        let mut decoder = Decoder {
            decoder,
            container,
            colour: container.unwrap_or_default(),
            ready: VecDeque::new(),
            file: file.to_owned(),
        };
        if let Some(units) = setup.get(SETUP_HEAD..) {
            decoder.take(units)?;
        }
        Ok(decoder)
    }

    /// Takes a packet.
    pub(crate) fn take(&mut self, packet: &[u8]) -> Result<()> {
        if packet.is_empty() {
            return Ok(());
        }
        if let Some(marks) = Marks::read(packet) {
            self.colour = Colour::of_stream(marks.matrix, marks.is_full_range, self.container);
        }
        let mut sent = self.decoder.send_data(packet.to_vec(), None, None, None);
        loop {
            self.collect()?;
            match sent {
                Ok(()) => return Ok(()),
                Err(Failed::Again) => sent = self.decoder.send_pending_data(),
                Err(error) => return Err(self.unreadable(&error.to_string())),
            }
        }
    }

    pub(crate) fn next(&mut self) -> Option<Frame> {
        self.ready.pop_front()
    }

    /// All frames that were held back.
    pub(crate) fn finish(&mut self) -> Result<()> {
        loop {
            let before = self.ready.len();
            self.collect()?;
            if self.ready.len() == before {
                return Ok(());
            }
        }
    }

    /// Takes the frames that are complete.
    fn collect(&mut self) -> Result<()> {
        loop {
            match self.decoder.get_picture() {
                Ok(picture) => {
                    let frame = frame_of(&self.file, &picture, self.colour)?;
                    self.ready.push_back(frame.ok_or_else(|| self.unreadable("a picture is incomplete"))?);
                }
                Err(Failed::Again) => return Ok(()),
                Err(error) => return Err(self.unreadable(&error.to_string())),
            }
        }
    }

    fn unreadable(&self, reason: &str) -> Error {
        Error::Unreadable { file: self.file.clone(), reason: reason.to_owned() }
    }
}

fn frame_of(file: &str, picture: &Picture, colour: Colour) -> Result<Option<Frame>> {
    let (width, height) = (picture.width() as usize, picture.height() as usize);
    check_size(file, width, height)?;
    let layout = picture.pixel_layout();
    let (parts, halved) = match layout {
        PixelLayout::I400 => (1, (false, false)),
        PixelLayout::I420 => (3, (true, true)),
        PixelLayout::I422 => (3, (true, false)),
        PixelLayout::I444 => (3, (false, false)),
    };
    let Some(bits) = picture.bits_per_component() else { return Ok(None) };
    // Pictures without colour have no planes of it, and none may be asked for.
    let kept: Vec<_> = [Part::Y, Part::U, Part::V][..parts]
        .iter()
        .map(|part| (picture.plane(*part), picture.stride(*part) as usize))
        .collect();
    let plane = |at: usize| kept.get(at).map(|(bytes, stride)| Plane { bytes, stride: *stride });
    let planes = [plane(0), plane(1), plane(2)];
    Ok(Planes { width, height, bits: bits.0 as u32, halved, planes, colour }.frame())
}
