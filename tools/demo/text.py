"""Tokenizers and text encoders: CLIP-L's and T5's layouts at a width of 64.

The tokenizers split ASCII prompts exactly as the originals do. They read the original vocabularies:
`bpe_simple_vocab_16e6.txt.gz` (in the package open_clip_torch) and T5's `tokenizer.json`.
"""

import gzip
import json
import math
import re
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import nn

CLIP_TOKENS, CLIP_START, CLIP_END, CLIP_LENGTH = 49408, 49406, 49407, 77
T5_TOKENS, T5_END, T5_PAD, T5_LENGTH = 32128, 1, 0, 256
WIDTH = 64


class ClipTokenizer:
    """Byte-pair encoding with CLIP's merges."""

    def __init__(self, path):
        lines = gzip.open(path, "rt", encoding="utf-8").read().split("\n")
        merges = [tuple(line.split()) for line in lines[1 : 49152 - 256 - 2 + 1]]
        letters = byte_letters()
        vocabulary = letters + [letter + "</w>" for letter in letters] + ["".join(pair) for pair in merges]
        self.ids = {piece: index for index, piece in enumerate(vocabulary)}
        self.ranks = {pair: index for index, pair in enumerate(merges)}
        self.word = lru_cache(maxsize=None)(self._word)

    def __call__(self, text):
        """Token ids with start and end, not padded."""
        words = re.findall(r"'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+", text.lower())
        return [CLIP_START, *(token for word in words for token in self.word(word)), CLIP_END]

    def _word(self, word):
        pieces = [*word[:-1], word[-1] + "</w>"]
        while len(pieces) > 1:
            pairs = list(zip(pieces, pieces[1:]))
            best = min(pairs, key=lambda pair: self.ranks.get(pair, math.inf))
            if best not in self.ranks:
                break
            at = pairs.index(best)
            pieces[at : at + 2] = ["".join(best)]
        return [self.ids[piece] for piece in pieces]


def byte_letters():
    """The 256 letters that stand for bytes, in the order of CLIP's vocabulary."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + index) for index in range(len(rest))]


class T5Tokenizer:
    """The most probable split into T5's pieces. No piece crosses a space, so words are split one by one."""

    def __init__(self, path):
        model = json.load(open(path, encoding="utf-8"))["model"]
        self.pieces = {piece: (index, score) for index, (piece, score) in enumerate(model["vocab"])}
        self.longest = max(map(len, self.pieces))
        self.unknown = model["unk_id"]
        self.unknown_score = min(score for _, score in model["vocab"]) - 10.0
        self.word = lru_cache(maxsize=None)(self._word)

    def __call__(self, text):
        """Token ids with the end token, not padded."""
        return [*(token for word in text.split() for token in self.word("\u2581" + word)), T5_END]

    def _word(self, word):
        best = [(0.0, 0, None)] + [(-math.inf, 0, None)] * len(word)
        for end in range(1, len(word) + 1):
            for start in range(max(0, end - self.longest), end):
                token, score = self.pieces.get(word[start:end], (None, None))
                if token is None and end - start == 1:
                    token, score = self.unknown, self.unknown_score
                if token is not None and best[start][0] + score > best[end][0]:
                    best[end] = (best[start][0] + score, start, token)
        tokens, end = [], len(word)
        while end > 0:
            tokens.append(best[end][2])
            end = best[end][1]
        return tokens[::-1]


class Fp8Table(nn.Module):
    """An embedding table that is used as it will be stored: rounded to fp8 (e4m3), gradients passed through.

    Only tokens marked as known have a vector; all others stay zero, so an unknown word says nothing.
    """

    def __init__(self, tokens, width, std):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(tokens, width) * std)
        self.register_buffer("known", torch.ones(tokens, 1), persistent=False)

    def forward(self, ids):
        rows = F.embedding(ids, self.weight)
        with torch.no_grad():
            rounding = rows.to(torch.float8_e4m3fn).to(rows.dtype) - rows
        return (rows + rounding) * F.embedding(ids, self.known)

    def forget_unknown(self, known):
        """Marks the tokens that training will see and empties all other rows."""
        self.known.zero_()
        self.known[known] = 1.0
        with torch.no_grad():
            self.weight.mul_(self.known)


class ClipAttention(nn.Module):
    """Causal attention, heads of 64."""

    def __init__(self, width):
        super().__init__()
        self.heads = width // 64
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class ClipLayer(nn.Module):
    """Pre-norm layer with quick GELU."""

    def __init__(self, width):
        super().__init__()
        self.self_attn = ClipAttention(width)
        self.layer_norm1 = nn.LayerNorm(width)
        self.mlp = nn.ModuleDict({"fc1": nn.Linear(width, 4 * width), "fc2": nn.Linear(4 * width, width)})
        self.layer_norm2 = nn.LayerNorm(width)

    def forward(self, x):
        x = x + self.self_attn(self.layer_norm1(x))
        wide = self.mlp["fc1"](self.layer_norm2(x))
        return x + self.mlp["fc2"](wide * torch.sigmoid(1.702 * wide))


class ClipText(nn.Module):
    """Token ids to the pooled vector: the final norm's output at the first end token."""

    def __init__(self, width=WIDTH, layers=1):
        super().__init__()
        body = nn.Module()
        body.embeddings = nn.Module()
        body.embeddings.token_embedding = Fp8Table(CLIP_TOKENS, width, 0.5)
        body.embeddings.position_embedding = nn.Embedding(CLIP_LENGTH, width)
        body.encoder = nn.Module()
        body.encoder.layers = nn.ModuleList(ClipLayer(width) for _ in range(layers))
        body.final_layer_norm = nn.LayerNorm(width)
        nn.init.normal_(body.embeddings.position_embedding.weight, std=0.1)
        self.text_model = body

    @property
    def table(self):
        return self.text_model.embeddings.token_embedding

    def forward(self, ids):
        body = self.text_model
        x = self.table(ids) + body.embeddings.position_embedding.weight[: ids.shape[1]]
        for layer in body.encoder.layers:
            x = layer(x)
        end = (ids == CLIP_END).int().argmax(dim=1)
        picked = x.gather(1, end[:, None, None].expand(-1, 1, x.shape[-1])).squeeze(1)
        return body.final_layer_norm(picked)


class T5Norm(nn.Module):
    """RMS normalisation with a weight."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6))


class T5Attention(nn.Module):
    """Attention without scaling; the first block also owns the bias by relative position."""

    def __init__(self, width, heads, head, has_bias):
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(width, heads * head, bias=False)
        self.k = nn.Linear(width, heads * head, bias=False)
        self.v = nn.Linear(width, heads * head, bias=False)
        self.o = nn.Linear(heads * head, width, bias=False)
        nn.init.normal_(self.q.weight, std=(width * head) ** -0.5)
        nn.init.normal_(self.k.weight, std=width**-0.5)
        nn.init.normal_(self.v.weight, std=width**-0.5)
        nn.init.normal_(self.o.weight, std=(heads * head) ** -0.5)
        if has_bias:
            self.relative_attention_bias = nn.Embedding(32, heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=0.5)

    def position_bias(self, tokens, device):
        buckets = relative_buckets(tokens, device)
        return self.relative_attention_bias.weight[buckets].permute(2, 0, 1)[None]

    def forward(self, x, bias):
        q, k, v = (layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) + bias.type_as(q)
        mixed = scores.float().softmax(-1).type_as(v) @ v
        return self.o(mixed.transpose(1, 2).flatten(2))


def relative_buckets(tokens, device):
    """T5's 32 buckets of key position minus query position: 16 a side, exact up to 8, logarithmic up to 128."""
    position = torch.arange(tokens, device=device)
    offset = position[None, :] - position[:, None]
    far = offset.abs()
    logarithm = torch.log(far.clamp(min=1).float() / 8) / math.log(128 / 8) * 8
    large = (8 + logarithm.long()).clamp(max=15)
    return (offset > 0).long() * 16 + torch.where(far < 8, far, large)


class T5Feed(nn.Module):
    """Feed-forward layer with gated tanh GELU."""

    def __init__(self, width, wide):
        super().__init__()
        self.wi_0 = nn.Linear(width, wide, bias=False)
        self.wi_1 = nn.Linear(width, wide, bias=False)
        self.wo = nn.Linear(wide, width, bias=False)

    def forward(self, x):
        return self.wo(F.gelu(self.wi_0(x), approximate="tanh") * self.wi_1(x))


class T5Block(nn.Module):
    """Attention and feed-forward layer, each with its norm before."""

    def __init__(self, width, heads, head, wide, has_bias):
        super().__init__()
        first, second = nn.Module(), nn.Module()
        first.SelfAttention = T5Attention(width, heads, head, has_bias)
        first.layer_norm = T5Norm(width)
        second.DenseReluDense = T5Feed(width, wide)
        second.layer_norm = T5Norm(width)
        self.layer = nn.ModuleList([first, second])

    def forward(self, x, bias):
        first, second = self.layer
        x = x + first.SelfAttention(first.layer_norm(x), bias)
        return x + second.DenseReluDense(second.layer_norm(x))


class T5Encoder(nn.Module):
    """Token ids, padded to 256, to one vector per token. Padding is attended to, as FLUX does."""

    def __init__(self, width=WIDTH, heads=4, head=16, wide=192, layers=2):
        super().__init__()
        self.shared = Fp8Table(T5_TOKENS, width, 1.0)
        self.encoder = nn.Module()
        self.encoder.block = nn.ModuleList(T5Block(width, heads, head, wide, index == 0) for index in range(layers))
        self.encoder.final_layer_norm = T5Norm(width)

    @property
    def table(self):
        return self.shared

    def forward(self, ids):
        x = self.shared(ids)
        bias = self.encoder.block[0].layer[0].SelfAttention.position_bias(ids.shape[1], ids.device)
        for block in self.encoder.block:
            x = block(x, bias)
        return self.encoder.final_layer_norm(x)


def padded(rows, length, filler):
    """Rows of token ids as one tensor."""
    return torch.tensor([row[:length] + [filler] * (length - len(row)) for row in rows])
