"""The 16-channel KL autoencoder in FLUX's layout (8 times smaller, no quant_conv), at any width."""

import torch
import torch.nn.functional as F
from torch import nn

SCALE, SHIFT = 0.3611, 0.1159
"""FLUX's normalisation: what the transformer sees is (z - SHIFT) * SCALE."""

LATENT_CHANNELS = 16
LEVEL_CHANNELS = (64, 32, 32, 64)
"""From full resolution down. The ends are wider: with 32 groups over 32 channels a group norm forgets
the absolute value of every channel, and the last norm before pixels or latents must keep it."""


def norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-6)


class ResnetBlock(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside, out):
        super().__init__()
        self.norm1 = norm(inside)
        self.conv1 = nn.Conv2d(inside, out, 3, padding=1)
        self.norm2 = norm(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1)
        self.nin_shortcut = nn.Conv2d(inside, out, 1) if inside != out else None

    def forward(self, x):
        hidden = self.conv1(F.silu(self.norm1(x)))
        hidden = self.conv2(F.silu(self.norm2(hidden)))
        return hidden + (x if self.nin_shortcut is None else self.nin_shortcut(x))


class AttnBlock(nn.Module):
    """One-headed attention over all positions."""

    def __init__(self, channels):
        super().__init__()
        self.norm = norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (layer(normed).flatten(2).transpose(1, 2).unsqueeze(1) for layer in (self.q, self.k, self.v))
        mixed = F.scaled_dot_product_attention(q, k, v).squeeze(1).transpose(1, 2)
        return x + self.proj_out(mixed.reshape(x.shape))


class Middle(nn.Module):
    """Block, attention, block at the smallest size."""

    def __init__(self, channels):
        super().__init__()
        self.block_1 = ResnetBlock(channels, channels)
        self.attn_1 = AttnBlock(channels)
        self.block_2 = ResnetBlock(channels, channels)

    def forward(self, x):
        return self.block_2(self.attn_1(self.block_1(x)))


class Resample(nn.Module):
    """Halves (stride 2, padded right and below) or doubles (nearest) the size, then convolves."""

    def __init__(self, channels, stride):
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=0 if stride == 2 else 1)

    def forward(self, x):
        if self.stride == 2:
            return self.conv(F.pad(x, (0, 1, 0, 1)))
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Encoder(nn.Module):
    """Pixels in -1..1 to the mean and log variance of z."""

    def __init__(self, levels):
        super().__init__()
        self.conv_in = nn.Conv2d(3, levels[0], 3, padding=1)
        self.down = nn.ModuleList()
        inside = levels[0]
        for index, channels in enumerate(levels):
            level = nn.Module()
            level.block = nn.ModuleList([ResnetBlock(inside, channels), ResnetBlock(channels, channels)])
            level.downsample = Resample(channels, 2) if index < len(levels) - 1 else None
            self.down.append(level)
            inside = channels
        self.mid = Middle(inside)
        self.norm_out = norm(inside)
        self.conv_out = nn.Conv2d(inside, 2 * LATENT_CHANNELS, 3, padding=1)

    def forward(self, x):
        x = self.conv_in(x)
        for level in self.down:
            for block in level.block:
                x = block(x)
            x = x if level.downsample is None else level.downsample(x)
        return self.conv_out(F.silu(self.norm_out(self.mid(x))))


class Decoder(nn.Module):
    """z to pixels in -1..1."""

    def __init__(self, levels):
        super().__init__()
        inside = levels[-1]
        self.conv_in = nn.Conv2d(LATENT_CHANNELS, inside, 3, padding=1)
        self.mid = Middle(inside)
        up = []
        for index in reversed(range(len(levels))):
            level = nn.Module()
            channels = levels[index]
            level.block = nn.ModuleList(
                [ResnetBlock(inside, channels), ResnetBlock(channels, channels), ResnetBlock(channels, channels)]
            )
            level.upsample = Resample(channels, 1) if index > 0 else None
            up.insert(0, level)
            inside = channels
        self.up = nn.ModuleList(up)
        self.norm_out = norm(inside)
        self.conv_out = nn.Conv2d(inside, 3, 3, padding=1)

    def forward(self, z):
        x = self.mid(self.conv_in(z))
        for level in reversed(self.up):
            for block in level.block:
                x = block(x)
            x = x if level.upsample is None else level.upsample(x)
        return self.conv_out(F.silu(self.norm_out(x)))


class Autoencoder(nn.Module):
    """Encoder and decoder; `encode` and `decode` speak the transformer's normalised latents."""

    def __init__(self, levels=LEVEL_CHANNELS):
        super().__init__()
        self.encoder = Encoder(levels)
        self.decoder = Decoder(levels)

    def encode(self, pixels):
        """Pixels 0..1 to normalised latents (the mean of the distribution)."""
        mean = self.encoder(pixels * 2 - 1).chunk(2, dim=1)[0]
        return (mean - SHIFT) * SCALE

    def decode(self, latent):
        """Normalised latents to pixels, 0..1, not clamped."""
        return self.decoder(latent / SCALE + SHIFT) * 0.5 + 0.5
