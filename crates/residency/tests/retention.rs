//! The retention table, on simulated devices, through the flags that a worker consumes.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use meta::{DeviceId, Encoding};
use residency::{FreeFlags, FreeRequest, LoadOptions, Residency, Retention};
use support::*;

const BOTH: FreeRequest = FreeRequest { unload_models: true, free_memory: true, force: false };
const UNLOAD: FreeRequest = FreeRequest { unload_models: true, free_memory: false, force: false };

/// Models of one test: name, retention, and where the first of them goes.
struct Loaded {
    residency: Residency,
    files: Vec<ModelFile>,
    flags: FreeFlags,
    executor_resets: usize,
    outputs: Vec<(String, Vec<f32>)>,
}

/// Loads models over two simulated devices and the host, and runs each once.
fn loaded(models: &[(&str, Retention)]) -> Loaded {
    let residency = Residency::new(machine(&["32mb@20gbps", "32mb@20gbps"]));
    let files: Vec<ModelFile> =
        (0..models.len()).map(|i| write_model(10 + i as u64, Encoding::BF16)).collect();
    let texts = ["sim:0,50%;sim:1,50%", "", "sim:0,20%;sim:1,30%;cpu,50%"];
    let mut outputs = Vec::new();
    for (i, (name, retention)) in models.iter().enumerate() {
        let id = load(&residency, &files[i], name, texts[i % texts.len()], *retention);
        outputs.push(((*name).to_owned(), run(&residency, id).unwrap()));
    }
    Loaded { residency, files, flags: FreeFlags::default(), executor_resets: 0, outputs }
}

impl Loaded {
    /// What a worker does between two jobs.
    fn between_jobs(&mut self) -> Option<residency::FreeReport> {
        let request = self.flags.take()?;
        let resets = &mut self.executor_resets;
        Some(self.residency.free(request, &mut || *resets += 1).unwrap())
    }

    /// Exactly these are left, every device has exactly their bytes, the snapshots say so, and each still
    /// computes what it computed before.
    fn expect_left(&self, names: &[&str]) {
        let models = self.residency.models();
        let left: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
        assert_eq!(left, names);
        let latest = self.residency.snapshots().latest();
        let last = latest.last().unwrap();
        assert_eq!(last.label, "free: caches emptied");
        for device in self.residency.devices().iter() {
            let id = device.id();
            let held: u64 =
                models.iter().flat_map(|m| &m.bytes).filter(|(d, _)| *d == id).map(|(_, bytes)| bytes).sum();
            // What a model has on the host here lies in its mapped file: nothing was allocated for it.
            let expected = if id == DeviceId::CPU { 0 } else { held };
            assert_eq!(device.ledger().report().used, expected, "ledger of {id}");
            assert_eq!(last.used_on(id), Some(expected), "snapshot of {id}");
        }
        assert_nothing_reserved(self.residency.devices());
        for model in &models {
            let before = &self.outputs.iter().find(|(name, _)| *name == model.name).unwrap().1;
            assert_eq!(&run(&self.residency, model.id).unwrap(), before, "{} computes as before", model.name);
        }
        assert_eq!(self.residency.missing_kept(), 0);
        assert!(!self.files.is_empty());
    }
}

#[test]
fn marked_models_leave_and_kept_ones_stay() {
    let mut all = loaded(&[("A", Retention::Eject), ("B", Retention::Keep), ("C", Retention::Keep)]);
    all.flags.request(BOTH);
    let report = all.between_jobs().unwrap();
    assert_eq!(report.summary(), "1 unloaded: A; 2 kept: keep_loaded (B, C)");
    assert_eq!(all.executor_resets, 1);
    all.expect_left(&["B", "C"]);
}

#[test]
fn only_kept_models_are_not_touched() {
    let mut all = loaded(&[("D", Retention::Keep), ("E", Retention::Keep)]);
    let before = used(all.residency.devices());
    all.flags.request(BOTH);
    let report = all.between_jobs().unwrap();
    assert!(report.unloaded.is_empty());
    assert_eq!(used(all.residency.devices()), before);
    assert!(all.residency.models().iter().all(|model| model.staged), "their copies are still there");
    all.expect_left(&["D", "E"]);
}

#[test]
fn first_press_takes_the_marked_and_the_second_the_rest() {
    let mut all = loaded(&[
        ("diffusion model", Retention::Eject),
        ("VAE", Retention::Default),
        ("text encoder", Retention::Default),
    ]);
    all.flags.request(UNLOAD);
    let report = all.between_jobs().unwrap();
    let why = "1 unloaded: diffusion model; 2 kept: another was marked to go first (VAE, text encoder)";
    assert_eq!(report.summary(), why);
    assert_eq!(all.executor_resets, 0);
    all.expect_left(&["VAE", "text encoder"]);
    all.flags.request(UNLOAD);
    all.between_jobs().unwrap();
    all.expect_left(&[]);
    assert_eq!(used(all.residency.devices()), [0, 0, 0]);
}

#[test]
fn force_takes_kept_models_too() {
    let mut all = loaded(&[("B", Retention::Keep)]);
    all.flags.request(FreeRequest { force: true, ..FreeRequest::default() });
    assert_eq!(all.between_jobs().unwrap().summary(), "1 unloaded: B");
    all.expect_left(&[]);
}

#[test]
fn flags_add_up_are_taken_once_and_leave_four_snapshots() {
    let mut all = loaded(&[("A", Retention::Default)]);
    assert!(all.between_jobs().is_none());
    all.flags.request(UNLOAD);
    all.flags.request(FreeRequest { free_memory: true, ..FreeRequest::default() });
    assert!(all.between_jobs().is_some());
    assert!(all.between_jobs().is_none());
    let labels: Vec<String> = all.residency.snapshots().latest().into_iter().map(|s| s.label).collect();
    let phases = ["free: before", "free: models unloaded", "free: executor reset", "free: caches emptied"];
    assert_eq!(labels, phases);
    assert_eq!(all.executor_resets, 1);
}

#[test]
fn ejecting_others_takes_their_copies_but_not_their_registration() {
    let mut all = loaded(&[("kept", Retention::Keep), ("other", Retention::Default)]);
    let file = write_model(50, Encoding::BF16);
    let manifest = manifest(&file, "newcomer");
    let plan = plan(&manifest, all.residency.devices(), DeviceId::sim(0), "", placement::RemotePolicy::Auto);
    let options = LoadOptions { eject_others: true, ..LoadOptions::default() };
    let id = all.residency.load(manifest, plan, options).unwrap();
    assert_eq!(used(all.residency.devices())[1], 0, "nothing else is on the compute device");
    let staged: Vec<bool> = all.residency.models().iter().map(|model| model.staged).collect();
    assert_eq!(staged, [false, false, false]);
    all.outputs.push(("newcomer".into(), run(&all.residency, id).unwrap()));
    for model in all.residency.models() {
        let before = &all.outputs.iter().find(|(name, _)| *name == model.name).unwrap().1;
        assert_eq!(&run(&all.residency, model.id).unwrap(), before);
    }
}

#[test]
fn pressure_takes_the_least_recent_marked_first_kept_last_and_no_more_than_needed() {
    // Each model has about 0.66 MB in bf16; four fit into 3 MB, a fifth needs one of them to go.
    let residency = Residency::new(machine(&["3mb@20gbps"]));
    let files: Vec<ModelFile> = (0..6).map(|i| write_model(60 + i, Encoding::BF16)).collect();
    let retentions =
        [Retention::Keep, Retention::Default, Retention::Eject, Retention::Default, Retention::Default];
    let text = "sim:0,100%";
    let ids: Vec<_> = (0..5)
        .map(|i| load_unplanned(&residency, &files[i], &format!("m{i}"), text, retentions[i]))
        .collect();
    for id in &ids[..4] {
        run(&residency, *id).unwrap();
    }
    let staged = || residency.models().iter().map(|m| m.staged).collect::<Vec<_>>();
    assert_eq!(staged(), [true, true, true, true, false]);
    run(&residency, ids[4]).unwrap();
    assert_eq!(staged(), [true, true, false, true, true], "the one marked to go");
    run(&residency, ids[1]).unwrap();
    run(&residency, ids[2]).unwrap();
    assert_eq!(staged(), [true, true, true, false, true], "the least recent of the others");
    assert_eq!(residency.models().len(), 5, "all are still loaded");
}

/// Loads with a plan made for an empty machine.
fn load_unplanned(
    residency: &Residency,
    file: &ModelFile,
    name: &str,
    text: &str,
    retention: Retention,
) -> residency::ModelId {
    let manifest = manifest(file, name);
    let empty = machine(&["3mb@20gbps"]);
    let plan = plan(&manifest, &empty, DeviceId::sim(0), text, placement::RemotePolicy::Auto);
    residency.load(manifest, plan, LoadOptions { retention, ..LoadOptions::default() }).unwrap()
}

#[test]
fn room_to_work_in_is_made_before_a_model_is_staged() {
    let residency = Residency::new(machine(&["2mb@20gbps"]));
    let (first, second) = (write_model(72, Encoding::BF16), write_model(73, Encoding::BF16));
    let id = load(&residency, &first, "first", "", Retention::Keep);
    run(&residency, id).unwrap();
    let manifest = manifest(&second, "second");
    let specs = device_specs(&machine(&["2mb@20gbps"]));
    let mut request = Residency::plan_request(&manifest, DeviceId::sim(0), specs);
    request.working_bytes = 1 << 20;
    let plan = placement::plan(&request).unwrap();
    let id = residency.load(manifest, plan, LoadOptions::default()).unwrap();
    let _session = residency.open(id, &residency::Cancel::default()).unwrap();
    let report = residency.devices().get(DeviceId::sim(0)).unwrap().ledger().report();
    assert!(report.available() >= 1 << 20, "{report:?}");
    assert!(!residency.models()[0].staged, "the first gave way, although both models would have fitted");
}

#[test]
fn a_model_that_cannot_fit_takes_nobodys_place() {
    let residency = Residency::new(machine(&["1mb@20gbps"]));
    let (small, large) = (write_model(70, Encoding::BF16), write_model(71, Encoding::F32));
    let id = load(&residency, &small, "small", "", Retention::Default);
    run(&residency, id).unwrap();
    let manifest = manifest(&large, "large");
    let roomy = machine(&["64mb@20gbps"]);
    let plan = plan(&manifest, &roomy, DeviceId::sim(0), "sim:0,100%", placement::RemotePolicy::Auto);
    let error = residency.load(manifest, plan, LoadOptions::default()).unwrap_err().to_string();
    assert!(error.starts_with("sim:0 is out of memory: wanted 1.") && error.contains("would fit"), "{error}");
    assert!(residency.models()[0].staged);
}
