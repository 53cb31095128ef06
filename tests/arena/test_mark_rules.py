"""Rules that mark tokens, and settings that carry them to training, validation and test."""

import dataclasses

import numpy as np
import pytest
import torch

from weft.arena.data.examples import Examples, TokenRows
from weft.arena.data.marks import marked
from weft.arena.experiment.runs import check_marks, rows_of, run_of, split_of
from weft.arena.experiment.settings import experiment, recipe
from weft.errors import WeftError
from weft.models.usage.mark_rules import MARKS, read_rules
from weft.objectives import Batch
from weft.training import train

IDS = torch.tensor([[5, 7, 5, 5, 9, 7], [7, 0, 5, 5, 0, 0]])
VALID = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0]], dtype=torch.bool)


def of(spec, ids=IDS, valid=VALID):
    found = marked(Batch(x=ids, valid=valid), {"is_global": MARKS.parse(spec)})
    return found.marks["is_global"].long().tolist()


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("first(2)", [[1, 1, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0]]),
        ("every(3)", [[1, 0, 0, 1, 0, 0], [1, 0, 0, 0, 0, 0]]),
        ("every(2)", [[1, 0, 1, 0, 1, 0], [1, 0, 0, 1, 0, 0]]),
        ("token(7)", [[0, 1, 0, 0, 0, 1], [1, 0, 0, 0, 0, 0]]),
        ("token([7, 9])", [[0, 1, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0]]),
        ("token(0)", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),  # padding is not marked
        ("first(1) | token(9)", [[1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]),
        ("count(7)", [[0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 0, 0]]),
        ("count(0)", [[0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]]),
    ],
)
def test_rules_by_hand(spec, expected):
    assert of(spec) == expected
    assert str(MARKS.parse(str(MARKS.parse(spec)))) == str(MARKS.parse(spec))


def test_rules_of_a_pair_and_of_values():
    batch = Batch(x=IDS, valid=VALID, second=IDS[:, :3])
    rules = {"is_global": MARKS.parse("token(5)")}
    assert not marked(batch, rules).second_marks
    both = marked(batch, rules, both=True)
    assert both.second_marks["is_global"].tolist() == (IDS[:, :3] == 5).tolist()
    values = Batch(x=torch.randn(2, 6, 3))
    found = marked(values, {"is_global": MARKS.parse("every(4)")})
    assert found.marks["is_global"].long().tolist() == [[1, 0, 0, 0, 1, 0]] * 2


def test_a_rule_adds_to_what_the_data_marks():
    given = Batch(x=IDS, marks={"is_global": IDS == 9})
    found = marked(given, {"is_global": MARKS.parse("first(1)")}).marks["is_global"]
    assert found.long().tolist() == [[1, 0, 0, 0, 1, 0], [1, 0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MARKS.parse("first(0)"), "first counts tokens, at least 1"),
        (lambda: MARKS.parse("every(0)"), "every counts tokens, at least 1"),
        (lambda: MARKS.parse("frist(1)"), "did you mean 'first'"),
        (lambda: read_rules({"is_globl": "first(1)"}), "did you mean 'is_global'"),
        (lambda: read_rules({"is_global": 3}), "marks.is_global is a rule"),
        (lambda: read_rules({"is_global": "frist(1)"}), "^marks.is_global: no mark rule"),
        (lambda: read_rules("first(1)"), "marks are a table"),
        (lambda: of("count(7) | first(1)"), "joins marks that are True or False"),
        (lambda: marked(Batch(x=torch.randn(2, 3, 1)), {"is_global": MARKS.parse("token(1)")}),
         "token compares ids"),
        (lambda: TokenRows.of([[1, 2]], marks={"is_global": [np.ones(3, bool)]}),
         "is_global has one value for each token"),
    ],
)  # fmt: skip
def test_bad_rules(call, message):
    with pytest.raises(WeftError, match=message):
        call()


def test_rows_carry_marks_to_batches():
    sequences = [[1, 2, 3], [4], [5, 6, 7, 8, 9]]
    tens = [np.array(row) * 10 for row in sequences]
    rows = TokenRows.of(sequences, marks={"member": tens})
    for fixed in (False, True):
        examples = Examples(rows, length=4, second=rows, fixed=fixed)
        batch = examples.batch(np.array([2, 0]))
        assert batch.marks["member"].tolist() == [[50, 60, 70, 80], [10, 20, 30, 0]]
        assert batch.second_marks["member"].tolist() == batch.marks["member"].tolist()
        torch.testing.assert_close(batch.marks["member"], batch.x * 10)
    some = rows.chosen(np.array([1, 2]))
    assert some.tokens.tolist() == [4, 5, 6, 7, 8, 9]
    assert (some.marks["member"] == some.tokens * 10).all()
    picked = dataclasses.replace(rows, pick=np.array([1, 1, 0]))
    assert picked.chosen(np.array([2, 0])).marks["member"].tolist() == [10, 20, 30, 40]


def settings(**changes):
    tables = {
        "task": {"spec": "listops(length=64, train=40, valid=10, test=10)"},
        "mixer": "longformer(window=4, global_first=0)",
        "model": {"layers": 2, "dim": 16, "heads": 2},
        "training": {"steps": 3, "batch": 4, "device": "cpu", "evaluate_every": 3, "warmup": 1},
        "marks": {"is_global": "first(1) | token(3)"},
    }
    return experiment({**tables, **changes})


def test_settings_mark_every_split():
    own = settings()
    assert experiment(own.tables()) == own
    stage = run_of(own).stages[0]
    batches = [stage.source.batch(0), next(iter(stage.valid)), next(iter(split_of(own, "test")))]
    for batch in [*batches, rows_of(own, "train").batch(np.arange(3))]:
        expected = (batch.x == 3) | (torch.arange(batch.x.shape[1]) == 0)
        real = torch.ones_like(expected) if batch.valid is None else batch.valid
        assert batch.marks["is_global"].tolist() == (expected & real).tolist()


def test_marked_training_runs(tmp_path):
    outcome = train(run_of(settings()), tmp_path)
    assert outcome.status == "done"


def test_a_comparison_leaves_off_what_a_contender_does_not_know():
    found = recipe({**settings().tables(), "mixers": {"full": "full", "longformer": "longformer"}})
    marks = {
        name: run_of(one).stages[0].source.batch(0).marks.keys()
        for name, one in found.mixers.items()
    }
    assert marks == {"full": set(), "longformer": {"is_global"}}


def test_phases_whose_models_take_no_marks_read_without():
    phases = [{"steps": 2, "objective": spec} for spec in ("causal_lm", "permuted_lm", "classify")]
    stages = run_of(settings(phase=phases)).stages
    assert [bool(stage.source.batch(0).marks) for stage in stages] == [False, False, True]


def test_a_lone_training_refuses_marks_that_its_mixer_does_not_know():
    check_marks(settings())
    with pytest.raises(WeftError, match="no mixer of this stack knows the mark 'is_global'"):
        check_marks(settings(mixer="full"))
    with pytest.raises(WeftError, match="no mixer knows a mark 'globals'"):
        settings(marks={"globals": "first(1)"})
