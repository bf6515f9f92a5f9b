"""Writes what the tests of HunyuanVideo 1.5's super-resolution compare with: see README.md.

The transformer is that of diffusers in f64, with weights under the names of released files. The formulas of the upscalers of
latents (Tencent-Hunyuan/HunyuanVideo-1.5) are written down here once more, without any of our code.
"""

import json
import math
import sys
from pathlib import Path

import torch
from diffusers import HunyuanVideo15Transformer3DModel
from torch.nn.functional import conv3d, pad, silu

from transformers_of_videos import Weights, made, write

CHANNELS = 32
LAYERS = [("in_layer", "linear_1"), ("out_layer", "linear_2")]


def larger(tensors):
    """The manifest of a small model: that of a small HunyuanVideo 1.5 with more beside the latent and a second time."""
    other = []
    for one in tensors:
        if one["name"] == "img_in.proj.weight":
            one = {**one, "shape": [one["shape"][0], 3 * CHANNELS + 2, 1, 1, 1]}
        other.append(one)
        if one["name"].startswith("time_in."):
            other.append({**one, "name": one["name"].replace("time_in.", "time_r_in.")})
    return other


def renamed(weights):
    """The same weights by diffusers' names."""
    out = {}

    def move(ours, theirs, change=lambda value: value):
        for end in ("weight", "bias"):
            if f"{ours}.{end}" in weights.values:
                out[f"{theirs}.{end}"] = change(weights[f"{ours}.{end}"])

    def three(ours, theirs):
        for end in ("weight", "bias"):
            for name, part in zip(theirs, weights[f"{ours}.{end}"].chunk(3, 0)):
                out[f"{name}.{end}"] = part

    move("img_in.proj", "x_embedder.proj")
    for ours, theirs in LAYERS:
        move(f"time_in.{ours}", f"time_embed.timestep_embedder.{theirs}")
        move(f"time_r_in.{ours}", f"time_embed.timestep_embedder_r.{theirs}")
        move(f"txt_in.t_embedder.{ours}", f"context_embedder.time_text_embed.timestep_embedder.{theirs}")
        move(f"txt_in.c_embedder.{ours}", f"context_embedder.time_text_embed.text_embedder.{theirs}")
    move("txt_in.input_embedder", "context_embedder.proj_in")
    for i in range(2):
        name, other = f"txt_in.individual_token_refiner.blocks.{i}", f"context_embedder.token_refiner.refiner_blocks.{i}"
        three(f"{name}.self_attn.qkv", [f"{other}.attn.to_{part}" for part in "qkv"])
        pairs = [("adaLN_modulation.1", "norm_out.linear"), ("norm1", "norm1"), ("norm2", "norm2")]
        for ours, theirs in [*pairs, ("self_attn.proj", "attn.to_out.0"), ("mlp.0", "ff.net.0.proj"), ("mlp.2", "ff.net.2")]:
            move(f"{name}.{ours}", f"{other}.{theirs}")
    for i in range(weights.blocks("double_blocks")):
        name, other = f"double_blocks.{i}", f"transformer_blocks.{i}"
        three(f"{name}.img_attn.qkv", [f"{other}.attn.to_{part}" for part in "qkv"])
        three(f"{name}.txt_attn.qkv", [f"{other}.attn.add_{part}_proj" for part in "qkv"])
        for ours, theirs in [("query", "q"), ("key", "k")]:
            out[f"{other}.attn.norm_{theirs}.weight"] = weights[f"{name}.img_attn.norm.{ours}_norm.scale"]
            out[f"{other}.attn.norm_added_{theirs}.weight"] = weights[f"{name}.txt_attn.norm.{ours}_norm.scale"]
        move(f"{name}.img_attn.proj", f"{other}.attn.to_out.0")
        move(f"{name}.txt_attn.proj", f"{other}.attn.to_add_out")
        for side, end in [("img", ""), ("txt", "_context")]:
            move(f"{name}.{side}_mod.lin", f"{other}.norm1{end}.linear")
            move(f"{name}.{side}_mlp.0", f"{other}.ff{end}.net.0.proj")
            move(f"{name}.{side}_mlp.2", f"{other}.ff{end}.net.2")
    # There the scale stands before the shift.
    move("final_layer.adaLN_modulation.1", "norm_out.linear", lambda value: torch.cat(value.chunk(2, 0)[::-1]))
    move("final_layer.linear", "proj_out")
    move("byt5_in.layernorm", "context_embedder_2.norm")
    for i in range(1, 4):
        move(f"byt5_in.fc{i}", f"context_embedder_2.linear_{i}")
    for ours, theirs in [("0", "norm_in"), ("1", "linear_1"), ("3", "linear_2"), ("4", "norm_out")]:
        move(f"vision_in.proj.{ours}", f"image_embedder.{theirs}")
    move("cond_type_embedding", "cond_type_embed")
    return out


def transformer(weights):
    state = renamed(weights)
    hidden, channels = state["x_embedder.proj.weight"].shape[:2]
    model = HunyuanVideo15Transformer3DModel(
        in_channels=channels,
        out_channels=CHANNELS,
        num_attention_heads=hidden // 128,
        num_layers=weights.blocks("double_blocks"),
        text_embed_dim=state["context_embedder.proj_in.weight"].shape[1],
        use_meanflow="time_r_in.in_layer.weight" in weights.values,
    ).to(torch.float64)
    model.load_state_dict(state)
    return model.eval()


def evaluated(model, x, times, text, letters, vision):
    ones = lambda x: torch.ones(x.shape[:2], dtype=torch.bool)
    time, landing = (None if time is None else torch.tensor([time], dtype=torch.float64) for time in times)
    with torch.no_grad():
        return model(
            x, time, text, ones(text), timestep_r=landing, encoder_hidden_states_2=letters,
            encoder_attention_mask_2=ones(letters), image_embeds=vision,
        ).sample


def causal(weights, name, x):
    """A convolution that looks back in time, the border's values around it."""
    return conv3d(pad(x, (1, 1, 1, 1, 2, 0), mode="replicate"), weights[f"{name}.conv.weight"], weights[f"{name}.conv.bias"])


def upscaler(kind):
    """The manifest of a small upscaler of latents."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": name, "shape": shape, "dtype": "BF16", "scale": scale, "offset": offset})

    def convolution(name, to, channels, side=3):
        add(f"{name}.weight", [to, channels, side, side, side], 1.7 / math.sqrt(channels * side**3))
        add(f"{name}.bias", [to], 0.05)

    if kind == "plain":
        convolution("in_conv.conv", 16, CHANNELS)
        for i in range(2):
            for layer in (0, 2, 4):
                convolution(f"blocks.{i}.block.{layer}.conv", 16, 16)
        convolution("out_conv.conv", CHANNELS, 16)
        return tensors
    convolution("conv_in.conv", 64, CHANNELS)
    channels = 64
    for stage, to in enumerate([64, 32]):
        for block in range(2):
            name = f"up.{stage}.block.{block}"
            add(f"{name}.norm1.gamma", [channels, 1, 1, 1], 0.1, 1.0)
            convolution(f"{name}.conv1.conv", to, channels)
            add(f"{name}.norm2.gamma", [to, 1, 1, 1], 0.1, 1.0)
            convolution(f"{name}.conv2.conv", to, to)
            if channels != to:
                convolution(f"{name}.nin_shortcut", to, channels, 1)
            channels = to
    add("norm_out.gamma", [channels, 1, 1, 1], 0.1, 1.0)
    convolution("conv_out.conv", CHANNELS, channels)
    return tensors


def refined(weights, x):
    """Residual blocks of three convolutions each."""
    x = causal(weights, "in_conv", x)
    for i in range(weights.blocks("blocks")):
        inner = x
        for layer in (0, 2, 4):
            inner = causal(weights, f"blocks.{i}.block.{layer}", inner if layer == 0 else silu(inner))
        x = x + inner
    return causal(weights, "out_conv", x)


def staged(weights, x):
    """Stages of residual blocks with norms over channels."""

    def norm(name, x):
        length = torch.sqrt((x * x).sum(1, keepdim=True)).clamp(min=1e-12)
        return x / length * math.sqrt(x.shape[1]) * weights[f"{name}.gamma"]

    inner = causal(weights, "conv_in", x)
    x = inner + x.repeat_interleave(inner.shape[1] // x.shape[1], 1)
    for stage in range(weights.blocks("up")):
        for block in range(2):
            name = f"up.{stage}.block.{block}"
            inner = causal(weights, f"{name}.conv1", silu(norm(f"{name}.norm1", x)))
            inner = causal(weights, f"{name}.conv2", silu(norm(f"{name}.norm2", inner)))
            short = f"{name}.nin_shortcut"
            if f"{short}.weight" in weights.values:
                x = conv3d(x, weights[f"{short}.weight"], weights[f"{short}.bias"])
            x = x + inner
    return causal(weights, "conv_out", silu(norm("norm_out", x)))


def manifest_text(file, tensors):
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in tensors)
    return f'{{"file":"{file}",\n"config":{{}},\n"metadata":{{"format":"pt"}},\n"tensors":[\n{lines}\n]}}\n'


def main(manifests, out):
    base = json.loads((manifests / "hunyuan_video_15_tiny.json").read_text())["tensors"]
    own = [{"offset": 0.0, **one} for one in larger(base)]
    name = "hunyuan_video_15_sr_tiny"
    (manifests / f"{name}.json").write_text(manifest_text(f"diffusion_models/{name}.safetensors", own))
    inputs = {
        "x": made("sr.x", [1, CHANNELS, 2, 4, 2]),
        "beside": made("sr.beside", [1, 2 * CHANNELS + 2, 2, 4, 2]),
        "text": made("sr.text", [1, 5, 256]),
        "letters": made("sr.letters", [1, 3, 1472]),
        "vision": made("sr.vision", [1, 4, 1152]),
        "latent": made("sr.latent", [1, CHANNELS, 3, 4, 3]),
    }
    x, beside, text, letters, vision, latent = (value for _, value in inputs.values())
    model = transformer(Weights.of(own))
    x = torch.cat([x, beside], 1)
    tensors = {
        "alone": evaluated(model, x, (700.0, None), text, letters, vision),
        "landing": evaluated(model, x, (700.0, 300.0), text, letters, vision),
    }
    for kind, compute in [("plain", refined), ("staged", staged)]:
        own = upscaler(kind)
        name = f"hunyuan_video_15_{kind}_upscaler_tiny"
        (manifests / f"{name}.json").write_text(manifest_text(f"latent_upscale_models/{name}.safetensors", own))
        tensors[kind] = compute(Weights.of(own), latent)
    write(out / "hunyuan_video_15_sr_tiny.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
