//! Recipes: by which encoders a family's texts are encoded, and how their results are put together.

use tensor::Tensor;

use super::encoder::{EncodeOptions, Encoded, Keep, Layer, PaddingUse};
use super::template::ChatTemplate;
use super::tokenizer::Tokenizer;
use super::tokens::{PromptOptions, Tokens};
use crate::Result;
use crate::diffusion::FAMILIES;

/// How a family's texts are encoded.
#[derive(Debug)]
pub struct TextRecipe {
    /// What loaders call it, such as `sdxl`.
    pub name: &'static str,
    /// Its encoders, in the order in which their results are joined.
    pub encoders: &'static [EncoderUse],
    /// Whether the model is told which tokens count.
    pub has_mask: bool,
    /// Puts the results together, one for each encoder in their order.
    pub join: fn(Vec<Option<Encoded>>) -> Result<Encoded>,
}

/// How one encoder of a recipe is used.
#[derive(Clone, Copy, Debug)]
pub struct EncoderUse {
    /// The encoder, as [`TextEncoder::key`](super::TextEncoder::key) has it.
    pub key: &'static str,
    /// The layer that its result is taken from.
    pub layer: Layer,
    /// Whether the pooled result is not multiplied with the encoder's projection.
    pub unprojected: bool,
    /// The encoder to whose 16-bit type its weights are rounded, as the reference does where both are one model to it.
    pub rounded_like: Option<&'static str>,
    /// Tokens that a prompt is filled up to, of encoders without chunks.
    pub tokens: usize,
    /// Tokens of which a prompt is filled up to a multiple, of encoders without chunks; 1 if it may have any number.
    pub multiple: usize,
    /// The most tokens of a prompt, if what goes beyond is left out.
    pub most: Option<usize>,
    /// Whether texts can be encoded without it.
    pub is_optional: bool,
    /// What it reads of a prompt.
    pub reads: Reads,
    /// Whether parentheses and embeddings are plain text to it.
    pub is_literal: bool,
    /// What becomes of the tokens that fill a prompt.
    pub padding: PaddingUse,
    /// Whether the prompt that weights move tokens away from is filling all over, without an end.
    pub empty_is_padding: bool,
    /// The token that fills a prompt, if it is not the tokenizer's own.
    pub pad: Option<u32>,
    /// Which tokens' results are kept; all without it.
    pub keep: Option<Keep>,
    /// The token in whose places pictures are put, if it can be shown any.
    pub picture: Option<u32>,
}

/// What an encoder reads of a prompt.
#[derive(Clone, Copy, Debug)]
pub enum Reads {
    /// All of it.
    Prompt,
    /// A conversation about it.
    Chat(&'static ChatTemplate),
    /// What follows from it, if anything does; without that the encoder gives no result.
    Part(fn(&str) -> Option<String>),
}

impl Reads {
    /// What an encoder reads of a prompt with or without pictures; nothing if it is not asked at all.
    pub fn of(&self, prompt: &str, has_pictures: bool) -> Option<String> {
        match self {
            Reads::Prompt => Some(prompt.to_owned()),
            Reads::Chat(template) => Some(template.apply(prompt, has_pictures)),
            Reads::Part(part) => part(prompt),
        }
    }
}

impl TextRecipe {
    /// Whether texts can be encoded with these encoders.
    #[must_use]
    pub fn fits(&self, keys: &[&str]) -> bool {
        let needed = self.encoders.iter().filter(|encoder| !encoder.is_optional);
        let has_needed = needed.clone().all(|encoder| keys.contains(&encoder.key));
        has_needed && self.encoders.iter().any(|encoder| keys.contains(&encoder.key))
    }

    /// How many of these encoders it uses, and whether it uses no others.
    fn used(&self, keys: &[&str]) -> (usize, bool) {
        let used = self.encoders.iter().filter(|encoder| keys.contains(&encoder.key)).count();
        (used, used == self.encoders.len())
    }

    /// The recipe of a loader's name, else the one that uses most of the encoders, and none that is not there.
    #[must_use]
    pub fn find(name: &str, keys: &[&str]) -> Option<&'static TextRecipe> {
        let mut fitting = recipes().filter(|recipe| recipe.fits(keys));
        if !name.is_empty() {
            let named = fitting.find(|recipe| recipe.name == name);
            // A language model by itself tells whom it is for, whatever a workflow calls it.
            let tells =
                matches!(keys, [key] if !key.starts_with("clip") && !key.contains("t5") && *key != "llama");
            return if tells { named.or_else(|| TextRecipe::find("", keys)) } else { named };
        }
        // Of equals the first: later ones must use more.
        fitting.fold(None, |best: Option<&'static TextRecipe>, recipe| match best {
            Some(best) if best.used(keys) >= recipe.used(keys) => Some(best),
            _ => Some(recipe),
        })
    }

    /// What it takes, for people: `sdxl (CLIP-L and CLIP-G)`.
    #[must_use]
    pub fn described(&self) -> String {
        let names: Vec<&str> = self.encoders.iter().map(|encoder| name_of(encoder.key)).collect();
        match names.split_last() {
            Some((last, others)) if !others.is_empty() => {
                format!("{} ({} and {last})", self.name, others.join(", "))
            }
            _ => format!("{} ({})", self.name, names.concat()),
        }
    }
}

/// What people call an encoder.
#[must_use]
pub fn name_of(key: &str) -> &str {
    match key {
        "clip_l" => "CLIP-L",
        "clip_g" => "CLIP-G",
        "clip_h" => "CLIP-H",
        "t5xxl" => "T5",
        "t5xxl_old" => "the first T5-XXL",
        "umt5xxl" => "UMT5",
        "byt5" => "ByT5",
        "qwen25_7b" | "qwen25_3b" => "Qwen2.5",
        "qwen3_4b" | "qwen3_2b" | "qwen3_8b" => "Qwen3",
        "qwen3vl_4b" | "qwen3vl_8b" => "Qwen3-VL",
        "gemma2_2b" => "Gemma 2",
        "gemma3_4b" => "Gemma 3",
        "mistral3_24b" => "Mistral 3",
        "llama" => "Llama 3",
        other => other,
    }
}

/// Every recipe.
pub fn recipes() -> impl Iterator<Item = &'static TextRecipe> {
    FAMILIES.iter().flat_map(|family| family.text.iter().copied())
}

impl EncoderUse {
    /// A CLIP model with its projection.
    pub const fn clip(key: &'static str, layer: Layer) -> EncoderUse {
        EncoderUse { layer, ..EncoderUse::of_length(key, 0) }
    }

    /// An encoder whose last layer is taken, with prompts of at least so many tokens.
    pub const fn of_length(key: &'static str, tokens: usize) -> EncoderUse {
        EncoderUse {
            key,
            layer: Layer::Last,
            unprojected: false,
            rounded_like: None,
            tokens,
            multiple: 1,
            most: None,
            is_optional: false,
            reads: Reads::Prompt,
            is_literal: false,
            padding: PaddingUse::Seen,
            empty_is_padding: false,
            pad: None,
            keep: None,
            picture: None,
        }
    }

    /// A language model that reads a conversation about the prompt, whose parentheses are plain text.
    pub const fn chat(key: &'static str, layer: Layer, template: &'static ChatTemplate) -> EncoderUse {
        EncoderUse {
            layer,
            reads: Reads::Chat(template),
            is_literal: true,
            padding: PaddingUse::Hidden,
            ..EncoderUse::of_length(key, 1)
        }
    }

    /// How a prompt is encoded.
    pub fn options(&self) -> EncodeOptions<'static> {
        EncodeOptions {
            layer: self.layer,
            unprojected: self.unprojected,
            padding: self.padding,
            empty_is_padding: self.empty_is_padding,
            keep: self.keep,
            ..EncodeOptions::default()
        }
    }

    /// How a prompt is read, with what embeddings there are.
    pub fn prompt_options<'a>(&self, options: PromptOptions<'a>) -> PromptOptions<'a> {
        PromptOptions {
            embeddings: options.embeddings.filter(|_| !self.is_literal),
            ignore_weights: options.ignore_weights || self.is_literal,
            pad: self.pad,
            most: self.most,
        }
    }

    /// The tokens of what [`Reads::of`] gives, filled up to at least so many.
    pub fn tokenize(
        &self,
        tokenizer: &dyn Tokenizer,
        text: &str,
        options: PromptOptions<'_>,
        least: usize,
    ) -> Tokens {
        let options = self.prompt_options(options);
        let mut tokens = tokenizer.tokenize(text, options, least);
        let length = tokens.chunks.first().map_or(0, Vec::len);
        if !length.is_multiple_of(self.multiple.max(1)) {
            tokens = tokenizer.tokenize(text, options, length.next_multiple_of(self.multiple));
        }
        if self.most.is_some() {
            tokens.chunks.truncate(1);
        }
        tokens
    }
}

/// The results of encoders that are all there.
pub(crate) fn all<const N: usize>(encoded: Vec<Option<Encoded>>) -> Result<[Encoded; N]> {
    let there: Vec<Encoded> = encoded.into_iter().flatten().collect();
    let count = there.len();
    <[Encoded; N]>::try_from(there).map_err(|_| crate::Error::Input {
        what: "the text",
        expected: format!("encoded by {N} encoders"),
        got: format!("{count} results"),
    })
}

/// Tokens of two encoders as one, as many as both have.
pub(crate) fn side_by_side(left: &Encoded, right: &Encoded) -> Result<Tensor> {
    let len = left.cond.dim(1).min(right.cond.dim(1));
    let right = right.cond.to_lane(left.cond.lane())?;
    Ok(Tensor::concat(&[&left.cond.slice(1, 0, len)?, &right.slice(1, 0, len)?], 2)?)
}
