//! What an MP4 file says of a track beside its packets: the codec, how it is turned, what its colours mean.

use std::io::{Read, Seek, SeekFrom};

use crate::colour::Colour;
use crate::limits::MOST_FRAMES;
use crate::rotation::Rotation;

/// What is said of a track.
#[derive(Clone, Debug, Default)]
pub(crate) struct Marks {
    /// Four letters of the codec.
    pub(crate) codec: [u8; 4],
    pub(crate) rotation: Rotation,
    pub(crate) colour: Option<Colour>,
    /// What an AV1 decoder is set up with.
    pub(crate) av1_setup: Option<Vec<u8>>,
    /// When frames are shown, in the order of their packets, where that is another than the order of decoding: our demuxer
    /// tells only the times of decoding.
    pub(crate) times: Option<Vec<i64>>,
}

/// A box: its kind, where its contents begin and where they end.
type Place = ([u8; 4], u64, u64);

/// Boxes in one that are looked at.
const MOST_BOXES: usize = 1000;
/// The longest contents that are read at once: the times of a million frames.
const LONGEST: u64 = 8 << 20;
/// Bytes of a picture's description in front of the boxes in it.
const SAMPLE_ENTRY: u64 = 78;

impl Marks {
    /// Of the track with a number; none if this is no MP4 file or has no such track.
    pub(crate) fn read<R: Read + Seek>(file: &mut R, track: u32) -> Option<Marks> {
        let end = file.seek(SeekFrom::End(0)).ok()?;
        let all = boxes(file, 0, end);
        all.first().filter(|(kind, ..)| kind == b"ftyp")?;
        let (_, start, end) = *find(&all, b"moov")?;
        for (_, start, end) in boxes(file, start, end).iter().filter(|(kind, ..)| kind == b"trak") {
            let parts = boxes(file, *start, *end);
            let Some((number, rotation)) = find(&parts, b"tkhd").and_then(|place| header(file, place)) else {
                continue;
            };
            if number == track {
                return described(file, &parts).map(|marks| Marks { rotation, ..marks });
            }
        }
        None
    }
}

/// The boxes between two places, as far as they are whole.
fn boxes<R: Read + Seek>(file: &mut R, mut at: u64, end: u64) -> Vec<Place> {
    let mut found = Vec::new();
    while at + 8 <= end && found.len() < MOST_BOXES {
        let Some(head) = bytes(file, at, at + 8) else { break };
        let (mut size, mut contents) = (number(&head, 0).map_or(0, u64::from), at + 8);
        match size {
            0 => size = end - at,
            1 => {
                let Some(large) = bytes(file, at + 8, at + 16) else { break };
                size = u64::from_be_bytes(large.try_into().unwrap_or_default());
                contents += 8;
            }
            _ => {}
        }
        let Some(next) = at.checked_add(size).filter(|next| (contents..=end).contains(next)) else { break };
        found.push(([head[4], head[5], head[6], head[7]], contents, next));
        at = next;
    }
    found
}

fn find<'a>(boxes: &'a [Place], kind: &[u8; 4]) -> Option<&'a Place> {
    boxes.iter().find(|place| place.0 == *kind)
}

fn bytes<R: Read + Seek>(file: &mut R, start: u64, end: u64) -> Option<Vec<u8>> {
    let length = end.checked_sub(start).filter(|length| *length <= LONGEST)?;
    let mut bytes = vec![0; length as usize];
    file.seek(SeekFrom::Start(start)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(bytes)
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).map(|four| u32::from_be_bytes([four[0], four[1], four[2], four[3]]))
}

/// A track's number, and how it is turned.
fn header<R: Read + Seek>(file: &mut R, place: &Place) -> Option<(u32, Rotation)> {
    let header = bytes(file, place.1, place.2)?;
    // Times are longer in the second version.
    let (track, matrix) = if header.first()? == &1 { (20, 52) } else { (12, 40) };
    let side = |at: usize| number(&header, matrix + at * 4).map(|value| value as i32);
    Some((number(&header, track)?, Rotation::of_matrix([side(0)?, side(1)?, side(3)?, side(4)?])))
}

/// What the description of a track's packets says.
fn described<R: Read + Seek>(file: &mut R, parts: &[Place]) -> Option<Marks> {
    let mut place = *find(parts, b"mdia")?;
    for kind in [b"minf", b"stbl"] {
        place = *find(&boxes(file, place.1, place.2), kind)?;
    }
    let tables = boxes(file, place.1, place.2);
    let description = find(&tables, b"stsd")?;
    // Behind a version and a count.
    let (codec, start, end) = *boxes(file, description.1 + 8, description.2).first()?;
    let mut marks = Marks { codec, times: times(file, &tables), ..Marks::default() };
    for (kind, start, end) in boxes(file, start + SAMPLE_ENTRY, end) {
        match &kind {
            b"colr" => marks.colour = bytes(file, start, end).and_then(|about| colour(&about)),
            b"av1C" => marks.av1_setup = bytes(file, start, end),
            _ => {}
        }
    }
    Some(marks)
}

/// When frames are shown: the times of decoding, each later by a number of its own. None if there are no such numbers.
fn times<R: Read + Seek>(file: &mut R, tables: &[Place]) -> Option<Vec<i64>> {
    let decoded = runs(file, find(tables, b"stts")?)?;
    let later = runs(file, find(tables, b"ctts")?)?;
    let mut later = later.into_iter().flat_map(|(count, by)| std::iter::repeat_n(by as i32, count as usize));
    let (mut times, mut now) = (Vec::new(), 0i64);
    for (count, length) in decoded {
        for _ in 0..count {
            times.push(now + i64::from(later.next()?));
            now += i64::from(length);
        }
    }
    Some(times)
}

/// A table of numbers, each with how often it is to be taken; none if that is too often for a video.
fn runs<R: Read + Seek>(file: &mut R, place: &Place) -> Option<Vec<(u32, u32)>> {
    let table = bytes(file, place.1, place.2)?;
    let rows = table.get(8..)?.chunks_exact(8).take(number(&table, 4)? as usize);
    let runs: Vec<(u32, u32)> =
        rows.map(|row| Some((number(row, 0)?, number(row, 4)?))).collect::<Option<_>>()?;
    let frames: u64 = runs.iter().map(|(count, _)| u64::from(*count)).sum();
    (frames <= MOST_FRAMES).then_some(runs)
}

/// What values mean, if numbers say it and not a profile.
fn colour(about: &[u8]) -> Option<Colour> {
    let is_full_range = match about.get(..4)? {
        b"nclx" => about.get(10)? & 0x80 != 0,
        b"nclc" => false,
        _ => return None,
    };
    Colour::of(u32::from(u16::from_be_bytes([*about.get(8)?, *about.get(9)?])), is_full_range)
}
