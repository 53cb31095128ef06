"""Layers of experts on a GPU: bfloat16 against fp64, no wait for the host, graphs of both kinds.

python tests/gpu/test_experts_gpu.py        works without pytest's collection, too
"""

import copy

import pytest
import torch

from weft.feedforward import GShard, MixtureOfExperts, ProductKey, Switch
from weft.kernels.experts.products import ragged_matmul

pytestmark = pytest.mark.gpu
DIM = 64
CONFIGS = {
    "switch": Switch(experts=8, jitter=0.0),
    "switch_dropless": Switch(experts=8, jitter=0.0, capacity=None),
    "gshard": GShard(experts=8, group=100, second="always"),
    "moe": MixtureOfExperts(experts=8, top=2, activation="swiglu", noisy=False, load=0.0),
}


def pair(name, train):
    """The layer in bfloat16 on the GPU and the same numbers in float64 on the CPU."""
    torch.manual_seed(0)
    module = CONFIGS[name].build(DIM, bias=False).to(torch.bfloat16).train(train)
    with torch.no_grad():
        module.router.weight.mul_(8)
    return copy.deepcopy(module).cuda(), copy.deepcopy(module).double()


def tokens(n=300):
    x = torch.randn(2, n, DIM, generator=torch.manual_seed(1)).bfloat16()
    valid = torch.ones(2, n, dtype=torch.bool)
    valid[1, n // 2 :] = False
    return x, valid


def close(found, truth, share=0.03):
    error = (found.double().cpu() - truth.double()).abs().max()
    assert error <= share * truth.abs().max(), (error, truth.abs().max())


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("padded", [True, False], ids=["padded", "full"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_equals_fp64(name, padded, train):
    ours, truth = pair(name, train)
    x, valid = tokens()
    valid = valid if padded else None
    a = x.cuda().requires_grad_()
    b = x.double().requires_grad_()
    y = ours(a, valid=None if valid is None else valid.cuda())
    z = truth(b, valid=valid)
    close(y, z)
    wanted = torch.randn(x.shape, generator=torch.manual_seed(2)).bfloat16()
    sources = ["experts.to_hidden.weight", "experts.to_out.weight", "router.weight"]
    grads = []
    for module, out, entry, way in ((ours, y, a, wanted.cuda()), (truth, z, b, wanted.double())):
        named = dict(module.named_parameters())
        grads.append(torch.autograd.grad(out, [entry, *(named[n] for n in sources)], way))
    for found, true in zip(*grads, strict=True):
        close(found, true, 0.05)


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_nothing_waits_for_the_host(name, train):
    ours, _ = pair(name, train)
    x, valid = (t.cuda() for t in tokens())
    x.requires_grad_()

    def update():
        y = ours(x, valid=valid)
        loss = y.float().square().sum()
        extra = ours.penalty()
        return torch.autograd.grad(
            loss if extra is None else loss + extra, list(ours.parameters()), allow_unused=True
        )

    update()
    torch.cuda.set_sync_debug_mode("error")
    try:
        update()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("train", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_cuda_graph_replays_it(name, train):
    ours, _ = pair(name, train)
    x, _ = tokens()
    static = x.cuda()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        for _ in range(3):
            ours(static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        y = ours(static)
    static.copy_(x.flip(1).cuda())
    graph.replay()
    with torch.no_grad():
        torch.testing.assert_close(y, ours(x.flip(1).cuda()))


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_compiles_as_one_graph(name):
    ours, _ = pair(name, True)
    x = tokens()[0].cuda().requires_grad_()
    graph = torch.compile(ours, fullgraph=True, dynamic=False)
    close(graph(x), ours(x).cpu().double())
    wanted = torch.randn_like(x)
    for found, true in zip(
        torch.autograd.grad(graph(x), [x, ours.experts.to_out.weight], wanted),
        torch.autograd.grad(ours(x), [x, ours.experts.to_out.weight], wanted),
        strict=True,
    ):
        close(found, true.cpu())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_ragged_products(dtype):
    ends = torch.tensor([0, 100, 101, 260], dtype=torch.int32)
    x = torch.randn(300, DIM, generator=torch.manual_seed(0)).to(dtype)
    weight = torch.randn(4, DIM, 32, generator=torch.manual_seed(1)).to(dtype)
    y = ragged_matmul(x.cuda(), weight.cuda(), ends.cuda())[:260]
    close(y, ragged_matmul(x.double(), weight.double(), ends)[:260], 0.02)


def test_memory_under_autocast():
    torch.manual_seed(0)
    module = ProductKey(keys=32, top=8).build(DIM).cuda()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = module(tokens()[0].float().cuda())
    y.float().sum().backward()
    assert y.isfinite().all()
    assert module.to_out.weight.grad.isfinite().all()


if __name__ == "__main__":
    raise SystemExit(pytest.main([__file__, "-m", "gpu"]))
