"""Enlarges a picture four times with an ESRGAN in PyTorch, in tiles, with the weights of a safetensors file.

Answers JSON lines on standard input with one JSON line each; the first line written tells the version.
{"do": "load", "model": path, "picture": path, "side": n, "blocks": n, "tile": n, "overlap": n, "device": "cpu" or
"cuda", "dtype": "f32", "f16" or "bf16"}, {"do": "run"} and {"do": "finish", "output": path} are the questions, in this
order. A picture is f32 values, row by row, the three colours of a pixel together.
"""
import ctypes
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except Exception as error:  # no PyTorch here: say so and stop
    print(json.dumps({"error": "PyTorch cannot be imported: %s" % error}), flush=True)
    sys.exit(0)

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16}
ACTIVATIONS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
SCALE = 4


def read_tensors(path):
    """Tensors of a safetensors file."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    length = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            dtype, (start, end) = TYPES[entry["dtype"]], entry["data_offsets"]
            count = (end - start) // dtype.itemsize
            flat = torch.frombuffer(data, dtype=dtype, count=count, offset=8 + length + start)
            found[name] = flat.reshape(entry["shape"])
    return found


def spans(length, tile, overlap):
    """Where tiles start and how long they are."""
    if length <= tile:
        return [(0, length)]
    return [(start, min(tile, length - start)) for start in range(0, length - overlap, tile - overlap)]


def ramp(length, feather):
    """Weights that rise over so many values from both ends."""
    weights = [1.0] * length
    for step in range(feather if feather < length else 0):
        weights[step] *= (step + 1) / feather
        weights[length - 1 - step] *= (step + 1) / feather
    return torch.tensor(weights)


class Peer:
    def load(self, question):
        self.device, self.dtype = question["device"], ACTIVATIONS[question["dtype"]]
        self.blocks, self.tile, self.overlap = (question[key] for key in ("blocks", "tile", "overlap"))
        torch.backends.cudnn.benchmark = True
        self.weights = {}
        for name, tensor in read_tensors(question["model"]).items():
            tensor = tensor.to(self.device, self.dtype)
            if tensor.dim() == 4:
                tensor = tensor.contiguous(memory_format=torch.channels_last)
            self.weights[name] = tensor
        with open(question["picture"], "rb") as file:
            values = torch.frombuffer(bytearray(file.read()), dtype=torch.float32)
        side = question["side"]
        self.picture = values.reshape([1, side, side, 3]).permute(0, 3, 1, 2)
        return {}

    def convolve(self, name, x):
        return F.conv2d(x, self.weights[name + ".weight"], self.weights[name + ".bias"], padding=1)

    def dense(self, name, x):
        seen = x
        for step in range(1, 5):
            found = F.leaky_relu(self.convolve("%s.conv%d" % (name, step), seen), 0.2)
            seen = torch.cat((seen, found), 1)
        return x + self.convolve(name + ".conv5", seen) * 0.2

    def network(self, x):
        first = self.convolve("conv_first", x)
        x = first
        for block in range(self.blocks):
            inner = x
            for dense in range(1, 4):
                inner = self.dense("body.%d.rdb%d" % (block, dense), inner)
            x = x + inner * 0.2
        x = first + self.convolve("conv_body", x)
        for name in ("conv_up1", "conv_up2"):
            x = F.interpolate(x, scale_factor=2, mode="nearest")
            x = F.leaky_relu(self.convolve(name, x), 0.2)
        x = F.leaky_relu(self.convolve("conv_hr", x), 0.2)
        return self.convolve("conv_last", x)

    def enlarged(self, tile):
        tile = tile.contiguous(memory_format=torch.channels_last)
        return self.network(tile).clamp(0.0, 1.0).to(torch.float32)

    def enlarge(self):
        """The whole picture on the host, the weighted mean of its tiles."""
        picture = self.picture.to(self.device, self.dtype)
        height, width = picture.shape[2], picture.shape[3]
        rows, columns = (spans(side, self.tile, self.overlap) for side in (height, width))
        if len(rows) * len(columns) == 1:
            return self.enlarged(picture).to("cpu")
        total = torch.zeros([1, 3, height * SCALE, width * SCALE], device=self.device)
        weight = torch.zeros([height * SCALE, width * SCALE], device=self.device)
        for top, down in rows:
            for left, right in columns:
                large = self.enlarged(picture[:, :, top : top + down, left : left + right])
                fade = [ramp(side * SCALE, self.overlap * SCALE).to(self.device) for side in (down, right)]
                part = fade[0][:, None] * fade[1][None, :]
                y, x = (slice(at * SCALE, (at + size) * SCALE) for at, size in ((top, down), (left, right)))
                total[:, :, y, x] += large * part
                weight[y, x] += part
        return (total / weight).to("cpu")

    def run(self, question):
        start = time.perf_counter()
        with torch.inference_mode():
            self.output = self.enlarge()
        return {"seconds": time.perf_counter() - start}

    def finish(self, question):
        with open(question["output"], "wb") as file:
            values = self.output.permute(0, 2, 3, 1).contiguous()
            file.write(ctypes.string_at(values.data_ptr(), 4 * values.numel()))
        return {}


def main():
    peer = Peer()
    print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        try:
            question = json.loads(line)
            answer = getattr(peer, question["do"])(question)
        except Exception as error:
            answer = {"error": "%s: %s" % (type(error).__name__, error)}
        print(json.dumps(answer), flush=True)


main()
