//! ByT5's tokenizer: every byte is a token.

use super::tokenizer::Tokenizer;
use super::tokens::{Frame, PromptOptions, Tokens, read_prompt};

/// Ids before those of the bytes: padding, end and unknown.
const FIRST_BYTE: u32 = 3;
const FRAME: Frame = Frame { start: None, end: Some(1), pad: 0, max_len: None, min_len: 1 };

/// Cuts text into its bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByteTokenizer;

impl Tokenizer for ByteTokenizer {
    fn tokenize(&self, prompt: &str, options: PromptOptions<'_>, least: usize) -> Tokens {
        let frame = Frame { min_len: least.max(1), ..FRAME };
        read_prompt(prompt, options, frame, |text| text.bytes().map(|b| FIRST_BYTE + u32::from(b)).collect())
    }
}
