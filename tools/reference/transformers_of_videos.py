"""Writes what the tests of Kandinsky 5 and Cosmos Predict 2 compare with: see README.md.

The formulas are those of the models' papers and files, written down here once more, in f64 and without any of our code.
"""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import gelu, layer_norm, scaled_dot_product_attention, silu

from procedural import procedural

torch.set_default_dtype(torch.float64)


class Weights:
    """The tensors of a manifest, by their names."""

    def __init__(self, path, changed=()):
        tensors = json.loads(Path(path).read_text())["tensors"]
        changed = dict(changed)
        self.values = Weights.of({**one, "shape": changed.get(one["name"], one["shape"])} for one in tensors).values

    @classmethod
    def of(cls, tensors, stored=torch.bfloat16):
        weights = cls.__new__(cls)
        weights.values = {}
        for one in tensors:
            values = procedural(one["name"], one["shape"], one["scale"], one["offset"])
            weights.values[one["name"]] = values.to(stored).to(torch.float64)
        return weights

    def __getitem__(self, name):
        return self.values[name]

    def linear(self, name, x):
        out = x @ self[f"{name}.weight"].T
        return out + self[f"{name}.bias"] if f"{name}.bias" in self.values else out

    def blocks(self, name):
        return len({key.split(".")[1] for key in self.values if key.startswith(f"{name}.")})


def waves(times, width):
    """Cosines, then sines; angles are rounded as they are where the weights were trained."""
    half = width // 2
    exponents = -math.log(10000) * torch.arange(half, dtype=torch.float32) / half
    angles = torch.tensor(times, dtype=torch.float32)[:, None] * torch.exp(exponents)[None]
    return torch.cat([torch.cos(angles), torch.sin(angles)], 1).to(torch.float64)


def rms(x, weight, eps):
    return x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps) * weight


def angles_of(size, axes, thetas, closer=(1.0, 1.0, 1.0)):
    """The angle of every pair of values for every place of a grid."""
    places = np.stack(np.meshgrid(*[np.arange(count) for count in size], indexing="ij"), -1).reshape(-1, len(size))
    parts = []
    for axis, (values, theta, close) in enumerate(zip(axes, thetas, closer)):
        frequencies = theta ** -(np.arange(0, values, 2) / values)
        parts.append((places[:, axis] / close)[:, None] * frequencies[None])
    return torch.from_numpy(np.concatenate(parts, 1))


def turned(x, angles, interleaved):
    """Heads `[items, tokens, heads, size]`, pair by pair."""
    cos, sin = torch.cos(angles)[None, :, None], torch.sin(angles)[None, :, None]
    if interleaved:
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).reshape(x.shape)
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attend(q, k, v):
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def normed(x, eps):
    return layer_norm(x, x.shape[-1:], eps=eps)


def kandinsky(weights, latent, time, text, pooled, first=None, mask=None):
    """One evaluation; of a video its first frames are replaced, and a mask says which are given."""
    hidden = weights["visual_embeddings.in_layer.weight"].shape[0]
    head = weights["visual_transformer_blocks.0.self_attention.query_norm.weight"].shape[0]
    items, channels, frames, height, width = latent.shape
    x = latent.clone()
    if first is not None:
        x[:, :, : first.shape[2]] = first
    if weights["visual_embeddings.in_layer.weight"].shape[1] > 4 * channels:
        given = torch.zeros(items, 1, frames, height, width) if mask is None else 1 - mask
        x = torch.cat([x, torch.zeros_like(latent), given], 1)
    rows, columns = height // 2, width // 2
    x = x.reshape(items, -1, frames, rows, 2, columns, 2).permute(0, 2, 3, 5, 4, 6, 1)
    x = weights.linear("visual_embeddings.in_layer", x.reshape(items, frames * rows * columns, -1))

    def embedded(name, value):
        value = weights.linear(f"{name}.in_layer", value)
        return normed(value, 1e-5) * weights[f"{name}.norm.weight"] + weights[f"{name}.norm.bias"]

    vector = weights.linear("time_embeddings.in_layer", waves([time], hidden))
    vector = weights.linear("time_embeddings.out_layer", silu(vector)) + embedded("pooled_text_embeddings", pooled)
    text = embedded("text_embeddings", text)

    def heads(value):
        return value.reshape(*value.shape[:2], hidden // head, head)

    def attention(name, x, context, angles):
        q = rms(heads(weights.linear(f"{name}.to_query", x)), weights[f"{name}.query_norm.weight"], 1.1920929e-7)
        k = rms(heads(weights.linear(f"{name}.to_key", context)), weights[f"{name}.key_norm.weight"], 1.1920929e-7)
        if angles is not None:
            q, k = turned(q, angles, True), turned(k, angles, True)
        v = heads(weights.linear(f"{name}.to_value", context))
        return weights.linear(f"{name}.out_layer", attend(q, k, v))

    def forward(name, x):
        return weights.linear(f"{name}.feed_forward.out_layer", gelu(weights.linear(f"{name}.feed_forward.in_layer", x)))

    def block(name, modulation, x, parts):
        change = weights.linear(f"{name}.{modulation}.out_layer", silu(vector))[:, None].chunk(3 * len(parts), -1)
        for place, part in enumerate(parts):
            shift, scale, gate = change[3 * place : 3 * place + 3]
            x = x + gate * part(normed(x, 1e-5) * (1 + scale) + shift)
        return x

    along_text = angles_of([text.shape[1]], [head], [10000.0])
    for i in range(weights.blocks("text_transformer_blocks")):
        name = f"text_transformer_blocks.{i}"
        parts = [
            lambda x, n=name: attention(f"{n}.self_attention", x, x, along_text),
            lambda x, n=name: forward(n, x),
        ]
        text = block(name, "text_modulation", text, parts)
    axes = [head // 4, head // 8 * 3, head // 8 * 3]
    along = angles_of([frames, rows, columns], axes, [10000.0] * 3, (1.0, 2.0, 2.0))
    for i in range(weights.blocks("visual_transformer_blocks")):
        name = f"visual_transformer_blocks.{i}"
        parts = [
            lambda x, n=name: attention(f"{n}.self_attention", x, x, along),
            lambda x, n=name: attention(f"{n}.cross_attention", x, text, None),
            lambda x, n=name: forward(n, x),
        ]
        x = block(name, "visual_modulation", x, parts)
    shift, scale = weights.linear("out_layer.modulation.out_layer", silu(vector))[:, None].chunk(2, -1)
    x = weights.linear("out_layer.out_layer", normed(x, 1e-5) * (1 + scale) + shift)
    x = x.reshape(items, frames, rows, columns, channels, 2, 2).permute(0, 4, 1, 2, 5, 3, 6)
    return x.reshape(latent.shape)


def cosmos(weights, latent, time, text, stretches, made=None):
    """One evaluation; `made` says how much of each frame is made new."""
    hidden = weights["x_embedder.proj.1.weight"].shape[0]
    head = weights["blocks.0.self_attn.q_norm.weight"].shape[0]
    items, channels, frames, height, width = latent.shape
    beside = torch.zeros(items, 1, frames, height, width)
    shown = [latent]
    if weights["x_embedder.proj.1.weight"].shape[1] == 4 * (channels + 2):
        given = torch.zeros(frames) if made is None else 1 - made.round()
        shown.append(given[None, None, :, None, None].expand_as(beside))
    x = torch.cat([*shown, beside], 1)
    rows, columns = height // 2, width // 2
    x = x.reshape(items, -1, frames, rows, 2, columns, 2).permute(0, 2, 3, 5, 1, 4, 6)
    x = weights.linear("x_embedder.proj.1", x.reshape(items, frames * rows * columns, -1))
    times = [time] if made is None else [float(np.float32(time) * np.float32(part)) for part in made.tolist()]
    time = waves(times, hidden)
    shared = weights.linear("t_embedder.1.linear_2", silu(weights.linear("t_embedder.1.linear_1", time)))
    time = silu(rms(time, weights["t_embedding_norm.weight"], 1e-6))

    def moved(name, parts):
        change = weights.linear(f"{name}.2", weights.linear(f"{name}.1", time)) + shared[:, : parts * hidden]
        return change.repeat_interleave(x.shape[1] // change.shape[0], 0)[None].chunk(parts, -1)

    def heads(value):
        return value.reshape(*value.shape[:2], hidden // head, head)

    side = 2 * (head // 6)
    axes = [head - 2 * side, side, side]
    thetas = [10000.0 * stretch ** (values / (values - 2)) for stretch, values in zip(stretches, axes)]
    along = angles_of([frames, rows, columns], axes, thetas)

    def attention(name, x, context, angles):
        q = rms(heads(weights.linear(f"{name}.q_proj", x)), weights[f"{name}.q_norm.weight"], 1e-6)
        k = rms(heads(weights.linear(f"{name}.k_proj", context)), weights[f"{name}.k_norm.weight"], 1e-6)
        if angles is not None:
            q, k = turned(q, angles, False), turned(k, angles, False)
        return weights.linear(f"{name}.output_proj", attend(q, k, heads(weights.linear(f"{name}.v_proj", context))))

    for i in range(weights.blocks("blocks")):
        name = f"blocks.{i}"
        for part in ("self_attn", "cross_attn", "mlp"):
            shift, scale, gate = moved(f"{name}.adaln_modulation_{part}", 3)
            inner = normed(x, 1e-6) * (1 + scale) + shift
            if part == "mlp":
                out = weights.linear(f"{name}.mlp.layer2", gelu(weights.linear(f"{name}.mlp.layer1", inner)))
            elif part == "self_attn":
                out = attention(f"{name}.self_attn", inner, inner, along)
            else:
                out = attention(f"{name}.cross_attn", inner, text, None)
            x = x + gate * out
    shift, scale = moved("final_layer.adaln_modulation", 2)
    x = weights.linear("final_layer.linear", normed(x, 1e-6) * (1 + scale) + shift)
    x = x.reshape(items, frames, rows, columns, 2, 2, channels).permute(0, 6, 1, 2, 4, 3, 5)
    return x.reshape(latent.shape)


def write(path, inputs, tensors):
    """A file of results, with the rules of their inputs."""
    metadata = {"inputs": json.dumps({name: rule for name, (rule, _) in inputs.items()})}
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        part = tensor.to(torch.float32).contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def made(name, shape, scale=1.5):
    rule = {"name": name, "shape": shape, "scale": scale, "offset": 0.0}
    return rule, procedural(name, shape, scale, 0.0).to(torch.float64)


def main(manifests, out):
    shape = [1, 16, 2, 6, 4]
    inputs = {
        "x": made("kandinsky5.x", shape),
        "picture": made("kandinsky5.picture", [1, 16, 1, 6, 4]),
        "text": made("kandinsky5.text", [1, 9, 256]),
        "pooled": made("kandinsky5.pooled", [1, 768]),
    }
    x, picture, text, pooled = (value for _, value in inputs.values())
    mask = torch.ones(1, 1, 2, 6, 4)
    mask[:, :, :1] = 0
    path = manifests / "kandinsky5_tiny.json"
    video = Weights(path)
    pictures = Weights(path, [("visual_embeddings.in_layer.weight", [256, 64])])
    tensors = {
        "video": kandinsky(video, x, 640.0, text, pooled),
        "begun": kandinsky(video, x, 640.0, text, pooled, picture, mask),
        "picture": kandinsky(pictures, x[:, :, :1], 640.0, text, pooled)[:, :, 0],
    }
    write(out / "kandinsky5_tiny.safetensors", inputs, tensors)
    inputs = {"x": made("cosmos.x", shape), "text": made("cosmos.text", [1, 9, 1024])}
    x, text = (value for _, value in inputs.values())
    shares = torch.tensor([0.0, 0.75])
    t2i = Weights(manifests / "cosmos_predict2_t2i_tiny.json")
    world = Weights(manifests / "cosmos_predict2_video2world_tiny.json")
    tensors = {
        "picture": cosmos(t2i, x[:, :, :1], 0.64, text, (1.0, 4.0, 4.0)),
        "video": cosmos(world, x, 0.64, text, (1.0, 3.0, 3.0)),
        "begun": cosmos(world, x, 0.64, text, (1.0, 3.0, 3.0), shares),
    }
    write(out / "cosmos_tiny.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
