//! Latent pictures as tokens: patches of two by two values, and back.

use meta::Shape;
use tensor::{Padding, Tensor};

use crate::Result;

/// Width and height of the patches that become one token.
pub(super) const PATCH: usize = 2;

/// A latent's size, in values and in patches.
pub(super) struct Grid {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

/// In which order a token has the values of its patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatchOrder {
    /// Channel by channel, in each the rows of the patch.
    ChannelsFirst,
    /// Value by value of the patch, in each the channels.
    ChannelsLast,
}

impl Grid {
    /// So many rows and columns of values.
    pub(super) fn of_size(height: usize, width: usize) -> Grid {
        Grid { height, width, rows: height.div_ceil(PATCH), columns: width.div_ceil(PATCH) }
    }

    /// The size of a latent `[batch, channels, height, width]`.
    pub(super) fn of(latent: &Tensor) -> Grid {
        Grid::sized(latent.shape())
    }

    /// The size of latents of a shape.
    pub(super) fn sized(shape: &Shape) -> Grid {
        Grid::of_size(shape.dims()[2], shape.dims()[3])
    }

    /// The size of a frame of latents `[batch, channels, frames, height, width]`.
    pub(super) fn of_frame(shape: &Shape) -> Grid {
        Grid::of_size(shape.dims()[3], shape.dims()[4])
    }

    /// The size of latents of a shape whose values are tokens as they are.
    pub(super) fn of_values(shape: &Shape) -> Grid {
        let (height, width) = (shape.dims()[2], shape.dims()[3]);
        Grid { height, width, rows: height, columns: width }
    }

    /// How many patches there are.
    pub(super) fn patches(&self) -> usize {
        self.rows * self.columns
    }

    /// Tokens `[batch, rows · columns, channels · 2 · 2]` back to a latent of the size that came in.
    pub(super) fn unpatchify(&self, tokens: &Tensor, order: PatchOrder) -> Result<Tensor> {
        let (batch, channels) = (tokens.dim(0), tokens.dim(2) / (PATCH * PATCH));
        let latent = match order {
            PatchOrder::ChannelsFirst => tokens
                .reshape([batch, self.rows, self.columns, channels, PATCH, PATCH])?
                .permute(&[0, 3, 1, 4, 2, 5])?,
            PatchOrder::ChannelsLast => tokens
                .reshape([batch, self.rows, self.columns, PATCH, PATCH, channels])?
                .permute(&[0, 5, 1, 3, 2, 4])?,
        };
        let latent = latent.reshape([batch, channels, self.rows * PATCH, self.columns * PATCH])?;
        Ok(latent.slice(2, 0, self.height)?.slice(3, 0, self.width)?.contiguous()?)
    }
}

/// A latent `[batch, channels, height, width]` as tokens `[batch, rows · columns, channels · 2 · 2]`, channel by channel. A
/// size that is no multiple of a patch goes on from the other side.
pub(super) fn patchify(latent: &Tensor) -> Result<Tensor> {
    patchify_as(latent, PatchOrder::ChannelsFirst)
}

/// The same with the values of a token in another order.
pub(super) fn patchify_as(latent: &Tensor, order: PatchOrder) -> Result<Tensor> {
    let grid = Grid::of(latent);
    let (batch, channels) = (latent.dim(0), latent.dim(1));
    let border =
        [(0, 0), (0, 0), (0, grid.rows * PATCH - grid.height), (0, grid.columns * PATCH - grid.width)];
    let even = if border[2].1 + border[3].1 == 0 {
        latent.clone()
    } else {
        latent.pad(&border, Padding::Circular)?
    };
    let patches = even.reshape([batch, channels, grid.rows, PATCH, grid.columns, PATCH])?;
    let tokens = patches.permute(match order {
        PatchOrder::ChannelsFirst => &[0, 2, 4, 1, 3, 5],
        PatchOrder::ChannelsLast => &[0, 2, 4, 3, 5, 1],
    })?;
    Ok(tokens.reshape([batch, grid.rows * grid.columns, channels * PATCH * PATCH])?)
}

/// A latent `[batch, channels, frames, height, width]` as one picture per frame, `[batch · frames, channels, height, width]`.
pub(super) fn frames_apart(latent: &Tensor) -> Result<Tensor> {
    let [batch, channels, frames, height, width] = [0, 1, 2, 3, 4].map(|axis| latent.dim(axis));
    Ok(latent.permute(&[0, 2, 1, 3, 4])?.reshape([batch * frames, channels, height, width])?)
}

/// Pictures of a latent's frames as that latent again.
pub(super) fn frames_together(pictures: &Tensor, frames: usize) -> Result<Tensor> {
    let [items, channels, height, width] = [0, 1, 2, 3].map(|axis| pictures.dim(axis));
    let latent = pictures.reshape([items / frames, frames, channels, height, width])?;
    Ok(latent.permute(&[0, 2, 1, 3, 4])?.contiguous()?)
}

/// A latent `[batch, channels, height, width]` as one token for each place.
pub(super) fn values_as_tokens(latent: &Tensor) -> Result<Tensor> {
    let [batch, channels, height, width] = [0, 1, 2, 3].map(|axis| latent.dim(axis));
    Ok(latent.reshape([batch, channels, height * width])?.transpose(1, 2)?.contiguous()?)
}

/// Tokens of the places of a latent of so many rows and columns as that latent again.
pub(super) fn tokens_as_values(tokens: &Tensor, [height, width]: [usize; 2]) -> Result<Tensor> {
    let shape = [tokens.dim(0), tokens.dim(2), height, width];
    Ok(tokens.transpose(1, 2)?.contiguous()?.reshape(shape)?)
}
