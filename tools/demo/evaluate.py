"""Draws captions with the shipped files and judges the pictures by plain pixel statistics.

    python evaluate.py FOLDER --vocabulary VOCABULARY [--steps 12] [--shift 1.0] [--gguf] [--lora 1.0] [--sheet FILE]

A picture is right when its border has the background's colour, every figure's colour covers about the expected area,
no other colour covers a noticeable area, and the figures lie where the caption says. The shape is judged apart, by
the best overlap with the seven shapes stretched to the figure's bounding box.
"""

import argparse
import json
import random
import struct
import time
import zlib
from pathlib import Path

import torch
import torch.nn.functional as F

import data
import export
from text import CLIP_END, CLIP_LENGTH, T5_LENGTH, T5_PAD, ClipTokenizer, T5Tokenizer, padded

CAPTIONS = "captions.json"


def tokenizers(folder):
    folder = Path(folder)
    return ClipTokenizer(folder / "bpe_simple_vocab_16e6.txt.gz"), T5Tokenizer(folder / "t5_tokenizer.json")


def token_ids(captions, pair):
    clip, t5 = pair
    return (
        padded([clip(text) for text in captions], CLIP_LENGTH, CLIP_END),
        padded([t5(text) for text in captions], T5_LENGTH, T5_PAD),
    )


def sigmas(steps, shift):
    """From 1 to 0 in equal steps, then shifted towards noise as FLUX does (`shift` is exp(mu))."""
    line = torch.linspace(1, 0, steps + 1)
    return shift * line / (1 + (shift - 1) * line)


@torch.no_grad()
def sample(models, ids, steps=12, shift=1.0, seed=0, guidance=None):
    """Euler from noise to pictures, [n, 3, 128, 128] in 0..1; `guidance` is a scale and the ids of the empty caption."""
    flux, clip, t5, autoencoder = models
    device = next(flux.parameters()).device
    pooled, context = clip(ids[0].to(device)), t5(ids[1].to(device))
    generator = torch.Generator().manual_seed(seed)
    latent = torch.randn(len(ids[0]), 16, 16, 16, generator=generator).to(device)
    schedule = sigmas(steps, shift)
    for now, then in zip(schedule, schedule[1:]):
        sigma = now.to(device).expand(len(latent))
        velocity = flux(latent, sigma, context, pooled)
        if guidance:
            scale, empty = guidance
            nothing = flux(latent, sigma, t5(empty[1].to(device)).expand_as(context), clip(empty[0].to(device)).expand_as(pooled))
            velocity = nothing + scale * (velocity - nothing)
        latent = latent + (then - now).item() * velocity
    return autoencoder.decode(latent).clamp(0, 1)


def erode(mask):
    """Takes one pixel off every edge, which removes the mixed colours of anti-aliasing."""
    return -F.max_pool2d(-mask[None, None].float(), 3, 1, 1)[0, 0] > 0.5


def judge(image, scene):
    """What is wrong with the picture: a list of words, empty when it is right (`shape` among them if a shape is)."""
    palette = torch.tensor(list(data.COLOURS.values())) / 255
    names = list(data.COLOURS)
    labels = torch.cdist(image.permute(1, 2, 0).reshape(-1, 3), palette).argmin(1).reshape(image.shape[1:])
    border = torch.cat([labels[:3].flatten(), labels[-3:].flatten(), labels[:, :3].flatten(), labels[:, -3:].flatten()])
    wrong = []
    if (border == names.index(scene.background)).float().mean() < 0.9:
        wrong.append("background")
    wanted = {scene.background, *(figure.colour for figure in scene.figures)}
    stray = sum(erode(labels == index).sum().item() for index, name in enumerate(names) if name not in wanted)
    if stray > 0.01 * labels.numel():
        wrong.append("stray colour")
    masks = [labels == names.index(figure.colour) for figure in scene.figures]
    if any(erode(mask).sum() < 12 for mask in masks):
        return wrong + ["colour"]
    expected = data.draw(torch.tensor([data.scene_numbers(nominal(scene))]))[0]
    expected = torch.cdist(expected.permute(1, 2, 0).reshape(-1, 3), palette).argmin(1).reshape(labels.shape)
    for figure, mask in zip(scene.figures, masks):
        ratio = mask.sum() / (expected == names.index(figure.colour)).sum()
        if not 0.4 < ratio < 2.2:
            wrong.append("area")
    centres = [centre(erode(mask)) for mask in masks]
    if not well_placed(scene, centres):
        wrong.append("place")
    if any(best_shape(scene, index, masks) != figure.shape for index, figure in enumerate(scene.figures)):
        wrong.append("shape")
    return wrong


def nominal(scene):
    """The scene with every random position at the middle of its range."""

    class Middle(random.Random):
        def uniform(self, low, high):
            return (low + high) / 2

    put = data.put_related if len(scene.figures) == 2 else data.put_alone
    return put(scene, Middle())


def centre(mask):
    rows, columns = mask.nonzero(as_tuple=True)
    return columns.float().mean().item() / mask.shape[1], rows.float().mean().item() / mask.shape[0]


def well_placed(scene, centres):
    if len(centres) == 1:
        goal = data.PLACES[scene.place]
        return all(abs(got - want) < 0.12 for got, want in zip(centres[0], goal))
    across, down = (centres[1][axis] - centres[0][axis] for axis in range(2))
    if scene.relation == "inside":
        return max(abs(across), abs(down)) < 0.1
    along = {"above": down, "below": -down, "left of": across, "right of": -across}[scene.relation]
    aside = across if scene.relation in ("above", "below") else down
    return along > 0.15 and along > abs(aside)


def best_shape(scene, index, masks):
    """The shape whose picture, stretched to the figure's bounding box, overlaps the figure best."""
    mask = masks[index]
    if scene.relation == "inside" and index == 1:
        inner = masks[0].nonzero()
        mask = mask.clone()
        top, left = (max(int(edge) - 2, 0) for edge in inner.min(0).values)
        bottom, right = (int(edge) + 3 for edge in inner.max(0).values)
        mask[top:bottom, left:right] = True
    rows, columns = erode(mask).nonzero(as_tuple=True)
    top, left = max(int(rows.min()) - 1, 0), max(int(columns.min()) - 1, 0)
    figure = stretch(mask[top : int(rows.max()) + 2, left : int(columns.max()) + 2])
    overlaps = {}
    for name, template in templates().items():
        overlaps[name] = ((figure & template).sum() / (figure | template).sum()).item()
    return max(overlaps, key=overlaps.get)


def stretch(mask):
    return F.interpolate(mask[None, None].float(), (48, 48), mode="bilinear")[0, 0] > 0.5


def templates():
    if not hasattr(templates, "made"):
        axis = (torch.arange(256) + 0.5) / 128 - 1
        every = data.distances(axis[None, :] * 1.3, axis[:, None] * 1.3, torch.tensor(1.0))
        templates.made = {}
        for name, distance in zip(data.SHAPES, every):
            rows, columns = (distance < 0).nonzero(as_tuple=True)
            box = (distance < 0)[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
            templates.made[name] = stretch(box)
    return templates.made


def scene_of(entry):
    """A scene from an entry of captions.json."""
    figures = tuple(data.Figure(f["shape"], f["colour"], f.get("size", "")) for f in entry["figures"])
    return data.Scene(entry["background"], figures, entry.get("relation", ""), entry.get("place", ""))


def random_entries(count, seed):
    """Captions as training phrases them, with the scenes they mean; figures of one scene differ in colour."""
    scenes, captions = data.scenes_and_captions(2 * count, seed)
    pairs = [(s, c) for s, c in zip(scenes, captions) if len({f.colour for f in s.figures}) == len(s.figures)]
    return pairs[:count]


def write_png(path, image):
    """[3, height, width] in 0..1 as an 8-bit PNG."""
    pixels = (image.clamp(0, 1) * 255).byte().permute(1, 2, 0).contiguous().cpu().numpy()
    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    Path(path).write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    )


def sheet(images, columns=8):
    """Pictures side by side."""
    images = F.pad(images, (2, 2, 2, 2), value=0.5)
    missing = -len(images) % columns
    images = torch.cat([images, torch.full((missing, *images.shape[1:]), 0.5)])
    rows = images.unflatten(0, (-1, columns)).permute(2, 0, 3, 1, 4)
    return rows.flatten(3).flatten(1, 2)


def score(models, pairs, pair, arguments, batch=64):
    """Draws all (scene, caption) pairs; returns the pictures and what is wrong with each."""
    guidance = None if arguments.cfg == 1.0 else (arguments.cfg, token_ids([""], pair))
    images, wrong = [], []
    for at in range(0, len(pairs), batch):
        part = pairs[at : at + batch]
        ids = token_ids([c for _, c in part], pair)
        drawn = sample(models, ids, arguments.steps, arguments.shift, arguments.seed + at, guidance)
        images.append(drawn)
        wrong += [judge(image, scene) for image, (scene, _) in zip(drawn, part)]
    return torch.cat(images), wrong


def summary(wrong):
    """Counts: right without regard to shape, right with it, and each kind of mistake."""
    kinds = {}
    for words in wrong:
        for word in words:
            kinds[word] = kinds.get(word, 0) + 1
    return {
        "captions": len(wrong),
        "right": sum(not set(words) - {"shape"} for words in wrong),
        "right_with_shape": sum(not words for words in wrong),
        "mistakes": kinds,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--vocabulary", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--shift", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cfg", type=float, default=1.0)
    parser.add_argument("--random", type=int, default=0, help="judge this many random captions instead of captions.json")
    parser.add_argument("--gguf", action="store_true")
    parser.add_argument("--lora", type=float, default=0.0)
    parser.add_argument("--sheet")
    arguments = parser.parse_args()
    models = export.load_models(arguments.folder, arguments.gguf, arguments.lora)
    if arguments.random:
        pairs = random_entries(arguments.random, 4242 + arguments.seed)
    else:
        entries = json.loads((Path(arguments.folder) / CAPTIONS).read_text())
        pairs = [(scene_of(entry), entry["caption"]) for entry in entries]
    start = time.time()
    pair = tokenizers(arguments.vocabulary)
    images, wrong = score(models, pairs, pair, arguments)
    print(json.dumps(summary(wrong)), f"{time.time() - start:.1f} s")
    for (_, words), problem in zip(pairs, wrong):
        if problem:
            print(f"  {words!r}: {', '.join(problem)}")
    if arguments.sheet:
        write_png(arguments.sheet, sheet(images))


if __name__ == "__main__":
    main()
