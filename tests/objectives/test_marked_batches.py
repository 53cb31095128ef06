"""Marks of a batch: they move, split and are copied with their rows, and reach the model."""

import dataclasses

import pytest
import torch
from objective_parts import CLASSES, VOCAB, pairs, rows

from weft.errors import WeftError
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Encoder, Stack, save
from weft.objectives import OBJECTIVES, Batch, Head

# Spec of the objective, whether its rows are pairs. Their models read both ways.
TAKE = {
    "classify": False,
    "regress": False,
    "match": True,
    "masked_lm(rate=0.5)": False,
    "masked_lm": True,
    "electra(rate=0.5)": False,
    "pixel_lm(kind='masked', rate=0.5)": False,
    "sequence_to_sequence(decoder_mixer='full')": True,
    "conditional_masked_lm(decoder_mixer='full')": True,
    "early_exit": False,
    "early_exit(of=regress)": False,
}
REFUSE = {
    "permuted_lm": "pretrain with masked_lm",
    "mpnet": "pretrain with masked_lm",
    "span_corruption": "tokens leave the text",
    "pixel_lm": "use kind='masked'",
}


def trunk(first, registers=0):
    mixer = f"longformer(window=2, global_first={first})"
    stack = Stack(frame=Frame(dim=8, heads=2, length=20), order="sfsf", mixer=mixer)
    embedding = Embedding(vocab=VOCAB, positions="sinusoidal", registers=registers)
    return Encoder(embedding=embedding, stack=stack)


def built(objective, first, registers=0):
    torch.manual_seed(0)
    config = objective.build(trunk(first, registers), Head(classes=CLASSES))
    return config.build().double().train()


def leading(valid, count=2):
    return {"is_global": valid & (valid.long().cumsum(1) <= count)}


def marked(batch, objective):
    """Both documents of a pair, unless the second one is written."""
    given = {"marks": leading(batch.valid)}
    if batch.second is not None and objective.name in ("match", "masked_lm"):
        given["second_marks"] = leading(batch.second_valid)
    return dataclasses.replace(batch, **given)


def loss(objective, model, batch):
    found = objective.loss(model, batch, torch.Generator().manual_seed(0))
    return torch.stack([found.total, found.count.double(), found.right.double()])


@pytest.mark.parametrize("spec", TAKE)
def test_a_loss_under_marks_is_that_of_the_config(spec):
    """Two leading tokens that are global by the mixer's config, or by the batch."""
    objective, batch = OBJECTIVES.parse(spec), pairs() if TAKE[spec] else rows()
    registers = int(objective.name == "conditional_masked_lm")  # which adds one
    truth, model = built(objective, 2 + registers), built(objective, registers)
    expected = loss(objective, truth, batch)
    torch.testing.assert_close(loss(objective, model, marked(batch, objective)), expected)
    assert not torch.allclose(loss(objective, model, batch)[0], expected[0])


@pytest.mark.parametrize("of", ["classify", "masked_lm(rate=0.5)"])
def test_teacher_and_student_read_the_same_marks(of, tmp_path):
    inner = OBJECTIVES.parse(of)
    totals = []
    for first, batch in ((2, rows()), (0, marked(rows(), inner))):
        save(built(inner, first).float(), tmp_path / str(first))
        spec = f"distill(teacher='{tmp_path / str(first)}', of={of}, start='fresh', cosine=0.5)"
        objective = OBJECTIVES.parse(spec)
        totals.append(loss(objective, built(inner, first).float(), batch))
    torch.testing.assert_close(*totals)


@pytest.mark.parametrize("spec", REFUSE)
def test_objectives_that_move_tokens_refuse_marks(spec):
    objective, batch = OBJECTIVES.parse(spec), rows()
    model = built(objective, 1)
    given = dataclasses.replace(batch, marks=leading(batch.valid))
    name = objective.name
    with pytest.raises(WeftError, match=f"{name} takes no marks, and this batch has is_global"):
        loss(objective, model, given)
    with pytest.raises(WeftError, match=REFUSE[spec]):
        loss(objective, model, given)
    assert not objective.takes_marks


def test_targets_take_no_marks():
    objective, batch = OBJECTIVES.parse("sequence_to_sequence(decoder_mixer='full')"), pairs()
    given = dataclasses.replace(batch, second_marks=leading(batch.second_valid))
    with pytest.raises(WeftError, match="second_marks=is_global: mark the first alone"):
        loss(objective, built(objective, 0), given)


def ragged():
    valid = torch.arange(9) < torch.tensor([6, 2, 9, 1])[:, None]
    value = torch.arange(36).view(4, 9) + 1
    marks = {"is_global": value % 2 == 0, "member": value}
    return Batch(x=value, valid=valid, second=value[:, :3], marks=marks,
                 second_marks={"member": value[:, :3]})  # fmt: skip


def test_marks_stay_with_their_rows_and_tokens():
    batch = ragged().by_length()
    assert batch.reach == (1, 2, 6, 9)
    for part in batch.parts(2):
        for marks, ids in ((part.marks, part.x), (part.second_marks, part.second)):
            torch.testing.assert_close(marks["member"], ids)
        torch.testing.assert_close(part.marks["is_global"], part.x % 2 == 0)
    assert [part.x.shape[1] for part in batch.parts(2)] == [2, 9]


def test_marks_are_moved_and_copied_by_name():
    batch = ragged()
    names = {"x", "valid", "second", "marks.is_global", "marks.member", "second_marks.member"}
    assert batch.tensors().keys() == names
    assert {t.device.type for t in batch.to("meta").tensors().values()} == {"meta"}
    other = batch.with_tensors({name: t.clone() for name, t in batch.tensors().items()}, reach=None)
    assert other.marks.keys() == batch.marks.keys()
    other.marks["member"].zero_()
    assert batch.marks["member"].any()
    assert batch.to("meta").marks["member"].is_meta


def test_a_model_without_marks_is_called_as_before():
    batch = rows()
    assert batch.given.keys() == {"valid"}
    assert dataclasses.replace(batch, marks=leading(batch.valid)).given.keys() == {"valid", "marks"}
