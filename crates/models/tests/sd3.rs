//! Stable Diffusion 3 and 3.5 against the reference implementation, module by module, and on every placement.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;

use meta::DeviceId;
use models::conditioning::{Array, Cond, Conditioned, Scene};
use models::diffusion::sd3::{Sd3, Sd3Inputs, patch_keys};
use models::diffusion::{Diffusion, Evaluation};
use models::text::{EncodeOptions, Encoded, Layer, PromptOptions, TextModel, TextRecipe};
use models::{Module, Probe, detect};
use placement::RemotePolicy;
use residency::{Manifest, Residency, Session};
use sampling::LatentShape;
use support::*;
use tensor::Tensor;
use testkit::{Golden, random_normal};

/// What the reference's own repetitions stay well below, and a wrong formula far above.
const TOLERANCE: f64 = 1e-4;

/// A model and its manifest.
fn model(name: &str) -> (Sd3, Manifest) {
    let checkpoint = checkpoint(name);
    let detected = detect(&checkpoint);
    let model = Sd3::read(&checkpoint, &detected.parts[0]).unwrap();
    let manifest = model.manifest(&checkpoint).unwrap();
    assert_eq!(detected.parts[0].unused(&checkpoint, &manifest), [""; 0]);
    (model, manifest)
}

/// A module's result under all names that the reference has for it.
fn renamed(name: &str, value: &Tensor) -> Vec<(String, Tensor)> {
    let mut names = vec![name.to_owned()];
    let ends = [
        (".adaLN_modulation.1", ".adaLN_modulation"),
        (".proj", ".proj_drop"),
        (".mlp.act", ".mlp.drop1"),
        (".mlp.fc2", ".mlp.drop2"),
        (".mlp.fc2", ".mlp"),
    ];
    names.extend(
        ends.iter().filter_map(|(ours, theirs)| Some(format!("{}{theirs}", name.strip_suffix(ours)?))),
    );
    names.into_iter().map(|name| (name, value.clone())).collect()
}

/// Runs the golden's inputs and compares every module that both sides name; which they were.
fn compare_modules(model: &Sd3, session: &Session, golden: &Golden) -> BTreeSet<String> {
    let lane = session.lane().unwrap();
    let input = |name: &str| {
        let input = golden.input(name).unwrap();
        lane.tensor(input.shape, &input.values()).unwrap()
    };
    let (latent, context, pooled) = (input("x"), input("context"), input("y"));
    let time = golden.metadata("timestep").unwrap().parse().unwrap();
    let inputs = Sd3Inputs { latent: &latent, time, context: &context, pooled: &pooled };
    let mut seen = BTreeSet::new();
    let mut see = |name: &str, value: &Tensor| {
        for (name, value) in renamed(name, value) {
            let stored = format!("out.{name}");
            if golden.names().any(|n| n == stored || n == format!("{stored}.rms")) {
                golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
                seen.insert(name);
            }
        }
    };
    let output = model.forward_probed(session, &inputs, &mut Probe::new(&mut see)).unwrap();
    golden.assert_close("output", output.shape(), &output.to_vec().unwrap(), TOLERANCE);
    seen
}

/// The modules of which the golden file has results, but for those that are fused into another: the SiLU of every block,
/// which is computed once, and the first half of the feed-forward, whose activation is its end.
fn golden_modules(golden: &Golden) -> BTreeSet<String> {
    let module = |name: &str| {
        let name = name.strip_prefix("out.")?;
        let pieces = [".rows", ".cols", ".rms"];
        let name = pieces.iter().find_map(|piece| name.strip_suffix(piece)).unwrap_or(name);
        let fused = name.ends_with(".adaLN_modulation.0") || name.ends_with(".mlp.fc1");
        (!fused).then(|| name.to_owned())
    };
    golden.names().filter_map(module).collect()
}

#[test]
fn both_generations_equal_the_reference_in_every_module() {
    for (name, is_new) in [("sd3_micro", false), ("sd35_micro", true)] {
        let (model, manifest) = model(name);
        assert_eq!((model.config().normed_heads, model.config().dual_blocks), (is_new, usize::from(is_new)));
        let golden = golden(name);
        let seen = compare_modules(&model, &open_on_cpu(manifest), &golden);
        assert_eq!(golden_modules(&golden).difference(&seen).collect::<Vec<_>>(), [""; 0], "{name}");
    }
}

/// Two evaluations of one step with texts of their own, as bits.
fn step(model: &Sd3, session: &Session, latent: [usize; 4]) -> Vec<Vec<u32>> {
    let array = |seed: u64, shape: &[usize]| Array {
        shape: shape.to_vec(),
        values: random_normal(seed, shape.iter().product()),
    };
    let conds = [1, 2].map(|seed| Cond::text(array(seed, &[1, 12, 4096]), Some(array(seed + 9, &[1, 2048]))));
    let conditioned = conds.each_ref().map(Conditioned::whole);
    let [batch, channels, height, width] = latent;
    let shape = LatentShape { batch, channels, frames: 1, height, width };
    let run = model.start(session, &conditioned, &Scene::empty(shape)).unwrap();
    let values = random_normal(5, latent.iter().product());
    let latent = session.lane().unwrap().tensor(latent, &values).unwrap();
    let both = [0, 1].map(|cond| Evaluation::new(cond, &latent, 640.0));
    let together = run.forward(&both).unwrap();
    let bits = |tensor: &Tensor| tensor.to_vec().unwrap().iter().map(|v| v.to_bits()).collect::<Vec<u32>>();
    let together: Vec<Vec<u32>> = together.iter().map(bits).collect();
    // Each by itself gives the same bits, and a second step needs nothing that the first has used up.
    for (evaluation, expected) in both.iter().zip(&together) {
        assert!(bits(&run.forward(std::slice::from_ref(evaluation)).unwrap()[0]) == *expected);
    }
    together
}

#[test]
fn placement_and_company_change_no_bit() {
    let (model, _) = model("sd35_micro");
    let file = checkpoint("sd35_micro");
    let manifest = || model.manifest(&file).unwrap();
    for latent in [[1, 16, 8, 8], [2, 16, 9, 13]] {
        let expected = step(&model, &open_on_cpu(manifest()), latent);
        for text in ["sim:0,1%;cpu,99%", "sim:0,50%;sim:1,50%"] {
            for remote in [RemotePolicy::Stream, RemotePolicy::InPlace] {
                let residency = Residency::new(machine(&["2gb@5gbps", "2gb@5gbps"]));
                let plan = plan(&manifest(), residency.devices(), DeviceId::sim(0), text, remote);
                let session = open(&residency, manifest(), plan);
                assert!(step(&model, &session, latent) == expected, "{text} {remote:?} {latent:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let (model, manifest) = model("sd3_micro");
    let session = open_on_cpu(manifest);
    let lane = session.lane().unwrap();
    let tensor = |shape: &[usize]| {
        let shape = meta::Shape::new(shape).unwrap();
        lane.tensor(shape, &vec![0.0; shape.count()]).unwrap()
    };
    let error = |latent: &[usize], context: &[usize], pooled: &[usize]| {
        let (latent, context, pooled) = (tensor(latent), tensor(context), tensor(pooled));
        let inputs = Sd3Inputs { latent: &latent, time: 1.0, context: &context, pooled: &pooled };
        model.forward_probed(&session, &inputs, &mut Probe::none()).unwrap_err().to_string()
    };
    let (text, pooled) = ([1, 4, 4096], [1, 2048]);
    assert!(error(&[1, 4, 8, 8], &text, &pooled).contains("[batch, 16, height, width]"));
    assert!(error(&[1, 16, 8, 8], &[1, 4, 2048], &pooled).contains("[1 or 1, tokens, 4096]"));
    assert!(error(&[1, 16, 8, 8], &text, &[1, 768]).contains("the pooled text"));
    let large = error(&[1, 16, 8, 2 * 64 + 2], &text, &pooled);
    assert!(large.contains("64 patches") && large.contains("4 x 65"), "{large}");
}

#[test]
fn every_weight_has_a_name_in_patch_files() {
    for name in ["sd3_micro", "sd35_micro"] {
        let file = checkpoint(name);
        let names = file.entries().iter().map(|entry| (entry.name(), entry.shape()));
        let map = patch_keys(names);
        let named: BTreeSet<&str> = map
            .names()
            .filter(|(stem, _)| stem.starts_with("transformer_blocks."))
            .map(|(_, target)| target.weight.as_str())
            .collect();
        let in_blocks = |entry: &&str| entry.starts_with("joint_blocks.") && entry.ends_with(".weight");
        for weight in file.entries().iter().map(checkpoint::Entry::name).filter(in_blocks) {
            assert!(named.contains(weight), "{name}: {weight}");
        }
    }
}

/// A text encoder on the CPU.
struct Loaded {
    model: TextModel,
    session: Session,
}

impl Loaded {
    fn new(name: &str) -> Loaded {
        let file = checkpoint(name);
        let model = TextModel::read_all(&file, &detect(&file)).unwrap().remove(0);
        let session = open_on_cpu(model.encoder.manifest(&file).unwrap());
        Loaded { model, session }
    }

    fn encode(&self, prompt: &str, tokens: usize, options: EncodeOptions<'_>) -> Encoded {
        let tokens = self.model.tokenizer.tokenize(prompt, PromptOptions::default(), tokens);
        self.model.encoder.encode(&self.session, &tokens, options).unwrap()
    }
}

#[test]
fn three_text_encoders_are_joined_as_the_reference_does() {
    let golden = golden("sd3_triple");
    let [l, g, t5] = ["clip_l_tiny", "clip_g_tiny", "t5xxl_tiny"].map(Loaded::new);
    let hidden = EncodeOptions { layer: Layer::SkipRaw(2), ..EncodeOptions::default() };
    let unprojected = EncodeOptions { unprojected: true, ..hidden };
    let recipe = TextRecipe::find("sd3", &["clip_l", "clip_g", "t5xxl"]).unwrap();
    let prompts: Vec<String> = serde_json::from_str(golden.metadata("prompts").unwrap()).unwrap();
    for (i, prompt) in prompts.iter().enumerate() {
        let parts = || {
            vec![
                Some(l.encode(prompt, 0, unprojected)),
                Some(g.encode(prompt, 0, hidden)),
                Some(t5.encode(prompt, 77, EncodeOptions::default())),
            ]
        };
        let all = (recipe.join)(parts()).unwrap();
        let compare = |name: &str, tensor: &Tensor| {
            let name = format!("prompt{i}.{name}");
            golden.assert_close(&name, tensor.shape(), &tensor.to_vec().unwrap(), 2e-5);
        };
        compare("cond", &all.cond);
        compare("pooled", all.pooled.as_ref().unwrap());
        assert_eq!(all.attention_mask.len(), all.cond.dim(1));
        // Without T5 the text is the first part of it; without CLIP there is T5's alone, and no pooled text.
        let mut clips = parts();
        clips[2] = None;
        let clips = (recipe.join)(clips).unwrap();
        let length = clips.cond.dim(1);
        assert_eq!(clips.cond.to_vec().unwrap(), all.cond.slice(1, 0, length).unwrap().to_vec().unwrap());
        let alone = (recipe.join)(vec![None, None, parts().remove(2)]).unwrap();
        assert!(alone.pooled.is_none() && alone.cond.dim(1) + length == all.cond.dim(1));
    }
}
