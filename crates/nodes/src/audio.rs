//! What audio encoders hear in sound.

mod resampling;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Object, Outcome};
use models::audio::{AudioEncoder, RATE};
use runtime::host::Values;
use runtime::{Caller, Network, Runtime, Source, Wanted, Work};

use crate::class::class;
use crate::value::Audio;
use crate::{Error, Result};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(AudioEncoderEncode(Arc::clone(runtime)));
}

/// Where ComfyUI has the classes.
pub(crate) const MODULE: &str = "comfy_extras.nodes_audio_encoder";

/// An audio encoder: `AUDIO_ENCODER`.
#[derive(Clone)]
pub(crate) struct AudioEncoderHandle {
    pub(crate) source: Arc<Source>,
}

impl AudioEncoderHandle {
    fn encoder(&self) -> Result<&dyn AudioEncoder> {
        match &*self.source.network {
            Network::Audio(encoder) => Ok(&**encoder),
            _ => Err(Error::Told(format!("{} is no audio encoder", self.source.name()))),
        }
    }
}

impl Object for AudioEncoderHandle {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("audio encoder {}", self.source.name())
    }
}

impl fmt::Debug for AudioEncoderHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

/// What an encoder heard: `AUDIO_ENCODER_OUTPUT`.
#[derive(Clone)]
pub(crate) struct Heard {
    /// Layers, what comes out of the last among them; moments; and values of each.
    pub(crate) shape: [usize; 3],
    /// The values, layer by layer.
    pub(crate) values: Values,
    /// Values of the sound, at the encoder's rate.
    pub(crate) samples: usize,
}

impl Heard {
    /// A value of a layer.
    pub(crate) fn at(&self, layer: usize, moment: usize) -> &[f32] {
        let [_, moments, width] = self.shape;
        &self.values[(layer * moments + moment) * width..][..width]
    }
}

impl Object for Heard {
    fn describe(&self) -> String {
        format!("what is heard {:?}", self.shape)
    }
}

impl fmt::Debug for Heard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

class! {
    /// What an audio encoder hears in a sound.
    AudioEncoderEncode in "conditioning";
    |schema| schema
        .input(Input::socket("audio_encoder", "AUDIO_ENCODER"))
        .input(Input::socket("audio", "AUDIO"))
        .output("AUDIO_ENCODER_OUTPUT")
        .module(MODULE);
    |runtime, call| {
        let handle = call.object::<AudioEncoderHandle>("audio_encoder")?;
        Ok(Outcome::object(listen(runtime, call, &handle, &*call.object::<Audio>("audio")?)?))
    }
}

/// What an encoder hears in the first of the sounds, all of whose channels count alike.
fn listen(
    runtime: &Runtime,
    call: &Call,
    handle: &AudioEncoderHandle,
    audio: &Audio,
) -> Result<Heard, Failure> {
    let [sounds, channels, length] = audio.shape;
    if sounds == 0 || channels == 0 || length == 0 {
        return Err(Failure::value("there is no sound; check the node that made it"));
    }
    if sounds > 1 {
        tracing::warn!("{}: only the first of {sounds} sounds is listened to", call.identity.class);
    }
    let sound = audio.sound(0);
    let at_rate = |channel: &Vec<f32>| resampling::resampled(channel, audio.rate, RATE);
    let resampled: Vec<Vec<f32>> = sound.channels.iter().map(at_rate).collect();
    let samples = resampled[0].len();
    let mean = |at: usize| resampled.iter().map(|channel| channel[at]).sum::<f32>() / channels as f32;
    let sound: Vec<f32> = (0..samples).map(mean).collect();
    let encoder = handle.encoder()?;
    let wanted = Wanted { source: &handle.source, beside: &[], loras: &[], work: &Work::Listen };
    let heard = runtime.with_session(wanted, &Caller::of(&call.job), |opened| {
        let started = Instant::now();
        let layers = encoder.listen(&opened.session, &sound)?;
        let [moments, width] = layers.first().map_or([0, 0], |layer| [layer.dim(1), layer.dim(2)]);
        let shape = [layers.len(), moments, width];
        let room = runtime.host.room(&shape)?;
        let mut values = room.vector()?;
        for layer in &layers {
            values.extend(layer.to_vec()?);
        }
        runtime.note_evaluation(opened, started);
        Ok(Heard { shape, values: room.hold(values), samples })
    })?;
    Ok(heard)
}
