"""Weighted heads against the formula, head by head."""

import pytest
import torch
from model_parts import DIM, RunningMean, built, decoder, ids, normal, stack

from weft.errors import Unsupported
from weft.mixers import MIXERS
from weft.models import load, save

FULL = MIXERS["full"]


def by_hand(body, z, causal):
    """Σ_i α_i FFN(κ_i (head_i W_i + b)) with plain softmax attention."""
    project, (_, n, _), d = body.mixer.project, z.shape, DIM // 3
    alpha, kappa = (w.exp() / w.exp().sum() for w in (body.alpha, body.kappa))
    out = torch.zeros_like(z)
    for i in range(3):
        rows = slice(i * d, (i + 1) * d)
        q, k, v = (
            z @ each.weight[rows].T + each.bias[rows]
            for each in (project.to_q, project.to_k, project.to_v)
        )
        scores = q @ k.transpose(1, 2) / d**0.5
        if causal:
            scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), -torch.inf)
        head = scores.softmax(-1) @ v
        branch = kappa[i] * (head @ body.from_heads.weight[:, rows].T + body.from_heads.bias)
        feeding = body.feedforward
        hidden = torch.nn.functional.gelu(feeding.to_hidden(branch))
        out = out + alpha[i] * feeding.to_out(hidden)
    return out


@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_formula(causal):
    module, x = built(stack(order="ww", mixer=FULL()), causal=causal).eval(), normal(2, 6, DIM)
    y = x
    for sub in module.sublayers:
        y = y + by_hand(sub.body, sub.norm(y), causal)
    torch.testing.assert_close(module(x), module.norm(y), rtol=1e-10, atol=1e-10)
    with torch.no_grad():
        module.sublayers[0].body.alpha.add_(torch.tensor([1.0, 0.0, 0.0]))
    assert (module(x) - module.norm(y)).abs().max() > 1e-4


def test_weights_begin_uniform():
    body = stack(order="w", mixer=FULL()).build().sublayers[0].body
    assert torch.equal(body.alpha.softmax(-1), torch.full((3,), 1 / 3))
    assert torch.equal(body.kappa.softmax(-1), torch.full((3,), 1 / 3))


def test_every_parameter_learns():
    module = built(stack(order="w", mixer=FULL()))
    module(normal(2, 6, DIM)).square().sum().backward()
    for name, parameter in module.named_parameters():
        # A constant added to all keys changes no softmax.
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 1e-12 or name.endswith("to_k.bias"), name


@pytest.mark.parametrize("mixer", ["full", "sliding_window(window=3)", "linear_transformer"])
def test_decodes_and_saves(mixer, tmp_path):
    model, x = built(decoder(order="ww", mixer=mixer)).eval(), ids(2, 9)
    whole, state, parts = model(x), model.start(2), []
    for part in x.split((2, 1, 6), dim=1):
        y, state = model.step(part, state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9)
    assert state.size() == model.state_size(9)
    assert torch.equal(load(save(model, tmp_path / "model"))(x), whole)


def test_padding_changes_nothing():
    module, x = built(stack(order="ww", mixer=FULL())).eval(), normal(2, 6, DIM)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[1, [0, 3]] = False
    together = module(x, valid=valid)
    alone = module(x[1][valid[1]][None])[0]
    torch.testing.assert_close(together[1][valid[1]], alone, rtol=1e-10, atol=1e-10)


def test_refuses_a_mixer_without_heads():
    with pytest.raises(Unsupported, match="running_mean has none here"):
        stack(order="w", mixer=RunningMean()).build()
