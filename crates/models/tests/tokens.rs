//! Token ids and weights, against those of the reference implementation, prompt by prompt.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use models::text::{ChatTemplate, ClipTokenizer, PromptOptions, QwenTokenizer, Symbol, T5Tokenizer, Tokens};
use proptest::prelude::*;
use serde_json::Value;

fn golden() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tokens.json");
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

/// Compares every prompt and says which differ.
fn check(family: &str, part: &str, tokenize: impl Fn(&str) -> Tokens) {
    let golden = golden();
    let expected = golden["tokenizers"][family][part].as_array().unwrap();
    let prompts = golden["prompts"].as_array().unwrap();
    assert_eq!(prompts.len(), expected.len());
    let mut wrong = Vec::new();
    for (prompt, expected) in prompts.iter().zip(expected) {
        let prompt = prompt.as_str().unwrap();
        let tokens = tokenize(prompt);
        let expected: Vec<_> = expected.as_array().unwrap().iter().map(expected_chunk).collect();
        let got: Vec<Vec<(u32, f32)>> = (0..tokens.chunks.len())
            .map(|i| {
                let weights = tokens.chunks[i].iter().map(|token| token.weight);
                tokens.ids(i).unwrap().into_iter().zip(weights).collect()
            })
            .collect();
        let equal = got.len() == expected.len()
            && got.iter().flatten().count() == expected.iter().flatten().count()
            && got
                .iter()
                .flatten()
                .zip(expected.iter().flatten())
                .all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6);
        if !equal {
            let head =
                |chunks: &[Vec<(u32, f32)>]| chunks[0].iter().take(24).map(|t| t.0).collect::<Vec<_>>();
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

#[test]
fn qwen_of_two_families() {
    let tokenizer = QwenTokenizer::embedded().unwrap();
    let options = PromptOptions::default();
    check("qwen_image", "qwen25_7b", |prompt| tokenizer.tokenize(prompt, &ChatTemplate::QWEN_IMAGE, options));
    check("z_image", "qwen3_4b", |prompt| tokenizer.tokenize(prompt, &ChatTemplate::Z_IMAGE, options));
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
            let options = PromptOptions { embeddings: Some(&rows), ignore_weights: false };
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
