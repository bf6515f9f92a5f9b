"""Writes what the tests of Chroma Radiance compare with: see README.md.

The formulas are written down here once more, in f64 and without any of our code.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import conv2d, gelu, silu

from transformers_of_videos import Weights, angles_of, attend, made, normed, rms, turned, waves, write

SIDE, WIDTH, MLP, WAVES, BLOCKS, CONTEXT = 16, 8, 32, 4, 2, 4096


def manifest(chroma):
    """The manifest of a small model: that of a small Chroma with another way in and out."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": name, "shape": shape, "dtype": "BF16", "scale": scale, "offset": offset})

    def linear(name, shape):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        add(f"{name}.bias", shape[:1], 0.05)

    linear("img_in_patch", [256, 3, SIDE, SIDE])
    linear("txt_in", [256, CONTEXT])
    kept = [tensor for tensor in chroma["tensors"] if not tensor["name"].startswith(("img_in", "txt_in", "final"))]
    tensors.extend(kept)
    linear("nerf_image_embedder.embedder.0", [WIDTH, 3 + WAVES * WAVES])
    for i in range(BLOCKS):
        linear(f"nerf_blocks.{i}.param_generator", [3 * WIDTH * MLP, 256])
        add(f"nerf_blocks.{i}.norm.scale", [WIDTH], 0.1, 1.0)
    add("nerf_final_layer_conv.norm.scale", [WIDTH], 0.1, 1.0)
    linear("nerf_final_layer_conv.conv", [3, WIDTH, 3, 3])
    return tensors


def unconvolved(tensors):
    """The same for a model whose last layer looks at one pixel and that gives the picture itself."""
    other = [tensor for tensor in tensors if not tensor["name"].startswith("nerf_final")]
    for name, shape, scale, offset in [
        ("nerf_final_layer.norm.scale", [WIDTH], 0.1, 1.0),
        ("nerf_final_layer.linear.weight", [3, WIDTH], 0.6, 0.0),
        ("nerf_final_layer.linear.bias", [3], 0.05, 0.0),
        ("__x0__", [0], 1.0, 0.0),
    ]:
        other.append({"name": name, "shape": shape, "dtype": "BF16", "scale": scale, "offset": offset})
    return other


def changes(weights, time, rows=344):
    """Every modulation, by the network that gives them; no guidance."""
    parts = [waves([1000 * time], 16).expand(rows, 16), waves([0.0], 16).expand(rows, 16)]
    x = torch.cat([*parts, waves([1000.0 * row for row in range(rows)], 32)], 1)
    x = weights.linear("distilled_guidance_layer.in_proj", x)
    for i in range(5):
        name = f"distilled_guidance_layer.layers.{i}"
        inner = rms(x, weights[f"distilled_guidance_layer.norms.{i}.scale"], 1e-6)
        x = x + weights.linear(f"{name}.out_layer", silu(weights.linear(f"{name}.in_layer", inner)))
    return weights.linear("distilled_guidance_layer.out_proj", x)


def trunk(weights, image, text, time, size):
    """The blocks of Chroma: tokens of the picture behind the last of them."""
    hidden, head, doubles, singles = 256, 128, weights.blocks("double_blocks"), weights.blocks("single_blocks")
    rows = changes(weights, time)
    places = angles_of([1, *size], [16, 56, 56], [10000.0] * 3)
    along = torch.cat([torch.zeros(text.shape[1], places.shape[1]), places])

    def heads(x):
        return x.reshape(*x.shape[:2], hidden // head, head)

    def qkv(name, norm, x):
        q, k, v = (heads(part) for part in x.chunk(3, -1))
        q = rms(q, weights[f"{name}.{norm}query_norm.scale"], 1e-6)
        return q, rms(k, weights[f"{name}.{norm}key_norm.scale"], 1e-6), v

    for i in range(doubles):
        name, sides = f"double_blocks.{i}", []
        for side, (kind, x) in enumerate((("img", image), ("txt", text))):
            first = 3 * singles + 6 * (doubles * side + i)
            change = rows[first : first + 6]
            inner = normed(x, 1e-6) * (1 + change[1]) + change[0]
            parts = qkv(f"{name}.{kind}_attn", "norm.", weights.linear(f"{name}.{kind}_attn.qkv", inner))
            sides.append((kind, x, change, parts))
        q, k, v = (torch.cat([sides[1][3][part], sides[0][3][part]], 1) for part in range(3))
        out = attend(turned(q, along, True), turned(k, along, True), v)
        results = []
        for kind, x, change, _ in sides:
            part = out[:, text.shape[1] :] if kind == "img" else out[:, : text.shape[1]]
            x = x + change[2] * weights.linear(f"{name}.{kind}_attn.proj", part)
            inner = normed(x, 1e-6) * (1 + change[4]) + change[3]
            inner = gelu(weights.linear(f"{name}.{kind}_mlp.0", inner), approximate="tanh")
            results.append(x + change[5] * weights.linear(f"{name}.{kind}_mlp.2", inner))
        image, text = results
    x = torch.cat([text, image], 1)
    for i in range(singles):
        name, change = f"single_blocks.{i}", rows[3 * i : 3 * i + 3]
        both = weights.linear(f"{name}.linear1", normed(x, 1e-6) * (1 + change[1]) + change[0])
        q, k, v = qkv(name, "norm.", both[..., : 3 * hidden])
        out = attend(turned(q, along, True), turned(k, along, True), v)
        inner = torch.cat([out, gelu(both[..., 3 * hidden :], approximate="tanh")], 2)
        x = x + change[2] * weights.linear(f"{name}.linear2", inner)
    return x[:, text.shape[1] :]


def painted(weights, picture, text, time):
    """One evaluation of a picture whose sides are multiples of a patch."""
    items, channels, height, width = picture.shape
    rows, columns = height // SIDE, width // SIDE
    text = weights.linear("txt_in", text)
    image = conv2d(picture, weights["img_in_patch.weight"], weights["img_in_patch.bias"], stride=SIDE)
    tokens = trunk(weights, image.flatten(2).transpose(1, 2), text, time, [rows, columns])
    tokens = tokens.reshape(items * rows * columns, -1)
    pixels = picture.reshape(items, channels, rows, SIDE, columns, SIDE).permute(0, 2, 4, 3, 5, 1)
    pixels = pixels.reshape(items * rows * columns, SIDE * SIDE, channels)
    y, x = torch.meshgrid(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE), indexing="ij")
    wave = torch.arange(WAVES, dtype=torch.float64)
    across = torch.cos(x.flatten()[:, None, None] * wave[None, :, None] * math.pi)
    down = torch.cos(y.flatten()[:, None, None] * wave[None, None, :] * math.pi)
    places = (across * down / (1 + wave[:, None] * wave[None, :])).reshape(1, SIDE * SIDE, -1)
    both = torch.cat([pixels, places.expand(pixels.shape[0], -1, -1)], 2)
    values = weights.linear("nerf_image_embedder.embedder.0", both)
    for i in range(BLOCKS):
        name = f"nerf_blocks.{i}"
        gate, value, last = weights.linear(f"{name}.param_generator", tokens).chunk(3, -1)
        gate, value = (part.reshape(-1, WIDTH, MLP) for part in (gate, value))
        gate, value, last = (part / part.norm(dim=1, keepdim=True) for part in (gate, value, last.reshape(-1, MLP, WIDTH)))
        inner = rms(values, weights[f"{name}.norm.scale"], 1e-6)
        values = values + (silu(inner @ gate) * (inner @ value)) @ last
    values = values.reshape(items, rows, columns, SIDE, SIDE, WIDTH).permute(0, 1, 3, 2, 4, 5)
    values = values.reshape(items, height, width, WIDTH)
    if "nerf_final_layer.linear.weight" in weights.values:
        out = weights.linear("nerf_final_layer.linear", rms(values, weights["nerf_final_layer.norm.scale"], 1e-6))
        return (picture - out.permute(0, 3, 1, 2)) / time
    values = rms(values, weights["nerf_final_layer_conv.norm.scale"], 1e-6).permute(0, 3, 1, 2)
    name = "nerf_final_layer_conv.conv"
    return conv2d(values, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)


def main(manifests, out):
    tensors = manifest(json.loads((manifests / "chroma_tiny.json").read_text()))
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in tensors)
    head = '{"file":"diffusion_models/chroma_radiance_tiny.safetensors",\n"config":{}'
    text = f'{head},\n"metadata":{{"format":"pt"}},\n"tensors":[\n{lines}\n]}}\n'
    (manifests / "chroma_radiance_tiny.json").write_text(text)
    inputs = {"x": made("radiance.x", [1, 3, 32, 48], 1.0), "text": made("radiance.text", [1, 9, CONTEXT])}
    picture, words = (value for _, value in inputs.values())
    results = {
        "convolved": painted(Weights.of(tensors), picture, words, 0.64),
        "clean": painted(Weights.of(unconvolved(tensors)), picture, words, 0.64),
    }
    write(out / "chroma_radiance_tiny.safetensors", inputs, results)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
