//! FLUX against the reference implementation, module by module, in every encoding and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use checkpoint::Checkpoint;
use meta::{DType, DeviceId, Encoding, Shape};
use models::Module;
use models::conditioning::TokenBias;
use models::diffusion::flux::{Flux, FluxInputs, ReferencePlaces};
use models::{Probe, detect};
use placement::{BlockMode, RemotePolicy};
use residency::{Manifest, Residency, Session};
use support::*;
use tensor::{Lane, Tensor, Weight};
use testkit::{Golden, Report, SafetensorsWriter, ScratchDir, random_normal};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
const TOLERANCE: f64 = 1e-4;

/// A model and its manifest.
fn flux(name: &str) -> (Flux, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let flux = Flux::read(&checkpoint, &detected).unwrap();
    let manifest = flux.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (flux, manifest)
}

/// Runs the golden's inputs and compares every module that both sides name; which they were.
fn compare_modules(flux: &Flux, session: &Session, golden: &Golden) -> BTreeSet<String> {
    let lane = session.lane().unwrap();
    let input = |name: &str| {
        let input = golden.input(name).unwrap();
        lane.tensor(input.shape, &input.values()).unwrap()
    };
    let number = |name: &str| golden.metadata(name).ok().map(|text| text.parse::<f32>().unwrap());
    let (x, context, y) = (input("x"), input("context"), input("y"));
    let inputs = FluxInputs {
        guidance: number("guidance"),
        ..FluxInputs::new(&x, number("timestep").unwrap(), &context, &y)
    };
    let mut seen = BTreeSet::new();
    let mut tables: Vec<Vec<f32>> = Vec::new();
    let mut see = |name: &str, value: &Tensor| {
        if name.starts_with("pe_embedder") {
            tables.push(value.to_vec().unwrap());
            return;
        }
        for (name, value) in renamed(name, value) {
            let stored = format!("out.{name}");
            if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
                golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
                seen.insert(name);
            }
        }
    };
    let output = flux.forward_probed(session, &inputs, &mut Probe::new(&mut see)).unwrap();
    golden.assert_close("output", output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    let turns = tables[0].iter().zip(&tables[1]).flat_map(|(cos, sin)| [*cos, -sin, *sin, *cos]);
    let pairs = flux.config().head_size / 2;
    let shape = Shape::from([1, 1, tables[0].len() / pairs, pairs, 2, 2]);
    golden.assert_close("out.pe_embedder", &shape, &turns.collect::<Vec<_>>(), 1e-6);
    seen.insert("pe_embedder".into());
    seen
}

/// A module's result under the reference's names and in its order of dimensions.
fn renamed(name: &str, value: &Tensor) -> Vec<(String, Tensor)> {
    let with_row = |value: &Tensor| value.reshape([value.dim(0), 1, value.dim(1)]).unwrap();
    if let Some(norm) = name.strip_suffix(".query_norm").or_else(|| name.strip_suffix(".key_norm")) {
        let heads_first = value.transpose(1, 2).unwrap();
        let index = if name.ends_with("query_norm") { 0 } else { 1 };
        return vec![(name.into(), heads_first.clone()), (format!("{norm}.{index}"), heads_first)];
    }
    if name.ends_with("mod.lin") || name.ends_with("modulation.lin") {
        return vec![(name.into(), with_row(value))];
    }
    if let Some(mlp) = name.strip_suffix("_mlp.2") {
        return vec![(name.into(), value.clone()), (format!("{mlp}_mlp"), value.clone())];
    }
    vec![(name.into(), value.clone())]
}

/// The modules of which the golden file has results.
fn golden_modules(golden: &Golden) -> BTreeSet<String> {
    let module = |name: &str| {
        let name = name.strip_prefix("out.")?;
        let pieces = [".rows", ".cols", ".rms"];
        Some(pieces.iter().find_map(|piece| name.strip_suffix(piece)).unwrap_or(name).to_owned())
    };
    golden.names().filter_map(module).collect()
}

#[test]
fn dev_equals_the_reference_in_every_module() {
    let (flux, manifest) = flux("flux_dev_micro");
    let golden = golden("flux_dev_micro");
    let seen = compare_modules(&flux, &open_on_cpu(manifest), &golden);
    assert_eq!(seen, golden_modules(&golden));
}

#[test]
fn schnell_equals_the_reference_in_every_module() {
    let (flux, manifest) = flux("flux_schnell_micro");
    let golden = golden("flux_schnell_micro");
    assert!(!flux.config().guidance);
    let seen = compare_modules(&flux, &open_on_cpu(manifest), &golden);
    assert_eq!(seen, golden_modules(&golden));
}

#[test]
fn one_block_of_each_kind_at_full_width_equals_the_reference() {
    let (flux, manifest) = flux("flux_dev_d1s1");
    let golden = golden("flux_dev_d1s1");
    assert_eq!((flux.config().heads, flux.config().axes), (24, [16, 56, 56]));
    let seen = compare_modules(&flux, &open_on_cpu(manifest), &golden);
    assert_eq!(seen, golden_modules(&golden));
}

/// The same model with every weight unpacked to f32.
fn unpacked(name: &str) -> (Flux, Manifest) {
    let packed = checkpoint(name);
    let devices = machine(&[]);
    let lane = Lane::new(devices.get(DeviceId::CPU).unwrap(), DType::F32).unwrap();
    let mut writer = SafetensorsWriter::new();
    if let Some(config) = packed.metadata().str("gantry_unet_config") {
        writer = writer.metadata("gantry_unet_config", config);
    }
    for entry in packed.entries().iter().filter(|entry| !packed.is_companion(entry)) {
        let values = |entry: &checkpoint::Entry| {
            let bytes = packed.bytes(entry);
            let weight = Weight::upload(lane.device(), entry.encoding(), *entry.shape(), bytes).unwrap();
            lane.unpack(&weight).unwrap().to_vec().unwrap()
        };
        let scale = packed.scale_of(entry).map_or(1.0, |scale| values(scale)[0]);
        let values: Vec<f32> = values(entry).iter().map(|v| v * scale).collect();
        writer = writer.values(entry.name(), Encoding::F32, *entry.shape(), &values).unwrap();
    }
    let dir = ScratchDir::new().unwrap();
    let path = dir.join("unpacked.safetensors");
    writer.write(&path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let flux = Flux::read(&checkpoint, &detect(&checkpoint)).unwrap();
    let manifest = flux.manifest(&checkpoint).unwrap();
    (flux, manifest)
}

#[test]
fn packed_weights_compute_what_their_values_do() {
    for name in ["flux_dev_micro_fp8", "flux_dev_micro_fp8_scaled", "flux_dev_micro-Q8_0"] {
        let (flux, manifest) = flux(name);
        let got = evaluate(&flux, &open_on_cpu(manifest));
        let (flux, manifest) = unpacked(name);
        let want = evaluate(&flux, &open_on_cpu(manifest));
        Report::new(name, &got, &want).assert(1e-5);
    }
}

/// One evaluation of a small picture.
fn evaluate(flux: &Flux, session: &Session) -> Vec<f32> {
    let lane = session.lane().unwrap();
    let x = lane.tensor([2, 16, 6, 10], &random_normal(1, 2 * 16 * 60)).unwrap();
    let context = lane.tensor([1, 7, 4096], &random_normal(2, 7 * 4096)).unwrap();
    let pooled = lane.tensor([1, 768], &random_normal(3, 768)).unwrap();
    let reference = lane.tensor([1, 16, 4, 4], &random_normal(4, 16 * 16)).unwrap();
    let inputs = FluxInputs {
        guidance: Some(3.0),
        references: &[reference],
        ..FluxInputs::new(&x, 0.6, &context, &pooled)
    };
    flux.forward(session, &inputs).unwrap().to_vec().unwrap()
}

#[test]
fn the_same_bits_resident_streamed_and_split() {
    let placements = [
        ("", RemotePolicy::Auto, false),
        ("sim:0,50%;cpu,50%", RemotePolicy::Auto, true),
        ("sim:0,75%;cpu,25%", RemotePolicy::Auto, true),
        ("sim:0,75%;sim:1,25%", RemotePolicy::Stream, true),
        ("sim:0,75%;sim:1,25%", RemotePolicy::InPlace, false),
    ];
    for model in ["flux_dev_micro", "flux_dev_micro_fp8_scaled", "flux_dev_micro-Q8_0"] {
        let mut first: Option<Vec<f32>> = None;
        for (text, remote, streamed) in placements {
            let (flux, manifest) = flux(model);
            let residency = Residency::new(machine(&["64mb@20gbps", "64mb@20gbps"]));
            let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), text, remote);
            let found = plan.blocks.iter().filter(|block| block.mode == BlockMode::Streamed).count();
            assert_eq!(found > 0, streamed, "{text} {remote:?}:\n{plan}");
            if remote == RemotePolicy::InPlace {
                assert!(plan.blocks.iter().any(|block| block.runs_on == DeviceId::sim(1)), "{plan}");
            }
            let session = open(&residency, manifest, plan);
            let expected = first.get_or_insert_with(|| evaluate(&flux, &session));
            for _ in 0..2 {
                assert_eq!(&evaluate(&flux, &session), expected, "{model} {text} {remote:?}");
            }
        }
    }
}

#[test]
fn an_item_of_a_batch_is_what_it_is_alone_and_odd_sizes_work() {
    let (flux, manifest) = flux("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let context = lane.tensor([1, 3, 4096], &random_normal(2, 3 * 4096)).unwrap();
    let pooled = lane.tensor([1, 768], &random_normal(3, 768)).unwrap();
    let run = |x: &Tensor| {
        let inputs = FluxInputs { guidance: Some(3.0), ..FluxInputs::new(x, 0.6, &context, &pooled) };
        flux.forward(&session, &inputs).unwrap()
    };
    let both = lane.tensor([2, 16, 5, 7], &random_normal(1, 2 * 16 * 35)).unwrap();
    let together = run(&both);
    assert_eq!(together.dims(), [2, 16, 5, 7]);
    let second = run(&both.slice(0, 1, 1).unwrap().contiguous().unwrap());
    let got = together.slice(0, 1, 1).unwrap().to_vec().unwrap();
    Report::new("second item", &got, &second.to_vec().unwrap()).assert(1e-5);
}

#[test]
fn inputs_that_do_not_fit_are_named() {
    let (flux, manifest) = flux("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let zeros = |dims: &[usize]| lane.full(Shape::new(dims).unwrap(), 0.0).unwrap();
    let good = || (zeros(&[1, 16, 4, 4]), zeros(&[1, 2, 4096]), zeros(&[1, 768]));
    let error = |x: &Tensor, context: &Tensor, pooled: &Tensor| {
        flux.forward(&session, &FluxInputs::new(x, 1.0, context, pooled)).map(|_| ()).unwrap_err().to_string()
    };
    let (x, context, pooled) = good();
    assert_eq!(
        error(&zeros(&[1, 4, 4, 4]), &context, &pooled),
        "the latent is of shape [1, 4, 4, 4], expected 16 channels with what stands beside it"
    );
    assert!(error(&x, &zeros(&[1, 2, 768]), &pooled).starts_with("the text is of shape [1, 2, 768]"));
    assert!(error(&x, &zeros(&[3, 2, 4096]), &pooled).contains("[1 or 1, tokens, 4096]"));
    assert!(error(&x, &context, &zeros(&[1, 1280])).starts_with("the pooled text is of shape [1, 1280]"));
}

#[test]
fn references_and_their_places_matter() {
    let (flux, manifest) = flux("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let x = lane.tensor([1, 16, 6, 4], &random_normal(1, 16 * 24)).unwrap();
    let context = lane.tensor([1, 7, 4096], &random_normal(2, 7 * 4096)).unwrap();
    let pooled = lane.tensor([1, 768], &random_normal(3, 768)).unwrap();
    let references = [4, 5].map(|seed| lane.tensor([1, 16, 4, 4], &random_normal(seed, 256)).unwrap());
    let places = [ReferencePlaces::Offset, ReferencePlaces::Index, ReferencePlaces::Diagonal];
    let run = |references: &[Tensor], reference_places| {
        let inputs =
            FluxInputs { references, reference_places, ..FluxInputs::new(&x, 0.6, &context, &pooled) };
        flux.forward(&session, &inputs).unwrap().to_vec().unwrap()
    };
    let mut results: Vec<Vec<f32>> = places.map(|places| run(&references, places)).into();
    results.push(run(&references[..1], ReferencePlaces::Offset));
    results.push(run(&[], ReferencePlaces::Offset));
    for (i, result) in results.iter().enumerate() {
        assert_eq!(result.len(), 16 * 24);
        assert!(results[..i].iter().all(|other| other != result), "{i}");
    }
}

/// `flux_dev_micro` with as many channels beside the latent as Fill has, with weights of up to twice `value`.
fn fill(value: f32) -> (Flux, Manifest) {
    let dev = checkpoint("flux_dev_micro");
    let mut writer = SafetensorsWriter::new();
    for entry in dev.entries() {
        let bytes = dev.bytes(entry).to_vec();
        if entry.name() != "img_in.weight" {
            writer = writer.tensor(entry.name(), entry.encoding(), *entry.shape(), bytes);
            continue;
        }
        let values = testkit::decode(entry.encoding(), &bytes).unwrap();
        // Rows differ, since a norm would take away what all have in common.
        let rows = values.chunks_exact(64).enumerate();
        let wide = rows.flat_map(|(i, row)| row.iter().copied().chain([value * (i % 3) as f32; 320]));
        let wide: Vec<f32> = wide.collect();
        writer = writer.values(entry.name(), Encoding::F32, Shape::from([128, 384]), &wide).unwrap();
    }
    let metadata = dev.metadata().str("gantry_unet_config").unwrap();
    let bytes = writer.metadata("gantry_unet_config", metadata).finish().unwrap();
    let checkpoint = Checkpoint::from_memory(("fill", bytes.into()), Vec::new()).unwrap();
    let flux = Flux::read(&checkpoint, &detect(&checkpoint)).unwrap();
    let manifest = flux.manifest(&checkpoint).unwrap();
    (flux, manifest)
}

#[test]
fn channels_beside_the_latent_come_after_it() {
    let run = |(flux, manifest): (Flux, Manifest), beside: bool| {
        let session = open_on_cpu(manifest);
        let lane = session.lane().unwrap();
        let x = lane.tensor([1, 16, 4, 6], &random_normal(1, 16 * 24)).unwrap();
        let context = lane.tensor([1, 3, 4096], &random_normal(2, 3 * 4096)).unwrap();
        let pooled = lane.tensor([1, 768], &random_normal(3, 768)).unwrap();
        let concat = lane.tensor([1, 80, 4, 6], &random_normal(4, 80 * 24)).unwrap();
        let inputs =
            FluxInputs { concat: beside.then_some(&concat), ..FluxInputs::new(&x, 0.6, &context, &pooled) };
        flux.forward(&session, &inputs).map(|out| out.to_vec().unwrap())
    };
    let dev = run(flux("flux_dev_micro"), false).unwrap();
    Report::new("no weight", &run(fill(0.0), true).unwrap(), &dev).assert(1e-5);
    assert!(Report::new("some weight", &run(fill(0.01), true).unwrap(), &dev).relative > 1e-3);
    let error = run(fill(0.0), false).unwrap_err().to_string();
    assert!(error.contains("expected 96 channels"), "{error}");
}

/// What stands before a text is as text that has gone through the model's first layer already, and what is said of the
/// text's tokens is said of the same ones.
#[test]
fn tokens_before_a_text_count_as_its_first() {
    let (flux, manifest) = flux("flux_dev_micro");
    let golden = golden("flux_dev_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let input = |name: &str| {
        let input = golden.input(name).unwrap();
        lane.tensor(input.shape, &input.values()).unwrap()
    };
    let (x, context, y) = (input("x"), input("context"), input("y"));
    let tokens = context.dim(1);
    let first = tokens / 3;
    for bias in [0.0, -0.7] {
        let span = |start: usize| TokenBias { start, tokens: 2, bias };
        let given = |context, biased| FluxInputs {
            guidance: Some(3.5),
            biased,
            ..FluxInputs::new(&x, 0.6, context, &y)
        };
        let whole_bias = [span(first + 1)];
        let mut entered = None;
        let mut see = |name: &str, value: &Tensor| {
            if name == "txt_in" {
                entered = Some(value.contiguous().unwrap());
            }
        };
        let whole = given(&context, &whole_bias);
        let expected = flux.forward_probed(&session, &whole, &mut Probe::new(&mut see)).unwrap();
        let front = entered.unwrap().slice(1, 0, first).unwrap().contiguous().unwrap();
        let rest = context.slice(1, first, tokens - first).unwrap().contiguous().unwrap();
        let rest_bias = [span(1)];
        let apart = FluxInputs { in_front: Some(&front), ..given(&rest, &rest_bias) };
        let output = flux.forward(&session, &apart).unwrap();
        let (output, expected) = (output.to_vec().unwrap(), expected.to_vec().unwrap());
        let most = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
        let off = output.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(off <= 1e-5 * most, "{bias}: {off} of {most}");
        let without = flux.forward(&session, &given(&rest, &rest_bias)).unwrap().to_vec().unwrap();
        let moved = without.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(moved > 1e-3 * most, "{bias}: the tokens before the text count: {moved} of {most}");
    }
    let narrow = lane.empty([1, 2, 8]).unwrap();
    let wrong = FluxInputs { in_front: Some(&narrow), ..FluxInputs::new(&x, 0.6, &context, &y) };
    let told = flux.forward(&session, &wrong).unwrap_err().to_string();
    assert!(told.contains("what stands before the text"), "{told}");
}
