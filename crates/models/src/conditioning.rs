//! What a diffusion model is conditioned on: the values that text encoders and nodes give, on the host. A family takes
//! of it what it knows; what it does not know is named, never dropped in silence.

use std::fmt;
use std::sync::Arc;

use sampling::{Latent, LatentShape, Window};
use tensor::{Lane, Tensor};

use crate::{Error, Result};

/// An array on the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// The lengths of its axes.
    pub shape: Vec<usize>,
    /// The values, the last axis fastest.
    pub values: Vec<f32>,
}

impl Array {
    /// The lengths of its axes, of which there must be `N`; `expected` names them.
    pub fn axes<const N: usize>(&self, what: &'static str, expected: &str) -> Result<[usize; N]> {
        <[usize; N]>::try_from(self.shape.as_slice()).map_err(|_| Error::Input {
            what,
            expected: expected.into(),
            got: format!("of shape {:?}", self.shape),
        })
    }

    /// Zeros.
    #[must_use]
    pub fn zeros(shape: &[usize]) -> Array {
        Array { shape: shape.to_vec(), values: vec![0.0; shape.iter().product()] }
    }
}

/// What one evaluation of a diffusion model is conditioned on.
#[derive(Clone, Debug, PartialEq)]
pub struct Cond {
    /// The text, one vector per token: `[1 or batch, tokens, width]`.
    pub text: Arc<Array>,
    /// A second text, of another encoder, for models that take two: `[1 or batch, tokens, width]`, or with a state for
    /// each of an encoder's layers before the tokens.
    pub second_text: Option<Arc<Array>>,
    /// Which tokens of the text count; all of them without it.
    pub attention_mask: Option<Arc<Vec<bool>>>,
    /// Spans of the text that are looked at more or less than the rest, in order, none over another.
    pub attention_bias: Vec<TokenBias>,
    /// The whole text in one vector, `[1 or batch, width]`.
    pub pooled: Option<Arc<Array>>,
    /// The guidance that a distilled model takes.
    pub guidance: Guidance,
    /// A picture beside the latent, in the autoencoder's scale.
    pub concat_latent: Option<Arc<Latent>>,
    /// The mask that goes with it, at picture size: `[batch, 1, height, width]`; of a video at latent size, with one
    /// channel, or one for each frame that a frame of the latent stands for.
    pub concat_mask: Option<Arc<Latent>>,
    /// Which channel of the picture the mask stands before.
    pub concat_mask_at: usize,
    /// How much noise is laid over the video that is to be made larger, which stands beside the latent, 0 to 1.
    pub noise_augmentation: Option<f32>,
    /// Latents of pictures to look at, in the autoencoder's scale.
    pub reference_latents: Vec<Arc<Latent>>,
    /// How references are placed: `offset`, `index` and so on.
    pub reference_method: Option<String>,
    /// The tokens of the text before which references stand, for models that read them among words; those without one
    /// stand behind the text.
    pub reference_slots: Vec<usize>,
    /// Features of pictures, one vector per token, from the layer of a vision model that the family looks at:
    /// `[1 or batch, tokens, width]`.
    pub vision: Option<Arc<Array>>,
    /// Tokens in the model's own width that stand before those of the text: what a style network made of pictures,
    /// `[1 or batch, tokens, hidden]`.
    pub in_front: Option<Arc<Array>>,
    /// What is heard while each frame of the latent is seen, `[1 or batch, frames, values]`.
    pub audio: Option<Arc<Array>>,
    /// The time of the first frame, which is a picture that was given and not made.
    pub guiding_frame: Option<f32>,
    /// Pictures behind the video, in the autoencoder's scale: `[1 or batch, channels, frames, height, width]`.
    pub frames_behind: Option<Arc<Latent>>,
    /// Poses for the frames behind the first, in the autoencoder's scale: `[1 or batch, channels, frames, height, width]`.
    pub poses: Option<Arc<Latent>>,
    /// A face for each frame of the video, values from -1 to 1: `[1 or batch, 3, frames, side, side]`.
    pub faces: Option<Arc<Latent>>,
    /// The end of the video that this one goes on from, in the autoencoder's scale:
    /// `[1 or batch, channels, frames, height, width]`.
    pub frames_before: Option<Arc<Latent>>,
    /// Videos that steer it.
    pub controls: Vec<VideoControl>,
    /// A camera's way, in pixels: `[1, channels, frames, height, width]`.
    pub camera: Option<Arc<Latent>>,
    /// What the model is told of the picture's sizes.
    pub sizes: PictureSizes,
    /// How a video is to move.
    pub motion: Option<Motion>,
    /// Frames of a second, for models whose positions are in seconds.
    pub frame_rate: Option<f32>,
    /// The frames of the video at which the last frames of the latent stand, one for each of them: they are pictures to
    /// be led by, not a part of the video.
    pub keyframes: Vec<f32>,
    /// What a vision model sees in pictures that the result is to be like.
    pub seen_pictures: Vec<SeenPicture>,
}

/// What a vision model sees in pictures that the result is to be like.
#[derive(Clone, Debug, PartialEq)]
pub struct SeenPicture {
    /// One vector per picture, in the space that the vision model shares with text: `[pictures, width]`.
    pub embeds: Arc<Array>,
    /// How much it counts.
    pub strength: f32,
    /// How much noise is added to it, 0 to 1: the more, the less the result is like it.
    pub noise_augmentation: f64,
}

/// What is to be where in a picture, for a latent of a size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Grounding {
    /// Rows and columns of the latent.
    pub size: [usize; 2],
    /// The texts with their places.
    pub texts: Vec<PlacedText>,
}

/// A text with the place of what it says.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacedText {
    /// The whole text in one vector, `[1, width]`.
    pub text: Arc<Array>,
    /// Height, width, top and left, in latent values.
    pub place: [usize; 4],
}

impl Grounding {
    /// An empty text over all of a latent, as a rehearsal needs it.
    pub(crate) fn blank(size: [usize; 2], width: usize) -> Grounding {
        let [height, columns] = size;
        let text = Arc::new(Array::zeros(&[1, width]));
        Grounding { size, texts: vec![PlacedText { text, place: [height, columns, 0, 0] }] }
    }
}

/// How a video is to move.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Motion {
    /// Frames of a second.
    pub frames_per_second: f32,
    /// How much moves, 1 to 1023; 127 is usual.
    pub amount: f32,
    /// How much noise was added to the picture that it starts with.
    pub augmentation: f32,
}

impl Default for Motion {
    fn default() -> Motion {
        Motion { frames_per_second: 6.0, amount: 127.0, augmentation: 0.0 }
    }
}

/// A video that steers another.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoControl {
    /// What is kept and what is changed, side by side in the autoencoder's scale: `[1, channels, frames, height, width]`.
    pub frames: Arc<Latent>,
    /// Where it is changed, by the pixels of each value: `[1, pixels, frames, height, width]`.
    pub mask: Arc<Latent>,
    /// How much it steers.
    pub strength: f32,
}

/// What a model is told of the picture's sizes, if it was trained with pictures of many: height before width. What is not
/// said is as the family is usually told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PictureSizes {
    /// The size of the picture before it was cut.
    pub original: Option<[f32; 2]>,
    /// How much was cut off at the top and at the left.
    pub cut: Option<[f32; 2]>,
    /// The size that the picture is to have.
    pub target: Option<[f32; 2]>,
    /// How good the picture is to be, 0 to 10.
    pub aesthetics: Option<f32>,
}

/// A span of the text that is looked at more or less: what is added to the scores of its tokens as seen from the text before
/// it and from the image.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenBias {
    /// Its first token.
    pub start: usize,
    /// Its length.
    pub tokens: usize,
    /// What is added; below 0 is less, minus infinity not at all.
    pub bias: f32,
}

/// The guidance that a distilled model is told.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Guidance {
    /// What the family is usually told.
    #[default]
    Usual,
    /// This much.
    Scale(f32),
    /// Nothing at all.
    Off,
}

/// What a conditioning may have beside its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CondInput {
    /// [`Cond::guidance`].
    Guidance,
    /// [`Cond::attention_bias`].
    AttentionBias,
    /// [`Cond::concat_latent`].
    ConcatLatent,
    /// [`Cond::concat_mask`].
    ConcatMask,
    /// [`Cond::noise_augmentation`].
    NoiseAugmentation,
    /// [`Cond::reference_latents`].
    ReferenceLatents,
    /// [`Cond::vision`].
    Vision,
    /// [`Cond::in_front`].
    InFront,
    /// [`Cond::audio`].
    Audio,
    /// [`Cond::guiding_frame`].
    GuidingFrame,
    /// [`Cond::frames_behind`].
    FramesBehind,
    /// [`Cond::poses`].
    Poses,
    /// [`Cond::faces`].
    Faces,
    /// [`Cond::frames_before`].
    FramesBefore,
    /// [`Cond::controls`].
    VideoControls,
    /// [`Cond::camera`].
    Camera,
    /// [`Cond::sizes`].
    Sizes,
    /// [`Cond::motion`].
    Motion,
    /// [`Cond::frame_rate`].
    FrameRate,
    /// [`Cond::keyframes`].
    Keyframes,
    /// [`Cond::seen_pictures`].
    SeenPictures,
}

impl fmt::Display for CondInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CondInput::Guidance => "guidance",
            CondInput::AttentionBias => "a bias on tokens",
            CondInput::ConcatLatent => "a picture beside the latent",
            CondInput::ConcatMask => "a mask beside the latent",
            CondInput::NoiseAugmentation => "noise over what stands beside the latent",
            CondInput::ReferenceLatents => "reference latents",
            CondInput::Vision => "features of a picture",
            CondInput::InFront => "tokens of a style before the text",
            CondInput::Audio => "a sound",
            CondInput::GuidingFrame => "a time of the first frame",
            CondInput::FramesBehind => "pictures behind the video",
            CondInput::Poses => "poses",
            CondInput::Faces => "faces",
            CondInput::FramesBefore => "the end of a video to go on from",
            CondInput::VideoControls => "videos that steer it",
            CondInput::Camera => "a camera's way",
            CondInput::Sizes => "sizes of the picture",
            CondInput::Motion => "how a video is to move",
            CondInput::FrameRate => "frames of a second",
            CondInput::Keyframes => "frames to be led by",
            CondInput::SeenPictures => "what a vision model sees in pictures",
        })
    }
}

impl Cond {
    /// A text alone.
    #[must_use]
    pub fn text(text: Array, pooled: Option<Array>) -> Cond {
        Cond {
            text: Arc::new(text),
            second_text: None,
            attention_mask: None,
            attention_bias: Vec::new(),
            pooled: pooled.map(Arc::new),
            guidance: Guidance::Usual,
            concat_latent: None,
            concat_mask: None,
            concat_mask_at: 0,
            noise_augmentation: None,
            reference_latents: Vec::new(),
            reference_method: None,
            reference_slots: Vec::new(),
            vision: None,
            in_front: None,
            audio: None,
            guiding_frame: None,
            frames_behind: None,
            poses: None,
            faces: None,
            frames_before: None,
            controls: Vec::new(),
            camera: None,
            sizes: PictureSizes::default(),
            motion: None,
            frame_rate: None,
            keyframes: Vec::new(),
            seen_pictures: Vec::new(),
        }
    }

    /// What nodes have added to the text.
    #[must_use]
    pub fn inputs(&self) -> Vec<CondInput> {
        [
            (self.guidance != Guidance::Usual, CondInput::Guidance),
            (!self.attention_bias.is_empty(), CondInput::AttentionBias),
            (self.concat_latent.is_some(), CondInput::ConcatLatent),
            (self.concat_mask.is_some(), CondInput::ConcatMask),
            (self.noise_augmentation.is_some(), CondInput::NoiseAugmentation),
            (!self.reference_latents.is_empty(), CondInput::ReferenceLatents),
            (self.vision.is_some(), CondInput::Vision),
            (self.in_front.is_some(), CondInput::InFront),
            (self.audio.is_some(), CondInput::Audio),
            (self.guiding_frame.is_some(), CondInput::GuidingFrame),
            (self.frames_behind.is_some(), CondInput::FramesBehind),
            (self.poses.is_some(), CondInput::Poses),
            (self.faces.is_some(), CondInput::Faces),
            (self.frames_before.is_some(), CondInput::FramesBefore),
            (!self.controls.is_empty(), CondInput::VideoControls),
            (self.camera.is_some(), CondInput::Camera),
            (self.sizes != PictureSizes::default(), CondInput::Sizes),
            (self.motion.is_some(), CondInput::Motion),
            (self.frame_rate.is_some(), CondInput::FrameRate),
            (!self.keyframes.is_empty(), CondInput::Keyframes),
            (!self.seen_pictures.is_empty(), CondInput::SeenPictures),
        ]
        .into_iter()
        .filter_map(|(given, input)| given.then_some(input))
        .collect()
    }

    /// The text on a device, `[1 or batch, tokens, width]`.
    pub fn text_on(&self, lane: &Lane) -> Result<Tensor> {
        let axes: [usize; 3] = self.text.axes("a conditioning", "batch, tokens and width")?;
        Ok(lane.tensor(axes, &self.text.values)?)
    }

    /// The pooled text on a device, `[1 or batch, width]`; zeros where there is none.
    pub fn pooled_on(&self, lane: &Lane, width: usize) -> Result<Tensor> {
        match &self.pooled {
            Some(pooled) => {
                let axes: [usize; 2] = pooled.axes("the pooled text", "batch and width")?;
                Ok(lane.tensor(axes, &pooled.values)?)
            }
            None => Ok(lane.tensor([1, width], &vec![0.0; width])?),
        }
    }

    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> CondShape {
        let video = |latent: &Arc<Latent>| {
            LatentShape::of(latent).ok().map(|shape| [shape.frames, shape.height, shape.width])
        };
        let picture = |latent| video(latent).map(|[_, height, width]| [height, width]);
        CondShape {
            tokens: self.tokens(),
            references: self.reference_latents.iter().filter_map(picture).collect(),
            vision: self.vision.as_ref().and_then(|features| features.shape.get(1).copied()).unwrap_or(0),
            in_front: self.in_front.as_ref().and_then(|tokens| tokens.shape.get(1).copied()).unwrap_or(0),
            heard: self.audio.as_ref().and_then(|audio| audio.shape.get(1).copied()).unwrap_or(0),
            behind: self.frames_behind.as_ref().and_then(video),
            poses: self.poses.as_ref().and_then(video),
            faces: self.faces.as_ref().and_then(video),
            before: self.frames_before.as_ref().and_then(video),
            controls: self.controls.iter().filter_map(|control| video(&control.frames)).collect(),
            camera: self.camera.as_ref().and_then(video),
        }
    }

    /// Tokens of the text.
    #[must_use]
    pub fn tokens(&self) -> usize {
        self.text.shape.get(1).copied().unwrap_or(0)
    }
}

/// The sizes of a conditioning: what a rehearsal needs to know of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CondShape {
    /// Tokens of the text.
    pub tokens: usize,
    /// Height and width of each reference latent.
    pub references: Vec<[usize; 2]>,
    /// Tokens of features of pictures.
    pub vision: usize,
    /// Tokens before those of the text.
    pub in_front: usize,
    /// Frames that a sound is heard with.
    pub heard: usize,
    /// Frames, height and width of pictures behind the video.
    pub behind: Option<[usize; 3]>,
    /// Frames, height and width of poses.
    pub poses: Option<[usize; 3]>,
    /// Frames, height and width of faces.
    pub faces: Option<[usize; 3]>,
    /// Frames, height and width of the end of a video before it.
    pub before: Option<[usize; 3]>,
    /// Frames, height and width of each video that steers it.
    pub controls: Vec<[usize; 3]>,
    /// Frames, height and width of a camera's way.
    pub camera: Option<[usize; 3]>,
}

/// A conditioning in a run: what it says, and the part of the latent that it is evaluated for.
#[derive(Clone, Copy, Debug)]
pub struct Conditioned<'a> {
    /// What it says.
    pub cond: &'a Cond,
    /// The part; the whole latent without it.
    pub window: Option<Window>,
    /// Whether it says what the picture is not to be.
    pub is_negative: bool,
}

impl<'a> Conditioned<'a> {
    /// What the whole picture is to be.
    #[must_use]
    pub fn whole(cond: &'a Cond) -> Conditioned<'a> {
        Conditioned { cond, window: None, is_negative: false }
    }
}

/// What all conditionings of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The latent's shape.
    pub shape: LatentShape,
    /// The denoise mask at the latent's size, which inpainting models look at.
    pub mask: Option<&'a Latent>,
    /// The latent that the run starts from, in the model's scale, which inpainting models look at.
    pub image: Option<&'a Latent>,
    /// The seed of the run's noise, which what is told with noise has, too.
    pub seed: u64,
    /// The model's times at which the run's steps begin, falling, and that at which it ends; empty if they are not known.
    /// A model that jumps is told where each step lands.
    pub times: &'a [f32],
}

impl Scene<'_> {
    /// A latent of this shape that is empty.
    #[must_use]
    pub fn empty(shape: LatentShape) -> Self {
        Scene { shape, mask: None, image: None, seed: 0, times: &[] }
    }
}
