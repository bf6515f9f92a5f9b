//! Patches on copies that come and go: merged in the slot once for each arrival, nothing on the host, nothing read back,
//! every byte counted.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use device::{
    Backend, Cancel, Description, Device, Event, Ledger, Memory, MemoryInfo, OpCall, Registry, SharedBytes,
    Span, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding};
use patch::PatchSet;
use placement::{BlockMode, RemotePolicy};
use residency::{LoadOptions, ModelId, Residency, Session};
use support::*;
use tensor::Lane;

/// What a device was asked to do.
#[derive(Default)]
struct Seen {
    /// Reads of its memory.
    reads: AtomicU64,
    /// Bytes written by the host, copies of a stream not counted.
    written: AtomicU64,
    /// Products that were added to a weight.
    merges: AtomicU64,
}

impl Seen {
    fn take(&self) -> [u64; 3] {
        [&self.reads, &self.written, &self.merges].map(|count| count.swap(0, Ordering::SeqCst))
    }
}

/// A simulated device that is watched, and that says it computes in 16 bits, too.
struct Watched {
    inner: device::SimBackend,
    seen: Arc<Seen>,
}

struct WatchedStream {
    inner: Arc<dyn StreamBackend>,
    seen: Arc<Seen>,
}

impl Backend for Watched {
    fn describe(&self) -> Description {
        Description { activations: &[DType::F32, DType::BF16, DType::F16], ..self.inner.describe() }
    }

    fn memory(&self) -> device::Result<MemoryInfo> {
        self.inner.memory()
    }

    fn allocate(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.inner.allocate(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.inner.allocate_pinned(bytes)
    }

    fn pin_in_place(&self, regions: Vec<SharedBytes>) -> device::Result<Option<Vec<Arc<dyn Memory>>>> {
        self.inner.pin_in_place(regions)
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> device::Result<Arc<dyn StreamBackend>> {
        let inner = self.inner.open_stream(kind, ledger)?;
        Ok(Arc::new(WatchedStream { inner, seen: Arc::clone(&self.seen) }))
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.inner.supports(call)
    }

    fn trim(&self) -> device::Result<()> {
        self.inner.trim()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.inner.reaches(other)
    }
}

impl StreamBackend for WatchedStream {
    fn launch(&self, call: &OpCall, cancel: &Cancel) -> device::Result<()> {
        if matches!(call, OpCall::Matmul(product) if product.accumulate) {
            self.seen.merges.fetch_add(1, Ordering::SeqCst);
        }
        self.inner.launch(call, cancel)
    }

    fn copy(&self, to: &Span, from: &Span, cancel: &Cancel) -> device::Result<()> {
        self.inner.copy(to, from, cancel)
    }

    fn read(&self, from: &Span, to: &mut [u8], cancel: &Cancel) -> device::Result<()> {
        self.seen.reads.fetch_add(1, Ordering::SeqCst);
        self.inner.read(from, to, cancel)
    }

    fn write(&self, to: &Span, from: &[u8], cancel: &Cancel) -> device::Result<()> {
        self.seen.written.fetch_add(from.len() as u64, Ordering::SeqCst);
        self.inner.write(to, from, cancel)
    }

    fn record(&self) -> device::Result<Event> {
        self.inner.record()
    }

    fn record_timed(&self) -> device::Result<Event> {
        self.inner.record_timed()
    }

    fn wait(&self, event: &Event, cancel: &Cancel) -> device::Result<()> {
        self.inner.wait(event, cancel)
    }

    fn synchronize(&self, cancel: &Cancel) -> device::Result<()> {
        self.inner.synchronize(cancel)
    }
}

/// A machine with the CPU and two watched devices.
fn watched_machine(memory: &str) -> (Residency, Arc<Seen>) {
    let host = Arc::new(CpuBackend::new());
    let seen = Arc::new(Seen::default());
    let mut devices = vec![Device::new(Arc::clone(&host) as Arc<dyn Backend>, 8 << 30)];
    for ordinal in 0..2 {
        let spec: device::SimSpec = format!("{memory}@20gbps").parse().unwrap();
        let memory = Arc::clone(&host) as Arc<dyn Backend>;
        let inner = device::SimBackend::new(ordinal, spec, memory, host.executor());
        devices.push(Device::new(Arc::new(Watched { inner, seen: Arc::clone(&seen) }), spec.memory));
    }
    (Residency::new(Registry::new(devices)), seen)
}

fn load_as(
    residency: &Residency,
    file: &ModelFile,
    (text, remote): (&str, RemotePolicy),
    dtype: DType,
) -> ModelId {
    let manifest = manifest(file, "model");
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
    let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
    residency.load(manifest, plan, options).unwrap()
}

fn used_by(residency: &Residency, device: DeviceId) -> u64 {
    residency.devices().get(device).unwrap().ledger().report().used
}

/// The bytes of every weight, as leases give them.
fn weights(session: &Session) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for block in 0..BLOCKS {
        let lease = session.lease(block).unwrap();
        for name in ["up.weight", "up.bias", "down.weight"] {
            let weight = lease.weight(&format!("blocks.{block}.{name}")).unwrap();
            let mut bytes = vec![0; weight.operand().extent()];
            lease.lane().stream().read(&weight.operand().span(), &mut bytes).unwrap();
            all.push(bytes);
        }
    }
    all
}

const STREAMED: (&str, RemotePolicy) = ("sim:0,0%;cpu,100%", RemotePolicy::Auto);

/// Nothing of a LoRA on streamed blocks is on the host, nothing comes back from the device, and what waits for the blocks
/// is in the ledger, in the report and told before.
#[test]
fn a_lora_on_streamed_blocks_takes_what_is_told_and_nothing_of_the_host() {
    let file = write_model(1, Encoding::F32);
    let (residency, seen) = watched_machine("64mb");
    let plain = load_as(&residency, &file, STREAMED, DType::F32);
    run(&residency, plain).unwrap();
    let without = used_by(&residency, DeviceId::sim(0));
    residency.unload(plain).unwrap();
    for form in FORMS {
        let id = load_as(&residency, &file, STREAMED, DType::F32);
        let set = patches_of(&file, &manifest(&file, "model"), form, 0.7);
        let lane = Lane::new(residency.devices().get(DeviceId::sim(0)).unwrap(), DType::F32).unwrap();
        let told = Residency::patch_bytes(&manifest(&file, "model"), &set, &lane).unwrap();
        assert!(told > 0, "{form}");
        residency.set_patches(id, set).unwrap();
        seen.take();
        let session = residency.open(id, &Cancel::default()).unwrap();
        let held = used_by(&residency, DeviceId::sim(0)) - without;
        let ledger = residency.devices().get(DeviceId::sim(0)).unwrap().ledger();
        for _ in 0..3 {
            forward(&session, &input()).unwrap();
            assert_eq!(used_by(&residency, DeviceId::CPU), 0, "{form}");
        }
        assert_eq!(seen.take()[0], 3, "{form}: only the results are read");
        ledger.take_peak();
        (0..BLOCKS).for_each(|block| drop(session.lease(block).unwrap()));
        let merging = ledger.report().peak - without;
        assert!(merging <= told, "{form}: {merging} where {told} were told");
        assert!(form != "LoRA" || (held == told && merging == told), "a product takes nothing for a moment");
        let report = residency.models().pop().unwrap();
        drop(session);
        assert_eq!(used_by(&residency, DeviceId::sim(0)), without + held, "{form}");
        let reported = report.bytes.iter().find(|(device, _)| *device == DeviceId::sim(0)).unwrap().1;
        assert_eq!(reported, without + held, "{form}");
        assert_nothing_reserved(residency.devices());
        residency.unload(id).unwrap();
        assert_eq!(used(residency.devices()), [0, 0, 0], "{form}");
    }
}

/// A block that is still in its slot is not merged again, and one that arrives anew is.
#[test]
fn a_block_is_merged_once_for_each_arrival() {
    let file = write_model(2, Encoding::F32);
    for text in ["sim:0,0%;cpu,100%", "sim:0,95%;cpu,5%"] {
        let (residency, seen) = watched_machine("64mb");
        let id = load_as(&residency, &file, (text, RemotePolicy::Auto), DType::F32);
        let set = patches_of(&file, &manifest(&file, "model"), "LoRA", 0.7);
        residency.set_patches(id, set).unwrap();
        let plan = residency.models().pop().unwrap().plan;
        let streamed: Vec<usize> =
            (0..BLOCKS).filter(|i| plan.blocks[*i].mode == BlockMode::Streamed).collect();
        let session = residency.open(id, &Cancel::default()).unwrap();
        seen.take();
        let first = weights(&session);
        let leased = session.lease(streamed[0]).unwrap();
        drop(leased);
        for _ in 0..2 {
            assert!(weights(&session) == first, "{text}: every pass has the same bits");
        }
        let merges = seen.take()[2];
        let patched = streamed.iter().filter(|block| **block % 2 == 0).count() as u64;
        if streamed.len() == 1 {
            assert_eq!(merges, 2 * patched, "{text}: it stayed in its slot");
            assert_eq!(session.stats().copies, 1);
        } else {
            assert!((2 * 3 * patched..=2 * 4 * patched).contains(&merges), "{text}: {merges} of {patched}");
        }
    }
}

/// In 16 bits, where a LoRA is one product: the same bits wherever the block lives, at every strength.
#[test]
fn weights_of_16_bits_have_the_same_bits_everywhere() {
    for (encoding, dtype) in [(Encoding::BF16, DType::BF16), (Encoding::F16, DType::F16)] {
        let file = write_model(3, encoding);
        let model = manifest(&file, "model");
        let stacked = || {
            let mut set = lora(&file, &model, 0.8);
            add_file(&mut set, &file.dir.path().join("LoRA.safetensors"), &model, -0.4);
            set
        };
        let sets = [
            patches_of(&file, &model, "LoRA", 1.0),
            patches_of(&file, &model, "LoRA", 0.25),
            lora(&file, &model, 0.8),
            stacked(),
            patches_of(&file, &model, "LoHa", 0.5),
            PatchSet::new(),
        ];
        let mut expected: Vec<Vec<Vec<u8>>> = Vec::new();
        for placement in [
            ("", RemotePolicy::Auto),
            STREAMED,
            ("sim:0,50%;cpu,50%", RemotePolicy::Auto),
            ("sim:0,50%;sim:1,50%", RemotePolicy::Stream),
            ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace),
        ] {
            let (residency, _) = watched_machine("64mb");
            let id = load_as(&residency, &file, placement, dtype);
            for (index, set) in sets.iter().enumerate() {
                residency.set_patches(id, set.clone()).unwrap();
                let session = residency.open(id, &Cancel::default()).unwrap();
                let got = [weights(&session), weights(&session)];
                assert!(got[0] == got[1], "{encoding} {placement:?}: set {index}, second pass");
                match expected.get(index) {
                    None => expected.push(got.into_iter().next().unwrap()),
                    Some(expected) => {
                        assert!(got[0] == *expected, "{encoding} {placement:?}: set {index}");
                    }
                }
            }
        }
        let file_bytes: Vec<Vec<u8>> = model.weights().iter().map(|weight| weight.bytes.to_vec()).collect();
        assert!(expected[5] == file_bytes, "without patches the weights are the file's");
        assert!((0..5).all(|index| expected[index] != file_bytes && expected[0] != expected[1]));
    }
}

/// Another strength writes nothing to the device for streamed blocks but what their slots are filled with again.
#[test]
fn another_strength_of_streamed_blocks_moves_no_factors() {
    let file = write_model(4, Encoding::F32);
    let model = manifest(&file, "model");
    for form in ["LoRA", "LoHa", "difference"] {
        let set = |strength| patches_of(&file, &model, form, strength);
        let (residency, seen) = watched_machine("64mb");
        let id = load_as(&residency, &file, STREAMED, DType::F32);
        let (full, half) = (set(1.0), {
            let mut half = PatchSet::new();
            add_file(&mut half, &file.dir.path().join(format!("{form}.safetensors")), &model, 0.5);
            half
        });
        residency.set_patches(id, full.clone()).unwrap();
        let before = run(&residency, id).unwrap();
        seen.take();
        // The same file, opened again: what is staged is told apart by its contents.
        let touched = residency.set_patches(id, half).unwrap();
        assert_eq!(touched, BLOCKS, "{form}: two weights of every second block");
        assert_eq!(seen.take(), [0, 0, 0], "{form}: nothing moves");
        assert_ne!(run(&residency, id).unwrap(), before);
        residency.set_patches(id, full).unwrap();
        assert_eq!(run(&residency, id).unwrap(), before);
    }
}

/// Patches for which there is no room are an error with the numbers; what was in force before is again.
#[test]
fn patches_without_room_are_refused_and_the_model_goes_on() {
    let file = write_model(5, Encoding::F32);
    let model = manifest(&file, "model");
    let (residency, _) = watched_machine("512kb");
    let id = load_as(&residency, &file, STREAMED, DType::F32);
    let small = patches_of(&file, &model, "LoRA", 0.5);
    residency.set_patches(id, small).unwrap();
    let before = run(&residency, id).unwrap();
    // Differences are as large as the weights themselves: half of the model.
    let large = patches_of(&file, &model, "difference", 0.5);
    let error = residency.set_patches(id, large.clone()).unwrap_err().to_string();
    assert!(error.starts_with("sim:0 is out of memory: wanted") && error.contains("would fit"), "{error}");
    assert_nothing_reserved(residency.devices());
    assert_eq!(run(&residency, id).unwrap(), before, "the patches from before are in force");
    // The same when the copies are not there yet.
    residency.evict_from(DeviceId::sim(0), None);
    residency.set_patches(id, large).unwrap();
    let error = run(&residency, id).unwrap_err().to_string();
    assert!(error.starts_with("sim:0 is out of memory: wanted"), "{error}");
    assert_eq!(used(residency.devices()), [0, 0, 0]);
    assert_nothing_reserved(residency.devices());
}
