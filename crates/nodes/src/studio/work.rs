//! What a network is to do at once, and the rehearsal of it: the same calls with empty values, on a null device, which
//! tell how much memory and time the real ones will take.

use models::Probe;
use models::diffusion::flux::{Flux, FluxInputs};
use models::text::{EncodeOptions, Symbol, TextEncoder, TextTokenizer, Token, Tokens};
use models::vae::kl::Kl;
use models::vision::florence2::Generation;
use residency::Session;
use tensor::{Lane, Tensor};

use super::{Captioner, Network};
use crate::Result;

/// Tokens of text that an encoder fills up a prompt to, as most workflows have it.
pub(crate) const USUAL_TEXT_TOKENS: usize = 256;
/// The length of CLIP's chunks.
const CLIP_TOKENS: usize = 77;

/// What a network is to do at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// One step of a diffusion model.
    Step(StepShape),
    /// The encoding of a prompt in so many chunks of so many tokens.
    Text {
        /// Chunks, with an empty one behind them where tokens are weighted.
        chunks: usize,
        /// Tokens of each.
        tokens: usize,
    },
    /// The decoding of one picture; sizes in latent values.
    Decode(CodedSize),
    /// The encoding of one picture; sizes in latent values.
    Encode(CodedSize),
    /// The description of one picture.
    Caption,
}

/// A picture that an autoencoder works on, as latents count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CodedSize {
    /// Rows of the latent.
    pub(crate) height: usize,
    /// Columns of the latent.
    pub(crate) width: usize,
    /// The side of the tiles that it is made in, unless it is made as a whole.
    pub(crate) tile: Option<usize>,
}

impl CodedSize {
    /// A picture that is made as a whole.
    pub(crate) fn whole(height: usize, width: usize) -> CodedSize {
        CodedSize { height, width, tile: None }
    }

    /// The rows and columns that are computed at once.
    fn at_once(self) -> (usize, usize) {
        let most = self.tile.unwrap_or(usize::MAX);
        (self.height.min(most), self.width.min(most))
    }

    /// The same in tiles, if it is larger than one and not in smaller ones already.
    fn in_tiles(self, tile: usize) -> Option<CodedSize> {
        let (height, width) = self.at_once();
        (height > tile || width > tile).then_some(CodedSize { tile: Some(tile), ..self })
    }
}

/// The evaluations of one step of a diffusion model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StepShape {
    /// Pictures at once.
    pub batch: usize,
    /// One for each conditioning.
    pub evaluations: Vec<EvaluationShape>,
}

/// One evaluation of a diffusion model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct EvaluationShape {
    /// Rows of the latent.
    pub height: usize,
    /// Columns of the latent.
    pub width: usize,
    /// Tokens of text.
    pub text: usize,
    /// Height and width of each reference latent.
    pub references: Vec<[usize; 2]>,
}

impl Work {
    /// The encoding of a prompt. An empty chunk goes along where tokens are weighted.
    pub(crate) fn text(tokens: &Tokens) -> Work {
        Work::Text {
            chunks: tokens.chunks.len() + usize::from(tokens.is_weighted()),
            tokens: tokens.chunks.iter().map(Vec::len).max().unwrap_or(0),
        }
    }

    /// A step over one picture.
    #[must_use]
    pub(crate) fn step(batch: usize, evaluations: Vec<EvaluationShape>) -> Work {
        Work::Step(StepShape { batch, evaluations })
    }

    /// The same in tiles, for work that can be done so where a whole picture has no room; none if it cannot, or not in
    /// smaller ones.
    #[must_use]
    pub(crate) fn in_tiles(&self, tile: usize) -> Option<Work> {
        match *self {
            Work::Decode(size) => size.in_tiles(tile).map(Work::Decode),
            Work::Encode(size) => size.in_tiles(tile).map(Work::Encode),
            _ => None,
        }
    }

    /// The side of the tiles that it is done in, if it is.
    pub(crate) fn tile(&self) -> Option<usize> {
        match self {
            Work::Decode(size) | Work::Encode(size) => size.tile,
            _ => None,
        }
    }

    /// A short name, by which times are remembered.
    pub(crate) fn name(&self) -> String {
        match self {
            Work::Step(step) => {
                let shapes = step.evaluations.iter().map(|shape| {
                    let EvaluationShape { height, width, text, references } = shape;
                    let references = references.iter().map(|[height, width]| format!("+{height}x{width}"));
                    format!("{height}x{width}+{text}{}", references.collect::<String>())
                });
                format!("step {}x[{}]", step.batch, shapes.collect::<Vec<_>>().join(", "))
            }
            Work::Text { chunks, tokens } => format!("text {chunks}x{tokens}"),
            Work::Decode(CodedSize { height, width, tile: None }) => format!("decode {height}x{width}"),
            Work::Encode(CodedSize { height, width, tile: None }) => format!("encode {height}x{width}"),
            Work::Decode(CodedSize { height, width, tile: Some(tile) }) => {
                format!("decode {height}x{width}/{tile}")
            }
            Work::Encode(CodedSize { height, width, tile: Some(tile) }) => {
                format!("encode {height}x{width}/{tile}")
            }
            Work::Caption => "caption".to_owned(),
        }
    }
}

impl Network {
    /// The work that is usual for the network with a latent of this size, where no node has said more.
    pub(crate) fn usual_work(&self, size: PictureSize) -> Work {
        let PictureSize { batch, height, width, evaluations, text } = size;
        let prompt = text.unwrap_or(USUAL_TEXT_TOKENS);
        match self {
            Network::Flux(..) => {
                let shape = EvaluationShape { height, width, text: prompt, references: Vec::new() };
                Work::step(batch, vec![shape; evaluations.max(1)])
            }
            Network::Text(text) => {
                let tokens = match &text.0 {
                    TextEncoder::Clip(_) => CLIP_TOKENS,
                    TextEncoder::T5(_) => prompt,
                };
                Work::Text { chunks: 1, tokens }
            }
            Network::Kl(_) => Work::Decode(CodedSize::whole(height, width)),
            Network::Florence2(_) => Work::Caption,
        }
    }

    /// Does the work with empty values.
    pub(super) fn rehearse(&self, session: &Session, work: &Work) -> Result<()> {
        match (self, work) {
            (Network::Flux(flux, _), Work::Step(step)) => rehearse_step(flux, session, step),
            (Network::Text(text), Work::Text { chunks, tokens }) => {
                rehearse_text(text, session, *chunks, *tokens)
            }
            (Network::Kl(kl), Work::Decode(size)) => rehearse_decode(kl, session, *size),
            (Network::Kl(kl), Work::Encode(size)) => rehearse_encode(kl, session, *size),
            (Network::Florence2(captioner), Work::Caption) => rehearse_caption(captioner, session),
            (network, work) => {
                Err(crate::Error::Told(format!("{} is no work for {}", work.name(), network.kind())))
            }
        }
    }
}

/// A picture, as latents count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PictureSize {
    /// Pictures at once.
    pub batch: usize,
    /// Rows of a latent.
    pub height: usize,
    /// Columns of a latent.
    pub width: usize,
    /// Conditionings of a step: two with guidance.
    pub evaluations: usize,
    /// Tokens of text; as many as are usual without it.
    pub text: Option<usize>,
}

fn rehearse_step(flux: &Flux, session: &Session, step: &StepShape) -> Result<()> {
    let (lane, config, batch) = (session.lane()?, flux.config(), step.batch);
    let beside = config.in_channels.saturating_sub(config.out_channels);
    let mut values = Vec::new();
    for shape in &step.evaluations {
        let EvaluationShape { height, width, text, references } = shape;
        let (height, width, text) = (*height, *width, *text);
        let reference = |[height, width]: &[usize; 2]| zeros(lane, [1, config.in_channels, *height, *width]);
        values.push((
            zeros(lane, [batch, config.in_channels - beside, height, width])?,
            (beside > 0).then(|| zeros(lane, [batch, beside, height, width])).transpose()?,
            zeros(lane, [1, text.max(1), config.context_width])?,
            zeros(lane, [1, config.pooled_width])?,
            references.iter().map(reference).collect::<Result<Vec<_>>>()?,
        ));
    }
    let inputs: Vec<FluxInputs<'_>> = values
        .iter()
        .map(|(latent, concat, context, pooled, references)| FluxInputs {
            concat: concat.as_ref(),
            guidance: config.guidance.then_some(1.0),
            references,
            ..FluxInputs::new(latent, 1.0, context, pooled)
        })
        .collect();
    flux.forward_all(session, &inputs)?.iter().try_for_each(as_floats)
}

fn rehearse_decode(kl: &Kl, session: &Session, size: CodedSize) -> Result<()> {
    let (lane, config) = (session.lane()?, kl.config());
    let latent = zeros(lane, [1, config.latent_channels, size.height, size.width])?;
    let (height, width) = size.at_once();
    let part = latent.slice(2, 0, height)?.slice(3, 0, width)?.contiguous()?;
    as_floats(&kl.decode_whole(session, &part, &mut Probe::none())?)?;
    drop(part);
    if size.tile.is_some() {
        // The picture is put together on the host, and comes back as a whole.
        let factor = config.factor();
        let raw = zeros(lane, [1, config.out_channels, size.height * factor, size.width * factor])?;
        as_floats(&Kl::image_of(&raw)?)?;
    }
    Ok(())
}

fn rehearse_encode(kl: &Kl, session: &Session, size: CodedSize) -> Result<()> {
    let (lane, config) = (session.lane()?, kl.config());
    let pixels = |height: usize, width: usize| {
        zeros(lane, [1, height * config.factor(), width * config.factor(), config.in_channels])
    };
    // A picture is on the device as a whole before its tiles are encoded.
    let whole = if size.tile.is_some() { Some(pixels(size.height, size.width)?) } else { None };
    let (height, width) = size.at_once();
    as_floats(&kl.encode_whole(session, &pixels(height, width)?)?)?;
    drop(whole);
    Ok(())
}

fn rehearse_text(
    text: &(TextEncoder, TextTokenizer),
    session: &Session,
    chunks: usize,
    tokens: usize,
) -> Result<()> {
    let (encoder, tokenizer) = text;
    let frame = tokenizer.tokenize("", models::text::PromptOptions::default()).frame;
    let chunk = vec![Token { symbol: Symbol::Id(frame.pad), weight: 1.0 }; tokens.max(1)];
    let tokens = Tokens { chunks: vec![chunk; chunks.max(1)], missing: Vec::new(), frame };
    let encoded = encoder.encode(session, &tokens, EncodeOptions::default())?;
    as_floats(&encoded.cond)
}

fn rehearse_caption(captioner: &Captioner, session: &Session) -> Result<()> {
    let (model, side) = (&captioner.model, captioner.model.config().side);
    let features = model.look(session, &zeros(session.lane()?, [1, 3, side, side])?)?;
    let encoded = model.read_prompt(session, &features, &captioner.tokenizer.prompt("<CAPTION>"))?;
    // A few tokens show what one takes; their number changes little.
    let how = Generation { rules: captioner.rules.clone(), beams: 3, max_new_tokens: 4, seed: None };
    model.generate(session, &encoded, &how)?;
    Ok(())
}

/// Values as they arrive from the host: in 32 bits, then in the lane's type.
fn zeros<const N: usize>(lane: &Lane, shape: [usize; N]) -> Result<Tensor> {
    Ok(lane.empty_as(meta::DType::F32, shape)?.cast(lane.dtype())?)
}

/// What is read back is turned into 32 bits on the device first.
fn as_floats(values: &Tensor) -> Result<()> {
    values.cast(meta::DType::F32)?.contiguous()?;
    Ok(())
}
