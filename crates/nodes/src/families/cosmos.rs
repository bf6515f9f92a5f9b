//! Cosmos Predict 2's own nodes: a video that begins or ends with pictures.

use std::sync::Arc;

use graph::{Call, Catalogue, Failure, Input, Outcome};
use models::diffusion::latents::VIDEO_16;
use runtime::Runtime;
use runtime::host::Samples;
use sampling::Latent;

use super::asked::{Asked, axes, sized};
use crate::class::class;
use crate::value::{Image, LatentImage, Mask};
use crate::{Error, Result};

/// Frames of a video behind the first that the first generation had in one frame of a latent. The second is told its
/// pictures by the same count.
const FRAMES: usize = 8;
/// What stands for frames that are not given, as a picture.
const GREY: f32 = 0.5;

/// Adds the classes of this file.
pub(super) fn add(catalogue: &mut Catalogue, runtime: &Arc<Runtime>) {
    catalogue.add(CosmosPredict2ImageToVideoLatent(Arc::clone(runtime)));
}

class! {
    /// A latent that begins or ends with pictures, for the model that is told where it is clean.
    CosmosPredict2ImageToVideoLatent in "conditioning/inpaint";
    |schema| sized(schema.input(Input::socket("vae", "VAE")), [848, 480, 93], 16)
        .input(Input::socket("start_image", "IMAGE").optional())
        .input(Input::socket("end_image", "IMAGE").optional())
        .output("LATENT")
        .module("comfy_extras.nodes_cosmos");
    |runtime, call| {
        let asked = Asked::of(call)?;
        let start = encoded(runtime, call, &asked, "start_image", 1)?;
        let end = encoded(runtime, call, &asked, "end_image", 0)?;
        if start.is_none() && end.is_none() {
            let one = Asked { batch: 1, ..asked };
            return Ok(Outcome::object(one.empty(runtime, &VIDEO_16, 0)?));
        }
        let shape = asked.shape(&VIDEO_16);
        let [_, channels, frames, height, width] = shape;
        let mut one = VIDEO_16.to_autoencoder(&Latent::zeros(&shape)).map_err(Error::from)?;
        let mut made = vec![1.0; frames];
        if let Some(start) = &start {
            made[put(&mut one, start, false)].fill(0.0);
        }
        if let Some(end) = &end {
            made[put(&mut one, end, true)].fill(0.0);
        }
        let all = [asked.batch, channels, frames, height, width];
        let room = runtime.host.room(&all)?;
        let samples = Latent::new(all.to_vec(), one.values().repeat(asked.batch)).map_err(Error::from)?;
        let plane = height * width;
        let mask = (0..frames * plane).map(|at| made[at / plane.max(1)]);
        let mask = Mask::collect(&runtime.host, [frames, height, width], mask)?;
        Ok(Outcome::object(LatentImage { noise_mask: Some(mask), ..LatentImage::new(room.latent(samples)) }))
    }
}

/// The latent of given pictures: they are filled up with grey to as many as so many more frames of a latent stand for, and
/// what comes of the filling is left out.
fn encoded(
    runtime: &Runtime,
    call: &Call,
    asked: &Asked,
    input: &str,
    more: usize,
) -> Result<Option<Samples>, Failure> {
    let Some(pictures) = asked.first_pictures(call, input)? else { return Ok(None) };
    let given = (pictures.batch - 1) / FRAMES + 1;
    let length = ((given + more) * FRAMES).saturating_sub(FRAMES - 1).min(asked.length).max(pictures.batch);
    let (height, width) = (pictures.height, pictures.width);
    let grey = (length - pictures.batch) * pictures.frame_len();
    let values = pictures.values.iter().copied().chain(std::iter::repeat_n(GREY, grey));
    let filled = Image::collect(&runtime.host, [length, height, width, 3], values)?;
    let all = asked.encode(runtime, call, &filled)?;
    let [batch, channels, frames, height, width] = axes(&all);
    let (kept, plane) = (given.min(frames), height * width);
    let shape = [batch, channels, kept, height, width];
    let room = runtime.host.room(&shape)?;
    let planes = all.values().chunks_exact((frames * plane).max(1)).flat_map(|own| &own[..kept * plane]);
    let latent = Latent::new(shape.to_vec(), planes.copied().collect()).map_err(Error::from)?;
    Ok(Some(room.latent(latent)))
}

/// Writes frames over the first or last of a latent of equal planes, and says which these are.
fn put(to: &mut Latent, from: &Latent, at_end: bool) -> std::ops::Range<usize> {
    let ([_, channels, frames, height, width], [_, _, have, ..]) = (axes(to), axes(from));
    let (count, plane) = (have.min(frames), height * width);
    let first = if at_end { frames - count } else { 0 };
    for channel in 0..channels {
        let own = &from.values()[channel * have * plane..][..count * plane];
        to.values_mut()[(channel * frames + first) * plane..][..count * plane].copy_from_slice(own);
    }
    first..first + count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_put_at_either_end() {
        let from = Latent::new(vec![1, 2, 1, 1, 1], vec![1.0, 2.0]).unwrap();
        let mut to = Latent::zeros(&[1, 2, 3, 1, 1]);
        assert_eq!(put(&mut to, &from, false), 0..1);
        assert_eq!(put(&mut to, &from, true), 2..3);
        assert_eq!(to.values(), [1.0, 0.0, 1.0, 2.0, 0.0, 2.0]);
    }
}
