"""Writes what the tests of Wan Animate compare with: see README.md.

What sees faces is that of diffusers in f64, with weights under the names of released files; the formulas of Wan around it are
those of `wan_humo.py`.
"""

import json
import math
import sys
from pathlib import Path

import torch
from diffusers.models.transformers.transformer_wan_animate import (
    WanAnimateFaceBlockCrossAttention,
    WanAnimateFaceEncoder,
    WanAnimateMotionEncoder,
)
from torch.nn.functional import gelu, layer_norm, silu

from hunyuan_video_15_sr import manifest_text
from transformers_of_videos import Weights, angles_of, attend, made, normed, rms, turned, waves, write
from wan_humo import HEAD, tokens_of

SIDE, STYLE, MOTION, SPACE, TOKENS, INNER, FACES, BLOCKS = 512, 16, 6, 12, 4, 16, 5, 6
# Channels of the convolutions by the sides of their pictures, as many as the released model has.
CHANNELS = {"512": 4, "256": 4, "128": 8, "64": 8, "32": 8, "16": 8, "8": 8, "4": 8}


def seeing(tensors):
    """The manifest of a small model that sees faces: that of a small Wan with more blocks and more in it."""
    own, hidden = [], tensors[0]["shape"][0]

    def add(name, shape, scale, offset=0.0):
        own.append({"name": name, "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def layer(name, shape):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        add(f"{name}.bias", shape[:1], 0.05)

    own.extend({"offset": 0.0, **one} for one in tensors)
    for one in own:
        if one["name"] == "patch_embedding.weight":
            one["shape"] = [hidden, 36, 1, 2, 2]
    first = [one for one in own if one["name"].startswith("blocks.0.")]
    for block in range(2, BLOCKS):
        own.extend({**one, "name": one["name"].replace("blocks.0.", f"blocks.{block}.")} for one in first)
    layer("pose_patch_embedding", [hidden, 16, 1, 2, 2])
    convs, channels = "motion_encoder.enc.net_app.convs", list(CHANNELS.values())
    add(f"{convs}.0.0.weight", [channels[0], 3, 1, 1], 1.7)
    add(f"{convs}.0.1.bias", [1, channels[0], 1, 1], 0.2)
    for i, (a, b) in enumerate(zip(channels, channels[1:]), 1):
        add(f"{convs}.{i}.conv1.0.weight", [a, a, 3, 3], 1.7)
        add(f"{convs}.{i}.conv1.1.bias", [1, a, 1, 1], 0.2)
        add(f"{convs}.{i}.conv2.0.kernel", [4, 4], 0.1)
        add(f"{convs}.{i}.conv2.1.weight", [b, a, 3, 3], 1.7)
        add(f"{convs}.{i}.conv2.2.bias", [1, b, 1, 1], 0.2)
        add(f"{convs}.{i}.skip.0.kernel", [4, 4], 0.1)
        add(f"{convs}.{i}.skip.1.weight", [b, a, 1, 1], 1.7)
    add(f"{convs}.{len(channels)}.weight", [STYLE, channels[-1], 4, 4], 1.7)
    for i in range(5):
        to = STYLE if i < 4 else MOTION
        add(f"motion_encoder.enc.fc.{i}.weight", [to, STYLE], 1.7)
        add(f"motion_encoder.enc.fc.{i}.bias", [to], 0.2)
    add("motion_encoder.dec.direction.weight", [SPACE, MOTION], 1.0)
    layer("face_encoder.conv1_local.conv", [INNER * TOKENS, SPACE, 3])
    layer("face_encoder.conv2.conv", [INNER, INNER, 3])
    layer("face_encoder.conv3.conv", [INNER, INNER, 3])
    layer("face_encoder.out_proj", [hidden, INNER])
    add("face_encoder.padding_tokens", [1, 1, 1, hidden], 0.5)
    for i in range(2):
        name = f"face_adapter.fuser_blocks.{i}"
        layer(f"{name}.linear1_kv", [2 * hidden, hidden])
        layer(f"{name}.linear1_q", [hidden, hidden])
        layer(f"{name}.linear2", [hidden, hidden])
        for norm in ("q_norm", "k_norm"):
            add(f"{name}.{norm}.weight", [HEAD], 0.1, 1.0)
    return own


def loaded(module, state):
    module.to(torch.float64).load_state_dict(state)
    return module.eval()


def seen(weights, faces, hidden):
    """Faces `[frames, 3, 512, 512]` as tokens `[1, frames, 5, hidden]`."""
    state, convs = {}, "motion_encoder.enc.net_app.convs"
    state["conv_in.weight"] = weights[f"{convs}.0.0.weight"]
    state["conv_in.act_fn.bias"] = weights[f"{convs}.0.1.bias"].flatten()
    for i in range(len(CHANNELS) - 1):
        name, other = f"{convs}.{i + 1}", f"res_blocks.{i}"
        for ours, theirs in [("conv1.0", "conv1"), ("conv2.1", "conv2"), ("skip.1", "conv_skip")]:
            state[f"{other}.{theirs}.weight"] = weights[f"{name}.{ours}.weight"]
        state[f"{other}.conv1.act_fn.bias"] = weights[f"{name}.conv1.1.bias"].flatten()
        state[f"{other}.conv2.act_fn.bias"] = weights[f"{name}.conv2.2.bias"].flatten()
    state["conv_out.weight"] = weights[f"{convs}.{len(CHANNELS)}.weight"]
    for i in range(5):
        for end in ("weight", "bias"):
            state[f"motion_network.{i}.{end}"] = weights[f"motion_encoder.enc.fc.{i}.{end}"]
    state["motion_synthesis_weight"] = weights["motion_encoder.dec.direction.weight"]
    finding = loaded(WanAnimateMotionEncoder(SIDE, STYLE, MOTION, SPACE, channels=CHANNELS), state)
    state = {name.removeprefix("face_encoder.").replace(".conv.", "."): value for name, value in weights.values.items()
             if name.startswith("face_encoder.")}
    bringing = loaded(WanAnimateFaceEncoder(SPACE, hidden, INNER, TOKENS), state)
    with torch.no_grad():
        return bringing(finding(faces)[None])


def animate(weights, latent, time, text, poses=None, faces=None):
    """One evaluation of a latent with what stands beside it."""
    items, _, frames, height, width = latent.shape
    size = [frames, height // 2, width // 2]
    x = tokens_of(weights, latent)
    hidden, per_frame = x.shape[2], size[1] * size[2]
    if poses is not None:
        other = Weights.__new__(Weights)
        other.values = {f"patch_embedding.{end}": weights[f"pose_patch_embedding.{end}"] for end in ("weight", "bias")}
        x[:, per_frame:] += tokens_of(other, poses)[:, : x.shape[1] - per_frame]
    looked_at = None
    if faces is not None:
        looked_at = seen(weights, faces, hidden)
        nothing = torch.zeros(1, frames, *looked_at.shape[2:])
        looked_at = torch.cat([nothing[:, :1], looked_at, nothing], 1)[:, :frames]
    side = 2 * (HEAD // 6)
    along = angles_of(size, [HEAD - 2 * side, side, side], [10000.0] * 3)
    vector = weights.linear("time_embedding.2", silu(weights.linear("time_embedding.0", waves([time], 256))))
    change = weights.linear("time_projection.1", silu(vector)).reshape(1, 6, hidden)
    text = weights.linear("text_embedding.2", gelu(weights.linear("text_embedding.0", text), approximate="tanh"))

    def heads(x):
        return x.reshape(*x.shape[:2], hidden // HEAD, HEAD)

    def attention(name, x, context, turn=None):
        q = heads(rms(weights.linear(f"{name}.q", x), weights[f"{name}.norm_q.weight"], 1e-6))
        k = heads(rms(weights.linear(f"{name}.k", context), weights[f"{name}.norm_k.weight"], 1e-6))
        if turn is not None:
            q, k = turned(q, turn, True), turned(k, turn, True)
        return weights.linear(f"{name}.o", attend(q, k, heads(weights.linear(f"{name}.v", context))))

    for i in range(BLOCKS):
        name = f"blocks.{i}"
        parts = (weights[f"{name}.modulation"] + change).chunk(6, 1)
        inner = normed(x, 1e-6) * (1 + parts[1]) + parts[0]
        x = x + attention(f"{name}.self_attn", inner, inner, along) * parts[2]
        inner = layer_norm(x, [hidden], weights[f"{name}.norm3.weight"], weights[f"{name}.norm3.bias"], eps=1e-6)
        x = x + attention(f"{name}.cross_attn", inner, text)
        inner = normed(x, 1e-6) * (1 + parts[4]) + parts[3]
        inner = weights.linear(f"{name}.ffn.2", gelu(weights.linear(f"{name}.ffn.0", inner), approximate="tanh"))
        x = x + inner * parts[5]
        if looked_at is not None and i % 5 == 0:
            fuser, state = f"face_adapter.fuser_blocks.{i // 5}", {}
            for end in ("weight", "bias"):
                state[f"to_q.{end}"] = weights[f"{fuser}.linear1_q.{end}"]
                state[f"to_out.{end}"] = weights[f"{fuser}.linear2.{end}"]
                state[f"to_k.{end}"], state[f"to_v.{end}"] = weights[f"{fuser}.linear1_kv.{end}"].chunk(2, 0)
            state["norm_q.weight"], state["norm_k.weight"] = (weights[f"{fuser}.{one}_norm.weight"] for one in "qk")
            looking = loaded(WanAnimateFaceBlockCrossAttention(hidden, hidden // HEAD, HEAD), state)
            with torch.no_grad():
                x = x + looking(x, looked_at)
    parts = (weights["head.modulation"] + vector[:, None]).chunk(2, 1)
    x = weights.linear("head.head", normed(x, 1e-6) * (1 + parts[1]) + parts[0])
    x = x.reshape(items, *size, 1, 2, 2, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
    return x.reshape(items, -1, frames, height, width)


def main(manifests, out):
    own = seeing(json.loads((manifests / "wan2.1_t2v_tiny.json").read_text())["tensors"])
    name = "wan2.2_animate_tiny"
    (manifests / f"{name}.json").write_text(manifest_text(f"diffusion_models/{name}.safetensors", own))
    inputs = {
        "x": made("animate.x", [1, 16, 3, 4, 6]),
        "poses": made("animate.poses", [1, 16, 2, 4, 6]),
        "text": made("animate.text", [1, 5, 4096]),
        "faces": made("animate.faces", [FACES, 3, SIDE, SIDE], 1.0),
    }
    x, poses, text, faces = (value for _, value in inputs.values())
    weights = Weights.of(own, torch.float16)
    x = torch.cat([x, torch.zeros(1, 20, *x.shape[2:])], 1)
    tensors = {
        "plain": animate(weights, x, 640.0, text),
        "posed": animate(weights, x, 640.0, text, poses),
        "seen": animate(weights, x, 640.0, text, poses, faces),
        # Fewer faces than the video has frames for.
        "few": animate(weights, x, 640.0, text, None, faces[:1]),
    }
    write(out / "wan_animate_tiny.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
