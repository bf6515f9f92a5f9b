//! Generating text with the language models that serve as text encoders: what is kept of earlier tokens gives what reading
//! everything again gives, and logits are the product of the last state and the table.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use checkpoint::Checkpoint;
use models::detect;
use models::text::{EncodeOptions, PromptOptions, Symbol, TextModel, Token, TokenChooser, Tokens};
use residency::Session;
use support::{checkpoint, open_on_cpu};

/// Sums in another order differ by less.
const TOLERANCE: f32 = 2e-4;
const STEPS: usize = 5;
const FILES: &[&str] = &["qwen25_7b_tiny", "qwen3_4b_tiny", "gemma_2_2b_tiny"];

struct Loaded {
    model: TextModel,
    session: Session,
    file: Checkpoint,
}

impl Loaded {
    fn new(name: &str) -> Loaded {
        let file = checkpoint(name);
        let model = TextModel::read_all(&file, &detect(&file)).unwrap().remove(0);
        let session = open_on_cpu(model.encoder.manifest(&file).unwrap());
        Loaded { model, session, file }
    }

    fn tokens(&self) -> Tokens {
        let options = PromptOptions { ignore_weights: true, ..PromptOptions::default() };
        self.model.tokenizer.tokenize("a cat on a mat", options, 0)
    }

    fn logits(&self, tokens: &Tokens) -> Vec<f32> {
        let model = self.model.encoder.language_model().unwrap();
        model.decoder(&self.session).unwrap().read(tokens, &[]).unwrap()
    }
}

fn assert_close(got: &[f32], expected: &[f32], what: &str) {
    assert_eq!(got.len(), expected.len());
    let scale = expected.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
    let worst = got.iter().zip(expected).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(scale > 0.0 && worst <= TOLERANCE * scale, "{what}: {worst} of {scale}");
}

/// Greedy decoding with kept keys and values, beside reading all tokens again for every one.
fn check(file: &str) {
    let loaded = Loaded::new(file);
    let model = loaded.model.encoder.language_model().unwrap();
    let mut tokens = loaded.tokens();
    let mut decoder = model.decoder(&loaded.session).unwrap();
    let mut logits = decoder.read(&tokens, &[]).unwrap();
    let mut chooser = TokenChooser::new(None, []);
    let mut written = Vec::new();
    for step in 0..STEPS {
        assert_close(&logits, &loaded.logits(&tokens), &format!("{file}, step {step}"));
        let id = chooser.choose(&logits);
        written.push(id);
        tokens.chunks[0].push(Token { symbol: Symbol::Id(id), weight: 1.0 });
        logits = decoder.step(id).unwrap();
    }
    assert!(loaded.model.tokenizer.decode(&written).is_some());
    assert!(decoder.read(&tokens, &[]).is_err(), "a prompt is read first");
}

#[test]
fn kept_keys_and_values_give_what_reading_again_gives() {
    for file in FILES {
        check(file);
    }
}

/// The table's rows times the state that the encoder gives, which other tests compare with the reference.
#[test]
fn logits_are_the_last_state_times_the_table() {
    let loaded = Loaded::new(FILES[1]);
    let tokens = loaded.tokens();
    let encoded = loaded.model.encoder.encode(&loaded.session, &tokens, EncodeOptions::default()).unwrap();
    let (width, count) = (encoded.cond.dim(2), encoded.cond.dim(1));
    let state = encoded.cond.slice(1, count - 1, 1).unwrap().contiguous().unwrap().to_vec().unwrap();
    let ids: Vec<u32> = (0..100).map(|i| i * 1013).collect();
    let rows = loaded.session.rows("model.embed_tokens.weight", &ids).unwrap().to_vec().unwrap();
    let product = |row: &[f32]| -> f32 {
        row.iter().zip(&state).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>() as f32
    };
    let expected: Vec<f32> = rows.chunks(width).map(product).collect();
    let logits = loaded.logits(&tokens);
    let got: Vec<f32> = ids.iter().map(|id| logits[*id as usize]).collect();
    assert!(loaded.file.entry("lm_head.weight").is_none(), "this model has one table for both");
    assert_close(&got, &expected, "logits");
}

#[test]
fn what_was_written_is_text_again() {
    let loaded = Loaded::new(FILES[1]);
    let options = PromptOptions { ignore_weights: true, ..PromptOptions::default() };
    let text = "Grüße, 12 cats\n  <think>so</think> \u{1f408}<|im_end|>";
    let tokens = loaded.model.tokenizer.tokenize(text, options, 0);
    let id = |token: &Token| match token.symbol {
        Symbol::Id(id) => id,
        _ => unreachable!("there are only words"),
    };
    let ids: Vec<u32> = tokens.chunks[0].iter().map(id).collect();
    let decoded = loaded.model.tokenizer.decode(&ids).unwrap();
    assert_eq!(decoded, text.trim_end_matches("<|im_end|>"));
}

#[test]
fn a_file_that_ends_at_a_middle_layer_is_refused() {
    let loaded = Loaded::new("mistral3_24b_tiny");
    let model = loaded.model.encoder.language_model().unwrap();
    let error = model.decoder(&loaded.session).err().unwrap().to_string();
    assert!(error.contains("ends behind layer 30"), "{error}");
}
