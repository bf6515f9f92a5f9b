//! Merging where the weight lies: in 16 bits as one product, in place, at other strengths, and what it takes.

use std::sync::Arc;

use device::{
    Backend, Description, Device, Ledger, Memory, MemoryInfo, OpCall, Operand, StreamBackend, StreamKind,
};
use device_cpu::CpuBackend;
use meta::{DType, DeviceId, Encoding, Shape};
use models::diffusion::flux;
use patch::{Beside, Error, Merge, Patch, PatchFile, PatchSet, apply, merge_stored};
use tensor::{Lane, Weight};
use testkit::{decode, encode, random_f32};

use crate::fixture::{Stored, WEIGHT, bundled, checkpoint, lane, number, one_layer, patches, random};

/// The CPU, which also says that it multiplies in 16 bits, as GPUs do: what is added to a weight may be of its type.
struct Narrow(CpuBackend);

impl Backend for Narrow {
    fn describe(&self) -> Description {
        Description { activations: &[DType::F32, DType::BF16, DType::F16], ..self.0.describe() }
    }

    fn memory(&self) -> device::Result<MemoryInfo> {
        self.0.memory()
    }

    fn allocate(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.0.allocate(bytes)
    }

    fn allocate_pinned(&self, bytes: usize) -> device::Result<Arc<dyn Memory>> {
        self.0.allocate_pinned(bytes)
    }

    fn open_stream(&self, kind: StreamKind, ledger: &Ledger) -> device::Result<Arc<dyn StreamBackend>> {
        self.0.open_stream(kind, ledger)
    }

    fn supports(&self, call: &OpCall) -> Result<(), String> {
        self.0.supports(call)
    }

    fn trim(&self) -> device::Result<()> {
        self.0.trim()
    }

    fn reaches(&self, other: DeviceId) -> bool {
        self.0.reaches(other)
    }
}

fn narrow_lane() -> Lane {
    Lane::new(&Device::new(Arc::new(Narrow(CpuBackend::new())), 4 << 30), DType::F32).unwrap()
}

/// Patches from files of these encodings, on the rows that FLUX's names say.
fn stacked(files: &[(Encoding, &[Stored])], shape: &Shape, weight: &str) -> Vec<Patch> {
    let mut set = PatchSet::new();
    let keys = flux::patch_keys([(weight, shape)]);
    for (index, (encoding, tensors)) in files.iter().enumerate() {
        let file = PatchFile::read(&checkpoint(&format!("{index}.safetensors"), *encoding, tensors)).unwrap();
        set.add(&file, &keys, 0.7 - 0.5 * index as f64).unwrap();
    }
    assert_eq!(set.unmatched(), &[] as &[String]);
    set.patches(weight).to_vec()
}

fn bytes_of(lane: &Lane, operand: &Operand) -> Vec<u8> {
    let mut bytes = vec![0; operand.extent()];
    lane.stream().read(&operand.span(), &mut bytes).unwrap();
    bytes
}

/// Stages patches and counts what that takes.
fn staged(lane: &Lane, encoding: Encoding, patches: &[Patch]) -> Merge {
    let mut taken = 0;
    let mut allocate = |bytes: usize| {
        taken += bytes as u64;
        lane.device().allocate(bytes)
    };
    let merge = Merge::stage(lane, encoding, patches, &mut allocate).unwrap();
    assert_eq!(taken, merge.bytes());
    assert_eq!(taken, Merge::bytes_for(lane.device(), encoding, patches).unwrap());
    merge
}

/// The merged weight, against the merge in f32 that is rounded once.
fn compare(lane: &Lane, dtype: DType, shape: Shape, patches: &[Patch]) {
    let encoding = Encoding::from(dtype);
    let bytes = encode(encoding, &random_f32(3, shape.count())).unwrap();
    let weight = Weight::upload(lane.device(), encoding, shape, &bytes).unwrap();
    let exact = apply(lane, &lane.unpack(&weight).unwrap(), patches).unwrap().to_vec().unwrap();
    let want = decode(encoding, &encode(encoding, &exact).unwrap()).unwrap();
    staged(lane, encoding, patches).apply_to(&weight).unwrap();
    let got = decode(encoding, &bytes_of(lane, weight.operand())).unwrap();
    let before = decode(encoding, &bytes).unwrap();
    assert!(got.iter().zip(&before).filter(|(g, b)| g != b).count() > shape.count() / 3);
    // A value half way between two neighbours may go to either, and no other may.
    let other = got.iter().zip(&want).filter(|(g, w)| g != w).count();
    assert!(other <= shape.count() / 200, "{dtype}: {other} of {} differ", shape.count());
    let step = if dtype == DType::BF16 { 1.0 / 128.0 } else { 1.0 / 1024.0 };
    for ((got, want), before) in got.iter().zip(&want).zip(&before) {
        // Where weight and change cancel, what is left shows how exact the change is.
        let exact = (before.abs() + (want - before).abs()) / 32768.0;
        assert!((got - want).abs() <= step * want.abs() + exact, "{dtype}: {got} instead of {want}");
    }
}

const QKV: &str = "double_blocks.0.img_attn.qkv.weight";

/// A LoRA of the whole layer, and one of its three parts.
fn loras(rank: usize, columns: usize, rows: usize) -> [Vec<Stored>; 2] {
    let whole = "lora_unet_double_blocks_0_img_attn_qkv";
    let both = |key: &str, rows: usize, [up, down]: [&str; 2]| {
        vec![
            random(&format!("{key}.{up}.weight"), &[rows, rank]),
            random(&format!("{key}.{down}.weight"), &[rank, columns]),
        ]
    };
    let mut kohya = both(whole, 3 * rows, ["lora_up", "lora_down"]);
    kohya.push(number(&format!("{whole}.alpha"), 0.3 * rank as f32));
    let parts = ["to_q", "to_k", "to_v"]
        .iter()
        .flat_map(|part| {
            both(&format!("transformer.transformer_blocks.0.attn.{part}"), rows, ["lora_B", "lora_A"])
        })
        .collect();
    [kohya, parts]
}

#[test]
fn a_lora_in_16_bits_is_rounded_once_whatever_its_own_type() {
    let lane = narrow_lane();
    let shape = Shape::from([96, 64]);
    let [whole, parts] = loras(5, 64, 32);
    for encoding in [Encoding::BF16, Encoding::F16, Encoding::F32, DType::F8E4M3.into()] {
        // A number in 8 bits is read by nobody, so there only the file without one.
        let narrow = encoding == DType::F8E4M3.into();
        for tensors in [&whole, &parts].into_iter().skip(usize::from(narrow)) {
            compare(&lane, DType::BF16, shape, &stacked(&[(encoding, tensors)], &shape, QKV));
            compare(&lane, DType::F16, shape, &stacked(&[(encoding, tensors)], &shape, QKV));
            compare(&lane, DType::F32, shape, &stacked(&[(encoding, tensors)], &shape, QKV));
        }
    }
}

#[test]
fn several_loras_on_the_same_rows_are_rounded_once() {
    let lane = narrow_lane();
    let shape = Shape::from([96, 64]);
    let [whole, parts] = loras(6, 64, 32);
    let stack = [(Encoding::BF16, &whole[..]), (Encoding::F32, &parts), (Encoding::F16, &whole)];
    for dtype in [DType::BF16, DType::F16, DType::F32] {
        compare(&lane, dtype, shape, &stacked(&stack, &shape, QKV));
    }
    // A width that no fast product has is merged as well.
    let narrow = Shape::from([96, 63]);
    let [whole, parts] = loras(6, 63, 32);
    let stack = [(Encoding::BF16, &whole[..]), (Encoding::F32, &parts)];
    compare(&lane, DType::BF16, narrow, &stacked(&stack, &narrow, QKV));
}

#[test]
fn real_files_of_both_naming_styles_in_16_bits() {
    let lane = narrow_lane();
    let manifest = testkit::Manifest::bundled("flux_dev_micro").unwrap();
    let names: Vec<(&str, &Shape)> = manifest.tensors.iter().map(|t| (t.name.as_str(), &t.shape)).collect();
    let mut set = PatchSet::new();
    for (file, strength) in [("flux_dev_micro_lora_diffusers", 0.8), ("flux_dev_micro_lora_kohya", -0.5)] {
        set.add(&bundled(file), &flux::patch_keys(names.iter().copied()), strength).unwrap();
    }
    assert!(set.len() > 20);
    for (weight, patches) in set.iter() {
        compare(&lane, DType::BF16, manifest.tensor(weight).unwrap().shape, patches);
    }
}

/// Every other form, in place and with what it takes counted: the bits of the merge beside the weight.
#[test]
fn every_form_is_merged_where_the_weight_lies() {
    let lane = lane();
    let layer = |ending: &str, dims: &[usize]| random(&format!("layer.{ending}"), dims);
    let loha = ["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"];
    let loha = loha.map(|name| layer(name, if name.ends_with('a') { &[8, 2] } else { &[2, 12] }));
    let forms = [
        vec![layer("lora_up.weight", &[8, 3]), layer("lora_down.weight", &[3, 12])],
        vec![
            layer("lora_up.weight", &[8, 3]),
            layer("lora_down.weight", &[3, 12]),
            layer("dora_scale", &[8, 1]),
        ],
        Vec::from(loha),
        vec![layer("lokr_w1", &[2, 3]), layer("lokr_w2", &[4, 4])],
        vec![layer("diff", &[8, 12])],
        vec![layer("set_weight", &[8, 12])],
    ];
    for tensors in forms {
        let patches = patches(&tensors, &[8, 12], 0.9);
        for dtype in [DType::F32, DType::BF16, DType::F8E5M2] {
            let encoding = Encoding::from(dtype);
            let bytes = encode(encoding, &random_f32(1, 96)).unwrap();
            let weight = Weight::upload(lane.device(), encoding, [8, 12], &bytes).unwrap();
            let want = merge_stored(&lane, &weight, &patches).unwrap();
            assert_eq!(bytes_of(&lane, weight.operand()), bytes, "the source stays as it is");
            let merge = staged(&lane, encoding, &patches);
            merge.apply_to(&weight).unwrap();
            assert_eq!(bytes_of(&lane, weight.operand()), bytes_of(&lane, want.operand()), "{dtype}");
            let other = Weight::upload(lane.device(), encoding, [12, 8], &bytes).unwrap();
            assert!(matches!(merge.apply_to(&other), Err(Error::OtherWeight { .. })));
        }
    }
}

#[test]
fn another_strength_stages_nothing_again() {
    let tensors = [random("layer.lora_up.weight", &[8, 3]), random("layer.lora_down.weight", &[3, 16])];
    let diff = [random("layer.diff", &[8, 16])];
    for (lane, tensors) in [(lane(), &tensors[..]), (narrow_lane(), &tensors), (lane(), &diff)] {
        let file = PatchFile::read(&checkpoint("file", Encoding::BF16, tensors)).unwrap();
        let at = |strength: f64| {
            let mut set = PatchSet::new();
            set.add(&file, &one_layer(&[8, 16]), strength).unwrap();
            set.patches(WEIGHT).to_vec()
        };
        for dtype in [DType::F32, DType::BF16] {
            let encoding = Encoding::from(dtype);
            let bytes = encode(encoding, &random_f32(1, 128)).unwrap();
            let merged = |merge: &Merge| {
                let weight = Weight::upload(lane.device(), encoding, [8, 16], &bytes).unwrap();
                merge.apply_to(&weight).unwrap();
                bytes_of(&lane, weight.operand())
            };
            let full = staged(&lane, encoding, &at(1.0));
            let half = full.with_strengths(&at(0.5)).unwrap();
            assert_eq!(merged(&half), merged(&staged(&lane, encoding, &at(0.5))), "{dtype}");
            assert_ne!(merged(&half), merged(&full));
            let twice = [at(0.5), at(0.25)].concat();
            assert!(full.with_strengths(&twice).is_none(), "other changes are staged");
        }
    }
}

/// The strengths of several are part of what is staged.
#[test]
fn several_strengths_in_16_bits_are_staged() {
    let (lane, shape) = (narrow_lane(), Shape::from([96, 64]));
    let [whole, parts] = loras(6, 64, 32);
    let stack = [(Encoding::BF16, &whole[..]), (Encoding::F32, &parts)];
    let patches = stacked(&stack, &shape, QKV);
    assert!(staged(&lane, Encoding::BF16, &patches).with_strengths(&patches).is_none());
    assert!(staged(&lane, Encoding::F32, &patches).with_strengths(&patches).is_some());
}

#[test]
fn what_runs_beside_is_counted_before_it_is_staged() {
    let layer = |ending: &str, dims: &[usize]| random(&format!("layer.{ending}"), dims);
    let lora = || vec![layer("lora_up.weight", &[8, 3]), layer("lora_down.weight", &[3, 12])];
    let mut dora = lora();
    dora.push(layer("dora_scale", &[8, 1]));
    let lane = lane();
    let weight = Weight::upload_f32(lane.device(), [8, 12], &random_f32(1, 96)).unwrap();
    for tensors in [lora(), dora, vec![layer("lokr_w1", &[2, 3]), layer("lokr_w2", &[4, 4])]] {
        let patches = patches(&tensors, &[8, 12], 0.9);
        let mut taken = 0;
        let mut allocate = |bytes: usize| {
            taken += bytes as u64;
            lane.device().allocate(bytes)
        };
        let staged = Beside::stage_in(&lane, &patches, Some(&weight), &mut allocate).unwrap();
        assert_eq!(staged.bytes().unwrap(), taken);
        assert_eq!(taken, Beside::bytes_for(DType::F32, &patches));
    }
}
