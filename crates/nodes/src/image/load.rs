//! Pictures from files.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Given, Input, Literal, NodeClass, Outcome, Schema, Validates, Value, Verdict,
};

use crate::picture;
use crate::value::{Image, Mask};
use crate::{Result, Runtime};
use runtime::OutputStore;
use runtime::folders::Place;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(LoadImage(Arc::clone(runtime)));
    catalogue.add(LoadImageMask(Arc::clone(runtime)));
    catalogue.add(LoadImageOutput(LoadImage(Arc::clone(runtime))));
}

/// A sum over a file's bytes: it differs when the file does. It is compared with earlier ones of this process only.
pub(crate) fn file_fingerprint(store: &dyn OutputStore, name: &str) -> Result<Literal> {
    let bytes = store.read(name)?;
    let hasher = BuildHasherDefault::<DefaultHasher>::default();
    // Two sums, so that 128 bits stand for the file.
    let sums = [hasher.hash_one(&bytes), hasher.hash_one((&bytes, "again"))];
    Ok(Literal::Text(format!("{}-{:016x}{:016x}", bytes.len(), sums[0], sums[1])))
}

/// Whether the file of the input `name` is there; if not, the text begins with `complaint`.
pub(crate) fn file_verdict(
    store: &dyn OutputStore,
    given: &Given<'_>,
    name: &str,
    complaint: &str,
) -> Verdict {
    let Some(file) = given.constants.get(name).and_then(Literal::as_text) else { return Verdict::Good };
    if store.has(file) { Verdict::Good } else { Verdict::Because(format!("{complaint}: {file}")) }
}

/// Transparency as ComfyUI has it: 1 where nothing is seen; a small empty mask if the picture has none.
fn mask_of(image: &Image) -> Result<Mask> {
    if image.channels == 4 {
        image.channel(3)?.map(|alpha| 1.0 - alpha)
    } else {
        Mask::filled(image.host(), [1, 64, 64], 0.0)
    }
}

fn validates() -> Validates {
    Validates { inputs: vec!["image"], ..Validates::default() }
}

struct LoadImage(Arc<Runtime>);

impl NodeClass for LoadImage {
    fn schema(&self) -> Schema {
        let files = self.0.outputs().pictures(Place::Input);
        Schema::new("LoadImage", "image")
            .title("Load Image")
            .about("Loads a picture from the input folder. Its transparency comes out as a mask.")
            .input(Input::choice("image", files.iter().map(String::as_str)).with("image_upload", true))
            .output("IMAGE")
            .output("MASK")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let bytes = self.0.outputs().read(call.text("image")?)?;
        let image = picture::decode_frames(&self.0.host, &bytes)?;
        let mut mask = mask_of(&image)?;
        if mask.batch < image.batch {
            mask = mask.repeated_to(image.batch)?;
        }
        Ok(Outcome::values([Value::object(image.with_channels(3)?), Value::object(mask)]))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(file_fingerprint(self.0.outputs(), call.text("image")?)?))
    }

    fn validates(&self) -> Validates {
        validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(self.0.outputs(), given, "image", "Invalid image file"))
    }
}

struct LoadImageMask(Arc<Runtime>);

impl NodeClass for LoadImageMask {
    fn schema(&self) -> Schema {
        let files = self.0.outputs().pictures(Place::Input);
        Schema::new("LoadImageMask", "mask")
            .title("Load Image (as Mask)")
            .about("Loads one channel of a picture from the input folder as a mask.")
            .input(Input::choice("image", files.iter().map(String::as_str)).with("image_upload", true))
            .input(Input::choice("channel", ["alpha", "red", "green", "blue"]))
            .output("MASK")
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let bytes = self.0.outputs().read(call.text("image")?)?;
        let image = picture::decode(&self.0.host, &bytes)?.with_channels(4)?;
        let mask = match call.text("channel")? {
            "red" => image.channel(0)?,
            "green" => image.channel(1)?,
            "blue" => image.channel(2)?,
            _ => image.channel(3)?.map(|alpha| 1.0 - alpha)?,
        };
        Ok(Outcome::object(mask))
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        Ok(Some(file_fingerprint(self.0.outputs(), call.text("image")?)?))
    }

    fn validates(&self) -> Validates {
        validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        Ok(file_verdict(self.0.outputs(), given, "image", "Invalid image file"))
    }
}

/// [`LoadImage`] whose menu offers what was saved; clients ask for it themselves.
struct LoadImageOutput(LoadImage);

impl NodeClass for LoadImageOutput {
    fn schema(&self) -> Schema {
        let remote = graph::map([
            ("route", Literal::from("/internal/files/output")),
            ("refresh_button", true.into()),
            ("control_after_refresh", "first".into()),
        ]);
        let files = self.0.0.outputs().pictures(Place::Output);
        let menu = files.iter().map(|file| format!("{file} [output]"));
        let image = Input::choice("image", menu).with("image_upload", true).with("image_folder", "output");
        let mut schema = Schema::new("LoadImageOutput", "image")
            .title("Load Image (from Outputs)")
            .about("Loads a picture from the output folder. The refresh button takes the newest one.")
            .input(image.with("remote", remote))
            .output("IMAGE")
            .output("MASK");
        schema.is_experimental = true;
        schema
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        self.0.run(call)
    }

    fn fingerprint(&self, call: &Call) -> Result<Option<Literal>, Failure> {
        self.0.fingerprint(call)
    }

    fn validates(&self) -> Validates {
        self.0.validates()
    }

    fn validate(&self, given: &Given<'_>) -> Result<Verdict, Failure> {
        self.0.validate(given)
    }
}
