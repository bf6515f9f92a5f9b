"""Leaves modules out of a file of reference values until it has a given size.

    python3 tools/reference/thin.py 150000 crates/models/tests/data/*.safetensors

The modules that lie deepest go first, the largest of them first; results of whole blocks (`out.layers.0`), inputs and
outputs stay. The test of all reference cases compares the others with the full files.
"""

import json
import struct
import sys

PIECES = (".rows", ".cols", ".channels", ".rms", ".mean")
# As deep as the blocks of all models: `transformer_blocks.0.1`.
KEPT_DEPTH = 3


def module_of(name):
    """The module whose result a tensor is or is a piece of; None for inputs and outputs of the whole."""
    for prefix in ("out.", "prompt1.out."):
        if name.startswith(prefix):
            module = name[len(prefix):]
            for piece in PIECES:
                module = module.removesuffix(piece)
            return module
    return None


def read(path):
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {name: (entry, data[slice(*entry["data_offsets"])]) for name, entry in header.items()}
    return metadata, tensors


def write(path, metadata, tensors):
    header, data = {"__metadata__": metadata}, b""
    for name, (entry, values) in tensors.items():
        header[name] = {**entry, "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + data)
    return 8 + len(text) + len(data)


def thin(path, limit):
    metadata, tensors = read(path)
    sizes = {}
    for name, (_, values) in tensors.items():
        if (module := module_of(name)) is not None:
            sizes[module] = sizes.get(module, 0) + len(values)
    total = sum(len(values) for _, values in tensors.values())
    before, gone = total, set()
    for module in sorted(sizes, key=lambda module: (-module.count("."), -sizes[module])):
        if total <= limit or module.count(".") < KEPT_DEPTH:
            break
        total -= sizes[module]
        gone.add(module)
    if gone:
        tensors = {name: value for name, value in tensors.items() if module_of(name) not in gone}
        metadata = {name: text for name, text in metadata.items() if module_of(name) not in gone}
        write(path, metadata, tensors)
        print(f"{path}: {before} -> {total} bytes, {len(gone)} modules fewer")


if __name__ == "__main__":
    for path in sys.argv[2:]:
        thin(path, int(sys.argv[1]))
