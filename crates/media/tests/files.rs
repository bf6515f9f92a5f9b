//! Files that are written here and read again, here and by a decoder of other make.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::Cursor;
use std::process::Command;

use media::{Error, Frame, FrameRate, Mp4Writer, Sound, Source, VideoPlan, VideoReader, write_flac};
use testkit::ScratchDir;

/// A frame of a picture whose colours move.
fn frame(number: usize, width: usize, height: usize) -> Vec<u8> {
    let pixel = |at: usize| {
        let (x, y) = (at % width, at / width);
        [(x * 255 / width) as u8, (y * 255 / height) as u8, (number * 20 % 256) as u8]
    };
    (0..width * height).flat_map(pixel).collect()
}

fn plan(width: usize, height: usize) -> VideoPlan {
    VideoPlan {
        width,
        height,
        rate: FrameRate::of(24.0).unwrap(),
        quality: 18.0,
        sound: None,
        texts: vec![("prompt".into(), r#"{"1":"grün"}"#.into()), ("workflow".into(), "{}".into())],
    }
}

fn tone(seconds: f32) -> Sound {
    let rate = 44_100;
    let wave = |step: f32| {
        (0..(seconds * rate as f32) as usize).map(|at| (at as f32 * step).sin() * 0.5).collect::<Vec<f32>>()
    };
    Sound { rate, channels: vec![wave(0.05), wave(0.08)] }
}

fn written(plan: VideoPlan, frames: usize) -> Vec<u8> {
    let (width, height) = (plan.width, plan.height);
    let mut writer = Mp4Writer::new(Cursor::new(Vec::new()), plan).unwrap();
    (0..frames).for_each(|number| writer.frame(&frame(number, width, height)).unwrap());
    writer.finish().unwrap().into_inner()
}

fn all_frames(source: &Source) -> Vec<Frame> {
    let mut reader = VideoReader::open(source).unwrap();
    std::iter::from_fn(|| reader.next_frame().unwrap()).collect()
}

/// The mean difference of two pictures' bytes.
fn difference(a: &[u8], b: &[u8]) -> f64 {
    let sum: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    sum as f64 / a.len() as f64
}

#[test]
fn videos_are_read_as_they_were_written() {
    let source = Source::Bytes("a.mp4".into(), written(plan(64, 48), 30));
    let info = VideoReader::open(&source).unwrap().info;
    assert_eq!((info.width, info.height, info.frames), (64, 48, Some(30)));
    assert!((info.rate.fps() - 24.0).abs() < 1e-9, "{:?}", info.rate);
    let frames = all_frames(&source);
    assert_eq!(frames.len(), 30);
    for (number, read) in frames.iter().enumerate() {
        let far = difference(&read.rgb, &frame(number, 64, 48));
        assert!(far < 6.0, "frame {number} differs by {far}");
    }
    assert!(matches!(Sound::read(&source), Err(Error::NoSound { .. })));
}

#[test]
fn sound_ends_with_the_last_frame() {
    let plan = VideoPlan { sound: Some(tone(5.0)), ..plan(64, 48) };
    let read = Sound::read(&Source::Bytes("a.mp4".into(), written(plan, 24))).unwrap();
    assert_eq!((read.rate, read.channels.len()), (44_100, 2));
    let seconds = read.channels[0].len() as f64 / 44_100.0;
    assert!((1.0..1.2).contains(&seconds), "{seconds}");
    let expected = tone(1.0);
    let close = |channel: usize| {
        expected.channels[channel].iter().zip(&read.channels[channel]).all(|(a, b)| (a - b).abs() < 1e-3)
    };
    assert!(close(0) && close(1));
}

#[test]
fn odd_sizes_lose_a_row_and_a_column() {
    let frames = all_frames(&Source::Bytes("a.mp4".into(), written(plan(65, 49), 2)));
    assert_eq!((frames[0].width, frames[0].height), (64, 48));
}

#[test]
fn what_cannot_be_written_is_told() {
    let refused = |width, height| Mp4Writer::new(Cursor::new(Vec::new()), plan(width, height)).err().unwrap();
    assert!(refused(8, 64).to_string().contains("at least 16"));
    assert!(refused(4096, 64).to_string().contains("3840x2160"));
    let empty = Mp4Writer::new(Cursor::new(Vec::new()), plan(64, 48)).unwrap();
    assert!(matches!(empty.finish(), Err(Error::Empty)));
    let mut writer = Mp4Writer::new(Cursor::new(Vec::new()), plan(64, 48)).unwrap();
    assert!(writer.frame(&[0; 10]).is_err());
    let many = Sound { rate: 44_100, channels: vec![vec![0.0]; 9] };
    assert!(matches!(write_flac(&many, &[], &mut Vec::new()), Err(Error::SoundShape { channels: 9, .. })));
}

#[test]
fn files_that_are_no_videos_are_told() {
    let dir = ScratchDir::new().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        std::fs::write(dir.join(name), bytes).unwrap();
        Source::Path(dir.join(name))
    };
    let told = |source: &Source| VideoReader::open(source).err().unwrap().to_string();
    assert!(told(&file("empty.mp4", b"")).contains("empty.mp4"));
    assert!(told(&file("noise.mp4", &[7; 5000])).contains("noise.mp4"));
    let mut sound = Vec::new();
    write_flac(&tone(0.1), &[], &mut sound).unwrap();
    assert!(told(&file("sound.flac", &sound)).contains("no moving pictures"));
    let whole = written(plan(64, 48), 10);
    // The index is at the end, so half a file has none.
    assert!(told(&file("half.mp4", &whole[..whole.len() / 2])).contains("half.mp4"));
    assert!(told(&Source::Path(dir.join("missing.mp4"))).contains("missing.mp4"));
}

/// Damaged bytes give errors or other pictures, and no panic.
#[test]
fn damaged_files_do_no_harm() {
    let whole = written(VideoPlan { sound: Some(tone(0.3)), ..plan(64, 48) }, 6);
    let mut state = 12345u64;
    for _ in 0..60 {
        let mut bytes = whole.clone();
        for _ in 0..8 {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let at = (state >> 33) as usize % bytes.len();
            bytes[at] ^= (state >> 20) as u8;
        }
        let source = Source::Bytes("damaged.mp4".into(), bytes);
        if let Ok(mut reader) = VideoReader::open(&source) {
            while let Ok(Some(_)) = reader.next_frame() {}
        }
        let _ = Sound::read(&source);
    }
}

/// What a decoder of other make says of a file: Python's `av`, which has ffmpeg's. Continuous integration installs it, and names
/// its Python in `GANTRY_PYTHON_AV`.
const PROBE: &str = r#"
import sys, av
with av.open(sys.argv[1]) as file:
    video, sound = file.streams.video[0], file.streams.audio[0]
    frames = [frame.to_ndarray(format="rgb24") for frame in file.decode(video)]
    print(video.codec_context.name, sound.codec_context.name, len(frames), video.average_rate, file.metadata["prompt"])
    print([int(round(float(frame[:, :, 2].mean()))) for frame in frames][:8], frames[0].shape)
    file.seek(0)
    print(sum(frame.samples for frame in file.decode(sound)), sound.rate)
"#;

#[test]
#[ignore = "needs Python with the packages av and numpy; continuous integration runs it"]
fn another_decoder_reads_what_was_written() {
    let dir = ScratchDir::new().unwrap();
    let path = dir.join("a.mp4");
    let plan = VideoPlan { sound: Some(tone(1.0)), ..plan(64, 48) };
    let mut writer = Mp4Writer::new(File::create(&path).unwrap(), plan).unwrap();
    (0..24).for_each(|number| writer.frame(&frame(number, 64, 48)).unwrap());
    writer.finish().unwrap();
    let python = std::env::var("GANTRY_PYTHON_AV").unwrap_or_else(|_| "python3".to_owned());
    let output = Command::new(python).args(["-c", PROBE]).arg(&path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], r#"h264 flac 24 24 {"1":"grün"}"#);
    assert!(lines[1].ends_with("(48, 64, 3)"), "{told}");
    // The blue of the frames rises by 20.
    let blues: Vec<i64> =
        lines[1][1..].split(']').next().unwrap().split(", ").map(|n| n.parse().unwrap()).collect();
    assert!(blues.iter().zip(0..).all(|(blue, number)| (blue - number * 20).abs() < 8), "{told}");
    assert_eq!(lines[2], "44100 44100");
}
