//! Files as other programs write them: codecs, colours, times, turned pictures, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;

use media::{Error, Frame, Source, VideoReader};

/// The mean and the largest difference of bytes from what ffmpeg reads; it rounds in other places.
const MEAN: f64 = 1.0;
const LARGEST: u8 = 4;

fn source(name: &str) -> Source {
    Source::Path(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name))
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(source(name).path().unwrap()).unwrap()
}

fn all_frames(reader: &mut VideoReader) -> Vec<Frame> {
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

/// Compares the last frame, which depends on all others, with the reference's.
#[track_caller]
fn check_last(name: &str, frames: &[Frame]) {
    let (last, reference) = (&frames.last().unwrap().rgb, bytes(&format!("{name}.rgb")));
    assert_eq!(last.len(), reference.len(), "{name}");
    let far = || last.iter().zip(&reference).map(|(a, b)| a.abs_diff(*b));
    let mean = far().map(f64::from).sum::<f64>() / last.len() as f64;
    let largest = far().max().unwrap();
    println!("{name}: bytes differ by {mean:.3} in the mean, by {largest} at most");
    assert!(mean <= MEAN && largest <= LARGEST, "{name}: {mean} in the mean, {largest} at most");
}

#[test]
fn codecs_and_colours_are_read_as_ffmpeg_reads_them() {
    let files = [
        "vp9.webm",
        "vp9_10bit.webm",
        "vp9_bt709.mp4",
        "av1_bt709.mp4",
        "av1_10bit.webm",
        "av1_grey.webm",
        "h264_bt709.mp4",
        "h264_full.mkv",
    ];
    for name in files {
        let mut reader = VideoReader::open(&source(name)).unwrap();
        let info = reader.info;
        assert_eq!((info.width, info.height, info.frames), (32, 32, Some(8)), "{name}");
        assert!((info.rate.fps() - 8.0).abs() < 0.01, "{name}: {:?}", info.rate);
        let frames = all_frames(&mut reader);
        assert_eq!(frames.len(), 8, "{name}");
        check_last(name, &frames);
        // In memory as on the disk.
        let copy = Source::Bytes(name.into(), bytes(name));
        assert!(all_frames(&mut VideoReader::open(&copy).unwrap()) == frames, "{name}");
    }
}

#[test]
fn frames_that_lie_on_their_side_are_turned() {
    let mut reader = VideoReader::open(&source("h264_turned.mp4")).unwrap();
    assert_eq!((reader.info.width, reader.info.height), (16, 32));
    let frames = all_frames(&mut reader);
    assert_eq!((frames[0].width, frames[0].height), (16, 32));
    check_last("h264_turned.mp4", &frames);
}

#[test]
fn frames_of_different_lengths_keep_their_times() {
    let mut reader = VideoReader::open(&source("h264_uneven.mp4")).unwrap();
    let frames = all_frames(&mut reader);
    assert_eq!(frames.len(), 8);
    check_last("h264_uneven.mp4", &frames);
    let eighths: Vec<f64> =
        (0..8).map(|frame| (reader.time(frame) * 8.0 * 1000.0).round() / 1000.0).collect();
    assert_eq!(eighths, [0.0, 1.0, 2.0, 3.0, 4.0, 7.0, 10.0, 13.0]);
    let (mean, seconds) = (reader.info.rate.fps(), reader.info.seconds.unwrap());
    assert!((mean - 8.0 / seconds).abs() < 0.01 && seconds > 13.0 / 8.0, "{mean} {seconds}");
    assert!((reader.time(8) - seconds).abs() < 1e-9);
}

/// What our decoder of H.264 has no way to read goes to ffmpeg, or is told.
#[test]
fn other_kinds_of_h264_need_ffmpeg() {
    let has_ffmpeg = Command::new("ffmpeg").arg("-version").output().is_ok();
    if !has_ffmpeg {
        println!("ffmpeg is not installed: what it would read is not compared");
    }
    for (name, words) in
        [("h264_10bit.mp4", "10 bits"), ("h264_422.mp4", "4:2:2"), ("h264_interlaced.mp4", "interlaced")]
    {
        // Bytes in memory do not go through a program, so that the error is seen everywhere.
        let copy = Source::Bytes(name.into(), bytes(name));
        let told = VideoReader::open(&copy).err().unwrap();
        assert!(matches!(told, Error::Codec { .. }), "{told}");
        let told = told.to_string();
        assert!(told.contains(name) && told.contains(words) && told.contains("install ffmpeg"), "{told}");
        if has_ffmpeg {
            let frames = all_frames(&mut VideoReader::open(&source(name)).unwrap());
            assert_eq!(frames.len(), 8, "{name}");
            if name == "h264_10bit.mp4" {
                check_last(name, &frames);
            }
        }
    }
}

/// Damaged bytes give errors or other pictures: no panic, and no end of the program.
#[test]
fn damaged_packets_do_no_harm() {
    let mut state = 99u64;
    let mut next = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize
    };
    for name in ["vp9.webm", "vp9_10bit.webm", "av1_bt709.mp4", "av1_10bit.webm", "h264_bt709.mp4"] {
        let whole = bytes(name);
        let (mut fine, mut refused) = (0, 0);
        for round in 0..60 {
            let mut damaged = whole.clone();
            for _ in 0..=round % 6 {
                let at = next() % damaged.len();
                damaged[at] = next() as u8;
            }
            damaged.truncate(if round % 10 == 0 { next() % whole.len() } else { whole.len() });
            match VideoReader::open(&Source::Bytes(name.into(), damaged)) {
                Ok(mut reader) => {
                    while let Ok(Some(_)) = reader.next_frame() {}
                    fine += 1;
                }
                Err(_) => refused += 1,
            }
        }
        assert!(fine > 0 && fine + refused == 60, "{name}: {fine} were opened");
    }
}

/// A header may say that frames are larger than memory.
#[test]
fn headers_that_lie_about_sizes_are_told() {
    // The key frame of VP9 has its sizes in two bytes each, behind its code.
    let mut webm = bytes("vp9.webm");
    let code = webm.windows(3).position(|three| three == [0x49, 0x83, 0x42]).unwrap();
    webm[code + 3..code + 8].fill(0xFF);
    let mut reader = VideoReader::open(&Source::Bytes("large.webm".into(), webm)).unwrap();
    let told = reader.next_frame().err().unwrap().to_string();
    assert!(told.contains("large.webm") && told.contains("65536x65536 pixels"), "{told}");
    // The description of an MP4 file's pictures.
    let mut mp4 = bytes("h264_bt709.mp4");
    let entry = mp4.windows(4).position(|four| four == b"avc1").unwrap();
    let at = (entry..mp4.len()).find(|at| mp4[*at..].starts_with(b"avc1\0\0\0\0\0\0")).unwrap();
    mp4[at + 28..at + 32].fill(0xFF);
    let told = VideoReader::open(&Source::Bytes("large.mp4".into(), mp4)).err().unwrap().to_string();
    assert!(told.contains("65535x65535 pixels") && told.contains("16384"), "{told}");
}

#[test]
fn reading_ends_when_it_is_not_wanted_any_more() {
    let asked = Cell::new(0);
    let goes_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 4
    };
    let opened = VideoReader::open_while(&source("vp9.webm"), &goes_on);
    assert!(matches!(opened.err().unwrap(), Error::Cancelled));
    assert_eq!(asked.get(), 4);
}
