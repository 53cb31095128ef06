"""Residual connections: their equations, and models that begin as the identity."""

import math

import pytest
import torch
from model_parts import DIM, RunningMean, built, decoder, encoder, ids, normal, stack

from weft.errors import Unsupported, WeftError
from weft.feedforward import Dense
from weft.layers.norm import Norm
from weft.mixers import MIXERS
from weft.models import EncoderDecoder, Fixup, ReZero, load, save

FULL = MIXERS["full"]
NONE = Norm(kind="none")


@pytest.mark.parametrize("norm", [NONE, Norm(), Norm(kind="rms")], ids=lambda n: n.kind)
def test_rezero_is_its_equation(norm):
    module, x = built(stack(mixer=FULL(), residual="rezero", norm=norm)).eval(), normal(2, 5, DIM)
    y = x
    for sub in module.sublayers:
        y = y + sub.residual.scale * sub.body(sub.norm(y))
    torch.testing.assert_close(module(x), module.norm(y), rtol=1e-12, atol=1e-12)
    assert (module(x) - module.norm(x)).abs().max() > 1e-3


def test_fixup_is_its_equation():
    module, x = built(stack(mixer=FULL(), residual="fixup", norm=NONE)).eval(), normal(2, 5, DIM)
    y = x
    for sub in module.sublayers:
        y = y + sub.residual.scale * sub.body(y + sub.residual.bias)
    torch.testing.assert_close(module(x), y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("recompute", ["nothing", "checkpoint", "reversible"])
@pytest.mark.parametrize("residual", ["rezero", "fixup"])
def test_begins_as_the_identity(residual, recompute):
    config = stack(mixer=FULL(), residual=residual, norm=NONE, recompute=recompute, order="sfsfsf")
    x = normal(2, 5, DIM)
    assert torch.equal(config.build().double()(x), x)
    plain = stack(mixer=FULL(), norm=NONE, order="sfsfsf").build().double()
    assert (plain(x) - x).abs().max() > 0.1


def test_rezero_learns_its_scales_first():
    module = stack(mixer=FULL(), residual="rezero", norm=NONE).build()
    module(normal(2, 5, DIM).float()).square().sum().backward()
    for sub in module.sublayers:
        assert sub.residual.scale.grad.abs() > 0
        assert all(p.grad.abs().max() == 0 for p in sub.body.parameters())


def test_fixup_scales_by_depth():
    """Deviation √(2 / inputs) · L^(−1/(2m−2)): m = 2 in a feed-forward, 4 in attention."""
    torch.manual_seed(0)
    module = stack(
        order="sf" * 8, mixer=FULL(), residual="fixup", norm=NONE, frame={"dim": 96}
    ).build()
    for sub in module.sublayers:
        if sub.letter == "f":
            inner, out, power = [sub.body.to_hidden], sub.body.to_out, 1 / 2
        else:
            project = sub.body.project
            inner, out, power = [project.to_q, project.to_k, project.to_v], project.to_out, 1 / 6
        for each in inner:
            expected = math.sqrt(2 / 96) * 16**-power
            assert each.weight.std().item() == pytest.approx(expected, rel=0.05)
        assert not out.weight.any()
        assert not out.bias.any()


def test_fixup_counts_the_sublayers_of_both_stacks():
    """60 of them in 12 + 12 layers."""
    parts = {"mixer": RunningMean(), "residual": "fixup", "norm": NONE}
    config = EncoderDecoder(
        encoder=encoder(order="sf" * 12, **parts), decoder=decoder(order="scf" * 12, **parts)
    )
    assert config.encoder.stack.residual == config.decoder.stack.residual == Fixup(sublayers=60)
    given = EncoderDecoder(
        encoder=encoder(order="sf", **{**parts, "residual": Fixup(sublayers=7)}),
        decoder=decoder(order="scf", mixer=RunningMean()),
    )
    assert given.encoder.stack.residual == Fixup(sublayers=7)


def test_plain_stays_what_it_was():
    """Neither names nor values of parameters change by the new settings' defaults."""
    torch.manual_seed(0)
    module = stack(mixer=FULL()).build()
    names = {name.rpartition(".")[0] for name in module.state_dict()}
    assert not any("residual" in name or "depth" in name for name in names)


def test_decodes_and_saves(tmp_path):
    for residual in (ReZero(), Fixup()):
        model = built(decoder(mixer=FULL(), residual=residual, norm=NONE)).eval()
        x = ids(2, 8)
        first, state = model.step(x[:, :3], model.start(2))
        rest, _ = model.step(x[:, 3:], state)
        torch.testing.assert_close(torch.cat((first, rest), dim=1), model(x))
        again = load(save(model, tmp_path / residual.name))
        assert again.config == model.config
        assert torch.equal(again(x), model(x))


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"residual": "fixup"}, WeftError, r"use Norm\(kind='none'\), got kind='layer'"),
        ({"residual": "rezero", "norm": Norm(place="post")}, WeftError, "begins as the identity"),
        ({"residual": "fixup(sublayers=0)", "norm": NONE}, WeftError, "got sublayers=0"),
        ({"residual": "rezro"}, WeftError, "did you mean 'rezero'"),
        ({"residual": 3}, WeftError, "residual is a residual connection: .* got 3"),
    ],
)
def test_refuses(settings, error, message):
    with pytest.raises(error, match=message):
        stack(**settings)


def test_fixup_refuses_a_branch_without_a_last_matrix():
    class Bare(Dense):
        def build(self, dim, dropout=0.0, bias=True):
            return torch.nn.Sequential()

    with pytest.raises(Unsupported, match="named to_out, at 0, and Sequential has none"):
        stack(residual="fixup", norm=NONE, feedforward=Bare()).build()
