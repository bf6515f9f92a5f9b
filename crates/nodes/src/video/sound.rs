//! Sound from files and to files.

use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Literal, NodeClass, Outcome, Schema, Validates, Verdict,
};
use media::{Conversion, Source, write_flac, write_with_ffmpeg};

use super::files::date_of;
use super::saving::{texts, with_hidden};
use super::{read_sound, text_or, told};
use crate::class::class;
use crate::image::file_verdict;
use crate::saving::{file_item, random_letters};
use crate::value::Audio;
use crate::{Result, Runtime};
use runtime::folders::Place;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LoadAudio(Arc::clone(runtime)));
    for format in [Format::Flac, Format::Mp3, Format::Opus] {
        catalogue.add(SaveAudio { runtime: Arc::clone(runtime), format });
    }
    catalogue.add(RecordAudio(Arc::clone(runtime)));
    catalogue.add(TrimAudioDuration(Arc::clone(runtime)));
    catalogue.add(PreviewAudio { runtime: Arc::clone(runtime), letters: random_letters() });
}

/// Where ComfyUI has these classes.
const MODULE: &str = "comfy_extras.nodes_audio";

struct LoadAudio(Arc<Runtime>);

impl NodeClass for LoadAudio {
    fn schema(&self) -> Schema {
        let files = self.0.outputs().sounds(Place::Input);
        Schema::new("LoadAudio", "audio")
            .title("Load Audio")
            .about("Loads sound from a file of the input folder, which may be a video.")
            .input(Input::choice("audio", files.iter().map(String::as_str)).with("audio_upload", true))
            .module(MODULE)
            .output("AUDIO")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let path = self.0.outputs().path(call.text("audio")?)?;
        let sound = read_sound(&Source::Path(path))?;
        Ok(Outcome::object(Audio::of_sound(&self.0.host, &sound)?))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(date_of(&self.0, call.text("audio")?)?))
    }

    fn validates(&self) -> Validates {
        Validates { inputs: vec!["audio"], ..Validates::default() }
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(self.0.outputs(), given, "audio", "Invalid audio file"))
    }
}

/// `RecordAudio`: what the front end recorded and uploaded.
struct RecordAudio(Arc<Runtime>);

impl NodeClass for RecordAudio {
    fn schema(&self) -> Schema {
        Schema::new("RecordAudio", "audio")
            .title("Record Audio")
            .about("Takes sound that was recorded in the front end, which puts it into the input folder.")
            .input(Input::socket("audio", "AUDIO_RECORD"))
            .module(MODULE)
            .output("AUDIO")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let name = call.text("audio")?;
        if name.is_empty() {
            return Err(Failure::value(
                "nothing was recorded yet; record something in the node first".to_owned(),
            ));
        }
        let path = self.0.outputs().path(name)?;
        let sound = read_sound(&Source::Path(path))?;
        Ok(Outcome::object(Audio::of_sound(&self.0.host, &sound)?))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(date_of(&self.0, call.text("audio")?)?))
    }
}

class! {
    /// A part of a sound: from a second on, counted from the end if it is below zero, for so many seconds.
    TrimAudioDuration in "audio";
    |schema| schema
        .title("Trim Audio Duration")
        .input(Input::socket("audio", "AUDIO"))
        .input(Input::float("start_index", 0.0, -1e9, 1e9, 0.01))
        .input(Input::float("duration", 60.0, 0.0, 1e9, 0.01))
        .output("AUDIO")
        .module(MODULE);
    |runtime, call| {
        let audio = call.object::<Audio>("audio")?;
        let [count, channels, length] = audio.shape;
        let values_of = |seconds: f64| (seconds * f64::from(audio.rate)).round_ties_even() as i64;
        let start = call.float("start_index")?;
        let from = if start < 0.0 { length as i64 + values_of(start) } else { values_of(start) };
        let from = from.min(length as i64 - 1).max(0) as usize;
        let to = (from as i64).saturating_add(values_of(call.float("duration")?)).clamp(0, length as i64) as usize;
        if from >= to {
            let seconds = length as f64 / f64::from(audio.rate);
            return Err(Failure::value(format!(
                "nothing would be left of a sound of {seconds:.2} s; begin inside of it, and ask for more than 0 s"
            )));
        }
        let shape = [count, channels, to - from];
        let room = runtime.host.room(&shape)?;
        let parts = audio.values.chunks_exact(length).flat_map(|channel| &channel[from..to]);
        Ok(Outcome::object(Audio { shape, rate: audio.rate, values: room.collect(parts.copied())? }))
    }
}

/// A format of sound.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Flac,
    Mp3,
    Opus,
}

impl Format {
    fn extension(self) -> &'static str {
        match self {
            Format::Flac => "flac",
            Format::Mp3 => "mp3",
            Format::Opus => "opus",
        }
    }

    /// How ffmpeg writes it.
    fn conversion(self, quality: &str) -> Conversion {
        let words: Vec<&str> = match (self, quality) {
            (Format::Flac, _) => vec!["-c:a", "flac"],
            (Format::Mp3, "V0") => vec!["-c:a", "libmp3lame", "-q:a", "0"],
            (Format::Mp3, rate) => vec!["-c:a", "libmp3lame", "-b:a", rate],
            // Opus knows a few rates only, and 48 kHz is that of most.
            (Format::Opus, rate) => vec!["-c:a", "libopus", "-ar", "48000", "-b:a", rate],
        };
        Conversion {
            format: if self == Format::Mp3 { "MP3" } else { "Opus" },
            instead: "SaveAudio, which writes FLAC",
            input: ["-f", "flac"].map(str::to_owned).to_vec(),
            output: words.into_iter().map(str::to_owned).collect(),
        }
    }
}

/// Saves all sounds of a batch; what clients show of them.
fn save(
    runtime: &Runtime,
    call: &Call,
    (place, prefix): (Place, &str),
    (format, quality): (Format, &str),
) -> Result<Literal, Failure> {
    let audio = call.object::<Audio>("audio")?;
    let mut saving = runtime.outputs().begin(place, prefix, (0, 0))?;
    let texts = texts(runtime, call);
    let mut items = Vec::new();
    for index in 0..audio.shape[0] {
        call.check()?;
        let sound = audio.sound(index);
        let file = saving.save_draft(index, format.extension(), &mut |draft| {
            if format == Format::Flac {
                return write_flac(&sound, &texts, draft).map_err(told);
            }
            let mut conversion = format.conversion(quality);
            for (key, value) in &texts {
                conversion.output.extend(["-metadata".to_owned(), format!("{key}={value}")]);
            }
            conversion.output.extend(["-f".to_owned(), format.extension().to_owned()]);
            let path = draft.path().to_owned();
            write_with_ffmpeg(&conversion, &path, |pipe| write_flac(&sound, &[], pipe)).map_err(told)
        })?;
        items.push(file_item(&file.name, &file.subfolder, file.place));
    }
    Ok(Literal::List(items))
}

/// `SaveAudio`, `SaveAudioMP3` and `SaveAudioOpus`.
struct SaveAudio {
    runtime: Arc<Runtime>,
    format: Format,
}

impl NodeClass for SaveAudio {
    fn schema(&self) -> Schema {
        let (class, title) = match self.format {
            Format::Flac => ("SaveAudio", "Save Audio (FLAC)"),
            Format::Mp3 => ("SaveAudioMP3", "Save Audio (MP3)"),
            Format::Opus => ("SaveAudioOpus", "Save Audio (Opus)"),
        };
        let schema = Schema::new(class, "audio")
            .title(title)
            .about("Saves sound in the output folder, with the workflow that made it.")
            .input(Input::socket("audio", "AUDIO"))
            .input(Input::text("filename_prefix", "audio/ComfyUI"))
            .module(MODULE);
        let about = "The file is written by ffmpeg, which has to be installed.";
        let schema = match self.format {
            Format::Flac => schema,
            Format::Mp3 => schema
                .input(Input::choice("quality", ["V0", "128k", "320k"]).with("default", "V0").tooltip(about)),
            Format::Opus => {
                let rates = ["64k", "96k", "128k", "192k", "320k"];
                schema.input(Input::choice("quality", rates).with("default", "128k").tooltip(about))
            }
        };
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let quality = text_or(call, "quality", "128k")?;
        let to = (Place::Output, call.text("filename_prefix")?);
        let items = save(&self.runtime, call, to, (self.format, quality))?;
        Ok(Outcome::default().with_ui(graph::map([("audio", items)])))
    }
}

/// `PreviewAudio`: sound that is heard and not kept.
struct PreviewAudio {
    runtime: Arc<Runtime>,
    letters: String,
}

impl NodeClass for PreviewAudio {
    fn schema(&self) -> Schema {
        let schema = Schema::new("PreviewAudio", "audio")
            .title("Preview Audio")
            .about("Lets sound be heard without keeping it.")
            .input(Input::socket("audio", "AUDIO"))
            .module(MODULE);
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let prefix = format!("ComfyUI_temp_{}", self.letters);
        let items = save(&self.runtime, call, (Place::Temp, &prefix), (Format::Flac, ""))?;
        Ok(Outcome::default().with_ui(graph::map([("audio", items)])))
    }
}
