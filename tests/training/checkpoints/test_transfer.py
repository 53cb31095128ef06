"""Weights from one model to the next: by name, adapted to length and vocabulary, else said."""

import dataclasses

import pytest
import torch
from tiny_runs import CLASSES, trunk

from weft.errors import WeftError
from weft.models import Decoder
from weft.objectives import CausalLM, Classify, Head, MaskedLM, Match
from weft.training.checkpoints.tensors import named_tensors
from weft.training.checkpoints.transfer import transfer

HEAD = Head(classes=CLASSES, hidden=5)


def model(objective=None, seed=0, **shape):
    torch.manual_seed(seed)
    return (objective or Classify()).build(trunk(**shape), HEAD).build()


def test_the_same_model_goes_over_whole():
    old, new = model(seed=0), model(seed=1)
    result = transfer(old, new)
    assert not result.adapted
    assert not result.fresh
    one, two = named_tensors(old), named_tensors(new)
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert set(result.whole) == set(two)


def test_learned_positions_repeat_when_they_grow_and_are_cut_when_they_shrink():
    old, longer, shorter = model(length=5), model(length=13, seed=1), model(length=3, seed=2)
    result = transfer(old, longer)
    assert result.adapted == ("trunk.embedding.positions",)
    table = old.trunk.embedding.positions
    for position in range(13):
        assert torch.equal(longer.trunk.embedding.positions[position], table[position % 5])
    transfer(old, shorter)
    assert torch.equal(shorter.trunk.embedding.positions, table[:3])


def test_a_projection_along_the_length_keeps_its_first_columns():
    """Linformer's E, which is built for a length: the old columns, then fresh ones."""
    shape = {"mixer": "linformer(rank=4)", "positions": "none"}
    old, new, fresh = (
        model(length=6, **shape),
        model(length=9, seed=1, **shape),
        model(length=9, seed=1, **shape),
    )
    result = transfer(old, new)
    assert result.adapted
    for name in result.adapted:
        one, two, start = (named_tensors(m)[name] for m in (old, new, fresh))
        assert torch.equal(two[..., :6], one)
        assert torch.equal(two[..., 6:], start[..., 6:])


def test_registers_count_as_length_where_a_mixer_sees_them():
    shape = {"mixer": "linformer(rank=4)", "positions": "learned", "registers": 2}
    result = transfer(model(length=6, **shape), model(length=9, seed=1, **shape))
    assert not result.fresh
    assert len(result.adapted) >= 2


@pytest.mark.parametrize("objective", [MaskedLM(), CausalLM()], ids=str)
def test_pretraining_hands_its_trunk_to_a_classifier(objective):
    old, new = model(objective), model(seed=1)
    start = {name: t.clone() for name, t in named_tensors(new).items()}
    result = transfer(old, new, head=False)
    assert set(result.fresh) == {n for n in start if n.startswith("head.")}
    one, two = named_tensors(old), named_tensors(new)
    for name in two:
        if name in result.fresh:
            assert torch.equal(two[name], start[name])
        elif name in result.adapted:
            assert name == "trunk.embedding.table"
            assert torch.equal(two[name], one[name][: len(two[name])])
        else:
            assert torch.equal(two[name], one[name])


def test_a_head_of_another_objective_starts_fresh_even_if_it_fits():
    old, new = model(Classify()), model(Match(), seed=1)
    name = "head.2.weight"
    assert named_tensors(old)[name].shape == named_tensors(new)[name].shape
    assert name in transfer(old, new, head=False).fresh
    assert name in transfer(old, new, head=True).whole


def test_another_width_of_one_part_starts_fresh_and_is_said():
    old, new = model(), model(seed=1, feedforward="dense(expansion=2)")
    result = transfer(old, new)
    assert result.fresh
    assert all("sublayers.1.body" in name for name in result.fresh)
    assert f"started fresh: {result.fresh[0]}" in str(result)


def test_nothing_in_common_is_refused():
    old, other = model(positions="none"), model(positions="none")
    other.trunk.stack.sublayers = torch.nn.ModuleList()
    for name, parameter in list(other.named_parameters()):
        if not name.startswith("trunk.embedding"):
            continue
        parameter.data = torch.zeros(2, 2)
    bare = torch.nn.Module()
    bare.config = other.config
    bare.unknown = torch.nn.Parameter(torch.zeros(3))
    with pytest.raises(WeftError, match="no weights go from this phase to the next"):
        transfer(old, bare)


def test_shared_tensors_go_over_once():
    shape = {"mixer": "synthesizer", "order": "sfsf", "positions": "none"}
    old, new = model(**shape), model(seed=1, **shape)
    result = transfer(old, new)
    assert len(set(result.whole)) == len(result.whole)


def test_a_decoders_trunk_has_an_encoders_names():
    encoder = trunk()
    decoder = Decoder(embedding=encoder.embedding, stack=encoder.stack)
    assert (
        dict(decoder.build().named_parameters()).keys()
        == dict(encoder.build().named_parameters()).keys()
    )
    assert dataclasses.asdict(decoder) == dataclasses.asdict(encoder)
