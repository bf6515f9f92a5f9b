"""Values that follow from a name, as `crates/testkit/src/procedural.rs` makes them."""

import numpy as np
import torch


def procedural(name, shape, scale, offset):
    """Values that follow from a name, as testkit makes them."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % (1 << 64)
    count = int(np.prod(shape))
    with np.errstate(over="ignore"):
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        state = np.uint64(seed) + steps
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    centred = (state >> np.uint64(40)).astype(np.int64) - (1 << 23)
    centred = centred.astype(np.float32) * np.float32(1 / 8388608.0)
    return torch.from_numpy((np.float32(offset) + np.float32(scale) * centred).reshape(shape))
