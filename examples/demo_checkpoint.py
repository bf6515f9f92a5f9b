#!/usr/bin/env python3
"""Joins the demo model's four files into one checkpoint with all parts, for examples/api/checkpoint.json.

    python3 examples/demo_checkpoint.py models/checkpoints/demo-checkpoint.safetensors

It needs no packages: a safetensors file is a length, a header in JSON, and the bytes.
"""

import json
import pathlib
import struct
import sys

DEMO = pathlib.Path(__file__).parent.parent / "assets" / "demo"
PARTS = {
    "demo-flux.safetensors": "model.diffusion_model.",
    "demo-clip-l.safetensors": "text_encoders.clip_l.transformer.",
    "demo-t5.safetensors": "text_encoders.t5xxl.transformer.",
    "demo-ae.safetensors": "vae.",
}


def main(path):
    header, parts, end = {}, [], 0
    for name, prefix in PARTS.items():
        data = (DEMO / name).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        body = data[8 + length:]
        for tensor, entry in json.loads(data[8:8 + length]).items():
            if tensor != "__metadata__":
                begin, stop = entry["data_offsets"]
                header[prefix + tensor] = {**entry, "data_offsets": [begin + end, stop + end]}
        parts.append(body)
        end += len(body)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]))
