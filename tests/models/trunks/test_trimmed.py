"""A trimmed head computes what the whole one computes, and leaves out what only others need."""

import dataclasses

import pytest
import torch

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame, Mixer
from weft.models import Classifier, Decoder, Encoder, Funnel, Matcher, Stack
from weft.models.stack.sublayer import FeedForwardSublayer

LENGTH = 40
NAMES = (
    "full",
    "longformer(window=5, global_first=0, global_projections=false)",
    "longformer(window=5, global_first=1)",
    "bigbird(block=8, random=1)",
    "linformer(rank=8)",
    "linear_transformer",
    "reformer(chunk=8, rounds=1, buckets=4)",
    "performer(kernel='relu', features=8, redraw_every=0)",
    "performer(features=8)",
    "synthesizer(kinds='random', mixture='plus')",
    "synthesizer(kinds=['factorised_random', 'dense'], mixture='alpha')",
    "fnet",
)


def classifier(mixer: str = "full", *, registers: int = 2, pool: str = "first", **stack):
    given = {"frame": Frame(dim=16, heads=2, length=LENGTH), "order": "sf" * 2} | stack
    trunk = Encoder(
        embedding=Embedding(vocab=11, positions="learned", registers=registers),
        stack=Stack(mixer=MIXERS.parse(mixer), **given),
    )
    return Classifier(trunk=trunk, classes=3, pool=pool, hidden=8)


def trimmed(config):
    return dataclasses.replace(config, trimmed=True)


def documents(side: str):
    torch.manual_seed(1)
    ids = torch.randint(0, 11, (3, LENGTH))
    if side == "none":
        return ids, None
    right = torch.arange(LENGTH) < torch.tensor([LENGTH, 17, 1])[:, None]
    return ids, right if side == "right" else right.flip(1)


def scores_and_gradients(config, state, side):
    model = config.build().double()
    model.load_state_dict(state)
    ids, valid = documents(side)
    scores = model(ids, valid=valid)
    scores.square().sum().backward()
    # What only the rows left out would read has no gradient; the whole one has zeros there.
    named = model.named_parameters()
    return scores, {n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in named}


@pytest.mark.parametrize("mixer", NAMES)
@pytest.mark.parametrize("side", ["none", "right", "left"])
def test_scores_and_gradients_are_those_of_the_whole(mixer, side):
    whole = classifier(mixer)
    torch.manual_seed(0)
    state = whole.build().double().state_dict()
    expected, truth = scores_and_gradients(whole, state, side)
    scores, gradients = scores_and_gradients(trimmed(whole), state, side)
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(gradients, truth)


def test_a_matcher_is_trimmed_alike():
    trunk = classifier().trunk
    whole = Matcher(trunk=trunk, pool="first")
    torch.manual_seed(0)
    one = whole.build().eval()
    other = trimmed(whole).build().eval()
    other.load_state_dict(one.state_dict())
    ids, valid = documents("right")
    pair = {"first_valid": valid, "second_valid": valid.flip(0)}
    torch.testing.assert_close(other(ids, ids, **pair), one(ids, ids, **pair))


def test_checkpoints_between_sublayers_change_nothing():
    stored = trimmed(classifier())
    again = trimmed(classifier(recompute="checkpoint"))
    torch.manual_seed(0)
    state = stored.build().double().state_dict()
    expected, truth = scores_and_gradients(stored, state, "right")
    scores, gradients = scores_and_gradients(again, state, "right")
    torch.testing.assert_close(scores, expected)
    torch.testing.assert_close(gradients, truth)


def widths(config, side: str = "none") -> list[int]:
    """Rows that pass each feed-forward; what it is told of them fits."""
    seen = []

    def look(module, args):
        x, given = args
        assert given.valid is None or given.valid.shape == x.shape[:2]
        seen.append(x.shape[1])

    model = config.build().eval()
    for module in model.modules():
        if isinstance(module, FeedForwardSublayer):
            module.register_forward_pre_hook(look)
    ids, valid = documents(side)
    model(ids, valid=valid)
    return seen


def test_rows_that_no_one_reads_are_left_out():
    assert widths(classifier()) == [LENGTH + 2, LENGTH + 2]
    for side in ("none", "right"):
        assert widths(trimmed(classifier()), side) == [LENGTH + 2, 1]


def test_the_first_row_asks_for_no_other(monkeypatch):
    """Of the last layer's mixer the first row alone is asked for, of those before it all."""
    asked = []
    first_rows = Mixer.first_rows

    def spy(self, x, count, valid=None):
        asked.append((self.frame.layer, count))
        return first_rows(self, x, count, valid)

    monkeypatch.setattr(Mixer, "first_rows", spy)
    trimmed(classifier("fnet")).build().eval()(documents("none")[0])
    assert asked == [(1, 1)]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"pool": "mean"}, "pool='mean'"),
        ({"registers": 0}, "registers=0"),
        ({"order": "sfsw"}, "order='sfsw'"),
        ({"feedforward": "switch(experts=2)"}, "feedforward=switch"),
        ({"depth": "universal(steps=2)"}, "depth=universal"),
        ({"recompute": "reversible"}, "recompute='reversible'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_be_left_out_is_refused(changed, message):
    with pytest.raises(WeftError, match="trimmed") as error:
        trimmed(classifier(**changed))
    assert message in str(error.value)


def test_trunks_of_other_kinds_are_refused():
    """A decoder's first row has read nothing, and a funnel's rows are pooled between layers."""
    trunk = classifier().trunk
    parts = {"embedding": trunk.embedding, "stack": trunk.stack}
    with pytest.raises(WeftError, match="trimmed"):
        Classifier(trunk=Decoder(**parts), classes=3, pool="last", trimmed=True)
    with pytest.raises(WeftError, match="in Funnel"):
        Classifier(trunk=Funnel(**parts, blocks=2), classes=3, pool="first", trimmed=True)
