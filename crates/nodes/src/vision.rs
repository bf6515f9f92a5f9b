//! Pictures described in words: Florence-2, and a node that shows text.

mod drawing;
mod show_text;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Literal, Object, Outcome, Value};
use models::vision::florence2::{Answer, Captioner, Generation, Labelled, Task};
use residency::Session;
use tensor::Tensor;

use crate::class::class;
use crate::image::{Target, scale_image_as_pillow};
use crate::value::{Image, Mask};
use crate::{Result, Runtime};
use drawing::Canvas;
use runtime::host::Host;
use runtime::{Caller, Network, Source, Wanted, Work};

/// The pack that Florence-2's classes come from.
pub(crate) const PACK: &str = "custom_nodes.comfyui-florence2";
/// Mean and deviation of the colours that the model was trained with.
const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];
/// The side of the black picture that a task without one gives.
const EMPTY_SIDE: usize = 64;

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(Florence2Run(Arc::clone(runtime)));
    show_text::add(catalogue);
}

/// A model that describes pictures: `FL2MODEL`.
#[derive(Clone)]
pub(crate) struct Florence2Handle {
    pub(crate) source: Arc<Source>,
}

impl Object for Florence2Handle {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("vision model {}", self.source.name())
    }
}

impl fmt::Debug for Florence2Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

class! {
    /// What a picture shows: words, boxes, outlines.
    Florence2Run in "Florence2";
    |schema| schema
        .module(PACK)
        .input(Input::socket("image", "IMAGE"))
        .input(Input::socket("florence2_model", "FL2MODEL"))
        .input(Input::multiline("text_input", ""))
        .input(Input::choice("task", Task::names()))
        .input(Input::boolean("fill_mask", true))
        .input(Input::boolean("keep_model_loaded", false).optional())
        .input(Input::int("max_new_tokens", 1024, 1, 4096).optional())
        .input(Input::int("num_beams", 3, 1, 64).optional())
        .input(Input::boolean("do_sample", true).optional())
        .input(Input::text("output_mask_select", "").optional())
        .input(Input::int("seed", 1, 1, u64::MAX).optional())
        .named_output("IMAGE", "image")
        .named_output("MASK", "mask")
        .named_output("STRING", "caption")
        .named_output("JSON", "data");
    |runtime, call| run(runtime, call)
}

/// What a node asks of the model.
struct Asked<'a> {
    task: Task,
    prompt: String,
    fill_mask: bool,
    /// Which of what is found goes into the mask, by number or by name; all if it is empty.
    selected: Vec<&'a str>,
    beams: usize,
    max_new_tokens: usize,
    seed: Option<u64>,
}

impl Asked<'_> {
    fn of(call: &Call) -> Result<Asked<'_>, Failure> {
        let name = call.text("task")?;
        let task = Task::named(name).ok_or_else(|| Failure::value(format!("there is no task {name:?}")))?;
        let text = call.text("text_input")?;
        if !text.is_empty() && !task.takes_text() {
            return Err(Failure::value(format!(
                "the task {name} takes no text; empty text_input, or choose referring_expression_segmentation, \
                 caption_to_phrase_grounding or docvqa"
            )));
        }
        if task == Task::DocumentQuestion && text.is_empty() {
            return Err(Failure::value("the task docvqa answers a question; write it into text_input"));
        }
        let given = |input: &str| call.inputs.first(input).is_some();
        let count = |input: &str, absent: usize| if given(input) { call.size(input) } else { Ok(absent) };
        let selected = if given("output_mask_select") { call.text("output_mask_select")? } else { "" };
        let is_drawn = !given("do_sample") || call.boolean("do_sample")?;
        let seed = if given("seed") { call.seed("seed")? } else { 1 };
        Ok(Asked {
            task,
            prompt: task.prompt(text),
            fill_mask: call.boolean("fill_mask")?,
            selected: selected.split(',').filter(|one| !one.is_empty()).collect(),
            beams: count("num_beams", 3)?,
            max_new_tokens: count("max_new_tokens", 1024)?,
            seed: is_drawn.then_some(seed),
        })
    }
}

/// What came out for one picture.
#[derive(Default)]
struct Found {
    caption: String,
    picture: Option<Canvas>,
    mask: Option<Vec<f32>>,
    data: Vec<Literal>,
}

fn run(runtime: &Runtime, call: &Call) -> Result<Outcome, Failure> {
    let image = call.object::<Image>("image")?;
    let handle = call.object::<Florence2Handle>("florence2_model")?;
    let asked = Asked::of(call)?;
    let source = &handle.source;
    let captioner = match &*source.network {
        Network::Vision(vision) => vision.as_any().downcast_ref::<Captioner>(),
        _ => None,
    };
    let Some(captioner) = captioner else {
        return Err(Failure::value(format!("{} is no Florence-2 model", source.name())));
    };
    if image.batch == 0 {
        return Err(Failure::value("there is no picture in the batch; check the node that made it"));
    }
    let caller = Caller::of(&call.job);
    let wanted = Wanted { source, beside: &[], loras: &[], work: &Work::Look };
    let mut answers = Vec::with_capacity(image.batch);
    for index in 0..image.batch {
        let picture = image.frames([index])?.with_channels(3)?;
        let written = runtime.with_session(wanted, &caller, |opened| {
            let started = Instant::now();
            let written = describe(captioner, &opened.session, &picture, &asked)?;
            runtime.note_evaluation(opened, started);
            Ok(written)
        })?;
        answers.push(interpret(&asked, &picture, &written));
        call.progress((index + 1) as f64, image.batch as f64, None)?;
    }
    let keep = call.inputs.first("keep_model_loaded").is_some() && call.boolean("keep_model_loaded")?;
    if !keep {
        runtime.let_go(source, &caller)?;
    }
    Ok(joined(image.host(), answers, (image.height, image.width))?)
}

/// The model's answer, as it wrote it.
fn describe(captioner: &Captioner, session: &Session, picture: &Image, asked: &Asked<'_>) -> Result<String> {
    let model = &captioner.model;
    let features = model.look(session, &pixels(session, picture, model.config().side)?)?;
    let encoded = model.read_prompt(session, &features, &captioner.tokenizer.prompt(&asked.prompt))?;
    let how = Generation {
        rules: captioner.rules.clone(),
        beams: asked.beams,
        max_new_tokens: asked.max_new_tokens,
        seed: asked.seed,
    };
    Ok(captioner.tokenizer.decode(&model.generate(session, &encoded, &how)?))
}

/// A picture as the model wants it: a square of 8-bit colours, normalised, colour by colour.
fn pixels(session: &Session, picture: &Image, side: usize) -> Result<Tensor> {
    let square = scale_image_as_pillow(picture, Target::new(side, side))?;
    let value =
        |colour: usize, pixel: usize| (square.values[pixel * 3 + colour] - MEAN[colour]) / DEVIATION[colour];
    let places = side * side;
    let values: Vec<f32> = (0..3 * places).map(|at| value(at / places, at % places)).collect();
    Ok(session.lane()?.tensor([1, 3, side, side], &values)?)
}

/// What an answer means for a picture: its words, what it shows drawn on it, its mask, and its numbers.
fn interpret(asked: &Asked<'_>, picture: &Image, written: &str) -> Found {
    let size = (picture.width, picture.height);
    let caption = match asked.task {
        Task::OcrWithRegion => without_tags(written),
        _ => written.replace("</s>", "").replace("<s>", ""),
    };
    let found = Found { caption, ..Found::default() };
    match asked.task.answer(written, size) {
        Answer::Boxes(boxes) => with_boxes(asked, picture, &boxes, found),
        Answer::Quads(quads) => with_quads(asked, picture, &quads, found),
        Answer::Polygons(outlines) => {
            let outlines: Vec<&[Vec<f32>]> = outlines.iter().map(|one| one.place.as_slice()).collect();
            with_outlines(asked, picture, &outlines, found)
        }
        Answer::Text if asked.task == Task::DocumentQuestion => {
            Found { picture: Some(Canvas::new(picture)), ..found }
        }
        Answer::Text => found,
    }
}

fn with_boxes(asked: &Asked<'_>, picture: &Image, boxes: &[Labelled<[f32; 4]>], found: Found) -> Found {
    let mut canvas = Canvas::new(picture);
    let mut mask = Canvas::black(picture);
    for (index, Labelled { place, label }) in boxes.iter().enumerate() {
        let is_selected = |one: &&str| *one == index.to_string() || *one == label.as_str();
        if asked.selected.is_empty() || asked.selected.iter().any(is_selected) {
            mask.fill_box(*place, [1.0; 3]);
        }
        canvas.draw_box(*place, drawing::RED);
        canvas.number(index, *place);
    }
    let numbers = boxes.iter().map(|one| Literal::List(one.place.iter().map(|at| number(*at)).collect()));
    Found {
        picture: Some(canvas),
        mask: asked.fill_mask.then(|| mask.one_channel()),
        data: vec![Literal::List(numbers.collect())],
        ..found
    }
}

fn with_quads(asked: &Asked<'_>, picture: &Image, quads: &[Labelled<[f32; 8]>], found: Found) -> Found {
    let sides = [picture.width as f32, picture.height as f32];
    let item = |one: &Labelled<[f32; 8]>| {
        let shares = one.place.iter().enumerate().map(|(i, at)| number(at / sides[i % 2]));
        let shares = Literal::List(shares.collect());
        Literal::Map(graph::map([("label", Literal::from(one.label.as_str())), ("box", shares)]))
    };
    let data = quads.iter().map(item).collect();
    let outlines: Vec<[Vec<f32>; 1]> = quads.iter().map(|one| [one.place.to_vec()]).collect();
    let outlines: Vec<&[Vec<f32>]> = outlines.iter().map(<[Vec<f32>; 1]>::as_slice).collect();
    with_outlines(asked, picture, &outlines, Found { data, ..found })
}

fn with_outlines(asked: &Asked<'_>, picture: &Image, outlines: &[&[Vec<f32>]], found: Found) -> Found {
    let mut canvas = Canvas::new(picture);
    let mut mask = Canvas::black(picture);
    for (index, outline) in outlines.iter().enumerate() {
        let colour = drawing::colour(index);
        // Fewer than three corners enclose nothing.
        for corners in outline.iter().filter(|corners| corners.len() >= 6) {
            if asked.fill_mask {
                canvas.tint(corners, colour);
            }
            canvas.draw_outline(corners, colour);
            mask.fill_outline(corners, [1.0; 3]);
        }
    }
    Found { picture: Some(canvas), mask: Some(mask.one_channel()), ..found }
}

/// A number as clients get it.
fn number(value: f32) -> Literal {
    Literal::Float(f64::from(value))
}

/// An answer with a line break in the place of tags.
fn without_tags(written: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    let mut rest = written;
    while let Some((before, after)) = rest.split_once('<') {
        let Some((_, after)) = after.split_once('>') else { break };
        lines.push(before);
        rest = after;
    }
    lines.push(rest);
    let has_tags = lines.len() > 1;
    let joined = lines.into_iter().filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    if has_tags { format!("\n{}\n", joined.trim_matches('\n')) } else { joined }
}

/// The answers to all pictures as the node gives them.
fn joined(host: &Host, answers: Vec<Found>, (height, width): (usize, usize)) -> Result<Outcome> {
    let batch = answers.len();
    let captions: Vec<Literal> = answers.iter().map(|one| Literal::from(one.caption.as_str())).collect();
    let data: Vec<Literal> = answers.iter().flat_map(|one| one.data.clone()).collect();
    let (mut pictures, mut masks) = (Vec::new(), Vec::new());
    for answer in answers {
        pictures.extend(answer.picture.map(Canvas::into_values));
        masks.extend(answer.mask);
    }
    let image = match pictures.len() {
        0 => Image::filled(host, [1, EMPTY_SIDE, EMPTY_SIDE, 3], 0.0)?,
        batch => Image::collect(host, [batch, height, width, 3], pictures.into_iter().flatten())?,
    };
    let mask = match masks.len() {
        0 => Mask::filled(host, [1, EMPTY_SIDE, EMPTY_SIDE], 0.0)?,
        batch => Mask::collect(host, [batch, height, width], masks.into_iter().flatten())?,
    };
    // One picture gives a text, several give a list of them.
    let caption = match captions {
        mut one if batch == 1 => one.swap_remove(0),
        many => Literal::List(many),
    };
    Ok(Outcome::values([
        Value::object(image),
        Value::object(mask),
        Value::Literal(caption),
        Value::Literal(Literal::List(data)),
    ]))
}
