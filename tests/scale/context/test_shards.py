"""What ranks hold and read, against masks; bytes, against sums over keys."""

import dataclasses

import numpy as np
import pytest
import torch
from torch import nn

from weft.errors import Unsupported, WeftError
from weft.layers.embedding import Embedding
from weft.mixers import MIXERS, Frame
from weft.mixers.base.under_pattern import PatternAttention
from weft.models import Classifier, Encoder, Funnel, Stack
from weft.patterns import Causal, Sliding, pattern
from weft.patterns.derive import mask
from weft.scale.context import Shards, attention_bill, family_of, reading
from weft.scale.context.refusals import reason_against
from weft.scale.context.shards import Within
from weft.scale.context.view import runs_of, view

PATTERNS = [
    "full()",
    "causal()",
    "sliding(5)",
    "causal & (sliding(4) | strided(7))",
    "causal & (same_block(6) | columns(6, width=2))",
    "sliding(4) | global(first=2, at=[20])",
    "sliding(3) | keys(last=2)",
    "axis(6, 'y') | axis(6)",
    "random_blocks(2, block=4, seed=1) | same_block(4)",
    "dilated(3, dilation=4)",
]


@pytest.mark.parametrize("balance", ["none", "head_tail"])
@pytest.mark.parametrize(("length", "ranks"), [(8, 4), (37, 4), (41, 3), (5, 1)])
def test_every_position_has_one_owner_and_shares_are_even(length, ranks, balance):
    shards = Shards(length, ranks, balance)
    held = [shards.positions(rank) for rank in range(ranks)]
    assert sorted(np.concatenate(held).tolist()) == list(range(length))
    assert max(map(len, held)) == shards.size
    assert max(map(len, held)) - min(map(len, held)) <= shards.runs // ranks
    for rank in range(ranks):
        assert (shards.owners(held[rank]) == rank).all()
        assert shards.places(held[rank], rank).tolist() == list(range(len(held[rank])))


@pytest.mark.parametrize("balance", ["none", "head_tail"])
@pytest.mark.parametrize("text", PATTERNS)
def test_ranks_read_what_the_mask_shows_and_nothing_that_is_far_from_it(text, balance):
    length, shards, reads = 36, Shards(36, 3, balance), pattern(text)
    seen, plan = mask(reads, length)[0].numpy(), reading(pattern(text), Shards(36, 3, balance))
    for rank in range(3):
        own = shards.positions(rank)
        rows = np.setdiff1d(own, plan.wide)
        wanted = np.setdiff1d(np.flatnonzero(seen[rows].any(0)), own)
        assert np.isin(wanted, plan.needs[rank]).all()
        assert not np.isin(plan.needs[rank], own).any()
        if "random" not in text and "axis" not in text:
            assert plan.needs[rank].tolist() == wanted.tolist()


def test_rows_that_read_everything_go_round_where_that_is_less():
    plan = reading(pattern("sliding(4) | global(first=2)"), Shards(64, 4))
    assert plan.wide.tolist() == [0, 1]
    assert [len(needs) for needs in plan.needs] == [3, 3 + 2 + 3, 3 + 2 + 3, 3 + 2]
    assert not plan.turns
    assert reading(pattern("full()"), Shards(64, 4)).turns
    # So many rows that their keys are less.
    assert not len(reading(pattern("sliding(4) | queries(first=60)"), Shards(64, 2)).wide)


def test_a_pattern_within_a_longer_sequence():
    inner, n = pattern("sliding(3) | global(last=2)"), 12
    seen = mask(Within(inner, n), 20)[0]
    assert torch.equal(seen[:n, :n], mask(inner, n)[0])
    assert not seen[n:].any()
    assert not seen[:, n:].any()
    plan = reading(Within(inner, n), Shards(20, 4))
    assert plan.wide.tolist() == [10, 11]
    assert len(plan.needs[3]) == 0


@pytest.mark.parametrize("text", PATTERNS)
def test_bytes_are_those_of_the_keys_that_travel(text):
    shards, sizes = Shards(40, 4), {"heads": 4, "kv_heads": 2, "width": 8, "itemsize": 2}
    plan = reading(pattern(text), shards)
    bill = attention_bill(pattern(text), shards, **sizes)
    fetched = sum(map(len, plan.needs)) * 2 * 2 * 8 * 2
    wide = len(plan.wide) * 3
    rows = wide * 4 * (8 * 2 + (8 + 1) * 4)
    assert bill.forward.sum() == fetched + rows
    assert bill.backward.sum() == fetched * (2 if plan.turns else 1) + rows


def test_a_head_with_a_pattern_of_its_own_is_counted_alone():
    shards, sizes = Shards(40, 4), {"kv_heads": 2, "width": 8}
    both = attention_bill(pattern("per_head(sliding(3), sliding(9))"), shards, heads=2, **sizes)
    each = [
        attention_bill(pattern(f"sliding({w})"), shards, heads=1, kv_heads=1, width=8)
        for w in (3, 9)
    ]
    assert both.forward.tolist() == (each[0] + each[1]).forward.tolist()


def test_a_view_shares_the_pairs_out():
    plain, even = (view(Causal(), 256, 4, balance=b) for b in ("none", "head_tail"))
    assert [round(each.pairs, 3) for each in plain.ranks] == [0.063, 0.188, 0.312, 0.437]
    assert {round(each.pairs, 3) for each in even.ranks} == {0.25}
    assert plain.ranks[2].sources == (0, 1)
    assert plain.total == sum(each.forward + each.backward for each in plain.ranks)
    assert runs_of(view(Sliding(3), 64, 4).ranks[1].fetched) == "14–15, 32–33"
    assert runs_of(np.arange(0, 40, 2)) == "20 in 20 runs, 0 to 38"
    assert runs_of(np.array([7])) == "7"


@pytest.mark.parametrize(
    ("length", "ranks", "balance", "says"),
    [(3, 4, "none", "at most 3 ranks"), (8, 0, "none", "1 rank"), (8, 2, "even", "head_tail")],
)
def test_what_cannot_be_split_says_why(length, ranks, balance, says):
    with pytest.raises(WeftError, match=says):
        Shards(length, ranks, balance)


def test_a_mixer_without_the_trait_or_with_a_computation_of_its_own_is_refused():
    frame = Frame(dim=16, heads=2)
    mixer = MIXERS.make("full").build(frame)
    assert family_of(mixer).contiguous is False

    @dataclasses.dataclass(frozen=True)
    class Silent:
        name = "silent"
        traits = dataclasses.replace(MIXERS.make("full").traits, context_parallel="")

    with pytest.raises(Unsupported, match="silent cannot be split"):
        family_of(PatternAttention(Silent(), frame, Causal()))

    class Own(PatternAttention):
        def attention(self, q, k, v, valid, crossing, segments=None):
            return v

    with pytest.raises(Unsupported, match="full cannot be split"):
        family_of(Own(mixer.config, frame, Causal()))


def test_what_reads_other_tokens_beside_mixers_is_refused():
    stack = Stack(order="sfsf", frame=Frame(dim=16, heads=2), mixer=MIXERS.make("full"))
    embedding = Embedding(vocab=11, registers=1)
    registers = Encoder(embedding=embedding, stack=stack).build()
    shortened = Funnel(embedding=dataclasses.replace(embedding, registers=0), stack=stack).build()

    def reasons(model: nn.Module) -> str:
        return " ".join(filter(None, map(reason_against, model.modules())))

    assert "registers=0" in reasons(registers)
    assert "shorten" in reasons(shortened)
    plain = Encoder(embedding=dataclasses.replace(embedding, registers=0), stack=stack)
    assert reasons(Classifier(trunk=plain, classes=2).build()) == ""
