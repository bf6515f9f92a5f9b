"""Fails unless a client got the picture that the server saved for it: check.py PICTURE OUTPUT_FOLDER PREFIX."""

import pathlib
import sys

from PIL import Image

picture, output, prefix = sys.argv[1:]
saved = sorted(pathlib.Path(output).glob(f"{prefix}_*.png"))
if not saved:
    sys.exit(f"the server saved no {prefix}_*.png")
got = Image.open(picture).convert("RGB")
if got.size != (128, 128) or len(got.getcolors(1 << 16)) < 50:
    sys.exit(f"{picture} is no picture of the model: {got.size}")
if got.tobytes() != Image.open(saved[-1]).convert("RGB").tobytes():
    sys.exit(f"{picture} is not what the server saved as {saved[-1].name}")
