"""SRU against the recurrence of the sru package, and its two forms against each other."""

import ast
import importlib.util
import warnings
from pathlib import Path
from typing import Optional

import pytest
import torch

from mixers.fixed_patterns import DIM, build, close, tokens
from weft.mixers import SRU


def their_recurrence():
    """The pure Python function of the package, which compiles a kernel when imported."""
    home = Path(importlib.util.find_spec("sru").submodule_search_locations[0])
    tree = ast.parse((home / "ops.py").read_text())
    (found,) = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name == "elementwise_recurrence_naive"
    ]
    names = {
        "torch": torch,
        "Tensor": torch.Tensor,
        "List": list,
        "Optional": Optional,
        "warnings": warnings,
    }
    exec(compile(ast.Module([found], []), "ops.py", "exec"), names)
    return names[found.name]


@pytest.mark.filterwarnings("ignore:Running SRU on CPU with grad_enabled")
@pytest.mark.parametrize(
    "config",
    [SRU(), SRU(peephole=False), SRU(highway_bias=-2.0, rescale=True)],
    ids=str,
)
def test_equals_the_sru_package(config):
    mixer, x = build(config, causal=True), tokens(12)
    cell = mixer.cells[0]
    start = torch.randn(2, DIM).double()
    gates = cell.to_gates(x).unflatten(-1, (3, DIM)).transpose(-1, -2)  # (b, n, c, 3)
    weight = cell.state_weight if config.peephole else torch.zeros(2 * DIM).double()
    h, c = their_recurrence()(
        gates.transpose(0, 1).flatten(2),
        x.transpose(0, 1),
        weight,
        cell.bias,
        start,
        0,
        DIM,
        False,
        True,
        torch.tensor(cell.scale).double(),
    )
    y, (after,) = cell(x, (start,))
    torch.testing.assert_close(y, h.transpose(0, 1), rtol=0, atol=1e-6)
    torch.testing.assert_close(after, c.view(2, DIM), rtol=0, atol=1e-6)


def test_no_peephole_is_a_peephole_of_zero():
    slow, fast, x = build(SRU()), build(SRU(peephole=False)), tokens(70)
    with torch.no_grad():
        for cell in slow.cells:
            cell.state_weight.zero_()
    fast.load_state_dict(slow.state_dict(), strict=False)
    torch.testing.assert_close(fast(x), slow(x), **close)


def test_without_a_peephole_tokens_do_not_wait(monkeypatch):
    """Its passes over the sequence grow as the logarithm of the length."""
    mixer, counted = build(SRU(peephole=False), causal=True), []
    real = torch.nn.functional.pad
    monkeypatch.setattr(
        torch.nn.functional, "pad", lambda *a, **k: counted.append(1) or real(*a, **k)
    )
    for n, passes in ((64, 6), (1024, 10)):
        counted.clear()
        mixer(tokens(n, b=1))
        assert len(counted) == 2 * passes - 1


def test_rescale_and_bias():
    cell = build(SRU(highway_bias=-3.0, rescale=True)).cells[0]
    assert cell.scale == pytest.approx((1 + 2 * 2.718281828**-3) ** 0.5)
    assert SRU(highway_bias=-3.0).build(_frame()).cells[0].bias[DIM:].eq(-3.0).all()


def _frame():
    from weft.mixers import Frame

    return Frame(dim=DIM, heads=4)


def test_an_open_forget_gate_remembers():
    mixer, x = build(SRU(), causal=True), tokens(9)
    with torch.no_grad():
        mixer.cells[0].bias[:DIM] = 1e4
    c = torch.randn(2, DIM).double()
    torch.testing.assert_close(mixer.cells[0](x, (c,))[1][0], c, **close)
