//! Sound: values over time, channel by channel.

use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error as Failed;
use symphonia::core::formats::TrackType;

use crate::{Error, Result, Source};

/// Values over time, from -1 to 1.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sound {
    /// Values per second.
    pub rate: u32,
    /// The values of each channel.
    pub channels: Vec<Vec<f32>>,
}

/// Values of all channels that a file may have: an hour of eight channels at 96 kHz.
const MOST_VALUES: usize = 8 * 96_000 * 3600;

impl Sound {
    /// Whether nothing is heard.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.channels.iter().all(Vec::is_empty)
    }

    /// The sound of a file; of a video its first sound track.
    ///
    /// # Errors
    /// The file has none, is damaged, or is in a codec that is not known here.
    pub fn read(source: &Source) -> Result<Sound> {
        Sound::read_while(source, &|| true)
    }

    /// The same, for as long as it is wanted.
    ///
    /// # Errors
    /// As [`Sound::read`], or it is not wanted any more.
    pub fn read_while(source: &Source, goes_on: &dyn Fn() -> bool) -> Result<Sound> {
        let mut container = source.open()?;
        let Some(track) = container.default_track(TrackType::Audio) else {
            return Err(Error::NoSound { file: source.name() });
        };
        let unknown =
            || Error::Codec { file: source.name(), codec: "a codec of sound that is not known".into() };
        let parameters = track.codec_params.as_ref().and_then(|all| all.audio()).ok_or_else(unknown)?;
        let options = AudioDecoderOptions::default();
        let mut decoder = symphonia::default::get_codecs()
            .make_audio_decoder(parameters, &options)
            .map_err(|_| unknown())?;
        let number = track.id;
        let (mut sound, mut interleaved) = (Sound::default(), Vec::<f32>::new());
        loop {
            let packet = match container.next_packet() {
                Ok(Some(packet)) => packet,
                Ok(None) | Err(Failed::ResetRequired) => break,
                // A file that was cut off still has what stands before the cut.
                Err(Failed::IoError(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => break,
                Err(error) => return Err(source.unreadable(error.to_string())),
            };
            if !goes_on() {
                return Err(Error::Cancelled);
            }
            if packet.track_id != number {
                continue;
            }
            let decoded = match decoder.decode(&packet) {
                Ok(decoded) => decoded,
                // One packet that is damaged is a short gap.
                Err(Failed::DecodeError(_)) => continue,
                Err(error) => return Err(source.unreadable(error.to_string())),
            };
            let (rate, count) = (decoded.spec().rate(), decoded.spec().channels().count());
            decoded.copy_to_vec_interleaved(&mut interleaved);
            sound.add(rate, count, &interleaved);
            if sound.channels.iter().map(Vec::len).sum::<usize>() > MOST_VALUES {
                return Err(source.unreadable("it is longer than an hour of the best sound".to_owned()));
            }
        }
        if sound.is_empty() {
            return Err(Error::NoSound { file: source.name() });
        }
        Ok(sound)
    }

    /// Adds values that stand one channel beside the other.
    fn add(&mut self, rate: u32, count: usize, interleaved: &[f32]) {
        if self.channels.is_empty() {
            self.rate = rate;
            self.channels = vec![Vec::new(); count.max(1)];
        }
        let own = self.channels.len();
        for values in interleaved.chunks_exact(count.max(1)) {
            for (channel, at) in self.channels.iter_mut().zip(0..own) {
                // A file may change its channels on the way; those that are missing repeat the first.
                channel.push(values.get(at).or(values.first()).copied().unwrap_or(0.0));
            }
        }
    }
}
