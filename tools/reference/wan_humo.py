"""Writes what the tests of Wan's HuMo and of Whisper compare with: see README.md.

Whisper is that of transformers in f64, with weights under the names of released files. The formulas of Wan and of HuMo
(arXiv 2509.08519) are written down here once more, without any of our code.
"""

import json
import math
import sys
from pathlib import Path

import torch
from torch.nn.functional import gelu, layer_norm, silu
from transformers import WhisperConfig, WhisperFeatureExtractor
from transformers.models.whisper.modeling_whisper import WhisperEncoder

from hunyuan_video_15_sr import manifest_text
from transformers_of_videos import Weights, angles_of, attend, made, normed, rms, turned, waves, write

HEAD = 128
# Eight frames of five features each.
INNER, TOKENS, WIDTH = 24, 16, 48
BANDS, MOMENTS, HIDDEN, LAYERS = 16, 50, 64, 32
HEARD = 8 * 5 * HIDDEN


def listening(tensors, beside=0):
    """The manifest of a small model that listens: that of a small Wan with more in it."""
    own = []

    def add(name, shape, scale, offset=0.0):
        own.append({"name": name, "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def linear(name, to, channels):
        add(f"{name}.weight", [to, channels], 1.7 / math.sqrt(channels))
        add(f"{name}.bias", [to], 0.05)

    for one in tensors:
        one = {"offset": 0.0, **one}
        if one["name"] == "patch_embedding.weight":
            one["shape"] = [one["shape"][0], one["shape"][1] + beside, *one["shape"][2:]]
        own.append(one)
        if one["name"].endswith(".cross_attn.norm_q.weight"):
            wrapper = one["name"].removesuffix("cross_attn.norm_q.weight") + "audio_cross_attn_wrapper"
            hidden = one["shape"][0]
            add(f"{wrapper}.norm1_audio.weight", [hidden], 0.1, 1.0)
            add(f"{wrapper}.norm1_audio.bias", [hidden], 0.05)
            for part, width in [("q", hidden), ("k", WIDTH), ("v", WIDTH), ("o", hidden)]:
                linear(f"{wrapper}.audio_cross_attn.{part}", hidden, width)
            for part in ("norm_q", "norm_k"):
                add(f"{wrapper}.audio_cross_attn.{part}.weight", [hidden], 0.1, 1.0)
    linear("audio_proj.audio_proj_glob_1.layer", INNER, HEARD)
    linear("audio_proj.audio_proj_glob_2.layer", INNER, INNER)
    linear("audio_proj.audio_proj_glob_3.layer", TOKENS * WIDTH, INNER)
    add("audio_proj.audio_proj_glob_norm.layer.weight", [WIDTH], 0.1, 1.0)
    add("audio_proj.audio_proj_glob_norm.layer.bias", [WIDTH], 0.05)
    return own


def tokens_of(weights, latent):
    items, channels, frames, height, width = latent.shape
    x = latent.reshape(items, channels, frames, height // 2, 2, width // 2, 2).permute(0, 2, 3, 5, 1, 4, 6)
    matrix = weights["patch_embedding.weight"].flatten(1)
    return x.reshape(items, -1, channels * 4) @ matrix.T + weights["patch_embedding.bias"]


def wan(weights, latent, time, text, behind=None, audio=None):
    """One evaluation, with pictures behind the video and what is heard with each frame `[items, frames, values]`."""
    items, _, frames, height, width = latent.shape
    size = [frames, height // 2, width // 2]
    x = tokens_of(weights, latent)
    places = size
    if behind is not None:
        x = torch.cat([x, tokens_of(weights, behind)], 1)
        places = [frames + behind.shape[2], *size[1:]]
    hidden = x.shape[2]
    side = 2 * (HEAD // 6)
    along = angles_of(places, [HEAD - 2 * side, side, side], [10000.0] * 3)
    vector = weights.linear("time_embedding.2", silu(weights.linear("time_embedding.0", waves([time], 256))))
    change = weights.linear("time_projection.1", silu(vector)).reshape(1, 6, hidden)
    text = weights.linear("text_embedding.2", gelu(weights.linear("text_embedding.0", text), approximate="tanh"))
    heard = None
    if audio is not None:
        more = places[0] - frames
        audio = torch.cat([audio, torch.zeros(audio.shape[0], more, audio.shape[2])], 1)
        heard = torch.relu(weights.linear("audio_proj.audio_proj_glob_1.layer", audio))
        heard = torch.relu(weights.linear("audio_proj.audio_proj_glob_2.layer", heard))
        heard = weights.linear("audio_proj.audio_proj_glob_3.layer", heard).reshape(audio.shape[0], places[0], TOKENS, WIDTH)
        name = "audio_proj.audio_proj_glob_norm.layer"
        heard = layer_norm(heard, [WIDTH], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-5)

    def heads(x):
        return x.reshape(*x.shape[:2], hidden // HEAD, HEAD)

    def attention(name, x, seen, turn=None):
        q = heads(rms(weights.linear(f"{name}.q", x), weights[f"{name}.norm_q.weight"], 1e-6))
        k = heads(rms(weights.linear(f"{name}.k", seen), weights[f"{name}.norm_k.weight"], 1e-6))
        if turn is not None:
            q, k = turned(q, turn, True), turned(k, turn, True)
        return weights.linear(f"{name}.o", attend(q, k, heads(weights.linear(f"{name}.v", seen))))

    def affine(name, x):
        return layer_norm(x, [hidden], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-6)

    for i in range(weights.blocks("blocks")):
        name = f"blocks.{i}"
        parts = (weights[f"{name}.modulation"] + change).chunk(6, 1)
        inner = normed(x, 1e-6) * (1 + parts[1]) + parts[0]
        x = x + attention(f"{name}.self_attn", inner, inner, along) * parts[2]
        x = x + attention(f"{name}.cross_attn", affine(f"{name}.norm3", x), text)
        if heard is not None:
            wrapper = f"{name}.audio_cross_attn_wrapper"
            inner = affine(f"{wrapper}.norm1_audio", x).reshape(items * places[0], -1, hidden)
            seen = heard.expand(items, *heard.shape[1:]).reshape(items * places[0], TOKENS, WIDTH)
            x = x + attention(f"{wrapper}.audio_cross_attn", inner, seen).reshape(x.shape)
        inner = normed(x, 1e-6) * (1 + parts[4]) + parts[3]
        inner = weights.linear(f"{name}.ffn.2", gelu(weights.linear(f"{name}.ffn.0", inner), approximate="tanh"))
        x = x + inner * parts[5]
    parts = (weights["head.modulation"] + vector[:, None]).chunk(2, 1)
    x = weights.linear("head.head", normed(x, 1e-6) * (1 + parts[1]) + parts[0])
    x = x[:, : math.prod(size)].reshape(items, *size, 1, 2, 2, -1).permute(0, 7, 1, 4, 2, 5, 3, 6)
    return x.reshape(items, -1, frames, height, width)


def whisper():
    """The manifest of a small encoder."""
    tensors = []

    def add(name, shape, scale, offset=0.0):
        tensors.append({"name": f"model.encoder.{name}", "shape": shape, "dtype": "F16", "scale": scale, "offset": offset})

    def layer(name, shape, bias=True):
        add(f"{name}.weight", shape, 1.7 / math.sqrt(math.prod(shape[1:])))
        if bias:
            add(f"{name}.bias", shape[:1], 0.05)

    def norm(name):
        add(f"{name}.weight", [HIDDEN], 0.1, 1.0)
        add(f"{name}.bias", [HIDDEN], 0.05)

    layer("conv1", [HIDDEN, BANDS, 3])
    layer("conv2", [HIDDEN, HIDDEN, 3])
    add("embed_positions.weight", [MOMENTS, HIDDEN], 0.5)
    for i in range(LAYERS):
        name = f"layers.{i}"
        for part in ("q", "k", "v", "out"):
            layer(f"{name}.self_attn.{part}_proj", [HIDDEN, HIDDEN], part != "k")
        norm(f"{name}.self_attn_layer_norm")
        layer(f"{name}.fc1", [4 * HIDDEN, HIDDEN])
        layer(f"{name}.fc2", [HIDDEN, 4 * HIDDEN])
        norm(f"{name}.final_layer_norm")
    norm("layer_norm")
    return tensors


def listened(tensors, sound):
    """What goes into each layer of the encoder and what comes out of the last."""
    config = WhisperConfig(
        num_mel_bins=BANDS, d_model=HIDDEN, encoder_layers=LAYERS, encoder_attention_heads=1,
        encoder_ffn_dim=4 * HIDDEN, max_source_positions=MOMENTS, attn_implementation="eager",
    )
    encoder = WhisperEncoder(config).to(torch.float64)
    weights = Weights.of(tensors, torch.float16).values
    encoder.load_state_dict({name.removeprefix("model.encoder."): value for name, value in weights.items()})
    # Its own tables are in f32.
    torch.set_default_dtype(torch.float32)
    extractor = WhisperFeatureExtractor(feature_size=BANDS, chunk_length=1)
    picture = extractor(sound.to(torch.float32).numpy(), sampling_rate=16000, return_tensors="pt").input_features
    torch.set_default_dtype(torch.float64)
    with torch.no_grad():
        out = encoder.eval()(picture.to(torch.float64), output_hidden_states=True)
    assert len(out.hidden_states) == LAYERS + 1
    return torch.cat([*out.hidden_states[:-1], out.last_hidden_state])


def main(manifests, out):
    base = json.loads((manifests / "wan2.1_t2v_tiny.json").read_text())["tensors"]
    small, large = listening(base), listening(base, 20)
    for name, tensors in [("wan2.1_humo_tiny", small), ("wan2.1_humo_beside_tiny", large)]:
        (manifests / f"{name}.json").write_text(manifest_text(f"diffusion_models/{name}.safetensors", tensors))
    encoder = whisper()
    (manifests / "whisper_tiny.json").write_text(manifest_text("audio_encoders/whisper_tiny.safetensors", encoder))
    inputs = {
        "x": made("humo.x", [1, 16, 2, 4, 6]),
        "picture": made("humo.picture", [1, 16, 1, 4, 6]),
        "text": made("humo.text", [1, 5, 4096]),
        "audio": made("humo.audio", [1, 2, HEARD]),
        "sound": made("humo.sound", [12000], 0.4),
    }
    x, picture, text, audio, sound = (value for _, value in inputs.values())
    # Beside the latent are a mask of nothing and a black video, as an autoencoder gives its first two frames.
    black = torch.tensor([
        [0.8660, -0.4326, -0.0017, -0.4884, -0.5283, 0.9207, -0.9896, 0.4433, -0.5543, -0.0113, 0.5753, -0.6000, -0.8346, -0.3497, -0.1926, -0.6938],
        [1.0869, -1.2370, 0.0206, -0.4357, -0.6411, 2.0307, -1.5972, 1.2659, -0.8595, -0.4654, 0.9638, -1.6330, -1.4310, -0.1098, -0.3856, -1.4583],
    ])
    beside = torch.cat([torch.zeros(1, 4, 2, 4, 6), black.T[None, :, :, None, None].expand(1, 16, 2, 4, 6)], 1)
    behind = torch.cat([torch.zeros(1, 16, 1, 4, 6), torch.ones(1, 4, 1, 4, 6), picture], 1)
    first, second = (Weights.of(tensors, torch.float16) for tensors in (small, large))
    tensors = {
        "silent": wan(first, x, 640.0, text),
        "heard": wan(first, x, 640.0, text, picture, audio),
        "beside": wan(second, torch.cat([x, beside], 1), 640.0, text, behind, audio),
        "layers": listened(encoder, sound)[:, ::25],
    }
    write(out / "wan_humo_tiny.safetensors", inputs, tensors)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
