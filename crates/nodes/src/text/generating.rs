//! Text that a language model writes, such as a longer prompt.

use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Kind, Outcome, Value};
use models::text::{
    EncoderUse, LanguageModel, PromptOptions, Reads, Symbol, TextModel, Token, TokenChooser, TokenSampling,
};
use runtime::{Caller, Runtime, Source, Wanted, Work};

use super::{SeenPicture, clip_of, look, prompt_input};
use crate::class::class;
use crate::value::Image;
use crate::{Error, Result};

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: Arc<Runtime>) {
    catalogue.add(TextGenerate(runtime));
}

/// What a choice of "on" brings with it.
fn sampling_inputs() -> Vec<Input> {
    vec![
        Input::float("temperature", 0.7, 0.01, 2.0, 0.000_001)
            .tooltip("Divides the logits: lower values keep to what is likely."),
        Input::int("top_k", 64, 0, 1000).tooltip("Draws from so many of the likeliest tokens; 0 for all."),
        Input::float("top_p", 0.95, 0.0, 1.0, 0.01)
            .tooltip("Draws from the likeliest tokens that have this probability together."),
        Input::float("min_p", 0.05, 0.0, 1.0, 0.01)
            .tooltip("Leaves out tokens that have less than this part of the likeliest one's probability."),
        Input::float("repetition_penalty", 1.05, 0.0, 5.0, 0.01)
            .tooltip("Makes tokens that are there already less likely; 1 for no change."),
        Input::int("seed", 0, 0, u64::MAX).tooltip("Where the draws begin: the same seed writes the same."),
        Input::float("presence_penalty", 0.0, 0.0, 5.0, 0.01)
            .tooltip("Taken off the logits of tokens that were written already.")
            .optional(),
    ]
}

class! {
    /// Text that the language model among the text encoders writes about a prompt.
    TextGenerate in "text";
    |schema| schema
        .title("Generate Text")
        .input(Input::socket("clip", "CLIP").tooltip("A text encoder that is a language model, with all of its layers."))
        .input(prompt_input("prompt").tooltip("What the model is told."))
        .input(Input::socket("image", "IMAGE").optional().tooltip("A picture to look at, for models with a tower."))
        .input(Input::socket("video", "IMAGE").optional().tooltip("Not read: link single pictures to image."))
        .input(Input::socket("audio", "AUDIO").optional().tooltip("Not read: no language model here hears."))
        .input(Input::int("max_length", 512, 1, 32768).tooltip("The most tokens that are written."))
        .input(Input::new("sampling_mode", Kind::DynamicChoice(vec![
            ("on".to_owned(), sampling_inputs()),
            ("off".to_owned(), Vec::new()),
        ])).tooltip("Draws tokens, or takes the likeliest every time."))
        .input(Input::boolean("thinking", false).optional().tooltip("Lets models think first that can."))
        .input(Input::boolean("use_default_template", true).optional().tooltip(
            "Puts the prompt into the family's conversation; without it the model goes on where the prompt ends."
        ))
        .input(Input::choice("mtp", ["auto", "off", "2", "3", "4", "5"]).with("default", "auto").optional().tooltip(
            "Several tokens at a time, of models with a head for that; without effect here."
        ))
        .input(Input::new("system_prompt", Kind::Text).with("forceInput", true).optional().tooltip(
            "Stands in the place of the conversation's own instructions."
        ))
        .named_output("STRING", "generated_text")
        .named_output("STRING", "thinking")
        .module("comfy_extras.nodes_textgen");
    |runtime, call| {
        let written = generate(runtime, call)?;
        let prompt = call.text("prompt")?.trim_end();
        let thinks = written.trim_start().starts_with("<think>") || prompt.ends_with("<think>");
        let (thought, text) = match written.split_once("</think>") {
            _ if !thinks => ("", written.as_str()),
            Some((thought, text)) => (thought, text),
            None => (written.as_str(), ""),
        };
        let thought = thought.replacen("<think>", "", 1);
        Ok(Outcome::values([Value::from(text.trim()), Value::from(thought.trim())]))
    }
}

/// The language model of a call's text encoders, and how its family uses it.
struct Writer<'a> {
    source: &'a Arc<Source>,
    text: &'a TextModel,
    model: &'a LanguageModel,
    how: &'a EncoderUse,
}

fn generate(runtime: &Runtime, call: &Call) -> Result<String, Failure> {
    for input in ["video", "audio"] {
        if call.inputs.first(input).is_some_and(|value| !value.is_none()) {
            return Err(Failure::value(format!(
                "{input} cannot be read by a language model here: unlink it"
            )));
        }
    }
    let clip = clip_of(call)?;
    let writer = clip.recipe.encoders.iter().find_map(|how| {
        let (source, text) = clip.encoder(how.key)?;
        Some(Writer { source, text, model: text.encoder.language_model()?, how })
    });
    let Some(writer) = writer else {
        return Err(Failure::value(
            "none of the text encoders is a language model: load one with CLIPLoader, such as qwen_3_4b.safetensors",
        ));
    };
    let image = call.object_if_given::<Image>("image")?;
    let seen = image.iter().map(|image| look(runtime, call, &clip, image)).collect::<Result<Vec<_>>>()?;
    let prompt = writer.prompt(call, !seen.is_empty())?;
    let options = PromptOptions { ignore_weights: true, ..PromptOptions::default() };
    let mut tokens = writer.text.tokenizer.tokenize(&prompt, options, 0);
    if let Some(place) = writer.how.picture {
        tokens.show_pictures(place, &seen.iter().map(|seen| seen.values.shape[0]).collect::<Vec<_>>());
    }
    let id = |token: &Token| match token.symbol {
        Symbol::Id(id) => Some(id),
        _ => None,
    };
    let mut chooser = TokenChooser::new(sampling(call)?, tokens.chunks.iter().flatten().filter_map(id));
    let most = call.size("max_length")?;
    let work = Work::text(&tokens);
    let wanted = Wanted { source: writer.source, beside: &clip.encoders, loras: &clip.loras, work: &work };
    let ids = runtime.with_session(wanted, &Caller::of(&call.job), |opened| {
        let lane = opened.session.lane()?;
        let pictures = seen.iter().map(|seen: &SeenPicture| seen.on(lane)).collect::<Result<Vec<_>>>()?;
        let started = Instant::now();
        let mut decoder = writer.model.decoder(&opened.session)?;
        let mut logits = decoder.read(&tokens, &pictures)?;
        runtime.note_evaluation(opened, started);
        let mut written = Vec::new();
        loop {
            let id = chooser.choose(&logits);
            if writer.model.stop_tokens().contains(&id) {
                break;
            }
            written.push(id);
            let told = call.progress(written.len() as f64, most as f64, None);
            if told.is_err() || written.len() == most {
                break;
            }
            logits = decoder.step(id)?;
        }
        Ok::<_, Error>(written)
    })?;
    // A job that is to end left the loop early.
    call.check()?;
    Ok(writer.text.tokenizer.decode(&ids).unwrap_or_default())
}

impl Writer<'_> {
    /// What the model reads: the prompt in its family's conversation, with the call's instructions.
    fn prompt(&self, call: &Call, has_pictures: bool) -> Result<String, Failure> {
        let prompt = call.text("prompt")?;
        if call.inputs.first("use_default_template").is_some() && !call.boolean("use_default_template")? {
            return Ok(prompt.to_owned());
        }
        let Reads::Chat(template) = self.how.reads else { return Ok(prompt.to_owned()) };
        let mut text = template.apply(prompt, has_pictures);
        let system = match call.inputs.first("system_prompt") {
            Some(value) if !value.is_none() => call.text("system_prompt")?,
            _ => "",
        };
        if !system.is_empty() {
            text = with_system(&text, system);
        }
        let thinking = call.inputs.first("thinking").is_some() && call.boolean("thinking")?;
        let is_qwen3 = self.how.key.starts_with("qwen3") && !self.how.key.starts_with("qwen3vl");
        if is_qwen3 && !thinking && !text.contains("<think>") {
            text += "<think>\n\n</think>\n\n";
        }
        Ok(text)
    }
}

/// A conversation with other instructions, or with some if it has none.
fn with_system(text: &str, system: &str) -> String {
    const MARKS: [(&str, &str, &str); 3] = [
        ("<|im_start|>", "<|im_start|>system\n", "<|im_end|>\n"),
        ("<|start_header_id|>", "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"),
        ("[", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    ];
    let Some((_, open, close)) = MARKS.into_iter().find(|(mark, ..)| text.starts_with(mark)) else {
        return format!("{system}\n\n{text}");
    };
    let rest = match text.strip_prefix(open).and_then(|rest| rest.split_once(close)) {
        Some((_, rest)) => rest,
        None => text,
    };
    format!("{open}{system}{close}{rest}")
}

fn sampling(call: &Call) -> Result<Option<TokenSampling>, Failure> {
    if call.text("sampling_mode")? != "on" {
        return Ok(None);
    }
    let float = |name: &str| call.float(&format!("sampling_mode.{name}")).map(|value| value as f32);
    let presence = "sampling_mode.presence_penalty";
    Ok(Some(TokenSampling {
        temperature: float("temperature")?,
        top_k: call.size("sampling_mode.top_k")?,
        top_p: float("top_p")?,
        min_p: float("min_p")?,
        repetition_penalty: float("repetition_penalty")?,
        presence_penalty: if call.inputs.first(presence).is_some() {
            float("presence_penalty")?
        } else {
            0.0
        },
        seed: call.seed("sampling_mode.seed")?,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_replaced_or_put_first() {
        let plain = "<|im_start|>user\na<|im_end|>\n";
        let told = format!("<|im_start|>system\nb<|im_end|>\n{plain}");
        assert_eq!(with_system(plain, "b"), told);
        assert_eq!(with_system(&with_system(plain, "c"), "b"), told);
        assert_eq!(with_system("[INST]a[/INST]", "b"), "[SYSTEM_PROMPT]b[/SYSTEM_PROMPT][INST]a[/INST]");
        assert_eq!(with_system("a", "b"), "b\n\na");
    }
}
