//! Text encoders, against the reference implementation's results, module by module and end to end.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use checkpoint::Checkpoint;
use models::text::{
    ClipTokenizer, EncodeOptions, Encoded, Layer, PaddingUse, PromptOptions, T5Tokenizer, TextModel,
    TextRecipe, Tokens,
};
use models::{Probe, detect};
use residency::Session;
use support::{checkpoint, golden, open_on_cpu};
use testkit::Golden;

/// The reference's own spread is 3e-6.
const TOLERANCE: f64 = 2e-5;

/// An encoder that is loaded on the CPU.
struct Loaded {
    model: TextModel,
    session: Session,
}

impl Loaded {
    fn new(name: &'static str) -> Loaded {
        let checkpoint = shared(name);
        let model = TextModel::read_all(&checkpoint, &detect(&checkpoint)).unwrap().remove(0);
        let session = open_on_cpu(model.encoder.manifest(&checkpoint).unwrap());
        Loaded { model, session }
    }

    fn encode(&self, tokens: &Tokens, options: EncodeOptions<'_>) -> Encoded {
        self.model.encoder.encode(&self.session, tokens, options).unwrap()
    }

    /// Encodes, and compares every module of prompt 1 that the golden data has; how many those are.
    fn encode_compared(
        &self,
        golden: &Golden,
        tokens: &Tokens,
        options: EncodeOptions<'_>,
    ) -> (Encoded, usize) {
        let mut compared = 0;
        let mut see = |name: &str, value: &tensor::Tensor| {
            let name = format!("prompt1.out.{name}");
            if golden.names().any(|known| known == format!("{name}.rms")) {
                golden.assert_close(&name, value.shape(), &value.to_vec().unwrap(), TOLERANCE);
                compared += 1;
            }
        };
        let probe = &mut Probe::new(&mut see);
        let encoded = self.model.encoder.encode_probed(&self.session, tokens, options, probe).unwrap();
        (encoded, compared)
    }
}

/// Rebuilding the larger files takes a second each, so tests share them.
fn shared(name: &'static str) -> Arc<Checkpoint> {
    static FILES: Mutex<BTreeMap<&str, Arc<Checkpoint>>> = Mutex::new(BTreeMap::new());
    let mut files = FILES.lock().unwrap();
    Arc::clone(files.entry(name).or_insert_with(|| Arc::new(checkpoint(name))))
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

/// Encodes every prompt of a golden file and compares what comes out, and of prompt 1 as many modules as said.
fn check(
    golden: &Golden,
    modules: usize,
    loaded: &Loaded,
    options: EncodeOptions<'_>,
    tokenize: impl Fn(&str) -> Tokens,
    finish: impl Fn(&str, Encoded) -> Encoded,
) {
    for (i, prompt) in prompts(golden).iter().enumerate() {
        let tokens = tokenize(prompt);
        let encoded = match i {
            1 => {
                let (encoded, compared) = loaded.encode_compared(golden, &tokens, options);
                assert_eq!(compared, modules);
                encoded
            }
            _ => loaded.encode(&tokens, options),
        };
        compare(golden, i, &finish(prompt, encoded));
    }
}

/// The tokens of a prompt in plain reading.
fn plain(tokenizer: &ClipTokenizer) -> impl Fn(&str) -> Tokens {
    |prompt| tokenizer.tokenize(prompt, PromptOptions::default())
}

#[test]
fn clip_l_of_sd15() {
    let (golden, loaded) = (golden("clip_l_sd15"), Loaded::new("clip_l_tiny"));
    let tokenizer = ClipTokenizer::embedded().unwrap();
    let options = EncodeOptions { unprojected: true, ..EncodeOptions::default() };
    check(&golden, 7, &loaded, options, plain(&tokenizer), |_, encoded| encoded);
}

#[test]
fn clip_g() {
    let (golden, loaded) = (golden("clip_g"), Loaded::new("clip_g_tiny"));
    let tokenizer = ClipTokenizer::embedded().unwrap().padded_with_zeros();
    let options = EncodeOptions { layer: Layer::SkipRaw(2), ..EncodeOptions::default() };
    check(&golden, 7, &loaded, options, plain(&tokenizer), |_, encoded| encoded);
}

/// What a recipe makes of the results of its encoders.
fn join(recipe: &str, encoded: Vec<Encoded>) -> Encoded {
    let keys = ["clip_l", "clip_g", "t5xxl"];
    let recipe = TextRecipe::find(recipe, &keys).unwrap();
    (recipe.join)(encoded.into_iter().map(Some).collect()).unwrap()
}

#[test]
fn t5_and_clip_l_of_flux() {
    let golden = golden("t5xxl_flux");
    let (t5, clip) = (Loaded::new("t5xxl_tiny"), Loaded::new("clip_l_tiny"));
    let clip_tokenizer = ClipTokenizer::embedded().unwrap();
    let t5_tokenizer = T5Tokenizer::embedded().unwrap().filled_to(256);
    let unprojected = EncodeOptions { unprojected: true, ..EncodeOptions::default() };
    let tokenize = |prompt: &str| t5_tokenizer.tokenize(prompt, PromptOptions::default());
    check(&golden, 4, &t5, EncodeOptions::default(), tokenize, |prompt, encoded| {
        let words = clip.encode(&plain(&clip_tokenizer)(prompt), unprojected);
        join("flux", vec![words, encoded])
    });
}

#[test]
fn umt5_of_wan() {
    let (golden, loaded) = (golden("umt5_wan"), Loaded::new("umt5xxl_tiny"));
    let options = EncodeOptions { padding: PaddingUse::Zeroed, ..EncodeOptions::default() };
    let tokenize = |prompt: &str| loaded.model.tokenizer.tokenize(prompt, PromptOptions::default(), 512);
    check(&golden, 4, &loaded, options, tokenize, |_, encoded| encoded);
}

#[test]
fn both_of_sdxl_stand_side_by_side() {
    let [l, g] = ["clip_l_tiny", "clip_g_tiny"].map(Loaded::new);
    let hidden = EncodeOptions { layer: Layer::SkipRaw(2), ..EncodeOptions::default() };
    let encode = |loaded: &Loaded, options| {
        loaded.encode(&loaded.model.tokenizer.tokenize("a cat", PromptOptions::default(), 0), options)
    };
    let (l, g) = (encode(&l, EncodeOptions { unprojected: true, ..hidden }), encode(&g, hidden));
    let together = join("sdxl", vec![l.clone(), g.clone()]);
    assert_eq!(together.cond.dims(), [1, 77, 768 + 1280]);
    let part = |start: usize, len: usize| together.cond.slice(2, start, len).unwrap().to_vec().unwrap();
    assert_eq!(part(0, 768), l.cond.to_vec().unwrap());
    assert_eq!(part(768, 1280), g.cond.to_vec().unwrap());
    assert_eq!(together.pooled.unwrap().to_vec().unwrap(), g.pooled.unwrap().to_vec().unwrap());
}
