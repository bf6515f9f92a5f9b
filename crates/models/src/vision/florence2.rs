//! Florence-2: a picture and a task in, words and places out. A vision encoder (DaViT: windows and channels in turn)
//! gives tokens, which an encoder and a decoder of the BART kind turn into text; places are words of the text, too.
//!
//! ```text
//! pixels ── look ──> features ── read_prompt ──> encoded ── generate ──> ids ── Tokenizer ──> text ── Task::answer
//! ```
//!
//! The model's own names of tensors are those of the transformers library
//! (`vision_tower.blocks.0.0.spatial_block.window_attn.qkv`); those of the first publication are read, too.

mod answer;
mod bart;
mod config;
mod davit;
mod decoder;
mod search;
mod settings;
mod task;
mod tokenizer;
mod weights;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::Tensor;

use crate::claims::Claims;
use crate::detect::{Detected, Family, Layout, Part, Role};
use crate::{Error, Result};

pub use answer::{Answer, Labelled};
pub use config::{Florence2Config, Stack, Stage};
pub use decoder::Decoder;
pub use search::Generation;
pub use settings::{Rules, Settings};
pub use task::Task;
pub use tokenizer::Florence2Tokenizer;

/// Below every square root of a variance.
const NORM_EPS: f32 = 1e-5;

/// A Florence-2 model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Florence2 {
    config: Florence2Config,
    layout: Layout,
    prefix: String,
}

impl Florence2 {
    /// Reads the model's sizes from a file and from what was written beside it.
    pub fn read(checkpoint: &Checkpoint, detected: &Detected, settings: &Settings) -> Result<Florence2> {
        let part = Florence2::part(detected)?;
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let config = config::read(&claims, part.layout, settings)?;
        Ok(Florence2 { config, layout: part.layout, prefix: part.prefix.clone() })
    }

    /// The part of a file that is such a model, or an error that says what the file is instead.
    pub fn part(detected: &Detected) -> Result<&Part> {
        let mut parts = detected.parts_for(Role::Vision);
        let found = parts.find(|part| matches!(part.family, Family::Florence2 { .. }));
        found.ok_or_else(|| detected.wrong_kind("a Florence-2 model"))
    }

    /// The model's sizes.
    pub fn config(&self) -> &Florence2Config {
        &self.config
    }

    /// What the model needs of the file it was read from.
    pub fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.layout)
    }

    /// The element types that its activations may have, the preferred one first.
    /// Its files are in f16.
    pub fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }

    /// Tokens that stand for a picture, `[1, tokens, width]`, of normalised pixels `[1, 3, height, width]`.
    pub fn look(&self, session: &Session, pixels: &Tensor) -> Result<Tensor> {
        let [1, 3, _, _] = *pixels.dims() else {
            return Err(Error::Input {
                what: "the picture",
                expected: "[1, 3, height, width]".into(),
                got: pixels.shape().to_string(),
            });
        };
        let mut block = 0;
        let mut x = pixels.clone();
        for (number, stage) in self.config.stages.iter().enumerate() {
            x = davit::enter(&session.lease(block)?, number, stage, &x)?;
            block += 1;
            for layer in 0..stage.depth {
                let window = self.config.window;
                x = davit::layer(&session.lease(block)?, (number, layer), stage, window, &x)?;
                block += 1;
            }
        }
        davit::project(&session.lease(block)?, &self.config, &x)
    }

    /// What the encoder makes of a picture's tokens and a prompt, `[1, tokens, width]`.
    pub fn read_prompt(&self, session: &Session, features: &Tensor, ids: &[u32]) -> Result<Tensor> {
        bart::encode(self, session, features, ids)
    }

    /// Writes an answer: the ids of its tokens, with those that begin and end it.
    pub fn generate(&self, session: &Session, encoded: &Tensor, how: &Generation) -> Result<Vec<u32>> {
        let beams = how.beams.max(1);
        search::run(&mut Decoder::new(self, session, encoded, beams)?, how, self.config.decoder.positions)
    }

    /// The number of the block that has the table of words.
    fn words_block(&self) -> usize {
        self.config.stages.iter().map(|stage| 1 + stage.depth).sum::<usize>() + 1
    }

    /// The number of the first block of the decoder.
    fn decoder_block(&self) -> usize {
        self.words_block() + 1 + self.config.encoder.layers
    }
}

/// Mean 0 and variance 1 over the last dimension, with the weights of a module.
fn norm(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.weight(&format!("{name}.bias"))?;
    Ok(x.layer_norm(Some(&weight), Some(&bias), NORM_EPS)?)
}
