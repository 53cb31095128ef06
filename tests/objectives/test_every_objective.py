"""What holds for every objective: it learns, it resumes exactly, it is saved, it adds up."""

import dataclasses

import numpy as np
import pytest
import torch

from weft.arena.data.examples import Examples, TokenRows
from weft.errors import Unsupported
from weft.layers.embedding import Embedding
from weft.mixers import Frame
from weft.models import Encoder, Stack, load, save
from weft.objectives import OBJECTIVES, Batch, Head
from weft.testing import FAMILIES, checks_for
from weft.training import Ordered, Progress, Run, Shuffled, Stage, TrainingSettings, train

VOCAB, CLASSES, LENGTH = 7, 3, 10

# The loss per item that a model has to get below, and what knowing frequencies alone would give.
LEARNS = {
    "causal_lm": (1.2, 1.95),  # log 7; the first two tokens of a row stay unknown
    "classify": (0.5, 1.07),  # the entropy of 3, 2 and 2 sevenths
    "conditional_masked_lm(smoothing=0.0)": (1.4, 1.95),
    "electra(rate=0.3, share=0.5, weight=5.0)": (3.8, 4.75),  # log 7 + 5 · entropy of 0.26
    "masked_lm(rate=0.3)": (1.2, 1.95),
    "match": (0.55, 0.64),  # the entropy of 2/3
    "mpnet(share=0.3)": (1.2, 1.95),
    "permuted_lm(share=0.3)": (1.2, 1.95),
    "pixel_lm": (1.2, 1.95),
    "pixel_lm(kind='masked', rate=0.3)": (1.2, 1.95),
    "regress": (0.3, 0.69),  # their variance
    "sequence_to_sequence(smoothing=0.0)": (0.8, 2.0),  # ends are a quarter
    "span_corruption(rate=0.4, mean=2.0, sentinels=4)": (1.0, 2.2),  # half are tokens
}
TAUGHT_BY_OTHERS = {
    "early_exit",
    "distill",
    "both_strands",
    "masked_units",
}  # tested in files of their own


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts_of(mixer="full", dim=24, **stack):
    return Encoder(
        embedding=Embedding(vocab=VOCAB, positions="sinusoidal"),
        stack=Stack(
            frame=Frame(dim=dim, heads=2, length=LENGTH),
            **{"order": "sfsf", "mixer": mixer, **stack},
        ),
    )


def model_of(objective, mixer="full", **stack):
    torch.manual_seed(0)
    return objective.build(parts_of(mixer, **stack), Head(classes=CLASSES)).build()


def ragged(seed=0, rows=32):
    """Rows that repeat two tokens; the class is the first token modulo 3."""
    draw = torch.Generator().manual_seed(seed)
    pair = torch.randint(VOCAB, (rows, 2), generator=draw)
    sizes = torch.randint(6, LENGTH + 1, (rows, 1), generator=draw)
    x = pair.repeat(1, LENGTH // 2)
    valid = torch.arange(LENGTH) < sizes
    return Batch(x=x.masked_fill(~valid, 0), valid=valid, y=pair[:, 0] % CLASSES)


def with_second(batch, seed=0):
    """Short sequences and their reversals; the class is whether the first tokens are equal."""
    draw = torch.Generator().manual_seed(seed)
    sizes = torch.randint(2, 5, (len(batch), 1), generator=draw)
    valid = torch.arange(4) < sizes
    x = torch.randint(VOCAB, (len(batch), 4), generator=draw).masked_fill(~valid, 0)
    back = x.flip(1).gather(1, (torch.arange(4) + 4 - sizes).clamp(max=3)).masked_fill(~valid, 0)
    same = torch.arange(len(batch)) % 2
    return dataclasses.replace(batch, x=x, valid=valid, second=back, second_valid=valid, y=same)


def batch_for(objective, seed=0, rows=32):
    batch = ragged(seed, rows)
    if objective.name in ("sequence_to_sequence", "conditional_masked_lm"):
        return with_second(batch, seed)
    if objective.name == "match":
        other = torch.arange(rows) % 2 == 1
        second = torch.where(other[:, None], batch.x.flip(0), batch.x)
        valid = torch.where(other[:, None], batch.valid.flip(0), batch.valid)
        same = (batch.y == torch.where(other, batch.y.flip(0), batch.y)).long()
        return dataclasses.replace(batch, second=second, second_valid=valid, y=same)
    return batch


def test_all_are_here():
    named = {OBJECTIVES.parse(spec).name for spec in LEARNS}
    assert named | TAUGHT_BY_OTHERS >= set(OBJECTIVES)


@pytest.mark.parametrize("spec", LEARNS)
def test_learns(spec):
    objective, (goal, blind) = OBJECTIVES.parse(spec), LEARNS[spec]
    assert goal < blind
    model = model_of(objective)
    optimiser = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.98))
    for step in range(100):
        loss = objective.loss(model, batch_for(objective, step), generator(step))
        optimiser.zero_grad()
        (loss.total / loss.count).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step == 0:
            # Before: no better than knowing nothing.
            assert (loss.total / loss.count).item() > 0.9 * blind
    with torch.no_grad():
        found = objective.loss(model.eval(), batch_for(objective, 1000, 256), generator(7))
    assert (found.total / found.count).item() < goal


@pytest.mark.parametrize("rule", FAMILIES["objective"])
@pytest.mark.parametrize("spec", LEARNS)
def test_contract(spec, rule):
    dict(checks_for(OBJECTIVES.parse(spec)))[rule]()


@pytest.mark.parametrize("spec", LEARNS)
def test_models_come_back(spec, tmp_path):
    objective = OBJECTIVES.parse(spec)
    model = model_of(objective).eval()
    again = load(save(model, tmp_path / "model"))
    assert again.config == model.config
    batch = batch_for(objective)
    one = objective.loss(model, batch, generator(1)).total
    assert torch.equal(objective.loss(again, batch, generator(1)).total, one)


class Twice(Exception):
    """The machine went down."""


class CrashAt(Progress):
    """Raises after some steps."""

    def __init__(self, step):
        self.last = step

    def step(self, step):
        if step == self.last:
            raise Twice


def run_of(objective):
    """Three steps of two rows in two parts, with dropout, on ragged pairs with classes."""
    draw = np.random.default_rng(0)
    sizes = draw.integers(2, LENGTH + 1, 12)
    rows = [draw.integers(0, VOCAB, size).astype(np.uint8) for size in sizes]
    paired = objective.name in ("sequence_to_sequence", "conditional_masked_lm", "match")
    second = TokenRows.of([row[::-1].copy() for row in rows]) if paired else None
    data = Examples(TokenRows.of(rows), LENGTH, labels=sizes % 2, second=second)
    return Run(
        stages=(
            Stage(
                model=objective.build(parts_of(dim=8, dropout=0.2), Head(classes=CLASSES)),
                objective=objective,
                source=Shuffled(data, 4, seed=1),
                valid=Ordered(data, 4),
                settings=TrainingSettings(
                    steps=4, batch=4, accumulate=2, device="cpu", save_every=1, evaluate_every=2
                ),
            ),
        )
    )


@pytest.mark.parametrize("spec", LEARNS)
def test_resumes_exactly(spec, tmp_path):
    objective = OBJECTIVES.parse(spec)
    whole = train(run_of(objective), tmp_path / "whole")
    with pytest.raises(Twice):
        train(run_of(objective), tmp_path / "parts", CrashAt(3))
    parts = train(run_of(objective), tmp_path / "parts")
    one, two = (load(tmp_path / name / "last").state_dict() for name in ("whole", "parts"))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert (whole.score, whole.loss) == (parts.score, parts.loss)
    start = run_of(objective).stages[0].model.build().state_dict()
    assert any(not torch.equal(start[name], one[name]) for name in one)


BOTH_WAYS = ("fnet", "performer", "linformer(rank=4)", "longformer(window=3)", "reformer(chunk=4)")
CAUSAL = ("linear_transformer", "sliding_window(window=3)", "lstm")
MASKED = ("sliding_window(window=3)", "block_local(block=3)", "transformer_xl")
MIXERS_OF = {
    "masked_lm": BOTH_WAYS,
    "electra(share=0.5)": BOTH_WAYS,
    "regress": BOTH_WAYS,
    "pixel_lm(kind='masked')": BOTH_WAYS,
    "conditional_masked_lm": BOTH_WAYS,
    "pixel_lm": CAUSAL,
    "permuted_lm": MASKED,
    "mpnet": MASKED,
    "sequence_to_sequence": CAUSAL[:2],
    "span_corruption(decoder_mixer='linear_transformer')": BOTH_WAYS,
}
PAIRED = [(spec, mixer) for spec, mixers in MIXERS_OF.items() for mixer in mixers]


@pytest.mark.parametrize(("spec", "mixer"), PAIRED, ids=[f"{a}-{b}" for a, b in PAIRED])
def test_with_other_mixers(spec, mixer):
    objective = OBJECTIVES.parse(spec)
    model = model_of(objective, mixer, dim=8)
    loss = objective.loss(model, batch_for(objective), generator(1))
    loss.total.backward()
    assert torch.isfinite(loss.total)
    assert int(loss.count) > 0


@pytest.mark.parametrize("spec", ["sequence_to_sequence", "span_corruption", "pixel_lm"])
def test_a_mixer_that_cannot_hide_the_future_is_refused(spec):
    with pytest.raises(Unsupported, match="cannot be causal"):
        model_of(OBJECTIVES.parse(spec), "fnet")
