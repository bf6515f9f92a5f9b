//! What Wan Animate has of its own: poses that are added to the video's tokens, and faces whose expressions are found by
//! convolutions, brought to the video's frames by layers that look back in time, and looked at behind every fifth block.

use std::sync::Arc;

use residency::{Lease, WeightSpec};
use tensor::{ConvolutionShape, Mask, Padding, Tensor, Weight, Window};

use super::config::{Config, HEAD};
use super::prepared::WanInputs;
use super::speech::through_time;
use super::{Wan, wrong};
use crate::claims::Claims;
use crate::diffusion::batches::together;
use crate::diffusion::modulation::Everywhere;

use crate::diffusion::timed_change::NORM_EPS;
use crate::diffusion::video::{VideoGrid, patchify_video};
use crate::{Probe, Result};

/// Every so many blocks the faces are looked at.
const EVERY: usize = 5;
/// Colours of a picture, and faces that go through the convolutions at once.
const COLOURS: usize = 3;
const AT_ONCE: usize = 8;
/// Layers behind the convolutions.
const LAYERS: usize = 5;
/// A kernel of the layers that look back in time.
const KERNEL: usize = 3;
/// How much of what is below zero is kept, and what all is multiplied with behind that.
const SLOPE: f32 = 0.2;
const GAIN: f32 = std::f32::consts::SQRT_2;
/// What a picture is blurred with along each side before it is halved.
const BLUR: [f32; 4] = [1.0, 3.0, 3.0, 1.0];
/// Values along each side of a picture when the last convolution looks at it.
const LAST_SIDE: usize = 4;

/// The layers by which a model sees faces.
#[derive(Clone, Debug, PartialEq)]
pub struct Face {
    /// Channels behind the first convolution and behind each block that halves the picture.
    pub channels: Vec<usize>,
    /// Values of what the convolutions find.
    pub style: usize,
    /// Values of an expression.
    pub motion: usize,
    /// Values of an expression in the face's space.
    pub space: usize,
    /// Tokens for a frame, beside one that all frames have.
    pub tokens: usize,
    /// Width of the layers that make them.
    pub inner: usize,
    /// Blocks that look at faces.
    pub told: usize,
    /// What expressions are made of: directions at right angles, `[space, motion]`.
    directions: Arc<Vec<f32>>,
}

fn convolution(index: usize) -> String {
    format!("motion_encoder.enc.net_app.convs.{index}")
}

impl Face {
    pub(super) fn read(claims: &Claims<'_>, hidden: usize) -> Result<Option<Face>> {
        if claims.find("face_adapter.fuser_blocks.0.k_norm.weight").is_none() {
            return Ok(None);
        }
        let [first, _, _, _] = claims.dims(&format!("{}.0.weight", convolution(0)))?;
        let mut channels = vec![first];
        while claims.find(&format!("{}.conv2.1.weight", convolution(channels.len()))).is_some() {
            let [to, _, _, _] = claims.dims(&format!("{}.conv2.1.weight", convolution(channels.len())))?;
            channels.push(to);
        }
        let [style, _, _, _] = claims.dims(&format!("{}.weight", convolution(channels.len())))?;
        let name = "motion_encoder.dec.direction.weight";
        let [space, motion] = claims.dims(name)?;
        let Some(values) =
            claims.values(name).filter(|values| values.len() == space * motion && space >= motion)
        else {
            return Err(claims.misfit(name, "plain numbers, at least as many rows as columns".into()));
        };
        let [rows, _, _] = claims.dims("face_encoder.conv1_local.conv.weight")?;
        let [inner, _, _] = claims.dims("face_encoder.conv2.conv.weight")?;
        if !rows.is_multiple_of(inner) || !hidden.is_multiple_of(HEAD) {
            let expected = format!("[a multiple of {inner}, {space}, {KERNEL}]");
            return Err(claims.misfit("face_encoder.conv1_local.conv.weight", expected));
        }
        let told = claims.count(|i| format!("face_adapter.fuser_blocks.{i}.k_norm.weight"));
        let directions = Arc::new(at_right_angles(&values, [space, motion]));
        Ok(Some(Face { channels, style, motion, space, tokens: rows / inner, inner, told, directions }))
    }

    /// Pixels along each side of the faces that it looks at.
    pub fn side(&self) -> usize {
        LAST_SIDE << (self.channels.len() - 1)
    }

    /// Which of the layers that look at faces comes behind a block, if one does.
    pub(super) fn told_behind(&self, block: usize) -> Option<usize> {
        (block.is_multiple_of(EVERY) && block / EVERY < self.told).then_some(block / EVERY)
    }

    /// What the entrance of the model needs.
    pub(super) fn entrance(&self, claims: &Claims<'_>, hidden: usize) -> Result<Vec<WeightSpec>> {
        let bias = |name: String, channels: usize| -> Result<WeightSpec> {
            let mut weight = claims.weight(&name, &[1, channels, 1, 1])?;
            weight.shape = meta::Shape::from([channels]);
            Ok(weight)
        };
        let first = convolution(0);
        let mut weights = vec![
            claims.weight(&format!("{first}.0.weight"), &[self.channels[0], COLOURS, 1, 1])?,
            bias(format!("{first}.1.bias"), self.channels[0])?,
        ];
        for (index, pair) in self.channels.windows(2).enumerate() {
            let (name, [from, to]) = (convolution(index + 1), [pair[0], pair[1]]);
            weights.push(claims.weight(&format!("{name}.conv1.0.weight"), &[from, from, 3, 3])?);
            weights.push(bias(format!("{name}.conv1.1.bias"), from)?);
            weights.push(claims.weight(&format!("{name}.conv2.1.weight"), &[to, from, 3, 3])?);
            weights.push(bias(format!("{name}.conv2.2.bias"), to)?);
            weights.push(claims.weight(&format!("{name}.skip.1.weight"), &[to, from, 1, 1])?);
        }
        let last = self.channels.last().copied().unwrap_or(0);
        let shape = [self.style, last, LAST_SIDE, LAST_SIDE];
        weights.push(claims.weight(&format!("{}.weight", convolution(self.channels.len())), &shape)?);
        for layer in 0..LAYERS {
            let to = if layer + 1 == LAYERS { self.motion } else { self.style };
            weights.extend(claims.layer(&format!("motion_encoder.enc.fc.{layer}"), &[to, self.style])?);
        }
        for (name, to, from) in [
            ("conv1_local", self.inner * self.tokens, self.space),
            ("conv2", self.inner, self.inner),
            ("conv3", self.inner, self.inner),
        ] {
            weights.extend(claims.layer(&format!("face_encoder.{name}.conv"), &[to, from, KERNEL])?);
        }
        weights.extend(claims.layer("face_encoder.out_proj", &[hidden, self.inner])?);
        weights.push(claims.weight("face_encoder.padding_tokens", &[1, 1, 1, hidden])?);
        Ok(weights)
    }

    /// What a block that looks at faces needs more.
    pub(super) fn block(&self, claims: &Claims<'_>, hidden: usize, block: usize) -> Result<Vec<WeightSpec>> {
        let Some(index) = self.told_behind(block) else { return Ok(Vec::new()) };
        let name = format!("face_adapter.fuser_blocks.{index}");
        let mut weights = claims.layer(&format!("{name}.linear1_kv"), &[2 * hidden, hidden])?;
        weights.extend(claims.layer(&format!("{name}.linear1_q"), &[hidden, hidden])?);
        weights.extend(claims.layer(&format!("{name}.linear2"), &[hidden, hidden])?);
        for norm in ["q_norm", "k_norm"] {
            weights.push(claims.weight(&format!("{name}.{norm}.weight"), &[HEAD])?);
        }
        Ok(weights)
    }

    /// Expressions of faces `[faces, 3, side, side]`, `[faces, space]`.
    fn expressions(&self, lease: &Lease<'_>, faces: &Tensor) -> Result<Tensor> {
        let first = convolution(0);
        let mut x = rectified(lease, (&format!("{first}.0"), &format!("{first}.1")), faces, (1, 0))?;
        for index in 1..self.channels.len() {
            let name = convolution(index);
            let inner = (format!("{name}.conv1.0"), format!("{name}.conv1.1"));
            let inner = rectified(lease, (&inner.0, &inner.1), &x, (1, 1))?;
            let halved = (format!("{name}.conv2.1"), format!("{name}.conv2.2"));
            let inner = rectified(lease, (&halved.0, &halved.1), &blurred(&inner, 2)?, (2, 0))?;
            let skip = scaled(lease, &format!("{name}.skip.1"), &blurred(&x, 1)?, None, (2, 0))?;
            x = inner.add(&skip)?.affine(1.0 / GAIN, 0.0)?;
        }
        let x = scaled(lease, &convolution(self.channels.len()), &x, None, (1, 0))?;
        let mut x = x.reshape([faces.dim(0), self.style])?;
        for layer in 0..LAYERS {
            let even = x.affine(1.0 / (self.style as f32).sqrt(), 0.0)?;
            x = lease.linear(&format!("motion_encoder.enc.fc.{layer}"), &even)?;
        }
        let directions = lease.lane().tensor([1, self.motion, self.space], &self.transposed())?;
        let x = x.reshape([1, faces.dim(0), self.motion])?.matmul(&directions, 1.0)?;
        Ok(x.reshape([faces.dim(0), self.space])?)
    }

    fn transposed(&self) -> Vec<f32> {
        let at = |column: usize, row: usize| self.directions[row * self.motion + column];
        (0..self.motion).flat_map(|column| (0..self.space).map(move |row| at(column, row))).collect()
    }
}

/// A convolution whose weights are scaled by their number, with a bias; `(stride, pad)`.
fn scaled(
    lease: &Lease<'_>,
    name: &str,
    x: &Tensor,
    bias: Option<&Weight>,
    (stride, pad): (usize, usize),
) -> Result<Tensor> {
    let weight = lease.weight(&format!("{name}.weight"))?;
    let count: usize = weight.shape().dims()[1..].iter().product();
    let even = x.affine(1.0 / (count as f32).sqrt(), 0.0)?;
    Ok(even.convolution(&weight, bias, &ConvolutionShape::uniform(2, stride, pad))?)
}

/// The same, rectified; `names` are those of the convolution and of its bias.
fn rectified(lease: &Lease<'_>, names: (&str, &str), x: &Tensor, steps: (usize, usize)) -> Result<Tensor> {
    let bias = lease.weight(&format!("{}.bias", names.1))?;
    Ok(scaled(lease, names.0, x, Some(&bias), steps)?.leaky_relu(SLOPE)?.affine(GAIN, 0.0)?)
}

/// A picture blurred, with so many zeros around it.
fn blurred(x: &Tensor, pad: usize) -> Result<Tensor> {
    let channels = x.dim(1);
    let sum: f32 = BLUR.iter().sum();
    let one: Vec<f32> = BLUR.iter().flat_map(|a| BLUR.iter().map(move |b| a * b / (sum * sum))).collect();
    let kernel = x.lane().tensor([channels, 1, BLUR.len(), BLUR.len()], &one.repeat(channels))?;
    let kernel = Weight::new(kernel.operand().clone());
    let window = vec![Window::padded(pad); 2];
    let shape = ConvolutionShape { window, padding: Padding::Constant(0.0), groups: channels };
    Ok(x.convolution(&kernel, None, &shape)?)
}

/// Columns `[rows, columns]` brought to right angles one after the other by reflections, each of length one; a column points
/// where the reflections leave it.
fn at_right_angles(values: &[f32], [rows, columns]: [usize; 2]) -> Vec<f32> {
    let mut left: Vec<f64> = values.iter().copied().map(f64::from).collect();
    let mut mirrors: Vec<Vec<f64>> = Vec::with_capacity(columns);
    for column in 0..columns {
        let mut mirror: Vec<f64> = vec![0.0; rows];
        for row in column..rows {
            mirror[row] = left[row * columns + column];
        }
        let length = mirror.iter().map(|value| value * value).sum::<f64>().sqrt();
        mirror[column] += if mirror[column] < 0.0 { -length } else { length };
        reflect(&mirror, &mut left, columns);
        mirrors.push(mirror);
    }
    let mut directions = vec![0.0; rows * columns];
    for column in 0..columns {
        directions[column * columns + column] = 1.0;
    }
    mirrors.iter().rev().for_each(|mirror| reflect(mirror, &mut directions, columns));
    directions.into_iter().map(|value| value as f32).collect()
}

/// Reflects every column in a mirror.
fn reflect(mirror: &[f64], matrix: &mut [f64], columns: usize) {
    let square: f64 = mirror.iter().map(|value| value * value).sum();
    if square == 0.0 {
        return;
    }
    for column in 0..columns {
        let along: f64 =
            mirror.iter().zip(matrix.iter().skip(column).step_by(columns)).map(|(a, b)| a * b).sum();
        let twice = 2.0 * along / square;
        for (value, mirror) in matrix.iter_mut().skip(column).step_by(columns).zip(mirror) {
            *value -= twice * mirror;
        }
    }
}

/// Poses as what is added to the tokens of a video from its second frame on, `[1 or batch, tokens, hidden]`.
pub(super) fn poses(wan: &Wan, lease: &Lease<'_>, (poses, latent): (&Tensor, &Tensor)) -> Result<Tensor> {
    let (grid, own) = (VideoGrid::sized(latent.shape()), VideoGrid::sized(poses.shape()));
    if wan.config.face.is_none() || own.per_frame() != grid.per_frame() {
        let expected = format!("frames of the latent's size, {}", latent.shape());
        return wrong("poses", expected, poses);
    }
    let tokens = lease.linear("pose_patch_embedding", &patchify_video(&lease.bring(poses)?)?)?;
    let tokens = tokens.reshape([tokens.dim(0), own.frames, grid.per_frame(), wan.config.hidden])?;
    behind_the_first(lease, &tokens, grid.frames)
}

/// What is for the frames of a video from the second on, `[rows, frames, tokens, width]`, as what is for each of so many
/// frames, those of each in a row: nothing for the first, and for those that there is nothing for.
fn behind_the_first(lease: &Lease<'_>, own: &Tensor, frames: usize) -> Result<Tensor> {
    let (rows, each, width) = (own.dim(0), own.dim(2), own.dim(3));
    let nothing = |frames: usize| lease.lane().full([rows, frames, each, width], 0.0);
    let kept = own.dim(1).min(frames - 1);
    let mut parts = vec![nothing(1)?];
    if kept > 0 {
        parts.push(own.slice(1, 0, kept)?.contiguous()?);
    }
    if kept + 1 < frames {
        parts.push(nothing(frames - 1 - kept)?);
    }
    let all = together(&parts.iter().collect::<Vec<_>>(), 1)?;
    Ok(all.reshape([rows, frames * each, width])?)
}

/// Faces `[1 or batch, 3, frames, side, side]` as tokens of the latent's frames, those of each in a row.
pub(super) fn faces(
    wan: &Wan,
    lease: &Lease<'_>,
    (faces, inputs): (&Tensor, &WanInputs<'_>),
    probe: &mut Probe<'_>,
) -> Result<(Tensor, usize)> {
    let Some(face) = &wan.config.face else {
        return wrong("faces", "for a model that sees them".into(), faces);
    };
    let (side, batch, hidden) = (face.side(), inputs.latent.dim(0), wan.config.hidden);
    let fits = faces.rank() == 5 && (faces.dim(0) == 1 || faces.dim(0) == batch) && faces.dim(2) > 0;
    if !fits || faces.dim(1) != COLOURS || faces.dims()[3..] != [side, side] {
        return wrong("faces", format!("[{batch} or 1, {COLOURS}, frames, {side}, {side}]"), faces);
    }
    let (rows, count) = (faces.dim(0), faces.dim(2));
    let pictures = lease.bring(faces)?.permute(&[0, 2, 1, 3, 4])?.contiguous()?;
    let pictures = pictures.reshape([rows * count, COLOURS, side, side])?;
    let mut parts = Vec::new();
    for start in (0..rows * count).step_by(AT_ONCE) {
        let some = pictures.slice(0, start, AT_ONCE.min(rows * count - start))?.contiguous()?;
        parts.push(face.expressions(lease, &some)?);
    }
    let found = Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?;
    probe.show(format_args!("motion_encoder"), &found);
    let found = found.reshape([rows, count, face.space])?.transpose(1, 2)?.contiguous()?;
    let seen = through_time(lease, ("face_encoder", "conv1_local"), &found, face.tokens)?;
    let seen = lease.linear("face_encoder.out_proj", &seen)?;
    let have = seen.dim(1);
    let own = seen.reshape([rows, face.tokens, have, hidden])?.permute(&[0, 2, 1, 3])?.contiguous()?;
    let more = lease.lane().unpack(&lease.weight("face_encoder.padding_tokens")?)?;
    let more = more.reshape([1, 1, 1, hidden])?.broadcast([rows, have, 1, hidden])?.contiguous()?;
    let own = Tensor::concat(&[&own, &more], 2)?;
    probe.show(format_args!("face_encoder"), &own);
    let frames = inputs.latent.dim(2);
    Ok((behind_the_first(lease, &own, frames)?, frames))
}

/// The faces in a batch, between blocks.
pub(super) struct Seen {
    faces: Everywhere,
    frames: usize,
}

impl Seen {
    pub(super) fn new(faces: Tensor, frames: usize) -> Seen {
        Seen { faces: Everywhere::new(faces), frames }
    }

    /// Lets every frame look at its face; `index` is the number of the layers that look.
    pub(super) fn look(
        &mut self,
        config: &Config,
        lease: &Lease<'_>,
        index: usize,
        x: &Tensor,
    ) -> Result<Tensor> {
        let faces = self.faces.on(lease)?;
        let (rows, hidden) = (x.dim(0) * self.frames, x.dim(2));
        let name = format!("face_adapter.fuser_blocks.{index}");
        let heads = |x: &Tensor| -> Result<Tensor> {
            Ok(x.reshape([rows, x.shape().count() / (rows * hidden), config.heads, HEAD])?)
        };
        let normed = |norm: &str, x: &Tensor| -> Result<Tensor> {
            Ok(heads(x)?.rms_norm(Some(&lease.weight(&format!("{name}.{norm}.weight"))?), NORM_EPS)?)
        };
        let both = lease.linear(&format!("{name}.linear1_kv"), &faces.layer_norm(None, None, NORM_EPS)?)?;
        let k = normed("k_norm", &both.slice(2, 0, hidden)?.contiguous()?)?;
        let v = heads(&both.slice(2, hidden, hidden)?.contiguous()?)?;
        let q = lease.linear(&format!("{name}.linear1_q"), &x.layer_norm(None, None, NORM_EPS)?)?;
        let q = normed("q_norm", &q)?;
        let attended = q.attention(&k, &v, &Mask::None, 1.0 / (HEAD as f32).sqrt())?;
        Ok(x.add(&lease.linear(&format!("{name}.linear2"), &attended.reshape(*x.shape())?)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_brought_to_right_angles() {
        let directions = at_right_angles(&[3.0, 1.0, 4.0, 2.0, 0.0, 5.0], [3, 2]);
        let column = |at: usize| [directions[at], directions[2 + at], directions[4 + at]].map(f64::from);
        let product = |a: [f64; 3], b: [f64; 3]| a.iter().zip(&b).map(|(a, b)| a * b).sum::<f64>();
        assert!((product(column(0), column(0)) - 1.0).abs() < 1e-6);
        assert!((product(column(1), column(1)) - 1.0).abs() < 1e-6);
        assert!(product(column(0), column(1)).abs() < 1e-6);
        // The first is the first column's, turned around as reflections turn it.
        assert!((column(0)[0] + 0.6).abs() < 1e-6 && (column(0)[1] + 0.8).abs() < 1e-6);
    }
}
