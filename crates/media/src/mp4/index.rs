//! The index of an MP4 file: what its tracks are, and where and when each packet is.

use super::boxes::{MATRIX, boxed, full, halves, handler, texts, words};
use crate::flac::{self, Blocks};

/// Units per second of the times that are about the whole file.
const MILLIS: u64 = 1000;
/// No language.
const UNDETERMINED: u16 = 0x55C4;

/// The packets of a track.
#[derive(Default)]
pub(super) struct Track {
    places: Vec<u64>,
    sizes: Vec<u32>,
    /// How long each is, in the track's units, and how many have that length.
    lengths: Vec<(u32, u32)>,
    /// The numbers of those that stand for themselves, from 1.
    keys: Vec<u32>,
}

impl Track {
    pub(super) fn add(&mut self, place: u64, size: usize, length: u32, is_key: bool) {
        self.places.push(place);
        self.sizes.push(size as u32);
        match self.lengths.last_mut() {
            Some((count, last)) if *last == length => *count += 1,
            _ => self.lengths.push((1, length)),
        }
        if is_key {
            self.keys.push(self.sizes.len() as u32);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.sizes.len()
    }

    fn duration(&self) -> u64 {
        self.lengths.iter().map(|(count, length)| u64::from(*count) * u64::from(*length)).sum()
    }

    /// Where and when packets are; `entry` says what they are.
    fn table(&self, entry: &[u8]) -> Vec<u8> {
        let count = self.sizes.len() as u32;
        let lengths = self.lengths.iter().flat_map(|(count, length)| [*count, *length]);
        let times = words(std::iter::once(self.lengths.len() as u32).chain(lengths));
        let sizes = words([0, count].into_iter().chain(self.sizes.iter().copied()));
        let mut places = count.to_be_bytes().to_vec();
        places.extend(self.places.iter().flat_map(|place| place.to_be_bytes()));
        let described = full(b"stsd", 0, &[&words([1]), entry]);
        // Each packet is a chunk of its own.
        let chunks = full(b"stsc", 0, &[&words([1, 1, 1, 1])]);
        let keys = if self.keys.len() == self.sizes.len() {
            Vec::new()
        } else {
            let all = std::iter::once(self.keys.len() as u32).chain(self.keys.iter().copied());
            full(b"stss", 0, &[&words(all)])
        };
        let (times, sizes) = (full(b"stts", 0, &[&times]), full(b"stsz", 0, &[&sizes]));
        boxed(b"stbl", &[&described, &times, &keys, &chunks, &sizes, &full(b"co64", 0, &[&places])])
    }
}

/// All that the index is made of.
pub(super) struct Index<'a> {
    pub(super) size: (usize, usize),
    pub(super) units_per_second: u32,
    pub(super) sequence: &'a [u8],
    pub(super) parameters: &'a [u8],
    pub(super) video: &'a Track,
    pub(super) sound: Option<(&'a Blocks, &'a Track)>,
    pub(super) texts: &'a [(String, String)],
}

/// What one track of the index is made of.
struct Listed<'a> {
    number: u32,
    kind: &'a [u8; 4],
    units_per_second: u32,
    size: (usize, usize),
    track: &'a Track,
    /// What is said about the kind of media.
    header: Vec<u8>,
    entry: Vec<u8>,
}

impl Index<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let (width, height) = self.size;
        let entry = self.picture_entry(width as u16, height as u16);
        let video = Listed {
            number: 1,
            kind: b"vide",
            units_per_second: self.units_per_second,
            size: self.size,
            track: self.video,
            header: full(b"vmhd", 1, &[&[0; 8]]),
            entry,
        };
        let mut tracks = video.bytes();
        if let Some((blocks, track)) = self.sound {
            let (header, entry) = (full(b"smhd", 0, &[&[0; 4]]), sound_entry(blocks));
            let units_per_second = blocks.rate();
            let listed =
                Listed { number: 2, kind: b"soun", units_per_second, size: (0, 0), track, header, entry };
            tracks.extend(listed.bytes());
        }
        let duration = millis(self.video.duration(), self.units_per_second);
        let mut header = words([0, 0, MILLIS as u32, duration, 0x1_0000]);
        header.extend(halves([0x100, 0]));
        header.extend([0; 8]);
        header.extend(words(MATRIX));
        header.extend([0; 24]);
        header.extend(words([3]));
        boxed(b"moov", &[&full(b"mvhd", 0, &[&header]), &tracks, &texts(self.texts)])
    }

    /// What the pictures are, and what a decoder is set up with.
    fn picture_entry(&self, width: u16, height: u16) -> Vec<u8> {
        let mut setup = vec![1];
        // Profile, constraints and level are the first bytes of the parameters.
        setup.extend((1..4).map(|at| self.sequence.get(at).copied().unwrap_or(0)));
        // Lengths of 4 bytes, one set of each kind of parameters.
        setup.extend([0xFF, 0xE1]);
        setup.extend((self.sequence.len() as u16).to_be_bytes());
        setup.extend(self.sequence);
        setup.push(1);
        setup.extend((self.parameters.len() as u16).to_be_bytes());
        setup.extend(self.parameters);
        let mut entry = vec![0; 6];
        entry.extend(halves([1]));
        entry.extend([0; 16]);
        entry.extend(halves([width, height]));
        entry.extend(words([0x48_0000, 0x48_0000, 0]));
        entry.extend(halves([1]));
        entry.extend([0; 32]);
        entry.extend(halves([0x18, 0xFFFF]));
        // Colours as they were for standard television, which most tools take for granted.
        let mut colours = b"nclx".to_vec();
        colours.extend(halves([6, 6, 6]));
        colours.push(0);
        boxed(b"avc1", &[&entry, &boxed(b"avcC", &[&setup]), &boxed(b"colr", &[&colours])])
    }
}

/// What the sound is.
fn sound_entry(blocks: &Blocks) -> Vec<u8> {
    let mut entry = vec![0; 6];
    entry.extend(halves([1]));
    entry.extend([0; 8]);
    entry.extend(halves([blocks.channels() as u16, 16, 0, 0]));
    let rate = if blocks.rate() > u32::from(u16::MAX) { 0 } else { blocks.rate() };
    entry.extend(words([rate << 16]));
    let setup = full(b"dfLa", 0, &[&flac::metadata(0, true, &blocks.stream_info())]);
    boxed(b"fLaC", &[&entry, &setup])
}

impl Listed<'_> {
    fn bytes(&self) -> Vec<u8> {
        let duration = self.track.duration();
        let is_sound = self.kind == b"soun";
        let mut header = words([0, 0, self.number, 0, millis(duration, self.units_per_second)]);
        header.extend([0; 8]);
        header.extend(halves([0, 0, if is_sound { 0x100 } else { 0 }, 0]));
        header.extend(words(MATRIX));
        header.extend(words([(self.size.0 as u32) << 16, (self.size.1 as u32) << 16]));
        let mut media = words([0, 0, self.units_per_second, duration.min(u64::from(u32::MAX)) as u32]);
        media.extend(halves([UNDETERMINED, 0]));
        let here = full(b"url ", 1, &[]);
        let data = boxed(b"dinf", &[&full(b"dref", 0, &[&words([1]), &here])]);
        let info = boxed(b"minf", &[&self.header, &data, &self.track.table(&self.entry)]);
        let name = if is_sound { "SoundHandler" } else { "VideoHandler" };
        let media = boxed(b"mdia", &[&full(b"mdhd", 0, &[&media]), &handler(self.kind, name), &info]);
        // Enabled, and part of what is shown.
        boxed(b"trak", &[&full(b"tkhd", 3, &[&header]), &media])
    }
}

fn millis(units: u64, units_per_second: u32) -> u32 {
    (units * MILLIS / u64::from(units_per_second.max(1))).min(u64::from(u32::MAX)) as u32
}
