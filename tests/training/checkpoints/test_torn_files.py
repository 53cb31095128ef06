"""What a person, another program or a torn disk left in a run's folder: said in words, or passed
over for what is whole."""

import dataclasses
import json

import numpy as np
import pytest
from tiny_runs import Crash, CrashAt, Heard, assert_same_run, examples, one_stage

from weft.arena.data.examples import Examples
from weft.errors import WeftError
from weft.models import load
from weft.training import Ordered, Run, Shuffled, train
from weft.training.checkpoints.checkpoint import steps
from weft.use.show import show


def stopped(folder):
    """A run that crashed after step 3: checkpoints, metrics, no outcome."""
    with pytest.raises(Crash):
        train(one_stage(save_every=1), folder, CrashAt("step", 3))
    return one_stage(save_every=1)


TORN = [b"", b"{", b'{"settings": ', b"[]", b"3", b"{}", b"\xff\xfe", b"[" * 5000, b"\x00" * 40]


@pytest.mark.parametrize("data", TORN, ids=lambda data: repr(data[:12]))
def test_torn_settings(tmp_path, data):
    run = stopped(tmp_path)
    (tmp_path / "settings.json").write_bytes(data)
    with pytest.raises(WeftError, match=r"settings\.json"):
        train(run, tmp_path)


@pytest.mark.parametrize("data", [*TORN, b'{"status": "done"}'], ids=lambda data: repr(data[:12]))
def test_a_torn_outcome(tmp_path, data):
    run = one_stage()
    train(run, tmp_path)
    (tmp_path / "done.json").write_bytes(data)
    with pytest.raises(WeftError, match=r"done\.json.*remove it, and the run goes on"):
        train(run, tmp_path)
    for use in (load, show):
        with pytest.raises(WeftError, match=r"done\.json"):
            use(tmp_path)


@pytest.mark.parametrize("named", ["../elsewhere", "/", "", 3, None])
def test_an_outcome_leads_nowhere_else(tmp_path, named):
    run = one_stage()
    train(run, tmp_path)
    done = json.loads((tmp_path / "done.json").read_text())
    (tmp_path / "done.json").write_text(json.dumps({**done, "model": named}))
    for use in (load, lambda folder: train(run, folder)):
        with pytest.raises(WeftError, match="model is 'best' or 'last'"):
            use(tmp_path)


@pytest.mark.parametrize("name", ["²", "123", "00000009x", "-1", "٣٣٣٣٣٣٣٣", ".00000009.new"])
def test_foreign_folders_among_checkpoints(tmp_path, name):
    run = stopped(tmp_path)
    known = steps(tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / name).mkdir()
    (tmp_path / "checkpoints" / "00000099").write_text("a file, not a folder")
    assert steps(tmp_path / "checkpoints") == known
    assert train(run, tmp_path).status == "done"


def test_a_deeply_nested_state_is_damage_like_any_other(tmp_path):
    run, heard = stopped(tmp_path), Heard()
    newest = max((tmp_path / "checkpoints").iterdir())
    (newest / "state.json").write_text("[" * 100_000)
    train(run, tmp_path, heard)
    assert heard.started == 2
    assert "an older one is used" in heard.notes[0]


@pytest.mark.parametrize(
    "row", ['{"loss": 1}', '{"kind": "test", "step": 1}', '{"kind": "train", "step": "1"}', "3"]
)
def test_rows_of_another_program(tmp_path, row):
    run = stopped(tmp_path)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(row + "\n")
    with pytest.raises(WeftError, match=r"metrics\.jsonl"):
        train(run, tmp_path)


def other_labels(data: Examples) -> Examples:
    return Examples(data.rows, data.length, labels=(data.labels + 1) % 3)


def one_token_more(data: Examples) -> Examples:
    tokens = data.rows.tokens.copy()
    tokens[17] = (tokens[17] + 1) % 7
    return Examples(type(data.rows)(tokens, data.rows.starts), data.length, labels=data.labels)


@pytest.mark.parametrize("change", [other_labels, one_token_more])
def test_data_that_changed_are_not_trained_on(tmp_path, change):
    """Same number of rows, same seed, other content."""
    source = Shuffled(examples(), 4, seed=1)
    with pytest.raises(Crash):
        train(one_stage(source=source), tmp_path, CrashAt("step", 3))
    changed = Shuffled(change(examples()), 4, seed=1)
    assert str(changed) == str(source)
    with pytest.raises(WeftError, match=r"stages\[0\]\.data\.training: .* there, .* here"):
        train(one_stage(source=changed), tmp_path)
    assert train(one_stage(source=source), tmp_path).status == "done"


@pytest.mark.parametrize("change", [other_labels, one_token_more])
def test_scores_of_other_data_are_not_compared_with_the_old(tmp_path, change):
    """The best model is chosen by the validation: other rows make other scores."""

    def scored_on(data: Examples) -> Run:
        (stage,) = one_stage().stages
        return Run(stages=(dataclasses.replace(stage, valid=Ordered(data, 4)),))

    with pytest.raises(Crash):
        train(scored_on(examples()), tmp_path, CrashAt("step", 3))
    with pytest.raises(WeftError, match=r"stages\[0\]\.data\.validation: .* there, .* here"):
        train(scored_on(change(examples())), tmp_path)
    assert train(scored_on(examples()), tmp_path).status == "done"


def test_a_run_without_fingerprints_goes_on(tmp_path):
    """Folders of weft 0.1.0 have none."""
    train(one_stage(), tmp_path / "whole")
    stopped_run = one_stage()
    with pytest.raises(Crash):
        train(stopped_run, tmp_path / "old", CrashAt("step", 3))
    path = tmp_path / "old" / "settings.json"
    settings = json.loads(path.read_text())
    for stage in settings["stages"]:
        assert stage.pop("data")["training"] is not None
    path.write_text(json.dumps(settings))
    train(stopped_run, tmp_path / "old")
    assert_same_run(tmp_path / "whole", tmp_path / "old")
    assert "data" in json.loads(path.read_text())["stages"][0]


def test_fingerprints_tell_content_alone():
    first, again, other = examples(), examples(), examples(seed=5)
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.fingerprint != Examples(first.rows, first.length).fingerprint
    paired = Examples(first.rows, first.length, labels=first.labels, second=other.rows)
    assert paired.fingerprint != first.fingerprint
    groups = np.zeros(len(first), dtype=np.int64)
    assert Examples(first.rows, 9, labels=first.labels, groups=groups).fingerprint not in (
        first.fingerprint,
        paired.fingerprint,
    )


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    """A kill between the temporary file and its rename, in another life of the run."""
    run = stopped(tmp_path / "killed")
    for name in (".metrics.jsonl.12345", ".settings.json.7", ".done.json.4194304"):
        (tmp_path / "killed" / name).write_text("half")
    (tmp_path / "killed" / ".notes.of.mine").write_text("not ours")
    train(run, tmp_path / "killed")
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == [
        ".lock",
        ".notes.of.mine",
        "best",
        "done.json",
        "last",
        "metrics.jsonl",
        "settings.json",
    ]
