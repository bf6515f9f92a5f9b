//! Outputs: pictures saved, shown and sent.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use graph::{
    Call, Catalogue, Failure, Hidden, Input, Kind, Literal, Map, NodeClass, Outcome, Picture, Schema,
};
use rayon::prelude::*;

use crate::picture::{self, WebpCoding};
use crate::value::{Image, Mask};
use crate::{Result, Runtime};
use runtime::SavedFile;
use runtime::folders::Place;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    let previews = Arc::new(Previews { runtime: Arc::clone(runtime), letters: random_letters() });
    catalogue.add(SaveImage(Arc::clone(runtime)));
    catalogue.add(SaveImageAdvanced(Arc::clone(runtime)));
    catalogue.add(PreviewImage(Arc::clone(&previews)));
    catalogue.add(MaskPreview(Arc::clone(&previews)));
    catalogue.add(ImageCompare(previews));
    catalogue.add(SaveImageWebsocket);
    catalogue.add(SaveAnimatedPng(Arc::clone(runtime)));
    catalogue.add(SaveAnimatedWebp(Arc::clone(runtime)));
}

/// The level of compression for files that stay, and for those that go.
const SAVED_LEVEL: u8 = 4;
const PREVIEW_LEVEL: u8 = 1;
/// Pixels of 8 bits that take as much memory as one value.
const VALUES_IN_BYTES: usize = 4;

/// Where pictures are saved, and how.
#[derive(Clone, Copy)]
struct Destination<'a> {
    place: Place,
    prefix: &'a str,
    level: u8,
    depth: Depth,
}

/// Bits of a channel of a picture file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Depth {
    Eight,
    Sixteen,
}

/// Saves all pictures of a batch, and gives what clients show of them.
fn save(runtime: &Runtime, call: &Call, image: &Image, to: Destination<'_>) -> Result<Vec<Literal>, Failure> {
    if image.batch == 0 {
        return Err(Failure::value("there is no picture in the batch; check the node that made it"));
    }
    let mut saving = runtime.outputs().begin(to.place, to.prefix, (image.width, image.height))?;
    let files = encoded(runtime, call, image, to)?;
    let mut shown = Vec::new();
    for (index, bytes) in files.iter().enumerate() {
        call.check()?;
        shown.push(saved_item(&saving.save(index, "png", bytes)?));
    }
    Ok(shown)
}

/// All pictures of a batch as PNG files, with the workflow that made them.
fn encoded(runtime: &Runtime, call: &Call, image: &Image, to: Destination<'_>) -> Result<Vec<Vec<u8>>> {
    let text = provenance(runtime, call);
    // As bits, and as a file that may be as large.
    let copies = if to.depth == Depth::Eight { 2 } else { 5 };
    let _files = image.host().room(&[copies, image.values.len() / VALUES_IN_BYTES + 1])?;
    let encode = |index| match to.depth {
        Depth::Eight => picture::encode_png(image, index, to.level, &text),
        Depth::Sixteen => picture::encode_png16(image, index, to.level, &text),
    };
    (0..image.batch).into_par_iter().map(encode).collect()
}

/// How a file was made, for writing into it; nothing if that is switched off.
pub(crate) fn provenance(runtime: &Runtime, call: &Call) -> Vec<(String, String)> {
    if runtime.settings.no_metadata {
        return Vec::new();
    }
    picture::provenance(&call.job.prompt.to_literal(), call.extra_png_info())
}

/// A file as clients are told of it.
pub(crate) fn file_item(name: &str, subfolder: &str, place: Place) -> Literal {
    let entries = [("filename", name), ("subfolder", subfolder), ("type", place.name())];
    Literal::Map(graph::map(entries.map(|(key, value)| (key, Literal::from(value)))))
}

fn saved_item(file: &SavedFile) -> Literal {
    file_item(&file.name, &file.subfolder, file.place)
}

fn ui(entries: impl IntoIterator<Item = (&'static str, Vec<Literal>)>) -> Map {
    graph::map(entries.into_iter().map(|(key, items)| (key, Literal::List(items))))
}

fn with_hidden(schema: Schema) -> Schema {
    schema.hidden("prompt", Hidden::Prompt).hidden("extra_pnginfo", Hidden::ExtraPngInfo).output_node()
}

fn prefix_input() -> Input {
    Input::text("filename_prefix", "ComfyUI").tooltip(
        "The start of the file name, with folders if wanted. %date:yyyy-MM-dd%, %Empty Latent Image.width% and the \
         like are filled in.",
    )
}

struct SaveImage(Arc<Runtime>);

impl NodeClass for SaveImage {
    fn schema(&self) -> Schema {
        let schema = Schema::new("SaveImage", "image")
            .title("Save Image")
            .about("Saves pictures in the output folder, with the workflow that made them.")
            .input(Input::socket("images", "IMAGE").tooltip("The pictures to save."))
            .input(prefix_input());
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = call.object::<Image>("images")?;
        let prefix = call.text("filename_prefix")?;
        let destination =
            Destination { place: Place::Output, prefix, level: SAVED_LEVEL, depth: Depth::Eight };
        let items = save(&self.0, call, &image, destination)?;
        Ok(Outcome::default().with_ui(ui([("images", items)])))
    }
}

/// `SaveImageAdvanced`: formats with choices of their own, of which PNG is written here.
struct SaveImageAdvanced(Arc<Runtime>);

/// What colours of pictures are, as the class calls it.
const SRGB: &str = "sRGB";

impl NodeClass for SaveImageAdvanced {
    fn schema(&self) -> Schema {
        let depth = Input::choice("bit_depth", ["8-bit", "16-bit"]).with("default", "8-bit");
        let depth = depth.tooltip("Bits of each channel. 16 keep what 8 round away, in larger files.");
        let space = Input::choice("input_color_space", [SRGB]).with("default", SRGB);
        let space = space.tooltip("What the colours of the pictures are.");
        let formats = vec![("png".to_owned(), vec![depth, space])];
        let schema = Schema::new("SaveImageAdvanced", "image")
            .title("Save Image (Advanced)")
            .about(
                "Saves pictures in the output folder, with the workflow that made them, and passes them on.",
            )
            .input(Input::socket("images", "IMAGE").tooltip("The pictures to save."))
            .input(prefix_input())
            .input(Input::new("format", Kind::DynamicChoice(formats)).tooltip("The kind of file."))
            .named_output("IMAGE", "images");
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = call.object::<Image>("images")?;
        let depth = match call.text("format.bit_depth")? {
            "16-bit" => Depth::Sixteen,
            _ => Depth::Eight,
        };
        let prefix = call.text("filename_prefix")?;
        let destination = Destination { place: Place::Output, prefix, level: SAVED_LEVEL, depth };
        let items = save(&self.0, call, &image, destination)?;
        Ok(Outcome::one(call.value("images")?.clone()).with_ui(ui([("images", items)])))
    }
}

/// What nodes that show pictures share. Five letters keep previews of two servers on one folder apart.
struct Previews {
    runtime: Arc<Runtime>,
    letters: String,
}

impl Previews {
    fn save(&self, call: &Call, image: &Image, prefix: &str) -> Result<Vec<Literal>, Failure> {
        let prefix = format!("{prefix}_temp_{}", self.letters);
        let destination =
            Destination { place: Place::Temp, prefix: &prefix, level: PREVIEW_LEVEL, depth: Depth::Eight };
        save(&self.runtime, call, image, destination)
    }
}

pub(crate) fn random_letters() -> String {
    let mut bits = RandomState::new().hash_one("previews");
    let letter = |_| {
        let letter = b'a' + (bits % 26) as u8;
        bits /= 26;
        char::from(letter)
    };
    (0..5).map(letter).collect()
}

struct PreviewImage(Arc<Previews>);

impl NodeClass for PreviewImage {
    fn schema(&self) -> Schema {
        let schema = Schema::new("PreviewImage", "image")
            .title("Preview Image")
            .about("Shows pictures without keeping them.")
            .input(Input::socket("images", "IMAGE"));
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let items = self.0.save(call, &*call.object("images")?, "ComfyUI")?;
        Ok(Outcome::default().with_ui(ui([("images", items)])))
    }
}

struct MaskPreview(Arc<Previews>);

impl NodeClass for MaskPreview {
    fn schema(&self) -> Schema {
        let schema = Schema::new("MaskPreview", "mask")
            .title("Preview Mask")
            .about("Shows masks without keeping them.")
            .input(Input::socket("mask", "MASK"));
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = crate::mask::to_image(&*call.object::<Mask>("mask")?)?;
        let items = self.0.save(call, &image, "ComfyUI")?;
        Ok(Outcome::default().with_ui(ui([("images", items), ("animated", vec![false.into()])])))
    }
}

struct ImageCompare(Arc<Previews>);

impl NodeClass for ImageCompare {
    fn schema(&self) -> Schema {
        let mut schema = Schema::new("ImageCompare", "image")
            .title("Image Compare")
            .about("Shows two pictures in one place, with a slider between them.")
            .input(Input::socket("image_a", "IMAGE").optional())
            .input(Input::socket("image_b", "IMAGE").optional())
            .input(Input::socket("compare_view", "IMAGECOMPARE").optional());
        schema.is_experimental = true;
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let shown = |name: &str, prefix: &str| match call.object_if_given::<Image>(name)? {
            Some(image) if image.batch > 0 => self.0.save(call, &image, prefix),
            _ => Ok(Vec::new()),
        };
        let (first, second) = (shown("image_a", "comfy.compare.a")?, shown("image_b", "comfy.compare.b")?);
        Ok(Outcome::default().with_ui(ui([("a_images", first), ("b_images", second)])))
    }
}

struct SaveImageWebsocket;

impl NodeClass for SaveImageWebsocket {
    fn schema(&self) -> Schema {
        Schema::new("SaveImageWebsocket", "api/image")
            .module("custom_nodes.websocket_image_save")
            .about("Sends pictures to the client instead of saving them.")
            .input(Input::socket("images", "IMAGE"))
            .output_node()
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = call.object::<Image>("images")?;
        let colours = image.with_channels(3)?;
        for index in 0..image.batch {
            let pixels = picture::pixels_of(&colours, index)?;
            let (width, height, rgb) = (pixels.width, pixels.height, pixels.bytes);
            let picture = Picture { width, height, rgb, is_result: true };
            call.progress(index as f64, image.batch as f64, Some(picture))?;
        }
        Ok(Outcome::default())
    }

    fn fingerprint(&self, _call: &Call) -> Result<Option<Literal>, Failure> {
        // What was sent before is of no use to the next client.
        Ok(Some(Literal::Float(f64::NAN)))
    }
}

struct SaveAnimatedPng(Arc<Runtime>);

impl NodeClass for SaveAnimatedPng {
    fn schema(&self) -> Schema {
        let schema = Schema::new("SaveAnimatedPNG", "image/animation")
            .about("Saves pictures as one that moves.")
            .input(Input::socket("images", "IMAGE"))
            .input(Input::text("filename_prefix", "ComfyUI"))
            .input(Input::float("fps", 6.0, 0.01, 1000.0, 0.01))
            .input(Input::int("compress_level", 4, 0, 9));
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = call.object::<Image>("images")?;
        let size = (image.width, image.height);
        let mut saving = self.0.outputs().begin(Place::Output, call.text("filename_prefix")?, size)?;
        let level = u8::try_from(call.int("compress_level")?.clamp(0, 9)).unwrap_or(SAVED_LEVEL);
        let frame_ms = (1000.0 / call.float("fps")?.max(0.001)) as u64;
        let bytes = picture::animated_png(&image, frame_ms, level, &provenance(&self.0, call))?;
        let items = vec![saved_item(&saving.save(0, "png", &bytes)?)];
        Ok(Outcome::default().with_ui(ui([("images", items), ("animated", vec![true.into()])])))
    }
}

struct SaveAnimatedWebp(Arc<Runtime>);

impl NodeClass for SaveAnimatedWebp {
    fn schema(&self) -> Schema {
        let quality = Input::int("quality", 80, 0, 100)
            .tooltip("How good frames are that are saved with loss; larger files at higher values.");
        let schema = Schema::new("SaveAnimatedWEBP", "image/animation")
            .about("Saves pictures as one that moves.")
            .input(Input::socket("images", "IMAGE"))
            .input(Input::text("filename_prefix", "ComfyUI"))
            .input(Input::float("fps", 6.0, 0.01, 1000.0, 0.01))
            .input(Input::boolean("lossless", true))
            .input(quality)
            .input(Input::choice("method", ["default", "fastest", "slowest"]));
        with_hidden(schema)
    }

    fn run(&self, call: &Call) -> Result<Outcome, Failure> {
        let image = call.object::<Image>("images")?;
        let size = (image.width, image.height);
        let mut saving = self.0.outputs().begin(Place::Output, call.text("filename_prefix")?, size)?;
        let frame_ms = (1000.0 / call.float("fps")?.max(0.001)) as u64;
        let quality = u8::try_from(call.int("quality")?.clamp(0, 100)).unwrap_or(100);
        let coding = WebpCoding {
            quality: (!call.boolean("lossless")?).then_some(quality),
            effort: match call.text("method")? {
                "fastest" => 0,
                "slowest" => 6,
                _ => 4,
            },
        };
        let pace = picture::Pace { frame_ms, times: 0 };
        let bytes = picture::animated_webp(&image, pace, coding, &provenance(&self.0, call))?;
        let items = vec![saved_item(&saving.save(0, "webp", &bytes)?)];
        let moves = image.batch > 1;
        Ok(Outcome::default().with_ui(ui([("images", items), ("animated", vec![moves.into()])])))
    }
}
