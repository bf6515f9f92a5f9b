//! What autoencoders of videos share. A family computes a video part by part; here parts become pictures, tiles and
//! rehearsals.

use checkpoint::Checkpoint;
use device::{Stream, StreamKind};
use meta::DType;
use residency::Session;
use tensor::{Padding, Tensor, Unread};

use super::volume::{Block, Piece, Scale, Side, Volume};
use super::{Autoencoder, CodedSize, FrameTiles, Pictures, TakePictures, Tiling};
use crate::rehearsal::{arrived, read_back};
use crate::{Error, Module, Result};

/// The sizes of an autoencoder of videos.
#[derive(Clone, Copy, Debug)]
pub(super) struct VideoSizes {
    pub(super) latent_channels: usize,
    /// Channels of a picture.
    pub(super) channels: usize,
    /// Pixels along one side of a latent value.
    pub(super) factor: usize,
    /// Frames behind the first that one frame of a latent stands for.
    pub(super) frames: usize,
}

/// Takes parts of a video, `[1, channels, frames, height, width]` of values from about -1 to 1.
pub(super) type TakeParts<'a> = dyn FnMut(&Tensor) -> Result<()> + 'a;
/// Gives frames of a video: so many from one on, `[frames, height, width, channels]` of values from 0 to 1.
pub(super) type GiveFrames<'a> = dyn Fn(usize, usize) -> Result<Tensor> + 'a;

/// An autoencoder of videos, part by part.
pub(super) trait VideoCoder {
    fn sizes(&self) -> VideoSizes;

    /// As [`Autoencoder::channel_statistics`].
    fn channel_statistics(&self, checkpoint: &Checkpoint) -> Option<[Vec<f32>; 2]> {
        let _ = checkpoint;
        None
    }

    /// Whether its videos are pictures, each by itself.
    fn is_for_pictures(&self) -> bool {
        false
    }

    /// Decodes one latent `[1, channels, frames, height, width]`.
    fn decode_parts(&self, session: &Session, latent: &Tensor, take: &mut TakeParts<'_>) -> Result<()>;

    /// Encodes the frames of one video. What is over behind whole frames of the latent is left out.
    fn encode_parts(&self, session: &Session, frames: usize, give: &GiveFrames<'_>) -> Result<Tensor>;
}

impl<T: VideoCoder + Module> Autoencoder for T {
    fn channel_statistics(&self, checkpoint: &Checkpoint) -> Option<[Vec<f32>; 2]> {
        VideoCoder::channel_statistics(self, checkpoint)
    }

    fn latent_channels(&self) -> usize {
        self.sizes().latent_channels
    }

    fn picture_channels(&self) -> usize {
        self.sizes().channels
    }

    fn pixels_per_value(&self) -> usize {
        self.sizes().factor
    }

    fn frames_per_value(&self) -> Option<usize> {
        (!self.is_for_pictures()).then(|| self.sizes().frames)
    }

    fn decode(
        &self,
        session: &Session,
        latent: &Tensor,
        tiling: Option<Tiling>,
        take: &mut TakePictures<'_>,
    ) -> Result<()> {
        decode(self, session, latent, tiling, take)
    }

    fn encode(&self, session: &Session, pictures: &Pictures<'_>, tiling: Option<Tiling>) -> Result<Tensor> {
        if self.is_for_pictures() {
            return encode_each(self, session, pictures, tiling);
        }
        encode(self, session, pictures, tiling)
    }

    fn rehearse_decoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        rehearse_decoding(self, session, size)
    }

    fn rehearse_encoding(&self, session: &Session, size: CodedSize) -> Result<()> {
        rehearse_encoding(self, session, size)
    }
}

/// As [`Autoencoder::decode`].
fn decode(
    coder: &dyn VideoCoder,
    session: &Session,
    latent: &Tensor,
    tiling: Option<Tiling>,
    take: &mut TakePictures<'_>,
) -> Result<()> {
    // A picture is a video of one frame.
    let latent = match *latent.dims() {
        [batch, channels, height, width] => latent.reshape([batch, channels, 1, height, width])?,
        _ => latent.clone(),
    };
    let channels = coder.sizes().latent_channels;
    if latent.rank() != 5 || latent.dim(1) != channels || latent.dims().contains(&0) {
        return Err(Error::Input {
            what: "the latent",
            expected: format!("[batch, {channels}, frames, height, width]"),
            got: format!("of shape {}", latent.shape()),
        });
    }
    for item in 0..latent.dim(0) {
        let item = latent.slice(0, item, 1)?;
        match tiling {
            Some(tiling) => decode_tiled(coder, session, &item, tiling, take)?,
            None => {
                let mut reader = BehindReader::default();
                coder.decode_parts(session, &item, &mut |part| reader.next(&pictures_of(part)?, take))?;
                reader.finish(take)?;
            }
        }
    }
    Ok(())
}

/// Reads the pictures of a part while the device computes the next one.
#[derive(Default)]
struct BehindReader {
    /// The device's stream for reading; of the one that gave the last part.
    stream: Option<Stream>,
    unread: Option<Unread>,
}

impl BehindReader {
    /// Takes over a part, and hands over the one before it.
    fn next(&mut self, pictures: &Tensor, take: &mut TakePictures<'_>) -> Result<()> {
        let lane = pictures.lane();
        let stream = match self.stream.take() {
            Some(stream) if stream.device() == lane.device().id() => stream,
            _ => lane.device().open_stream(StreamKind::Copy)?.with_cancel(lane.stream().cancel()),
        };
        let unread = pictures.to_read_over(&stream)?;
        self.stream = Some(stream);
        match self.unread.replace(unread) {
            Some(before) => take(&before.to_vec()?),
            None => Ok(()),
        }
    }

    /// Hands over the last part.
    fn finish(self, take: &mut TakePictures<'_>) -> Result<()> {
        self.unread.map_or(Ok(()), |last| take(&last.to_vec()?))
    }
}

/// As [`Autoencoder::encode`].
fn encode(
    coder: &dyn VideoCoder,
    session: &Session,
    pictures: &Pictures<'_>,
    tiling: Option<Tiling>,
) -> Result<Tensor> {
    let ([frames, height, width, channels], factor) = (pictures.shape, coder.sizes().factor);
    if frames == 0 || channels == 0 || height < factor || width < factor {
        return Err(Error::Input {
            what: "the frames",
            expected: format!("[frames, height, width, channels] of at least {factor} x {factor} pixels"),
            got: format!("of shape [{frames}, {height}, {width}, {channels}]"),
        });
    }
    match tiling {
        Some(tiling) => encode_tiled(coder, session, pictures, tiling),
        None => {
            coder.encode_parts(session, frames, &|start, len| pictures.part_on(session.lane()?, start, len))
        }
    }
}

/// The same for pictures, which know nothing of each other: `[pictures, channels, height, width]`.
fn encode_each(
    coder: &dyn VideoCoder,
    session: &Session,
    pictures: &Pictures<'_>,
    tiling: Option<Tiling>,
) -> Result<Tensor> {
    let [count, height, width, channels] = pictures.shape;
    let one = |i: usize| -> Result<Tensor> {
        let size = height * width * channels;
        let values = &pictures.values[i * size..(i + 1) * size];
        let alone = Pictures { shape: [1, height, width, channels], values };
        let latent = encode(coder, session, &alone, tiling)?;
        let [batch, channels, _, height, width] = [0, 1, 2, 3, 4].map(|axis| latent.dim(axis));
        Ok(latent.reshape([batch, channels, height, width])?)
    };
    let latents = (0..count).map(one).collect::<Result<Vec<_>>>()?;
    match latents.as_slice() {
        [] => encode(coder, session, pictures, tiling),
        latents => Ok(Tensor::concat(&latents.iter().collect::<Vec<_>>(), 0)?),
    }
}

/// Decodes an empty latent.
fn rehearse_decoding(coder: &dyn VideoCoder, session: &Session, size: CodedSize) -> Result<()> {
    let channels = coder.sizes().latent_channels;
    let latent = arrived(session.lane()?, [1, channels, size.frames, size.height, size.width])?;
    let (height, width) = size.at_once();
    let part = latent.slice(3, 0, height)?.slice(4, 0, width)?.contiguous()?;
    // The pictures of a part stay until the next one has come.
    let mut before = None;
    coder.decode_parts(session, &part, &mut |part| {
        before = Some(pictures_of(part)?.cast(DType::F32)?.contiguous()?);
        Ok(())
    })?;
    drop(before);
    Ok(())
}

/// Encodes an empty video.
fn rehearse_encoding(coder: &dyn VideoCoder, session: &Session, size: CodedSize) -> Result<()> {
    let (lane, VideoSizes { channels, factor, frames, .. }) = (session.lane()?, coder.sizes());
    let (height, width) = size.at_once();
    let latent = coder.encode_parts(session, Scale::FramesUp(frames).length(size.frames), &|_, len| {
        // Frames arrive whole before a tile is cut out of them.
        let whole = arrived(lane, [len, size.height * factor, size.width * factor, channels])?;
        Ok(whole.slice(1, 0, height * factor)?.slice(2, 0, width * factor)?)
    })?;
    read_back(&latent)
}

/// Frames `[frames, height, width, channels]` as an encoder wants them, `[1, channels, frames, height, width]` of values
/// from -1 to 1, cut to whole values of a latent.
pub(super) fn pixels_of(frames: &Tensor, sizes: VideoSizes) -> Result<Tensor> {
    let mut frames = frames.clone();
    for axis in [1, 2] {
        let over = frames.dim(axis) % sizes.factor;
        frames = frames.slice(axis, over / 2, frames.dim(axis) - over)?;
    }
    let missing = sizes.channels.saturating_sub(frames.dim(3));
    if missing > 0 {
        // A picture without transparency is opaque.
        frames = frames.pad(&[(0, 0), (0, 0), (0, 0), (0, missing)], Padding::Constant(1.0))?;
    }
    let frames = frames.slice(3, 0, sizes.channels)?;
    let (count, height, width) = (frames.dim(0), frames.dim(1), frames.dim(2));
    let pixels = frames.permute(&[3, 0, 1, 2])?.reshape([1, sizes.channels, count, height, width])?;
    Ok(pixels.contiguous()?.affine(2.0, -1.0)?)
}

/// Pixels `[1, channels, frames, height, width]` with patches of so many along a side folded into channels: their columns
/// slower than their rows.
pub(super) fn folded(pixels: &Tensor, patch: usize) -> Result<Tensor> {
    if patch == 1 {
        return Ok(pixels.clone());
    }
    let (channels, frames) = (pixels.dim(1), pixels.dim(2));
    let (height, width) = (pixels.dim(3) / patch, pixels.dim(4) / patch);
    Ok(pixels
        .reshape([1, channels, frames, height, patch, width, patch])?
        .permute(&[0, 1, 6, 4, 2, 3, 5])?
        .reshape([1, channels * patch * patch, frames, height, width])?)
}

/// The reverse of folding.
pub(super) fn unfolded(raw: &Tensor, patch: usize) -> Result<Tensor> {
    if patch == 1 {
        return Ok(raw.clone());
    }
    let (channels, frames, height, width) =
        (raw.dim(1) / (patch * patch), raw.dim(2), raw.dim(3), raw.dim(4));
    Ok(raw
        .reshape([1, channels, patch, patch, frames, height, width])?
        .permute(&[0, 1, 4, 5, 3, 6, 2])?
        .reshape([1, channels, frames, height * patch, width * patch])?)
}

/// A part of a video as pictures `[frames, height, width, channels]` of values from 0 to 1.
fn pictures_of(part: &Tensor) -> Result<Tensor> {
    let (channels, frames, height, width) = (part.dim(1), part.dim(2), part.dim(3), part.dim(4));
    let pictures = part.permute(&[0, 2, 3, 4, 1])?.reshape([frames, height, width, channels])?;
    Ok(pictures.affine(0.5, 0.5)?.clamp(0.0, 1.0)?)
}

/// One latent in tiles, put together on the host.
fn decode_tiled(
    coder: &dyn VideoCoder,
    session: &Session,
    latent: &Tensor,
    tiling: Tiling,
    take: &mut TakePictures<'_>,
) -> Result<()> {
    let VideoSizes { channels, factor, frames, .. } = coder.sizes();
    let size = [latent.dim(2), latent.dim(3), latent.dim(4)];
    let scales = [Scale::FramesUp(frames), Scale::Up(factor), Scale::Up(factor)];
    let volume = volume(size, tiling, scales, channels);
    let raw = volume.compute(|block, blend| {
        let mut frame = 0;
        coder.decode_parts(session, &cut(latent, block)?, &mut |part| {
            let size = [part.dim(2), part.dim(3), part.dim(4)];
            blend.add(block, &Piece { frame, size, values: &part.to_vec()? });
            frame += size[0];
            Ok(())
        })
    })?;
    let [frames, height, width] = volume.size();
    let plane = height * width;
    for frame in 0..frames {
        let value = |at: usize| raw[(at % channels * frames + frame) * plane + at / channels];
        let picture = (0..plane * channels).map(|at| (value(at) * 0.5 + 0.5).clamp(0.0, 1.0));
        take(&picture.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// A video in tiles, put together on the host.
fn encode_tiled(
    coder: &dyn VideoCoder,
    session: &Session,
    pictures: &Pictures<'_>,
    tiling: Tiling,
) -> Result<Tensor> {
    let VideoSizes { latent_channels, factor, frames: by, .. } = coder.sizes();
    let [frames, height, width, _] = pictures.shape;
    // Frames of whole values; a tile of them, and what two share, is counted in the latent.
    let up = |values: usize| Scale::FramesUp(by).length(values);
    let whole = up(Scale::FramesDown(by).length(frames));
    let side = |pixels: usize| pixels / factor * factor;
    let tiling = Tiling {
        tile: tiling.tile * factor,
        overlap: tiling.overlap * factor,
        frames: tiling.frames.map(|tiles| FrameTiles { tile: up(tiles.tile), overlap: up(tiles.overlap) }),
    };
    let scales = [Scale::FramesDown(by), Scale::Down(factor), Scale::Down(factor)];
    let volume = volume([whole, side(height), side(width)], tiling, scales, latent_channels);
    let (top, left) = (height % factor / 2, width % factor / 2);
    let values = volume.compute(|block, blend| {
        let [(first, times), (row, rows), (column, columns)] = *block;
        let latent = coder.encode_parts(session, times, &|start, len| {
            let frames = pictures.part_on(session.lane()?, first + start, len)?;
            Ok(frames.slice(1, top + row, rows)?.slice(2, left + column, columns)?)
        })?;
        let size = [latent.dim(2), latent.dim(3), latent.dim(4)];
        blend.add(block, &Piece { frame: 0, size, values: &latent.to_vec()? });
        Ok(())
    })?;
    let [frames, height, width] = volume.size();
    Ok(session.lane()?.tensor([1, latent_channels, frames, height, width], &values)?)
}

/// A part of a latent.
fn cut(latent: &Tensor, block: &Block) -> Result<Tensor> {
    let mut part = latent.clone();
    for (axis, (start, len)) in block.iter().enumerate() {
        part = part.slice(axis + 2, *start, *len)?;
    }
    Ok(part.contiguous()?)
}

/// A video of this size in tiles.
fn volume(size: [usize; 3], tiling: Tiling, scales: [Scale; 3], channels: usize) -> Volume {
    let side = |axis: usize| {
        let (tile, overlap) = match (axis, tiling.frames) {
            (0, Some(tiles)) => (tiles.tile, tiles.overlap),
            (0, None) => (size[0], 0),
            _ => (tiling.tile, tiling.overlap),
        };
        Side { length: size[axis], tile, overlap, scale: scales[axis] }
    };
    Volume { sides: [side(0), side(1), side(2)], channels }
}
