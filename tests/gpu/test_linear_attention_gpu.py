"""Causal feature-map kernels on a GPU in bfloat16 against fp64: features, gates, whole layers.

python tests/gpu/test_linear_attention_gpu.py        works without pytest's collection, too
"""

from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import deepcopy
from multiprocessing import get_context

import pytest
import torch
import torch.nn.functional as F
from gpu_checks import attempt, error

from weft.kernels.linear_attention.reference import linear_attention
from weft.kernels.linear_attention.triton import (
    RELU_FLOOR,
    Random,
    can_fuse,
    fused_causal_attention,
)
from weft.layers.random_features import RandomDirections
from weft.mixers import MIXERS, Frame

pytestmark = pytest.mark.gpu
LIMIT = 2e-2  # of values and gradients, relative to their norm
KERNELS = [  # kind, features, width, tokens, gated
    ("exp", 267, 64, 5000, False),
    ("exp", 100, 128, 1000, False),
    ("trig", 64, 64, 5000, True),
    ("trig", 24, 32, 1000, True),
    ("trig", 64, 128, 1000, True),
    ("relu", 50, 64, 1000, False),
    ("given", 40, 64, 1000, True),
    ("elu", 64, 64, 5000, False),
    ("elu", 128, 128, 1000, False),
]
LAYERS = ["linear_transformer", "performer", "performer(kernel='relu')", "rfa", "rfa(gated=true)"]


def features(x, feature):
    """φ in fp64, from its definition; exponents over their largest, which cancels."""
    x = x.double()
    if isinstance(feature, str):
        return F.elu(x) + 1 if feature == "elu" else x
    if feature.kind == "trig":
        x = F.normalize(x, dim=-1) * feature.unit.double()[:, None]
    e = torch.einsum("bhnd,hfd->bhnf", x * feature.scale, feature.directions.double())
    if feature.kind == "exp":
        e = e - (x * feature.scale).square().sum(-1, keepdim=True) / 2
        return (e - e.detach().amax((-2, -1), keepdim=True)).exp()
    if feature.kind == "relu":
        return e.relu() + RELU_FLOOR
    return torch.cat((e.sin(), e.cos()), -1) * feature.directions.shape[1] ** -0.5


def drawn(kind, f, d, heads):
    if kind in ("elu", "given"):
        return kind
    directions = RandomDirections(heads, f, d, seed=0, layer=0, orthogonal=kind != "trig")
    unit = torch.rand(heads, d, device="cuda").add(0.5) if kind == "trig" else None
    weight = directions.weight.to("cuda", torch.bfloat16)
    return Random(kind, weight, 1.0 if kind == "trig" else d**-0.25, unit)


@pytest.mark.parametrize(("kind", "f", "d", "n", "gated"), KERNELS)
def test_kernels_equal_the_equation(kind, f, d, n, gated):
    torch.manual_seed(0)
    b, h = 2, 3
    widths = (f, f, d) if kind == "given" else (d, d, d)
    given = [torch.randn(b, n, h, w, device="cuda").bfloat16().transpose(1, 2) for w in widths]
    if kind == "given":  # values of both signs: the mean of others drowns in half precision
        given[:2] = [x.abs().add(0.1) for x in given[:2]]
    feature, gates = drawn(kind, f, d, h), {}
    if kind == "trig":
        given.append(feature.unit)
    if gated:
        logit = torch.randn(b, h, n, device="cuda") + 4
        gates = {"weight": torch.sigmoid(-logit), "log_decay": F.logsigmoid(logit)}
        given.extend(gates.values())
    given = [x.requires_grad_() for x in given]
    q, k, v = given[:3]
    limits = {"eps": 1e-30, "floor": 0.01 if kind == "trig" else None}
    assert can_fuse(q, k, v, feature)
    out = fused_causal_attention(q, k, v, feature=feature, **gates, **limits)
    keys = features(k, feature)
    if gated:
        keys = keys * gates["weight"].double()[..., None]
    decay = gates["log_decay"].double() if gated else None
    expected = linear_attention(
        features(q, feature), keys, v.double(), causal=True, log_decay=decay, **limits
    )
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, given, upstream)
    wanted = torch.autograd.grad(expected, given, upstream.double())
    errors = [error(out, expected), *map(error, found, wanted)]
    assert max(errors) < LIMIT, errors


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("spec", LAYERS)
def test_layers_equal_themselves_in_double_precision(spec, padded):
    torch.manual_seed(0)
    frame = Frame(dim=256, heads=4, causal=True)
    mixer = MIXERS.parse(spec).build(frame).to("cuda", torch.bfloat16)
    exact = deepcopy(mixer).double()
    x = torch.randn(2, 1500, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    valid = None
    if padded:
        valid = torch.arange(1500, device="cuda") < torch.tensor([[1500], [1111]], device="cuda")
    y = x.detach().double().requires_grad_()
    out, expected = mixer(x, valid=valid), exact(y, valid=valid)
    upstream = torch.randn_like(out)
    out.backward(upstream)
    expected.backward(upstream.double())
    pairs = [(out, expected), (x.grad, y.grad)]
    pairs += [(a.grad, b.grad) for a, b in zip(mixer.parameters(), exact.parameters(), strict=True)]
    errors = [error(a, b) for a, b in pairs if b.norm() > 1e-3]
    assert max(errors) < 5 * LIMIT, errors


if __name__ == "__main__":
    layers = [(spec, padded) for spec in LAYERS for padded in (False, True)]
    calls = [(test_kernels_equal_the_equation, args) for args in KERNELS]
    calls += [(test_layers_equal_themselves_in_double_precision, args) for args in layers]
    # Kernels compile for seconds each: side by side, in processes of their own, so that an illegal
    # access in one check fails no other.
    settings = {"mp_context": get_context("spawn"), "max_tasks_per_child": 1}
    with ProcessPoolExecutor(len(calls), **settings) as pool:
        for done in as_completed([pool.submit(attempt, *call) for call in calls]):
            print(done.result(), flush=True)
