//! A device that has f16 and f32 only: networks that outgrow f16 get f32 there, and nothing of them is infinite. Weights
//! are scaled up so that they outgrow it for certain, as those of the large released models do.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use meta::{DType, DeviceId, Encoding};
use models::Module;
use models::detect;
use models::text::{EncodeOptions, PromptOptions, T5Tokenizer, TextModel};
use models::vae::kl::Kl;
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Manifest, Residency, Session};
use support::{checkpoint, machine, open_on_cpu, plan};
use tensor::Lane;
use testkit::{Procedural, SafetensorsWriter};

/// A bundled checkpoint in which some weights are larger.
fn enlarged(name: &str, which: &str, factor: f32) -> Checkpoint {
    let mut writer = SafetensorsWriter::new();
    let mut changed = 0;
    for tensor in &testkit::Manifest::bundled(name).unwrap().tensors {
        writer = if tensor.name.contains(which) {
            changed += 1;
            let values: Vec<f32> = tensor.values().unwrap().iter().map(|value| value * factor).collect();
            writer.values(&tensor.name, Encoding::F32, tensor.shape, &values).unwrap()
        } else {
            writer.tensor(&tensor.name, tensor.encoding, tensor.shape, tensor.bytes())
        };
    }
    assert!(changed > 0, "{name} has no {which}");
    Checkpoint::from_memory((name, writer.finish().unwrap().into()), Vec::new()).unwrap()
}

/// A session on a simulated device that prefers f16, with activations of the given type, or of the first of the model's
/// that it has.
fn open(manifest: Manifest, activations: &[DType]) -> Session {
    let residency = Residency::new(machine(&["2gb@100gbps@f16"]));
    let device = residency.devices().get(DeviceId::sim(0)).unwrap();
    let dtype = Lane::choose(device, activations).unwrap().dtype();
    let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), "", RemotePolicy::Auto);
    let options = LoadOptions { dtype: Some(dtype), ..LoadOptions::default() };
    let id = residency.load(manifest, plan, options).unwrap();
    residency.open(id, &Cancel::default()).unwrap()
}

fn all_finite(values: &[f32]) -> bool {
    values.iter().all(|value| value.is_finite())
}

#[test]
fn t5_on_a_device_with_f16_only() {
    let file = enlarged("t5xxl_tiny", "DenseReluDense.wo.weight", 1e5);
    let encoder = TextModel::read_all(&file, &detect(&file)).unwrap().remove(0).encoder;
    let tokens = T5Tokenizer::embedded().unwrap().tokenize("a red circle", PromptOptions::default());
    let encode = |session: &Session| {
        let encoded = encoder.encode(session, &tokens, EncodeOptions::default()).unwrap();
        encoded.cond.to_vec().unwrap()
    };
    let manifest = || encoder.manifest(&file).unwrap();
    assert!(!all_finite(&encode(&open(manifest(), &[DType::F16]))), "this model outgrows f16");
    let session = open(manifest(), encoder.activations());
    assert_eq!(session.lane().unwrap().dtype(), DType::F32);
    let values = encode(&session);
    assert!(all_finite(&values) && values.iter().any(|value| *value != 0.0));
    assert_eq!(values, encode(&open_on_cpu(manifest())), "as on the CPU");
}

#[test]
fn the_autoencoder_on_a_device_with_f16_only() {
    let file = enlarged("flux_ae", "up.0.block.1.conv2.weight", 1e7);
    let kl = Kl::read(&file, &detect(&file)).unwrap();
    let latent = Procedural::new("input.latent", 3.0, 0.0).values(16 * 4 * 4);
    let decode = |session: &Session| {
        let latent = session.lane().unwrap().tensor([1, 16, 4, 4], &latent).unwrap();
        let mut finite = true;
        let mut see = |_: &str, value: &tensor::Tensor| finite &= all_finite(&value.to_vec().unwrap());
        let image = kl.decode_whole(session, &latent, &mut models::Probe::new(&mut see)).unwrap();
        (finite, image.to_vec().unwrap())
    };
    let manifest = || kl.manifest(&file).unwrap();
    assert!(!decode(&open(manifest(), &[DType::F16])).0, "this model outgrows f16");
    let session = open(manifest(), kl.activations());
    assert_eq!(session.lane().unwrap().dtype(), DType::F32);
    let (finite, image) = decode(&session);
    assert!(finite && all_finite(&image));
    assert_eq!(image, decode(&open_on_cpu(manifest())).1, "as on the CPU");
}

#[test]
fn clip_computes_in_f16_where_there_is_no_bf16() {
    let file = checkpoint("clip_l_tiny");
    let encoder = TextModel::read_all(&file, &detect(&file)).unwrap().remove(0).encoder;
    let session = open(encoder.manifest(&file).unwrap(), encoder.activations());
    assert_eq!(session.lane().unwrap().dtype(), DType::F16);
    let tokens = models::text::ClipTokenizer::embedded().unwrap();
    let tokens = tokens.tokenize("a red circle", PromptOptions::default());
    let encoded = encoder.encode(&session, &tokens, EncodeOptions::default()).unwrap();
    let exact = open_on_cpu(encoder.manifest(&file).unwrap());
    let exact = encoder.encode(&exact, &tokens, EncodeOptions::default()).unwrap().cond.to_vec().unwrap();
    let rounded = encoded.cond.to_vec().unwrap();
    assert!(all_finite(&rounded) && rounded != exact);
    let difference: f32 = rounded.iter().zip(&exact).map(|(a, b)| (a - b).powi(2)).sum();
    let size: f32 = exact.iter().map(|value| value * value).sum();
    assert!((difference / size).sqrt() < 1e-2, "{difference} of {size}");
}
