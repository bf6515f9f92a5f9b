//! `gantry selftest --golden`: its verdicts on a small folder that is made here, and, where the folder of reference values
//! lies beside the checkout, all of its cases.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use golden::{Exception, Tolerance};
use meta::{DType, Shape};
use serde_json::Value;
use testkit::{SafetensorsWriter, ScratchDir};

/// Beside the checkout.
const REFERENCE: &str = "../../../shared/golden";
/// The cases that run.
const RUNNING: &str = "../golden/running.txt";

fn here(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(relative)
}

fn selftest(folder: &Path, more: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gantry"));
    command.args(["selftest", "--cpu", "--golden"]).arg(folder).args(more).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What became of every case, by name and way: the verdict, and whether the bits are those of the first way.
type Verdicts = BTreeMap<(String, String), (String, Option<bool>)>;

fn verdicts(output: &Output) -> Verdicts {
    let report: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let mut verdicts = Verdicts::new();
    for case in report["cases"].as_array().unwrap() {
        for way in case["ways"].as_array().unwrap() {
            let same = way.get("same_bits").map(|same| same.as_bool().unwrap());
            verdicts.insert((word(&case["name"]), word(&way["how"])), (word(&way["verdict"]), same));
        }
    }
    verdicts
}

/// A folder whose cases need no model: a picture is turned into its negative.
fn small_folder() -> ScratchDir {
    let dir = ScratchDir::new().unwrap();
    for folder in ["manifests", "inputs", "runs"] {
        fs::create_dir(dir.join(folder)).unwrap();
    }
    fs::copy(here("tests/data/flux_dev_micro.png"), dir.join("inputs/image.png")).unwrap();
    let pixels = negative(&dir.join("inputs/image.png"));
    let wrong: Vec<f32> = pixels.iter().map(|value| value * 1.001).collect();
    let case = |name: &str, class: &str, values: &[f32]| {
        let folder = dir.join("runs").join(name);
        fs::create_dir(&folder).unwrap();
        let workflow = format!(
            r#"{{"1": {{"class_type": "LoadImage", "inputs": {{"image": "image.png"}}}},
                "2": {{"class_type": "{class}", "inputs": {{"image": ["1", 0]}}}}}}"#
        );
        fs::write(folder.join("workflow_api.json"), workflow).unwrap();
        let shape = Shape::from([1, 64, 64, 3]);
        let writer = SafetensorsWriter::new().values("image.2", DType::F32, shape, values).unwrap();
        writer.write(folder.join("tensors.safetensors")).unwrap();
    };
    case("right", "ImageInvert", &pixels);
    case("wrong", "ImageInvert", &wrong);
    case("missing", "NoSuchClass", &pixels);
    dir
}

fn negative(path: &Path) -> Vec<f32> {
    let file = std::io::BufReader::new(fs::File::open(path).unwrap());
    let mut reader = png::Decoder::new(file).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    pixels.iter().map(|byte| 1.0 - f32::from(*byte) / 255.0).collect()
}

#[test]
fn a_case_is_right_wrong_or_not_there_yet() {
    let dir = small_folder();
    let output = selftest(dir.path(), &["--how", "resident"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    let line = |name: &str| said.lines().find(|line| line.starts_with(name)).unwrap();
    assert!(line("right").contains("ok  resident 0.0e0"), "{said}");
    assert!(line("wrong").contains("DIFFERS: image.2 by 1.0e-3"), "{said}");
    assert!(line("missing").contains("cannot run yet: no class NoSuchClass"), "{said}");
    assert!(said.contains("1 ok, 1 differ, 0 failed, 1 cannot run yet"), "{said}");
    // What cannot run yet is no failure by itself.
    let output = selftest(dir.path(), &["--case", "right", "--case", "missing", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let verdicts = verdicts(&output);
    let of = |name: &str, how: &str| verdicts[&(name.to_owned(), how.to_owned())].0.as_str();
    assert_eq!((of("right", "resident"), of("missing", "split")), ("ok", "cannot-run-yet"));
    assert_eq!(of("right", "streamed"), "cannot-run-yet", "there are no weights that could travel");
}

#[test]
fn wrong_arguments_are_told() {
    let dir = small_folder();
    for (more, words) in [
        (&["--case", "sd3"][..], "there is no case 'sd3'"),
        (&["--device", "cuda:7"], "there is no device cuda:7"),
        (&["--device", "cpu", "--device", "cpu"], "give --device once"),
        (&["--dtype", "f64"], "f32, bf16, f16"),
        (&["--only", "x"], "cannot be used with"),
    ] {
        let output = selftest(dir.path(), more);
        assert!(matches!(output.status.code(), Some(1 | 2)), "{more:?}");
        assert!(text(&output.stderr).contains(words), "{more:?}: {}", text(&output.stderr));
    }
    let output = selftest(&dir.join("inputs"), &[]);
    assert!(text(&output.stderr).contains("no folder of reference values"), "{}", text(&output.stderr));
}

/// Cases by name, with the ways besides resident that are checked.
fn running() -> BTreeMap<String, Vec<String>> {
    let listed = fs::read_to_string(here(RUNNING)).unwrap();
    let lines = listed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let read = |line: &str| {
        let mut words = line.split_whitespace().map(str::to_owned);
        (words.next().unwrap(), words.collect())
    };
    lines.map(read).collect()
}

/// The same cases with every weight coded that can be.
fn coded_cases_have_the_same_bits(folder: &Path, cases: &[&str]) {
    let more = ["--coded", "force", "--how", "resident", "--how", "streamed"];
    let output = selftest(folder, &[cases, &more[..]].concat());
    eprint!("{}", text(&output.stderr));
    assert!(output.status.success(), "a case differs or failed with coded weights");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let coded = &report["coded"];
    assert!(coded["runs"].as_u64() > Some(0), "{coded}");
    assert_eq!(coded["runs"], coded["same_bits"], "{coded}");
}

/// Cases that only make sense in f32: whether they skip a step hangs on the last bits of what was computed.
const F32_ONLY: [&str; 2] = ["guidance_easycache", "guidance_lazycache"];

/// The worst relative error of every case.
fn errors(output: &Output) -> BTreeMap<String, f64> {
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let worst = |case: &Value| {
        let ways = case["ways"].as_array().unwrap().iter();
        ways.filter_map(|way| way["relative_error"].as_f64()).fold(0.0, f64::max)
    };
    let cases = report["cases"].as_array().unwrap().iter();
    cases.map(|case| (case["name"].as_str().unwrap().to_owned(), worst(case))).collect()
}

/// What cases are allowed beyond the usual, they need.
fn exceptions_are_needed(dtype: DType, errors: &BTreeMap<String, f64>) {
    let usual = Tolerance::usual(dtype).relative;
    for exception in Exception::of(dtype) {
        let error = errors[exception.shown_by];
        assert!(error > usual, "{dtype}: with {error:.2e} this is not needed any more: {exception:?}");
    }
}

/// The same cases, and those that show why some are allowed more, on a device that keeps activations in 16 bits, as cards do.
fn cases_are_near_in_16_bits(folder: &Path, cases: &[&String], models: &str) {
    let mut arguments = vec!["--sim-device", "20gb@100gbps@bf16", "--device", "sim:0", "--dtype", "bf16"];
    arguments.extend(["--json", "--how", "resident", "--models", models]);
    let shown = Exception::of(DType::BF16).map(|exception| exception.shown_by);
    let cases: BTreeSet<&str> = cases.iter().map(|name| name.as_str()).chain(shown).collect();
    arguments.extend(cases.into_iter().flat_map(|name| ["--case", name]));
    let output = selftest(folder, &arguments);
    eprint!("{}", text(&output.stderr));
    let far: Vec<_> = verdicts(&output)
        .into_iter()
        .filter(|((name, _), _)| !F32_ONLY.iter().any(|only| name.starts_with(only)))
        .filter(|(_, (verdict, _))| verdict != "ok")
        .map(|((name, _), _)| name)
        .collect();
    assert!(far.is_empty(), "these are not near enough with activations in bf16: {far:?}");
    exceptions_are_needed(DType::BF16, &errors(&output));
}

#[test]
#[ignore = "takes minutes, and needs the reference values beside the checkout; .ci/run runs it"]
fn every_reference_case_that_ran_still_does() {
    let folder = here(REFERENCE);
    if !folder.is_dir() {
        eprintln!(
            "\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout, so NO CASE WAS RUN\n"
        );
        return;
    }
    let models = ScratchDir::new().unwrap();
    let kept = models.path().display().to_string();
    let resident = selftest(&folder, &["--json", "--how", "resident", "--models", &kept]);
    eprint!("{}", text(&resident.stderr));
    assert!(resident.status.success(), "a case differs or failed");
    exceptions_are_needed(DType::F32, &errors(&resident));
    let found = verdicts(&resident);
    let ok = found.iter().filter(|(_, (verdict, _))| verdict == "ok").map(|((name, _), _)| name.clone());
    let ok: BTreeSet<String> = ok.collect();
    let not_yet: Vec<&str> =
        found.keys().map(|(name, _)| name.as_str()).filter(|name| !ok.contains(*name)).collect();
    eprintln!("\n==> {} cases run, {} do not yet: {}\n", ok.len(), not_yet.len(), not_yet.join(", "));
    let listed: BTreeSet<String> = running().into_keys().collect();
    let fell_out: Vec<_> = listed.difference(&ok).collect();
    let new: Vec<_> = ok.difference(&listed).collect();
    assert!(
        fell_out.is_empty(),
        "listed in crates/golden/running.txt, and do not run any more: {fell_out:?}"
    );
    assert!(new.is_empty(), "these run now; add them to crates/golden/running.txt: {new:?}");

    let spread: BTreeMap<_, _> = running().into_iter().filter(|(_, ways)| !ways.is_empty()).collect();
    let mut arguments = vec!["--json", "--models", &kept];
    arguments.extend(spread.keys().flat_map(|name| ["--case", name]));
    let output = selftest(&folder, &arguments);
    eprint!("{}", text(&output.stderr));
    assert!(output.status.success(), "a case differs or failed");
    let found = verdicts(&output);
    coded_cases_have_the_same_bits(&folder, &arguments);
    cases_are_near_in_16_bits(&folder, &spread.keys().collect::<Vec<_>>(), &kept);
    for (name, ways) in &spread {
        for way in ways {
            let (verdict, same_bits) = &found[&(name.clone(), way.clone())];
            assert_eq!(verdict, "ok", "{name} {way}");
            assert_eq!(*same_bits, Some(true), "{name} {way} gives other bits than resident");
        }
    }
}
