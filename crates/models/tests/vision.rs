//! Florence-2 against the transformers library: a small model with procedural weights, step by step and whole answers,
//! under both sets of names and on several devices.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::{Checkpoint, Entry};
use meta::{DeviceId, Encoding, Shape};
use models::Module;
use models::detect;
use models::detect::{Layout, Role};
use models::vision::florence2::{
    Answer, Decoder, Florence2, Florence2Tokenizer, Generation, Rules, Settings, Task,
};
use placement::RemotePolicy;
use residency::{Residency, Session};
use serde_json::Value;
use support::*;
use testkit::{Golden, SafetensorsWriter};

const TOLERANCE: f64 = 1e-4;

fn settings() -> Settings {
    let config = testkit::Manifest::bundled("florence2_tiny").unwrap().config.to_string();
    Settings::from_json("florence2_tiny", Some(&config), None, None).unwrap()
}

fn open_model(checkpoint: &Checkpoint) -> (Florence2, Session) {
    let detected = detect(checkpoint);
    let model = Florence2::read(checkpoint, &detected, &settings()).unwrap();
    let manifest = model.manifest(checkpoint).unwrap();
    // Nothing of the file is left over.
    assert_eq!(manifest.weights().len(), checkpoint.entries().len());
    (model, open_on_cpu(manifest))
}

fn ids_of(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn json(golden: &Golden, key: &str) -> Value {
    serde_json::from_str(golden.metadata(key).unwrap()).unwrap()
}

/// The reference's picture, as tokens.
fn features(model: &Florence2, session: &Session, golden: &Golden) -> tensor::Tensor {
    let pixels = golden.input("pixels").unwrap();
    let pixels = session.lane().unwrap().tensor(pixels.shape, &pixels.values()).unwrap();
    model.look(session, &pixels).unwrap()
}

/// A prompt of the reference, encoded.
fn encoded(model: &Florence2, session: &Session, golden: &Golden, prompt: usize) -> tensor::Tensor {
    let ids = ids_of(&json(golden, "prompts")[prompt]);
    model.read_prompt(session, &features(model, session, golden), &ids).unwrap()
}

fn generation(case: &Value) -> Generation {
    let number = |key: &str| case[key].as_u64().unwrap();
    let end = number("eos") as u32;
    let early_stopping = case["early_stopping"].as_bool().unwrap();
    Generation {
        rules: Rules { end, last: Some(end), early_stopping, ..settings().rules },
        beams: number("beams") as usize,
        max_new_tokens: number("max_new_tokens") as usize,
        seed: None,
    }
}

#[test]
fn pictures_prompts_and_ratings_equal_the_reference() {
    let (golden, checkpoint) = (golden("florence2"), checkpoint("florence2_tiny"));
    let (model, session) = open_model(&checkpoint);
    let tokens = features(&model, &session, &golden);
    golden.assert_close("features", tokens.shape(), &tokens.to_vec().unwrap(), TOLERANCE);
    for prompt in 0..2 {
        let encoded = encoded(&model, &session, &golden, prompt);
        let name = format!("prompt{prompt}.encoded");
        golden.assert_close(&name, encoded.shape(), &encoded.to_vec().unwrap(), TOLERANCE);
        // Two answers at once, whose ratings must not mix.
        let mut decoder = Decoder::new(&model, &session, &encoded, 2).unwrap();
        let mut ratings = Vec::new();
        for token in ids_of(&json(&golden, "decoded")) {
            let both = decoder.step(&[token, 5]).unwrap();
            ratings.extend_from_slice(&both[..model.config().vocabulary]);
            assert_ne!(both[..10], both[model.config().vocabulary..][..10]);
            decoder.reorder(&[0, 0]).unwrap();
        }
        let shape = Shape::from([ratings.len() / model.config().vocabulary, model.config().vocabulary]);
        golden.assert_close(&format!("prompt{prompt}.logits"), &shape, &ratings, TOLERANCE);
    }
}

#[test]
fn answers_equal_the_reference_greedy_and_with_beams() {
    let (golden, checkpoint) = (golden("florence2"), checkpoint("florence2_tiny"));
    let (model, session) = open_model(&checkpoint);
    let prompts = [0, 1].map(|prompt| encoded(&model, &session, &golden, prompt));
    let cases = json(&golden, "generated");
    for case in cases.as_array().unwrap() {
        let prompt = &prompts[case["prompt"].as_u64().unwrap() as usize];
        let ids = model.generate(&session, prompt, &generation(case)).unwrap();
        assert_eq!(ids, ids_of(&case["ids"]), "{case}");
    }
    assert!(cases.as_array().unwrap().len() > 40);
}

#[test]
fn drawn_answers_follow_their_seed_and_the_rules() {
    let (golden, checkpoint) = (golden("florence2"), checkpoint("florence2_tiny"));
    let (model, session) = open_model(&checkpoint);
    let prompt = encoded(&model, &session, &golden, 0);
    for beams in [1, 3] {
        let draw = |seed: u64| {
            let rules = settings().rules;
            let how = Generation { rules, beams, max_new_tokens: 12, seed: Some(seed) };
            model.generate(&session, &prompt, &how).unwrap()
        };
        let (first, other) = (draw(1), draw(2));
        assert_eq!(first, draw(1));
        assert_ne!(first, other);
        for ids in [first, other] {
            assert_eq!((ids[0], ids[1], ids[ids.len() - 1]), (2, 0, 2));
            assert!(ids.len() <= 13);
            let mut rows: Vec<&[u32]> = ids.windows(3).collect();
            rows.sort_unstable();
            rows.dedup();
            assert_eq!(rows.len(), ids.len() - 2, "{ids:?}");
        }
    }
}

/// The same model under the names of its first publication.
fn first_published(checkpoint: &Checkpoint) -> Checkpoint {
    let mut file = SafetensorsWriter::new();
    for entry in checkpoint.entries() {
        let name = entry.name().strip_prefix("model.").unwrap();
        let bytes = checkpoint.bytes(entry).to_vec();
        file = match name.strip_prefix("multi_modal_projector.") {
            Some("image_projection.weight") => {
                let [rows, columns] = *entry.shape().dims() else { panic!("it is a matrix") };
                let turned: Vec<u8> = (0..rows * columns)
                    .flat_map(|at| bytes[4 * (at % rows * columns + at / rows)..][..4].to_vec())
                    .collect();
                file.tensor("image_projection", Encoding::F32, Shape::from([columns, rows]), turned)
            }
            _ => file.tensor(older(name), Encoding::F32, *entry.shape(), bytes),
        };
    }
    Checkpoint::from_memory(("older.safetensors", file.finish().unwrap().into()), Vec::new()).unwrap()
}

/// The name that a tensor was first published under.
fn older(name: &str) -> String {
    let attention = if name.contains("spatial_block") { "window_attn" } else { "channel_attn" };
    name.replace("language_model.", "language_model.model.")
        .replace("multi_modal_projector.", "")
        .replace("image_position_embed", "image_pos_embed")
        .replace(".conv.", ".proj.")
        .replace("_block.conv", "_block.convX")
        .replace("convX1", "conv1.fn.dw")
        .replace("convX2", "conv2.fn.dw")
        .replace(".norm1", &format!(".{attention}.norm"))
        .replace(".norm2", ".ffn.norm")
        .replace("_attn.qkv", "_attn.fn.qkv")
        .replace("window_attn.proj", "window_attn.fn.proj")
        .replace("channel_attn.proj", "channel_attn.fn.proj")
        .replace("ffn.fc", "ffn.fn.net.fc")
}

#[test]
fn both_sets_of_names_are_one_model() {
    let golden = golden("florence2");
    let newer = checkpoint("florence2_tiny");
    let older = first_published(&newer);
    let part = |checkpoint: &Checkpoint| {
        let parts = detect(checkpoint).parts;
        assert_eq!(parts.len(), 1);
        (parts[0].role, parts[0].name.to_string(), parts[0].layout)
    };
    let name = || "Florence-2 of width 32".to_owned();
    assert_eq!(part(&newer), (Role::Vision, name(), Layout::Transformers));
    assert_eq!(part(&older), (Role::Vision, name(), Layout::Native));
    let results = [&newer, &older].map(|checkpoint| {
        let (model, session) = open_model(checkpoint);
        encoded(&model, &session, &golden, 1).to_vec().unwrap()
    });
    testkit::assert_close("encoded", &results[0], &results[1], 1e-5);
    // A part that is missing is named as the file would name it.
    let entries = older.entries().iter().filter(|entry| !entry.name().contains("fc2"));
    let rest = |file: SafetensorsWriter<'static>, entry: &Entry| {
        file.tensor(entry.name(), Encoding::F32, *entry.shape(), older.bytes(entry).to_vec())
    };
    let file = entries.fold(SafetensorsWriter::new(), rest).finish().unwrap();
    let damaged = Checkpoint::from_memory(("damaged", file.into()), Vec::new()).unwrap();
    let model = Florence2::read(&damaged, &detect(&damaged), &settings()).unwrap();
    let error = model.manifest(&damaged).unwrap_err().to_string();
    assert!(error.contains("vision_tower.blocks.0.0.spatial_block.ffn.fn.net.fc2.weight"), "{error}");
}

#[test]
fn sizes_that_nobody_wrote_down_are_the_published_ones() {
    // What sizes are read from, with the shapes of Florence-2 base.
    let mut shapes = vec![
        ("image_projection".to_owned(), vec![1024, 768]),
        ("image_pos_embed.row_embeddings.weight".to_owned(), vec![50, 512]),
        ("image_pos_embed.column_embeddings.weight".to_owned(), vec![50, 512]),
        ("language_model.lm_head.weight".to_owned(), vec![100, 768]),
    ];
    for half in ["encoder", "decoder"] {
        let name = |rest: &str| format!("language_model.model.{half}.{rest}");
        shapes.push((name("embed_positions.weight"), vec![1026, 768]));
        shapes.extend((0..2).map(|layer| (name(&format!("layers.{layer}.fc1.weight")), vec![3072, 768])));
    }
    let mut before = 3;
    for (stage, (channels, kernel)) in [(128, 7), (256, 3), (512, 3), (1024, 3)].into_iter().enumerate() {
        let normalised = if stage == 0 { channels } else { before };
        shapes.push((
            format!("vision_tower.convs.{stage}.proj.weight"),
            vec![channels, before, kernel, kernel],
        ));
        shapes.push((format!("vision_tower.convs.{stage}.norm.weight"), vec![normalised]));
        let block = format!("vision_tower.blocks.{stage}.0.spatial_block.ffn.fn.net.fc1.weight");
        shapes.push((block, vec![4 * channels, channels]));
        before = channels;
    }
    let mut file = SafetensorsWriter::new();
    for (name, shape) in shapes {
        let shape = Shape::new(&shape).unwrap();
        file = file.tensor(name, meta::DType::F8E4M3, shape, vec![0; shape.count()]);
    }
    let checkpoint = Checkpoint::from_memory(("base", file.finish().unwrap().into()), Vec::new()).unwrap();
    let model = Florence2::read(&checkpoint, &detect(&checkpoint), &Settings::default()).unwrap();
    let config = model.config();
    let stages: Vec<_> = config
        .stages
        .iter()
        .map(|stage| (stage.heads, stage.groups, stage.stride, stage.padding, stage.norm_first))
        .collect();
    let expected = [(4, 4, 4, 3, false), (8, 8, 2, 1, true), (16, 16, 2, 1, true), (32, 32, 2, 1, true)];
    assert_eq!(stages, expected);
    assert_eq!((config.window, config.side, config.grid), (12, 768, (50, 50)));
    assert_eq!((config.encoder.heads, config.decoder.heads, config.decoder.positions), (12, 12, 1024));
}

#[test]
fn what_does_not_fit_is_told() {
    let other = checkpoint("flux_ae");
    let error = Florence2::read(&other, &detect(&other), &settings()).unwrap_err().to_string();
    assert!(error.contains("is not a Florence-2 model: it seems to be an autoencoder"), "{error}");
    let checkpoint = checkpoint("florence2_tiny");
    // Without its settings the model would have the published numbers of heads, which do not divide these widths.
    let detected = detect(&checkpoint);
    let config = r#"{"vision_config": {"num_heads": [5, 5, 5, 5]}}"#;
    let wrong = Settings::from_json("x", Some(config), None, None).unwrap();
    let error = Florence2::read(&checkpoint, &detected, &wrong).unwrap_err().to_string();
    assert!(error.contains("num_heads") && error.contains("a divisor of 16"), "{error}");
    let (model, session) = open_model(&checkpoint);
    let pixels = session.lane().unwrap().full([1, 3, 320, 320], 0.5).unwrap();
    let error = model.look(&session, &pixels).unwrap_err().to_string();
    assert!(error.contains("at most 8 rows and 8 columns"), "{error}");
    let tokens = session.lane().unwrap().full([1, 60, 32], 0.5).unwrap();
    let error = model.read_prompt(&session, &tokens, &[0; 9]).unwrap_err().to_string();
    assert!(error.contains("at most 64 tokens"), "{error}");
    let error = model.read_prompt(&session, &tokens, &[4000]).unwrap_err().to_string();
    assert!(error.contains("below 1286"), "{error}");
}

#[test]
fn answers_are_the_same_wherever_the_weights_are() {
    let (golden, checkpoint) = (golden("florence2"), checkpoint("florence2_tiny"));
    let cases = json(&golden, "generated");
    let case = &cases[1];
    for (allocation, remote) in [
        ("", RemotePolicy::Auto),
        ("sim:0,30%;cpu,70%", RemotePolicy::Auto),
        ("sim:0,50%;sim:1,50%", RemotePolicy::InPlace),
    ] {
        let model = Florence2::read(&checkpoint, &detect(&checkpoint), &settings()).unwrap();
        let manifest = model.manifest(&checkpoint).unwrap();
        let residency = Residency::new(machine(&["1gb@20gbps", "1gb@20gbps"]));
        let plan = plan(&manifest, residency.devices(), DeviceId::sim(0), allocation, remote);
        let session = open(&residency, manifest, plan);
        let prompt = encoded(&model, &session, &golden, 0);
        let ids = model.generate(&session, &prompt, &generation(case)).unwrap();
        assert_eq!(ids, ids_of(&case["ids"]), "{allocation}");
    }
}

#[test]
fn texts_become_the_tokens_of_the_reference() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/florence2_tokens.json");
    let data: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let merges = data["merges"].as_str().unwrap();
    let plain = Florence2Tokenizer::from_files("t", &data["vocab"].to_string(), merges).unwrap();
    let lines: Vec<&str> = merges.lines().skip(1).collect();
    let whole = serde_json::json!({ "added_tokens": [{ "id": 0, "content": "<s>" }],
        "model": { "type": "BPE", "vocab": data["vocab"], "merges": lines } });
    let whole = Florence2Tokenizer::from_json("t", &whole.to_string()).unwrap();
    for case in data["cases"].as_array().unwrap() {
        let (text, decoded) = (case[0].as_str().unwrap(), case[2].as_str().unwrap());
        for tokenizer in [&plain, &whole] {
            assert_eq!(tokenizer.encode(text), ids_of(&case[1]), "{text:?}");
            assert_eq!(tokenizer.decode(&ids_of(&case[1])), decoded);
        }
    }
    assert_eq!(plain.prompt(""), [0, 2]);
    let error = Florence2Tokenizer::from_files("t", "{}", "a b").unwrap_err().to_string();
    assert!(error.contains("no symbol"), "{error}");
}

#[test]
fn tasks_have_their_words_and_their_kinds_of_answers() {
    assert_eq!(Task::names().count(), 15);
    assert_eq!(Task::named("caption").unwrap().prompt(""), "What does the image describe?");
    let grounding = Task::named("caption_to_phrase_grounding").unwrap();
    assert_eq!(grounding.prompt(" a dog "), "Locate the phrases in the caption: a dog");
    assert_eq!(Task::named("docvqa").unwrap().prompt("How much?"), "<DocVQA> How much?");
    assert_eq!(Task::named("prompt_gen_tags").unwrap().prompt(""), "<GENERATE_TAGS>");
    let written = "</s><s>it<loc_1><loc_2><loc_3><loc_4>a dog<loc_0><loc_0><loc_999><loc_999></s>";
    let Answer::Boxes(boxes) = grounding.answer(written, (100, 100)) else { panic!("it gives boxes") };
    assert_eq!(boxes.len(), 1);
    assert_eq!(boxes[0].label, "a dog");
    assert_eq!(Task::Caption.answer("</s><s>a dog</s>", (1, 1)), Answer::Text);
}
