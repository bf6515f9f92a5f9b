"""Times PyTorch at shapes given as JSON lines on standard input; answers one JSON line each.

A line is {"op": ..., "device": "cpu" or "cuda", "dtype": ..., sizes...}. The answer is {"seconds": s} with
the shortest of the repeats, or {"error": text}. The first line written is {"version": ..., "threads": ...}.
"""
import json
import sys
import time

try:
    import torch
    import torch.nn.functional as F
except Exception as error:  # no PyTorch here: say so and stop
    print(json.dumps({"error": "PyTorch cannot be imported: %s" % error}), flush=True)
    sys.exit(0)

torch.set_grad_enabled(False)
torch.backends.cuda.matmul.allow_tf32 = False


def q8_0(weight):
    """Blocks of 32 with one f16 scale, as GGUF stores them."""
    blocks = weight.reshape(-1, 32)
    scale = blocks.abs().amax(dim=1, keepdim=True) / 127
    return (blocks / scale).round().to(torch.int8), scale.to(torch.float16)


def work(case):
    device = case["device"]
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[case["dtype"]]
    op = case["op"]
    if op == "linear":
        x = torch.randn(case["m"], case["k"], device=device, dtype=dtype)
        w = torch.randn(case["n"], case["k"], device=device) * 0.02
        stored = case["stored"]
        if stored == "Q8_0":
            q, scale = q8_0(w)
            return lambda: F.linear(x, (q.to(dtype) * scale.to(dtype)).reshape(w.shape))
        kept = w.to({"f32": torch.float32, "bf16": torch.bfloat16}[stored])
        return lambda: F.linear(x, kept.to(dtype))
    if op == "conv2d":
        x = torch.randn(1, case["in"], case["height"], case["width"], device=device, dtype=dtype)
        w = torch.randn(case["out"], case["in"], case["kernel"], case["kernel"], device=device, dtype=dtype)
        b = torch.randn(case["out"], device=device, dtype=dtype)
        return lambda: F.conv2d(x, w, b, padding=case["kernel"] // 2)
    if op == "attention":
        shape = lambda n: (case["batch"], case["heads"], n, case["size"])
        q = torch.randn(shape(case["queries"]), device=device, dtype=dtype)
        k, v = (torch.randn(shape(case["keys"]), device=device, dtype=dtype) for _ in range(2))
        return lambda: F.scaled_dot_product_attention(q, k, v)
    raise ValueError("unknown operation %s" % op)


def seconds(run, device, budget):
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    run()
    wait()
    best, spent, rounds = float("inf"), 0.0, 0
    while rounds < 3 or (spent < budget and rounds < 50):
        start = time.perf_counter()
        run()
        wait()
        taken = time.perf_counter() - start
        best, spent, rounds = min(best, taken), spent + taken, rounds + 1
    return best


print(json.dumps({"version": torch.__version__, "threads": torch.get_num_threads()}), flush=True)
for line in sys.stdin:
    try:
        case = json.loads(line)
        print(json.dumps({"seconds": seconds(work(case), case["device"], case["budget_s"])}), flush=True)
    except Exception as error:
        print(json.dumps({"error": "%s: %s" % (type(error).__name__, error)}), flush=True)
