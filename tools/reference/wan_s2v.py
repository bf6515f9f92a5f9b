"""Writes what the tests of Wan 2.2 S2V and of wav2vec 2.0 compare with: see README.md.

wav2vec 2.0 is that of transformers in f64, with weights under the names of released files. The formulas of Wan and of S2V
(arXiv 2508.18621) are written down here once more, without any of our code.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import conv1d, conv3d, gelu, layer_norm, pad, silu
from transformers import Wav2Vec2Config, Wav2Vec2Model

from hunyuan_video_15_sr import manifest_text
from transformers_of_videos import Weights, angles_of, attend, made, normed, rms, turned, waves, write

HEAD, LAYERS, WIDTH, TOKENS, BLOCKS = 128, 3, 64, 4, 5
TOLD = {0: 0, 4: 1}
CHANNELS, HIDDEN = 32, 64


def speaking(tensors):
    """The manifest of a small model that is told speech: that of a small Wan with more blocks and more in it."""
    own, hidden = [], tensors[0]["shape"][0]

    def add(name, shape, scale, offset=0.0):
        own.append({"name": name, "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def layer(name, shape):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        add(f"{name}.bias", shape[:1], 0.05)

    own.extend({"offset": 0.0, **one} for one in tensors)
    first = [one for one in own if one["name"].startswith("blocks.0.")]
    for block in range(2, BLOCKS):
        own.extend({**one, "name": one["name"].replace("blocks.0.", f"blocks.{block}.")} for one in first)
    add("trainable_cond_mask.weight", [3, hidden], 0.3)
    layer("cond_encoder", [hidden, 16, 1, 2, 2])
    for name, shape in [("proj", [1, 2, 2]), ("proj_2x", [2, 4, 4]), ("proj_4x", [4, 8, 8])]:
        layer(f"frame_packer.{name}", [hidden, 16, *shape])
    add("casual_audio_encoder.weights", [1, LAYERS, 1, 1], 0.3, 1.0)
    encoder = "casual_audio_encoder.encoder"
    add(f"{encoder}.padding_tokens", [1, 1, 1, hidden], 0.5)
    quarter = hidden // 4
    for name, to, channels in [("conv1_local", TOKENS * quarter, WIDTH), ("conv1_global", quarter, WIDTH),
                               ("conv2", 2 * quarter, quarter), ("conv3", hidden, 2 * quarter)]:
        layer(f"{encoder}.{name}.conv", [to, channels, 3])
    layer(f"{encoder}.final_linear", [hidden, hidden])
    for index in TOLD.values():
        name = f"audio_injector.injector.{index}"
        for part in "qkvo":
            layer(f"{name}.{part}", [hidden, hidden])
        for part in ("norm_q", "norm_k"):
            add(f"{name}.{part}.weight", [hidden], 0.1, 1.0)
        layer(f"audio_injector.injector_adain_layers.{index}.linear", [2 * hidden, hidden])
    return own


def patches(weights, name, x):
    weight = weights[f"{name}.weight"]
    return conv3d(x, weight, weights[f"{name}.bias"], stride=weight.shape[2:])


def tokens(x):
    return x.flatten(2).transpose(1, 2)


def spoken(weights, heard, hidden):
    """What is heard `[1, layers, width, moments]` as tokens `[frames, 5, hidden]` and one that moves `[frames, hidden]`."""
    share = silu(weights["casual_audio_encoder.weights"])
    mean = (heard * share).sum(1) / share.sum(1)

    def back(name, x, stride):
        name = f"casual_audio_encoder.encoder.{name}.conv"
        x = conv1d(pad(x, (2, 0), mode="replicate"), weights[f"{name}.weight"], weights[f"{name}.bias"], stride=stride)
        return x

    def even(x):
        return silu(layer_norm(x.transpose(1, 2), x.shape[1:2], eps=1e-6)).transpose(1, 2)

    def through(first, count):
        x = back(first, mean, 1)
        x = even(x.reshape(count, x.shape[1] // count, x.shape[2]))
        return even(back("conv3", even(back("conv2", x, 2)), 2)).transpose(1, 2)

    own = through("conv1_local", TOKENS).transpose(0, 1)
    more = weights["casual_audio_encoder.encoder.padding_tokens"].reshape(1, 1, hidden).expand(own.shape[0], 1, hidden)
    moving = weights.linear("casual_audio_encoder.encoder.final_linear", through("conv1_global", 1)[0])
    return torch.cat([own, more], 1), moving


def angles(frames, rows, columns, start, steps=None):
    """Angles of a grid whose rows and columns may be spread over those of another."""
    high, wide = steps or (rows, columns)
    axes = [HEAD - 4 * (HEAD // 6), 2 * (HEAD // 6), 2 * (HEAD // 6)]
    places = [
        start + torch.arange(frames), torch.linspace(0, rows - 1, high), torch.linspace(0, columns - 1, wide),
    ]
    grid = torch.stack(torch.meshgrid(*[place.to(torch.float64) for place in places], indexing="ij"), -1).reshape(-1, 3)
    parts = []
    for axis, values in enumerate(axes):
        frequencies = 10000.0 ** -(torch.arange(0, values, 2) / values)
        parts.append(grid[:, axis, None] * frequencies[None])
    return torch.cat(parts, 1)


def s2v(weights, latent, time, text, steering=None, picture=None, motion=None, heard=None):
    """One evaluation."""
    _, _, frames, height, width = latent.shape
    size = [frames, height // 2, width // 2]
    kinds = weights["trainable_cond_mask.weight"]
    x = patches(weights, "patch_embedding", latent)
    if steering is not None:
        x = x + patches(weights, "cond_encoder", steering)
    x = tokens(x) + kinds[0]
    video, hidden = x.shape[1:]
    along, times = [angles(*size, 0)], [time] * frames
    if picture is not None:
        x = torch.cat([x, tokens(patches(weights, "patch_embedding", picture)) + kinds[1]], 1)
        along.append(angles(picture.shape[2], *size[1:], max(30, frames + 9)))
        times += [0.0] * picture.shape[2]
    if motion is not None:
        whole = torch.zeros(1, 16, 19, height, width)
        whole[:, :, 19 - motion.shape[2] :] = motion
        for name, part, start, count in [("proj", whole[:, :, 18:], -1, 1), ("proj_2x", whole[:, :, 16:18], -3, 1),
                                         ("proj_4x", whole[:, :, :16], -19, 4)]:
            packed = patches(weights, f"frame_packer.{name}", part)
            x = torch.cat([x, tokens(packed) + kinds[2]], 1)
            along.append(angles(count, *size[1:], start, tuple(packed.shape[3:])))
        times = [one for one in times for _ in range(2)] + [0.0] * 3
    along = torch.cat(along)
    vector = weights.linear("time_embedding.2", silu(weights.linear("time_embedding.0", waves(times, 256))))
    # Each time is that of as many tokens as there are for one, and of one more where that does not come out even.
    each = -(-x.shape[1] // len(times))
    vector = vector.repeat_interleave(each, 0)[None, : x.shape[1]]
    change = weights.linear("time_projection.1", silu(vector)).reshape(1, x.shape[1], 6, hidden)
    text = weights.linear("text_embedding.2", gelu(weights.linear("text_embedding.0", text), approximate="tanh"))
    sound = None if heard is None else spoken(weights, heard, hidden)

    def heads(x):
        return x.reshape(*x.shape[:2], hidden // HEAD, HEAD)

    def attention(name, x, seen, turn=None):
        q = heads(rms(weights.linear(f"{name}.q", x), weights[f"{name}.norm_q.weight"], 1e-6))
        k = heads(rms(weights.linear(f"{name}.k", seen), weights[f"{name}.norm_k.weight"], 1e-6))
        if turn is not None:
            q, k = turned(q, turn, True), turned(k, turn, True)
        return weights.linear(f"{name}.o", attend(q, k, heads(weights.linear(f"{name}.v", seen))))

    for i in range(BLOCKS):
        name = f"blocks.{i}"
        parts = [part[:, :, 0] for part in (weights[f"{name}.modulation"][:, None] + change).chunk(6, 2)]
        inner = normed(x, 1e-6) * (1 + parts[1]) + parts[0]
        x = x + attention(f"{name}.self_attn", inner, inner, along) * parts[2]
        inner = layer_norm(x, [hidden], weights[f"{name}.norm3.weight"], weights[f"{name}.norm3.bias"], eps=1e-6)
        x = x + attention(f"{name}.cross_attn", inner, text)
        inner = normed(x, 1e-6) * (1 + parts[4]) + parts[3]
        inner = weights.linear(f"{name}.ffn.2", gelu(weights.linear(f"{name}.ffn.0", inner), approximate="tanh"))
        x = x + inner * parts[5]
        if sound is not None and i in TOLD:
            own, moving = sound
            moved = weights.linear(f"audio_injector.injector_adain_layers.{TOLD[i]}.linear", silu(moving))[:, None]
            shift, scale = moved.chunk(2, 2)
            inner = normed(x[:, :video].reshape(frames, -1, hidden), 1e-5) * (1 + scale) + shift
            told = attention(f"audio_injector.injector.{TOLD[i]}", inner, own).reshape(1, video, hidden)
            x = torch.cat([x[:, :video] + told, x[:, video:]], 1)
    shift, scale = (weights["head.modulation"][:, None] + vector[:, :, None]).unbind(2)
    x = weights.linear("head.head", normed(x, 1e-6) * (1 + scale) + shift)
    x = x[:, :video].reshape(1, *size, 1, 2, 2, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
    return x.reshape(1, -1, frames, height, width)


def wav2vec2(is_large):
    """The manifest of a small encoder."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": f"wav2vec2.{name}", "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def layer(name, shape, bias=True):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        if bias:
            add(f"{name}.bias", shape[:1], 0.05)

    def norm(name, width):
        add(f"{name}.weight", [width], 0.1, 1.0)
        add(f"{name}.bias", [width], 0.05)

    for i, kernel in enumerate([10, 3, 3, 3, 3, 2, 2]):
        layer(f"feature_extractor.conv_layers.{i}.conv", [CHANNELS, CHANNELS if i else 1, kernel], is_large)
        if is_large or i == 0:
            norm(f"feature_extractor.conv_layers.{i}.layer_norm", CHANNELS)
    norm("feature_projection.layer_norm", CHANNELS)
    layer("feature_projection.projection", [HIDDEN, CHANNELS])
    places = "encoder.pos_conv_embed.conv"
    names = ["weight_g", "weight_v"] if is_large else [f"parametrizations.weight.original{i}" for i in range(2)]
    add(f"{places}.{names[0]}", [1, 1, 16], 0.5, 2.0)
    add(f"{places}.{names[1]}", [HIDDEN, HIDDEN // 4, 16], 0.5)
    add(f"{places}.bias", [HIDDEN], 0.05)
    norm("encoder.layer_norm", HIDDEN)
    for i in range(2):
        name = f"encoder.layers.{i}"
        for part in ("q", "k", "v", "out"):
            layer(f"{name}.attention.{part}_proj", [HIDDEN, HIDDEN])
        norm(f"{name}.layer_norm", HIDDEN)
        layer(f"{name}.feed_forward.intermediate_dense", [2 * HIDDEN, HIDDEN])
        layer(f"{name}.feed_forward.output_dense", [HIDDEN, 2 * HIDDEN])
        norm(f"{name}.final_layer_norm", HIDDEN)
    return tensors


def listened(tensors, sound, is_large):
    config = Wav2Vec2Config(
        hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=1, intermediate_size=2 * HIDDEN,
        conv_dim=[CHANNELS] * 7, conv_bias=is_large, feat_extract_norm="layer" if is_large else "group",
        do_stable_layer_norm=is_large, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        attn_implementation="eager", apply_spec_augment=False,
    )
    model = Wav2Vec2Model(config).to(torch.float64).eval()
    state = {name.removeprefix("wav2vec2."): value for name, value in Weights.of(tensors, torch.float16).values.items()}
    for i, old in enumerate(["weight_g", "weight_v"]):
        name = "encoder.pos_conv_embed.conv"
        if f"{name}.{old}" in state:
            state[f"{name}.parametrizations.weight.original{i}"] = state.pop(f"{name}.{old}")
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"masked_spec_embed"}, missing
    if is_large:
        sound = (sound - sound.mean()) / torch.sqrt(sound.var() + 1e-7)
    with torch.no_grad():
        out = model(sound[None], output_hidden_states=True)
    return torch.cat([*out.hidden_states[:-1], out.last_hidden_state])


def main(manifests, out):
    own = speaking(json.loads((manifests / "wan2.1_t2v_tiny.json").read_text())["tensors"])
    name = "wan2.2_s2v_tiny"
    (manifests / f"{name}.json").write_text(manifest_text(f"diffusion_models/{name}.safetensors", own))
    inputs = {
        "x": made("s2v.x", [1, 16, 2, 8, 10]),
        "steering": made("s2v.steering", [1, 16, 2, 8, 10]),
        "picture": made("s2v.picture", [1, 16, 1, 8, 10]),
        "motion": made("s2v.motion", [1, 16, 17, 8, 10]),
        "text": made("s2v.text", [1, 5, 4096]),
        "heard": made("s2v.heard", [8, LAYERS, WIDTH]),
        "sound": made("s2v.sound", [6000], 0.4),
    }
    x, steering, picture, motion, text, heard, sound = (value for _, value in inputs.values())
    heard = heard.permute(1, 2, 0)[None]
    weights = Weights.of(own, torch.float16)
    tensors = {
        "plain": s2v(weights, x, 640.0, text),
        "begun": s2v(weights, x, 640.0, text, steering, picture, None, heard),
        "going_on": s2v(weights, x, 640.0, text, steering, picture, motion, heard),
    }
    for name, is_large in [("large", True), ("base", False)]:
        encoder = wav2vec2(is_large)
        text = manifest_text(f"audio_encoders/wav2vec2_{name}_tiny.safetensors", encoder)
        (manifests / f"wav2vec2_{name}_tiny.json").write_text(text)
        tensors[name] = listened(encoder, sound, is_large)[:, ::3]
    write(out / "wan_s2v_tiny.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
