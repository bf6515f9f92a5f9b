//! Language models as text encoders, against the reference implementation's results, module by module and end to end, as
//! recipes use them.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use checkpoint::Checkpoint;
use meta::{DType, DeviceId};
use models::detect::Role;
use models::text::{EncodeOptions, Encoded, PictureTokens, PromptOptions, TextModel, TextRecipe};
use models::vision::qwen_tower::QwenTower;
use models::{Module, Probe, detect};
use placement::RemotePolicy;
use residency::{Cancel, LoadOptions, Residency, Session};
use support::{checkpoint, golden, machine, open, open_on_cpu, plan};
use testkit::{Golden, ScratchDir};

/// The reference's own spread is 3e-6.
const TOLERANCE: f64 = 2e-5;

/// An encoder that is loaded on the CPU.
struct Loaded {
    model: TextModel,
    session: Session,
}

impl Loaded {
    fn new(name: &str) -> Loaded {
        Loaded::of(&checkpoint(name))
    }

    fn of(checkpoint: &Checkpoint) -> Loaded {
        let detected = detect(checkpoint);
        let model = TextModel::read_all(checkpoint, &detected).unwrap().remove(0);
        let manifest = model.encoder.manifest(checkpoint).unwrap();
        let part = detected.parts_for(Role::Text).next().unwrap();
        assert_eq!(part.unused(checkpoint, &manifest), [""; 0]);
        Loaded { session: open_on_cpu(manifest), model }
    }

    /// What a recipe's encoder gives for a prompt, and which modules were compared.
    fn encode(
        &self,
        recipe: &TextRecipe,
        prompt: &str,
        golden: Option<&Golden>,
    ) -> (Encoded, BTreeSet<String>) {
        let how = recipe.encoders.iter().find(|how| how.key == self.model.encoder.key()).unwrap();
        let text = how.reads.of(prompt, false).unwrap();
        let tokens = how.tokenize(&*self.model.tokenizer, &text, PromptOptions::default(), how.tokens);
        let mut seen = BTreeSet::new();
        let mut see = |name: &str, value: &tensor::Tensor| {
            let Some(golden) = golden else { return };
            let stored = format!("prompt1.out.{name}");
            if golden.names().any(|known| known == stored || known == format!("{stored}.rms")) {
                golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
                seen.insert(name.to_owned());
            }
        };
        let encoder = &self.model.encoder;
        let probe = &mut Probe::new(&mut see);
        let encoded = encoder.encode_probed(&self.session, &tokens, how.options(), probe).unwrap();
        (encoded, seen)
    }
}

fn prompts(golden: &Golden) -> Vec<String> {
    serde_json::from_str(golden.metadata("prompts").unwrap()).unwrap()
}

/// The modules of prompt 1 that a golden file has.
fn modules(golden: &Golden) -> BTreeSet<String> {
    let module = |name: &str| {
        let name = name.strip_prefix("prompt1.out.")?;
        let piece = [".rows", ".cols", ".rms"].iter().find_map(|piece| name.strip_suffix(piece));
        Some(piece.unwrap_or(name).to_owned())
    };
    golden.names().filter_map(module).collect()
}

/// Encodes every prompt of a golden file as a recipe does, and compares what comes out, and every module of prompt 1 but
/// for those that are behind the layer that the recipe takes.
fn check(case: &str, file: &str, recipe: &str, beyond: &[&str]) {
    let (golden, loaded) = (golden(case), Loaded::new(file));
    let recipe = TextRecipe::find(recipe, &[loaded.model.encoder.key()]).unwrap();
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let (encoded, seen) = loaded.encode(recipe, prompt, (i == 1).then_some(&golden));
        let joined = (recipe.join)(vec![Some(encoded)]).unwrap();
        let name = format!("prompt{i}.cond");
        golden.assert_close(&name, joined.cond.shape(), &joined.cond.to_vec().unwrap(), TOLERANCE);
        assert_eq!(joined.attention_mask.len(), joined.cond.dim(1));
        if i == 1 {
            let expected: BTreeSet<String> =
                modules(&golden).into_iter().filter(|name| !beyond.contains(&name.as_str())).collect();
            assert_eq!(seen, expected);
        }
    }
}

#[test]
fn qwen25_of_qwen_image() {
    check("qwen25_qwen_image", "qwen25_7b_tiny", "qwen_image", &[]);
}

#[test]
fn qwen3_of_z_image() {
    check("qwen3_z_image", "qwen3_4b_tiny", "lumina2", &[]);
}

#[test]
fn gemma2_of_lumina2() {
    check("gemma2_lumina2", "gemma_2_2b_tiny", "lumina2", &["layers.2", "norm"]);
}

#[test]
fn mistral3_of_flux2() {
    check("mistral3_flux2", "mistral3_24b_tiny", "flux2", &[]);
}

/// Activations in 16 bits, as cards have them: the tables of angles stay in f32 there, and nothing else differs by more than
/// 16 bits lose.
#[test]
fn activations_in_16_bits_are_near_those_in_32() {
    for (case, file, recipe) in [
        ("qwen25_qwen_image", "qwen25_7b_tiny", "qwen_image"),
        ("qwen3_z_image", "qwen3_4b_tiny", "lumina2"),
        ("gemma2_lumina2", "gemma_2_2b_tiny", "lumina2"),
        ("mistral3_flux2", "mistral3_24b_tiny", "flux2"),
    ] {
        let (golden, checkpoint) = (golden(case), checkpoint(file));
        let model = TextModel::read_all(&checkpoint, &detect(&checkpoint)).unwrap().remove(0);
        let manifest = model.encoder.manifest(&checkpoint).unwrap();
        let residency = Residency::new(machine(&["4gb@100gbps@bf16"]));
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), "", RemotePolicy::Auto);
        let options = LoadOptions { dtype: Some(DType::BF16), ..LoadOptions::default() };
        let id = residency.load(manifest, plan, options).unwrap();
        let loaded = Loaded { session: residency.open(id, &Cancel::default()).unwrap(), model };
        assert_eq!(loaded.session.lane().unwrap().dtype(), DType::BF16);
        let recipe = TextRecipe::find(recipe, &[loaded.model.encoder.key()]).unwrap();
        for (i, prompt) in prompts(&golden).iter().enumerate() {
            let (encoded, _) = loaded.encode(recipe, prompt, None);
            let joined = (recipe.join)(vec![Some(encoded)]).unwrap();
            let name = format!("prompt{i}.cond");
            golden.assert_close(&name, joined.cond.shape(), &joined.cond.to_vec().unwrap(), 2e-2);
        }
    }
}

/// A file of the reference that is too large for this crate, or that its licence keeps out of it.
fn reference(file: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden").join(file);
    if !path.is_file() {
        eprintln!("\n==> NO REFERENCE VALUES: there is no {file} in shared/golden beside the checkout\n");
        return None;
    }
    Some(path)
}

/// Llama 3's published vocabulary.
fn llama_ranks() -> Option<Vec<u8>> {
    let packed = fs::read(reference("tokenizers/llama3_ranks.gz")?).unwrap();
    // The head of the file has a name behind its ten bytes if its fourth bit is set.
    let name = if packed[3] & 8 == 0 { 0 } else { packed[10..].iter().position(|b| *b == 0).unwrap() + 1 };
    Some(miniz_oxide::inflate::decompress_to_vec(&packed[10 + name..]).unwrap())
}

#[test]
fn llama3_of_hunyuan_video_reads_the_vocabulary_beside_it() {
    let golden = golden("llama_hunyuan_video");
    let dir = ScratchDir::new().unwrap();
    let path = dir.join("llava.safetensors");
    fs::write(&path, testkit::Manifest::bundled("llava_llama3_tiny").unwrap().bytes().unwrap()).unwrap();
    let file = Checkpoint::open(&path).unwrap();
    // Without it the error says where to put it.
    let error = TextModel::read_all(&file, &detect(&file)).unwrap_err().to_string();
    assert!(error.contains("llava.tokenizer.json") && error.contains("licence"), "{error}");
    let Some(ranks) = llama_ranks() else { return };
    fs::write(dir.join("llava.tokenizer.model"), ranks).unwrap();
    let (llama, clip) = (Loaded::of(&file), Loaded::new("clip_l_tiny"));
    let recipe = TextRecipe::find("hunyuan_video", &["clip_l", "llama"]).unwrap();
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let results = [&clip, &llama].map(|loaded| Some(loaded.encode(recipe, prompt, None).0));
        let joined = (recipe.join)(results.into()).unwrap();
        let pooled = joined.pooled.unwrap();
        let close = |name: &str, value: &tensor::Tensor| {
            golden.assert_close(
                &format!("prompt{i}.{name}"),
                value.shape(),
                &value.to_vec().unwrap(),
                TOLERANCE,
            );
        };
        close("cond", &joined.cond);
        close("pooled", &pooled);
    }
    // The ids of every prompt that the reference has.
    let tokens: serde_json::Value = serde_json::from_str(include_str!("data/tokens.json")).unwrap();
    let expected = tokens["tokenizers"]["hunyuan_video"]["llama"].as_array().unwrap();
    let how = &recipe.encoders[1];
    for (prompt, expected) in tokens["prompts"].as_array().unwrap().iter().zip(expected) {
        let text = how.reads.of(prompt.as_str().unwrap(), false).unwrap();
        let got = how.tokenize(&*llama.model.tokenizer, &text, PromptOptions::default(), how.tokens);
        let ids: Vec<u64> =
            expected[0]["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap()).collect();
        let got: Vec<u64> = got.ids(0).unwrap().into_iter().map(u64::from).collect();
        assert_eq!(got, ids, "{prompt}");
    }
}

#[test]
fn the_tower_of_qwen25_vl_and_what_its_language_model_reads() {
    let Some(path) = reference("text/qwen25_vl_vision.safetensors") else { return };
    let golden = Golden::open(path).unwrap();
    let file = checkpoint("qwen25_vl_7b_tiny");
    let detected = detect(&file);
    let part = detected.parts_for(Role::Vision).next().unwrap();
    let tower = QwenTower::read(&file, part).unwrap();
    let manifest = tower.manifest(&file).unwrap();
    assert_eq!(part.unused(&file, &manifest), [""; 0]);
    let (_, pixels) = golden.tensor("pixels").unwrap();
    let mut seen = BTreeSet::new();
    let mut see = |name: &str, value: &tensor::Tensor| {
        let stored = format!("out.{name}");
        if golden.names().any(|known| known == stored || known == format!("{stored}.rms")) {
            golden.assert_close(&stored, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
            seen.insert(name.to_owned());
        }
    };
    let session = open_on_cpu(manifest);
    let looked = tower.look_probed(&session, [252, 196], &pixels, &mut Probe::new(&mut see)).unwrap();
    assert_eq!(looked.grid, [9, 7]);
    golden.assert_close("output", looked.tokens.shape(), &looked.tokens.to_vec().unwrap(), TOLERANCE);
    let modules = ["blocks.0", "blocks.0.attn.qkv", "blocks.6", "blocks.7", "blocks.8", "merger"];
    assert_eq!(seen, BTreeSet::from(modules.map(str::to_owned)));
    // The conversation about the picture.
    let loaded = Loaded::of(&file);
    let recipe = TextRecipe::find("qwen_image", &["qwen25_7b"]).unwrap();
    let how = &recipe.encoders[0];
    let text = how.reads.of(golden.metadata("prompt").unwrap(), true).unwrap();
    let mut tokens = how.tokenize(&*loaded.model.tokenizer, &text, PromptOptions::default(), how.tokens);
    tokens.show_pictures(how.picture.unwrap(), &[looked.tokens.dim(0)]);
    let pictures = [PictureTokens { values: looked.tokens, deep: Vec::new(), grid: Some(looked.grid) }];
    let options = EncodeOptions { pictures: &pictures, ..how.options() };
    let encoded = loaded.model.encoder.encode(&loaded.session, &tokens, options).unwrap();
    golden.assert_close("cond", encoded.cond.shape(), &encoded.cond.to_vec().unwrap(), TOLERANCE);
}

#[test]
fn the_same_bits_on_every_placement() {
    let file = checkpoint("qwen3_4b_tiny");
    let model = TextModel::read_all(&file, &detect(&file)).unwrap().remove(0);
    let recipe = TextRecipe::find("lumina2", &["qwen3_4b"]).unwrap();
    let how = &recipe.encoders[0];
    let text = how.reads.of("a photo of a cat", false).unwrap();
    let tokens = how.tokenize(&*model.tokenizer, &text, PromptOptions::default(), how.tokens);
    let encode = |session: &Session| {
        model.encoder.encode(session, &tokens, how.options()).unwrap().cond.to_vec().unwrap()
    };
    let expected = encode(&open_on_cpu(model.encoder.manifest(&file).unwrap()));
    for (allocation, remote) in [
        ("sim:0,1mb;cpu,*", RemotePolicy::Auto),
        ("sim:0,1mb;sim:1,*", RemotePolicy::Auto),
        ("sim:0,1mb;sim:1,*", RemotePolicy::InPlace),
    ] {
        let residency = Residency::new(machine(&["1gb@50gbps", "1gb@50gbps"]));
        let manifest = model.encoder.manifest(&file).unwrap();
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), allocation, remote);
        assert_eq!(encode(&open(&residency, manifest, plan)), expected, "{allocation} {remote:?}");
    }
}
