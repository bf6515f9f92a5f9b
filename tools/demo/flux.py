"""The FLUX transformer, with the tensor names that FLUX checkpoints use, at any size.

Module and parameter names are chosen so that `state_dict()` is the checkpoint.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

LATENT_CHANNELS = 16
PATCH = 2
ROPE_THETA = 10_000


@dataclass(frozen=True)
class FluxConfig:
    """Sizes of one model; the defaults are the demo's."""

    hidden: int = 128
    heads: int = 4
    axes_dim: tuple = (4, 14, 14)
    context: int = 64
    vector: int = 64
    double_blocks: int = 2
    single_blocks: int = 4
    mlp_ratio: int = 4


def timestep_embedding(sigma, width=256, max_period=10_000):
    """Cosines, then sines, of 1000 sigma at `width / 2` frequencies."""
    half = width // 2
    exponents = torch.arange(half, dtype=torch.float32, device=sigma.device) / half
    frequencies = torch.exp(-math.log(max_period) * exponents)
    angles = 1000.0 * sigma.float()[:, None] * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rope_tables(text_tokens, rows, columns, axes_dim, device):
    """Cosine and sine per token and pair: text sits at (0, 0, 0), a patch at (0, row, column)."""
    ids = torch.zeros(text_tokens + rows * columns, 3, device=device)
    ids[text_tokens:, 1] = torch.arange(rows, device=device).repeat_interleave(columns)
    ids[text_tokens:, 2] = torch.arange(columns, device=device).repeat(rows)
    angles = []
    for axis, dim in enumerate(axes_dim):
        exponents = torch.arange(0, dim, 2, dtype=torch.float64, device=device) / dim
        angles.append(ids[:, axis, None].double() * (ROPE_THETA**-exponents)[None])
    angles = torch.cat(angles, dim=-1)
    return angles.cos().float(), angles.sin().float()


def rotate(x, rope):
    """Turns each neighbouring pair of `x` ([batch, heads, tokens, head]) by its token's angle."""
    cos, sin = rope
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1)
    return turned.flatten(-2).type_as(x)


def attention(q, k, v, rope):
    """Attention of rotated heads, heads joined again on the last axis."""
    out = F.scaled_dot_product_attention(rotate(q, rope), rotate(k, rope), v)
    return out.transpose(1, 2).flatten(2)


class RmsScale(nn.Module):
    """RMS normalisation of one head, with a learned scale."""

    def __init__(self, dim):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
        return wide.type_as(x) * self.scale.type_as(x)


class QkNorm(nn.Module):
    """The two norms of queries and keys."""

    def __init__(self, dim):
        super().__init__()
        self.query_norm = RmsScale(dim)
        self.key_norm = RmsScale(dim)

    def forward(self, q, k):
        return self.query_norm(q), self.key_norm(k)


class SelfAttention(nn.Module):
    """Projections and norms of one stream of a double block."""

    def __init__(self, config):
        super().__init__()
        self.heads = config.heads
        self.qkv = nn.Linear(config.hidden, 3 * config.hidden)
        self.norm = QkNorm(config.hidden // config.heads)
        self.proj = nn.Linear(config.hidden, config.hidden)

    def heads_of(self, x):
        q, k, v = split_heads(self.qkv(x), self.heads)
        q, k = self.norm(q, k)
        return q, k, v


def split_heads(qkv, heads):
    """[batch, tokens, 3 hidden] to three of [batch, heads, tokens, head]."""
    return qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


class Modulation(nn.Module):
    """Shifts, scales and gates from the conditioning vector; starts at zero, so blocks start as identity."""

    def __init__(self, hidden, parts):
        super().__init__()
        self.parts = parts
        self.lin = nn.Linear(hidden, parts * hidden)
        nn.init.zeros_(self.lin.weight)
        nn.init.zeros_(self.lin.bias)

    def forward(self, vec):
        return self.lin(F.silu(vec))[:, None].chunk(self.parts, dim=-1)


def plain_norm(x):
    """Layer normalisation without weights."""
    return F.layer_norm(x, x.shape[-1:], eps=1e-6)


def mlp(config):
    wide = config.hidden * config.mlp_ratio
    return nn.Sequential(nn.Linear(config.hidden, wide), nn.GELU(approximate="tanh"), nn.Linear(wide, config.hidden))


class DoubleBlock(nn.Module):
    """Image and text with weights of their own, joined in attention (text first)."""

    def __init__(self, config):
        super().__init__()
        self.img_mod = Modulation(config.hidden, 6)
        self.img_attn = SelfAttention(config)
        self.img_mlp = mlp(config)
        self.txt_mod = Modulation(config.hidden, 6)
        self.txt_attn = SelfAttention(config)
        self.txt_mlp = mlp(config)

    def forward(self, img, txt, vec, rope):
        img_parts, txt_parts = self.img_mod(vec), self.txt_mod(vec)
        img_heads = self.img_attn.heads_of((1 + img_parts[1]) * plain_norm(img) + img_parts[0])
        txt_heads = self.txt_attn.heads_of((1 + txt_parts[1]) * plain_norm(txt) + txt_parts[0])
        joined = [torch.cat(pair, dim=2) for pair in zip(txt_heads, img_heads)]
        mixed = attention(*joined, rope)
        txt_mixed, img_mixed = mixed[:, : txt.shape[1]], mixed[:, txt.shape[1] :]
        img = img + img_parts[2] * self.img_attn.proj(img_mixed)
        img = img + img_parts[5] * self.img_mlp((1 + img_parts[4]) * plain_norm(img) + img_parts[3])
        txt = txt + txt_parts[2] * self.txt_attn.proj(txt_mixed)
        txt = txt + txt_parts[5] * self.txt_mlp((1 + txt_parts[4]) * plain_norm(txt) + txt_parts[3])
        return img, txt


class SingleBlock(nn.Module):
    """Attention and MLP side by side over text and image in one sequence."""

    def __init__(self, config):
        super().__init__()
        self.heads, self.hidden = config.heads, config.hidden
        wide = config.hidden * config.mlp_ratio
        self.linear1 = nn.Linear(config.hidden, 3 * config.hidden + wide)
        self.linear2 = nn.Linear(config.hidden + wide, config.hidden)
        self.norm = QkNorm(config.hidden // config.heads)
        self.modulation = Modulation(config.hidden, 3)

    def forward(self, x, vec, rope):
        shift, scale, gate = self.modulation(vec)
        projected = self.linear1((1 + scale) * plain_norm(x) + shift)
        q, k, v = split_heads(projected[..., : 3 * self.hidden], self.heads)
        q, k = self.norm(q, k)
        wide = F.gelu(projected[..., 3 * self.hidden :], approximate="tanh")
        return x + gate * self.linear2(torch.cat([attention(q, k, v, rope), wide], dim=-1))


class Embedder(nn.Module):
    """Two linear layers with SiLU between them."""

    def __init__(self, width, hidden):
        super().__init__()
        self.in_layer = nn.Linear(width, hidden)
        self.out_layer = nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.out_layer(F.silu(self.in_layer(x)))


class FinalLayer(nn.Module):
    """Modulated norm and the projection back to patches."""

    def __init__(self, hidden, out):
        super().__init__()
        self.linear = nn.Linear(hidden, out)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(hidden, 2 * hidden))
        for layer in (self.linear, self.adaLN_modulation[1]):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x, vec):
        shift, scale = self.adaLN_modulation(vec)[:, None].chunk(2, dim=-1)
        return self.linear((1 + scale) * plain_norm(x) + shift)


class Flux(nn.Module):
    """The whole transformer: latents, text and sigma in, velocity (noise minus picture) out."""

    def __init__(self, config=FluxConfig()):
        super().__init__()
        self.config = config
        channels = LATENT_CHANNELS * PATCH * PATCH
        self.img_in = nn.Linear(channels, config.hidden)
        self.txt_in = nn.Linear(config.context, config.hidden)
        self.time_in = Embedder(256, config.hidden)
        self.vector_in = Embedder(config.vector, config.hidden)
        self.double_blocks = nn.ModuleList(DoubleBlock(config) for _ in range(config.double_blocks))
        self.single_blocks = nn.ModuleList(SingleBlock(config) for _ in range(config.single_blocks))
        self.final_layer = FinalLayer(config.hidden, channels)

    def forward(self, latent, sigma, context, pooled):
        batch, channels, height, width = latent.shape
        rows, columns = height // PATCH, width // PATCH
        patches = latent.unflatten(3, (columns, PATCH)).unflatten(2, (rows, PATCH))
        img = self.img_in(patches.permute(0, 2, 4, 1, 3, 5).reshape(batch, rows * columns, -1))
        txt = self.txt_in(context)
        vec = self.time_in(timestep_embedding(sigma).type_as(pooled)) + self.vector_in(pooled)
        rope = rope_tables(txt.shape[1], rows, columns, self.config.axes_dim, latent.device)
        for block in self.double_blocks:
            img, txt = block(img, txt, vec, rope)
        both = torch.cat([txt, img], dim=1)
        for block in self.single_blocks:
            both = block(both, vec, rope)
        out = self.final_layer(both[:, txt.shape[1] :], vec)
        out = out.unflatten(1, (rows, columns)).unflatten(-1, (channels, PATCH, PATCH))
        return out.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, height, width)
