//! Token ids and weights, against those of the reference implementation, prompt by prompt.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use checkpoint::Checkpoint;
use models::detect;
use models::text::{ClipTokenizer, PromptOptions, Symbol, T5Tokenizer, TextModel, TextRecipe, Tokens};
use proptest::prelude::*;
use serde_json::Value;

fn golden() -> Value {
    read("tokens.json")
}

/// Those of tokenizers that came later, over more prompts.
fn golden_more() -> Value {
    read("tokens_more.json")
}

fn read(name: &str) -> Value {
    let path = format!("{}/tests/data/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// One chunk as the golden data writes it: after the listed tokens the last one repeats up to `n`.
fn expected_chunk(chunk: &Value) -> Vec<(u32, f32)> {
    let ids: Vec<u32> =
        chunk["ids"].as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect();
    let weight = |i: usize| chunk["w"].get(i).map_or(1.0, |w| w.as_f64().unwrap() as f32);
    let mut tokens: Vec<(u32, f32)> = ids.iter().enumerate().map(|(i, id)| (*id, weight(i))).collect();
    tokens.resize(chunk["n"].as_u64().unwrap() as usize, (*ids.last().unwrap(), 1.0));
    tokens
}

/// Ids and weights, chunk by chunk.
type Chunks = Vec<Vec<(u32, f32)>>;

/// The chunks of every prompt; a map has only those of prompts that are read at all, and a prefix is common to all.
fn expected(golden: &Value, prompts: usize) -> Vec<Option<Chunks>> {
    let chunks = |chunks: &Value| chunks.as_array().unwrap().iter().map(expected_chunk).collect();
    let prefix: Vec<(u32, f32)> = golden["prefix"]
        .as_array()
        .map(|ids| ids.iter().map(|id| (id.as_u64().unwrap() as u32, 1.0)).collect())
        .unwrap_or_default();
    let of = |i: usize| -> Option<Chunks> {
        let own = match golden {
            Value::Array(all) => all.get(i),
            golden if golden.get("rest").is_some() => golden["rest"].get(i),
            golden => golden.get(i.to_string()),
        };
        let own = own?;
        if prefix.is_empty() {
            return Some(chunks(own));
        }
        let rest = own["ids"].as_array().unwrap().iter().map(|id| (id.as_u64().unwrap() as u32, 1.0));
        Some(vec![prefix.iter().copied().chain(rest).collect()])
    };
    (0..prompts).map(of).collect()
}

/// Compares every prompt of the first tokenizers and says which differ.
fn check(family: &str, part: &str, tokenize: impl Fn(&str) -> Tokens) {
    check_against(&golden(), family, part, |prompt| Some(tokenize(prompt)));
}

/// Compares every prompt and says which differ.
fn check_against(golden: &Value, family: &str, part: &str, tokenize: impl Fn(&str) -> Option<Tokens>) {
    let prompts = golden["prompts"].as_array().unwrap();
    let expected = expected(&golden["tokenizers"][family][part], prompts.len());
    assert!(expected.iter().any(Option::is_some));
    let mut wrong = Vec::new();
    for (prompt, expected) in prompts.iter().zip(expected) {
        let prompt = prompt.as_str().unwrap();
        let got = tokenize(prompt).map(|tokens| -> Chunks {
            let chunk = |i: usize| {
                let weights = tokens.chunks[i].iter().map(|token| token.weight);
                tokens.ids(i).unwrap().into_iter().zip(weights).collect()
            };
            (0..tokens.chunks.len()).map(chunk).collect()
        });
        let (got, expected) = (got.unwrap_or_default(), expected.unwrap_or_default());
        let equal = got.len() == expected.len()
            && got.iter().flatten().count() == expected.iter().flatten().count()
            && got
                .iter()
                .flatten()
                .zip(expected.iter().flatten())
                .all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6);
        if !equal {
            let head = |chunks: &[Vec<(u32, f32)>]| {
                chunks.first().map(|chunk| chunk.iter().take(120).map(|t| t.0).collect::<Vec<_>>())
            };
            wrong.push(format!("{prompt:?}\n  got  {:?}\n  want {:?}", head(&got), head(&expected)));
        }
    }
    assert!(
        wrong.is_empty(),
        "{family}.{part}: {} of {} differ\n{}",
        wrong.len(),
        prompts.len(),
        wrong.join("\n")
    );
}

#[test]
fn clip_l() {
    let tokenizer = ClipTokenizer::embedded().unwrap();
    check("sd15", "l", |prompt| tokenizer.tokenize(prompt, PromptOptions::default()));
}

#[test]
fn clip_g() {
    let tokenizer = ClipTokenizer::embedded().unwrap().padded_with_zeros();
    check("sdxl", "g", |prompt| tokenizer.tokenize(prompt, PromptOptions::default()));
}

#[test]
fn t5_of_three_families() {
    let tokenizer = T5Tokenizer::embedded().unwrap();
    for (family, len) in [("flux", 256), ("sd3", 77), ("ltxv", 128)] {
        let tokenizer = tokenizer.clone().filled_to(len);
        check(family, "t5xxl", |prompt| tokenizer.tokenize(prompt, PromptOptions::default()));
    }
}

#[test]
fn umt5_from_the_model_inside_its_checkpoint() {
    let manifest = testkit::Manifest::bundled("umt5xxl_tiny").unwrap();
    let model = manifest.tensor("spiece_model").unwrap().bytes();
    let tokenizer = T5Tokenizer::from_sentencepiece("umt5", &model).unwrap().filled_to(512);
    check("wan", "umt5xxl", |prompt| tokenizer.tokenize(prompt, PromptOptions::default()));
}

/// Compares what a recipe's encoder reads of every prompt, with the tokenizer that its file brings or gets.
fn check_recipe(golden: &Value, family: &str, recipe: &str, [part, key, file]: [&str; 3]) {
    let bytes = testkit::Manifest::bundled(file).unwrap().bytes().unwrap();
    let checkpoint = Checkpoint::from_memory((file, bytes.into()), Vec::new()).unwrap();
    let model = TextModel::read_all(&checkpoint, &detect(&checkpoint)).unwrap().remove(0);
    let keys = [key, "clip_l", "clip_g", "t5xxl", "qwen25_7b"];
    let recipe = TextRecipe::find(recipe, &keys).unwrap();
    let how = recipe.encoders.iter().find(|how| how.key == key).unwrap();
    check_against(golden, family, part, |prompt| {
        let text = how.reads.of(prompt, false)?;
        Some(how.tokenize(&*model.tokenizer, &text, PromptOptions::default(), how.tokens))
    });
}

#[test]
fn qwen_of_four_families() {
    let (first, more) = (golden(), golden_more());
    check_recipe(&first, "qwen_image", "qwen_image", ["qwen25_7b", "qwen25_7b", "qwen25_7b_tiny"]);
    check_recipe(&first, "z_image", "lumina2", ["qwen3_4b", "qwen3_4b", "qwen3_4b_tiny"]);
    check_recipe(&more, "hunyuan_video_15", "hunyuan_video_15", ["qwen25_7b", "qwen25_7b", "qwen25_7b_tiny"]);
    check_recipe(&more, "kandinsky5", "kandinsky5", ["qwen25_7b", "qwen25_7b", "qwen25_7b_tiny"]);
}

#[test]
fn vocabularies_inside_of_files() {
    let more = golden_more();
    check_recipe(&more, "flux2", "flux2", ["mistral3_24b", "mistral3_24b", "mistral3_24b_tiny"]);
    check_recipe(&more, "lumina2", "lumina2", ["gemma2_2b", "gemma2_2b", "gemma_2_2b_tiny"]);
}

#[test]
fn t5_of_two_more_families_and_its_bytes() {
    let more = golden_more();
    check_recipe(&more, "cosmos", "cosmos", ["t5xxl", "t5xxl_old", "oldt5_xxl_tiny"]);
    check_recipe(&more, "hidream", "hidream", ["t5xxl", "t5xxl", "t5xxl_tiny"]);
    check_recipe(&more, "hunyuan_video_15", "hunyuan_video_15", ["byt5", "byt5", "byt5_glyph_tiny"]);
}

#[test]
fn weights_can_be_ignored() {
    let tokenizer = ClipTokenizer::embedded().unwrap();
    let options = PromptOptions { ignore_weights: true, ..PromptOptions::default() };
    let tokens = tokenizer.tokenize("(cat:1.3)", options);
    assert!(!tokens.is_weighted());
    assert_eq!(tokens.ids(0).unwrap()[1..8], tokenizer.encode("(cat:1.3)")[..7]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is typed, chunks are whole, begin and end as they should, and nothing panics.
    #[test]
    fn any_prompt_gives_whole_chunks(prompt in "(\\PC|[() :\\\\0-9.a-z\\n]|embedding:){0,300}") {
        TOKENIZERS.with(|(clip, t5)| {
            let rows = |name: &str| name.contains('a').then_some(3);
            let options = PromptOptions { embeddings: Some(&rows), ..PromptOptions::default() };
            for chunk in clip.tokenize(&prompt, options).chunks {
                prop_assert_eq!(chunk.len(), 77);
                prop_assert_eq!(&chunk[0].symbol, &Symbol::Id(49406));
                prop_assert!(chunk.iter().any(|token| token.symbol == Symbol::Id(49407)));
            }
            let tokens = t5.tokenize(&prompt, options);
            prop_assert_eq!(tokens.chunks.len(), 1);
            prop_assert!(tokens.chunks[0].len() >= 16);
            Ok(())
        })?;
    }

    /// Bytes that are no model are an error, not a panic.
    #[test]
    fn any_bytes_are_a_model_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(tokenizer) = T5Tokenizer::from_sentencepiece("any", &bytes) {
            tokenizer.encode("a text");
        }
    }
}

thread_local! {
    static TOKENIZERS: (ClipTokenizer, T5Tokenizer) =
        (ClipTokenizer::embedded().unwrap(), T5Tokenizer::embedded().unwrap().filled_to(16));
}
