"""Gates: (act(x W) ∘ x V) W2, their limits, and torch's own functions."""

import pytest
import torch
import torch.nn.functional as F

from weft.feedforward import Dense, two_thirds
from weft.feedforward.activations import ACTIVATIONS, GATES

ACTS = {
    "glu": torch.sigmoid,
    "geglu": F.gelu,
    "geglu_tanh": lambda x: 0.5 * x * (1 + ((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)).tanh()),
    "reglu": torch.relu,
    "swiglu": F.silu,
    "liglu": lambda x: x,
}


def built(gate, bias=False, **settings):
    torch.manual_seed(0)
    return Dense(activation=gate, hidden=6, **settings).build(4, bias=bias).double()


def tokens():
    return torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.manual_seed(1))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("gate", sorted(ACTS))
def test_is_its_equation(gate, bias):
    module, x = built(gate, bias), tokens()
    p = dict(module.named_parameters())
    left = torch.einsum("bnc,hc->bnh", x, p["to_gate.weight"]) + p.get("to_gate.bias", 0)
    right = torch.einsum("bnc,hc->bnh", x, p["to_hidden.weight"]) + p.get("to_hidden.bias", 0)
    y = torch.einsum("bnh,ch->bnc", ACTS[gate](left) * right, p["to_out.weight"])
    torch.testing.assert_close(module(x), y + p.get("to_out.bias", 0))
    assert len(p) == (6 if bias else 3)


def test_every_gate_is_here():
    assert set(ACTS) == set(GATES)
    assert not set(GATES) & set(ACTIVATIONS)


def test_glu_is_torchs():
    module, x = built("glu"), tokens()
    # torch's glu gates its first half by the sigmoid of its second.
    both = torch.cat((module.to_hidden(x), module.to_gate(x)), -1)
    torch.testing.assert_close(module(x), module.to_out(F.glu(both)))


def test_swiglu_without_its_gate_is_zero():
    module = built("swiglu")
    with torch.no_grad():
        module.to_gate.weight.zero_()
    assert (module(tokens()) == 0).all()
    with torch.no_grad():  # glu is not: σ(0) = 1/2
        other = built("glu")
        other.to_gate.weight.zero_()
        assert other(tokens()).any()


def swapped(module):
    """The module with W and V exchanged."""
    with torch.no_grad():
        gate = module.to_gate.weight.clone()
        module.to_gate.weight.copy_(module.to_hidden.weight)
        module.to_hidden.weight.copy_(gate)
    return module


def test_liglu_is_symmetric_in_its_two_matrices():
    torch.testing.assert_close(swapped(built("liglu"))(tokens()), built("liglu")(tokens()))
    assert not torch.allclose(swapped(built("swiglu"))(tokens()), built("swiglu")(tokens()))


def test_two_thirds_keep_the_parameters():
    assert two_thirds(3072) == 2048
    assert two_thirds(1) == 1
    plain = Dense(hidden=3072).build(768, bias=False)
    gated = Dense(activation="geglu", hidden=two_thirds(3072)).build(768, bias=False)
    count = [sum(p.numel() for p in m.parameters()) for m in (plain, gated)]
    assert count[0] == count[1]


def test_hidden_is_what_is_used():
    assert Dense(hidden=5).build(4).to_hidden.out_features == 5
    assert Dense(activation="glu", hidden=5).build(4).to_gate.out_features == 5
    assert Dense(expansion=1.5).build(4).to_hidden.out_features == 6
