"""Writes what the tests of Florence-2 compare with: see README.md."""

import json
import math
import struct
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Florence2Config, Florence2ForConditionalGeneration, GenerationConfig

from procedural import procedural

VOCABULARY = 1286
CONFIG = {
    "vision_config": {
        "model_type": "florence_vision",
        "depths": [1, 1, 2, 1],
        "patch_size": [7, 3, 3, 3],
        "patch_stride": [4, 2, 2, 2],
        "patch_padding": [3, 1, 1, 1],
        "patch_prenorm": [False, True, True, True],
        "embed_dim": [16, 24, 32, 48],
        "num_heads": [2, 3, 2, 4],
        "num_groups": [4, 3, 2, 4],
        "window_size": 3,
        "projection_dim": 32,
        "max_temporal_embeddings": 10,
        "max_position_embeddings": 8,
        "drop_path_rate": 0.1,
        "mlp_ratio": 4.0,
        "qkv_bias": True,
        "in_channels": 3,
    },
    "text_config": {
        "model_type": "bart",
        "vocab_size": VOCABULARY,
        "d_model": 32,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 4,
        "decoder_attention_heads": 4,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 48,
        "max_position_embeddings": 64,
        "activation_function": "gelu",
        "scale_embedding": False,
        "bos_token_id": 0,
        "pad_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 2,
        "forced_bos_token_id": 0,
        "forced_eos_token_id": 2,
        "no_repeat_ngram_size": 3,
        "early_stopping": True,
        "num_beams": 3,
    },
    "image_token_id": VOCABULARY - 1,
}
# Other names of the table of words.
TIED = {
    "lm_head.weight",
    "model.language_model.encoder.embed_tokens.weight",
    "model.language_model.decoder.embed_tokens.weight",
}
PIXELS = {"name": "florence.pixels", "shape": [1, 3, 44, 40], "scale": 1.5, "offset": 0.0}
PROMPTS = [[0, 71, 88, 104, 33, 2], [0, 40, 300, 301, 302, 303, 57, 2]]
DECODED = [2, 0, 90, 91, 500, 77, 12]


def rule(name, shape):
    """Scale and offset of a tensor, so that values neither fade nor grow through the layers."""
    last = name.rsplit(".", 1)[-1]
    if "norm" in name and last == "weight":
        return 0.2, 1.0
    if last == "bias":
        return 0.1, 0.0
    if "shared" in name:
        return 0.6, 0.0
    if "embed" in name:
        return 0.3, 0.0
    return float(np.float32(1.6 * math.sqrt(3 / int(np.prod(shape[1:]))))), 0.0


def build(out):
    """The model, and its manifest."""
    config = Florence2Config(**json.loads(json.dumps(CONFIG)))
    config._attn_implementation = "eager"
    model = Florence2ForConditionalGeneration(config).eval()
    tensors, weights = [], {}
    for name, value in model.state_dict().items():
        if name not in TIED:
            shape = list(value.shape)
            scale, offset = rule(name, shape)
            tensors.append({"name": name, "shape": shape, "dtype": "F32", "scale": scale, "offset": offset})
            weights[name] = procedural(name, shape, scale, offset)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    lines = ",\n".join(json.dumps(tensor, separators=(",", ":")) for tensor in tensors)
    head = f'{{"file":"LLM/florence2_tiny/model.safetensors",\n"config":{json.dumps(CONFIG)}'
    text = f'{head},\n"metadata":{{"format":"pt"}},\n"tensors":[\n{lines}\n]}}\n'
    (out / "florence2_tiny.json").write_text(text)
    return model


def answers(model, pixels, tokens):
    """What `generate` writes, with ends among the tokens that beams reach, so that they end at different lengths."""
    cases = []

    def case(prompt, beams, longest, early, end):
        ids = torch.tensor([[VOCABULARY - 1] * tokens + PROMPTS[prompt]])
        how = GenerationConfig(
            num_beams=beams, max_new_tokens=longest, do_sample=False, early_stopping=early, eos_token_id=end,
            bos_token_id=0, pad_token_id=1, decoder_start_token_id=2, forced_bos_token_id=0,
            forced_eos_token_id=end, no_repeat_ngram_size=3, length_penalty=1.0,
        )
        mask = torch.ones_like(ids)
        written = model.generate(input_ids=ids, pixel_values=pixels, attention_mask=mask, generation_config=how)
        written = written[0].tolist()
        cases.append(
            {"prompt": prompt, "beams": beams, "max_new_tokens": longest, "early_stopping": early, "eos": end,
             "ids": written}
        )
        return written

    for prompt in range(len(PROMPTS)):
        case(prompt, 1, 24, True, 2)
        reached = case(prompt, 3, 24, True, 2)
        case(prompt, 5, 16, False, 2)
        for end in sorted(set(reached[4:]))[:6]:
            for early in (True, False):
                for beams in (1, 3):
                    case(prompt, beams, 24, early, end)
    return cases


def compute(model, out):
    """Features, encoded prompts, ratings and answers."""
    pixels = procedural(**PIXELS)
    features = model.get_image_features(pixels).pooler_output
    tensors = {"features": features}
    language = model.model.language_model
    for number, prompt in enumerate(PROMPTS):
        embedded = torch.cat([features, model.get_input_embeddings()(torch.tensor([prompt]))], 1)
        encoded = language.encoder(inputs_embeds=embedded).last_hidden_state
        decoded = language.decoder(input_ids=torch.tensor([DECODED]), encoder_hidden_states=encoded)
        tensors[f"prompt{number}.encoded"] = encoded
        tensors[f"prompt{number}.logits"] = model.lm_head(decoded.last_hidden_state)[0]
    metadata = {
        "inputs": json.dumps({"pixels": PIXELS}),
        "prompts": json.dumps(PROMPTS),
        "decoded": json.dumps(DECODED),
        "generated": json.dumps(answers(model, pixels, features.shape[1])),
    }
    header, data = {"__metadata__": metadata}, b""
    for name, tensor in tensors.items():
        part = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (out / "florence2.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


def tokenize(out):
    """A small vocabulary of the kind that Florence-2 has, and what it makes of texts."""
    corpus = [
        "What does the image describe? Describe in detail what is shown in the image.",
        "Locate the objects with category name in the image. It's the dog's 42 pictures, they're here, I'll see 2024!",
        'A futuristic cityscape at night, with a neon sign that reads "Florence 2" prominently displayed in the center '
        "of the image.",
    ] * 5
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=316, initial_alphabet=alphabet))
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    printable = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [chr(256 + place) for place in range(256 - len(printable))]
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    words = special + [chr(byte) for byte in printable] + others + [left + right for left, right in merges]
    vocabulary = {word: number for number, word in enumerate(words + ["<mask>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    own = ["<od>", "</od>", "<ocr>", "</ocr>"] + [f"<loc_{step}>" for step in range(1000)]
    for name in ["cap", "ncap", "dcap", "grounding", "seg"]:
        own += [f"<{name}>", f"</{name}>"]
    own += ["<sep>"]
    for name in ["region_cap", "region_to_desciption", "proposal", "poly"]:
        own += [f"<{name}>", f"</{name}>"]
    own += ["<and>"]
    for word in [*special, "<mask>", *own]:
        tokenizer.add_special_tokens([AddedToken(word, special=True, normalized=False)])
    texts = [
        "What does the image describe?",
        "Locate the objects with category name in the image.",
        " two  spaces\n\n new line\tand tab ",
        "It's the dog's; they're 42 in 2024, I'll see!",
        "a<loc_0><loc_999>car<sep></poly><nothing> <cap>",
        "<DETAILED_CAPTION>",
        "Füße 日本 🙂 ...!?",
        "don'T I'D ' s",
        "",
        "<s>x</s>",
        "trailing   ",
        "x\u00a0y",
    ]
    cases = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        cases.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
    lines = "#version: 0.2\n" + "".join(f"{left} {right}\n" for left, right in merges)
    data = {"vocab": vocabulary, "merges": lines, "cases": cases}
    (out / "florence2_tokens.json").write_text(json.dumps(data, ensure_ascii=False))


def scale(out):
    """Pictures in another size by Pillow's bicubic filter."""
    cases = []
    for width, height, to_width, to_height in [(13, 9, 6, 6), (7, 5, 12, 12), (20, 6, 8, 8), (5, 21, 9, 9)]:
        y, x, colour = np.meshgrid(np.arange(height), np.arange(width), np.arange(3), indexing="ij")
        source = ((x * 37 + y * 59 + colour * 101 + (x * y) % 97 * 3) % 256).astype(np.uint8)
        scaled = np.asarray(Image.fromarray(source).resize((to_width, to_height), Image.BICUBIC))
        cases.append(
            {"width": width, "height": height, "to_width": to_width, "to_height": to_height,
             "bytes": scaled.flatten().tolist()}
        )
    (out / "pillow_bicubic.json").write_text(json.dumps(cases, separators=(",", ":")))


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    torch.set_grad_enabled(False)
    compute(build(out), out)
    tokenize(out)
    scale(out)


main()
