//! A small folder of reference values, made here: what is read of it, what is rebuilt, and what is said of damage.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::Path;

use golden::{Error, GoldenFolder, ModelsFolder, Part};
use meta::{DType, Shape};
use testkit::{Manifest, SafetensorsWriter, ScratchDir, Sums, data_path};

const WORKFLOW: &str = r#"{
    "1": {"class_type": "UNETLoader", "inputs": {"unet_name": "flux_dev_micro.safetensors", "weight_dtype": "default"}},
    "4": {"class_type": "CLIPTextEncode", "inputs": {"clip": ["2", 0], "text": "a cat, embedding:word and (embedding:other.safetensors:1.1)"}},
    "8": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["1", 0], "latent_image": ["7", 0]}},
    "7": {"class_type": "KSamplerAdvanced", "inputs": {"model": ["1", 0]}},
    "9": {"class_type": "VAEDecode", "inputs": {"samples": ["8", 0]}}
}"#;

/// A manifest of one tensor.
fn manifest(file: &str) -> String {
    format!(
        r#"{{"file": "{file}", "config": null, "metadata": null,
            "tensors": [{{"name": "w", "shape": [64, 8], "dtype": "F16", "scale": 0.5, "offset": 0.0}}]}}"#
    )
}

/// A folder with one case.
struct Fixture {
    dir: ScratchDir,
}

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture { dir: ScratchDir::new().unwrap() };
        for folder in ["manifests", "inputs", "runs/case_a", "runs/case_ab", "runs/other"] {
            fs::create_dir_all(fixture.dir.join(folder)).unwrap();
        }
        fs::copy(data_path("manifests/flux_dev_micro.json"), fixture.dir.join("manifests/flux.json"))
            .unwrap();
        fs::copy(data_path("manifests/SHA256SUMS"), fixture.dir.join("manifests/SHA256SUMS")).unwrap();
        fixture.write("manifests/word.json", &manifest("embeddings/word.safetensors"));
        fixture.write("manifests/other.json", &manifest("embeddings/other.safetensors"));
        fixture.write("manifests/wording.json", &manifest("embeddings/wording.safetensors"));
        fixture.case("case_a", WORKFLOW, &[("latent", &[1, 2, 3, 1]), ("image.9", &[1, 2, 2, 3])]);
        fixture
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.dir.join(file), text).unwrap();
    }

    /// A case whose tensors count up from 0.
    fn case(&self, name: &str, workflow: &str, tensors: &[(&str, &[usize])]) {
        let folder = self.dir.join("runs").join(name);
        fs::write(folder.join("workflow_api.json"), workflow).unwrap();
        let mut writer = SafetensorsWriter::new();
        for (name, shape) in tensors {
            let values: Vec<f32> = (0..shape.iter().product()).map(|at: usize| at as f32).collect();
            writer = writer.values(*name, DType::F32, Shape::new(shape).unwrap(), &values).unwrap();
        }
        writer.write(folder.join("tensors.safetensors")).unwrap();
    }

    fn open(&self) -> Result<GoldenFolder, Error> {
        GoldenFolder::open(self.dir.path())
    }
}

#[test]
fn cases_are_chosen_by_name_or_beginning() {
    let golden = Fixture::new().open().unwrap();
    assert_eq!(golden.cases(), ["case_a", "case_ab", "other"]);
    let select = |wanted: &[&str]| {
        let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        golden.select(&wanted).map(|names| names.join(" "))
    };
    assert_eq!(select(&[]).unwrap(), "case_a case_ab other");
    assert_eq!(select(&["case_a"]).unwrap(), "case_a");
    assert_eq!(select(&["case_a*"]).unwrap(), "case_a case_ab");
    assert_eq!(select(&["other", "case", "case_a"]).unwrap(), "case_a case_ab other");
    let error = select(&["sd3"]).unwrap_err().to_string();
    assert!(error.contains("no case 'sd3'") && error.contains("case_a, case_ab, other"), "{error}");
}

#[test]
fn a_case_says_its_files_and_what_is_compared() {
    let fixture = Fixture::new();
    let tensors: [(&str, &[usize]); 8] = [
        ("latent", &[1, 4, 3, 5]),
        ("stage1.latent", &[1, 4, 3, 5]),
        ("cond.4", &[1, 2, 3]),
        ("pooled.4.1", &[1, 3]),
        ("output1.8", &[2, 3]),
        ("noise", &[2]),
        ("step00.x", &[2]),
        ("concat_mask.4", &[2]),
    ];
    fixture.case("case_a", WORKFLOW, &tensors);
    let case = fixture.open().unwrap().case("case_a").unwrap();
    let files: Vec<&str> = case.files.iter().map(String::as_str).collect();
    let flux = "diffusion_models/flux_dev_micro.safetensors";
    assert_eq!(files, [flux, "embeddings/other.safetensors", "embeddings/word.safetensors"]);
    assert_eq!(case.loaders.iter().collect::<Vec<_>>(), ["1"]);
    let wanted = case.wanted.iter().map(|w| (w.name.as_str(), w.node.as_str(), w.output, w.part));
    assert_eq!(
        wanted.collect::<Vec<_>>(),
        [
            ("cond.4", "4", 0, Part::Tokens(0)),
            ("latent", "8", 0, Part::Whole),
            ("output1.8", "8", 1, Part::Whole),
            ("pooled.4.1", "4", 0, Part::Pooled(1)),
            ("stage1.latent", "7", 0, Part::Whole),
        ]
    );
    assert_eq!(case.others, ["concat_mask.4", "noise", "step00.x"]);
}

#[test]
fn results_are_compared_whatever_their_short_axes() {
    let case = Fixture::new().open().unwrap().case("case_a").unwrap();
    let latent = case.wanted.iter().find(|wanted| wanted.name == "latent").unwrap();
    let mut values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
    for shape in [&[1, 2, 3, 1][..], &[1, 2, 1, 3, 1], &[2, 3]] {
        assert_eq!(case.compare(latent, shape, &values).unwrap().relative, 0.0);
    }
    values[5] = 6.0;
    assert_eq!(case.compare(latent, &[2, 3], &values).unwrap().relative, 0.2);
    let error = case.compare(latent, &[3, 2], &values).unwrap_err().to_string();
    assert!(error.contains("case_a") && error.contains("latent"), "{error}");
    assert!(matches!(case.compare(latent, &[1; 20], &values), Err(Error::Shape { .. })));
    values[0] = f32::NAN;
    assert!(case.compare(latent, &[2, 3], &values).unwrap().relative.is_infinite());
}

#[test]
fn a_model_file_is_built_once_and_as_its_sum_says() {
    let fixture = Fixture::new();
    let golden = fixture.open().unwrap();
    let models = ModelsFolder::at(&fixture.dir.join("models")).unwrap();
    let files = ["diffusion_models/flux_dev_micro.safetensors", "embeddings/word.safetensors"];
    assert_eq!(models.ensure(&golden, files).unwrap().files, 2);
    assert_eq!(models.ensure(&golden, files).unwrap().files, 0);
    let place = models.path().join(files[1]);
    let whole = fs::read(&place).unwrap();
    // The next run takes what it finds, unless it is another file.
    assert_eq!(ModelsFolder::at(models.path()).unwrap().ensure(&golden, files).unwrap().files, 0);
    fs::write(&place, "something else").unwrap();
    assert_eq!(ModelsFolder::at(models.path()).unwrap().ensure(&golden, files).unwrap().files, 1);
    assert!(fs::read(&place).unwrap() == whole);

    let sums = format!("{:064}  embeddings/word.safetensors\n", 7);
    fixture.write("manifests/SHA256SUMS", &sums);
    let other = ModelsFolder::at(&fixture.dir.join("others")).unwrap();
    let error = other.ensure(&fixture.open().unwrap(), [files[1]]).unwrap_err();
    assert!(matches!(&error, Error::WrongSum { file, .. } if file == files[1]), "{error}");
    assert!(!other.path().join(files[1]).exists(), "a wrong file is not left behind");
}

#[test]
fn damage_is_said_with_its_place() {
    let said = |change: &dyn Fn(&Fixture)| {
        let fixture = Fixture::new();
        change(&fixture);
        let opened = fixture.open().and_then(|golden| {
            let case = golden.case("case_a")?;
            let models = ModelsFolder::at(&fixture.dir.join("models"))?;
            models.ensure(&golden, case.files.iter().map(String::as_str)).map(|_| ())
        });
        opened.unwrap_err().to_string()
    };
    let has = |text: &str, words: &[&str]| {
        for word in words {
            assert!(text.contains(word), "{word:?} is not in: {text}");
        }
    };
    has(&said(&|it| fs::remove_dir_all(it.dir.join("runs")).unwrap()), &["no folder runs"]);
    has(&said(&|it| it.write("manifests/x.json", "{")), &["x.json", "JSON"]);
    has(
        &said(&|it| it.write("manifests/x.json", &manifest("embeddings/word.safetensors"))),
        &["both describe"],
    );
    has(&said(&|it| it.write("manifests/SHA256SUMS", "x")), &["SHA256SUMS", "line 1"]);
    has(
        &said(&|it| it.write("runs/case_a/workflow_api.json", "[]")),
        &["workflow_api.json", "object of nodes"],
    );
    has(&said(&|it| it.write("runs/case_a/workflow_api.json", "no")), &["workflow_api.json", "JSON"]);
    has(&said(&|it| it.write("runs/case_a/tensors.safetensors", "no")), &["tensors.safetensors"]);
    has(
        &said(&|it| fs::remove_file(it.dir.join("manifests/flux.json")).unwrap()),
        &["case_a", "node 1", "manifest"],
    );
    has(&said(&|it| it.case("case_a", WORKFLOW, &[("image.77", &[1])])), &["case_a", "image.77"]);
    has(
        &said(&|it| it.case("case_a", WORKFLOW, &[("noise", &[1])])),
        &["case_a", "no tensor that a node gives"],
    );
    let long = manifest("embeddings/word.safetensors").replace("[64, 8]", "[1000000, 1000000]");
    has(&said(&|it| it.write("manifests/word.json", &long)), &["word.json", "at most", "rebuilt"]);
    let large = |it: &Fixture| {
        let file = fs::File::create(it.dir.join("runs/case_a/workflow_api.json")).unwrap();
        file.set_len(1 << 30).unwrap();
    };
    has(&said(&large), &["workflow_api.json", "1.00 GB", "at most"]);
    assert!(GoldenFolder::open(Path::new("no such folder")).is_err());
}

#[test]
#[ignore = "makes ten gigabytes of values, and needs the reference values beside the checkout; .ci/run runs it"]
fn every_manifest_of_the_reference_gives_the_file_of_its_sum() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden/manifests");
    if !folder.is_dir() {
        eprintln!(
            "\n==> NO REFERENCE VALUES: there is no folder shared/golden beside the checkout, so NO FILE WAS REBUILT\n"
        );
        return;
    }
    let sums = Sums::parse(&fs::read_to_string(folder.join("SHA256SUMS")).unwrap()).unwrap();
    let mut files = 0;
    for entry in fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "json") {
            let manifest = Manifest::open(&path).unwrap();
            let sum = sums.get(&manifest.file).unwrap_or_else(|| panic!("{} has no sum", manifest.file));
            assert_eq!(manifest.sha256().unwrap(), sum, "{}", manifest.file);
            files += 1;
        }
    }
    assert_eq!(files, sums.files().count(), "a sum has no manifest");
    eprintln!("{files} files have their sums");
}
