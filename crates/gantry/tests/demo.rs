//! The demo model through the binary: fifty captions, judged by plain pixel statistics, and the same picture
//! wherever the weights are.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::Command;

use serde_json::Value;
use testkit::ScratchDir;

const SIDE: usize = 128;
/// The colours that captions name.
const COLOURS: [(&str, [u8; 3]); 12] = [
    ("red", [220, 35, 35]),
    ("green", [35, 160, 60]),
    ("blue", [35, 75, 225]),
    ("yellow", [250, 220, 40]),
    ("orange", [250, 135, 20]),
    ("purple", [135, 45, 170]),
    ("pink", [255, 150, 195]),
    ("cyan", [60, 210, 225]),
    ("brown", [120, 70, 35]),
    ("gray", [135, 135, 135]),
    ("black", [12, 12, 12]),
    ("white", [250, 250, 250]),
];

fn draw(dir: &Path, caption: &str, more: &[&str]) -> Vec<u8> {
    let file = dir.join("picture.png");
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["demo", caption, "--cpu", "-o"]).arg(&file).args(more);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{caption}: {}", String::from_utf8_lossy(&output.stderr));
    let bytes = std::fs::read(&file).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!((info.width as usize, info.height as usize), (SIDE, SIDE));
    pixels
}

/// The name of the colour nearest to each pixel.
fn labels(pixels: &[u8]) -> Vec<&'static str> {
    let distance = |pixel: &[u8], colour: &[u8; 3]| -> u32 {
        pixel.iter().zip(colour).map(|(a, b)| u32::from(a.abs_diff(*b)).pow(2)).sum()
    };
    let nearest = |pixel: &[u8]| COLOURS.iter().min_by_key(|(_, colour)| distance(pixel, colour)).unwrap().0;
    pixels.chunks(3).map(nearest).collect()
}

/// What a caption promises and the picture does not keep; nothing if it is right.
fn fault(labels: &[&str], scene: &Value) -> Option<String> {
    let background = scene["background"].as_str().unwrap();
    let at_border = |i: usize| [i / SIDE, i % SIDE].iter().any(|at| *at < 3 || *at >= SIDE - 3);
    let border: Vec<usize> = (0..labels.len()).filter(|i| at_border(*i)).collect();
    if border.iter().filter(|i| labels[**i] == background).count() * 10 < border.len() * 9 {
        return Some(format!("the background is not {background}"));
    }
    let mut centres = Vec::new();
    for figure in scene["figures"].as_array().unwrap() {
        let colour = figure["colour"].as_str().unwrap();
        let own: Vec<usize> = (0..labels.len()).filter(|i| labels[*i] == colour).collect();
        let share = own.len() as f64 / labels.len() as f64;
        if !(0.008..0.5).contains(&share) {
            return Some(format!("{colour} covers {:.1} %", share * 100.0));
        }
        let mean = |of: fn(usize) -> usize| own.iter().map(|i| of(*i) as f64).sum::<f64>() / own.len() as f64;
        centres.push((mean(|i| i % SIDE), mean(|i| i / SIDE)));
    }
    let apart = 12.0;
    let placed = match (scene["relation"].as_str(), centres.as_slice()) {
        (Some("above"), [a, b]) => b.1 - a.1 > apart,
        (Some("below"), [a, b]) => a.1 - b.1 > apart,
        (Some("left of"), [a, b]) => b.0 - a.0 > apart,
        (Some("right of"), [a, b]) => a.0 - b.0 > apart,
        _ => true,
    };
    (!placed).then(|| format!("{} does not hold: {centres:?}", scene["relation"]))
}

#[test]
fn at_least_45_of_50_captions_come_out_right() {
    let dir = ScratchDir::new().unwrap();
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/captions.json");
    let captions: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let beside = captions.iter().filter(|scene| scene["relation"] != "inside");
    let scenes: Vec<&Value> = beside.take(50).collect();
    assert_eq!(scenes.len(), 50);
    let mut faults = Vec::new();
    for scene in &scenes {
        let caption = scene["caption"].as_str().unwrap();
        if let Some(fault) = fault(&labels(&draw(dir.path(), caption, &[])), scene) {
            faults.push(format!("{caption}: {fault}"));
        }
    }
    println!("{} of 50 right\n{}", 50 - faults.len(), faults.join("\n"));
    assert!(faults.len() <= 5, "{} of 50 wrong:\n{}", faults.len(), faults.join("\n"));
}

#[test]
fn the_judge_sees_what_is_wrong() {
    let scene = serde_json::json!({
        "background": "white", "relation": "above",
        "figures": [{"colour": "red"}, {"colour": "blue"}],
    });
    let paint = |top: &'static str, bottom: &'static str, rest: &'static str| -> Vec<&'static str> {
        let inside =
            |i: usize, row: usize| (row..row + 30).contains(&(i / SIDE)) && (50..80).contains(&(i % SIDE));
        (0..SIDE * SIDE)
            .map(|i| {
                if inside(i, 15) {
                    top
                } else if inside(i, 75) {
                    bottom
                } else {
                    rest
                }
            })
            .collect()
    };
    assert_eq!(fault(&paint("red", "blue", "white"), &scene), None);
    assert!(fault(&paint("blue", "red", "white"), &scene).is_some());
    assert!(fault(&paint("red", "blue", "black"), &scene).is_some());
    assert!(fault(&paint("red", "green", "white"), &scene).is_some());
}

#[test]
fn the_same_picture_resident_streamed_split_and_nearly_so_quantised() {
    let dir = ScratchDir::new().unwrap();
    let caption = "a red circle above a blue square";
    let resident = draw(dir.path(), caption, &[]);
    let sims = ["--sim-device", "256mb@20gbps", "--sim-device", "256mb@20gbps", "--compute", "sim:0"];
    for alloc in ["", "sim:0,2mb;cpu,*", "sim:0,2mb;sim:1,1mb;cpu,*"] {
        let more = [&sims[..], &["--alloc", alloc]].concat();
        assert!(draw(dir.path(), caption, &more) == resident, "'{alloc}' gives other bits");
    }
    // A picture of this size needs less room to work in than one of the usual size.
    for device in ["128mb@20gbps", "64mb@20gbps"] {
        let small = ["--sim-device", device, "--compute", "sim:0"];
        assert!(draw(dir.path(), caption, &small) == resident, "a small device gives other bits: {device}");
    }
    let quantised = draw(dir.path(), caption, &["--quantised"]);
    let sum: u64 = quantised.iter().zip(&resident).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
    let mean = sum as f64 / resident.len() as f64;
    assert!(mean > 0.0 && mean < 2.0, "Q8_0 differs by {mean} of 255");
    assert!(draw(dir.path(), caption, &["--seed", "5"]) != resident);
}

#[test]
fn the_lora_draws_outlines_and_at_strength_zero_changes_nothing() {
    let dir = ScratchDir::new().unwrap();
    let caption = "a red circle above a blue square";
    let covered = |pixels: &[u8]| {
        labels(pixels).iter().filter(|label| ["red", "blue"].contains(label)).count() as f64
            / (SIDE * SIDE) as f64
    };
    let filled = draw(dir.path(), caption, &[]);
    let outlined = draw(dir.path(), caption, &["--outline"]);
    let (whole, lines) = (covered(&filled), covered(&outlined));
    println!("red and blue cover {whole:.3} filled, {lines:.3} outlined");
    assert!(
        lines > 0.01 && lines < 0.6 * whole,
        "{lines} of the picture is coloured, {whole} without the LoRA"
    );
    assert!(draw(dir.path(), caption, &["--outline", "0"]) == filled, "strength 0 changes the picture");
    // The patch goes home with the weights, or beside the quantised ones: streaming changes nothing.
    let sim = ["--sim-device", "256mb@20gbps", "--compute", "sim:0", "--alloc", "sim:0,2mb;cpu,*"];
    let streamed = draw(dir.path(), caption, &[&sim[..], &["--outline"]].concat());
    assert!(streamed == outlined, "streamed weights give other bits with the LoRA");
    let quantised = covered(&draw(dir.path(), caption, &["--outline", "--quantised"]));
    assert!((quantised - lines).abs() < 0.05, "{quantised} quantised, {lines} not");
}

/// Weights that travel losslessly coded give the same picture, also where a LoRA is merged into what arrived, and on a
/// device that keeps activations in 16 bits.
#[test]
fn coded_weights_give_the_same_picture() {
    let dir = ScratchDir::new().unwrap();
    let streamed = ["--compute", "sim:0", "--alloc", "sim:0,0%;cpu,100%", "--steps", "2", "--sim-device"];
    for device in ["1gb@20gbps", "1gb@20gbps@bf16"] {
        for lora in [&[][..], &["--outline"]] {
            let picture = |coded: &str| {
                let more = [&streamed[..], &[device, "--coded", coded], lora].concat();
                draw(dir.path(), "a red circle above a blue square", &more)
            };
            let plain = picture("off");
            assert!(plain == picture("force"), "{device} {lora:?}");
            // Without amounts all blocks stay on the device, coded.
            let kept = ["--compute", "sim:0", "--steps", "2", "--coded", "force", "--sim-device", device];
            let kept = draw(dir.path(), "a red circle above a blue square", &[&kept[..], lora].concat());
            assert!(plain == kept, "kept coded: {device} {lora:?}");
            assert!(plain == picture("auto"), "{device} {lora:?}");
        }
    }
}

/// The plan says what is coded.
#[test]
fn a_plan_shows_coded_bytes() {
    let plan_of = |coded: &str, alloc: &str| -> Value {
        let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/demo/demo-flux.safetensors");
        command.arg("plan").arg(file).args(["--cpu", "--sim-device", "1gb@20gbps", "--compute", "sim:0"]);
        command.args(["--alloc", alloc, "--json", "--coded", coded]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let plan = |coded: &str| plan_of(coded, "sim:0,0%;cpu,100%");
    let kept = plan_of("force", "");
    let blocks = kept["blocks"].as_array().unwrap();
    assert!(blocks.iter().all(|block| block["mode"] == "resident" && block["home"] == "sim:0"));
    assert!(blocks.iter().filter(|block| block.get("coded_bytes").is_some()).count() > 1, "{kept}");
    assert_eq!(kept["ring"]["slots"], 0);
    let streamed = |plan: &Value| -> Vec<Value> {
        let blocks = plan["blocks"].as_array().unwrap().iter();
        blocks.filter(|block| block["mode"] == "streamed").cloned().collect()
    };
    let (off, force) = (plan("off"), plan("force"));
    assert!(streamed(&off).iter().all(|block| block.get("coded_bytes").is_none()));
    let coded = streamed(&force);
    assert!(!coded.is_empty());
    for block in &coded {
        let ratio = block["coded_bytes"].as_f64().unwrap() / block["bytes"].as_f64().unwrap();
        assert!((0.69..0.75).contains(&ratio), "{block}");
    }
    assert!(force["ring"]["room_bytes"].as_u64() > Some(0));
}
