//! `gantry bench launches`, `load`, `served` and `server` in small: their records are whole.

use serde_json::Value;
use testkit::ScratchDir;

use crate::{demo, gantry};

fn measured(arguments: &[&str]) -> Value {
    let dir = ScratchDir::new().unwrap();
    let output = gantry(dir.path(), &[["bench", "--json"].as_slice(), arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[track_caller]
fn has_record(report: &Value) {
    for key in ["version", "date", "device", "device_name", "detail"] {
        assert!(report[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {report:#}");
    }
}

#[test]
fn loading_is_measured_resident_and_streamed() {
    let file = demo("demo-t5.safetensors").display().to_string();
    let report =
        measured(&["load", "--cpu", "--sim-device", "1gb@10gbps", "--device", "sim:0", "--file", &file]);
    has_record(&report);
    assert!(report["host_copy_bytes_per_s"].as_f64().unwrap() > 1e6);
    let link = report["link_bytes_per_s"].as_f64().unwrap();
    assert!(link > 0.0);
    let rows = report["rows"].as_array().unwrap();
    for kind in ["resident", "streamed"] {
        let row = rows.iter().find(|row| row["name"] == format!("{kind}, from the page cache"));
        let row = row.unwrap_or_else(|| panic!("no {kind}: {report:#}"));
        let seconds = |key: &str| row[key].as_f64().unwrap();
        let sum = seconds("open_s") + seconds("load_s") + seconds("first_lease_s");
        assert!((sum - seconds("total_s")).abs() < 1e-9 && sum > 0.0, "{row:#}");
        let bound = report["model_bytes"].as_f64().unwrap()
            / link.min(report["host_copy_bytes_per_s"].as_f64().unwrap());
        assert!((seconds("bound_s") / bound - 1.0).abs() < 1e-9, "{row:#}");
    }
    // Cold rows are measured, or said to be impossible here.
    let cold = rows.iter().filter(|row| row["source"] == "disk").count();
    assert_eq!(cold + report["left_out"].as_array().unwrap().len(), 2, "{report:#}");
}

#[test]
fn streaming_from_the_disk_is_measured() {
    let limit = 24 << 20;
    let asked = ["--cpu", "--host-memory", "24mb", "--sim-device", "1gb@20gbps", "--device", "sim:0"];
    let report = measured(&[&["disk"], &asked[..]].concat());
    has_record(&report);
    let bytes = |key: &str| report[key].as_u64().unwrap();
    assert_eq!((bytes("host_limit_bytes"), report["identical"].as_bool()), (limit, Some(true)), "{report:#}");
    assert!(bytes("model_bytes") >= limit / 2 * 3 && bytes("disk_bytes") > limit / 2, "{report:#}");
    // What is kept and the buffers are no more than may be used.
    let kept = bytes("model_bytes") - bytes("disk_bytes");
    assert!(
        kept + bytes("buffer_bytes") <= limit && bytes("ledger_bytes") >= bytes("buffer_bytes"),
        "{report:#}"
    );
    let rate = |key: &str| report[key].as_f64().unwrap();
    let over = rate("disk_bytes_per_s") / rate("sequential_bytes_per_s");
    assert!((over / rate("over_sequential") - 1.0).abs() < 1e-9 && over > 0.0, "{report:#}");
}

#[test]
fn the_cpu_uses_the_mapped_file() {
    let file = demo("demo-t5.safetensors").display().to_string();
    let report = measured(&["load", "--cpu", "--file", &file, "--only", "page cache"]);
    assert_eq!(report["rows"].as_array().unwrap().len(), 1, "{report:#}");
    assert!(report["link_bytes_per_s"].is_null() && report["rows"][0]["bytes_per_s"].is_null());
}

#[test]
fn the_server_is_measured() {
    let report = measured(&["server", "--cpu", "--clients", "3", "--prompts", "12"]);
    has_record(&report);
    let servers = report["servers"].as_array().unwrap();
    assert_eq!(servers.len(), 1);
    let server = &servers[0];
    assert_eq!(
        (server["name"].as_str(), server["version"].as_str()),
        (Some("Gantry"), report["version"].as_str())
    );
    for key in ["start_s", "prompts_per_s"] {
        assert!(server[key].as_f64().unwrap() > 0.0, "{server:#}");
    }
    assert!(server["cached_node_us"].as_f64().unwrap() < 5000.0, "{server:#}");
    for key in ["post_prompt_ms", "in_server_ms"] {
        let [p50, p99, max] = ["p50", "p99", "max"].map(|rank| server[key][rank].as_f64().unwrap());
        assert!(p50 > 0.0 && p50 <= p99 && p99 <= max, "{server:#}");
    }
    assert!(report["ratios"].is_null());
    if cfg!(target_os = "linux") {
        assert!(server["idle_bytes"].as_u64().unwrap() > 1 << 20);
    }
}

#[test]
fn steps_are_measured_as_served() {
    let report = measured(&[
        "served",
        "--cpu",
        "--sim-device",
        "1gb@10gbps",
        "--device",
        "sim:0",
        "--shape",
        "small",
        "--steps",
        "2",
        "--only",
        "half offloaded",
    ]);
    has_record(&report);
    assert_eq!(report["left_out"].as_array().unwrap().len(), 0, "{report:#}");
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    // What is asked for, and what it is compared with.
    assert_eq!(names, ["resident", "resident, cfg 3.5", "half offloaded", "half offloaded, cfg 3.5"]);
    for row in rows {
        let streamed = row["placed"]["streamed_bytes"].as_u64().unwrap();
        let is_streamed = row["name"].as_str().unwrap().starts_with("half");
        assert_eq!(streamed > 0, is_streamed, "{row:#}");
        assert_eq!(row["placed"]["mode"], if is_streamed { "streamed" } else { "resident" }, "{row:#}");
        assert_eq!(row["same_bits"], if is_streamed { Value::Bool(true) } else { Value::Null }, "{row:#}");
        let [step, bound, over] = [&row["second"]["step_s"], &row["bound_s"], &row["over_bound"]]
            .map(|value| value.as_f64().unwrap());
        assert!(step > 0.0 && bound > 0.0 && (step / bound / over - 1.0).abs() < 1e-9, "{row:#}");
        assert!(row["device_used_bytes"].as_u64().unwrap() > 0, "{row:#}");
    }
    let model = report["model_bytes"].as_u64().unwrap();
    assert!(rows[0]["device_used_bytes"].as_u64().unwrap() >= model * 9 / 10, "{report:#}");
}

#[test]
fn launches_are_measured_on_a_device_that_computes_nothing() {
    let report = measured(&["launches", "--cpu"]);
    has_record(&report);
    let rows = report["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names, ["linear", "modulated norm", "attention", "copy", "elementwise", "mix"], "{report:#}");
    for row in rows {
        assert_eq!(row["device"], "null:0", "{row:#}");
        let us = |key: &str| row[key].as_f64().unwrap();
        assert!(us("issued_us") > us("replayed_us") && us("replayed_us") > 0.0, "{row:#}");
        assert!(us("operations") > 4000.0, "{row:#}");
    }
}
