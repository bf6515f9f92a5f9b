//! What vision towers see in pictures, and what is made of it: tokens behind a text.

mod pixels;
mod style;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use graph::{Call, Catalogue, Failure, Input, Object, Outcome};
use models::vision::clip_vision::{ClipVision, Features as Seen};
use tensor::Tensor;

use crate::class::class;
use crate::value::{ClipVisionOutput, Features, Image};
use crate::wanted::still_wanted;
use crate::{Error, Result, Runtime};
use runtime::host::Room;
use runtime::{Caller, Network, Source, Wanted, Work};

pub(crate) use style::{StyleModelHandle, style_of};

/// Adds the classes of this file.
pub(crate) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CLIPVisionEncode(Arc::clone(runtime)));
    style::add(catalogue, runtime);
}

/// A vision tower: `CLIP_VISION`.
#[derive(Clone)]
pub(crate) struct TowerHandle {
    pub(crate) source: Arc<Source>,
}

impl TowerHandle {
    fn tower(&self) -> Result<&ClipVision> {
        vision_network(&self.source)
            .ok_or_else(|| Error::Told(format!("{} is no CLIP vision model", self.source.name())))
    }
}

/// The network of a source, if it is a vision network of this kind.
fn vision_network<T: 'static>(source: &Source) -> Option<&T> {
    match &*source.network {
        Network::Vision(vision) => vision.as_any().downcast_ref(),
        _ => None,
    }
}

impl Object for TowerHandle {
    fn is_current(&self) -> bool {
        self.source.is_current()
    }

    fn describe(&self) -> String {
        format!("vision model {}", self.source.name())
    }
}

impl fmt::Debug for TowerHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe())
    }
}

class! {
    /// What a vision tower sees in pictures.
    CLIPVisionEncode in "conditioning";
    |schema| schema
        .input(Input::socket("clip_vision", "CLIP_VISION"))
        .input(Input::socket("image", "IMAGE"))
        .input(Input::choice("crop", ["center", "none"]))
        .title("CLIP Vision Encode")
        .output("CLIP_VISION_OUTPUT");
    |runtime, call| {
        let (tower, image) = (call.object::<TowerHandle>("clip_vision")?, call.object::<Image>("image")?);
        let is_cropped = call.text("crop")? == "center";
        Ok(Outcome::object(see(runtime, call, &tower, &image, is_cropped)?))
    }
}

/// What a tower sees in each of the pictures, one after the other; what does not fit into its square is cut off or squeezed.
pub(crate) fn see(
    runtime: &Runtime,
    call: &Call,
    handle: &TowerHandle,
    image: &Image,
    is_cropped: bool,
) -> Result<ClipVisionOutput, Failure> {
    let tower = handle.tower()?;
    if image.batch == 0 {
        return Err(Failure::value("there is no picture in the batch; check the node that made it"));
    }
    let caller = Caller::of(&call.job);
    let wanted = Wanted { source: &handle.source, beside: &[], loras: &[], work: &Work::Look };
    let side = tower.config().side;
    let seen = runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        let mut all = Collected::new(runtime, image.batch);
        for index in 0..image.batch {
            let pixels = pixels::prepared(image, index, tower.config(), is_cropped)?;
            let pixels = opened.session.lane()?.tensor([1, 3, side, side], &pixels)?;
            all.add(&tower.look(&opened.session, &pixels)?)?;
            still_wanted()?;
        }
        runtime.note_evaluation(opened, started);
        Ok(all)
    })?;
    Ok(seen.output()?)
}

/// What was seen so far.
struct Collected<'a> {
    runtime: &'a Runtime,
    batch: usize,
    /// In the order of [`Seen`]'s fields: last, penultimate, embeds, projected, and the two earlier ones.
    parts: [Option<Growing>; 6],
}

/// Values of a batch, picture by picture.
struct Growing {
    shape: Vec<usize>,
    room: Room,
    values: Vec<f32>,
}

impl<'a> Collected<'a> {
    fn new(runtime: &'a Runtime, batch: usize) -> Collected<'a> {
        Collected { runtime, batch, parts: [const { None }; 6] }
    }

    /// Adds what was seen in the next picture.
    fn add(&mut self, seen: &Seen) -> Result<()> {
        // SigLIP has no vector for a whole picture: what stands in its place is the last state once more.
        let embeds = Some(&seen.embeds).filter(|embeds| embeds.rank() == 2);
        let [middle, early] = [0, 1].map(|at| seen.earlier.as_ref().map(|earlier| &earlier[at]));
        let tensors =
            [Some(&seen.last), Some(&seen.penultimate), embeds, seen.projected.as_ref(), middle, early];
        for (part, tensor) in self.parts.iter_mut().zip(tensors) {
            let Some(tensor) = tensor else { continue };
            let growing = match part {
                Some(growing) => growing,
                None => part.insert(Growing::new(self.runtime, self.batch, tensor)?),
            };
            growing.values.extend(tensor.to_vec()?);
        }
        Ok(())
    }

    fn output(self) -> Result<ClipVisionOutput> {
        let [last, penultimate, embeds, projected, middle, early] =
            self.parts.map(|part| part.map(Growing::features));
        let (Some(last), Some(penultimate)) = (last, penultimate) else {
            return Err(Error::Told("the vision model gave nothing".into()));
        };
        let embeds = embeds.unwrap_or_else(|| last.clone());
        let earlier = middle.zip(early).map(|(middle, early)| [middle, early]);
        Ok(ClipVisionOutput { last, penultimate, embeds, projected, earlier })
    }
}

impl Growing {
    /// Room for a batch of what a picture gave.
    fn new(runtime: &Runtime, batch: usize, one: &Tensor) -> Result<Growing> {
        let mut shape = one.dims().to_vec();
        shape[0] = batch;
        let room = runtime.host.room(&shape)?;
        Ok(Growing { values: room.vector()?, shape, room })
    }

    fn features(self) -> Features {
        Features { shape: self.shape, values: self.room.hold(self.values) }
    }
}
