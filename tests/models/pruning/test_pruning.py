"""Pruned heads: a gate of 0 equals deleting rows and columns; importance is what it says."""

import dataclasses

import pytest
import torch
from model_parts import built, decoder, encoder, ids

from weft.errors import Unsupported, WeftError
from weft.layers.positions import Alibi, Rope, T5Bias
from weft.mixers import MIXERS, Frame
from weft.models import Classifier, LanguageModel, head_importance, keep_heads, load, prune_heads
from weft.models import save as save_model
from weft.models.pruning.heads import check_prunable
from weft.objectives import Batch

HEADS, MASK = 6, torch.arange(9) < torch.tensor([9, 4, 1, 7])[:, None]


def model(heads=HEADS, kv_heads=None, positions=None, **settings):
    frame = {"heads": heads, "kv_heads": kv_heads, "positions": positions}
    shape = encoder(order="sfsf", mixer="full", frame=frame, **settings)
    return built(Classifier(trunk=shape, classes=3)).eval()


def zeroed(module, keep):
    """The old model with zeros in the columns of W_o that belong to other units."""
    with torch.no_grad():
        for mixer, units in zip(module.trunk.stack.mixers, keep, strict=True):
            group = mixer.frame.heads // mixer.frame.kv_heads
            heads = mixer.project.to_out.weight.view(
                mixer.frame.dim, mixer.frame.kv_heads, group, -1
            )
            gone = [u for u in range(mixer.frame.kv_heads) if u not in units]
            heads[:, gone] = 0.0
    return module


@pytest.mark.parametrize("positions", [None, Rope(), T5Bias(buckets=8)], ids=["none", "rope", "t5"])
@pytest.mark.parametrize("kv_heads", [None, 3], ids=["heads", "groups"])
def test_a_gate_of_zero_is_a_head_deleted(kv_heads, positions):
    keep = [(0, 2, 5), (3,)] if kv_heads is None else [(0, 2), (1,)]
    module = model(kv_heads=kv_heads, positions=positions)
    smaller, x = keep_heads(module, keep), ids(4, 9)
    truth = zeroed(module, keep)(x, valid=MASK)
    torch.testing.assert_close(smaller(x, valid=MASK), truth)
    group = 1 if kv_heads is None else 2
    for mixer, units in zip(smaller.trunk.stack.mixers, keep, strict=True):
        width = mixer.frame.head_dim
        assert mixer.project.to_q.weight.shape == (group * len(units) * width, 12)
        assert mixer.project.to_k.weight.shape == (len(units) * width, 12)
        assert mixer.project.to_out.weight.shape == (12, group * len(units) * width)


def test_the_wrong_heads_are_noticed():
    module, x = model(), ids(4, 9)
    smaller = keep_heads(module, [(0, 2, 5), (3,)])
    truth = zeroed(module, [(0, 2, 4), (3,)])(x)
    assert not torch.allclose(smaller(x), truth)


def test_nothing_is_shared_with_the_old_model():
    module = model()
    before = {name: t.clone() for name, t in module.state_dict().items()}
    smaller = keep_heads(module, [range(HEADS), (1,)])
    with torch.no_grad():
        for parameter in smaller.parameters():
            parameter.zero_()
    assert all(torch.equal(t, before[name]) for name, t in module.state_dict().items())


def test_a_pruned_model_is_saved_trained_and_pruned_again(tmp_path):
    smaller = keep_heads(model(), [(0, 2, 5), (3, 4)]).float()
    loaded, x = load(save_model(smaller, tmp_path / "model")), ids(4, 9)
    assert loaded.config.trunk.stack.layer_heads == (3, 2)
    assert torch.equal(loaded(x), smaller(x))
    loaded.train()(x).sum().backward()
    again = keep_heads(loaded, [(1, 2), (0,)])
    torch.testing.assert_close(again(x), keep_heads(model(), [(2, 5), (3,)]).float()(x))


def test_a_pruned_decoder_decodes():
    frame = {"heads": HEADS, "kv_heads": 3}
    lm = built(LanguageModel(trunk=decoder(order="sfsf", mixer="full", frame=frame))).eval()
    smaller, text = keep_heads(lm, [(0, 2), (1,)]), ids(2, 8)
    state, rows = smaller.start(2), []
    for token in text.T:
        scores, state = smaller.step(token[:, None], state)
        rows.append(scores)
    torch.testing.assert_close(torch.cat(rows, 1), smaller(text))
    assert state.size() == smaller.state_size(8) < lm.state_size(8)


def batches(count=2):
    return [Batch(x=ids(4, 9, seed=s), valid=MASK, y=ids(4, seed=s) % 3) for s in range(count)]


def loss(module, batch):
    scores = module(batch.x, valid=batch.valid)
    return torch.nn.functional.cross_entropy(scores, batch.y, reduction="sum")


def test_importance_is_the_mean_size_of_each_row_s_slope():
    """By finite differences, a row and a head at a time: W_o is linear in the gate."""
    module, step = model(), 1e-6
    sums = torch.zeros(2, HEADS, dtype=torch.float64)
    for batch in batches():
        for row in range(4):
            one = batch.part(row, row + 1)
            for layer, mixer in enumerate(module.trunk.stack.mixers):
                columns = mixer.project.to_out.weight.data.view(12, HEADS, -1)
                for head in range(HEADS):
                    kept = columns[:, head].clone()
                    values = []
                    for gate in (1 + step, 1 - step):
                        columns[:, head] = gate * kept
                        values.append(loss(module, one).item())
                    columns[:, head] = kept
                    sums[layer, head] += abs(values[0] - values[1]) / (2 * step)
    truth = sums / sums.norm(dim=1, keepdim=True)
    found = head_importance(module, batches(), loss)
    torch.testing.assert_close(torch.stack(found), truth, rtol=1e-4, atol=1e-6)


def test_summing_before_the_absolute_value_would_be_another_number():
    """The twin: the slope of the batch's loss, in which rows cancel."""
    module, (batch,) = model(), batches(1)
    columns = [mixer.project.to_out for mixer in module.trunk.stack.mixers]
    grads = torch.autograd.grad(loss(module, batch), [each.weight for each in columns])
    slopes = torch.stack(
        [
            (grad * each.weight).view(12, HEADS, -1).sum((0, 2)).abs()
            for grad, each in zip(grads, columns, strict=True)
        ]
    )
    twin = slopes / slopes.norm(dim=1, keepdim=True)
    found = torch.stack(head_importance(module, [batch], loss))
    assert not torch.allclose(found, twin, rtol=1e-3)


def test_the_least_important_go_a_tenth_at_a_time():
    module = model()
    smaller = prune_heads(module, batches(), loss, share=0.5, step=0.25)
    first = head_importance(module, batches(), loss)
    ranked = sorted(
        (float(v), layer, h) for layer, each in enumerate(first) for h, v in enumerate(each)
    )
    gone = {(layer, head) for _, layer, head in ranked[:3]}
    keep = [[h for h in range(HEADS) if (layer, h) not in gone] for layer in range(2)]
    between = keep_heads(module, keep)
    second = prune_heads(between, batches(), loss, share=3 / 9, step=1.0)
    assert sum(smaller.config.trunk.stack.layer_heads) == 6
    x = ids(4, 9)
    torch.testing.assert_close(smaller(x), second(x))


def test_every_layer_keeps_a_head():
    smaller = prune_heads(model(), batches(), loss, share=0.99)
    assert smaller.config.trunk.stack.layer_heads == (1, 1)
    assert prune_heads(model(), batches(), loss, share=0.0).config == model().config


def test_the_model_keeps_its_mode_and_precision():
    module = model().float().train()
    smaller = prune_heads(module, [dataclasses.replace(b) for b in batches()], loss, share=0.2)
    assert smaller.training
    assert module.training
    assert next(smaller.parameters()).dtype == torch.float32


def prunable(name):
    torch.manual_seed(0)
    try:
        check_prunable(MIXERS[name]().build(Frame(dim=12, heads=4, length=48)))
    except Unsupported:
        return False
    return True


BOTH_WAYS = [name for name in MIXERS if MIXERS[name]().traits.bidirectional]


@pytest.mark.parametrize("name", [name for name in BOTH_WAYS if prunable(name)])
def test_every_mixer_that_is_not_refused_is_pruned_exactly(name):
    shape = encoder(order="s", mixer=name, frame={"heads": 4, "length": 48})
    for keep in ((0, 1), (1, 3), (2,)):
        module = built(Classifier(trunk=shape, classes=3)).eval()
        smaller, x = keep_heads(module, [keep]), ids(2, 40)
        torch.testing.assert_close(smaller(x), zeroed(module, [keep])(x))


def test_who_is_refused():
    able = {name for name in BOTH_WAYS if prunable(name)}
    assert {"full", "sliding_window", "bigbird", "block_local", "linear_transformer"} <= able
    assert not {"fnet", "synthesizer", "adaptive_span", "gru", "blockbert"} & able


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: keep_heads(model(positions=Alibi()), [(0,), (0,)]), "slopes"),
        (lambda: keep_heads(model(), [(0,)]), "each of 2 mixers"),
        (lambda: keep_heads(model(), [(0,), ()]), "0 to 5"),
        (lambda: keep_heads(model(), [(0,), (6,)]), "0 to 5"),
        (lambda: keep_heads(model(shared=1), [(0,), (0,)]), "share"),
        (lambda: prune_heads(model(), batches(), loss, share=1.0), r"\[0, 1\)"),
        (lambda: encoder(order="sfsf", layer_heads=(3, 3, 3)), "their number divides 2"),
        (
            lambda: encoder(order="s", frame={"heads": 6, "kv_heads": 3}, layer_heads=(3,)),
            "multiples",
        ),
    ],
    ids=["alibi", "few", "none", "unknown", "shared", "all", "stack", "groups"],
)
def test_what_cannot_be_is_said(make, says):
    with pytest.raises(WeftError, match=says):
        make()
