//! What is written beside a Florence-2 file: `config.json`, `generation_config.json` and `preprocessor_config.json`.
//! Whatever they do not say is as in the published models.

use std::path::Path;

use checkpoint::Checkpoint;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::text::tokenizer::text_of;
use crate::{Error, Result};

/// What no tensor tells of a model.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(super) vision: WrittenVision,
    pub(super) text: WrittenText,
    /// Pixels along a side of the picture that the model sees.
    pub(super) side: Option<usize>,
    /// How answers are written.
    pub rules: Rules,
}

/// How answers are written.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// What the decoder begins with.
    pub start: u32,
    /// The first token of every answer.
    pub first: Option<u32>,
    /// What ends an answer.
    pub end: u32,
    /// The last token of an answer that reaches its greatest length.
    pub last: Option<u32>,
    /// So many tokens in a row are never written twice; 0 for no such rule.
    pub no_repeat: usize,
    /// Whether beams stop as soon as there are as many answers as beams.
    pub early_stopping: bool,
    /// Scores are divided by the length to this power.
    pub length_penalty: f32,
    /// How many of the likeliest tokens are drawn from.
    pub top_k: usize,
}

impl Default for Rules {
    fn default() -> Rules {
        Rules {
            start: 2,
            first: Some(0),
            end: 2,
            last: Some(2),
            no_repeat: 3,
            early_stopping: true,
            length_penalty: 1.0,
            top_k: 50,
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenConfig {
    vision_config: WrittenVision,
    text_config: WrittenText,
}

/// The vision encoder's sizes, one of each for every stage.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WrittenVision {
    pub(super) num_heads: Option<Vec<usize>>,
    pub(super) num_groups: Option<Vec<usize>>,
    pub(super) window_size: Option<usize>,
    pub(super) patch_stride: Option<Vec<usize>>,
    pub(super) patch_padding: Option<Vec<usize>>,
    pub(super) patch_prenorm: Option<Vec<bool>>,
}

/// The language model's sizes, and the rules of its answers as older files have them.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WrittenText {
    pub(super) encoder_attention_heads: Option<usize>,
    pub(super) decoder_attention_heads: Option<usize>,
    pub(super) scale_embedding: bool,
    #[serde(flatten)]
    rules: WrittenRules,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct WrittenRules {
    decoder_start_token_id: Option<u32>,
    forced_bos_token_id: Option<u32>,
    /// One token, or a list of them.
    eos_token_id: Value,
    forced_eos_token_id: Value,
    no_repeat_ngram_size: Option<usize>,
    /// True, false, or "never".
    early_stopping: Value,
    length_penalty: Option<f32>,
    top_k: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenPicture {
    size: WrittenSize,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct WrittenSize {
    height: Option<usize>,
}

impl Settings {
    /// What is written beside a file.
    pub fn beside(checkpoint: &Checkpoint) -> Result<Settings> {
        if !checkpoint.path().is_file() {
            return Ok(Settings::default());
        }
        let read = |name: &str| text_of(&checkpoint.path().with_file_name(name));
        let (config, generation) = (read("config.json")?, read("generation_config.json")?);
        let picture = read("preprocessor_config.json")?;
        let folder = checkpoint.path().parent().unwrap_or(Path::new("")).display().to_string();
        Settings::from_json(&folder, config.as_deref(), generation.as_deref(), picture.as_deref())
    }

    /// The same from the texts of `config.json`, `generation_config.json` and `preprocessor_config.json` of a folder.
    pub fn from_json(
        folder: &str,
        config: Option<&str>,
        generation: Option<&str>,
        picture: Option<&str>,
    ) -> Result<Settings> {
        let config: WrittenConfig = parse(folder, "config.json", config)?;
        let generation: WrittenRules = parse(folder, "generation_config.json", generation)?;
        let picture: WrittenPicture = parse(folder, "preprocessor_config.json", picture)?;
        let mut rules = Rules::default();
        config.text_config.rules.apply(&mut rules);
        generation.apply(&mut rules);
        let side = picture.size.height;
        Ok(Settings { vision: config.vision_config, text: config.text_config, side, rules })
    }
}

impl WrittenRules {
    fn apply(&self, rules: &mut Rules) {
        rules.start = self.decoder_start_token_id.unwrap_or(rules.start);
        rules.first = self.forced_bos_token_id.or(rules.first);
        rules.end = first_id(&self.eos_token_id).unwrap_or(rules.end);
        rules.last = first_id(&self.forced_eos_token_id).or(rules.last);
        rules.no_repeat = self.no_repeat_ngram_size.unwrap_or(rules.no_repeat);
        rules.early_stopping = self.early_stopping.as_bool().unwrap_or(rules.early_stopping);
        rules.length_penalty = self.length_penalty.unwrap_or(rules.length_penalty);
        rules.top_k = self.top_k.unwrap_or(rules.top_k);
    }
}

/// A token's id, or the first of a list of them.
fn first_id(written: &Value) -> Option<u32> {
    let one = written.as_array().and_then(|list| list.first()).unwrap_or(written);
    one.as_u64().and_then(|id| u32::try_from(id).ok())
}

fn parse<T: DeserializeOwned + Default>(folder: &str, name: &str, text: Option<&str>) -> Result<T> {
    let Some(text) = text else { return Ok(T::default()) };
    serde_json::from_str(text)
        .map_err(|error| Error::Settings { file: format!("{folder}/{name}"), reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_of_the_newer_file_go_before_those_of_the_older() {
        let config =
            r#"{"text_config": {"no_repeat_ngram_size": 2, "num_beams": 3, "early_stopping": false}}"#;
        let generation = r#"{"no_repeat_ngram_size": 4, "forced_bos_token_id": null, "eos_token_id": [7]}"#;
        let settings = Settings::from_json("f", Some(config), Some(generation), None).unwrap();
        let expected = Rules { no_repeat: 4, early_stopping: false, end: 7, ..Rules::default() };
        assert_eq!(settings.rules, expected);
        let error = Settings::from_json("f", Some(r#"{"vision_config": 3}"#), None, None).unwrap_err();
        assert!(error.to_string().starts_with("f/config.json: "), "{error}");
    }
}
