//! Text encoders, against the reference implementation's results, module by module and end to end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use models::text::{
    ClipTokenizer, EncodeOptions, Encoded, Layer, PromptOptions, T5Tokenizer, TextEncoder, Tokens,
};
use models::{Probe, detect};
use residency::Session;
use support::{checkpoint, golden, open_on_cpu};
use testkit::Golden;

/// The reference's own spread is 3e-6.
const TOLERANCE: f64 = 2e-5;

/// An encoder that is loaded on the CPU.
struct Loaded {
    encoder: TextEncoder,
    session: Session,
}

impl Loaded {
    fn new(name: &str) -> Loaded {
        let checkpoint = checkpoint(name);
        let encoder = TextEncoder::read_all(&checkpoint, &detect(&checkpoint)).unwrap().remove(0);
        let session = open_on_cpu(encoder.manifest(&checkpoint, 256).unwrap());
        Loaded { encoder, session }
    }

    fn encode(&self, tokens: &Tokens, options: EncodeOptions<'_>) -> Encoded {
        self.encoder.encode(&self.session, tokens, options).unwrap()
    }
}

fn prompts(golden: &Golden) -> Vec<String> {
    serde_json::from_str(golden.metadata("prompts").unwrap()).unwrap()
}

/// Compares the conditioning of one prompt.
fn compare(golden: &Golden, prompt: usize, encoded: &Encoded) {
    let name = format!("prompt{prompt}");
    let cond = &encoded.cond;
    golden.assert_close(&format!("{name}.cond"), cond.shape(), &cond.to_vec().unwrap(), TOLERANCE);
    if let Some(pooled) = &encoded.pooled {
        golden.assert_close(&format!("{name}.pooled"), pooled.shape(), &pooled.to_vec().unwrap(), TOLERANCE);
    }
}

/// Compares every module of prompt 1 that the golden data has; how many those are.
fn compare_modules(golden: &Golden, loaded: &Loaded, tokens: &Tokens, options: EncodeOptions<'_>) -> usize {
    let mut compared = 0;
    let mut see = |name: &str, value: &tensor::Tensor| {
        let name = format!("prompt1.out.{name}");
        if golden.names().any(|known| known == format!("{name}.rms")) {
            golden.assert_close(&name, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
            compared += 1;
        }
    };
    loaded.encoder.encode_probed(&loaded.session, tokens, options, &mut Probe::new(&mut see)).unwrap();
    compared
}

#[test]
fn clip_l_of_sd15() {
    let (golden, loaded) = (golden("clip_l_sd15"), Loaded::new("clip_l_tiny"));
    let tokenizer = ClipTokenizer::embedded().unwrap();
    let options = EncodeOptions { unprojected: true, ..EncodeOptions::default() };
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let tokens = tokenizer.tokenize(prompt, PromptOptions::default());
        compare(&golden, i, &loaded.encode(&tokens, options));
        if i == 1 {
            assert_eq!(compare_modules(&golden, &loaded, &tokens, options), 10);
        }
    }
}

#[test]
fn clip_g() {
    let (golden, loaded) = (golden("clip_g"), Loaded::new("clip_g_tiny"));
    let tokenizer = ClipTokenizer::embedded().unwrap().padded_with_zeros();
    let options = EncodeOptions { layer: Layer::SkipRaw(2), ..EncodeOptions::default() };
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let tokens = tokenizer.tokenize(prompt, PromptOptions::default());
        compare(&golden, i, &loaded.encode(&tokens, options));
        if i == 1 {
            assert_eq!(compare_modules(&golden, &loaded, &tokens, options), 10);
        }
    }
}

#[test]
fn t5_and_clip_l_of_flux() {
    let golden = golden("t5xxl_flux");
    let (t5, clip) = (Loaded::new("t5xxl_tiny"), Loaded::new("clip_l_tiny"));
    let clip_tokenizer = ClipTokenizer::embedded().unwrap();
    let t5_tokenizer = T5Tokenizer::embedded().unwrap().filled_to(256);
    let unprojected = EncodeOptions { unprojected: true, ..EncodeOptions::default() };
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let words = clip.encode(&clip_tokenizer.tokenize(prompt, PromptOptions::default()), unprojected);
        let tokens = t5_tokenizer.tokenize(prompt, PromptOptions::default());
        let encoded = t5.encode(&tokens, EncodeOptions::default());
        compare(&golden, i, &Encoded::flux(&words, encoded));
        if i == 1 {
            assert_eq!(compare_modules(&golden, &t5, &tokens, EncodeOptions::default()), 14);
        }
    }
}

#[test]
fn umt5_of_wan() {
    let (golden, loaded) = (golden("umt5_wan"), Loaded::new("umt5xxl_tiny"));
    let checkpoint = checkpoint("umt5xxl_tiny");
    let model = checkpoint.bytes(checkpoint.entry("spiece_model").unwrap());
    let tokenizer = T5Tokenizer::from_sentencepiece("umt5", model).unwrap().filled_to(512);
    let options = EncodeOptions { masked: true, ..EncodeOptions::default() };
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let tokens = tokenizer.tokenize(prompt, PromptOptions::default());
        compare(&golden, i, &loaded.encode(&tokens, options));
        if i == 1 {
            assert_eq!(compare_modules(&golden, &loaded, &tokens, options), 14);
        }
    }
}

#[test]
fn all_three_of_sd3() {
    let golden = golden("sd3_triple");
    let [l, g, t5] = ["clip_l_tiny", "clip_g_tiny", "t5xxl_tiny"].map(Loaded::new);
    let l_tokenizer = ClipTokenizer::embedded().unwrap();
    let g_tokenizer = l_tokenizer.clone().padded_with_zeros();
    let t5_tokenizer = T5Tokenizer::embedded().unwrap().filled_to(77);
    let hidden = EncodeOptions { layer: Layer::SkipRaw(2), ..EncodeOptions::default() };
    let unprojected = EncodeOptions { unprojected: true, ..hidden };
    for (i, prompt) in prompts(&golden).iter().enumerate() {
        let l = l.encode(&l_tokenizer.tokenize(prompt, PromptOptions::default()), unprojected);
        let g = g.encode(&g_tokenizer.tokenize(prompt, PromptOptions::default()), hidden);
        let t5 =
            t5.encode(&t5_tokenizer.tokenize(prompt, PromptOptions::default()), EncodeOptions::default());
        compare(&golden, i, &Encoded::sd3(&l, &g, &t5).unwrap());
    }
}
