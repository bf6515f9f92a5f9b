"""Writes what the tests of LTX-Video's latent upscaler compare with: see README.md."""

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import conv2d, conv3d, group_norm, pixel_shuffle, silu

from transformers_of_videos import Weights, made, write

CHANNELS, INNER, BLOCKS = 128, 64, 2


def manifest():
    """The manifest of a small model."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": name, "shape": shape, "dtype": "BF16", "scale": scale, "offset": offset})

    def convolution(name, shape):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        add(f"{name}.bias", shape[:1], 0.05)

    def norm(name):
        add(f"{name}.weight", [INNER], 0.1, 1.0)
        add(f"{name}.bias", [INNER], 0.05)

    convolution("initial_conv", [INNER, CHANNELS, 3, 3, 3])
    norm("initial_norm")
    for row in ("res_blocks", "post_upsample_res_blocks"):
        for i in range(BLOCKS):
            for part in (1, 2):
                convolution(f"{row}.{i}.conv{part}", [INNER, INNER, 3, 3, 3])
                norm(f"{row}.{i}.norm{part}")
    convolution("upsampler.0", [4 * INNER, INNER, 3, 3])
    convolution("final_conv", [CHANNELS, INNER, 3, 3, 3])
    return tensors


def enlarged(weights, x):
    """A latent with frames of twice the size."""

    def convolution(name, x):
        return conv3d(x, weights[f"{name}.weight"], weights[f"{name}.bias"], padding=1)

    def norm(name, x):
        return group_norm(x, 32, weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-5)

    def residual(name, x):
        inner = silu(norm(f"{name}.norm1", convolution(f"{name}.conv1", x)))
        return silu(norm(f"{name}.norm2", convolution(f"{name}.conv2", inner)) + x)

    x = silu(norm("initial_norm", convolution("initial_conv", x)))
    for i in range(BLOCKS):
        x = residual(f"res_blocks.{i}", x)
    frames = [conv2d(x[:, :, i], weights["upsampler.0.weight"], weights["upsampler.0.bias"], padding=1) for i in range(x.shape[2])]
    x = torch.stack([pixel_shuffle(frame, 2) for frame in frames], 2)
    for i in range(BLOCKS):
        x = residual(f"post_upsample_res_blocks.{i}", x)
    return convolution("final_conv", x)


def main(manifests, out):
    tensors = manifest()
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in tensors)
    head = '{"file":"latent_upscale_models/ltxv_spatial_tiny.safetensors",\n"config":{}'
    text = f'{head},\n"metadata":{{"format":"pt"}},\n"tensors":[\n{lines}\n]}}\n'
    (manifests / "ltxv_spatial_tiny.json").write_text(text)
    inputs = {"x": made("upscale.x", [1, CHANNELS, 2, 3, 2])}
    (latent,) = (value for _, value in inputs.values())
    write(out / "ltxv_spatial_tiny.safetensors", inputs, {"enlarged": enlarged(Weights.of(tensors), latent)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
