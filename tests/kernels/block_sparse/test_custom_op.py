"""The kernels as an operator: one graph, and the values and gradients of the equation in fp64."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

import weft.kernels.block_sparse.triton as block_sparse
from kernels.programs import small_programs
from weft.kernels.attend.api import attend
from weft.kernels.attend.planner import graph_spec, remember_spec
from weft.kernels.block_sparse.custom_op import block_sparse as operator
from weft.patterns import Causal, Global, Predicate, Sliding, Strided, Window2d
from weft.patterns.derive import mask

D, HEADS = 16, 2
PATTERNS = {
    "window": Sliding(20),
    "causal": Causal() & Sliding(33),
    "folded": Causal() & (Sliding(8) | Strided(16)),
    "picture": Window2d(16, 3),
}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    small = {size: small_programs(64, 64, 4, 1) for size in (128, 64)}
    monkeypatch.setattr(block_sparse, "TUNING", small)
    torch.compiler.reset()


def heads(n):
    made = (torch.randn(2, n, HEADS, D) for _ in range(3))
    return [x.transpose(1, 2).requires_grad_() for x in made]


def truth(q, k, v, seen):
    q, k, v = (x.double() for x in (q, k, v))
    scores = (q @ k.mT * D**-0.5).masked_fill(~seen, -1e30)
    return (scores.softmax(-1) * seen) @ v


def graph(pattern):
    """`attend` in one graph; a break would raise."""
    remember_spec(pattern)

    def call(q, k, v, valid):
        return attend(q * 1.0, k, v, pattern, valid=valid, kernel="triton") * 2.0

    return torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=False)


@pytest.mark.parametrize(
    ("name", "n", "padded"),
    [
        ("window", 144, True),
        ("causal", 144, False),
        ("folded", 144, False),
        ("folded", 331, False),  # residue classes of unequal length: the natural order instead
        ("picture", 144, True),
    ],
)
def test_one_graph_equals_the_equation(name, n, padded):
    torch.manual_seed(0)
    pattern = PATTERNS[name]
    q, k, v = heads(n)
    valid = torch.arange(n)[None] < torch.tensor([[n], [n - 37]]) if padded else None
    seen = mask(pattern, n)[None]
    if padded:
        seen = seen & valid[:, None, None]
    out = graph(pattern)(q, k, v, valid)
    expected = 2.0 * truth(q, k, v, seen)
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["causal", "folded"])
def test_queries_are_the_last_positions(name):
    """n < m, as in a decoder that continues: values and gradients in one graph."""
    torch.manual_seed(0)
    n, m, pattern = 70, 160, PATTERNS[name]
    q, k, v = heads(m)
    q = q.detach()[:, :, -n:].clone().requires_grad_()
    out = graph(pattern)(q, k, v, None)
    expected = 2.0 * truth(q, k, v, mask(pattern, n, m)[None])
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    upstream = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), upstream)
    wanted = torch.autograd.grad(expected, (q, k, v), upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_the_comparison_bites():
    torch.manual_seed(0)
    q, k, v = heads(160)
    out = graph(Sliding(20))(q, k, v, None)
    wrong = truth(q, k, v, mask(Sliding(21), 160)[None])
    with pytest.raises(AssertionError):
        torch.testing.assert_close(out.double(), 2.0 * wrong, rtol=1e-5, atol=1e-5)


def test_rows_apart_are_left_to_the_usual_path():
    assert graph_spec(Sliding(4) | Global(first=2)) == ""
    assert graph_spec(Predicate(lambda i, j: i == j)) == "", "a function has no text"
    assert graph_spec(Sliding(4)) == graph_spec(remember_spec(Sliding(4))) == Sliding(4).spec


def test_layers_under_equal_patterns_share_a_graph():
    counter, (q, k, v) = CompileCounter(), heads(96)

    class Layer(torch.nn.Module):
        def __init__(self, window):
            super().__init__()
            self.pattern = remember_spec(Causal() & Sliding(window))

        def forward(self, q, k, v):
            return attend(q, k, v, self.pattern, kernel="triton")

    run = torch.compile(Layer.forward, fullgraph=True, backend=counter)
    for window in (20, 20, 20):
        run(Layer(window), q, k, v)
    assert counter.frame_count == 1
    run(Layer(21), q, k, v)
    assert counter.frame_count == 2, "another pattern is another graph"


def test_the_operator_keeps_its_promises():
    """Shapes, strides, no aliasing, gradients registered: torch's own check of an operator."""
    torch.manual_seed(0)
    q, k, v = heads(96)
    args = (q, k, v, None, None, None, Sliding(20).spec, D**-0.5, 0.0)
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(operator, args, test_utils=checks)
