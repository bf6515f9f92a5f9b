"""Writes what the tests of GLIGEN compare with: see README.md.

The formulas of GLIGEN (arXiv 2301.07093) and of the UNet around it are written down here once more, in f64 and without any of
our code.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import conv2d, gelu, group_norm, interpolate, layer_norm, silu

from transformers_of_videos import Weights, attend, made, waves, write

TEXT, INNER, HEADS, TEXTS = 768, 512, 8, 30


class UnetWeights(Weights):
    """Weights of a UNet, stored in f16."""

    @classmethod
    def read(cls, path):
        tensors = json.loads(Path(path).read_text())["tensors"]
        weights = cls.of([{"offset": 0.0, **one} for one in tensors], torch.float16)
        return weights

    def conv(self, name, x, stride=1):
        weight = self[f"{name}.weight"]
        return conv2d(x, weight, self[f"{name}.bias"], stride=stride, padding=weight.shape[-1] // 2)

    def groups(self, name, x, eps):
        return group_norm(x, 32, self[f"{name}.weight"], self[f"{name}.bias"], eps=eps)

    def norm(self, name, x):
        return layer_norm(x, x.shape[-1:], self[f"{name}.weight"], self[f"{name}.bias"], eps=1e-5)


def manifest(unet):
    """The manifest of a network for a small UNet."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": name, "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def linear(name, shape, bias=True):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(shape[1]))
        if bias:
            add(f"{name}.bias", shape[:1], 0.05)

    add("position_net.null_positive_feature", [TEXT], 1.0)
    add("position_net.null_position_feature", [64], 1.0)
    linear("position_net.linears.0", [INNER, TEXT + 64])
    linear("position_net.linears.2", [INNER, INNER])
    linear("position_net.linears.4", [TEXT, INNER])
    for one in unet:
        if not one["name"].endswith(".attn1.to_q.weight"):
            continue
        fuser = one["name"].removesuffix("attn1.to_q.weight") + "fuser"
        channels = one["shape"][0]
        add(f"{fuser}.alpha_attn", [], 0.1, 0.8)
        add(f"{fuser}.alpha_dense", [], 0.1, -0.6)
        linear(f"{fuser}.linear", [channels, TEXT])
        for part in ("to_q", "to_k", "to_v"):
            linear(f"{fuser}.attn.{part}", [channels, channels], False)
        linear(f"{fuser}.attn.to_out.0", [channels, channels])
        linear(f"{fuser}.ff.net.0.proj", [8 * channels, channels])
        linear(f"{fuser}.ff.net.2", [channels, 4 * channels])
        for part in (1, 2):
            add(f"{fuser}.norm{part}.weight", [channels], 0.1, 1.0)
            add(f"{fuser}.norm{part}.bias", [channels], 0.05)
    return tensors


def tokens(weights, placed):
    """Texts `[768]` with boxes `(left, top, right, bottom)`, in shares of the picture, as tokens; thirty in all."""
    rows = []
    for text, box in placed:
        corners = torch.tensor(box)
        turns = [100.0 ** (i / 8) * corners for i in range(8)]
        rows.append(torch.cat([text, *[wave(turn) for turn in turns for wave in (torch.sin, torch.cos)]]))
    nothing = torch.cat([weights["position_net.null_positive_feature"], weights["position_net.null_position_feature"]])
    rows += [nothing] * (TEXTS - len(rows))
    x = torch.stack(rows)[None]
    for layer in (0, 2, 4):
        x = weights.linear(f"position_net.linears.{layer}", x)
        x = silu(x) if layer < 4 else x
    return x


def heads(x):
    return x.reshape(*x.shape[:2], HEADS, x.shape[2] // HEADS)


def attention(weights, name, x, seen):
    q, k, v = (heads(weights.linear(f"{name}.{part}", of)) for part, of in (("to_q", x), ("to_k", seen), ("to_v", seen)))
    return weights.linear(f"{name}.to_out.0", attend(q, k, v))


def forward(weights, name, x):
    own, gate = weights.linear(f"{name}.net.0.proj", x).chunk(2, -1)
    return weights.linear(f"{name}.net.2", own * gelu(gate))


def fused(weights, name, x, texts):
    """Tokens with what they make of the texts."""
    both = weights.norm(f"{name}.norm1", torch.cat([x, weights.linear(f"{name}.linear", texts)], 1))
    seen = attention(weights, f"{name}.attn", both, both)[:, : x.shape[1]]
    x = x + torch.tanh(weights[f"{name}.alpha_attn"]) * seen
    return x + torch.tanh(weights[f"{name}.alpha_dense"]) * forward(weights, f"{name}.ff", weights.norm(f"{name}.norm2", x))


def unet(weights, x, time, text, grounding=None):
    """One evaluation; `grounding` is a network with its tokens."""
    has = lambda name: f"{name}.weight" in weights.values
    channels = weights["time_embed.0.weight"].shape[1]
    vector = silu(weights.linear("time_embed.2", silu(weights.linear("time_embed.0", waves([time], channels)))))

    def layer(name, x):
        if has(f"{name}.op"):
            return weights.conv(f"{name}.op", x, 2)
        if has(f"{name}.conv"):
            return weights.conv(f"{name}.conv", interpolate(x, scale_factor=2))
        if has(f"{name}.in_layers.0"):
            inner = weights.conv(f"{name}.in_layers.2", silu(weights.groups(f"{name}.in_layers.0", x, 1e-5)))
            inner = inner + weights.linear(f"{name}.emb_layers.1", vector)[:, :, None, None]
            inner = weights.conv(f"{name}.out_layers.3", silu(weights.groups(f"{name}.out_layers.0", inner, 1e-5)))
            return inner + (weights.conv(f"{name}.skip_connection", x) if has(f"{name}.skip_connection") else x)
        inner = weights.conv(f"{name}.proj_in", weights.groups(f"{name}.norm", x, 1e-6))
        inner = inner.flatten(2).transpose(1, 2)
        block = f"{name}.transformer_blocks.0"
        inner = inner + attention(weights, f"{block}.attn1", *[weights.norm(f"{block}.norm1", inner)] * 2)
        if grounding is not None:
            network, texts = grounding
            inner = fused(network, f"{block}.fuser", inner, texts)
        inner = inner + attention(weights, f"{block}.attn2", weights.norm(f"{block}.norm2", inner), text)
        inner = inner + forward(weights, f"{block}.ff", weights.norm(f"{block}.norm3", inner))
        inner = inner.transpose(1, 2).reshape(x.shape)
        return x + weights.conv(f"{name}.proj_out", inner)

    def block(name, x):
        numbers = sorted({int(key[len(name) + 1 :].split(".")[0]) for key in weights.values if key.startswith(f"{name}.")})
        for number in numbers:
            x = layer(f"{name}.{number}", x)
        return x

    count = lambda part: len({key.split(".")[1] for key in weights.values if key.startswith(f"{part}.")})
    x = weights.conv("input_blocks.0.0", x)
    kept = [x]
    for i in range(1, count("input_blocks")):
        x = block(f"input_blocks.{i}", x)
        kept.append(x)
    x = block("middle_block", x)
    for i in range(count("output_blocks")):
        x = block(f"output_blocks.{i}", torch.cat([x, kept.pop()], 1))
    return weights.conv("out.2", silu(weights.groups("out.0", x, 1e-5)))


def main(manifests, out):
    path = manifests / "sd15_micro.json"
    own = manifest(json.loads(path.read_text())["tensors"])
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in own)
    head = '{"file":"gligen/gligen_sd15_micro.safetensors",\n"config":{}'
    text = f'{head},\n"metadata":{{"format":"pt"}},\n"tensors":[\n{lines}\n]}}\n'
    (manifests / "gligen_sd15_micro.json").write_text(text)
    inputs = {
        "x": made("gligen.x", [1, 4, 16, 8], 1.7),
        "context": made("gligen.context", [1, 7, TEXT], 1.7),
        "first": made("gligen.first", [TEXT]),
        "second": made("gligen.second", [TEXT]),
    }
    x, context, first, second = (value for _, value in inputs.values())
    model, network = UnetWeights.read(path), UnetWeights.of(own, torch.float16)
    # In latent values of the picture of sixteen rows and eight columns: left, top, right, bottom.
    boxes = [(0.0, 0.0, 4 / 8, 8 / 16), (3 / 8, 6 / 16, 8 / 8, 15 / 16)]
    texts = tokens(network, list(zip((first, second), boxes)))
    tensors = {
        "plain": unet(model, x, 601.0, context),
        "one": unet(model, x, 601.0, context, (network, tokens(network, [(first, boxes[0])]))),
        "two": unet(model, x, 601.0, context, (network, texts)),
    }
    write(out / "gligen_sd15_micro.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
