//! Wan 2.1 and 2.2: a transformer over the tokens of a video, each block of which attends to the video, then to the text
//! and to features of pictures. Variants take further channels beside the latent, pictures in front of or behind the video,
//! a camera's way, videos that steer it through blocks beside the others (VACE), or one time for each frame. Formulas and
//! names are those of the authors' code (Wan-Video/Wan2.1, `wan/modules/model.py`, and ali-vilab/VACE).

mod blocks;
mod conditioning;
mod config;
mod downloads;
mod face;
mod family;
mod prepared;
mod run;
mod speech;
pub(crate) mod text;
mod weights;

use std::sync::{Arc, Mutex, PoisonError};

use checkpoint::Checkpoint;
use meta::{DType, Shape};
use residency::{Lease, Manifest, Session};
use tensor::{Activation, Lane, Tensor};

use super::Placed;
use super::batches::{Batch, FEW_ROWS, Together, in_order, together};
use super::modulation::TIME_VALUES;
use super::rotary::{Places, VideoPositions, counted};
use super::timed_change::Change;
use super::video::{VideoGrid, patchify_video};
use crate::claims::Claims;
use crate::detect::Part;
use crate::{Error, Module, Probe, Result};
use blocks::{Entered, State};
use prepared::Prepared;

pub use config::Config;
pub use face::Face;
pub use family::FAMILY;
pub use prepared::{SteeringVideo, WanInputs};
pub use speech::Speech;

/// The slowest waves of positions turn once in about so many.
const THETA: f64 = 10_000.0;

/// A Wan model: its sizes and how it computes. Its weights come with a session.
#[derive(Clone, Debug)]
pub struct Wan {
    config: Config,
    prefix: String,
}

/// The positions of tokens, for all that have run.
#[derive(Default)]
struct KnownPositions(Mutex<Vec<Arc<VideoPositions>>>);

impl KnownPositions {
    fn of(&self, config: &Config, places: Vec<Places>) -> Arc<VideoPositions> {
        // Positions are put in whole, so what another thread left is good.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(positions) = known.iter().find(|positions| positions.are_of(&places)) {
            return Arc::clone(positions);
        }
        let positions = Arc::new(VideoPositions::new(places, config.axes(), THETA));
        known.push(Arc::clone(&positions));
        positions
    }
}

/// One evaluation of a step.
#[derive(Clone, Copy)]
struct Member<'a> {
    latent: &'a Tensor,
    time: f32,
    given: &'a Prepared,
    placed: Placed,
}

/// What decides whether evaluations fit together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Shapes {
    latent: Shape,
    text: usize,
    vision: usize,
    /// Frames that a sound is heard with.
    heard: usize,
    /// Frames that have faces to look at.
    faced: usize,
    /// Frames in front of and behind the video.
    around: [usize; 2],
    /// The same of a model that is told speech: frames of a picture, whether the end of a video, and whether a sound.
    told: Option<(usize, bool, bool)>,
    times: usize,
    controls: usize,
    placed: Placed,
}

impl Shapes {
    fn of(Member { latent, given, placed, .. }: &Member<'_>) -> Shapes {
        Shapes {
            latent: *latent.shape(),
            text: given.text.dim(1),
            vision: given.vision.as_ref().map_or(0, |vision| vision.dim(1)),
            heard: given.audio.as_ref().map_or(0, |(_, frames)| *frames),
            faced: given.faces.as_ref().map_or(0, |(_, frames)| *frames),
            around: [usize::from(given.before.is_some()), given.frames_behind],
            told: given
                .told
                .as_ref()
                .map(|told| (told.picture_frames, told.has_motion, told.sound.is_some())),
            times: given.times.as_ref().map_or(0, Vec::len),
            controls: given.controls.len(),
            placed: *placed,
        }
    }
}

impl Together for Shapes {
    fn most_together(&self) -> usize {
        // Times go through their layers one evaluation after the other.
        let tokens = VideoGrid::sized(&self.latent).tokens().min(self.text);
        let fewest = if self.vision == 0 { tokens } else { tokens.min(self.vision) };
        if self.latent.dims()[0] * fewest <= FEW_ROWS { 1 } else { usize::MAX }
    }
}

impl Wan {
    /// Reads the model's sizes from a part of a file.
    pub fn read(checkpoint: &Checkpoint, part: &Part) -> Result<Wan> {
        let config = Config::read(&Claims::new(checkpoint, &part.prefix, config::FAMILY))?;
        Ok(Wan { config, prefix: part.prefix.clone() })
    }

    /// The model's sizes.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Evaluates the model with a look at what its modules compute: the direction from video to noise.
    pub fn forward_probed(
        &self,
        session: &Session,
        inputs: &WanInputs<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let lease = session.lease(0)?;
        let given = Prepared::new(self, &lease, inputs, probe)?;
        let member =
            Member { latent: inputs.latent, time: inputs.time, given: &given, placed: Placed::COUNTED };
        self.check(&member)?;
        let mut outputs = self.pass(session, lease, &[member], &KnownPositions::default(), probe)?;
        // A pass gives one result for each evaluation.
        Ok(outputs.swap_remove(0))
    }

    /// One pass over the blocks, which begins with a lease of the first; one result for each evaluation, in their order.
    fn pass(
        &self,
        session: &Session,
        first: Lease<'_>,
        evaluations: &[Member<'_>],
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<Vec<Tensor>> {
        let batches = Batch::all_of(evaluations, Shapes::of);
        let mut states: Vec<State> = {
            let lease = first;
            let enter = |batch: &Batch<Shapes, Member<'_>>| self.enter(&lease, batch, positions, probe);
            batches.iter().map(enter).collect::<Result<_>>()?
        };
        let mut place = 1;
        for index in 0..self.config.blocks {
            let lease = session.lease(place)?;
            let through = |state: State| state.block(&self.config, &lease, index, probe);
            states = states.into_iter().map(through).collect::<Result<_>>()?;
            place += 1;
            if let Some(beside) = self.config.control_after(index) {
                let lease = session.lease(place)?;
                let through = |state: State| state.control_block(&self.config, &lease, beside, probe);
                states = states.into_iter().map(through).collect::<Result<_>>()?;
                place += 1;
            }
        }
        let lease = session.lease(place)?;
        let mut outputs = Vec::with_capacity(evaluations.len());
        for (batch, state) in batches.iter().zip(states) {
            let output = self.leave(&lease, &state, &batch.first(), probe)?;
            outputs.extend(batch.apart(&output, batch.first().latent.dim(0))?);
        }
        Ok(in_order(outputs))
    }

    /// From inputs to tokens: the first block of the manifest. What comes in is little beside what follows, so the
    /// evaluations of a batch enter one by one and meet behind.
    fn enter(
        &self,
        lease: &Lease<'_>,
        batch: &Batch<Shapes, Member<'_>>,
        positions: &KnownPositions,
        probe: &mut Probe<'_>,
    ) -> Result<State> {
        let grid = VideoGrid::sized(batch.first().latent.shape());
        let Shapes { around: [before, behind], told, placed, .. } = batch.shapes();
        let places = match told {
            Some((picture_frames, has_motion, _)) => speech::places(&grid, *picture_frames, *has_motion),
            None => vec![counted([before + grid.frames + behind, grid.rows, grid.columns], placed)],
        };
        let positions = positions.of(&self.config, places);
        let entered: Vec<Entered> =
            batch.members().map(|member| self.enter_one(lease, member, probe)).collect::<Result<_>>()?;
        State::new(&entered, positions, grid.tokens())
    }

    fn enter_one(&self, lease: &Lease<'_>, member: &Member<'_>, probe: &mut Probe<'_>) -> Result<Entered> {
        let Member { latent, time, given, .. } = member;
        let items = latent.dim(0);
        let mut latent = lease.bring(latent)?;
        if let Some(concat) = given.concat.as_ref().filter(|_| given.told.is_none()) {
            latent = Tensor::concat(&[&latent, &lease.bring(concat)?], 1)?;
        }
        let mut tokens = lease.linear("patch_embedding", &patchify_video(&latent)?)?;
        let grid = VideoGrid::sized(latent.shape());
        probe.show_step(format_args!("patch_embedding"), || as_volume(&tokens, &grid))?;
        if let Some(camera) = &given.camera {
            tokens = tokens.add(&lease.bring(camera)?)?;
        }
        if let Some(poses) = &given.poses {
            tokens = tokens.add(&lease.bring(poses)?)?;
        }
        if let Some(told) = &given.told {
            tokens = tokens.add(&lease.bring(&told.added)?)?;
        }
        let each = |x: &Tensor| -> Result<Tensor> {
            let x = lease.bring(x)?;
            Ok(x.broadcast([items, x.dim(1), x.dim(2)])?.contiguous()?)
        };
        let before = given.before.as_ref().map(each).transpose()?;
        let told = given.told.as_ref().and_then(|told| told.behind.as_ref());
        let behind = given.behind.as_ref().or(told).map(each).transpose()?;
        let parts: Vec<&Tensor> = before.iter().chain([&tokens]).chain(&behind).collect();
        let tokens = together(&parts, 1)?;
        let (time, change) = self.times(lease, given, *time, (items, tokens.dim(1)), probe)?;
        let control = |(video, strength): &(Tensor, Tensor)| -> Result<[Tensor; 2]> {
            Ok([each(video)?, each(strength)?])
        };
        Ok(Entered {
            text: each(&given.text)?,
            sound: match given.told.as_ref().and_then(|told| told.sound.as_ref()) {
                None => None,
                Some([local, global]) => Some([each(local)?, each(global)?]),
            },
            faces: match &given.faces {
                None => None,
                Some((faces, frames)) => Some((each(faces)?, *frames)),
            },
            vision: given.vision.as_ref().map(each).transpose()?,
            audio: match &given.audio {
                None => None,
                Some((audio, frames)) => Some((each(audio)?, *frames)),
            },
            controls: given.controls.iter().map(control).collect::<Result<_>>()?,
            tokens,
            time,
            change,
        })
    }

    /// A time, or one for each frame, for so many items and tokens: `[items, times, hidden]`, and the modulations of all
    /// blocks.
    fn times(
        &self,
        lease: &Lease<'_>,
        given: &Prepared,
        time: f32,
        (items, tokens): (usize, usize),
        probe: &mut Probe<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let times: Vec<f32> = match &given.times {
            None => vec![time],
            Some(parts) => parts.iter().map(|part| part * time).collect(),
        };
        let inner = lease.linear_then(
            "time_embedding.0",
            &time_waves(lease.lane(), &times)?,
            Some(Activation::Silu),
        )?;
        let time = lease.linear("time_embedding.2", &inner)?;
        probe.show(format_args!("time_embedding"), &time);
        let change = lease.linear("time_projection.1", &time.activate(Activation::Silu)?)?;
        probe.show(format_args!("time_projection"), &change);
        // One row, rows for the frames of all items, or rows for the frames of each.
        let frames = given.times.as_ref().map_or(1, |parts| parts.len() / given.timed_items.max(1));
        let spread = |x: &Tensor| -> Result<Tensor> {
            let rows = x.reshape([x.dim(0) / frames, frames, x.dim(1)])?;
            over_tokens(&rows.broadcast([items, frames, x.dim(1)])?.contiguous()?, tokens)
        };
        Ok((spread(&time)?, spread(&change)?))
    }

    /// From tokens to a latent: the last block of the manifest.
    fn leave(
        &self,
        lease: &Lease<'_>,
        state: &State,
        member: &Member<'_>,
        probe: &mut Probe<'_>,
    ) -> Result<Tensor> {
        let tokens = lease.bring(state.tokens())?;
        let time = lease.bring(state.time())?;
        let twice = Tensor::concat(&[&time, &time], 2)?;
        let change = Change::new(lease, "head.modulation", &twice, 2)?;
        let tokens = lease.linear("head.head", &change.normed(&tokens, 0)?)?;
        probe.show(format_args!("head"), &tokens);
        let grid = VideoGrid::sized(member.latent.shape());
        let before = member.given.before.as_ref().map_or(0, |before| before.dim(1));
        grid.unpatchify(&tokens.slice(1, before, tokens.dim(1) - before)?)
    }

    /// Whether a latent, with what it is given, is one for this model.
    fn check(&self, member: &Member<'_>) -> Result<()> {
        let (latent, given) = (member.latent, member.given);
        if latent.rank() != 5 || latent.dims().contains(&0) {
            return wrong("the latent", "[batch, channels, frames, height, width]".into(), latent);
        }
        let is_added = given.told.is_some();
        let beside = given.concat.as_ref().filter(|_| !is_added).map_or(0, |concat| concat.dim(1));
        if latent.dim(1) + beside != self.config.in_channels {
            let expected = format!("{} channels with what stands beside it", self.config.in_channels);
            return wrong("the latent", expected, latent);
        }
        if let Some(concat) = &given.concat
            && concat.dims()[2..] != latent.dims()[2..]
        {
            let expected = format!("of the latent's size, {}", latent.shape());
            return wrong("what stands beside the latent", expected, concat);
        }
        let grid = VideoGrid::sized(latent.shape());
        for (what, tokens, expected) in [
            ("the camera's way", given.camera.as_ref(), grid.tokens()),
            ("a picture in front of the video", given.before.as_ref(), grid.per_frame()),
            ("pictures behind the video", given.behind.as_ref(), grid.per_frame() * given.frames_behind),
        ] {
            if let Some(tokens) = tokens.filter(|tokens| tokens.dim(1) != expected) {
                return wrong(what, format!("{expected} tokens, as the video's size has"), tokens);
            }
        }
        match given.controls.iter().find(|(video, _)| video.dim(1) != grid.tokens()) {
            Some((video, _)) => {
                wrong("a steering video", format!("{} tokens, as the video has", grid.tokens()), video)
            }
            None => Ok(()),
        }
    }
}

impl Module for Wan {
    fn manifest(&self, checkpoint: &Checkpoint) -> Result<Manifest> {
        weights::manifest(&Claims::new(checkpoint, &self.prefix, config::FAMILY), &self.config)
    }

    fn activations(&self) -> &'static [DType] {
        &[DType::BF16, DType::F16, DType::F32]
    }
}

fn wrong<T>(what: &'static str, expected: String, got: &Tensor) -> Result<T> {
    Err(Error::Input { what, expected, got: format!("of shape {}", got.shape()) })
}

/// Tokens in the order of a convolution's result, `[items, hidden, frames, rows, columns]`.
fn as_volume(tokens: &Tensor, grid: &VideoGrid) -> Result<Tensor> {
    let volume = tokens.reshape([tokens.dim(0), grid.frames, grid.rows, grid.columns, tokens.dim(2)])?;
    Ok(volume.permute(&[0, 4, 1, 2, 3])?)
}

/// Times as waves of many lengths, `[times, 256]`. Angles are rounded to f32, as they are where the weights were trained.
fn time_waves(lane: &Lane, times: &[f32]) -> Result<Tensor> {
    const HALF: usize = TIME_VALUES / 2;
    let frequency = |i: usize| 10_000f64.powf(-(i as f64) / HALF as f64) as f32;
    let mut waves = Vec::with_capacity(times.len() * TIME_VALUES);
    for time in times {
        let angles = (0..HALF).map(|i| time * frequency(i));
        waves.extend(angles.clone().map(f32::cos).chain(angles.map(f32::sin)));
    }
    Ok(lane.tensor([times.len(), TIME_VALUES], &waves)?)
}

/// Times `[items, times, width]` for so many tokens: as they are where each has equally many; else one for each token,
/// spread as the reference spreads them.
fn over_tokens(times: &Tensor, tokens: usize) -> Result<Tensor> {
    let (items, count, width) = (times.dim(0), times.dim(1), times.dim(2));
    if tokens.is_multiple_of(count) {
        return Ok(times.clone());
    }
    let each = tokens / count + 1;
    let spread = times.reshape([items, count, 1, width])?.broadcast([items, count, each, width])?;
    Ok(spread.reshape([items, count * each, width])?.slice(1, 0, tokens)?.contiguous()?)
}
