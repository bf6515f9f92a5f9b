//! Every example workflow, in the API's and in the editor's format, run on the demo model by the binary.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "the guides' test uses the rest")]
mod demo_files;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use testkit::ScratchDir;

/// Examples that must draw the same picture as `text-to-image`, bit for bit: the same model, prompt and seed,
/// stored elsewhere, in one file, or sampled by parts.
const SAME: [&str; 6] = [
    "virtual-vram",
    "allocation-string",
    "keep-loaded",
    "encoders-elsewhere",
    "checkpoint",
    "custom-sampler",
];

fn examples() -> PathBuf {
    demo_files::root().join("examples")
}

/// The names of the examples in one format.
fn names(format: &str) -> BTreeSet<String> {
    let files = std::fs::read_dir(examples().join(format)).unwrap();
    files.map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()).collect()
}

fn text(format: &str, name: &str) -> String {
    std::fs::read_to_string(examples().join(format).join(format!("{name}.json"))).unwrap()
}

fn json(format: &str, name: &str) -> Value {
    serde_json::from_str(&text(format, name)).unwrap()
}

/// `gantry run` with simulated devices where the example names them.
fn gantry(format: &str, name: &str, base: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.arg("run").arg(examples().join(format).join(format!("{name}.json")));
    command.args(["--cpu", "--disable-metadata", "--base-directory"]).arg(base);
    command.arg("--input-directory").arg(examples().join("input"));
    if text("api", name).contains("sim:") {
        command.args(["--sim-device", "8gb@12gbps", "--sim-device", "8gb@12gbps"]);
    }
    command
}

fn output(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The pixels of a picture, and its width.
fn pixels(path: &Path) -> (Vec<u8>, usize) {
    let bytes = std::fs::read(path).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(info.color_type, png::ColorType::Rgb);
    (pixels, info.width as usize)
}

/// Runs an example; the pictures that it saves, in order.
fn pictures(format: &str, name: &str, base: &Path) -> Vec<(Vec<u8>, usize)> {
    let mut command = gantry(format, name, base);
    command.arg("-o").arg(base.join(format));
    let printed = output(command);
    let saved: Vec<_> = printed.lines().map(|line| pixels(Path::new(line))).collect();
    assert!(!saved.is_empty(), "{format}/{name} saved nothing");
    saved
}

/// The share of bytes that differ within a rectangle of two pictures of 128 pixels.
fn differing(one: &[u8], other: &[u8], inside: impl Fn(usize, usize) -> bool) -> f64 {
    assert_eq!(one.len(), other.len());
    let at = |i: usize| (i / 3 % 128, i / 3 / 128);
    let counted: Vec<usize> = (0..one.len()).filter(|i| inside(at(*i).0, at(*i).1)).collect();
    let differs = counted.iter().filter(|i| one[**i].abs_diff(other[**i]) > 24).count();
    differs as f64 / counted.len() as f64
}

/// What every example saved, by its name.
type Drawn = BTreeMap<String, Vec<(Vec<u8>, usize)>>;

#[test]
fn every_example_draws_in_both_formats_what_it_should() {
    let base = ScratchDir::new().unwrap();
    demo_files::write_checkpoint(&base.join("models/checkpoints/demo-checkpoint.safetensors"));
    let names = names("api");
    assert!(names.len() >= 12, "{names:?}");
    let mut drawn = Drawn::new();
    for name in names {
        let saved = pictures("api", &name, base.path());
        let edited = pictures("editor", &name, base.path());
        assert!(saved == edited, "{name}: the editor's form draws another picture");
        for (pixels, _) in &saved {
            let colours: BTreeSet<&[u8]> = pixels.chunks(3).collect();
            assert!(colours.len() > 50, "{name}: an empty picture");
        }
        drawn.insert(name, saved);
    }
    those_that_should_agree_do(&drawn);
    those_that_should_differ_do(&drawn);
    those_that_start_from_a_picture_keep_what_they_should(&drawn);
}

fn those_that_should_agree_do(drawn: &Drawn) {
    let plain = &drawn["text-to-image"][0].0;
    for name in SAME {
        assert!(drawn[name][0].0 == *plain, "{name} gives other bits than text-to-image");
    }
    assert!(drawn["two-passes"][0].0 == *plain, "the first pass is that of text-to-image");
}

fn those_that_should_differ_do(drawn: &Drawn) {
    let plain = &drawn["text-to-image"][0].0;
    assert_eq!(drawn["two-passes"][1].1, 192);
    let quantised = differing(&drawn["gguf"][0].0, plain, |_, _| true);
    assert!(drawn["gguf"][0].0 != *plain && quantised < 0.01, "{quantised} of the GGUF's picture differs");
    let outlined = differing(&drawn["lora"][0].0, plain, |_, _| true);
    assert!(outlined > 0.03, "the LoRA changes {outlined} of the picture");
    let batch = &drawn["batch"];
    let different: BTreeSet<&[u8]> = batch.iter().map(|(pixels, _)| pixels.as_slice()).collect();
    assert_eq!((batch.len(), different.len()), (4, 4));
}

fn those_that_start_from_a_picture_keep_what_they_should(drawn: &Drawn) {
    let (start, _) = pixels(&examples().join("input/shapes.png"));
    let upper = |_: usize, y: usize| y < 56;
    let lower = |_: usize, y: usize| y >= 64;
    let differ = |name: &str| {
        let pixels = &drawn[name][0].0;
        (differing(pixels, &start, upper), differing(pixels, &start, lower))
    };
    // The prompt makes the circle green and leaves the square.
    let (above, below) = differ("image-to-image");
    assert!(above > 0.05 && below < 0.02, "{above} of the upper half and {below} of the lower one differ");
    // The hole has another shape now, and the rest is what it was.
    let (above, below) = differ("inpaint");
    assert!(above < 0.01 && below > 0.05, "{above} of the upper half and {below} of the hole differ");
    // Half a red circle over half a blue square.
    let joined = &drawn["masks-and-composite"][0].0;
    let pixel = |x: usize, y: usize| &joined[(y * 128 + x) * 3..][..3];
    assert!(pixel(50, 64)[0] > 180 && pixel(50, 64)[2] < 90, "{:?}", pixel(50, 64));
    assert!(pixel(78, 64)[2] > 180 && pixel(78, 64)[0] < 90, "{:?}", pixel(78, 64));
}

#[test]
fn the_editors_form_converts_to_the_apis() {
    assert_eq!(names("api"), names("editor"));
    let base = ScratchDir::new().unwrap();
    for name in names("editor") {
        let mut command = gantry("editor", &name, base.path());
        command.arg("--convert");
        let converted: Value = serde_json::from_str(&output(command)).unwrap();
        assert_eq!(converted, json("api", &name), "{name}");
    }
}

/// Left, top, right and bottom of a node or group, with the bar that has its title.
fn edges(of: &Value) -> [f64; 4] {
    let number = |value: &Value| value.as_f64().unwrap();
    let ([x, y], [width, height]) = match of.get("bounding") {
        Some(b) => ([number(&b[0]), number(&b[1])], [number(&b[2]), number(&b[3])]),
        None => (
            [number(&of["pos"][0]), number(&of["pos"][1]) - 30.0],
            [number(&of["size"][0]), number(&of["size"][1]) + 30.0],
        ),
    };
    [x, y, x + width, y + height]
}

fn overlap(one: &Value, other: &Value) -> bool {
    let (a, b) = (edges(one), edges(other));
    a[0] < b[2] && b[0] < a[2] && a[1] < b[3] && b[1] < a[3]
}

#[test]
fn the_editors_form_is_laid_out_from_left_to_right_without_overlaps() {
    for name in names("editor") {
        let workflow = json("editor", &name);
        let list = |key: &str| workflow[key].as_array().unwrap().clone();
        let (nodes, links, groups) = (list("nodes"), list("links"), list("groups"));
        for boxes in [&nodes, &groups] {
            for (index, one) in boxes.iter().enumerate() {
                for other in &boxes[index + 1..] {
                    assert!(!overlap(one, other), "{name}: {one} lies over {other}");
                }
            }
        }
        let node = |id: &Value| nodes.iter().find(|node| node["id"] == *id).unwrap();
        for link in &links {
            let (from, to) = (node(&link[1]), node(&link[3]));
            let slot = |value: &Value| usize::try_from(value.as_u64().unwrap()).unwrap();
            let listed = from["outputs"][slot(&link[2])]["links"].as_array().unwrap();
            assert!(listed.contains(&link[0]), "{name}: link {link} is not at its source");
            assert_eq!(
                to["inputs"][slot(&link[4])]["link"],
                link[0],
                "{name}: link {link} is not at its end"
            );
            assert!(edges(from)[0] <= edges(to)[0], "{name}: link {link} goes to the left");
        }
        let notes: Vec<&Value> = nodes.iter().filter(|node| node["type"] == "Note").collect();
        assert!(notes.len() == 1 && notes[0]["widgets_values"][0].as_str().unwrap().len() > 100, "{name}");
    }
}
