//! What a network is to do at once, and the rehearsal of it: the same calls with empty values, on a null device, which
//! tell how much memory and time the real ones will take.

use models::conditioning::{Array, Cond, CondShape, Conditioned, Scene};
use models::control::{ControlNetwork, Controlled};
use models::diffusion::{Alteration, Diffusion, Evaluation, model_patches};
use models::rehearsal::{arrived, read_back};
use models::text::{EncodeOptions, PromptOptions, Symbol, TextModel, Token, Tokens};
use models::vae::CodedSize;
use residency::Session;
use sampling::LatentShape;

use crate::Network;
use crate::Result;

/// Tokens of text that an encoder fills up a prompt to, as most workflows have it.
const USUAL_TEXT_TOKENS: usize = 256;

/// What a network is to do at once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Work {
    /// One step of a diffusion model.
    Step(StepShape),
    /// The encoding of a prompt in so many chunks of so many tokens.
    Text {
        /// Chunks, with an empty one behind them where tokens are weighted.
        chunks: usize,
        /// Tokens of each.
        tokens: usize,
    },
    /// The decoding of one picture or video; sizes in latent values.
    Decode(CodedSize),
    /// The encoding of one picture or video; sizes in latent values.
    Encode(CodedSize),
    /// A look at one picture.
    Look,
    /// A sound listened to.
    Listen,
    /// What a control network does in one step of the model that it controls.
    Control(StepShape),
    /// What a model patch does in one step of the model that it changes.
    Patch(StepShape),
    /// The enlarging of one picture in tiles; sizes in pixels of what goes in.
    Upscale(CodedSize),
    /// The enlarging of one latent; sizes in its values.
    Enlarge(CodedSize),
}

/// The evaluations of one step of a diffusion model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StepShape {
    /// Items at once.
    pub batch: usize,
    /// Frames of each; one for pictures.
    pub frames: usize,
    /// One for each conditioning.
    pub evaluations: Vec<EvaluationShape>,
}

/// One evaluation of a diffusion model.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EvaluationShape {
    /// Rows of the latent.
    pub height: usize,
    /// Columns of the latent.
    pub width: usize,
    /// What it is conditioned on.
    pub cond: CondShape,
    /// How it departs from the model as it was trained.
    pub altered: Vec<Alteration>,
}

impl Work {
    /// The encoding of a prompt. An empty chunk goes along where tokens are weighted.
    pub fn text(tokens: &Tokens) -> Work {
        Work::Text {
            chunks: tokens.chunks.len() + usize::from(tokens.is_weighted()),
            tokens: tokens.chunks.iter().map(Vec::len).max().unwrap_or(0),
        }
    }

    /// Whether it is done many times in a row, as steps are.
    pub(crate) fn repeats(&self) -> bool {
        matches!(self, Work::Step(_) | Work::Control(_) | Work::Patch(_))
    }

    /// The enlarging of one picture of so many pixels.
    #[must_use]
    pub fn upscale(height: usize, width: usize) -> Work {
        let tile = Some(models::upscale::USUAL_TILES.tile);
        Work::Upscale(CodedSize { tile, ..CodedSize::whole(height, width) })
    }

    /// A step over one picture.
    #[must_use]
    pub fn step(batch: usize, frames: usize, evaluations: Vec<EvaluationShape>) -> Work {
        Work::Step(StepShape { batch, frames, evaluations })
    }

    /// The same in tiles, for work that can be done so where a whole picture has no room; none if it cannot, or not in
    /// smaller ones.
    #[must_use]
    pub fn in_tiles(&self, tile: usize) -> Option<Work> {
        match *self {
            Work::Decode(size) => size.in_tiles(tile).map(Work::Decode),
            Work::Encode(size) => size.in_tiles(tile).map(Work::Encode),
            Work::Upscale(size) => size.in_tiles(tile).map(Work::Upscale),
            _ => None,
        }
    }

    /// The sides of the tiles that are tried where it has no room, the largest first.
    pub(crate) fn smaller_tiles(&self) -> &'static [usize] {
        match self {
            Work::Decode(_) | Work::Encode(_) => &[64, 32, 16],
            Work::Upscale(_) => &[256, 128],
            _ => &[],
        }
    }

    /// The side of the tiles that it is done in, if it is.
    pub fn tile(&self) -> Option<usize> {
        match self {
            Work::Decode(size) | Work::Encode(size) | Work::Upscale(size) => size.tile,
            _ => None,
        }
    }

    /// A short name, by which times are remembered.
    pub fn name(&self) -> String {
        match self {
            Work::Step(step) | Work::Control(step) | Work::Patch(step) => {
                let shapes = step.evaluations.iter().map(|shape| {
                    let EvaluationShape { height, width, cond, altered } = shape;
                    let altered = if altered.is_empty() { "" } else { "*" };
                    format!("{height}x{width}+{}{}{altered}", cond.tokens, beside_text(cond))
                });
                let frames = if step.frames > 1 { format!("x{}", step.frames) } else { String::new() };
                let what = match self {
                    Work::Control(_) => "control",
                    Work::Patch(_) => "patch",
                    _ => "step",
                };
                format!("{what} {}{frames}x[{}]", step.batch, shapes.collect::<Vec<_>>().join(", "))
            }
            Work::Text { chunks, tokens } => format!("text {chunks}x{tokens}"),
            Work::Decode(size) => coded("decode", size),
            Work::Encode(size) => coded("encode", size),
            Work::Look => "look".to_owned(),
            Work::Listen => "listen".to_owned(),
            Work::Enlarge(size) => coded("enlarge", size),
            Work::Upscale(size) => {
                let (height, width) = size.at_once();
                format!("upscale {height}x{width}")
            }
        }
    }
}

/// What a conditioning has beside its text, in short.
fn beside_text(cond: &CondShape) -> String {
    let CondShape {
        tokens: _,
        references,
        vision,
        in_front,
        heard,
        behind,
        poses,
        faces,
        before,
        controls,
        camera,
    } = cond;
    let mut all: Vec<String> =
        references.iter().map(|[height, width]| format!("+{height}x{width}")).collect();
    let video =
        |what: &str, [frames, height, width]: &[usize; 3]| format!("+{what}{frames}x{height}x{width}");
    all.extend((*vision > 0).then(|| format!("+v{vision}")));
    all.extend((*in_front > 0).then(|| format!("+s{in_front}")));
    all.extend((*heard > 0).then(|| format!("+a{heard}")));
    all.extend(behind.iter().map(|size| video("b", size)));
    all.extend(poses.iter().map(|size| video("p", size)));
    all.extend(faces.iter().map(|size| video("f", size)));
    all.extend(before.iter().map(|size| video("e", size)));
    all.extend(controls.iter().map(|size| video("c", size)));
    all.extend(camera.iter().map(|size| video("m", size)));
    all.concat()
}

/// The name of an autoencoder's work.
fn coded(what: &str, CodedSize { height, width, frames, tile }: &CodedSize) -> String {
    let frames = if *frames > 1 { format!("x{frames}") } else { String::new() };
    let tile = tile.map(|tile| format!("/{tile}")).unwrap_or_default();
    format!("{what} {height}x{width}{frames}{tile}")
}

impl Network {
    /// The work that is usual for the network with a latent of this size, where no node has said more.
    pub fn usual_work(&self, size: PictureSize) -> Work {
        let PictureSize { batch, frames, height, width, evaluations, text } = size;
        let prompt = text.unwrap_or(USUAL_TEXT_TOKENS);
        let step = || {
            let cond = CondShape { tokens: prompt, ..CondShape::default() };
            let shape = EvaluationShape { height, width, cond, altered: Vec::new() };
            StepShape { batch, frames, evaluations: vec![shape; evaluations.max(1)] }
        };
        match self {
            Network::Diffusion(..) => Work::Step(step()),
            Network::Control(_) => Work::Control(step()),
            Network::ModelPatch(_) => Work::Patch(step()),
            Network::Text(text) => {
                let tokens = text.encoder.chunk_tokens().unwrap_or(prompt);
                Work::Text { chunks: 1, tokens }
            }
            Network::Autoencoder(autoencoder) => Work::Decode(match autoencoder.frames_per_value() {
                Some(_) => CodedSize::video(frames, height, width),
                None => CodedSize::whole(height, width),
            }),
            Network::Vision(_) => Work::Look,
            Network::Audio(_) => Work::Listen,
            Network::LatentUpscale(_) => Work::Enlarge(CodedSize::video(frames, height, width)),
            Network::Upscale(_) => {
                let pixels = self.pixels_per_value();
                Work::upscale(height.saturating_mul(pixels), width.saturating_mul(pixels))
            }
        }
    }

    /// Does the work with empty values. Gives the bytes that it goes on holding between its steps, while others work.
    pub(crate) fn rehearse(&self, session: &Session, work: &Work) -> Result<u64> {
        if let (Network::Control(control), Work::Control(step)) = (self, work) {
            return rehearse_control(&**control, session, step);
        }
        if let (Network::ModelPatch(patch), Work::Patch(step)) = (self, work) {
            let sizes = step.evaluations.iter().map(|shape| [shape.height, shape.width]);
            let mut sizes: Vec<[usize; 2]> = sizes.collect();
            // Evaluations of one size run as one batch, as far as their number lets them.
            let items = step.batch * sizes.len().max(1);
            sizes.dedup();
            let batch = if sizes.len() == 1 { items } else { step.batch };
            return Ok(model_patches::rehearse(&**patch, session, batch, &sizes)?);
        }
        self.rehearse_alone(session, work).map(|()| 0)
    }

    fn rehearse_alone(&self, session: &Session, work: &Work) -> Result<()> {
        match (self, work) {
            (Network::Diffusion(model, _), Work::Step(step)) => rehearse_step(&**model, session, step),
            (Network::Text(text), Work::Text { chunks, tokens }) => {
                rehearse_text(text, session, *chunks, *tokens)
            }
            (Network::Autoencoder(autoencoder), Work::Decode(size)) => {
                Ok(autoencoder.rehearse_decoding(session, *size)?)
            }
            (Network::Autoencoder(autoencoder), Work::Encode(size)) => {
                Ok(autoencoder.rehearse_encoding(session, *size)?)
            }
            (Network::Vision(vision), Work::Look) => Ok(vision.rehearse(session)?),
            (Network::Audio(audio), Work::Listen) => Ok(audio.rehearse(session)?),
            (Network::Upscale(upscaler), Work::Upscale(size)) => {
                Ok(models::upscale::rehearse(&**upscaler, session, size.at_once())?)
            }
            (Network::LatentUpscale(upscaler), Work::Enlarge(size)) => {
                Ok(models::latent_upscale::rehearse(&**upscaler, session, *size)?)
            }
            (network, work) => {
                Err(crate::Error::Told(format!("{} is no work for {}", work.name(), network.kind())))
            }
        }
    }
}

/// A picture, as latents count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PictureSize {
    /// Pictures at once.
    pub batch: usize,
    /// Frames of a latent; one for a picture.
    pub frames: usize,
    /// Rows of a latent.
    pub height: usize,
    /// Columns of a latent.
    pub width: usize,
    /// Conditionings of a step: two with guidance.
    pub evaluations: usize,
    /// Tokens of text; as many as are usual without it.
    pub text: Option<usize>,
}

/// A run of one step: what it prepares stays until its end, as it does in a real one.
fn rehearse_step(model: &dyn Diffusion, session: &Session, step: &StepShape) -> Result<()> {
    let (lane, spec) = (session.lane()?, model.latent());
    let conds: Vec<Cond> = step.evaluations.iter().map(|shape| model.blank(&shape.cond)).collect();
    let largest = |side: fn(&EvaluationShape) -> usize| step.evaluations.iter().map(side).max().unwrap_or(1);
    let shape = LatentShape {
        batch: step.batch,
        channels: spec.channels,
        frames: step.frames,
        height: largest(|shape| shape.height),
        width: largest(|shape| shape.width),
    };
    let conditioned: Vec<Conditioned<'_>> = step
        .evaluations
        .iter()
        .zip(&conds)
        .map(|(part, cond)| Conditioned {
            window: Some([part.height, part.width, 0, 0]),
            ..Conditioned::whole(cond)
        })
        .collect();
    let run = model.start(session, &conditioned, &Scene::empty(shape))?;
    let mut latents = Vec::with_capacity(step.evaluations.len());
    for EvaluationShape { height, width, .. } in &step.evaluations {
        latents.push(match spec.frames_per_value {
            None => arrived(lane, [step.batch, spec.channels, *height, *width])?,
            Some(_) => arrived(lane, [step.batch, spec.channels, step.frames, *height, *width])?,
        });
    }
    let evaluations: Vec<Evaluation<'_>> = latents
        .iter()
        .zip(&step.evaluations)
        .enumerate()
        .map(|(cond, (latent, shape))| Evaluation {
            altered: &shape.altered,
            ..Evaluation::new(cond, latent, 1.0)
        })
        .collect();
    run.forward(&evaluations)?.iter().try_for_each(|output| Ok(read_back(output)?))
}

/// The same for a control network. What it gave stays until the model that it controls has used it.
fn rehearse_control(control: &dyn ControlNetwork, session: &Session, step: &StepShape) -> Result<u64> {
    let lane = session.lane()?;
    let used = || lane.device().ledger().report().used;
    let before = used();
    let conds: Vec<Cond> = step.evaluations.iter().map(|shape| control.blank(&shape.cond)).collect();
    let hint = |shape: &EvaluationShape| {
        let [channels, height, width] = control.hint().shape(shape.height, shape.width);
        Array::zeros(&[step.batch, channels, height, width])
    };
    let hints: Vec<Array> = step.evaluations.iter().map(hint).collect();
    let controlled = conds.iter().zip(&hints);
    let controlled: Vec<Controlled<'_>> =
        controlled.map(|(cond, hint)| Controlled { cond, hint, picture_kind: None }).collect();
    let channels = control.latent_channels();
    let (height, width) = step.evaluations.first().map_or((1, 1), |shape| (shape.height, shape.width));
    let shape = LatentShape { batch: step.batch, channels, frames: step.frames, height, width };
    let run = control.start(session, &controlled, &Scene::empty(shape))?;
    let mut latents = Vec::with_capacity(step.evaluations.len());
    for EvaluationShape { height, width, .. } in &step.evaluations {
        latents.push(match control.has_frames() {
            false => arrived(lane, [step.batch, channels, *height, *width])?,
            true => arrived(lane, [step.batch, channels, step.frames, *height, *width])?,
        });
    }
    let evaluation = |(cond, latent)| Evaluation::new(cond, latent, 1.0);
    let evaluations: Vec<Evaluation<'_>> = latents.iter().enumerate().map(evaluation).collect();
    // As at a strength that is not one.
    let given = run.forward(&evaluations)?;
    let given = given.iter().map(|given| given.scaled(0.5)).collect::<Result<Vec<_>, _>>()?;
    drop(latents);
    let held = used().saturating_sub(before);
    drop(given);
    Ok(held)
}

fn rehearse_text(text: &TextModel, session: &Session, chunks: usize, tokens: usize) -> Result<()> {
    let frame = text.tokenizer.tokenize("", PromptOptions::default(), 0).frame;
    let chunk = vec![Token { symbol: Symbol::Id(frame.pad), weight: 1.0 }; tokens.max(1)];
    let tokens = Tokens { chunks: vec![chunk; chunks.max(1)], missing: Vec::new(), frame };
    let encoded = text.encoder.encode(session, &tokens, EncodeOptions::default())?;
    Ok(read_back(&encoded.cond)?)
}
