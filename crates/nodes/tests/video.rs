//! Videos and sound through nodes: made, saved, loaded, cut; and what users can get wrong with them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Backend, Device, Registry};
use device_cpu::CpuBackend;
use graph::{Call, Catalogue, Failure, Inputs, Literal, Outcome, Outputs, Slot, Value};
use meta::DeviceId;
use nodes::value::{Audio, Image};
use runtime::host::Host;
use runtime::{Folders, Runtime, Settings};
use testkit::ScratchDir;

struct Bench {
    folder: ScratchDir,
    catalogue: Catalogue,
}

impl Bench {
    fn new() -> Bench {
        let folder = ScratchDir::new().unwrap();
        let backend: Arc<dyn Backend> = Arc::new(CpuBackend::new());
        let devices = Registry::new([Device::new(backend, 4 << 30)]);
        std::fs::create_dir_all(folder.join("input")).unwrap();
        let runtime = Runtime::new(Folders::at(folder.path()), devices, DeviceId::CPU, Settings::default());
        let catalogue = nodes::catalogue(&Arc::new(runtime));
        Bench { folder, catalogue }
    }

    fn outcome(&self, class: &str, inputs: Inputs) -> Result<Outcome, Failure> {
        self.catalogue.get(class).unwrap().run(&Call::alone(class, inputs))
    }

    fn values(&self, class: &str, inputs: Inputs) -> Vec<Value> {
        let Outputs::Slots(slots) = self.outcome(class, inputs).unwrap().outputs else { panic!("no values") };
        let value = |slot: Slot| match slot {
            Slot::One(value) => value,
            other => panic!("{other:?} is not one value"),
        };
        slots.into_iter().map(value).collect()
    }

    fn video(&self, frames: usize, audio: Option<Value>) -> Value {
        let inputs = Inputs::default().with("images", Value::object(pictures(frames))).with("fps", 8.0);
        let inputs = match audio {
            Some(audio) => inputs.with("audio", audio),
            None => inputs,
        };
        self.values("CreateVideo", inputs).remove(0)
    }

    fn save(&self, video: Value) -> Outcome {
        let inputs = Inputs::default().with("video", video).with("filename_prefix", "video/test");
        self.outcome("SaveVideo", inputs.with("format", "auto").with("codec", "auto")).unwrap()
    }

    /// Copies what was saved to where it can be loaded from.
    fn as_input(&self, name: &str) {
        let from = self.folder.join("output/video").join(name);
        std::fs::copy(from, self.folder.join("input").join(name)).unwrap();
    }

    fn load(&self, name: &str) -> Value {
        self.values("LoadVideo", Inputs::default().with("file", name)).remove(0)
    }

    fn components(&self, video: Value) -> Vec<Value> {
        self.values("GetVideoComponents", Inputs::default().with("video", video))
    }
}

/// Pictures that become lighter.
fn pictures(frames: usize) -> Image {
    let shape = [frames, 32, 48, 3];
    let value = |at: usize| (at / (32 * 48 * 3)) as f32 / frames as f32;
    Image::collect(&Host::with_budget(1 << 30), shape, (0..shape.iter().product()).map(value)).unwrap()
}

fn tone(seconds: f32) -> Value {
    let wave = |at: usize| (at as f32 * 0.05).sin() * 0.5;
    let channel: Vec<f32> = (0..(seconds * 16_000.0) as usize).map(wave).collect();
    let sound = media::Sound { rate: 16_000, channels: vec![channel] };
    Value::object(Audio::of_sound(&Host::with_budget(1 << 30), &sound).unwrap())
}

fn item(outcome: &Outcome, key: &str) -> graph::Map {
    let Some(Literal::List(items)) = outcome.ui.as_ref().unwrap().get(key) else { panic!("no {key}") };
    let Literal::Map(item) = &items[0] else { panic!("{items:?}") };
    item.clone()
}

fn text(item: &graph::Map, key: &str) -> String {
    item.get(key).unwrap().as_text().unwrap().to_owned()
}

#[test]
fn a_video_is_saved_and_loaded_again() {
    let bench = Bench::new();
    let saved = bench.save(bench.video(16, Some(tone(5.0))));
    let file = item(&saved, "images");
    assert_eq!(
        (text(&file, "filename"), text(&file, "subfolder")),
        ("test_00001_.mp4".into(), "video".into())
    );
    assert_eq!(saved.ui.as_ref().unwrap().get("animated"), Some(&Literal::List(vec![true.into()])));
    bench.as_input("test_00001_.mp4");
    let parts = bench.components(bench.load("test_00001_.mp4"));
    let images = parts[0].downcast::<Image>().unwrap();
    assert_eq!(images.shape(), [16, 32, 48, 3]);
    for frame in 0..16 {
        let mean = images.frame(frame).iter().sum::<f32>() / images.frame(frame).len() as f32;
        assert!((mean - frame as f32 / 16.0).abs() < 0.05, "frame {frame} is {mean}");
    }
    // The sound is cut where the pictures end.
    let audio = parts[1].downcast::<Audio>().unwrap();
    assert_eq!((audio.shape[0], audio.shape[1], audio.rate), (1, 1, 16_000));
    assert!((32_000..36_200).contains(&audio.shape[2]), "{:?}", audio.shape);
    assert!((parts[2].literal().unwrap().as_float().unwrap() - 8.0).abs() < 1e-9);
    // Metadata that front ends look for.
    let bytes = std::fs::read(bench.folder.join("output/video/test_00001_.mp4")).unwrap();
    let has = |what: &[u8]| bytes.windows(what.len()).any(|window| window == what);
    assert!(has(b"mdtaprompt") && has(b"avcC"));
}

#[test]
fn parts_of_videos() {
    let bench = Bench::new();
    bench.save(bench.video(16, Some(tone(2.0))));
    bench.as_input("test_00001_.mp4");
    let slice = |video: Value, start: f64, duration: f64, strict: bool| {
        let inputs =
            Inputs::default().with("video", video).with("start_time", start).with("duration", duration);
        bench.outcome("Video Slice", inputs.with("strict_duration", strict))
    };
    let first = |outcome: Outcome| {
        let Outputs::Slots(slots) = outcome.outputs else { panic!("no values") };
        let Some(Slot::One(value)) = slots.into_iter().next() else { panic!("no value") };
        value
    };
    for video in [bench.load("test_00001_.mp4"), bench.video(16, Some(tone(2.0)))] {
        let part = first(slice(video.clone(), 0.5, 1.0, true).unwrap());
        let parts = bench.components(part.clone());
        assert_eq!(parts[0].downcast::<Image>().unwrap().batch, 8);
        let audio = parts[1].downcast::<Audio>().unwrap();
        assert_eq!(audio.shape[2], 16_000);
        let end = bench.components(first(slice(video.clone(), -0.5, 0.0, false).unwrap()));
        assert_eq!(end[0].downcast::<Image>().unwrap().batch, 4);
        // A part of a part.
        let inner = bench.components(first(slice(part, 0.25, 0.25, false).unwrap()));
        assert_eq!(inner[0].downcast::<Image>().unwrap().batch, 2);
        let told = slice(video, 1.5, 1.0, true).unwrap_err().to_string();
        assert!(told.contains("only 0.500 seconds"), "{told}");
    }
}

#[test]
fn a_job_that_ends_leaves_no_file() {
    let bench = Bench::new();
    let inputs = Inputs::default().with("video", bench.video(4, None)).with("filename_prefix", "video/test");
    let call = Call::alone("SaveVideo", inputs.with("format", "auto").with("codec", "auto"));
    call.job.cancel.store(true, Ordering::Relaxed);
    assert!(bench.catalogue.get("SaveVideo").unwrap().run(&call).is_err());
    let left: Vec<_> = std::fs::read_dir(bench.folder.join("output/video")).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn sound_is_saved_and_loaded_again() {
    let bench = Bench::new();
    let inputs = Inputs::default().with("audio", tone(0.5)).with("filename_prefix", "sound");
    let saved = bench.outcome("SaveAudio", inputs).unwrap();
    let name = text(&item(&saved, "audio"), "filename");
    assert_eq!(name, "sound_00001_.flac");
    std::fs::copy(bench.folder.join("output").join(&name), bench.folder.join("input").join(&name)).unwrap();
    let loaded = bench.values("LoadAudio", Inputs::default().with("audio", name.as_str())).remove(0);
    let (own, loaded) = (tone(0.5).downcast::<Audio>().unwrap(), loaded.downcast::<Audio>().unwrap());
    assert_eq!((own.shape, own.rate), (loaded.shape, loaded.rate));
    assert!(own.values.iter().zip(&loaded.values).all(|(a, b)| (a - b).abs() < 1e-4));
    let shown = bench.outcome("PreviewAudio", Inputs::default().with("audio", tone(0.5))).unwrap();
    assert_eq!(text(&item(&shown, "audio"), "type"), "temp");
}

#[test]
fn sound_is_cut_and_recorded() {
    let bench = Bench::new();
    let whole = tone(0.5).downcast::<Audio>().unwrap();
    let [_, _, length] = whole.shape;
    let cut = |start: f64, duration: f64| {
        let inputs = Inputs::default().with("audio", tone(0.5)).with("start_index", start);
        bench.outcome("TrimAudioDuration", inputs.with("duration", duration))
    };
    let values = |start: f64, duration: f64| {
        let Outputs::Slots(slots) = cut(start, duration).unwrap().outputs else { panic!("no values") };
        let Some(Slot::One(value)) = slots.into_iter().next() else { panic!("no value") };
        let audio = value.downcast::<Audio>().unwrap();
        assert_eq!((audio.rate, audio.shape[..2].to_vec()), (whole.rate, whole.shape[..2].to_vec()));
        audio.values.to_vec()
    };
    let (tenth, fifth) = (whole.rate as usize / 10, whole.rate as usize / 5);
    assert_eq!(values(0.1, 0.1)[..tenth], whole.values[tenth..fifth]);
    assert_eq!(values(-0.1, 60.0)[..tenth], whole.values[length - tenth..length]);
    assert_eq!(values(0.0, 60.0), whole.values.to_vec());
    assert!(cut(0.1, 0.0).unwrap_err().to_string().contains("nothing would be left"));
    let inputs = Inputs::default().with("audio", tone(0.5)).with("filename_prefix", "sound");
    let saved = bench.outcome("SaveAudio", inputs).unwrap();
    let name = text(&item(&saved, "audio"), "filename");
    std::fs::copy(bench.folder.join("output").join(&name), bench.folder.join("input").join(&name)).unwrap();
    let recorded = bench.values("RecordAudio", Inputs::default().with("audio", name.as_str())).remove(0);
    assert_eq!(recorded.downcast::<Audio>().unwrap().shape, whole.shape);
    let nothing = bench.outcome("RecordAudio", Inputs::default().with("audio", "")).unwrap_err();
    assert!(nothing.to_string().contains("nothing was recorded"), "{nothing}");
}

#[test]
fn video_helper_suite_saves_and_loads() {
    let bench = Bench::new();
    let inputs = Inputs::default()
        .with("images", Value::object(pictures(6)))
        .with("frame_rate", 8.0)
        .with("loop_count", 0)
        .with("filename_prefix", "video/combined")
        .with("format", "video/h264-mp4")
        .with("pingpong", true)
        .with("save_output", true);
    let saved = bench.outcome("VHS_VideoCombine", inputs).unwrap();
    let file = item(&saved, "gifs");
    assert_eq!(text(&file, "format"), "video/h264-mp4");
    bench.as_input(&text(&file, "filename"));
    let load = |skip: usize, every: usize, cap: usize, rate: f64, width: usize| {
        let inputs = Inputs::default()
            .with("video", text(&file, "filename"))
            .with("force_rate", rate)
            .with("custom_width", width)
            .with("custom_height", 0)
            .with("frame_load_cap", cap)
            .with("skip_first_frames", skip)
            .with("select_every_nth", every);
        bench.values("VHS_LoadVideo", inputs)[0].downcast::<Image>().unwrap()
    };
    // Six frames and four on the way back.
    assert_eq!(load(0, 1, 0, 0.0, 0).batch, 10);
    assert_eq!(load(2, 3, 0, 0.0, 0).batch, 3);
    assert_eq!(load(0, 1, 4, 0.0, 24).shape(), [4, 16, 24, 3]);
    assert_eq!(load(0, 1, 0, 16.0, 0).batch, 20);
    assert_eq!(load(0, 1, 0, 4.0, 0).batch, 5);
}

#[test]
fn video_helper_suite_does_what_its_inputs_say() {
    let bench = Bench::new();
    let combine = |format: &str, more: &[(&str, Value)]| {
        let inputs = Inputs::default()
            .with("images", Value::object(pictures(6)))
            .with("frame_rate", 8.0)
            .with("filename_prefix", "video/combined")
            .with("format", format)
            .with("pingpong", false)
            .with("save_output", true);
        let more = more.iter().fold(inputs, |inputs, (name, value)| inputs.with(name, value.clone()));
        let saved = bench.outcome("VHS_VideoCombine", more);
        saved.map(|saved| text(&item(&saved, "gifs"), "filename")).map_err(|error| error.to_string())
    };
    let number = |n: i64| Value::Literal(Literal::from(n));
    let word = |text: &str| Value::Literal(Literal::from(text));
    let frames = |name: &str| {
        bench.as_input(name);
        let components =
            bench.values("GetVideoComponents", Inputs::default().with("video", bench.load(name)));
        components[0].downcast::<Image>().unwrap().batch
    };
    let looped = combine("video/h264-mp4", &[("loop_count", number(2))]).unwrap();
    assert_eq!(frames(&looped), 18);
    let sound =
        [("loop_count", number(0)), ("audio", tone(0.5)), ("trim_to_audio", Value::Literal(true.into()))];
    assert_eq!(frames(&combine("video/h264-mp4", &sound).unwrap()), 4);
    let told =
        combine("video/h264-mp4", &[("loop_count", number(0)), ("pix_fmt", word("yuv444p"))]).unwrap_err();
    assert!(told.contains("yuv444p") && told.contains("yuv420p"), "{told}");
    let told = combine("video/webm", &[("loop_count", number(0)), ("audio", tone(0.5))]).unwrap_err();
    assert!(told.contains("without sound"), "{told}");
    let moving = combine("image/webp", &[("loop_count", number(3))]).unwrap();
    let bytes = std::fs::read(bench.folder.join("output/video").join(moving)).unwrap();
    let about = bytes.windows(4).position(|four| four == b"ANIM").unwrap();
    assert_eq!(bytes[about + 12..about + 14], [3, 0]);
}

/// WebM is written by ffmpeg. Where there is none, that is said, and no file is left behind.
#[test]
fn webm_is_written_by_ffmpeg() {
    let bench = Bench::new();
    let has_ffmpeg = std::process::Command::new("ffmpeg").arg("-version").output().is_ok();
    for codec in ["vp9", "av1"] {
        let inputs = Inputs::default()
            .with("images", Value::object(pictures(6)))
            .with("filename_prefix", "video/test")
            .with("codec", codec)
            .with("fps", 8.0)
            .with("crf", 20.0);
        let saved = bench.outcome("SaveWEBM", inputs);
        if !has_ffmpeg {
            println!("ffmpeg is not installed: that it writes {codec} is not tested");
            let told = saved.unwrap_err().to_string();
            assert!(told.contains("ffmpeg") && told.contains("SaveVideo"), "{told}");
            let left: Vec<_> =
                std::fs::read_dir(bench.folder.join("output/video")).unwrap().flatten().collect();
            assert!(left.is_empty(), "{left:?}");
            continue;
        }
        let file = item(&saved.unwrap(), "images");
        let name = text(&file, "filename");
        assert!(name.ends_with(".webm"), "{name}");
        bench.as_input(&name);
        let parts = bench.components(bench.load(&name));
        let images = parts[0].downcast::<Image>().unwrap();
        assert_eq!(images.shape(), [6, 32, 48, 3], "{codec}");
        for frame in 0..6 {
            let mean = images.frame(frame).iter().sum::<f32>() / images.frame(frame).len() as f32;
            assert!((mean - frame as f32 / 6.0).abs() < 0.05, "{codec}: frame {frame} is {mean}");
        }
        assert!((parts[2].literal().unwrap().as_float().unwrap() - 8.0).abs() < 0.01, "{codec}");
        // How it was made is in its tags.
        let bytes = std::fs::read(bench.folder.join("output/video").join(&name)).unwrap();
        assert!(bytes.windows(6).any(|window| window == b"PROMPT"), "{codec}");
    }
}

/// Frames at 0, 1, 2, 3, 4, 7, 10 and 13 eighths of a second.
#[test]
fn frames_of_different_lengths_are_taken_by_their_times() {
    let bench = Bench::new();
    let name = "h264_uneven.mp4";
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../media/tests/data").join(name);
    std::fs::copy(file, bench.folder.join("input").join(name)).unwrap();
    let count = |values: Vec<Value>| values[0].downcast::<Image>().unwrap().batch;
    assert_eq!(count(bench.components(bench.load(name))), 8);
    let slice = |start: f64, duration: f64| {
        let inputs = Inputs::default().with("video", bench.load(name)).with("start_time", start);
        let inputs = inputs.with("duration", duration).with("strict_duration", false);
        let part = bench.values("Video Slice", inputs).remove(0);
        count(bench.components(part))
    };
    // 7 and 10 eighths; all from 4 eighths on.
    assert_eq!((slice(0.8, 0.6), slice(0.5, 0.0)), (2, 4));
    let inputs = Inputs::default()
        .with("video", name)
        .with("force_rate", 8.0)
        .with("custom_width", 0)
        .with("custom_height", 0)
        .with("frame_load_cap", 0)
        .with("skip_first_frames", 0)
        .with("select_every_nth", 1);
    // Every eighth up to the last frame's time, and what that one lasts.
    let even = count(bench.values("VHS_LoadVideo", inputs));
    assert!((14..=15).contains(&even), "{even}");
}

#[test]
fn files_that_cannot_be_read_are_told() {
    let bench = Bench::new();
    for (name, bytes) in [("empty.mp4", &b""[..]), ("noise.mp4", &[9; 4000][..])] {
        std::fs::write(bench.folder.join("input").join(name), bytes).unwrap();
        let video = bench.load(name);
        let told = bench.outcome("GetVideoComponents", Inputs::default().with("video", video)).unwrap_err();
        assert!(told.to_string().contains(name), "{told}");
        let told = bench.outcome("LoadAudio", Inputs::default().with("audio", name)).unwrap_err();
        assert!(told.to_string().contains(name), "{told}");
    }
    let small = Image::filled(&Host::with_budget(1 << 20), [1, 8, 8, 3], 0.5).unwrap();
    let video =
        bench.values("CreateVideo", Inputs::default().with("images", Value::object(small)).with("fps", 8.0));
    let inputs = Inputs::default().with("video", video[0].clone()).with("filename_prefix", "small");
    let told = bench.outcome("SaveVideo", inputs.with("format", "auto").with("codec", "auto")).unwrap_err();
    assert!(told.to_string().contains("at least 16 pixels"), "{told}");
}

#[test]
fn pictures_come_out_of_a_codec_alike_but_not_the_same() {
    let bench = Bench::new();
    // Rows and columns become lighter; the last of each makes the size odd.
    let shape = [2, 33, 49, 3];
    let value = |at: usize| (at / 3 % 49 + at / (3 * 49) % 33) as f32 / 82.0;
    let before =
        Image::collect(&Host::with_budget(1 << 30), shape, (0..shape.iter().product()).map(value)).unwrap();
    let through = |lost: usize| {
        let image = Value::object(before.clone());
        let inputs = Inputs::default().with("image", image).with("img_compression", lost);
        bench.values("LTXVPreprocess", inputs)[0].downcast::<Image>().unwrap()
    };
    assert!(*through(0) == before);
    let after = through(35);
    assert_eq!(after.shape(), [2, 32, 48, 3]);
    let off = |at: usize| {
        let (row, column) = (at / (3 * 48) % 32, at / 3 % 48);
        (after.values[at] - (row + column) as f32 / 82.0).abs()
    };
    let most = (0..after.values.len()).map(off).fold(0.0, f32::max);
    assert!((0.001..0.15).contains(&most), "{most}");
}
