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

use std::any::Any;
use std::borrow::Cow;

use checkpoint::Checkpoint;
use meta::DType;
use residency::{Lease, Manifest, Session};
use tensor::Tensor;

use super::{VisionFamily, VisionModel};
use crate::claims::Claims;
use crate::detect::{Detected, Layout, Neighbours, Part, Reader, Role, Sign};
use crate::rehearsal::arrived;
use crate::{Error, Module, Result};

pub use answer::{Answer, Labelled};
pub use config::{Florence2Config, Stack, Stage};
pub use decoder::Decoder;
pub use search::Generation;
pub use settings::{Rules, Settings};
pub use task::Task;
pub use tokenizer::Florence2Tokenizer;

/// Below every square root of a variance.
const NORM_EPS: f32 = 1e-5;

/// The family.
pub const FAMILY: VisionFamily = VisionFamily {
    name: "Florence-2",
    signs: &[
        Sign::native("vision_tower.convs.0.proj.weight", |found| {
            let [_, width] = *found.dims("image_projection")? else { return None };
            Some(named(width))
        }),
        Sign {
            tensor: "vision_tower.convs.0.conv.weight",
            layout: Layout::Transformers,
            name: named_by_transformers,
        },
    ],
    read: |checkpoint, part| Ok(Box::new(Captioner::read(checkpoint, part)?)),
};

fn named_by_transformers(found: &Neighbours<'_>) -> Option<Cow<'static, str>> {
    let [width, _] = *found.dims("multi_modal_projector.image_projection.weight")? else { return None };
    Some(named(width))
}

/// The name of a model by the width of its language model.
fn named(width: usize) -> Cow<'static, str> {
    match width {
        768 => Cow::Borrowed("Florence-2 base"),
        1024 => Cow::Borrowed("Florence-2 large"),
        width => Cow::Owned(format!("Florence-2 of width {width}")),
    }
}

/// A model with what else it needs to write.
#[derive(Clone, Debug)]
pub struct Captioner {
    /// The model.
    pub model: Florence2,
    /// Its words.
    pub tokenizer: Florence2Tokenizer,
    /// How answers are written.
    pub rules: Rules,
}

impl Captioner {
    /// Reads a part of a file, and what lies beside the file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Captioner> {
        let settings = Settings::beside(checkpoint)?;
        let model = Florence2::of_part(checkpoint, part, &settings)?;
        let tokenizer = Florence2Tokenizer::beside(checkpoint)?;
        Ok(Captioner { model, tokenizer, rules: settings.rules })
    }
}

impl Module for Captioner {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        self.model.manifest(checkpoint)
    }

    fn activations(&self) -> &'static [DType] {
        self.model.activations()
    }
}

impl VisionModel for Captioner {
    fn rehearse(&self, session: &Session) -> Result<()> {
        let (model, side) = (&self.model, self.model.config().side);
        let features = model.look(session, &arrived(session.lane()?, [1, 3, side, side])?)?;
        let encoded = model.read_prompt(session, &features, &self.tokenizer.prompt("<CAPTION>"))?;
        // A few tokens show what one takes; their number changes little.
        let how = Generation { rules: self.rules.clone(), beams: 3, max_new_tokens: 4, seed: None };
        model.generate(session, &encoded, &how)?;
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

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
        Florence2::of_part(checkpoint, Florence2::part(detected)?, settings)
    }

    fn of_part(checkpoint: &Checkpoint, part: &Part, settings: &Settings) -> Result<Florence2> {
        let claims = Claims::new(checkpoint, &part.prefix, weights::FAMILY);
        let config = config::read(&claims, part.layout, settings)?;
        Ok(Florence2 { config, layout: part.layout, prefix: part.prefix.clone() })
    }

    /// The part of a file that is such a model, or an error that says what the file is instead.
    pub fn part(detected: &Detected) -> Result<&Part> {
        let mut parts = detected.parts_for(Role::Vision);
        let found = parts.find(|part| part.reader == Some(Reader::Vision(&FAMILY)));
        found.ok_or_else(|| detected.wrong_kind("a Florence-2 model"))
    }

    /// The model's sizes.
    pub fn config(&self) -> &Florence2Config {
        &self.config
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

impl Module for Florence2 {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        let claims = Claims::new(checkpoint, &self.prefix, weights::FAMILY);
        weights::manifest(&claims, &self.config, self.layout)
    }

    /// Its files are in f16.
    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

/// Mean 0 and variance 1 over the last dimension, with the weights of a module.
fn norm(lease: &Lease<'_>, name: &str, x: &Tensor) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let bias = lease.weight(&format!("{name}.bias"))?;
    Ok(x.layer_norm(Some(&weight), Some(&bias), NORM_EPS)?)
}
