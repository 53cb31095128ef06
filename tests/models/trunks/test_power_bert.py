"""PoWER-BERT: which tokens go on, by the equation; its limit; padding; the soft form."""

import dataclasses

import pytest
import torch
from model_parts import built, embedding, ids

from weft.errors import WeftError
from weft.layers.positions import Rope
from weft.mixers import Frame
from weft.models import Classifier, Encoder, PowerBert, Stack, load, save

FRAME = Frame(dim=12, heads=3, length=40)


def config(embed=None, **settings):
    settings = {"keep": (0.8, 0.3), **settings}
    stack = Stack(frame=FRAME, order="sfsf", mixer="full")
    return PowerBert(embedding=embedding(registers=1, **embed or {}), stack=stack, **settings)


def by_hand(model, row):
    """One sequence of ids (n,): every token's last vector, written as plainly as it gets."""
    h = torch.cat((model.embedding.registers, model.embedding(row[None])[0]))
    left, n, result = list(range(len(h))), len(row), {}
    for layer in range(2):
        mixing, feeding = model.stack.sublayers[2 * layer : 2 * layer + 2]
        project, x = mixing.body.project, mixing.norm(h)
        q, k, v = (f(x).unflatten(-1, (3, 4)) for f in (project.to_q, project.to_k, project.to_v))
        a = (torch.einsum("ihd,jhd->hij", q, k) / 2.0).softmax(-1)
        h = h + project.to_out(torch.einsum("hij,jhd->ihd", a, v).flatten(1))
        for place, token in enumerate(left):
            result[token] = h[place]
        read = [(-float(a[:, :, j].sum()), j) for j in range(1, len(left))]
        count = -int(-(model.config.keep[layer] * n) // 1)
        places = [0, *sorted(j for _, j in sorted(read)[:count])]
        left, h = [left[j] for j in places], h[places]
        h = feeding.join(h, feeding.body(feeding.norm(h)))
        for place, token in enumerate(left):
            result[token] = h[place]
    return model.stack.norm(torch.stack([result[token] for token in range(n + 1)])), left


@pytest.mark.parametrize("n", [1, 4, 10, 21])
@torch.no_grad()
def test_the_definition(n):
    model, x = built(config()).eval(), ids(2, n)
    registers, tokens = model.read(x)
    for row in range(2):
        expected, left = by_hand(model, x[row])
        assert len(left) == 1 + -int(-(0.3 * n) // 1)
        torch.testing.assert_close(registers[row], expected[:1], rtol=0, atol=1e-10)
        torch.testing.assert_close(tokens[row], expected[1:], rtol=0, atol=1e-10)


def test_keeping_all_is_an_encoder():
    plain = Encoder(embedding=embedding(registers=1), stack=Stack(frame=FRAME, order="sfsf"))
    ours, theirs = built(config(keep=(1.0, 1.0))), built(plain)
    theirs.load_state_dict(ours.state_dict())
    x, valid = ids(3, 17), torch.rand(3, 17) < 0.7
    torch.testing.assert_close(ours(x, valid=valid), theirs(x, valid=valid), rtol=0, atol=1e-10)
    soft = built(config(extract="soft"))
    soft.load_state_dict(theirs.state_dict(), strict=False)
    with torch.no_grad():
        soft.weights.fill_(1.0)
    torch.testing.assert_close(soft(x, valid=valid), theirs(x, valid=valid), rtol=0, atol=1e-10)


@pytest.mark.parametrize("extract", ["hard", "soft"])
def test_padding_changes_nothing(extract):
    model = built(config(extract=extract, bins=5)).eval()
    x, valid = ids(3, 21), torch.ones(3, 21, dtype=torch.bool)
    valid[1, :9] = False
    valid[2, [2, 3, 11, 19, 20]] = False
    y = model(x, valid=valid)
    assert not y[~valid].any()
    for row in range(3):
        alone = model(x[row][valid[row]][None])[0]
        torch.testing.assert_close(y[row, valid[row]], alone, rtol=0, atol=1e-10)


def test_later_sublayers_see_fewer_tokens():
    model, seen = built(config()), []
    for sublayer in model.stack.sublayers:
        sublayer.norm.register_forward_pre_hook(lambda m, args: seen.append(args[0].shape[1]))
    model(ids(2, 20))
    assert seen == [21, 17, 17, 7]


def test_soft_weights_learn_and_harden():
    model = built(config(extract="soft", bins=4))
    (model(ids(2, 12)).square().sum() + model.extraction_loss()).backward()
    assert model.weights.grad.abs().sum() > 0
    with torch.no_grad():
        model.weights.copy_(torch.tensor([[1.0, 1, 1, 0], [1, 0, 0, -3]]))
    assert model.learned_keep() == pytest.approx((0.75, 0.25))
    assert model.extraction_loss().item() == pytest.approx(0.75 + 2 * 0.25)
    hard = model.hardened()
    assert hard.config.extract == "hard"
    assert hard(ids(2, 12)).shape == (2, 12, 12)
    with torch.no_grad():
        model.weights[1] = 5.0
    assert model.learned_keep() == pytest.approx((0.75, 0.75))  # never grows


def test_soft_weights_scale_by_rank():
    """Weights of 0 below the first half silence the tokens that are read least."""
    model = built(config(extract="soft", bins=2, keep=(1.0, 1.0))).eval()
    with torch.no_grad():
        model.weights.copy_(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
    seen = []
    model.stack.sublayers[1].norm.register_forward_pre_hook(lambda m, a: seen.append(a[0]))
    model(ids(2, 10))
    assert ((seen[0] == 0).all(-1).sum(1) == 5).all()
    assert not (seen[0][:, 0] == 0).all()


def test_it_classifies_and_is_saved(tmp_path):
    model = built(Classifier(trunk=config(), classes=3, pool="first")).float().eval()
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    assert torch.equal(again(ids(2, 9)), model(ids(2, 9)))
    model(ids(2, 9)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"keep": (0.5,)}, "one share in .0, 1. for each of 2 's' sublayers"),
        ({"keep": (0.5, 0.0)}, "one share in .0, 1."),
        ({"keep": (0.5, 0.6)}, "keep never grows"),
        ({"extract": "some"}, "extract is one of 'hard', 'soft'"),
        ({"stack": Stack(frame=FRAME, order="sfsf", mixer="fnet")}, "mixer='full'"),
        (
            {"stack": Stack(frame=dataclasses.replace(FRAME, positions=Rope()), order="sfsf")},
            "embed positions",
        ),
    ],
)
def test_bad_settings(change, message):
    with pytest.raises(WeftError, match=message):
        dataclasses.replace(config(), **change)
    with pytest.raises(WeftError, match="learned by extract='soft'"):
        config().build().extraction_loss()
