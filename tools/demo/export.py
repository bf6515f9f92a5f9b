"""Writes the demo's files in the precision they ship in, and reads them back.

    python export.py FOLDER      adds demo-flux-Q8_0.gguf beside FOLDER/demo-flux.safetensors (needs the package gguf)
"""

import json
import sys
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from flux import Flux, FluxConfig
from text import ClipText, T5Encoder
from vae import Autoencoder

TRANSFORMER = "demo-flux.safetensors"
CLIP = "demo-clip-l.safetensors"
T5 = "demo-t5.safetensors"
AUTOENCODER = "demo-ae.safetensors"
LORA = "demo-outline-lora.safetensors"
GGUF = "demo-flux-Q8_0.gguf"


def unet_config(config):
    """What cannot be read from shapes, as the loader's metadata key has it."""
    return json.dumps({"num_heads": config.heads, "axes_dim": list(config.axes_dim)})


def save_transformer(flux, folder):
    tensors = {name: value.detach().to(torch.bfloat16).cpu().contiguous() for name, value in flux.state_dict().items()}
    save_file(tensors, Path(folder) / TRANSFORMER, metadata={"gantry_unet_config": unet_config(flux.config)})


def save_text(encoder, path):
    """Tables as fp8, everything else as f16."""
    tensors = {}
    for name, value in encoder.state_dict().items():
        is_table = name.endswith(("token_embedding.weight", "shared.weight"))
        tensors[name] = value.detach().to(torch.float8_e4m3fn if is_table else torch.float16).cpu().contiguous()
    save_file(tensors, path)


def save_autoencoder(autoencoder, folder):
    tensors = {name: value.detach().to(torch.float16).cpu().contiguous() for name, value in autoencoder.state_dict().items()}
    save_file(tensors, Path(folder) / AUTOENCODER)


def save_lora(layers, folder):
    """`layers`: module name to its LoraLinear."""
    tensors = {}
    for name, layer in layers.items():
        key = "lora_unet_" + name.replace(".", "_")
        tensors[key + ".lora_down.weight"] = layer.down.detach().to(torch.float16).cpu().contiguous()
        tensors[key + ".lora_up.weight"] = layer.up.detach().to(torch.float16).cpu().contiguous()
        tensors[key + ".alpha"] = torch.tensor(float(layer.down.shape[0]), dtype=torch.float16)
    save_file(tensors, Path(folder) / LORA)


def load_into(module, tensors):
    """Loads stored tensors as f32, every name accounted for."""
    module.load_state_dict({name: value.float() for name, value in tensors.items()})
    return module.eval()


def load_autoencoder(folder):
    return load_into(Autoencoder(), load_file(Path(folder) / AUTOENCODER))


def load_models(folder, gguf=False, lora_strength=0.0):
    """Transformer, CLIP, T5 and autoencoder from the shipped files."""
    folder = Path(folder)
    with safe_open(folder / TRANSFORMER, "pt") as file:
        config = json.loads(file.metadata()["gantry_unet_config"])
    assert config == json.loads(unet_config(FluxConfig())), config
    tensors = read_gguf(folder / GGUF) if gguf else load_file(folder / TRANSFORMER)
    flux = load_into(Flux(), tensors)
    if lora_strength:
        merge_lora(flux, load_file(folder / LORA), lora_strength)
    clip = load_into(ClipText(), load_file(folder / CLIP))
    t5 = load_into(T5Encoder(), load_file(folder / T5))
    return flux, clip, t5, load_autoencoder(folder)


def merge_lora(flux, tensors, strength):
    """Adds strength * alpha / rank * up @ down to each weight the LoRA names; every tensor must find its weight."""
    names = {"lora_unet_" + name.removesuffix(".weight").replace(".", "_"): name for name, _ in flux.named_parameters()}
    for key in [key for key in tensors if key.endswith(".alpha")]:
        stem = key.removesuffix(".alpha")
        down, up = (tensors[f"{stem}.lora_{part}.weight"].float() for part in ("down", "up"))
        with torch.no_grad():
            weight = flux.get_parameter(names[stem])
            weight.add_(up @ down, alpha=strength * tensors[key].item() / down.shape[0])


def write_gguf(folder):
    """Q8_0 for matrices whose rows are whole blocks of 32, f32 for the rest."""
    import gguf

    folder = Path(folder)
    writer = gguf.GGUFWriter(folder / GGUF, "flux")
    writer.add_quantization_version(2)
    writer.add_file_type(7)
    writer.add_string("gantry_unet_config", unet_config(FluxConfig()))
    for name, value in load_file(folder / TRANSFORMER).items():
        data = value.float().numpy()
        if data.ndim == 2 and data.shape[1] % 32 == 0:
            quantised = gguf.quants.quantize(data, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(name, quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_gguf(path):
    """All tensors of a GGUF file as f32."""
    import gguf

    tensors = {}
    for tensor in gguf.GGUFReader(path).tensors:
        data = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        shape = [int(size) for size in reversed(tensor.shape)]
        tensors[tensor.name] = torch.from_numpy(data.copy()).reshape(shape)
    return tensors


if __name__ == "__main__":
    write_gguf(sys.argv[1])
