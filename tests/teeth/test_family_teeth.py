"""The checks of patterns, feed-forwards, projections, tasks and objectives bite.

Each twin is sound but for one line; the check that looks there fails, for the stated reason. The
sound one passes every check of its family.
"""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.tasks import SPLITS
from weft.errors import WeftError
from weft.feedforward.base import FeedForward, FeedForwardTraits
from weft.layers.projections.dense import PROJECTIONS, DenseProjection, Projections
from weft.models import Classifier
from weft.objectives import Head
from weft.objectives.base import Loss
from weft.patterns import Causal, Pattern, PerHead, Predicate, Segments, Sliding
from weft.patterns.region import Coverage
from weft.registry import Registry
from weft.testing import FAMILIES, check, checks_for, exempt, family_of

TWINS = Registry("twin")


def twin(config):
    """A frozen config, registered by its own name."""
    return TWINS.register(config.__name__)(dataclass(frozen=True, kw_only=True)(config))


# Patterns ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Misses(Sliding):
    """Its blocks are those of a narrower window."""

    def covers(self, rows, cols, length=None):
        return Sliding(self.window - 1).covers(rows, cols, length)


@dataclass(frozen=True)
class SaysFull(Sliding):
    def covers(self, rows, cols, length=None):
        some, _ = super().covers(rows, cols, length)
        return Coverage(some, some)


@dataclass(frozen=True)
class WrongOffTheGrid(Sliding):
    """Right for blocks that begin at a multiple of their size, wrong for other intervals."""

    def covers(self, rows, cols, length=None):
        some, every = super().covers(rows, cols, length)
        aligned = (rows.lo % (rows.hi - rows.lo + 1) == 0) | (rows.hi >= length - 1)
        return Coverage(some & aligned, every)


@dataclass(frozen=True)
class CallsItselfCausal(Sliding):
    causal: ClassVar[bool] = True


@dataclass(frozen=True)
class CallsItselfRelative(Sliding):
    def sees(self, i, j, length=None):
        return super().sees(i, j, length) | (j == 0)


@dataclass(frozen=True)
class HidesItsLength(Sliding):
    def sees(self, i, j, length=None):
        return super().sees(i, j) | (j == (length or 0) - 1)


@dataclass(frozen=True)
class ThinsWrongly(Sliding):
    def every_nth(self, step):
        return Sliding(self.window)


@dataclass(frozen=True)
class BindsAnother(Sliding):
    def bind(self, length, device):
        return lambda i, j: (i - j).abs() <= self.window


@dataclass(frozen=True)
class SpeaksOfAnother(Sliding):
    def __str__(self):
        return "sliding(window=4)"


# Feed-forwards ----------------------------------------------------------------------------------


@twin
class Plain:
    """x W1, relu, W2; `broken` names what is wrong with it."""

    broken: str = ""

    traits: ClassVar = FeedForwardTraits(summary="", paper="", parameters="", time="")

    def build(self, dim, dropout=0.0, bias=True):
        return PlainFeedForward(self.broken, dim)


class PlainFeedForward(FeedForward):
    def __init__(self, broken, dim):
        super().__init__()
        self.broken = broken
        self.to_hidden, written = nn.Linear(dim, 12), nn.Linear(12, dim)
        if broken == "another name":
            self.last = written
        else:
            self.to_out = written
        self.spare = nn.Parameter(torch.zeros(3)) if broken == "spare" else None

    def forward(self, x, *, valid=None):
        if self.broken == "mean":
            x = x - x.mean(1, keepdim=True)
        if self.broken == "padding" and self.training:
            x = x - x.mean((0, 1))
        hidden = self.to_hidden(x).relu()
        if self.broken == "overflow":
            hidden = hidden * 6e4 / 6e4
        if self.broken == "float32":
            hidden = hidden.float()
            return torch.nn.functional.linear(hidden, self.to_out.weight.float()).float()
        y = (self.last if self.broken == "another name" else self.to_out)(hidden)
        return y[:, 1:] if self.broken == "shorter" else y


# Projections ------------------------------------------------------------------------------------


@PROJECTIONS.register("shifting_twin")  # a frame takes projections alone
@dataclass(frozen=True, kw_only=True)
class Shifting:
    """Keys and values of the token before; `broken` names what is wrong with it."""

    broken: str = ""

    @property
    def neighbours(self):
        return self.broken != "denies it"

    def build(self, frame):
        if frame.kv_heads != frame.heads and self.broken != "groups":
            raise WeftError("no grouped keys")
        sizes = frame.dim, frame.heads, frame.kv_heads, frame.head_dim, frame.bias
        made = ShiftingProjections(*sizes)
        made.memory_size, made.broken = frame.dim, self.broken
        return made


class ShiftingProjections(Projections):
    foldable = False

    def shifted(self, x, memory):
        return torch.cat((memory[:, None], x[:, :-1]), dim=1)

    def qkv(self, x):
        q, k, v = self.step(x, self.start(len(x)))[0]
        if self.broken == "ahead":
            k = k.roll(-2, 2)
        return [q, k[:, : 1 if self.broken == "groups" else None], v]

    def k(self, x):
        return super().k(x if self.broken == "part" else self.shifted(x, self.start(len(x))))

    def v(self, x):
        return super().v(self.shifted(x, self.start(len(x))))

    def start(self, batch):
        return self.to_q.weight.new_zeros(batch, self.to_q.weight.shape[1])

    def step(self, x, memory):
        before = self.shifted(x, memory)
        kept = torch.zeros_like(x[:, -1]) if self.broken == "forgets" else x[:, -1].clone()
        k, v = Projections.k(self, before), Projections.v(self, before)
        return [self.q(x), k, v], kept

    def keys(self, x, memory):
        (_, k, v), memory = self.step(x, memory)
        return k, v, memory

    def out(self, y):
        return super().out(y)[..., :-1] if self.broken == "out" else super().out(y)


# Tasks ------------------------------------------------------------------------------------------


@twin
class Parity:
    """Whether the ones in a row are odd; `broken` names what is wrong with it."""

    broken: str = ""
    length: int = 20

    kind: ClassVar = "classify"
    metric: ClassVar = "accuracy"
    vocab: ClassVar = 2

    @property
    def classes(self):
        return 0 if self.broken == "classes" else 2

    @property
    def source(self):
        return "" if self.broken == "source" else "drawn"

    def load(self, split):
        number = 0 if self.broken == "same" else SPLITS.index(split)
        seed = None if self.broken == "entropy" else number
        tokens = np.random.default_rng(seed).integers(0, 2, (40, self.length))
        labels = tokens.sum(1) % 2
        if self.broken == "vocab":
            tokens[3, 3] = 2
        if self.broken == "labels":
            labels[5] = -1
        return Examples(TokenRows.of(list(tokens)), self.length, labels=labels)

    def baselines(self):
        return {"chance": 50.0 if self.broken == "percent" else 0.5}

    def show(self, row):
        return " ".join(map(str, row))


# Objectives -------------------------------------------------------------------------------------


@twin
class Classes:
    """Cross entropy; `broken` names what is wrong with it."""

    broken: str = ""

    metric: ClassVar = "accuracy"

    def build(self, trunk, head: Head):
        return Classifier(trunk=trunk, classes=head.classes, hidden=8)

    def loss(self, model, batch, generator):
        if self.broken == "untaught":
            with torch.no_grad():
                model(batch.x, valid=batch.valid)
            scores = list(model.parameters())[-1].expand(len(batch), -1)
        else:
            scores = model(batch.x, valid=batch.valid)
        total = nn.functional.cross_entropy(scores.float(), batch.y, reduction="sum")
        total = total.to(scores.dtype) if self.broken == "half" else total
        if self.broken == "draws":
            total = total * torch.rand(())
        right = (scores.argmax(-1) == batch.y).sum()
        count = torch.tensor(len(batch) if self.broken != "none" else 0)
        return Loss(total, count, right)


# check, twin, what the message has to say
BITES = [
    ("blocks", Misses(5), "a visible block is missing"),
    ("blocks", SaysFull(5), "called full and is not"),
    ("regions", WrongOffTheGrid(5), "covers denies it"),
    ("regions", SaysFull(5), "not every pair sees"),
    ("traits", CallsItselfCausal(5), "reads ahead"),
    ("traits", CallsItselfRelative(5), "pairs of one distance differ"),
    ("traits", HidesItsLength(5), "pairs of one distance differ|the length matters"),
    ("every_nth", ThinsWrongly(5), r"every_nth\(2\) is wrong"),
    ("bind", BindsAnother(5), "bind and sees"),
    ("round_trip", SpeaksOfAnother(5), "reads back as"),
    ("blocks", PerHead(Causal(), Misses(5)), "a visible block is missing"),
    ("shape", Plain(broken="shorter"), r"became \(2, 4, 8\)"),
    ("shape", Plain(broken="another name"), "is named to_out"),
    ("tokens", Plain(broken="mean"), "token by token"),
    ("padding", Plain(broken="padding"), "training: other padding"),
    ("learning", Plain(broken="spare"), "spare has no gradient"),
    ("half_precision", Plain(broken="float32"), "it gives torch.float32"),
    ("half_precision", Plain(broken="overflow"), "float16.*not finite"),
    ("parts", Shifting(broken="part"), "k and qkv"),
    ("parts", Shifting(broken="out"), "out gives"),
    ("reads", Shifting(broken="ahead"), "k of earlier tokens"),
    ("reads", Shifting(broken="denies it"), "neighbours is False, k of each token alone"),
    ("steps", Shifting(broken="forgets"), "in steps of"),
    ("grouped_keys", Shifting(broken="groups"), "kv_heads=2 gives"),
    ("attention", Shifting(broken="forgets"), "step and forward"),
    ("facts", Parity(broken="classes"), "classify with 0 classes"),
    ("facts", Parity(broken="source"), "source says which"),
    ("range", Parity(broken="vocab"), "from 0 to 2"),
    ("range", Parity(broken="labels"), "from -1 to 1"),
    ("same_again", Parity(broken="entropy"), "differs when loaded again"),
    ("splits", Parity(broken="same"), "100.0% of valid"),
    ("baselines", Parity(broken="percent"), "'chance' is not a valid accuracy: 50"),
    ("draws", Classes(broken="draws"), "the same generator gave"),
    ("loss", Classes(broken="half"), "autocast: torch.bfloat16"),
    ("loss", Classes(broken="none"), "more items right|no items"),
    ("learning", Classes(broken="untaught"), "has no gradient"),
]
SOUND = [Sliding(5), PerHead(Causal(), Sliding(5)), Segments((20, 20)), Plain(), Shifting()]
SOUND += [Parity(), Classes(), DenseProjection()]


def run(config, name):
    options = {}
    if name == "round_trip" and not isinstance(config, Pattern | DenseProjection | Shifting):
        options["registry"] = TWINS
    dict(checks_for(config))[name](**options)


@pytest.mark.parametrize(
    ("config", "name"),
    [pytest.param(c, name, id=f"{c}-{name}") for c in SOUND for name, _ in checks_for(c)],
)
def test_the_sound_one_passes(config, name):
    run(config, name)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [pytest.param(*bite, id=f"{bite[0]}-{type(bite[1]).__name__}-{bite[2]}") for bite in BITES],
)
def test_a_broken_twin_fails(name, config, message):
    with pytest.raises(AssertionError) as caught:
        run(config, name)
    assert re.search(message, str(caught.value)), str(caught.value)


def test_every_check_has_a_twin_that_fails_it():
    """Round trips are shown to fail by the twins of mixers, from which they are taken."""
    bitten = {(family_of(config), name) for name, config, _ in BITES}
    every = {(f, name) for f, own in FAMILIES.items() if f != "mixer" for name in own}
    assert {pair for pair in every - bitten if pair[1] != "round_trip"} == set()


def test_one_call_runs_them_all():
    check(Sliding(5))
    with pytest.raises(AssertionError, match="a visible block is missing"):
        check(Misses(5))
    check(Misses(5), skip=["blocks", "regions", "round_trip"])
    with pytest.raises(WeftError, match="no check named 'block'"):
        check(Sliding(5), skip=["block"])


def test_a_function_has_no_text():
    made = Causal() & ~Predicate(lambda i, j: i == j, "itself")
    assert set(exempt(made)) == {"round_trip"}
    check(made)


def test_what_is_no_part_says_what_parts_have():
    with pytest.raises(WeftError, match="is not a part that can be checked: a mixer has traits"):
        check(3)


def test_a_pattern_that_takes_no_size_is_not_called_sound():
    with pytest.raises(AssertionError, match="refuses every size"):
        dict(checks_for(Segments((3,))))["bind"](sizes=[(9, 9)])
