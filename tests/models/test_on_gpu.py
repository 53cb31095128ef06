"""What differs on a GPU: its own random numbers, and backward in a thread of its own."""

import copy

import pytest
import torch
from model_parts import DIM, assert_same, built, decoder, gradients, ids, lively, normal, stack
from test_reversible import two_streams

from weft.mixers import MIXERS
from weft.models import LanguageModel, load, save
from weft.models.stack.sublayer import StackInputs

pytestmark = pytest.mark.gpu
FULL = MIXERS["full"]


@pytest.mark.parametrize("recompute", ["checkpoint", "reversible"])
def test_recomputing_draws_the_same_dropout(recompute):
    settings = {"mixer": FULL(), "dropout": 0.3, "frame": {"dropout": 0.2}}
    module = built(stack(**settings, recompute=recompute)).cuda()
    x, weights = normal(2, 5, DIM).cuda(), normal(2, 5, DIM, seed=9).cuda()
    torch.manual_seed(1)
    got = gradients(module, (module(x) * weights).sum())
    torch.manual_seed(1)
    if recompute == "reversible":
        y = two_streams(module, x, StackInputs())
    else:
        plain = built(stack(**settings)).cuda()
        module, y = plain, plain(x)
    assert_same(got, gradients(module, (y * weights).sum()), rtol=1e-9, atol=1e-9)


def test_backward_outside_autocast_runs_as_forward_did():
    module = built(stack(mixer=FULL(), recompute="reversible")).float().cuda()
    seen = []
    module.sublayers[0].body.register_forward_hook(lambda m, a, out: seen.append(out.dtype))
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = module(normal(2, 5, DIM).float().cuda()).float().square().sum()
    loss.backward()
    assert seen == [torch.bfloat16, torch.bfloat16]


def test_reversible_memory_does_not_grow_with_depth():
    def peak(layers):
        config = stack(order="sf" * layers, recompute="reversible", frame={"dim": 96})
        module, x = config.build().cuda(), torch.randn(8, 4096, 96, device="cuda")
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        module(x).square().sum().backward()
        gradient = sum(p.numel() * 4 for p in module.parameters())
        return torch.cuda.max_memory_allocated() - before - gradient

    one_tensor = 8 * 4096 * 96 * 4
    assert peak(16) - peak(4) < one_tensor


def test_generates_what_the_cpu_generates(tmp_path):
    model = lively(LanguageModel(trunk=decoder(mixer=FULL()), tied=False))
    sampled = {"temperature": 1.0, "top_p": 0.95, "seed": 4}
    expected = model.generate(ids(3, 5), 9), model.generate(ids(3, 5), 9, **sampled)
    save(copy.deepcopy(model).cuda(), tmp_path / "model")
    there = load(tmp_path / "model", device="cuda")
    assert torch.equal(there.generate(ids(3, 5), 9).cpu(), expected[0])
    assert torch.equal(there.generate(ids(3, 5).cuda(), 9, **sampled).cpu(), expected[1])


def test_a_recorded_graph_skips_other_layers_at_each_replay():
    module = built(stack(order="sf" * 4, mixer=FULL(), depth="layer_drop(rate=0.5)")).cuda()
    plain, x = copy.deepcopy(module), normal(2, 5, DIM).cuda()
    module.depth.draw(0)
    for _ in range(2):  # kernels are chosen before the recording
        gradients(module, module(x).square().sum())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = module(x)
        found = gradients(module, y.square().sum())
    seen = set()
    for step in range(5):
        module.depth.draw(step)
        graph.replay()
        plain.depth.draw(step)
        expected = plain(x)
        torch.testing.assert_close(y, expected, rtol=1e-9, atol=1e-9)
        assert_same(found, gradients(plain, expected.square().sum()), rtol=1e-9, atol=1e-9)
        seen.add(tuple(plain.depth.kept))
    assert len(seen) > 1
