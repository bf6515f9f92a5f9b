"""Makes adapters.safetensors: small patches of every kind and the weights they lead to, computed by PyTorch in f64.

    python make_adapters.py        # needs torch and safetensors

For each case there are `<case>/weight`, the patch file's tensors as `<case>/layer.<ending>`, and the patched weight as
`<case>/expected@<strength>`. The formulas are written here with PyTorch's own kron, einsum, norm and convolutions,
apart from the Rust code that is tested with them.
"""

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20)
EPS = torch.finfo(torch.float32).eps
out = {}


def rand(*shape):
    return torch.randn(*shape, dtype=torch.float64).float().double() * 0.5


def lengths_for(*shape):
    return (rand(*shape).abs() + 0.5).float().double()


def case(name, weight, tensors, patched, strengths=(1.0, 0.6)):
    out[f"{name}/weight"] = weight
    for ending, tensor in tensors.items():
        out[f"{name}/layer.{ending}"] = tensor
    for strength in strengths:
        out[f"{name}/expected@{strength}"] = patched(weight, strength)


def additive(delta):
    return lambda weight, strength: weight + strength * delta.reshape(weight.shape)


def through_convolutions(delta, down, mid, up):
    """The three small convolutions one after the other are the convolution with the product."""
    x = rand(1, down.shape[1], 7, 7)
    steps = F.conv2d(F.conv2d(F.conv2d(x, down), mid, padding=1), up)
    assert torch.allclose(steps, F.conv2d(x, delta, padding=1))


def lora_with_mid():
    rank, up, down, mid = 3, rand(5, 3, 1, 1), rand(3, 4, 1, 1), rand(3, 3, 3, 3)
    delta = torch.einsum("mnkl,im,nj->ijkl", mid, up[:, :, 0, 0], down[:, :, 0, 0])
    through_convolutions(delta, down, mid, up)
    tensors = {"lora_up.weight": up, "lora_down.weight": down, "lora_mid.weight": mid, "alpha": torch.tensor(1.5)}
    case("lora_mid", rand(5, 4, 3, 3), tensors, additive(delta * 1.5 / rank))


def loha_tucker():
    rank, shape = 2, (4, 3, 3, 3)
    parts = [(rand(rank, 4), rand(rank, 3), rand(rank, rank, 3, 3)) for _ in range(2)]
    products = [torch.einsum("ijkl,jr,ip->prkl", t, b, a) for a, b, t in parts]
    (a1, b1, t1), (a2, b2, t2) = parts
    tensors = {"hada_w1_a": a1, "hada_w1_b": b1, "hada_w2_a": a2, "hada_w2_b": b2, "hada_t1": t1, "hada_t2": t2}
    case("loha_tucker", rand(*shape), tensors | {"alpha": torch.tensor(3.0)}, additive(products[0] * products[1] * 3 / rank))


def lokr():
    w1, w2 = rand(2, 3), rand(4, 5)
    case("lokr_whole", rand(8, 15), {"lokr_w1": w1, "lokr_w2": w2, "alpha": torch.tensor(7.0)}, additive(torch.kron(w1, w2)))

    w1, a, b = rand(2, 3), rand(4, 2), rand(2, 5 * 9)
    delta = torch.kron(w1[:, :, None, None], (a @ b).reshape(4, 5, 3, 3))
    tensors = {"lokr_w1": w1, "lokr_w2_a": a, "lokr_w2_b": b, "alpha": torch.tensor(1.0)}
    case("lokr_conv", rand(8, 15, 3, 3), tensors, additive(delta / 2))

    a1, b1, a, b, t = rand(2, 1), rand(1, 3), rand(2, 4), rand(2, 5), rand(2, 2, 3, 3)
    w2 = torch.einsum("ijkl,jr,ip->prkl", t, b, a).contiguous()
    delta = torch.kron((a1 @ b1)[:, :, None, None], w2)
    tensors = {"lokr_w1_a": a1, "lokr_w1_b": b1, "lokr_w2_a": a, "lokr_w2_b": b, "lokr_t2": t, "alpha": torch.tensor(3.0)}
    case("lokr_tucker", rand(8, 15, 3, 3), tensors, additive(delta * 3 / 2))


def glora():
    weight, a1, a2, b1, b2 = rand(5, 4), rand(4, 2), rand(2, 4), rand(5, 2), rand(2, 4)
    tensors = {"a1.weight": a1, "a2.weight": a2, "b1.weight": b1, "b2.weight": b2, "alpha": torch.tensor(1.0)}
    case("glora", weight, tensors, additive((weight @ a1 @ a2 + b1 @ b2) / 2))

    weight, a1, a2, b1, b2 = rand(5, 4, 3, 3), rand(4, 2), rand(2, 4), rand(5, 2), rand(2, 36)
    tensors = {"a1.weight": a1, "a2.weight": a2, "b1.weight": b1, "b2.weight": b2}
    delta = torch.einsum("oikl,ir,rj->ojkl", weight, a1, a2) + (b1 @ b2).reshape(weight.shape)
    case("glora_conv", weight, tensors, additive(delta))

    weight, a2, a1, b2, b1 = rand(5, 4), rand(4, 2), rand(2, 4), rand(5, 2), rand(2, 4)
    tensors = {"a1.weight": a1, "a2.weight": a2, "b1.weight": b1, "b2.weight": b2}
    case("glora_older", weight, tensors, additive(weight @ a2 @ a1 + b2 @ b1))


def decomposed(delta, scale, axis, changed):
    """DoRA: lengths along `axis`, of the changed or the unchanged weight."""

    def patched(weight, strength):
        new = weight + delta.reshape(weight.shape)
        measured = new if changed else weight
        others = [d for d in range(weight.dim()) if d != axis]
        lengths = torch.linalg.vector_norm(measured, dim=others, keepdim=True) + EPS
        shape = [-1 if d == axis else 1 for d in range(weight.dim())]
        return weight + strength * (new * scale.reshape(shape) / lengths - weight)

    return patched


def dora():
    for name, kernel in (("linear", ()), ("conv", (3, 3))):
        up, down = rand(6, 2, *[1 for _ in kernel]), rand(2, 4, *kernel)
        delta = (up.flatten(1) @ down.flatten(1)) * 1.0 / 2
        ones = [1 for _ in kernel]
        tensors = {"lora_up.weight": up, "lora_down.weight": down, "alpha": torch.tensor(1.0)}
        per_output, per_input = lengths_for(6, 1, *ones), lengths_for(1, 4, *ones)
        weight = rand(6, 4, *kernel)
        # A length per output is held against the unchanged weight, a length per input against the changed one.
        case(f"dora_{name}_output", weight, tensors | {"dora_scale": per_output}, decomposed(delta, per_output, 0, False))
        case(f"dora_{name}_input", weight, tensors | {"dora_scale": per_input}, decomposed(delta, per_input, 1, True))

    b, a, magnitude = rand(6, 2), rand(2, 4), lengths_for(6)
    tensors = {"lora_B.weight": b, "lora_A.weight": a, "lora_magnitude_vector": magnitude}
    case("dora_peft", rand(6, 4), tensors, decomposed(b @ a, magnitude, 0, True))

    w1, w2, scale = rand(2, 2), rand(3, 2), lengths_for(6, 1)
    delta = torch.kron(w1, w2)
    case("dora_lokr", rand(6, 4), {"lokr_w1": w1, "lokr_w2": w2, "dora_scale": scale}, decomposed(delta, scale, 0, False))


lora_with_mid()
loha_tucker()
lokr()
glora()
dora()
save_file({name: tensor.float().contiguous().clone() for name, tensor in out.items()}, "adapters.safetensors")
