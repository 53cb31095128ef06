"""Cells gathered by mechanism and length, against numpy on the same rows."""

import json

import numpy as np
import pytest
from run_folders import MECHANISMS, cell, failed, write_rows

from weft.report.read.run_folder import read_run
from weft.report.read.summary import compare


@pytest.fixture
def rows():
    made = [cell(mixer, n, seed) for mixer in MECHANISMS for n in (512, 2048) for seed in range(3)]
    made[-1] = failed("fnet", 2048, 2, "out of memory", "too large")
    return made


@pytest.fixture
def found(rows, tmp_path):
    return compare(read_run(write_rows(tmp_path, rows, with_metrics=False)))


def one(found, label, n=2048):
    (summary,) = [s for s in found.summaries if (s.label, s.length) == (label, n)]
    return summary


def test_means_over_seeds(rows, found):
    for label in ("full", "bigbird", "fnet"):
        own = [row for row in rows if (row["label"], row["length"]) == (label, 2048)]
        done = [row["test_score"] for row in own if row["status"] == "done"]
        summary = one(found, label)
        assert summary.score.mean == pytest.approx(np.mean(done))
        assert summary.score.std == pytest.approx(np.std(done, ddof=1))
        assert (summary.score.n, summary.cells) == (len(done), 3)
    assert one(found, "fnet").statuses == ("out of memory",)


def test_ratios_to_dense(rows, found):
    def mean(label, key):
        own = [r[key] for r in rows if (r["label"], r["length"]) == (label, 2048) and r[key]]
        return np.mean(own)

    for label in ("longformer", "linformer"):
        speed = mean(label, "steps_per_second") / mean("full", "steps_per_second")
        memory = mean(label, "peak_bytes") / mean("full", "peak_bytes")
        assert one(found, label).speed_ratio == pytest.approx(speed)
        assert one(found, label).memory_ratio == pytest.approx(memory)
    assert one(found, "full").speed_ratio == 1


def test_the_best_comes_first(found):
    ranked = [s.score.mean for s in found.at(2048)]
    assert ranked == sorted(ranked, reverse=True)
    assert found.labels[0] == "full"
    assert found.lengths == [512, 2048]


def test_of_bits_fewer_are_better(tmp_path):
    rows = [
        cell(mixer, 512, seed, metric="bits per byte", test_score=score + seed / 100)
        for mixer, score in (("full", 1.5), ("bigbird", 1.1), ("fnet", 2.0))
        for seed in range(2)
    ]
    found = compare(read_run(write_rows(tmp_path, rows, with_metrics=False)))
    assert found.lower_is_better
    assert [s.label for s in found.at(512)] == ["bigbird", "full", "fnet"]
    assert found.better(1.1, 1.2)
    assert found.best_rule(512) == ("majority class", 0.171)


def test_without_test_scores_validation_counts(tmp_path):
    rows = [cell(mixer, 512, 0, test_score=None) for mixer in ("full", "fnet")]
    found = compare(read_run(write_rows(tmp_path, rows, with_metrics=False)))
    assert found.split == "validation"
    assert one(found, "fnet", 512).score.mean == rows[1]["valid_score"]


def test_the_main_length_has_the_most_scores(tmp_path):
    rows = [cell(mixer, n) for mixer in ("full", "fnet") for n in (512, 1024)]
    rows += [cell("fnet", 4096), failed("full", 4096, 0, "out of memory", "too large")]
    found = compare(read_run(write_rows(tmp_path, rows, with_metrics=False)))
    assert found.main_length == 1024


def test_rules_of_a_length(tmp_path):
    folder = write_rows(tmp_path, [cell("full", 512), cell("full", 4096)], with_metrics=False)
    text = '{"majority (512 tokens)": 0.2, "majority (4,096 tokens)": 0.1, "root": 0.15}'
    (folder / "baselines.json").write_text(text)
    found = compare(read_run(folder))
    assert found.rules(512) == {"majority": 0.2}
    assert found.rules(None) == {"root": 0.15}
    assert found.best_rule(512) == ("majority", 0.2)
    assert found.best_rule(4096) == ("root", 0.15)


def test_interleaved_timings_come_first(tmp_path):
    folder = write_rows(tmp_path, [cell("full", 512), cell("fnet", 512)], with_metrics=False)
    timed = '{"label": "full", "length": 512, "median_s": 0.5}\n'
    timed += '{"label": "fnet", "length": 512, "steps_per_second": 8.0}\n'
    (folder / "speed.jsonl").write_text(timed)
    found = compare(read_run(folder))
    assert found.interleaved
    assert one(found, "fnet", 512).speed_ratio == pytest.approx(4.0)


def test_a_training_of_a_language_model_is_told_its_metric(tmp_path):
    rows = [{"kind": "valid", "step": 1, "score": 2.5, "metric": "bits per byte", "seconds": 1.0}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = {"model": "best", "best_score": 2.5, "score": 2.5, "seconds": 1.0, "steps": 1}
    (tmp_path / "done.json").write_text(json.dumps(done))
    found = compare(read_run(tmp_path))
    assert found.metric == "bits per byte"
    assert found.lower_is_better
