//! Templates: the conversation that a prompt is put into before a language model reads it.

/// A conversation with a place for the prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChatTemplate {
    /// The conversation, with `{}` for the prompt.
    pub text: &'static str,
    /// The same for a prompt with pictures, if that is another one.
    pub with_pictures: Option<&'static str>,
    /// A prompt that begins so is a whole conversation itself.
    pub yields_to: &'static [&'static str],
    /// An empty prompt is read as a space.
    pub fills_empty: bool,
}

impl ChatTemplate {
    /// A conversation that every prompt is put into.
    pub const fn new(text: &'static str) -> ChatTemplate {
        ChatTemplate { text, with_pictures: None, yields_to: &[], fills_empty: false }
    }

    /// The conversation about a prompt.
    pub fn apply(&self, prompt: &str, has_pictures: bool) -> String {
        if self.yields_to.iter().any(|start| prompt.starts_with(start)) {
            return prompt.to_owned();
        }
        let prompt = if self.fills_empty && prompt.is_empty() { " " } else { prompt };
        let text = self.with_pictures.filter(|_| has_pictures).unwrap_or(self.text);
        text.replacen("{}", prompt, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_are_put_into_their_place() {
        let template = ChatTemplate {
            with_pictures: Some("<picture>{}<end>"),
            yields_to: &["<start>"],
            fills_empty: true,
            ..ChatTemplate::new("<start>{}<end>")
        };
        assert_eq!(template.apply("a {} b", false), "<start>a {} b<end>");
        assert_eq!(template.apply("a", true), "<picture>a<end>");
        assert_eq!(template.apply("", false), "<start> <end>");
        assert_eq!(template.apply("<start>own", true), "<start>own");
    }
}
