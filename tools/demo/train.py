"""Trains the demo model: first the autoencoder, then transformer and text encoders together, then the outline LoRA.

    python train.py vae     --out FOLDER
    python train.py decoder --out FOLDER
    python train.py model   --out FOLDER --vocabulary VOCABULARY
    python train.py lora    --out FOLDER --vocabulary VOCABULARY

`decoder` goes on with the decoder alone, under stronger noise; the latents stay what they were, so it can run at any
time after `vae`, also beside `model`.

Each stage reads what the stage before left in FOLDER. README.md has the exact commands and their durations.
"""

import argparse
import json
import math
import multiprocessing
import time
from pathlib import Path

import numpy
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

import data
import evaluate
import export
from flux import Flux
from text import CLIP_END, CLIP_START, CLIP_TOKENS, T5_END, T5_LENGTH, T5_PAD, T5_TOKENS, ClipText, T5Encoder
from vae import SCALE, SHIFT, Autoencoder

CLIP_KEPT, T5_KEPT = 40, 64
"""Token ids kept per caption. CLIP is causal, so what follows the end token does not matter; T5 is padded to 256 later."""

LATENT_NOISE = 0.12
"""Noise on normalised latents while the autoencoder trains, so that the decoder forgives small errors."""


class Average:
    """An exponential moving average of parameters."""

    def __init__(self, modules, decay):
        self.live = [p for module in modules for p in module.parameters() if p.requires_grad]
        self.kept = [p.detach().clone() for p in self.live]
        self.decay = decay

    @torch.no_grad()
    def update(self, step):
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.kept, [p.detach() for p in self.live], 1 - decay)

    @torch.no_grad()
    def swap(self):
        """Exchanges live and averaged values."""
        for live, kept in zip(self.live, self.kept):
            held = live.detach().clone()
            live.copy_(kept)
            kept.copy_(held)


class Run:
    """What every stage's loop shares: optimiser, schedule, clock and log."""

    def __init__(self, modules, arguments, rate, decay):
        self.arguments = arguments
        self.parameters = [p for module in modules for p in module.parameters() if p.requires_grad]
        matrices = [p for p in self.parameters if p.ndim > 1 and p.shape[0] < T5_TOKENS]
        others = [p for p in self.parameters if p.ndim <= 1 or p.shape[0] >= T5_TOKENS]
        groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
        fused = arguments.device == "cuda"
        self.optimiser = torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=fused)
        self.rate, self.start, self.losses, self.log = rate, None, [], []

    def step(self, loss, number):
        """One update; false when the time limit is reached."""
        if number == 1:
            # Compiling is behind us now.
            self.start = time.time()
        self.set_rate(number)
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimiser.step()
        self.losses.append(loss.detach())
        if number % 500 == 0 or number == self.arguments.steps - 1:
            self.report(number)
        return self.start is None or time.time() - self.start < self.arguments.seconds

    def set_rate(self, number):
        steps = self.arguments.steps
        warm = min(1.0, (number + 1) / max(1, min(400, steps // 10)))
        share = self.share(number)
        factor = warm * (0.5 + 0.5 * math.cos(math.pi * min(share, 1.0)))
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate * factor

    def share(self, number):
        """How much of the run is done. Should the machine be slower than planned, it still ends within the time limit."""
        elapsed = 0.0 if self.start is None else (time.time() - self.start) / self.arguments.seconds
        return max(number / self.arguments.steps, elapsed)

    def report(self, number):
        mean = torch.stack(self.losses).mean().item()
        self.losses.clear()
        seconds = time.time() - self.start if self.start else 0.0
        self.log.append({"step": number, "loss": round(mean, 5), "seconds": round(seconds, 1)})
        print(f"step {number}: loss {mean:.5f}, {seconds:.1f} s", flush=True)

    def save(self, name, **facts):
        path = Path(self.arguments.out) / f"log-{name}.json"
        path.write_text(json.dumps({"batch": self.arguments.batch, **facts, "log": self.log}))


def caption_part(job):
    """Scenes, drawn as numbers, and token ids of their captions (in a worker process)."""
    count, seed, vocabulary = job
    if not hasattr(caption_part, "pair"):
        caption_part.pair = evaluate.tokenizers(vocabulary)
    clip, t5 = caption_part.pair
    scenes, captions = data.scenes_and_captions(count, seed)
    clip_rows = [clip(text) for text in captions]
    t5_rows = [t5(text) for text in captions]
    assert max(map(len, clip_rows)) < CLIP_KEPT and max(map(len, t5_rows)) < T5_KEPT
    return (
        numpy.array([data.scene_numbers(scene) for scene in scenes], dtype=numpy.float32),
        numpy.array([row + [CLIP_END] * (CLIP_KEPT - len(row)) for row in clip_rows], dtype=numpy.int32),
        numpy.array([row + [T5_PAD] * (T5_KEPT - len(row)) for row in t5_rows], dtype=numpy.int32),
    )


def captioned_scenes(arguments, seed):
    """All scenes of a stage: numbers, CLIP ids and T5 ids, as tensors on the CPU."""
    part = min(4096, arguments.scenes)
    jobs = [(part, seed + index, arguments.vocabulary) for index in range(arguments.scenes // part)]
    if arguments.device == "cpu":
        parts = [caption_part(job) for job in jobs]
    else:
        with multiprocessing.get_context("fork").Pool(14) as pool:
            parts = pool.map(caption_part, jobs)
    return [torch.from_numpy(numpy.concatenate(column)) for column in zip(*parts)]


def colour_jitter(count, device):
    return torch.randn(count, 3, 3, device=device) * 0.012


@torch.no_grad()
def encoded(autoencoder, numbers, device, outline=False):
    """Normalised latents of all scenes, f16 on the device."""
    latents = []
    for part in numbers.split(512):
        part = part.to(device)
        pixels = data.draw(part, outline, colour_jitter(len(part), device))
        with torch.autocast(device, torch.bfloat16):
            latent = autoencoder.encode(pixels.contiguous(memory_format=torch.channels_last))
        latents.append(latent.half())
    return torch.cat(latents)


def picture_batches(arguments, seed):
    """Endless batches of pictures, a quarter of them outlines."""
    device, batch = arguments.device, arguments.batch
    scenes, _ = data.scenes_and_captions(arguments.scenes, seed)
    numbers = torch.tensor([data.scene_numbers(scene) for scene in scenes]).to(device)
    outlined = batch // 4
    while True:
        chosen = numbers[torch.randint(len(numbers), (batch,), device=device)]
        jitter = colour_jitter(batch, device)
        with torch.no_grad():
            filled = data.draw(chosen[outlined:], False, jitter[outlined:])
            pixels = torch.cat([filled, data.draw(chosen[:outlined], True, jitter[:outlined])])
        yield pixels.contiguous(memory_format=torch.channels_last)


def train_decoder(arguments):
    """The decoder alone, on latents with noise of random strength: it learns to draw clean shapes from rough latents."""
    torch.manual_seed(4)
    device = arguments.device
    model = export.load_autoencoder(arguments.out).to(device).to(memory_format=torch.channels_last)
    model.encoder.requires_grad_(False)

    def loss_of(pixels, noise):
        with torch.autocast(device, torch.bfloat16):
            with torch.no_grad():
                latent = model.encode(pixels)
            miss = model.decode(latent + noise).float() - pixels
        return miss.abs().mean() + 2 * miss.square().mean()

    compiled = loss_of if arguments.no_compile else torch.compile(loss_of)
    run = Run([model], arguments, rate=arguments.rate, decay=0.0)
    average = Average([model], 0.998)
    for step, pixels in zip(range(arguments.steps), picture_batches(arguments, seed=200)):
        strength = torch.rand(arguments.batch, 1, 1, 1, device=device) * 0.4
        more = run.step(compiled(pixels, strength * torch.randn(arguments.batch, 16, 16, 16, device=device)), step)
        average.update(step)
        if not more:
            run.report(step)
            break
    average.swap()
    export.save_autoencoder(model, arguments.out)
    run.save("decoder", **measure_vae(arguments, device))


def train_vae(arguments):
    """The autoencoder learns filled and outlined scenes; its latents are held to mean 0 and deviation 1 per channel."""
    torch.manual_seed(1)
    device = arguments.device
    model = Autoencoder().to(device).to(memory_format=torch.channels_last)
    logvar = model.encoder.conv_out
    with torch.no_grad():
        # The variance of the distribution is fixed: the noise that the decoder was trained to forgive.
        logvar.weight[16:] = 0
        logvar.bias[16:] = 2 * math.log(LATENT_NOISE / SCALE)

    def loss_of(pixels, noise):
        with torch.autocast(device, torch.bfloat16):
            latent = model.encode(pixels)
            drawn = model.decode(latent + LATENT_NOISE * noise).float()
        latent = latent.float()
        mean, deviation = latent.mean((0, 2, 3)), latent.std((0, 2, 3))
        held = mean.square().mean() + (deviation - 1).square().mean()
        miss = drawn - pixels
        return miss.abs().mean() + 2 * miss.square().mean() + 0.05 * held

    compiled = loss_of if arguments.no_compile else torch.compile(loss_of)
    run = Run([model], arguments, rate=arguments.rate, decay=0.0)
    average = Average([model], 0.998)
    for step, pixels in zip(range(arguments.steps), picture_batches(arguments, seed=100)):
        noise = torch.randn(arguments.batch, 16, 16, 16, device=device)
        more = run.step(compiled(pixels, noise), step)
        average.update(step)
        if not more:
            run.report(step)
            break
    average.swap()
    with torch.no_grad():
        logvar.weight[16:] = 0
        logvar.bias[16:] = 2 * math.log(LATENT_NOISE / SCALE)
    export.save_autoencoder(model, arguments.out)
    run.save("vae", **measure_vae(arguments, device))


@torch.no_grad()
def measure_vae(arguments, device):
    """Reconstruction error and latent statistics of the stored file on scenes it has not seen."""
    model = export.load_autoencoder(arguments.out).to(device)
    scenes, _ = data.scenes_and_captions(64, 999)
    pixels = data.draw(torch.tensor([data.scene_numbers(scene) for scene in scenes]).to(device))
    latent = model.encode(pixels)
    drawn = model.decode(latent + LATENT_NOISE * torch.randn_like(latent))
    facts = {
        "psnr": -10 * math.log10((drawn.clamp(0, 1) - pixels).square().mean().item()),
        "latent_mean": latent.mean((0, 2, 3)).tolist(),
        "latent_deviation": latent.std((0, 2, 3)).tolist(),
    }
    print(json.dumps(facts))
    both = torch.stack([pixels, drawn.clamp(0, 1)], dim=1).flatten(0, 1)[:64].cpu()
    evaluate.write_png(Path(arguments.out) / "sheet-vae.png", evaluate.sheet(both))
    return facts


class Batches:
    """Random batches of latents and token ids, some captions dropped, some with a word nobody knows put in."""

    def __init__(self, latents, clip_ids, t5_ids, device):
        self.latents, self.device = latents, device
        self.clip_ids, self.t5_ids = clip_ids.to(device).long(), t5_ids.to(device).long()
        self.empty_clip = torch.tensor([CLIP_START] + [CLIP_END] * (CLIP_KEPT - 1), device=device)
        self.empty_t5 = torch.tensor([T5_END] + [T5_PAD] * (T5_KEPT - 1), device=device)
        self.known_clip = torch.cat([self.clip_ids.unique(), self.empty_clip]).unique()
        self.known_t5 = torch.cat([self.t5_ids.unique(), self.empty_t5]).unique()
        self.strange_clip = self.others(self.known_clip, CLIP_TOKENS)
        self.strange_t5 = self.others(self.known_t5, T5_TOKENS)

    def others(self, known, count):
        free = torch.ones(count, dtype=torch.bool, device=self.device)
        free[known] = False
        return free.nonzero().squeeze(1)

    def draw(self, batch, t5_length=T5_LENGTH):
        at = torch.randint(len(self.latents), (batch,), device=self.device)
        strange = torch.rand(batch, 1, device=self.device) < 0.06
        dropped = torch.rand(batch, 1, device=self.device) < 0.05
        clip = self.disturbed(self.clip_ids[at], self.strange_clip, CLIP_END, 1, strange)
        t5 = self.disturbed(self.t5_ids[at], self.strange_t5, T5_END, 0, strange)
        clip = torch.where(dropped, self.empty_clip, clip)
        t5 = F.pad(torch.where(dropped, self.empty_t5, t5), (0, t5_length - T5_KEPT), value=T5_PAD)
        return self.latents[at].float(), clip, t5

    def disturbed(self, ids, strangers, end, first, chosen):
        """Puts one unknown token somewhere between `first` and the end token of the chosen rows."""
        ends = (ids == end).int().argmax(dim=1, keepdim=True)
        place = first + (torch.rand(len(ids), 1, device=self.device) * (ends - first + 1)).long()
        place = torch.where(chosen, place, ids.shape[1])
        column = torch.arange(ids.shape[1], device=self.device)[None]
        moved = ids.gather(1, (column - (column > place).long()).expand(len(ids), -1))
        stranger = strangers[torch.randint(len(strangers), (len(ids), 1), device=self.device)]
        return torch.where(column == place, stranger, moved)


def random_sigmas(batch, device):
    """Half uniform, half logit-normal with a lean towards noise, where the composition is decided."""
    uniform = torch.rand(batch, device=device)
    middle = torch.sigmoid(torch.randn(batch, device=device) + 0.3)
    return torch.where(torch.rand(batch, device=device) < 0.5, uniform, middle)


def flow_loss(models, latent, clip_ids, t5_ids, noise, sigma):
    """Rectified flow: the model is to say noise minus picture."""
    flux, clip, t5 = models
    level = sigma[:, None, None, None]
    mixed = (1 - level) * latent + level * noise
    with torch.autocast(latent.device.type, torch.bfloat16):
        velocity = flux(mixed, sigma, t5(t5_ids), clip(clip_ids))
    return F.mse_loss(velocity.float(), noise - latent)


def fit_flow(run, models, batches, average, save=None):
    """The loop of the two flow-matching stages.

    The first `--short` share of the time pads prompts to 64 tokens instead of 256, which costs a third; the rest is
    trained as the model is used.
    """
    arguments = run.arguments
    if not arguments.no_compile:
        # Block by block: blocks of one kind share their code, which compiles much sooner than the whole.
        flux, clip, t5 = models
        torch._dynamo.config.recompile_limit = 64
        for block in [*flux.double_blocks, *flux.single_blocks, *t5.encoder.block]:
            block.compile(dynamic=False)
    for step in range(arguments.steps):
        short = run.share(step) < arguments.short
        latent, clip_ids, t5_ids = batches.draw(arguments.batch, T5_KEPT if short else T5_LENGTH)
        sigma = random_sigmas(arguments.batch, arguments.device)
        loss = flow_loss(models, latent, clip_ids, t5_ids, torch.randn_like(latent), sigma)
        more = run.step(loss, step)
        average.update(step)
        if save and step and step % 4000 == 0:
            average.swap()
            save()
            average.swap()
        if not more:
            run.report(step)
            break
    average.swap()


def train_model(arguments):
    """Transformer and text encoders from scratch on latents of the finished autoencoder."""
    numbers, clip_ids, t5_ids = captioned_scenes(arguments, seed=20_000 if arguments.resume else 1_000)
    device = arguments.device
    torch.manual_seed(2)
    autoencoder = export.load_autoencoder(arguments.out).to(device).to(memory_format=torch.channels_last)
    start = time.time()
    batches = Batches(encoded(autoencoder, numbers, device), clip_ids, t5_ids, device)
    print(f"{len(numbers)} scenes encoded in {time.time() - start:.1f} s", flush=True)
    if arguments.resume:
        models = [model.to(device).train() for model in export.load_models(arguments.out)[:3]]
    else:
        models = [Flux().to(device), ClipText().to(device), T5Encoder().to(device)]
    flux, clip, t5 = models
    clip.table.forget_unknown(batches.known_clip)
    t5.table.forget_unknown(batches.known_t5)
    print("parameters", [sum(p.numel() for p in module.parameters()) for module in models], flush=True)

    def save():
        export.save_transformer(flux, arguments.out)
        export.save_text(clip, Path(arguments.out) / export.CLIP)
        export.save_text(t5, Path(arguments.out) / export.T5)

    run = Run(models, arguments, rate=arguments.rate, decay=0.01)
    fit_flow(run, models, batches, Average(models, 0.999), save)
    save()
    run.save("model", known_clip=len(batches.known_clip), known_t5=len(batches.known_t5))


class LoraLinear(nn.Module):
    """A frozen linear layer with a trained correction of low rank beside it."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.down = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


def add_lora(flux, rank):
    """Wraps the attention and MLP layers of every block; returns them by name."""
    layers = {}
    for name, module in list(flux.named_modules()):
        inside = name.startswith(("double_blocks.", "single_blocks."))
        if isinstance(module, nn.Linear) and inside and not name.endswith("mod.lin") and "modulation" not in name:
            owner, _, leaf = name.rpartition(".")
            layers[name] = LoraLinear(module, rank)
            setattr(flux.get_submodule(owner), leaf, layers[name])
    return layers


def train_lora(arguments):
    """The same captions, drawn as outlines; only the low-rank corrections learn."""
    arguments.scenes = min(arguments.scenes, 65_536)
    numbers, clip_ids, t5_ids = captioned_scenes(arguments, seed=50_000)
    device = arguments.device
    torch.manual_seed(3)
    flux, clip, t5, autoencoder = (model.to(device).requires_grad_(False) for model in export.load_models(arguments.out))
    autoencoder = autoencoder.to(memory_format=torch.channels_last)
    batches = Batches(encoded(autoencoder, numbers, device, outline=True), clip_ids, t5_ids, device)
    layers = add_lora(flux, arguments.rank)
    flux.to(device)
    models = flux, clip, t5
    run = Run(models, arguments, rate=arguments.rate, decay=0.0)
    fit_flow(run, models, batches, Average(models, 0.998))
    export.save_lora(layers, arguments.out)
    run.save("lora", rank=arguments.rank)


STAGES = {
    "vae": (train_vae, {"steps": 4000, "batch": 64, "scenes": 20_000, "rate": 2e-3}),
    "decoder": (train_decoder, {"steps": 3000, "batch": 64, "scenes": 20_000, "rate": 1e-3}),
    "model": (train_model, {"steps": 14_000, "batch": 512, "scenes": 262_144, "rate": 1.5e-3}),
    "lora": (train_lora, {"steps": 1500, "batch": 256, "scenes": 65_536, "rate": 2e-3}),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--out", required=True)
    parser.add_argument("--vocabulary")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int)
    parser.add_argument("--scenes", type=int)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--rank", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3600, help="stop after this long, not counting compilation")
    parser.add_argument("--short", type=float, default=0.0, help="share of a flow stage trained with short prompts")
    parser.add_argument("--resume", action="store_true", help="model: go on from the files in FOLDER")
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    train, defaults = STAGES[arguments.stage]
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)
    torch.set_float32_matmul_precision("high")
    Path(arguments.out).mkdir(parents=True, exist_ok=True)
    start = time.time()
    train(arguments)
    print(f"stage {arguments.stage}: {time.time() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
