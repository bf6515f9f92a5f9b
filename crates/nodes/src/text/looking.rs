//! Pictures for language models that read them among words.

use std::time::Instant;

use graph::Call;
use runtime::{Caller, Clip, Network, PictureSize, Runtime, Wanted};

use super::SeenPicture;
use super::encoding::to_array;
use crate::image::{Method, Target, scale_image};
use crate::value::Image;
use crate::{Error, Result};

/// A picture as the tower beside a language model sees it: the first of several, without transparency.
pub(crate) fn look(runtime: &Runtime, call: &Call, clip: &Clip, image: &Image) -> Result<SeenPicture> {
    let without = || {
        let names: Vec<String> = clip.encoders.iter().map(|encoder| encoder.name()).collect();
        Error::Told(format!(
            "{} cannot look at pictures: load a file of Qwen2.5-VL or Qwen3-VL that has its tower (tensors \
             visual.…), such as qwen_2.5_vl_7b.safetensors",
            names.join(", ")
        ))
    };
    let source = clip.tower.as_ref().ok_or_else(without)?;
    let Network::Vision(model) = &*source.network else { return Err(without()) };
    let tower = model.tower().ok_or_else(without)?;
    let image = image.frames([0])?.with_channels(3)?;
    let [height, width] = tower.fitting_size([image.height, image.width]);
    let image = scale_image(&image, Target::new(width, height), Method::Bilinear)?;
    let size = PictureSize { batch: 1, frames: 1, height, width, evaluations: 1, text: None };
    let work = source.network.usual_work(size);
    let wanted = Wanted { source, beside: &[], loras: &[], work: &work };
    let caller = Caller::of(&call.job);
    runtime.with_session(wanted, &caller, |opened| {
        let started = Instant::now();
        let seen = tower.look(&opened.session, [height, width], &image.values)?;
        let values = to_array(&seen.tokens)?;
        let deep = seen.deep.iter().map(to_array).collect::<Result<_>>()?;
        runtime.note_evaluation(opened, started);
        Ok(SeenPicture { values, deep, grid: Some(seen.grid) })
    })
}
