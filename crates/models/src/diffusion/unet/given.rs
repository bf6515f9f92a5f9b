//! From a conditioning on the host to what the model is given on the device, once for a run.

use residency::Lease;
use sampling::{Latent, LatentShape};
use tensor::{Activation, Tensor};

use super::kind::Beside;
use super::{Unet, wrong};
use crate::conditioning::{Conditioned, Scene};
use crate::{Error, Probe, Result};

/// What latent values are of a picture that is black everywhere, in the model's scale.
const BLACK: [f32; 4] = [0.8223, -0.6876, 0.6364, 0.1380];

/// What a conditioning gives the model.
pub(super) struct Given {
    /// The text, `[batch or 1, tokens, width]`.
    pub(super) text: Tensor,
    /// The embedded vector, `[batch or 1, width]`.
    pub(super) vector: Option<Tensor>,
    /// What stands beside the latent, `[batch, channels, height, width]`.
    pub(super) beside: Option<Tensor>,
    /// A picture behind the first convolution, `[batch or 1, channels, height, width]`: what a control network looks at.
    pub(super) hint: Option<Tensor>,
}

impl Given {
    /// Text and vector for batches of so many items.
    pub(super) fn new(
        unet: &Unet,
        lease: &Lease<'_>,
        batch: usize,
        (context, vector): (&Tensor, Option<&Tensor>),
        probe: &mut Probe<'_>,
    ) -> Result<Given> {
        let repeats = |tensor: &Tensor| tensor.dim(0) == 1 || tensor.dim(0) == batch;
        let width = unet.config.context_width;
        if context.rank() != 3 || context.dim(2) != width || !repeats(context) {
            return wrong("the text", format!("[{batch} or 1, tokens, {width}]"), context);
        }
        let vector = match (vector, unet.config.vector_width) {
            (Some(vector), Some(width)) => {
                if vector.rank() != 2 || vector.dim(1) != width || !repeats(vector) {
                    return wrong("the vector beside the time", format!("[{batch} or 1, {width}]"), vector);
                }
                let inner =
                    lease.linear_then("label_emb.0.0", &lease.bring(vector)?, Some(Activation::Silu))?;
                let embedded = lease.linear("label_emb.0.2", &inner)?;
                probe.show(format_args!("label_emb"), &embedded);
                Some(embedded)
            }
            _ => None,
        };
        Ok(Given { text: lease.bring(context)?, vector, beside: None, hint: None })
    }

    /// All that a conditioning says.
    pub(super) fn of(
        unet: &Unet,
        lease: &Lease<'_>,
        conditioned: &Conditioned<'_>,
        scene: &Scene<'_>,
    ) -> Result<Given> {
        let lane = lease.lane();
        let vector = match unet.config.vector_width {
            Some(width) => {
                let values = (unet.kind.vector)(conditioned, scene, width)?;
                Some(lane.tensor([values.len() / width.max(1), width], &values)?)
            }
            None => None,
        };
        let text = conditioned.cond.text_on(lane)?;
        let given = (&text, vector.as_ref());
        let given = Given::new(unet, lease, scene.shape.batch, given, &mut Probe::none())?;
        let beside = match beside(unet, conditioned, scene)? {
            None => None,
            Some(all) => {
                let part =
                    conditioned.window.map_or_else(|| Ok(all.clone()), |window| all.cropped(window))?;
                let LatentShape { batch, channels, height, width, .. } = LatentShape::of(&part)?;
                Some(lane.tensor([batch, channels, height, width], part.values())?)
            }
        };
        Ok(Given { beside, ..given })
    }
}

/// What stands beside the whole latent.
fn beside(unet: &Unet, conditioned: &Conditioned<'_>, scene: &Scene<'_>) -> Result<Option<Latent>> {
    let LatentShape { batch, channels, height, width, .. } = scene.shape;
    let cond = conditioned.cond;
    let fitted = |latent: &Latent| -> Result<Latent> {
        let shape = LatentShape::of(latent)?;
        if shape.frames != 1 {
            return Err(Error::Input {
                what: "what stands beside the latent",
                expected: "a picture, with one frame".into(),
                got: format!("{} frames", shape.frames),
            });
        }
        Ok(latent.resized_and_centred(height, width)?.with_items(batch)?)
    };
    match Beside::of(unet.config.in_channels, unet.kind.latent.channels) {
        None | Some(Beside::Nothing) => Ok(None),
        // A picture to change is given as the autoencoder made it.
        Some(Beside::Picture) => match &cond.concat_latent {
            Some(latent) => Ok(Some(fitted(latent)?)),
            None => Ok(Some(Latent::zeros(&[batch, channels, height, width]))),
        },
        Some(Beside::MaskAndPicture) => {
            let mask = match (&cond.concat_mask, scene.mask) {
                (Some(mask), _) => Latent::clone(mask),
                (None, Some(mask)) => first_channel(mask)?,
                (None, None) => return Ok(Some(all_new(scene.shape)?)),
            };
            let mut mask = mask.resized_and_centred(height, width)?.with_items(batch)?;
            mask.values_mut().iter_mut().for_each(|value| *value = value.round_ties_even());
            let picture = match (&cond.concat_latent, scene.image) {
                (Some(latent), _) => fitted(&unet.kind.latent.to_model(latent)?)?,
                (None, Some(image)) => fitted(image)?,
                (None, None) => Latent::zeros(&[batch, channels, height, width]),
            };
            Ok(Some(mask.with_channels_of(&picture)?))
        }
    }
}

/// The mask and the picture of a run in which all is made new.
fn all_new(shape: LatentShape) -> Result<Latent> {
    let LatentShape { batch, height, width, .. } = shape;
    let plane = height * width;
    let item = || std::iter::once(1.0).chain(BLACK).flat_map(|value| std::iter::repeat_n(value, plane));
    let values = (0..batch).flat_map(|_| item()).collect();
    Ok(Latent::new(vec![batch, 1 + BLACK.len(), height, width], values)?)
}

fn first_channel(latent: &Latent) -> Result<Latent> {
    let LatentShape { batch, channels, height, width, .. } = LatentShape::of(latent)?;
    let plane = height * width;
    let values = latent.values().chunks_exact((channels * plane).max(1));
    let values = values.flat_map(|item| &item[..plane]).copied().collect();
    Ok(Latent::new(vec![batch, 1, height, width], values)?)
}
