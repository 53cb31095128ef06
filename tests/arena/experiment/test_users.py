"""What users of other libraries complain about, as tests of a comparison on a user's own table."""

import numpy as np
import pytest
import torch
from table_files_made import write

from weft.arena.analysis.flops import flops_per_token
from weft.arena.experiment.model import Model
from weft.arena.experiment.settings import Experiment, with_mixer
from weft.arena.grid.grid import Grid
from weft.arena.tasks import TASKS, Table
from weft.config import changed
from weft.errors import WeftError
from weft.mixers import MIXERS
from weft.models import Classifier

BOTH_WAYS = [name for name in MIXERS if MIXERS[name]().traits.bidirectional]
# Mechanisms that rivals tie to multiples of a block, a chunk or a picture.
TIED = ("bigbird", "reformer", "longformer", "block_local", "linformer")


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    rows = [(f"text {i} " + "ab " * (7 * i % 41), i % 2) for i in range(60)]
    path = write(tmp_path_factory.mktemp("users"), ".csv", ("text", "label"), rows)
    return Table(data=str(path))


def model(task, mixer, length=None):
    given = {"layers": 2, "dim": 16, "heads": 2, "expansion": 2, "registers": 1, "mixer": mixer}
    model = changed(Model(), given | {"length": length})
    return Classifier(trunk=model.bound(task)[0], classes=task.classes)


def scores(built, batch):
    with torch.no_grad():
        return built(batch.x, valid=batch.valid)


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_batch_mates_padding_and_history_change_nothing(table, name):
    """BigBird's state (transformers #20031), masks (reformer-pytorch #53), fla #1272."""
    check_alone_and_together(model(table, name).build().double().eval(), table.load("train"))


def check_alone_and_together(built, examples):
    order = np.argsort(examples.rows.lengths)
    short, long = order[:1], order[-1:]
    alone = scores(built, examples.batch(short))
    scores(built, examples.batch(long))
    together = scores(built, examples.batch(np.r_[long, short]))
    assert (together[1] - alone[0]).abs().max() < 1e-9, "batch mates"
    assert torch.equal(scores(built, examples.batch(short)), alone), "history"


class Forgetful(torch.nn.Module):
    """A twin that reads padding, or that changes for good after a long batch."""

    def __init__(self, built, fault):
        super().__init__()
        self.built, self.fault, self.longest = built, fault, 0

    def forward(self, x, valid):
        self.longest = max(self.longest, x.shape[1])
        if self.fault == "batch mates":
            return self.built(x, valid=None)
        # As one that switches its kernel by length, for good, and only where it is alone.
        changed = len(x) == 1 and self.longest > x.shape[1]
        return self.built(x, valid=valid) + changed


@pytest.mark.parametrize("fault", ["batch mates", "history"])
def test_a_model_that_breaks_it_is_found(table, fault):
    built = model(table, "full").build().double().eval()
    with pytest.raises(AssertionError, match=fault):
        check_alone_and_together(Forgetful(built, fault), table.load("train"))


@pytest.mark.parametrize("name", TIED)
def test_any_length(table, name):
    """No divisibility: transformers #17295, #4565, #5446, reformer-pytorch #72, linformer #8."""
    for length in (1, 2, 7, 65, 129):
        task = Table(data=table.data, length=length)
        batch = task.load("valid").batch(np.arange(3))
        assert scores(model(task, name).build().eval(), batch).isfinite().all()


@pytest.mark.parametrize("name", TASKS)
def test_every_task_has_trivial_baselines(name):
    """x-transformers #155: "numbers are meaningless without" something to stand beside."""
    assert callable(TASKS[name].baselines)
    assert TASKS[name].baselines.__doc__


def test_dense_is_always_compared():
    """Rivals that lose to dense attention say so late: flash-attention #1564, BSA #8."""
    with pytest.raises(WeftError, match="dense"):
        Grid(contenders={"longformer": with_mixer(Experiment(task="listops"), "longformer")})


def test_a_smaller_window_is_less_work(table):
    """transformers #7159: half the window, the same time."""
    wide, narrow = (
        flops_per_token(model(table, f"sliding_window(window={w})", 1024), 1024) for w in (256, 64)
    )
    assert narrow < 0.8 * wide


def test_a_seed_fixes_random_patterns(table):
    batch = table.load("valid").batch(np.arange(3))
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(scores(model(table, "bigbird(block=8, random=1)").build().eval(), batch))
    assert torch.equal(*found)
