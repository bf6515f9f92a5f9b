//! Plans of videos, and `gantry bench video` in small.

use serde_json::Value;
use testkit::{Manifest, ScratchDir};

use crate::{demo, gantry};

#[test]
fn a_video_is_planned_by_its_frames() {
    let dir = ScratchDir::new().unwrap();
    let model = Manifest::bundled("wan2.1_t2v_tiny").unwrap().write_to(dir.path()).unwrap();
    let plan = |file: &str, frames: &str| {
        let device = ["--cpu", "--sim-device", "1gb@20gbps@1gflops", "--compute", "sim:0"];
        let asked = ["plan", file, "--size", "64x64", "--frames", frames, "--json"];
        gantry(dir.path(), &[asked.as_slice(), device.as_slice()].concat())
    };
    let seconds = |frames: &str| {
        let output = plan(&model.display().to_string(), frames);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
        plan["prediction"]["seconds_per_step"].as_f64().unwrap_or_else(|| panic!("{plan:#}"))
    };
    let (one, same, more) = (seconds("1"), seconds("33"), seconds("36"));
    // Nine frames of the latent, and nine still: the tokens count, so the step is several times as long.
    assert!(same > 2.0 * one && same == more, "{one} {same} {more}");
    let refused = plan(&demo("demo-flux.safetensors").display().to_string(), "33");
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && told.contains("leave the frames out"), "{told}");
}

#[test]
fn writing_frames_is_measured() {
    let dir = ScratchDir::new().unwrap();
    let output = gantry(dir.path(), &["bench", "video", "--only", "writing", "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let writing = &report["writing"];
    assert_eq!(writing["video"], serde_json::json!([1280, 720, 81]));
    let number = |key: &str| writing[key].as_f64().unwrap_or_else(|| panic!("{report:#}"));
    assert!((number("frames_per_s") * number("seconds") - 81.0).abs() < 1e-6);
    // Frames that differ cannot be written in next to nothing.
    assert!(number("bytes") > 100_000.0, "{report:#}");
    assert!(report["families"].as_array().is_some_and(Vec::is_empty) && report["experts"].is_null());
}
