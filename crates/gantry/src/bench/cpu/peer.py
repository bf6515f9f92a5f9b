"""Steps of a whole model in PyTorch, in eager mode, with the weights of a safetensors file.

Answers JSON lines on standard input with one JSON line each; the first line written tells the versions.
{"do": "load", "network": "flux", "decoder", "unet" or "z_image", "model": path, "inputs": path}, {"do": "warm"},
{"do": "step"} and {"do": "finish", "output": path} are the questions, in this order.
"""
import ctypes
import gc
import json
import math
import mmap
import platform
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except Exception as error:  # no PyTorch here: say so and stop
    print(json.dumps({"error": "PyTorch cannot be imported: %s" % error}), flush=True)
    sys.exit(0)

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


def read_tensors(path, prefix=""):
    """Tensors of a safetensors file, each in memory of its own."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__" and name.startswith(prefix):
            dtype, (start, end) = TYPES[entry["dtype"]], entry["data_offsets"]
            count = (end - start) // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=8 + length + start)
            found[name[len(prefix) :]] = flat.reshape(entry["shape"]).clone()
    return found


class Linear(nn.Linear):
    """Computes in the type of its input, however the weights are stored."""

    def forward(self, x):
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


class Embedder(nn.Module):
    def __init__(self, size, hidden):
        super().__init__()
        self.in_layer, self.out_layer = Linear(size, hidden), Linear(hidden, hidden)

    def forward(self, x):
        return self.out_layer(F.silu(self.in_layer(x)))


class RootMeanSquare(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.scale.to(x.dtype), 1e-6)


class HeadNorms(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.query_norm, self.key_norm = RootMeanSquare(size), RootMeanSquare(size)


def rotate(x, cos, sin):
    """Turns neighbouring pairs of `[batch, heads, tokens, size]`."""
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


def split_heads(qkv, heads, norms, cos, sin):
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return rotate(norms.query_norm(q), cos, sin), rotate(norms.key_norm(k), cos, sin), v


def attend(q, k, v):
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def normed(x, shift, scale):
    return F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift


class Modulation(nn.Module):
    def __init__(self, hidden, parts):
        super().__init__()
        self.parts, self.lin = parts, Linear(hidden, parts * hidden)

    def forward(self, vector):
        return self.lin(F.silu(vector))[:, None].chunk(self.parts, dim=-1)


class SideAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.qkv, self.proj = Linear(hidden, 3 * hidden), Linear(hidden, hidden)
        self.norm = HeadNorms(hidden // heads)


class DoubleBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads = heads
        for side in ("img", "txt"):
            feed_forward = nn.Sequential(
                Linear(hidden, 4 * hidden), nn.GELU("tanh"), Linear(4 * hidden, hidden)
            )
            setattr(self, side + "_mod", Modulation(hidden, 6))
            setattr(self, side + "_attn", SideAttention(hidden, heads))
            setattr(self, side + "_mlp", feed_forward)

    def heads_of(self, attention, x, change, cos, sin):
        qkv = attention.qkv(normed(x, change[0], change[1]))
        return split_heads(qkv, self.heads, attention.norm, cos, sin)

    def after(self, attention, feed_forward, x, attended, change):
        x = x + change[2] * attention.proj(attended)
        return x + change[5] * feed_forward(normed(x, change[3], change[4]))

    def forward(self, image, text, vector, cos, sin):
        texts = text.shape[1]
        image_change, text_change = self.img_mod(vector), self.txt_mod(vector)
        of_image = self.heads_of(self.img_attn, image, image_change, cos[texts:], sin[texts:])
        of_text = self.heads_of(self.txt_attn, text, text_change, cos[:texts], sin[:texts])
        attended = attend(*(torch.cat(pair, dim=2) for pair in zip(of_text, of_image)))
        image = self.after(self.img_attn, self.img_mlp, image, attended[:, texts:], image_change)
        text = self.after(self.txt_attn, self.txt_mlp, text, attended[:, :texts], text_change)
        return image, text


class SingleBlock(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.hidden, self.heads = hidden, heads
        self.linear1, self.linear2 = Linear(hidden, 7 * hidden), Linear(5 * hidden, hidden)
        self.norm, self.modulation = HeadNorms(hidden // heads), Modulation(hidden, 3)

    def forward(self, x, vector, cos, sin):
        shift, scale, gate = self.modulation(vector)
        both = self.linear1(normed(x, shift, scale))
        qkv, inner = both.split((3 * self.hidden, 4 * self.hidden), dim=-1)
        attended = attend(*split_heads(qkv, self.heads, self.norm, cos, sin))
        return x + gate * self.linear2(torch.cat((attended, F.gelu(inner, approximate="tanh")), dim=-1))


class FinalLayer(nn.Module):
    def __init__(self, hidden, channels):
        super().__init__()
        self.linear = Linear(hidden, channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(hidden, 2 * hidden))

    def forward(self, x, vector):
        shift, scale = self.adaLN_modulation(vector)[:, None].chunk(2, dim=-1)
        return self.linear(normed(x, shift, scale))


def waves(value):
    """A time or a guidance as waves of many lengths."""
    frequencies = torch.exp(-math.log(10000) * torch.arange(128, dtype=torch.float32) / 128)
    angles = torch.tensor([1000 * value], dtype=torch.float32)[:, None] * frequencies
    return torch.cat((angles.cos(), angles.sin()), dim=-1)


class Flux(nn.Module):
    def __init__(self, hidden=3072, heads=24, channels=64, context=4096, pooled=768):
        super().__init__()
        self.img_in, self.txt_in = Linear(channels, hidden), Linear(context, hidden)
        self.time_in, self.guidance_in = Embedder(256, hidden), Embedder(256, hidden)
        self.vector_in = Embedder(pooled, hidden)
        self.double_blocks = nn.ModuleList([DoubleBlock(hidden, heads)])
        self.single_blocks = nn.ModuleList([SingleBlock(hidden, heads)])
        self.final_layer = FinalLayer(hidden, channels)

    def angles(self, texts, rows, columns):
        """Of text, which stands at 0, then of the image's patches: index, row and column."""
        places = torch.zeros(texts + rows * columns, 3, dtype=torch.float64)
        places[texts:, 1] = torch.arange(rows).repeat_interleave(columns)
        places[texts:, 2] = torch.arange(columns).repeat(rows)
        parts = []
        for axis, size in enumerate((16, 56, 56)):
            exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
            parts.append(places[:, axis, None] / 10000.0**exponents)
        angles = torch.cat(parts, dim=1)
        return angles.cos().float(), angles.sin().float()

    def forward(self, latent, context, pooled, sigma=0.8, guidance=3.5):
        batch, channels, height, width = latent.shape
        rows, columns = height // 2, width // 2
        patches = latent.reshape(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 1, 3, 5)
        image = self.img_in(patches.reshape(batch, rows * columns, 4 * channels))
        vector = self.time_in(waves(sigma)) + self.guidance_in(waves(guidance)) + self.vector_in(pooled)
        text = self.txt_in(context)
        cos, sin = self.angles(text.shape[1], rows, columns)
        for block in self.double_blocks:
            image, text = block(image, text, vector, cos, sin)
        x = torch.cat((text, image), dim=1)
        for block in self.single_blocks:
            x = block(x, vector, cos, sin)
        x = self.final_layer(x[:, text.shape[1] :], vector)
        x = x.reshape(batch, rows, columns, channels, 2, 2).permute(0, 3, 1, 4, 2, 5)
        return x.reshape(batch, channels, height, width)


def group_norm(channels):
    return nn.GroupNorm(32, channels, eps=1e-6)


class Residual(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.norm1, self.conv1 = group_norm(channels), nn.Conv2d(channels, out, 3, padding=1)
        self.norm2, self.conv2 = group_norm(out), nn.Conv2d(out, out, 3, padding=1)
        if channels != out:
            self.nin_shortcut = nn.Conv2d(channels, out, 1)

    def forward(self, x):
        inner = self.conv1(F.silu(self.norm1(x)))
        inner = self.conv2(F.silu(self.norm2(inner)))
        return (self.nin_shortcut(x) if hasattr(self, "nin_shortcut") else x) + inner


class SpatialAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = group_norm(channels)
        for name in ("q", "k", "v", "proj_out"):
            setattr(self, name, nn.Conv2d(channels, channels, 1))

    def forward(self, x):
        inner = self.norm(x)
        q, k, v = (layer(inner).flatten(2).transpose(1, 2)[:, None] for layer in (self.q, self.k, self.v))
        out = F.scaled_dot_product_attention(q, k, v)[:, 0].transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(out)


class Upsample(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Decoder(nn.Module):
    """The decoder of a KL autoencoder; the image's values are from 0 to 1, its channels last."""

    def __init__(self, latent_channels=16, stages=(128, 256, 512, 512), blocks=3):
        super().__init__()
        channels = stages[-1]
        self.conv_in = nn.Conv2d(latent_channels, channels, 3, padding=1)
        self.mid = nn.Module()
        self.mid.block_1, self.mid.block_2 = Residual(channels, channels), Residual(channels, channels)
        self.mid.attn_1 = SpatialAttention(channels)
        ups = []
        for number, out in reversed(list(enumerate(stages))):
            stage = nn.Module()
            stage.block = nn.ModuleList([Residual(channels if i == 0 else out, out) for i in range(blocks)])
            channels = out
            if number > 0:
                stage.upsample = Upsample(channels)
            ups.insert(0, stage)
        self.up = nn.ModuleList(ups)
        self.norm_out, self.conv_out = group_norm(channels), nn.Conv2d(channels, 3, 3, padding=1)

    def forward(self, latent):
        x = self.conv_in(latent)
        x = self.mid.block_2(self.mid.attn_1(self.mid.block_1(x)))
        for stage in reversed(self.up):
            for block in stage.block:
                x = block(x)
            if hasattr(stage, "upsample"):
                x = stage.upsample(x)
        x = self.conv_out(F.silu(self.norm_out(x)))
        return (x * 0.5 + 0.5).clamp(0, 1).permute(0, 2, 3, 1)


class UnetResidual(nn.Module):
    def __init__(self, channels, out, time):
        super().__init__()
        self.in_layers = nn.Sequential(
            nn.GroupNorm(32, channels), nn.SiLU(), nn.Conv2d(channels, out, 3, padding=1)
        )
        self.emb_layers = nn.Sequential(nn.SiLU(), nn.Linear(time, out))
        self.out_layers = nn.Sequential(
            nn.GroupNorm(32, out), nn.SiLU(), nn.Identity(), nn.Conv2d(out, out, 3, padding=1)
        )
        if channels != out:
            self.skip_connection = nn.Conv2d(channels, out, 1)

    def forward(self, x, time, context):
        inner = self.in_layers(x) + self.emb_layers(time)[:, :, None, None]
        inner = self.out_layers(inner)
        return (self.skip_connection(x) if hasattr(self, "skip_connection") else x) + inner


class UnetAttention(nn.Module):
    def __init__(self, channels, seen, heads):
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(channels, channels, bias=False)
        self.to_k, self.to_v = (nn.Linear(seen, channels, bias=False) for _ in range(2))
        self.to_out = nn.Sequential(nn.Linear(channels, channels))

    def forward(self, x, seen):
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for y in (self.to_q(x), self.to_k(seen), self.to_v(seen))
        )
        return self.to_out(attend(q, k, v))


class Gated(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.proj = nn.Linear(channels, 8 * channels)

    def forward(self, x):
        value, gate = self.proj(x).chunk(2, dim=-1)
        return value * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = nn.Sequential(Gated(channels), nn.Identity(), nn.Linear(4 * channels, channels))

    def forward(self, x):
        return self.net(x)


class UnetBlock(nn.Module):
    def __init__(self, channels, context, heads):
        super().__init__()
        self.attn1 = UnetAttention(channels, channels, heads)
        self.attn2 = UnetAttention(channels, context, heads)
        self.ff = FeedForward(channels)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(channels) for _ in range(3))

    def forward(self, x, context):
        normed = self.norm1(x)
        x = x + self.attn1(normed, normed)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class UnetTransformer(nn.Module):
    def __init__(self, channels, context, heads=8):
        super().__init__()
        self.norm = group_norm(channels)
        self.proj_in, self.proj_out = nn.Conv2d(channels, channels, 1), nn.Conv2d(channels, channels, 1)
        self.transformer_blocks = nn.ModuleList([UnetBlock(channels, context, heads)])

    def forward(self, x, time, context):
        tokens = self.proj_in(self.norm(x)).flatten(2).transpose(1, 2).contiguous()
        for block in self.transformer_blocks:
            tokens = block(tokens, context)
        return x + self.proj_out(tokens.transpose(1, 2).reshape(x.shape))


class UnetDown(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.op = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x, time, context):
        return self.op(x)


class UnetUp(Upsample):
    def forward(self, x, time, context):
        return super().forward(x)


class First(nn.Conv2d):
    def forward(self, x, time, context):
        return super().forward(x)


class Unet(nn.Module):
    """The UNet of Stable Diffusion 1.5; two texts, and so two evaluations, as one batch."""

    def __init__(self, channels=320, levels=(1, 2, 4, 4), context=768):
        super().__init__()
        self.channels, time = channels, 4 * channels
        self.time_embed = nn.Sequential(nn.Linear(channels, time), nn.SiLU(), nn.Linear(time, time))
        now, kept, last = channels, [channels], len(levels) - 1
        ways_in, ways_out = [nn.ModuleList([First(4, channels, 3, padding=1)])], []
        for level, times in enumerate(levels):
            for _ in range(2):
                layers = [UnetResidual(now, times * channels, time)]
                now = times * channels
                if level < last:
                    layers.append(UnetTransformer(now, context))
                ways_in.append(nn.ModuleList(layers))
                kept.append(now)
            if level < last:
                ways_in.append(nn.ModuleList([UnetDown(now)]))
                kept.append(now)
        middle = [UnetResidual(now, now, time), UnetTransformer(now, context), UnetResidual(now, now, time)]
        for level, times in reversed(list(enumerate(levels))):
            for index in range(3):
                layers = [UnetResidual(now + kept.pop(), times * channels, time)]
                now = times * channels
                if level < last:
                    layers.append(UnetTransformer(now, context))
                if level > 0 and index == 2:
                    layers.append(UnetUp(now))
                ways_out.append(nn.ModuleList(layers))
        self.input_blocks, self.output_blocks = nn.ModuleList(ways_in), nn.ModuleList(ways_out)
        self.middle_block = nn.ModuleList(middle)
        self.out = nn.Sequential(nn.GroupNorm(32, now), nn.SiLU(), nn.Conv2d(now, 4, 3, padding=1))

    def forward(self, latent, context, time=500.0):
        half = self.channels // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half, dtype=torch.float32) / half)
        angles = torch.tensor([time], dtype=torch.float32)[:, None] * frequencies
        time = self.time_embed(torch.cat((angles.cos(), angles.sin()), dim=-1))
        x, kept = latent.expand(context.shape[0], -1, -1, -1), []
        for block in self.input_blocks:
            for layer in block:
                x = layer(x, time, context)
            kept.append(x)
        for layer in self.middle_block:
            x = layer(x, time, context)
        for block in self.output_blocks:
            x = torch.cat((x, kept.pop()), dim=1)
            for layer in block:
                x = layer(x, time, context)
        return self.out(x)


class WeightedNorm(nn.RMSNorm):
    """Computes in the type of its input, however the weight is stored."""

    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight.to(x.dtype), self.eps)


def turned(x, turns):
    """Turns neighbouring pairs of `[batch, tokens, heads, size]`, in place, and puts the heads first."""
    torch.view_as_complex(x.unflatten(-1, (-1, 2))).mul_(turns)
    return x.transpose(1, 2)


class ZImageAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.heads, size = heads, hidden // heads
        self.qkv, self.out = Linear(hidden, 3 * hidden, bias=False), Linear(hidden, hidden, bias=False)
        self.q_norm, self.k_norm = (WeightedNorm(size, torch.finfo(torch.float32).eps) for _ in range(2))

    def forward(self, x, turns):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        q, k = turned(self.q_norm(q), turns), turned(self.k_norm(k), turns)
        return self.out(attend(q, k, v.transpose(1, 2)))


class ZImageFeedForward(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.w1, self.w3 = (Linear(hidden, inner, bias=False) for _ in range(2))
        self.w2 = Linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x), inplace=True).mul_(self.w3(x)))


class ZImageTextBlock(nn.Module):
    """A block that does not look at the time."""

    def __init__(self, hidden, heads, inner):
        super().__init__()
        self.attention, self.feed_forward = ZImageAttention(hidden, heads), ZImageFeedForward(hidden, inner)
        self.attention_norm1, self.attention_norm2 = (WeightedNorm(hidden, 1e-5) for _ in range(2))
        self.ffn_norm1, self.ffn_norm2 = (WeightedNorm(hidden, 1e-5) for _ in range(2))

    def forward(self, x, turns):
        x = x + self.attention_norm2(self.attention(self.attention_norm1(x), turns))
        return x + self.ffn_norm2(self.feed_forward(self.ffn_norm1(x)))


class ZImageBlock(ZImageTextBlock):
    def __init__(self, hidden, heads, inner, time):
        super().__init__(hidden, heads, inner)
        self.adaLN_modulation = nn.Sequential(Linear(time, 4 * hidden))

    def forward(self, x, turns, time):
        parts = self.adaLN_modulation(time)[:, None].chunk(4, dim=-1)
        scales, gates = [1 + part for part in parts[::2]], [part.tanh() for part in parts[1::2]]
        inner = self.attention(self.attention_norm1(x).mul_(scales[0]), turns)
        x = torch.addcmul(x, gates[0], self.attention_norm2(inner))
        inner = self.feed_forward(self.ffn_norm1(x).mul_(scales[1]))
        return torch.addcmul(x, gates[1], self.ffn_norm2(inner))


class ZImageFinalLayer(nn.Module):
    def __init__(self, hidden, time, channels):
        super().__init__()
        self.linear = Linear(hidden, channels)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), Linear(time, hidden))

    def forward(self, x, time):
        scale = 1 + self.adaLN_modulation(time)[:, None]
        return self.linear(F.layer_norm(x, x.shape[-1:], eps=1e-6).mul_(scale))


def filled(x, token):
    """Tokens filled up to a multiple of 32 with a learned one."""
    missing = -x.shape[1] % 32
    return torch.cat((x, token.to(x.dtype).expand(x.shape[0], missing, -1)), dim=1) if missing else x


class ZImage(nn.Module):
    """Z-Image at its full width, with two blocks of each kind."""

    def __init__(self, hidden=3840, heads=30, inner=10240, time=256, channels=64, context=2560, blocks=2):
        super().__init__()
        self.x_embedder = Linear(channels, hidden)
        self.cap_embedder = nn.Sequential(WeightedNorm(context, 1e-5), Linear(context, hidden))
        self.t_embedder = nn.Module()
        self.t_embedder.mlp = nn.Sequential(Linear(256, 1024), nn.SiLU(), Linear(1024, time))
        self.x_pad_token, self.cap_pad_token = (nn.Parameter(torch.empty(1, hidden)) for _ in range(2))
        sizes = (hidden, heads, inner)
        self.context_refiner = nn.ModuleList([ZImageTextBlock(*sizes) for _ in range(blocks)])
        self.noise_refiner = nn.ModuleList([ZImageBlock(*sizes, time) for _ in range(blocks)])
        self.layers = nn.ModuleList([ZImageBlock(*sizes, time) for _ in range(blocks)])
        self.final_layer = ZImageFinalLayer(hidden, time, channels)

    def turns(self, texts, rows, columns, filling):
        """Text counts from one; the picture behind it counts rows and columns; fillers stand at zero."""
        places = torch.zeros(texts + rows * columns + filling, 3, dtype=torch.float64)
        places[:texts, 0] = torch.arange(1, texts + 1)
        picture = places[texts : texts + rows * columns]
        picture[:, 0] = texts + 1
        picture[:, 1] = torch.arange(rows).repeat_interleave(columns)
        picture[:, 2] = torch.arange(columns).repeat(rows)
        parts = []
        for axis, size in enumerate((32, 48, 48)):
            exponents = torch.arange(0, size, 2, dtype=torch.float64) / size
            parts.append(places[:, axis, None] / 256.0**exponents)
        angles = torch.cat(parts, dim=1)[:, None]
        return torch.complex(angles.cos().float(), angles.sin().float())

    def forward(self, latent, context, time=0.75):
        batch, channels, height, width = latent.shape
        rows, columns = height // 2, width // 2
        patches = latent.reshape(batch, channels, rows, 2, columns, 2).permute(0, 2, 4, 3, 5, 1)
        x = filled(self.x_embedder(patches.reshape(batch, rows * columns, 4 * channels)), self.x_pad_token)
        text = filled(self.cap_embedder(context), self.cap_pad_token)
        # The model's own time runs the other way.
        time = self.t_embedder.mlp(waves(1 - time))
        texts, patches = text.shape[1], rows * columns
        turns = self.turns(texts, rows, columns, x.shape[1] - patches)
        for block in self.context_refiner:
            text = block(text, turns[:texts])
        for block in self.noise_refiner:
            x = block(x, turns[texts:], time)
        x = torch.cat((text, x), dim=1)
        for block in self.layers:
            x = block(x, turns, time)
        x = self.final_layer(x[:, texts : texts + patches], time)
        x = x.reshape(batch, rows, columns, 2, 2, channels).permute(0, 5, 1, 3, 2, 4)
        # The model gives the direction from noise to picture.
        return -x.reshape(batch, channels, height, width)


NETWORKS = {
    "flux": (Flux, ""),
    "decoder": (Decoder, "decoder."),
    "unet": (Unet, ""),
    "z_image": (ZImage, ""),
}


class Peer:
    def load(self, question):
        network, prefix = NETWORKS[question["network"]]
        with torch.device("meta"):
            self.model = network().eval()
        self.model.load_state_dict(read_tensors(question["model"], prefix), strict=True, assign=True)
        self.inputs = read_tensors(question["inputs"])
        return {"threads": torch.get_num_threads()}

    def run(self):
        with torch.inference_mode():
            return self.model(**self.inputs)

    def warm(self, question):
        """One step, so that all is in memory; then memory starts to count."""
        self.run()
        gc.collect()
        if sys.platform == "linux":
            ctypes.CDLL(None).malloc_trim(0)
        self.before = self.memory("VmRSS")
        return {"resident_bytes": self.before}

    def step(self, question):
        self.output = None
        start, start_cpu = time.perf_counter(), time.process_time()
        self.output = self.run()
        return {"seconds": time.perf_counter() - start, "cpu_seconds": time.process_time() - start_cpu}

    def finish(self, question):
        peak = self.memory("VmHWM")
        with open(question["output"], "wb") as file:
            file.write(self.output.float().contiguous().numpy().tobytes())
        return {"peak_bytes": peak}

    def memory(self, field):
        """Now, after forgetting the peak so far; or the peak. None where the system does not tell."""
        try:
            if field == "VmRSS":
                with open("/proc/self/clear_refs", "w") as file:
                    file.write("5")
            with open("/proc/self/status") as file:
                lines = dict(line.split(":", 1) for line in file)
            return int(lines[field].split()[0]) * 1024
        except OSError:
            return None


def main():
    peer = Peer()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    print(json.dumps(versions), flush=True)
    for line in sys.stdin:
        try:
            question = json.loads(line)
            answer = getattr(peer, question["do"])(question)
        except Exception as error:
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(answer), flush=True)


main()
