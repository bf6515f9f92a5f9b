//! The footprint of work: what it takes beside the weights, found by doing it on a null device that counts as the real
//! one would. No size is computed by a formula.

use std::sync::Arc;

use device::{Device, NullBackend, OpCall, Registry};
use meta::{DType, DeviceId};
use placement::{DeviceProfile, PlanRequest};
use residency::{Cancel, LoadOptions, Manifest, Residency};

use crate::Result;
use crate::{Source, Work};

/// Memory of a null device: more than any model takes.
const BOUNDLESS: u64 = 1 << 52;

/// What work takes of a device.
#[derive(Clone, Debug, PartialEq)]
pub struct Footprint {
    /// The most bytes at a time beside the weights.
    pub working_bytes: u64,
    /// Bytes that it goes on holding between its steps, while others work.
    pub held_bytes: u64,
    /// The most bytes that one block hands to the next.
    pub handed_bytes: u64,
    /// Seconds of every block on the device, by its profile.
    pub block_seconds: Vec<f64>,
}

impl Footprint {
    /// Does the work on a null device like this one.
    pub(crate) fn of(
        source: &Source,
        manifest: Manifest,
        work: &Work,
        (device, host): (&Device, &Device),
        (dtype, profile): (DType, &DeviceProfile),
    ) -> Result<Footprint> {
        let profile = profile.clone();
        let seconds = move |call: &OpCall| profile.seconds(&cost_of(call)).unwrap_or(0.0);
        let null = Device::new(Arc::new(NullBackend::like(device, 0, Arc::new(seconds))), BOUNDLESS);
        let residency = Residency::new(Registry::new([host.clone(), null.clone()]));
        let blocks = manifest.blocks().len();
        let plan = placement::plan(&on(&manifest, null.id()))?;
        let id =
            residency.load(manifest, plan, LoadOptions { dtype: Some(dtype), ..LoadOptions::default() })?;
        let session = residency.open(id, &Cancel::default())?;
        let weights = null.ledger().report().used;
        null.ledger().take_peak();
        let held_bytes = source.network.rehearse(&session, work)?;
        let peak = null.ledger().take_peak();
        drop(session);
        let profile = residency.models().into_iter().find_map(|model| model.profile);
        let mut footprint = Footprint {
            working_bytes: peak.saturating_sub(weights),
            held_bytes,
            handed_bytes: 0,
            block_seconds: vec![0.0; blocks],
        };
        for block in profile.iter().flat_map(|profile| &profile.blocks) {
            footprint.block_seconds[block.block] += block.compute;
            // What the first block is handed comes from the host, wherever it computes.
            if block.block > 0 {
                footprint.handed_bytes = footprint.handed_bytes.max(block.handed_bytes);
            }
        }
        Ok(footprint)
    }

    /// Seconds of all blocks.
    pub fn seconds(&self) -> f64 {
        self.block_seconds.iter().sum()
    }
}

/// Everything on one device that has room for it.
fn on(manifest: &Manifest, device: DeviceId) -> PlanRequest {
    let spec = placement::DeviceSpec {
        id: device,
        total_bytes: BOUNDLESS,
        available_bytes: BOUNDLESS,
        link_bytes_per_s: 1.0,
        compute_factor: 1.0,
        reaches: Vec::new(),
    };
    Residency::plan_request(manifest, device, vec![spec])
}

fn cost_of(call: &OpCall) -> placement::OpCost {
    let device::OpCost { kind, dtype, flops, bytes } = call.cost();
    let kind = match kind {
        device::WorkKind::Product => placement::WorkKind::Product,
        device::WorkKind::Attention => placement::WorkKind::Attention,
        device::WorkKind::Convolution => placement::WorkKind::Convolution,
        device::WorkKind::Memory => placement::WorkKind::Memory,
    };
    placement::OpCost { kind, dtype, flops, bytes }
}

#[cfg(test)]
mod tests {
    use device::{Backend, SimBackend, SimSpec};
    use device_cpu::CpuBackend;
    use models::conditioning::CondShape;
    use models::detect::detect;
    use models::vae::CodedSize;
    use residency::Products;
    use testkit::ScratchDir;

    use super::*;
    use crate::Folders;
    use crate::planning::Demand;
    use crate::{EvaluationShape, Placing, Runtime, Settings};

    /// A marker of a scaled fp8 file that asks for full precision, and one that does not.
    const FULL_PRECISION: &str = r#""name":"scaled_fp8","shape":[2]"#;
    const EIGHT_BITS: &str = r#""name":"scaled_fp8","shape":[1]"#;

    /// A runtime on the CPU and one simulated device.
    fn runtime(spec: &str) -> (Runtime, ScratchDir) {
        let dir = ScratchDir::new().unwrap();
        let host = Arc::new(CpuBackend::new());
        let cpu = Device::new(Arc::clone(&host) as Arc<dyn Backend>, 8 << 30);
        let spec: SimSpec = spec.parse().unwrap();
        let sim = SimBackend::new(0, spec, Arc::clone(&host) as Arc<dyn Backend>, host.executor());
        let devices = Registry::new([cpu, Device::new(Arc::new(sim), spec.memory)]);
        let settings =
            Settings { profile_file: Some(dir.path().join("machine.json")), ..Settings::default() };
        (Runtime::new(Folders::at(dir.path()), devices, DeviceId::sim(0), settings), dir)
    }

    fn source(runtime: &Runtime, dir: &ScratchDir, name: &str) -> Source {
        let path = testkit::Manifest::bundled(name).unwrap().write_to(dir.path()).unwrap();
        let file = runtime.open_file(&path).unwrap();
        let (found, placing) = (detect(&file), Placing::automatic(DeviceId::sim(0)));
        match name {
            name if name.starts_with("t5") => Source::encoders(&file, &found, &placing).unwrap().remove(0),
            name if name.contains("ae") => Source::autoencoder(&file, &found, placing).unwrap(),
            _ => Source::diffusion(&file, &found, None, placing).unwrap(),
        }
    }

    fn step(height: usize, width: usize, texts: &[usize]) -> Work {
        let shape = |text: &usize| EvaluationShape {
            height,
            width,
            cond: CondShape { tokens: *text, ..CondShape::default() },
            altered: Vec::new(),
        };
        Work::step(1, 1, texts.iter().map(shape).collect())
    }

    /// What the work takes of a device that really computes, beside the weights.
    fn peak_of(runtime: &Runtime, source: &Source, work: &Work) -> u64 {
        let planned = runtime.plan(source, Demand { work: Some(work), ..Demand::default() }).unwrap();
        let residency = Residency::new(runtime.devices.clone());
        let options = LoadOptions { dtype: Some(planned.dtype), ..LoadOptions::default() };
        let id = residency.load(source.manifest().unwrap(), planned.plan, options).unwrap();
        let session = residency.open(id, &Cancel::default()).unwrap();
        let ledger = runtime.devices.get(DeviceId::sim(0)).unwrap().ledger();
        let before = ledger.report().used;
        ledger.take_peak();
        source.network.rehearse(&session, work).unwrap();
        ledger.take_peak() - before
    }

    #[test]
    fn a_rehearsal_tells_what_the_device_will_hold() {
        let (runtime, dir) = runtime("6gb@50gbps");
        let cases = [
            ("flux_dev_micro", vec![step(16, 16, &[12]), step(32, 24, &[64]), step(16, 40, &[12, 12])]),
            ("t5xxl_tiny", [16, 64, 256].map(|tokens| Work::Text { chunks: 1, tokens }).to_vec()),
            (
                "flux_ae",
                [(8, 8), (12, 8), (16, 16)]
                    .map(|(height, width)| Work::Decode(CodedSize::whole(height, width)))
                    .to_vec(),
            ),
            (
                "flux_ae",
                [(8, 8), (12, 8), (16, 16)]
                    .map(|(height, width)| Work::Encode(CodedSize::whole(height, width)))
                    .to_vec(),
            ),
        ];
        for (name, works) in cases {
            let source = source(&runtime, &dir, name);
            for work in works {
                let planned = runtime.plan(&source, Demand { work: Some(&work), ..Demand::default() });
                let told = planned.unwrap().working_bytes() as f64;
                let peak = peak_of(&runtime, &source, &work) as f64;
                assert!((told / peak - 1.0).abs() <= 0.02, "{name}, {work:?}: told {told}, used {peak}");
            }
        }
    }

    /// How many weights a plan says to have products of 8 bits, for a loader that asks for them or does not.
    fn fp8_products(spec: &str, said: Products, name: &str, asked: bool) -> usize {
        let (mut runtime, dir) = runtime(spec);
        runtime.settings.products = said;
        let mut source = source(&runtime, &dir, name).with_products(runtime.products(asked));
        source.cast = asked.then_some(DType::F8E4M3);
        let demand = Demand::default();
        let planned = runtime.plan(&source, demand).unwrap();
        let notes = planned.plan.notes.iter().filter(|note| note.contains("8-bit products")).count();
        assert_eq!(notes, usize::from(planned.fp8_products > 0), "{:?}", planned.plan.notes);
        planned.fp8_products
    }

    #[test]
    fn products_are_of_8_bits_where_somebody_asks_and_the_device_has_them() {
        let (has, has_not) = ("1gb@10gbps@fp8", "1gb@10gbps");
        let flux = "flux_dev_micro";
        assert!(fp8_products(has, Products::ByFile, flux, true) > 10);
        assert_eq!(fp8_products(has_not, Products::ByFile, flux, true), 0);
        assert_eq!(fp8_products(has, Products::Exact, flux, true), 0);
        assert_eq!(fp8_products(has, Products::ByFile, flux, false), 0, "nobody asked");
        assert_eq!(fp8_products(has, Products::EightBits, flux, false), 0, "weights of 16 bits");
        // Its marker of two values asks for full precision.
        assert_eq!(fp8_products(has, Products::EightBits, "flux_dev_micro_fp8_scaled", false), 0);
    }

    #[test]
    fn a_scaled_file_asks_for_products_of_8_bits_by_itself() {
        let text = include_str!("../../testkit/data/manifests/flux_dev_micro_fp8_scaled.json");
        let marker = text.replace(FULL_PRECISION, EIGHT_BITS);
        assert_ne!(marker, text, "the marker is no longer written so");
        for (said, expected) in [(Products::ByFile, 26), (Products::EightBits, 26), (Products::Exact, 0)] {
            let (mut runtime, dir) = runtime("1gb@10gbps@fp8");
            runtime.settings.products = said;
            let path = testkit::Manifest::parse(&marker).unwrap().write_to(dir.path()).unwrap();
            let file = runtime.open_file(&path).unwrap();
            let placing = Placing::automatic(DeviceId::sim(0));
            let source = Source::diffusion(&file, &detect(&file), None, placing).unwrap();
            let source = source.with_products(runtime.products(false));
            let demand = Demand::default();
            assert_eq!(runtime.plan(&source, demand).unwrap().fp8_products, expected, "{said:?}");
        }
    }

    #[test]
    fn a_rehearsal_tells_what_products_of_8_bits_take() {
        let (runtime, dir) = runtime("6gb@50gbps@fp8");
        let mut source = source(&runtime, &dir, "flux_dev_micro").with_products(runtime.products(true));
        source.cast = Some(DType::F8E4M3);
        let work = step(32, 24, &[64]);
        let demand = Demand { work: Some(&work), ..Demand::default() };
        let told = runtime.plan(&source, demand).unwrap().working_bytes() as f64;
        let peak = peak_of(&runtime, &source, &work) as f64;
        assert!((told / peak - 1.0).abs() <= 0.02, "told {told}, used {peak}");
    }

    #[test]
    fn a_device_with_little_more_than_the_streamed_peak_will_do() {
        let (roomy, dir) = runtime("2gb@50gbps");
        let flux = source(&roomy, &dir, "flux_dev_micro");
        let work = step(16, 16, &[12]);
        let demand = Demand { work: Some(&work), ..Demand::default() };
        // The smallest plan: everything that can stream does, through one slot.
        let request = roomy.plan(&flux, demand).unwrap().request;
        let fixed: u64 = request.blocks.iter().filter(|block| block.pinned).map(|block| block.bytes).sum();
        let largest =
            request.blocks.iter().filter(|block| !block.pinned).map(|block| block.bytes).max().unwrap();
        let least = fixed + largest + request.working_bytes;
        let (tight, tight_dir) = runtime(&format!("{}b@50gbps", least + least / 20));
        let streamed = tight.plan(&flux, demand).unwrap().plan.streamed_bytes();
        assert!(streamed > 0, "nothing is streamed");
        // It does not only plan: the model loads, and a whole step runs in what is left beside it.
        peak_of(&tight, &source(&tight, &tight_dir, "flux_dev_micro"), &work);
        let (small, _) = runtime(&format!("{}b@50gbps", least * 9 / 10));
        let error = small.plan(&flux, demand).unwrap_err();
        assert!(matches!(error, crate::Error::Plan(placement::PlanError::NoRoom { .. })), "{error}");
    }
}
