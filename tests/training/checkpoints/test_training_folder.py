"""A run's folder: differences are named, rows cut at a step, files whole or not there."""

import json

import pytest
from tiny_runs import one_stage, settings, stage

from weft import rows
from weft.errors import WeftError
from weft.files import write_json
from weft.training import Run, train
from weft.training.checkpoints.run_folder import RunFolder


def metrics(*steps):
    pairs = [("train", step) for step in steps] + [("valid", steps[-1])]
    return [{"kind": kind, "step": step, "loss": 0.1 * step} for kind, step in pairs]


def test_rows_after_a_step_are_cut(tmp_path):
    record = RunFolder(tmp_path)
    for row in metrics(1, 2, 3):
        record.write(row)
    record.cut(3)
    assert rows.read(record.metrics) == metrics(1, 2, 3)
    record.cut(3, pending=True)
    assert rows.read(record.metrics) == metrics(1, 2, 3)[:-1]
    record.cut(1)
    assert rows.read(record.metrics) == metrics(1)[:-1]
    record.cut(0)
    assert rows.read(record.metrics) == []
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]


def test_half_a_row_is_cut_too(tmp_path):
    record = RunFolder(tmp_path)
    record.write(metrics(1)[0])
    with record.metrics.open("a") as file:
        file.write('{"kind": "train", "st')
    record.cut(1)
    assert record.metrics.read_text().count("\n") == 1
    assert rows.read(record.metrics) == metrics(1)[:1]


def test_no_rows_need_no_cut(tmp_path):
    RunFolder(tmp_path).cut(3)
    assert list(tmp_path.iterdir()) == []


def test_every_difference_is_named(tmp_path):
    record = RunFolder(tmp_path)
    record.check(one_stage(lr=0.1))
    record.check(one_stage(lr=0.1))
    with pytest.raises(WeftError) as caught:
        record.check(one_stage(lr=0.2, warmup=5))
    assert "stages[0].settings.lr: 0.1 there, 0.2 here" in str(caught.value)
    assert "stages[0].settings.warmup: 0 there, 5 here" in str(caught.value)


def test_another_number_of_stages_is_a_difference(tmp_path):
    record = RunFolder(tmp_path)
    record.check(one_stage())
    two = Run(stages=(stage(), stage()), settings=settings())
    with pytest.raises(WeftError, match="stages"):
        record.check(two)


def test_another_source_is_a_difference(tmp_path):
    from tiny_runs import examples

    from weft.training import Shuffled

    record = RunFolder(tmp_path)
    record.check(one_stage(source=Shuffled(examples(), 4, seed=1)))
    with pytest.raises(WeftError, match=r"shuffled by seed 1.*shuffled by seed 2"):
        record.check(one_stage(source=Shuffled(examples(), 4, seed=2)))


def test_json_is_whole_or_not_there(tmp_path):
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}


def test_a_finished_run_without_its_weights_is_refused(tmp_path):
    run = one_stage()
    outcome = train(run, tmp_path)
    assert train(run, tmp_path) == outcome  # it is not trained again
    (tmp_path / outcome.model / "model.safetensors").unlink()
    with pytest.raises(
        WeftError, match=r"finished run, but its weights are gone.*remove done\.json"
    ):
        train(run, tmp_path)
    (tmp_path / "done.json").unlink()
    again = train(run, tmp_path)  # the way out leads somewhere
    assert (again.status, again.steps) == ("done", outcome.steps)
    assert (tmp_path / again.model / "model.safetensors").is_file()


def test_a_finished_run_without_its_metrics_is_remarked(tmp_path):
    run = one_stage()
    outcome = train(run, tmp_path)
    (tmp_path / "metrics.jsonl").unlink()
    with pytest.warns(UserWarning, match=r"metrics\.jsonl is gone"):
        assert train(run, tmp_path) == outcome


def test_asking_for_the_outcome_deletes_nothing(tmp_path):
    run, record = one_stage(), RunFolder(tmp_path)
    outcome = train(run, tmp_path)
    assert not record.checkpoints.exists()
    record.checkpoints.mkdir()
    assert record.outcome() == outcome
    assert record.checkpoints.is_dir()
    assert train(run, tmp_path) == outcome
    assert not record.checkpoints.exists()
