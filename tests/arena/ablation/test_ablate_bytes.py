"""The packaged ablation: every modification is a model that learns, and changes what it says."""

import pytest
import torch

from weft.arena.ablation.ablate import BASE, read_ablation
from weft.arena.ablation.published import published
from weft.arena.analysis.flops import parameters
from weft.arena.experiment.runs import model_of
from weft.layers.penalty import penalties
from weft.objectives import Batch, CausalLM

FOUND = read_ablation("ablate_bytes", ["task=language(length=32)"])
NAMES = [own.name for own in FOUND.modifications]
BY_NAME = {own.name: own for own in FOUND.modifications}


def size(name):
    return parameters(model_of(BY_NAME[name].experiment))


def test_there_are_enough():
    assert len(NAMES) > 50
    assert sum(own.published is not None for own in FOUND.modifications) >= 40


@pytest.mark.parametrize("name", NAMES)
def test_every_modification_learns(name):
    config = model_of(BY_NAME[name].experiment)
    base = model_of(BY_NAME[BASE].experiment)
    assert (config == base) == (name == BASE)
    torch.manual_seed(0)
    model = config.build().train()
    x = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(0))
    loss = CausalLM().loss(model, Batch(x=x), torch.Generator())
    mean = loss.total / loss.count
    assert mean.isfinite()
    extra = penalties(model)
    (mean if extra is None else mean + extra).backward()
    slopes = [p.grad for p in model.parameters() if p.grad is not None]
    assert slopes
    assert all(slope.isfinite().all() for slope in slopes)


def test_sizes_are_those_of_the_study_in_proportion():
    """What keeps its parameters there keeps them here, and what shrinks or grows does so too."""
    base, theirs = size(BASE), published("vanilla").parameters
    for own in FOUND.modifications:
        # Embeddings are a tenth of the study's parameters and a fiftieth of ours.
        if own.published is None or "embed" in own.name or "softmax" in own.name:
            continue
        ratio = published(own.published).parameters / theirs
        if ratio == 1 and own.name != "adaptive input":
            assert size(own.name) == pytest.approx(base, rel=0.03), own.name
    assert size("block sharing") < base / 4
    assert size("Switch Transformer") > 2 * base
    assert size("mixture of experts") > base * 1.5
    assert size("product key memory") > base
    assert size("untied embeddings") == base + 256 * 192
